"""What a search returns: hits of every query in one flat array each, never padded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Hits:
    """The hits of one query, nearest first; equal distances in the order the items were added."""

    ids: NDArray[np.int64]
    distances: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Pairs of id and distance."""
        return zip(self.ids.tolist(), self.distances.tolist(), strict=True)


@dataclass(frozen=True, eq=False)
class Results:
    """The hits of many queries: those of query i are `ids[offsets[i] : offsets[i + 1]]`, or simply `results[i]`."""

    ids: NDArray[np.int64]  # (hits of all queries,)
    distances: NDArray[np.uint16]  # (hits of all queries,)
    offsets: NDArray[np.int64]  # (queries + 1,)

    def __len__(self) -> int:
        """The number of queries."""
        return len(self.offsets) - 1

    def __getitem__(self, query: int) -> Hits:
        if not -len(self) <= query < len(self):
            raise IndexError(f"There are results of {len(self)} queries, so no query {query}.")
        query %= len(self)
        part = slice(self.offsets[query], self.offsets[query + 1])
        return Hits(self.ids[part], self.distances[part])

    def __iter__(self) -> Iterator[Hits]:
        return (self[query] for query in range(len(self)))

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many hits each query has, shape (queries,)."""
        return np.diff(self.offsets)
