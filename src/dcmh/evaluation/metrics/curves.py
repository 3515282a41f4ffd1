"""Hash lookup: everything within a radius is returned; precision, recall and F for every radius."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

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

    Its own fields are pooled: points are summed over all queries first. Precision is NaN at a radius where no query
    returns anything, recall is NaN when no query has a relevant point.
    `per_query` holds means over all queries; a query that returns nothing, or has nothing relevant, counts 0.
    """

    per_query: Curve


class ByDistance(Protocol):
    """Anything that counted points and relevant points per distance, shape (..., bits + 1)."""

    @property
    def points(self) -> NDArray[Any]: ...

    @property
    def relevant(self) -> NDArray[Any]: ...


def lookup_of(points: NDArray[Any], relevant: NDArray[Any]) -> Lookup:
    """Hash lookup from counts per distance, both (n_queries, bits + 1)."""
    returned = points.cumsum(axis=1, dtype=np.int64)
    found = relevant.cumsum(axis=1, dtype=np.int64)
    wanted = found[:, -1:]  # (n_queries, 1)
    radius = np.arange(points.shape[1])
    each = _measures(found, returned, wanted, empty=0.0)
    pooled = _measures(found.sum(axis=0), returned.sum(axis=0), wanted.sum(axis=0), empty=np.nan)
    return Lookup(radius, *pooled, per_query=Curve(radius, *(measure.mean(axis=0) for measure in each)))


def _measures(
    found: NDArray[Any], returned: NDArray[Any], wanted: NDArray[Any], *, empty: float
) -> tuple[Floats, Floats, Floats]:
    # 2PR / (P + R) = 2 found / (returned + wanted), which also says 0 where nothing is returned.
    return (
        _ratio(found, returned, empty),
        _ratio(found, wanted, empty),
        _ratio(2 * found, returned + wanted, 0.0),
    )


def _ratio(part: NDArray[Any], whole: NDArray[Any], empty: float) -> Floats:
    return np.where(whole > 0, part / np.maximum(whole, 1), empty)


def precision_by_distance(source: ByDistance) -> Floats:
    """Share of relevant points among those at exactly each distance, shape (bits + 1,); NaN where there are none.

    Takes `Counts`, or one direction of a `Report`.
    """
    distances = source.points.shape[-1]
    points = source.points.reshape(-1, distances).sum(axis=0, dtype=np.int64)
    relevant = source.relevant.reshape(-1, distances).sum(axis=0, dtype=np.int64)
    return _ratio(relevant, points, np.nan)
