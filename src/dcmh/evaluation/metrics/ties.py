"""Average precision and relevant points among the first k, under each rule for equally distant points.

A code of c bits has c + 1 distances, so the database falls into c + 1 groups of ties. In the formulas below, per group:

    n, r    points, relevant points in the group           N, R    points, relevant points strictly nearer
    k       the last rank that counts                      H(i)    1 + 1/2 + ... + 1/i

Every sum over the ranks of a group is a sum of 1 / rank, so differences of H give it without a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ParameterError
from dcmh.util.checks import whole_number

Ties = Literal["stable", "expected", "best", "worst"]
TIES: tuple[Ties, ...] = get_args(Ties)

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def check_ties(ties: str) -> None:
    """Raise a ParameterError unless there is such a rule."""
    if ties not in TIES:
        raise ParameterError(f"There is no tie rule {ties!r}. Available: {', '.join(TIES)}.")


def average_precision_of(points: NDArray[Any], relevant: NDArray[Any], *, ties: Ties, k: int | None) -> Floats:
    """Average precision of each query from its counts per distance, both (n_queries, n_distances)."""
    check_counts_suffice(ties)
    n, r = points.astype(np.int64), relevant.astype(np.int64)  # (n_queries, n_distances)
    last = int(n.sum(axis=1).max(initial=0))
    k = last if k is None else min(whole_number("k", k, 1), last)
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, last + 1))])
    before, hits = n.cumsum(axis=1) - n, r.cumsum(axis=1) - r  # N, R
    if ties == "expected":
        groups = _expected(n, r, before, hits, k, harmonic)
    else:
        first = before if ties == "best" else before + n - r
        groups = _consecutive(r, first, hits, k, harmonic)
    attainable = np.minimum(r.sum(axis=1), k)
    return np.asarray(groups.sum(axis=1) / np.maximum(attainable, 1))


def _expected(n: Integers, r: Integers, before: Integers, hits: Integers, k: int, harmonic: Floats) -> Floats:
    # The point at position p of the group is relevant with probability r / n, and then has expected precision
    # (R + 1 + (p-1) s) / (N + p), s = (r-1) / (n-1). Positions 1..m lie within the first k ranks, so
    # sum 1 / (N + p) = H(N+m) - H(N), and sum (p-1) / (N + p) = m - (N+1) (H(N+m) - H(N)).
    inside = np.clip(k - before, 0, n)  # m
    inverse = harmonic[before + inside] - harmonic[before]
    slope = (r - 1) / np.maximum(n - 1, 1)
    return np.asarray(r / np.maximum(n, 1) * ((hits + 1) * inverse + slope * (inside - (before + 1) * inverse)))


def _consecutive(r: Integers, first: Integers, hits: Integers, k: int, harmonic: Floats) -> Floats:
    # The relevant points of a group are consecutive, at ranks first + 1 .. first + r, m of them within the first k:
    # sum (R + j) / (first + j) over j = 1..m is m + (R - first) (H(first+m) - H(first)).
    inside = np.clip(k - first, 0, r)  # m
    return np.asarray(inside + (hits - first) * (harmonic[first + inside] - harmonic[first]))


def hits_of(points: NDArray[Any], relevant: NDArray[Any], ks: Sequence[int], *, ties: Ties) -> Floats:
    """Relevant points among the first k of each query, (n_queries, len(ks)); expected number if ties="expected"."""
    check_counts_suffice(ties)
    n, r = points.astype(np.int64), relevant.astype(np.int64)
    before = n.cumsum(axis=1) - n
    hits = np.zeros((len(n), len(ks)))
    for column, k in enumerate(ks):
        inside = np.clip(whole_number("k", k, 1) - before, 0, n)  # points of the group within the first k ranks
        if ties == "expected":
            groups = inside * r / np.maximum(n, 1)
        elif ties == "best":
            groups = np.minimum(inside, r)
        else:
            groups = np.maximum(inside - (n - r), 0)
        hits[:, column] = groups.sum(axis=1)
    return hits


def check_counts_suffice(ties: str) -> None:
    """Raise a ParameterError for the one rule that needs more than counts per distance."""
    check_ties(ties)
    if ties == "stable":
        raise ParameterError(
            "Counts per distance do not hold the order of the database, which ties='stable' needs. "
            "Use stable_average_precision, or one of: expected, best, worst."
        )
