"""The scans of `kernels` in NumPy: the same results without numba, about thirty times slower."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

BLOCK = 1 << 18  # rows at a time
FINE_BLOCK = 4096  # vectors that are converted to float32 at a time, so that they stay in a core's cache
NOTHING = np.uint64(2**64 - 1)


def _blocks(words: Words, first: int, end: int, live: Words, query: Words) -> Iterator[tuple[int, Any, Any]]:
    """For each block of rows: its first row, the distances, and which rows are live (None: all)."""
    for start in range(first, end, BLOCK):
        stop = min(start + BLOCK, end)
        distances = np.bitwise_count(words[start:stop, 0] ^ query[0])  # (rows,) uint8
        if words.shape[1] > 1:
            distances = distances.astype(np.uint16)
            for word in range(1, words.shape[1]):
                distances += np.bitwise_count(words[start:stop, word] ^ query[word])
        alive = None
        if len(live):
            octets = live[start // 64 : -(-stop // 64)].view(np.uint8)
            alive = np.unpackbits(octets, bitorder="little", count=stop - start).view(bool)
        yield start, distances, alive


def _keys(distances: NDArray[Any], rows: NDArray[np.intp], start: int) -> Words:
    return distances[rows].astype(np.uint64) << np.uint64(32) | (rows + start).astype(np.uint64)


def nearest(
    words: Words,
    width: tuple[int, ...],
    first: int,
    end: int,
    live: Words,
    queries: Words,
    q0: int,
    q1: int,
    out: Words,
) -> None:
    """See `kernels.nearest`."""
    k = out.shape[1]
    words, queries = words.reshape(-1, len(width)), queries.reshape(-1, len(width))
    for query in range(q0, q1):
        best = np.empty(0, np.uint64)
        for start, distances, alive in _blocks(words, first, end, live, queries[query]):
            chosen = np.ones(len(distances), bool) if alive is None else alive
            if len(best) == k:
                chosen &= distances < (best.max() >> np.uint64(32))
            elif k < np.count_nonzero(chosen):
                chosen &= distances <= np.partition(distances[chosen], k - 1)[k - 1]
            best = np.concatenate([best, _keys(distances, np.flatnonzero(chosen), start)])
            if len(best) > k:
                best = np.partition(best, k - 1)[:k]
        out[query, : len(best)] = best
        out[query, len(best) :] = NOTHING


def near(
    words: Words,
    width: tuple[int, ...],
    first: int,
    end: int,
    live: Words,
    queries: Words,
    q0: int,
    q1: int,
    radius: int,
) -> Words:
    """See `kernels.near`."""
    words, queries = words.reshape(-1, len(width)), queries.reshape(-1, len(width))
    keys = [np.empty(0, np.uint64)]
    for query in range(q0, q1):
        for start, distances, alive in _blocks(words, first, end, live, queries[query]):
            chosen = distances <= radius if alive is None else alive & (distances <= radius)
            keys.append(np.uint64(query) << np.uint64(43) | _keys(distances, np.flatnonzero(chosen), start))
    return np.concatenate(keys)


def products(vectors: NDArray[np.int8], query: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """See `kernels.products`. Unlike those of BLAS, no product depends on the position of its row, in the last digit."""
    for start in range(0, len(vectors), FINE_BLOCK):
        block = vectors[start : start + FINE_BLOCK].astype(np.float32)
        np.einsum("ij,j->i", block, query, out=out[start : start + FINE_BLOCK])
