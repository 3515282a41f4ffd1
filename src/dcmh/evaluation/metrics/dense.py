"""The measures on matrices of distances and relevance, both (n_queries, n_database)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcmh.evaluation.metrics.counts import (
    Lookup,
    blocks,
    check_pairs,
    check_relevant,
    count,
    precision_of,
    recall_of,
)
from dcmh.evaluation.metrics.ties import Ties, check_ties, hits_of
from dcmh.util.checks import whole_number


def mean_average_precision(
    distance: ArrayLike, relevant: ArrayLike, *, ties: Ties = "stable", k: int | None = None
) -> float:
    """MAP of Hamming rankings. A query with no relevant point counts as 0.

    Parameters
    ----------
    distance : (n_queries, n_database) integers
    relevant : (n_queries, n_database) booleans
    ties
        "stable": equally distant points in database order, as a stable sort gives.
        "expected": exact mean over all orders of equally distant points.
        "best", "worst": the order of equally distant points that gives the largest, smallest value.
    k
        Only the first k ranks count, and the denominator is min(k, relevant points).
    """
    return float(average_precision(distance, relevant, ties=ties, k=k).mean())


def average_precision(
    distance: ArrayLike, relevant: ArrayLike, *, ties: Ties = "stable", k: int | None = None
) -> NDArray[np.float64]:
    """Average precision of each query, (n_queries,); arguments as in `mean_average_precision`."""
    check_ties(ties)
    distance, relevant = np.asarray(distance), np.asarray(relevant)
    if ties != "stable":
        return count(distance, relevant).average_precision(ties=ties, k=k)
    check_pairs(distance, relevant)
    n_database = distance.shape[1]
    k = n_database if k is None else min(whole_number("k", k, 1), n_database)
    ranks = np.arange(1, k + 1)
    result = np.zeros(len(distance))
    for rows in blocks(*distance.shape):
        hits = _in_stable_order(distance[rows], relevant[rows])[:, :k]  # (rows, k)
        precision = hits.cumsum(axis=1) / ranks
        attainable = np.minimum(relevant[rows].sum(axis=1), k)
        result[rows] = (precision * hits).sum(axis=1) / np.maximum(attainable, 1)
    return result


def precision_at(
    distance: ArrayLike, relevant: ArrayLike, ks: Sequence[int], *, ties: Ties = "expected"
) -> NDArray[np.float64]:
    """Share of relevant points among the first k, mean over queries, for each k: (len(ks),).

    ties="expected" is the exact mean over all orders of equally distant points; the other rules are those of
    `mean_average_precision`. A database of fewer than k points returns all of them.
    """
    distance, relevant = np.asarray(distance), np.asarray(relevant)
    hits = _hits(distance, relevant, ks, ties)
    return precision_of(hits, ks, distance.shape[1])


def recall_at(
    distance: ArrayLike, relevant: ArrayLike, ks: Sequence[int], *, ties: Ties = "expected"
) -> NDArray[np.float64]:
    """Share of a query's relevant points that are among the first k, mean over queries, for each k: (len(ks),).

    Ties as in `precision_at`. A query with no relevant point counts as 0.
    """
    distance, relevant = np.asarray(distance), np.asarray(relevant)
    hits = _hits(distance, relevant, ks, ties)
    return recall_of(hits, relevant.sum(axis=1))


def _hits(
    distance: NDArray[np.integer], relevant: NDArray[np.bool_], ks: Sequence[int], ties: Ties
) -> NDArray[np.float64]:
    check_ties(ties)
    if ties != "stable":
        counts = count(distance, relevant)
        return hits_of(counts.points, counts.relevant, ks, ties=ties)
    check_pairs(distance, relevant)
    last = np.array([min(whole_number("k", k, 1), distance.shape[1]) for k in ks], np.intp)
    hits = np.zeros((len(distance), len(ks)))
    for rows in blocks(*distance.shape):
        ranked = _in_stable_order(distance[rows], relevant[rows])
        hits[rows] = ranked.cumsum(axis=1)[:, last - 1]
    return hits


def _in_stable_order(distance: NDArray[np.integer], relevant: NDArray[np.bool_]) -> NDArray[np.bool_]:
    # NumPy's stable sort of 16-bit integers is a radix sort: several times faster than that of wider ones.
    order = np.argsort(distance.astype(np.uint16), axis=1, kind="stable")
    return np.take_along_axis(relevant, order, axis=1)


def lookup(distance: ArrayLike, relevant: ArrayLike, *, bits: int) -> Lookup:
    """Precision, recall and F of hash lookup at every radius 0..bits inclusive."""
    return count(np.asarray(distance), np.asarray(relevant), bits=bits).lookup()


def chance(relevant: ArrayLike) -> float:
    """Share of relevant pairs: the precision of a random ranking."""
    relevant = np.asarray(relevant)
    check_relevant(relevant)
    return float(relevant.mean())


def without_relevant(relevant: ArrayLike) -> int:
    """The number of queries without any relevant point; each counts 0 in MAP."""
    relevant = np.asarray(relevant)
    check_relevant(relevant)
    return int((~relevant.any(axis=1)).sum())
