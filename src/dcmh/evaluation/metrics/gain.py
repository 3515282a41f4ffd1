"""NDCG with graded relevance, under each rule for equally distant points.

The grade of a point is the number of labels that it shares with the query; its gain is 2^grade - 1, discounted at rank t by
1 / log2(1 + t) (Järvelin and Kekäläinen, 2002, with the gain of Burges et al., 2005). DCG is the sum over the first k ranks,
NDCG its ratio to that of the ideal order. The mean over all orders of ties is exact: each point of a group has the group's
mean gain (McSherry and Najork, 2008). A query with no relevant point counts as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcmh.errors import DataError
from dcmh.evaluation.metrics.counts import blocks, check_pairs
from dcmh.evaluation.metrics.ties import Ties, check_ties
from dcmh.util.checks import whole_number

Floats = NDArray[np.float64]


def ndcg_at(distance: ArrayLike, grades: ArrayLike, ks: Sequence[int], *, ties: Ties = "expected") -> Floats:
    """NDCG over the first k ranks, mean over queries, for each k: (len(ks),).

    Parameters
    ----------
    distance : (n_queries, n_database) integers
    grades : (n_queries, n_database) integers, such as the number of shared labels
    ties
        As in `mean_average_precision`.
    """
    distance, grades = np.asarray(distance), np.asarray(grades)
    if not np.issubdtype(grades.dtype, np.integer) or grades.min(initial=0) < 0:
        raise DataError("Grades must be integers of at least 0, such as query_labels @ database_labels.T.")
    check_pairs(distance, grades > 0)
    return np.asarray(dense_ndcg(distance, grades, ks, ties=ties).mean(axis=0))


def dense_ndcg(distance: NDArray[Any], grades: NDArray[Any], ks: Sequence[int], *, ties: Ties) -> Floats:
    """NDCG of each query for each k, (n_queries, len(ks)), from matrices of distances and grades."""
    check_ties(ties)
    columns, steps = int(distance.max()) + 1, int(grades.max()) + 1
    result = np.zeros((len(distance), len(ks)))
    discounts = cumulative_discounts(ks, distance.shape[1])
    for rows in blocks(distance.shape[0], distance.shape[1] + columns * steps):
        near, grade = distance[rows].astype(np.int64), grades[rows].astype(np.int64)
        first = np.arange(len(near))[:, None] * columns
        keys = (first + near) * steps + grade
        table = np.bincount(keys.ravel(), minlength=len(near) * columns * steps).reshape(-1, columns, steps)
        if ties == "stable":
            order = np.argsort(near.astype(np.uint16), axis=1, kind="stable")
            gained = gains(steps)[np.take_along_axis(grade, order, axis=1)] @ np.diff(discounts, axis=1).T
            result[rows] = normalized(gained, table, discounts)
        else:
            result[rows] = ndcg_of(table, discounts, ties=ties)
    return result


def gains(steps: int) -> Floats:
    """The gain of each grade below `steps`: 0, 1, 3, 7, ..."""
    return np.exp2(np.arange(steps, dtype=np.float64)) - 1


def cumulative_discounts(ks: Sequence[int], points: int) -> Floats:
    """The sum of discounts up to each rank 0..points that lies within the first k, (len(ks), points + 1)."""
    ranks = np.arange(1, points + 1)
    each = np.where(ranks <= np.array([whole_number("k", k, 1) for k in ks])[:, None], 1 / np.log2(1 + ranks), 0.0)
    return np.concatenate([np.zeros((len(ks), 1)), each.cumsum(axis=1)], axis=1)


def ndcg_of(table: NDArray[Any], discounts: Floats, *, ties: Ties) -> Floats:
    """NDCG of each query for each k, from the number of points per distance and grade, (n_queries, distances, grades)."""
    steps = table.shape[2]
    if ties == "expected":
        points = table.sum(axis=2)
        mean = table @ gains(steps) / np.maximum(points, 1)
        end = points.cumsum(axis=1)
        gained = np.stack([(mean * (each[end] - each[end - points])).sum(axis=1) for each in discounts], axis=1)
    else:
        order = slice(None, None, -1 if ties == "best" else 1)
        counts = table[:, :, order].reshape(len(table), -1)
        gained = _gained(counts, np.tile(gains(steps)[order], table.shape[1]), discounts)
    return normalized(gained, table, discounts)


def normalized(gained: Floats, table: NDArray[Any], discounts: Floats) -> Floats:
    """DCG divided by that of the ideal order; 0 where nothing is relevant."""
    ideal = _gained(table.sum(axis=1)[:, ::-1], gains(table.shape[2])[::-1], discounts)
    return np.where(ideal > 0, gained / np.where(ideal > 0, ideal, 1), 0.0)


def _gained(counts: NDArray[Any], gain: Floats, discounts: Floats) -> Floats:
    """DCG of consecutive groups, (n_queries, groups), whose points have equal gains, (groups,)."""
    end = counts.cumsum(axis=1)
    return np.stack([(each[end] - each[end - counts]) @ gain for each in discounts], axis=1)
