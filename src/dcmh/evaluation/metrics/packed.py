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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcmh.codes import check_packed, hamming
from dcmh.errors import DataError
from dcmh.evaluation.metrics.counts import Counts, blocks, count
from dcmh.evaluation.metrics.dense import average_precision
from dcmh.evaluation.metrics.gain import cumulative_discounts, dense_ndcg, gains, ndcg_of, normalized
from dcmh.evaluation.metrics.ties import TIES, Ties
from dcmh.util.checks import whole_number

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
    k = len(database) if k is None else min(whole_number("k", k, 1), len(database))
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
        block = words.of_queries(rows)
        table = np.zeros((len(block.query), bits + 1, steps), np.int32)
        gained = np.zeros((len(table), len(ks)))
        kernels.grades(*block, table)
        kernels.stable_gains(*block, table, gain, discounts, gained)
        for ties in TIES:
            ndcg = normalized(gained, table, discounts) if ties == "stable" else ndcg_of(table, discounts, ties=ties)
            result[ties][rows] = ndcg

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


def _compiled_counts(kernels: ModuleType, words: _SideWords, bits: int) -> Counts:
    points, relevant = (np.zeros((len(words.query), bits + 1), np.int32) for _ in range(2))

    def work(rows: slice) -> None:
        kernels.histograms(*words.of_queries(rows), points[rows], relevant[rows])

    _in_threads(work, len(words.query), words.database.shape[1])
    return Counts(points, relevant)


def _compiled_stable(kernels: ModuleType, words: _SideWords, counts: Counts, k: int) -> NDArray[np.float64]:
    result = np.zeros(len(words.query))

    def work(rows: slice) -> None:
        kernels.stable_sums(*words.of_queries(rows), counts.points[rows], counts.relevant[rows], k, result[rows])

    _in_threads(work, len(words.query), words.database.shape[1])
    attainable = np.minimum(counts.relevant.sum(axis=1), k)
    return np.asarray(result / np.maximum(attainable, 1))


def _in_threads(work: Callable[[slice], None], n_queries: int, n_database: int) -> None:
    # Kernels release the GIL. Plain threads, since numba's must not be entered from two threads at once, as in a server.
    threads = min(os.cpu_count() or 1, 1 + n_queries * n_database // PAIRS)
    step = max(1, -(-n_queries // (8 * threads)))  # small runs, so that threads finish at about the same time
    runs = [slice(start, start + step) for start in range(0, n_queries, step)]
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, runs):
            pass


class _SideWords(NamedTuple):
    """Codes and label masks as 64-bit words, in the shapes that the kernels take."""

    query: Words  # (n_queries, words)
    database: Words  # (words, n_database)
    query_labels: Words
    database_labels: Words

    def of_queries(self, rows: slice) -> _SideWords:
        """Only these queries."""
        return self._replace(query=self.query[rows], query_labels=self.query_labels[rows])


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

    def words(self) -> _SideWords:
        return _SideWords(
            query=_as_words(self.query),
            database=np.ascontiguousarray(_as_words(self.database).T),
            query_labels=_as_words(np.packbits(self.query_labels, axis=1)),
            database_labels=np.ascontiguousarray(_as_words(np.packbits(self.database_labels, axis=1)).T),
        )

    def counts(self) -> Counts:
        each = [count(distance, shared > 0, bits=self.bits) for distance, shared in self._pairs()]
        return Counts(np.concatenate([c.points for c in each]), np.concatenate([c.relevant for c in each]))

    def stable(self, k: int) -> NDArray[np.float64]:
        return np.concatenate([average_precision(distance, shared > 0, k=k) for distance, shared in self._pairs()])

    def ndcg(self, ks: Sequence[int], ties: Ties) -> NDArray[np.float64]:
        return np.concatenate([dense_ndcg(distance, shared, ks, ties=ties) for distance, shared in self._pairs()])

    def _pairs(self) -> Iterator[tuple[NDArray[np.uint16], NDArray[np.int32]]]:
        """Distances and numbers of shared labels, (queries, n_database), for some queries at a time."""
        database_labels = self.database_labels.T.astype(np.float32)
        for rows in blocks(len(self.query), len(self.database)):
            shared = self.query_labels[rows].astype(np.float32) @ database_labels
            yield hamming(self.query[rows], self.database), shared.astype(np.int32)


def _as_words(packed: Bytes) -> Words:
    """Bytes, (n, width), as 64-bit words, (n, ceil(width / 8)), padded with zeros."""
    padded = np.zeros((len(packed), -(-packed.shape[1] // 8) * 8), np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64)


# -- relevance by pairing -----------------------------------------------------------------------------------------


def paired_counts(query: Bytes, database: Bytes, own: NDArray[np.intp], bits: int) -> Counts:
    """Counts per distance of packed codes; `own`, (n_queries,), is the position of each query's own point."""
    no_labels, none_either = np.zeros((len(query), 1), np.uint8), np.zeros((len(database), 1), np.uint8)
    counts = rank_counts(query, database, no_labels, none_either, bits)
    counts.relevant[np.arange(len(query)), _own_distance(query, database, own)] = 1
    return counts


def paired_ranks(query: Bytes, database: Bytes, own: NDArray[np.intp]) -> NDArray[np.int64]:
    """The rank of each query's own point, (n_queries,), with ties in database order."""
    ranks, own_distance = np.zeros(len(query), np.int64), _own_distance(query, database, own)
    for rows in blocks(len(query), len(database)):
        distance, limit = hamming(query[rows], database), own_distance[rows, None]
        first = np.arange(len(database)) <= own[rows, None]
        ranks[rows] = ((distance < limit) | ((distance == limit) & first)).sum(axis=1)
    return ranks


def paired_stable(query: Bytes, database: Bytes, own: NDArray[np.intp], *, k: int | None = None) -> NDArray[np.float64]:
    """1 / rank of each query's own point, (n_queries,), with ties in database order; 0 beyond rank k."""
    ranks = paired_ranks(query, database, own)
    return np.where(ranks <= (len(database) if k is None else whole_number("k", k, 1)), 1 / ranks, 0.0)


def _own_distance(query: Bytes, database: Bytes, own: NDArray[np.intp]) -> NDArray[np.int64]:
    return np.asarray(np.bitwise_count(query ^ database[own]).sum(axis=1, dtype=np.int64))
