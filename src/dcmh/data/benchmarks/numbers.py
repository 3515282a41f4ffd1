"""Tables of integers in plain text, one row per line: read in blocks, keeping only the rows that are needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import DataError

_BLOCK = 8 << 20  # bytes of text parsed at a time
_NEWLINE, _SPACE, _ZERO, _NINE = 10, 32, 48, 57
_DIGITS = 9  # maximum per number, so that it fits into int32


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
    blocks: list[NDArray[np.int32] | NDArray[np.uint8]] = []
    done = 0
    for text in _blocks(file):
        block = _numbers(text, name, width, done)
        if expected is not None and done + len(block) > expected:
            raise DataError(_wrong_rows(name, f"more than {expected:,}", expected))
        kept = block if keep is None else block[keep[done : done + len(block)]]
        done += len(block)
        blocks.append(kept.astype(np.uint8) if kept.max(initial=0) < 256 else kept.astype(np.int32))
    if expected is not None and done != expected:
        raise DataError(_wrong_rows(name, f"{done:,}", expected))
    if not blocks:
        return np.zeros((0, width), np.uint8)
    whole: Any = np.concatenate(blocks)
    return whole  # type: ignore[no-any-return]


def read_lines(content: bytes, name: str, encoding: str = "utf-8") -> list[str]:
    """The non-blank lines of a text, stripped."""
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name} is not {encoding.upper()} (byte {error.start:,}). Get the file again, or save it as UTF-8."
        ) from error
    return [line for line in (line.strip("\ufeff \t\r") for line in text.split("\n")) if line]


def _blocks(file: IO[bytes]) -> Iterator[NDArray[np.uint8]]:
    """The text in blocks of complete lines."""
    rest = b""
    while chunk := file.read(_BLOCK):
        cut = chunk.rfind(b"\n") + 1
        if cut == 0:
            rest += chunk
            continue
        yield np.frombuffer(rest + chunk[:cut], np.uint8)
        rest = chunk[cut:]
    if rest.strip():
        yield np.frombuffer(rest + b"\n", np.uint8)


def _numbers(text: NDArray[np.uint8], name: str, width: int, before: int) -> NDArray[np.uint8] | NDArray[np.int32]:
    """The numbers of complete lines, shape (lines, width)."""
    digits = _single_digits(text, width)
    if digits is not None:
        return digits
    digit = (text >= _ZERO) & (text <= _NINE)
    if not (digit | (text <= _SPACE)).all():
        raise DataError(f"{name} holds something other than integers. Get it again from the release.")
    first = digit.copy()
    first[1:] &= ~digit[:-1]
    starts = np.flatnonzero(first)
    counts = np.diff(np.searchsorted(starts, np.flatnonzero(text == _NEWLINE)), prepend=0)
    filled = counts > 0
    wrong = np.flatnonzero(filled & (counts != width))
    if len(wrong):
        raise DataError(
            f"{name} has {counts[wrong[0]]:,} numbers in line {before + wrong[0] + 1:,}; expected {width:,}. "
            "Is it another file, truncated or transposed? Get it again from the release."
        )
    return _values(text, digit, starts, name).reshape(int(filled.sum()), width)


def _single_digits(text: NDArray[np.uint8], width: int) -> NDArray[np.uint8] | None:
    """The fast path for tags and labels: lines of equal length, one digit per number. None for any other text."""
    length = int(np.argmax(text[: 4 * width + 4] == _NEWLINE)) + 1
    if length < 2 * width or len(text) % length:
        return None
    lines = text.reshape(-1, length)
    values = lines[:, : 2 * width : 2] - np.uint8(_ZERO)
    between = lines[:, 1 : 2 * width : 2]
    if values.max() > 9 or between.max() > _SPACE or (lines[:, 2 * width :] > _SPACE).any():
        return None
    return values if (lines[:, -1] == _NEWLINE).all() else None


def _values(
    text: NDArray[np.uint8], digit: NDArray[np.bool_], starts: NDArray[np.intp], name: str
) -> NDArray[np.uint8] | NDArray[np.int32]:
    """The numbers that start at these positions."""
    values = text[starts] - np.uint8(_ZERO)
    longer = np.flatnonzero(digit[starts + 1])  # a newline ends the text, so that there is always a next character
    if not len(longer):
        return values
    whole = values.astype(np.int32)
    position = 1
    while len(longer):
        if position >= _DIGITS:
            raise DataError(f"{name} holds a number of more than {_DIGITS} digits. Is it another file?")
        whole[longer] = whole[longer] * 10 + (text[starts[longer] + position] - np.uint8(_ZERO))
        position += 1
        longer = longer[digit[starts[longer] + position]]
    return whole


def _wrong_rows(name: str, rows: str, expected: int) -> str:
    return f"{name} has {rows} rows, the other files {expected:,}. Are they of the same release? Get it again."
