"""What the indexes on servers have in common: `CodeIndex`, the checks of its arguments, and its results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcmh.codes import bytes_of
from dcmh.errors import DataError
from dcmh.index.protocol import Results, as_ids, at_least, is_id, refuse_missing, refuse_repeated
from dcmh.index.table import as_words, packed_of

Packed = NDArray[np.uint8]
Found = list[tuple[int, int]]  # (id, distance), nearest first
Method = Literal["exact", "approximate"]

ALONE = (
    "alone"  # as `allowed`: items that have a code in no other modality; (ALONE, ids): those of them among these ids
)


class CodeIndex(ABC):
    """An `Index` on a server, which can also be searched approximately; what those of all engines have in common."""

    bits: int

    @abstractmethod
    def __len__(self) -> int: ...

    def __contains__(self, item: object) -> bool:
        return is_id(item) and bool(self.codes_by_id([int(item)]))

    @property
    def count(self) -> int:
        """The number of items."""
        return len(self)

    @property
    @abstractmethod
    def ids(self) -> NDArray[np.int64]:
        """All ids, ascending."""

    def codes(self, ids: ArrayLike) -> Packed:
        """The packed codes of some items, in this order; a missing one is an error."""
        wanted, known = as_ids(ids), self.codes_by_id(ids)
        refuse_missing(np.array([item for item in wanted.tolist() if item not in known], np.int64))
        joined = b"".join(known[item] for item in wanted.tolist())
        return np.frombuffer(joined, np.uint8).reshape(len(wanted), bytes_of(self.bits))

    @abstractmethod
    def codes_by_id(self, ids: ArrayLike) -> dict[int, bytes]:
        """The packed codes of some items by id; unknown ids are left out."""

    def search(self, codes: Packed, k: int, *, allowed: Any = None, method: Method = "exact") -> Results:
        """The k nearest items of each query, or all items if there are fewer.

        `allowed` as in `Index`, or "alone": items that have no code in another modality of the collection.
        """
        return self._search(as_packed(codes, self.bits, "Query codes"), at_least(k, 1, "k"), allowed, method)

    def within(self, codes: Packed, radius: int, *, allowed: Any = None) -> Results:
        """All items at most `radius` bits away from each query."""
        radius = min(at_least(radius, 0, "radius"), self.bits)
        return self._within(as_packed(codes, self.bits, "Query codes"), radius, allowed)

    def recall(self, *, k: int = 10, sample: int = 100) -> float:
        """The share of the k nearest items that the approximate search finds, measured on codes of the collection.

        Another item at the same distance is as good.
        """
        queries = self.codes(self._sample(sample))
        if not len(queries):
            return 1.0
        shares = []
        for exact, near in zip(self.search(queries, k), self.search(queries, k, method="approximate"), strict=True):
            found = int(np.count_nonzero(near.distances <= exact.distances[-1]))
            shares.append(min(1.0, found / len(exact)))
        return float(np.mean(shares))

    @abstractmethod
    def _search(self, queries: Packed, k: int, allowed: Any, method: Method) -> Results: ...

    @abstractmethod
    def _within(self, queries: Packed, radius: int, allowed: Any) -> Results: ...

    @abstractmethod
    def _sample(self, size: int) -> Sequence[int]:
        """The ids of some items."""


class CountedIndex:
    """An index on a server with a known number of items: counting a billion rows takes a while."""

    def __init__(self, index: CodeIndex, count: int, *, approximate: bool) -> None:
        self.bits = index.bits
        self.count = count
        self._index = index
        self._method: Method = "approximate" if approximate else "exact"

    def __len__(self) -> int:
        return self.count

    def __contains__(self, item: object) -> bool:
        return item in self._index

    @property
    def ids(self) -> NDArray[np.int64]:
        """All ids, ascending."""
        return self._index.ids

    def codes(self, ids: ArrayLike) -> Packed:
        """The packed codes of some items, in this order."""
        return self._index.codes(ids)

    def codes_by_id(self, ids: ArrayLike) -> dict[int, bytes]:
        """The packed codes of some items by id; unknown ids are left out."""
        return self._index.codes_by_id(ids)

    def search(self, codes: Packed, k: int, *, allowed: Any = None) -> Results:
        """The k nearest items of each query, approximate if the address asks for it."""
        return self._index.search(codes, k, allowed=allowed, method=self._method)

    def within(self, codes: Packed, radius: int, *, allowed: Any = None) -> Results:
        """All items at most `radius` bits away from each query."""
        return self._index.within(codes, radius, allowed=allowed)


def as_packed(codes: Packed, bits: int, what: str) -> Packed:
    """Packed codes, checked; bits past the code are 0."""
    return packed_of(as_words(codes, bits, what), bits)


def new_items(ids: ArrayLike, codes: Packed, bits: int) -> tuple[NDArray[np.int64], Packed]:
    """Ids and packed codes of items to be added, checked: one id per code, without repetition."""
    new, packed = as_ids(ids), as_packed(codes, bits, "Codes")
    if len(new) != len(packed):
        raise DataError(f"There are {len(new)} ids but {len(packed)} codes.", hint="Give one id for each code.")
    refuse_repeated(new)
    return new, packed


def chosen_ids(allowed: Any) -> NDArray[np.int64]:
    """The ids that `allowed` names, ascending."""
    chosen = np.asarray(allowed)
    if chosen.dtype == bool and chosen.ndim == 1:
        return np.flatnonzero(chosen).astype(np.int64)
    return np.unique(as_ids(chosen))


def results_of(found: Sequence[Found]) -> Results:
    """The hits of several queries as `Results`."""
    flat = [hit for hits in found for hit in hits]
    ids = np.array([number for number, _ in flat], np.int64)
    distances = np.array([distance for _, distance in flat], np.uint16)
    return Results(ids, distances, np.cumsum([0, *(len(hits) for hits in found)]).astype(np.int64))
