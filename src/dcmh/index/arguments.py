"""What callers may pass to an index, and the sentences they read when they pass something else."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcmh.codes import bytes_of
from dcmh.errors import DataError, ModelMismatch, ParameterError
from dcmh.index.table import words_of

Ids = NDArray[np.int64]


def as_ids(ids: ArrayLike) -> Ids:
    array = np.asarray(ids)
    if array.ndim != 1:
        raise DataError(f"Ids must have one dimension, not shape {array.shape}.")
    if not array.size:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu" or (array.dtype == np.uint64 and int(array.max()) > np.iinfo(np.int64).max):
        raise DataError(f"Ids must be integers that fit in 64 bits, not {array.dtype}. Keep names beside the index.")
    return array.astype(np.int64, copy=False)


def as_id(item: Any) -> int:
    """One id as Python's own number: databases find nothing by NumPy's."""
    if not is_id(item):
        raise ParameterError(f"An id is a whole number of at most 64 bits, not {item!r}. A hit has it as hit.id.")
    return int(item)


def is_id(item: object) -> TypeGuard[int | np.integer[Any]]:
    """Whether this can be an id at all."""
    return isinstance(item, int | np.integer) and not isinstance(item, bool) and -(2**63) <= int(item) < 2**63


def more(ids: Ids) -> str:
    return f" (and {len(ids) - 1:,} more)" if len(ids) > 1 else ""


def refuse_missing(ids: Ids) -> None:
    if len(ids):
        raise DataError(f"Id {ids[0]} is not in the index{more(ids)}. Look at index.ids, or ask `id in index` first.")


def at_least(value: Any, least: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ParameterError(f"{what} must be a whole number of at least {least}, not {value!r}.")
    return int(value)


def as_words(codes: NDArray[np.uint8], bits: int, what: str) -> NDArray[np.uint64]:
    """Packed codes as words, shape (n, ceil(bits / 64))."""
    codes = np.asarray(codes)
    if codes.dtype != np.uint8 or codes.ndim != 2:
        raise DataError(
            f"{what} must be a uint8 array of shape (n, {bytes_of(bits)}), not {codes.dtype} of shape {codes.shape}. "
            "Use dcmh.codes.pack."
        )
    if codes.shape[1] != bytes_of(bits):
        raise ModelMismatch(
            f"{what} have {codes.shape[1]} bytes each, but the index has {bits} bits ({bytes_of(bits)} bytes). "
            "Encode both with the same model."
        )
    return words_of(codes, bits)


def refuse_repeated(ids: Ids) -> None:
    """Each id must be there once."""
    if bool(np.all(ids[1:] > ids[:-1])):
        return
    ordered = np.sort(ids)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise DataError(f"Id {twice[0]} is given more than once. Give each item an id of its own.")


def refuse_known(ids: Ids) -> None:
    """These ids are in the index already; there must be none."""
    if len(ids):
        raise DataError(f"Id {ids[0]} is already in the index{more(ids)}. Remove it before you add it again.")
