"""Counts per distance, which determine every measure of a ranking in which ties have no order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dcmh.codes import MAX_BITS, check_bits
from dcmh.errors import DataError
from dcmh.evaluation.metrics.ties import Ties, average_precision_of, hits_of

if TYPE_CHECKING:
    from dcmh.evaluation.report import DirectionReport

BLOCK = 1 << 22  # pairs processed at a time: a few tens of megabytes

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """Precision, recall and F at each radius 0..bits, all of shape (bits + 1,)."""

    radius: NDArray[np.int64]
    precision: Floats
    recall: Floats
    f: Floats


@dataclass(frozen=True, eq=False)
class Lookup(Curve):
    """The two averages of hash lookup.

    Its own fields are pooled: points are summed over all queries first. Precision is NaN at a radius at which no query
    returns anything, recall is NaN if no query has a relevant point.
    `per_query` holds means over all queries; a query that returns nothing, or has no relevant point, counts 0.
    """

    per_query: Curve


@dataclass(frozen=True, eq=False)
class Counts:
    """For each query and distance, the number of database points and how many of them are relevant.

    points, relevant : (n_queries, bits + 1) int32
    """

    points: NDArray[np.int32]
    relevant: NDArray[np.int32]

    @property
    def bits(self) -> int:
        """The length of the codes."""
        return int(self.points.shape[1]) - 1

    @property
    def queries(self) -> int:
        """The number of queries."""
        return len(self.points)

    @property
    def database(self) -> int:
        """The number of database points."""
        return int(self.points[0].sum())

    @property
    def chance(self) -> float:
        """Share of relevant pairs: the precision of a random ranking."""
        return int(self.relevant.sum(dtype=np.int64)) / (self.queries * self.database)

    @property
    def without_relevant(self) -> int:
        """The number of queries without any relevant point; each counts 0 in MAP."""
        return int((self.relevant.sum(axis=1) == 0).sum())

    def average_precision(self, *, ties: Ties = "expected", k: int | None = None) -> NDArray[np.float64]:
        """Average precision of each query, (n_queries,). ties="stable" needs `stable_average_precision`."""
        return average_precision_of(self.points, self.relevant, ties=ties, k=k)

    def mean_average_precision(self, *, ties: Ties = "expected", k: int | None = None) -> float:
        """The mean of `average_precision` over queries."""
        return float(self.average_precision(ties=ties, k=k).mean())

    def precision_at(self, ks: Sequence[int], *, ties: Ties = "expected") -> NDArray[np.float64]:
        """Mean share of relevant points among the first k, (len(ks),)."""
        return precision_of(hits_of(self.points, self.relevant, ks, ties=ties), ks, self.database)

    def recall_at(self, ks: Sequence[int], *, ties: Ties = "expected") -> NDArray[np.float64]:
        """Mean share of a query's relevant points that are among the first k, (len(ks),)."""
        return recall_of(hits_of(self.points, self.relevant, ks, ties=ties), self.relevant.sum(axis=1))

    def lookup(self) -> Lookup:
        """Precision, recall and F of hash lookup at every radius 0..bits."""
        return lookup_of(self.points, self.relevant)


def precision_of(hits: NDArray[np.float64], ks: Sequence[int], database: int) -> NDArray[np.float64]:
    """Mean precision at each k, from the relevant points among the first k, (n_queries, len(ks))."""
    # A database of fewer than k points returns them all, and its precision is over those.
    return np.asarray((hits / np.minimum(np.asarray(ks), database)).mean(axis=0))


def recall_of(hits: NDArray[np.float64], relevant: NDArray[Any]) -> NDArray[np.float64]:
    """Mean recall at each k, from the relevant points among the first k and in total, (n_queries,)."""
    return np.asarray((hits / np.maximum(relevant, 1)[:, None]).mean(axis=0))


