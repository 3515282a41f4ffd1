"""Rankings in which one point is relevant to each query: its own, in another modality. For data without labels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dcmh.codes import hamming
from dcmh.evaluation.metrics.counts import Counts, blocks, count
from dcmh.evaluation.metrics.dense import average_precision

Bytes = NDArray[np.uint8]


def paired_counts(query: Bytes, database: Bytes, wanted: NDArray[np.intp], bits: int) -> Counts:
    """Counts per distance of packed codes; `wanted`, (n_queries,), is the place of each query's own point."""
    found = [count(distance, relevant, bits=bits) for distance, relevant in _pairs(query, database, wanted)]
    return Counts(np.concatenate([one.points for one in found]), np.concatenate([one.relevant for one in found]))


def paired_stable(
    query: Bytes, database: Bytes, wanted: NDArray[np.intp], *, k: int | None = None
) -> NDArray[np.float64]:
    """1 / rank of each query's own point, (n_queries,), equally distant points in database order; 0 beyond rank k."""
    parts = [average_precision(*pair, ties="stable", k=k) for pair in _pairs(query, database, wanted)]
    return np.concatenate(parts)


def _pairs(
    query: Bytes, database: Bytes, wanted: NDArray[np.intp]
) -> Iterator[tuple[NDArray[np.uint16], NDArray[np.bool_]]]:
    for rows in blocks(len(query), len(database)):
        yield hamming(query[rows], database), wanted[rows, None] == np.arange(len(database))
