"""What every index can do, wherever its codes are stored: the protocol, what a search returns, and argument checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcmh.errors import DataError, ParameterError

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Hits:
    """The hits of one query, sorted by distance; equal distances in the order in which the items were added."""

    ids: NDArray[np.int64]
    distances: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Pairs of id and distance."""
        return zip(self.ids.tolist(), self.distances.tolist(), strict=True)


@dataclass(frozen=True, eq=False)
class Results:
    """The hits of many queries, concatenated: those of query i are `ids[offsets[i] : offsets[i + 1]]`, or `results[i]`."""

    ids: NDArray[np.int64]  # (hits of all queries,)
    distances: NDArray[np.uint16]  # (hits of all queries,)
    offsets: NDArray[np.int64]  # (queries + 1,)

    def __len__(self) -> int:
        """The number of queries."""
        return len(self.offsets) - 1

    def __getitem__(self, query: int) -> Hits:
        if not -len(self) <= query < len(self):
            raise IndexError(f"There are results for {len(self)} queries, but not for query {query}.")
        query %= len(self)
        hits = slice(self.offsets[query], self.offsets[query + 1])
        return Hits(self.ids[hits], self.distances[hits])

    def __iter__(self) -> Iterator[Hits]:
        return (self[query] for query in range(len(self)))

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of hits of each query, shape (queries,)."""
        return np.diff(self.offsets)


class Index(Protocol):
    """Packed codes of `bits` bits under integer ids, to be searched.

    Hits are sorted by distance, and a radius is inclusive. At equal distance the smaller id comes first; in the
    embedded index the item that was added first, which is the same if ids ascend.

    `allowed` limits the hits: ids (unknown ones are ignored), or booleans indexed by id.
    """

    bits: int

    def __len__(self) -> int: ...

    def __contains__(self, item: object) -> bool: ...

    @property
    def count(self) -> int:
        """The number of items."""
        ...

    @property
    def ids(self) -> NDArray[np.int64]:
        """All ids."""
        ...

    def codes(self, ids: ArrayLike) -> NDArray[np.uint8]:
        """The packed codes of these items, in that order."""
        ...

    def codes_by_id(self, ids: ArrayLike) -> dict[int, bytes]:
        """Id to packed code for those of the items that are in the index."""
        ...

    def search(self, codes: NDArray[np.uint8], k: int, *, allowed: Any = None) -> Results:
        """The k nearest items of each query."""
        ...

    def within(self, codes: NDArray[np.uint8], radius: int, *, allowed: Any = None) -> Results:
        """All items at most `radius` bits away from each query."""
        ...


def as_ids(ids: ArrayLike) -> Ids:
    """Ids as an int64 array; a DataError if they are something else."""
    array = np.asarray(ids)
    if array.ndim != 1:
        raise DataError(f"Ids must have one dimension, not shape {array.shape}.")
    if not array.size:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu" or (array.dtype == np.uint64 and int(array.max()) > np.iinfo(np.int64).max):
        raise DataError(f"Ids must be integers that fit in 64 bits, not {array.dtype}. Keep names beside the index.")
    return array.astype(np.int64, copy=False)


def ascending(ids: Ids) -> Ids:
    """Each of some ids once, ascending."""
    return ids if bool(np.all(ids[1:] > ids[:-1])) else np.unique(ids)


def as_id(item: Any) -> int:
    """One id as a Python int: database drivers do not accept NumPy integers."""
    if not is_id(item):
        raise ParameterError(f"An id is a whole number of at most 64 bits, not {item!r}. A hit has it as hit.id.")
    return int(item)


def is_id(item: object) -> TypeGuard[int | np.integer[Any]]:
    """Whether this can be an id: an integer of at most 64 bits."""
    return isinstance(item, int | np.integer) and not isinstance(item, bool) and -(2**63) <= int(item) < 2**63


def _and_more(ids: Ids) -> str:
    return f" (and {len(ids) - 1:,} more)" if len(ids) > 1 else ""


def refuse_missing(ids: Ids) -> None:
    """Raise a DataError if there are any ids that are not in the index: these."""
    if len(ids):
        raise DataError(f"Id {ids[0]} is not in the index{_and_more(ids)}. Check with `id in index` first.")


def at_least(value: Any, least: int, what: str) -> int:
    """The value as an int; a ParameterError if it is not an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ParameterError(f"{what} must be a whole number of at least {least}, not {value!r}.")
    return int(value)


def refuse_repeated(ids: Ids) -> None:
    """Raise a DataError if an id occurs more than once."""
    if bool(np.all(ids[1:] > ids[:-1])):
        return
    ordered = np.sort(ids)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise DataError(f"Id {twice[0]} is given more than once. Each item needs a unique id.")


def refuse_known(ids: Ids) -> None:
    """Raise a DataError if there are any ids that are already in the index: these."""
    if len(ids):
        raise DataError(f"Id {ids[0]} is already in the index{_and_more(ids)}. Remove it before you add it again.")