def count(distance: NDArray[Any], relevant: NDArray[Any], *, bits: int | None = None) -> Counts:
    """Counts per distance 0..bits of two (n_queries, n_database) matrices; without bits, up to the largest distance."""
    check_pairs(distance, relevant, bits=bits)
    columns = (int(distance.max()) if bits is None else bits) + 1
    histogram = np.zeros((len(distance), columns, 2), np.int32)
    for rows in blocks(*distance.shape):
        near = distance[rows].astype(np.int64)
        first = np.arange(len(near))[:, None] * columns  # (rows, 1)
        keys = 2 * (first + near) + relevant[rows]
        histogram[rows] = np.bincount(keys.ravel(), minlength=2 * len(near) * columns).reshape(-1, columns, 2)
    return Counts(points=histogram.sum(axis=2, dtype=np.int32), relevant=histogram[:, :, 1].copy())


def blocks(n_queries: int, n_database: int) -> Iterator[slice]:
    """Blocks of queries whose pairs with the database fit in memory."""
    step = max(1, BLOCK // n_database)
    for start in range(0, n_queries, step):
        yield slice(start, start + step)


def check_pairs(distance: NDArray[Any], relevant: NDArray[Any], *, bits: int | None = None) -> None:
    """Raise a DataError unless these can be distances and relevance of the same pairs."""
    check_relevant(relevant)
    if not np.issubdtype(distance.dtype, np.integer):
        raise DataError(f"Hamming distances are integers, not {distance.dtype}. Use dcmh.codes.hamming.")
    if distance.shape != relevant.shape:
        raise DataError(
            f"Distances have shape {distance.shape} but relevance has {relevant.shape}. Both are (queries, database)."
        )
    bits = MAX_BITS if bits is None else check_bits(bits)
    least, largest = int(distance.min()), int(distance.max())
    if least < 0 or largest > bits:
        raise DataError(
            f"Hamming distances of {bits} bits lie from 0 to {bits}, these from {least} to {largest}. "
            "Use dcmh.codes.hamming."
        )


def check_relevant(relevant: NDArray[Any]) -> None:
    """Raise a DataError unless this can be the relevance of query-database pairs."""
    if relevant.dtype != np.bool_:
        raise DataError(
            f"Relevance must be booleans, not {relevant.dtype}. "
            "For shared labels: query_labels @ database_labels.T > 0."
        )
    if relevant.ndim != 2 or relevant.size == 0:
        raise DataError(
            f"Relevance must be a matrix (queries, database) with at least one pair, not shape {relevant.shape}."
        )


# -- hash lookup --------------------------------------------------------------------------------------------------


def lookup_of(points: NDArray[Any], relevant: NDArray[Any]) -> Lookup:
    """Hash lookup from counts per distance, both (n_queries, bits + 1)."""
    returned = points.cumsum(axis=1, dtype=np.int64)
    hits = relevant.cumsum(axis=1, dtype=np.int64)  # relevant points among those returned
    total = hits[:, -1:]  # (n_queries, 1)
    radius = np.arange(points.shape[1])
    each = _measures(hits, returned, total, empty=0.0)
    pooled = _measures(hits.sum(axis=0), returned.sum(axis=0), total.sum(axis=0), empty=np.nan)
    return Lookup(radius, *pooled, per_query=Curve(radius, *(measure.mean(axis=0) for measure in each)))


def _measures(
    hits: NDArray[Any], returned: NDArray[Any], total: NDArray[Any], *, empty: float
) -> tuple[Floats, Floats, Floats]:
    # 2PR / (P + R) = 2 hits / (returned + total), which is 0 if nothing is returned.
    return (
        _ratio(hits, returned, empty),
        _ratio(hits, total, empty),
        _ratio(2 * hits, returned + total, 0.0),
    )


def _ratio(count: NDArray[Any], total: NDArray[Any], empty: float) -> Floats:
    return np.where(total > 0, count / np.maximum(total, 1), empty)


def precision_by_distance(source: Counts | DirectionReport) -> Floats:
    """Share of relevant points among those at exactly each distance, shape (bits + 1,); NaN if there are none.

    Takes `Counts`, or one direction of a `Report`.
    """
    distances = source.points.shape[-1]
    points = source.points.reshape(-1, distances).sum(axis=0, dtype=np.int64)
    relevant = source.relevant.reshape(-1, distances).sum(axis=0, dtype=np.int64)
    return _ratio(relevant, points, np.nan)
