"""Tables of integers in plain text, one row per line: read in blocks, keeping only the rows that are needed."""

from __future__ import annotations

import warnings
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import DataError

_BLOCK = 1 << 21  # numbers parsed at a time


def read_table(
    file: IO[bytes], name: str, width: int, *, keep: NDArray[np.bool_] | None = None, rows: int | None = None
) -> NDArray[np.uint8] | NDArray[np.int32]:
    """The numbers of a text file, shape (rows, width), as uint8 if all are below 256, otherwise as int32.

    Parameters
    ----------
    name : for messages
    keep : (rows of the file,) which rows to return; default: all
    rows : the number of rows that the file must have; default: that of `keep`, or any
    """
    expected = len(keep) if keep is not None else rows
    blocks: list[NDArray[Any]] = [np.zeros((0, width), np.uint8)]
    done = 0
    while len(block := _next_rows(file, name, width, done)):
        if expected is not None and done + len(block) > expected:
            raise DataError(_wrong_rows(name, f"more than {expected:,}", expected))
        needed = block if keep is None else block[keep[done : done + len(block)]]
        done += len(block)
        blocks.append(needed.astype(np.uint8) if needed.max(initial=0) < 256 else needed)
    if expected is not None and done != expected:
        raise DataError(_wrong_rows(name, f"{done:,}", expected))
    return np.concatenate(blocks)


def _next_rows(file: IO[bytes], name: str, width: int, before: int) -> NDArray[np.int32]:
    """The next rows of the file; none at its end."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # at the end
            warnings.simplefilter("error", DeprecationWarning)  # 1.5 as an integer
            block = np.loadtxt(file, np.int32, comments=None, ndmin=2, max_rows=max(1, _BLOCK // width))
    except (ValueError, DeprecationWarning) as error:
        raise DataError(
            f"{name} cannot be read after row {before:,} ({error}). Is it another file, truncated or transposed? "
            "Get it again from the release."
        ) from error
    if len(block) and block.shape[1] != width:
        raise DataError(
            f"{name} has {block.shape[1]:,} numbers in row {before + 1:,}; expected {width:,}. "
            "Is it another file, truncated or transposed? Get it again from the release."
        )
    if block.min(initial=0) < 0:
        raise DataError(f"{name} holds negative numbers. Get it again from the release.")
    return block


def _wrong_rows(name: str, rows: str, expected: int) -> str:
    return f"{name} has {rows} rows, the other files {expected:,}. Are they of the same release? Get it again."
