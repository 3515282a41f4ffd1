"""Counts and stable-order average precision from packed codes, without the matrix of all pairs.

Relevance is by labels, in compiled kernels if numba is installed and otherwise in NumPy with the same results; or by
pairing: one point, its own in another modality, is relevant to each query.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.codes import check_packed, hamming
from dcmh.errors import DataError
from dcmh.evaluation.metrics.counts import Counts, blocks, count
from dcmh.evaluation.metrics.dense import average_precision
from dcmh.evaluation.metrics.gain import cumulative_discounts, dense_ndcg, gains, ndcg_of, normalized
from dcmh.evaluation.metrics.ties import TIES, Ties, check_k

log = logging.getLogger(__name__)

PAIRS = 1 << 19  # per additional thread: half a millisecond of work

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]


def rank_counts(
    query: Bytes, database: Bytes, query_labels: NDArray[Any], database_labels: NDArray[Any], bits: int
) -> Counts:
    """Counts per distance of every query against the database.

    Parameters
    ----------
    query, database : (n, ceil(bits / 8)) uint8, as `dcmh.codes.pack` gives
    query_labels, database_labels : (n, n_labels), non-zero where an item has the label; a pair is relevant
        when it shares at least one
    """
    sides = _Sides.check(query, database, query_labels, database_labels, bits)
    kernels = _kernels()
    return sides.counts() if kernels is None else _compiled_counts(kernels, sides.words(), bits)


def stable_average_precision(
    query: Bytes,
    database: Bytes,
    query_labels: NDArray[Any],
    database_labels: NDArray[Any],
    bits: int,
    *,
    k: int | None = None,
    counts: Counts | None = None,
) -> NDArray[np.float64]:
    """Average precision of each query, (n_queries,), with equally distant points in database order.

    Arguments as in `rank_counts`, whose result for the same arguments can be given as `counts` to save time.
    """
    sides = _Sides.check(query, database, query_labels, database_labels, bits)
    k = len(database) if k is None else min(check_k(k), len(database))
    kernels = _kernels()
    if kernels is None:
        return sides.stable(k)
    words = sides.words()
    if counts is None:
        counts = _compiled_counts(kernels, words, bits)
    elif counts.points.shape != (len(query), bits + 1) or counts.database != len(database):
        raise DataError(
            f"The counts given are of {counts.queries} queries, {counts.database} points and {counts.bits} bits, "
            f"the codes are of {len(query)}, {len(database)} and {bits}. "
            "Count these codes with rank_counts, or leave counts out."
        )
    return _compiled_stable(kernels, words, counts, k)


def rank_ndcg(
    query: Bytes,
    database: Bytes,
    query_labels: NDArray[Any],
    database_labels: NDArray[Any],
    bits: int,
    ks: Sequence[int],
) -> dict[Ties, NDArray[np.float64]]:
    """NDCG of each query for each k, (n_queries, len(ks)), under each rule for ties; grades are numbers of shared labels."""
    sides = _Sides.check(query, database, query_labels, database_labels, bits)
    kernels = _kernels()
    if kernels is None:
        return {ties: sides.ndcg(ks, ties) for ties in TIES}
    words, steps = sides.words(), 1 + int(sides.query_labels.sum(axis=1).max())
    discounts, gain = cumulative_discounts(ks, len(database)), gains(steps)
    result: dict[Ties, NDArray[np.float64]] = {ties: np.zeros((len(query), len(ks))) for ties in TIES}

    def work(rows: slice) -> None:
        codes, points, labels, point_labels = words
        table = np.zeros((len(codes[rows]), bits + 1, steps), np.int32)
        gained = np.zeros((len(table), len(ks)))
        kernels.grades(codes[rows], points, labels[rows], point_labels, table)
        kernels.stable_gains(codes[rows], points, labels[rows], point_labels, table, gain, discounts, gained)
        for ties in TIES:
            found = normalized(gained, table, discounts) if ties == "stable" else ndcg_of(table, discounts, ties=ties)
            result[ties][rows] = found

    _in_threads(work, len(query), len(database))
    return result


@cache
def _kernels() -> ModuleType | None:
    try:
        from dcmh.evaluation.metrics import kernels
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("numba", "llvmlite"):
            raise
        log.warning("numba is not installed: rankings are counted with NumPy, which is slower by a factor of about 10.")
        return None
    return kernels


def _compiled_counts(kernels: ModuleType, words: tuple[Words, Words, Words, Words], bits: int) -> Counts:
    query, database, query_labels, database_labels = words
    points = np.zeros((len(query), bits + 1), np.int32)
    relevant = np.zeros((len(query), bits + 1), np.int32)

    def work(rows: slice) -> None:
        kernels.histograms(query[rows], database, query_labels[rows], database_labels, points[rows], relevant[rows])

    _in_threads(work, len(query), database.shape[1])
    return Counts(points, relevant)


def _compiled_stable(
    kernels: ModuleType, words: tuple[Words, Words, Words, Words], counts: Counts, k: int
) -> NDArray[np.float64]:
    query, database, query_labels, database_labels = words
    result = np.zeros(len(query))

    def work(rows: slice) -> None:
        groups = counts.points[rows], counts.relevant[rows]
        kernels.stable_sums(query[rows], database, query_labels[rows], database_labels, *groups, k, result[rows])

    _in_threads(work, len(query), database.shape[1])
    most = np.minimum(counts.relevant.sum(axis=1), k)
    return np.asarray(result / np.maximum(most, 1))


def _in_threads(work: Callable[[slice], None], n_queries: int, n_database: int) -> None:
    # Kernels release the GIL. Plain threads, not numba's: those must not be entered from two threads at once, as in a
    # server.
    threads = min(os.cpu_count() or 1, 1 + n_queries * n_database // PAIRS)
    step = max(1, -(-n_queries // (8 * threads)))  # small runs, so that threads finish at about the same time
    runs = [slice(start, start + step) for start in range(0, n_queries, step)]
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, runs):
            pass


@dataclass(frozen=True)
class _Sides:
    """Codes and labels of both sides, checked."""

    query: Bytes
    database: Bytes
    query_labels: NDArray[np.bool_]
    database_labels: NDArray[np.bool_]
    bits: int

    @classmethod
    def check(
        cls, query: Bytes, database: Bytes, query_labels: NDArray[Any], database_labels: NDArray[Any], bits: int
    ) -> _Sides:
        query_labels, database_labels = np.asarray(query_labels) != 0, np.asarray(database_labels) != 0
        for name, packed, labels in (("query", query, query_labels), ("database", database, database_labels)):
            check_packed(packed, bits)
            if len(packed) == 0:
                raise DataError(f"There are no {name} codes, so there is nothing to rank.")
            if bits % 8 and (packed[:, -1] >> (bits % 8)).any():
                raise DataError(f"The {name} codes have bits set beyond bit {bits}. Pack them with dcmh.codes.pack.")
            if labels.ndim != 2 or len(labels) != len(packed):
                raise DataError(
                    f"The {name} side has {len(packed)} codes but labels of shape {labels.shape}. "
                    "Give one row of labels per code."
                )
        if query_labels.shape[1] != database_labels.shape[1]:
            raise DataError(
                f"Queries have {query_labels.shape[1]} labels, the database has {database_labels.shape[1]}. "
                "Both need the same columns."
            )
        return cls(query, database, query_labels, database_labels, bits)

    def words(self) -> tuple[Words, Words, Words, Words]:
        """Codes and label masks as 64-bit words: (n_queries, words) and (words, n_database) of each."""
        query_masks, database_masks = (
            np.packbits(labels, axis=1) for labels in (self.query_labels, self.database_labels)
        )
        return (
            _as_words(self.query),
            np.ascontiguousarray(_as_words(self.database).T),
            _as_words(query_masks),
            np.ascontiguousarray(_as_words(database_masks).T),
        )

    def counts(self) -> Counts:
        return _concatenated([count(*self._pairs(rows), bits=self.bits) for rows in self._blocks()])

    def stable(self, k: int) -> NDArray[np.float64]:
        return np.concatenate([average_precision(*self._pairs(rows), k=k) for rows in self._blocks()])

    def ndcg(self, ks: Sequence[int], ties: Ties) -> NDArray[np.float64]:
        found = [
            dense_ndcg(hamming(self.query[rows], self.database), self._shared(rows), ks, ties=ties)
            for rows in self._blocks()
        ]
        return np.concatenate(found)

    def _blocks(self) -> Iterator[slice]:
        return blocks(len(self.query), len(self.database))

    def _pairs(self, rows: slice) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
        return hamming(self.query[rows], self.database), self._shared(rows) > 0

    def _shared(self, rows: slice) -> NDArray[np.int32]:
        shared = self.query_labels[rows].astype(np.float32) @ self.database_labels.T.astype(np.float32)
        return shared.astype(np.int32)


def _as_words(packed: Bytes) -> Words:
    """Bytes, (n, width), as 64-bit words, (n, ceil(width / 8)), padded with zeros."""
    padded = np.zeros((len(packed), -(-packed.shape[1] // 8) * 8), np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64)


def _concatenated(counts: Sequence[Counts]) -> Counts:
    return Counts(np.concatenate([each.points for each in counts]), np.concatenate([each.relevant for each in counts]))


# -- relevance by pairing -----------------------------------------------------------------------------------------


def paired_counts(query: Bytes, database: Bytes, wanted: NDArray[np.intp], bits: int) -> Counts:
    """Counts per distance of packed codes; `wanted`, (n_queries,), is the position of each query's own point."""
    no_labels, none_either = (np.zeros((len(side), 1), np.uint8) for side in (query, database))
    counts = rank_counts(query, database, no_labels, none_either, bits)
    counts.relevant[np.arange(len(query)), _own_distance(query, database, wanted)] = 1
    return counts


def paired_ranks(query: Bytes, database: Bytes, wanted: NDArray[np.intp]) -> NDArray[np.int64]:
    """The rank of each query's own point, (n_queries,), with ties in database order."""
    ranks, own = np.zeros(len(query), np.int64), _own_distance(query, database, wanted)
    for rows in blocks(len(query), len(database)):
        distance, limit = hamming(query[rows], database), own[rows, None]
        first = np.arange(len(database)) <= wanted[rows, None]
        ranks[rows] = ((distance < limit) | ((distance == limit) & first)).sum(axis=1)
    return ranks


def paired_stable(
    query: Bytes, database: Bytes, wanted: NDArray[np.intp], *, k: int | None = None
) -> NDArray[np.float64]:
    """1 / rank of each query's own point, (n_queries,), with ties in database order; 0 beyond rank k."""
    ranks = paired_ranks(query, database, wanted)
    return np.where(ranks <= (len(database) if k is None else check_k(k)), 1 / ranks, 0.0)


def _own_distance(query: Bytes, database: Bytes, wanted: NDArray[np.intp]) -> NDArray[np.int64]:
    return np.asarray(np.bitwise_count(query ^ database[wanted]).sum(axis=1, dtype=np.int64))
