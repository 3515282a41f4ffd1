"""The compiled kernel of `join`. Importing this module imports numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.index.kernels import Words, any_near, compiled, grown, lowest_bit, near_mask, popcount

ONE = np.uint64(1)


@compiled
def dot(a: NDArray[np.int8], b: NDArray[np.int8], signs: NDArray[np.int8]) -> Any:
    """The inner product of two vectors, one of them with other signs."""
    total = np.int32(0)
    for i in range(len(a)):
        total += np.int32(a[i]) * np.int32(b[i]) * np.int32(signs[i])
    return total


@compiled
def found_before(difference: int, table: int, parts: NDArray[np.int64]) -> bool:
    """Whether an earlier table has the pair, too."""
    for t in range(table):
        part = (difference >> np.uint64(parts[t, 0])) & ((ONE << np.uint64(parts[t, 1])) - ONE)
        if np.int64(popcount(part)) <= parts[t, 2]:
            return True
    return False


@compiled
def next_near(words: Words, row: int, queries: Words, start: int, end: int, limit: int) -> int:
    """The first query from `start` on that is nearer than the limit to one of the 64 rows from `row` on; `end` if none is.

    A function of its own, because a loop beside an array that may grow counts references in every turn, which takes longer
    than the comparison.
    """
    while start < end and not any_near(words, row, queries, start, limit, (0,)):
        start += 1
    return start


@compiled
def join(
    words: Words,
    queries: Words,
    rows: NDArray[np.uint32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    flips: NDArray[np.uint32],
    table: int,
    parts: NDArray[np.int64],
    mask: int,
    radius: int,
    vectors: NDArray[np.int8],
    lengths: NDArray[np.float32],
    signs: NDArray[np.int8],
    least: float,
    first: int,
    last: int,
) -> Words:
    """Pairs (row << 32 | other row) of the buckets first to last, each with the buckets whose number is not smaller.

    `words` are the codes in the order of the buckets, with 64 words of room at the end; `queries` the same, XOR the mask;
    `rows` their rows; `starts` and `ends` those of the buckets. `parts` has a row for each table: start, bits and radius of
    its substring.
    """
    pairs, size = np.empty(1024, np.uint64), 0
    limit = np.uint64(radius + 1)
    moved = np.int64((np.uint64(mask) >> np.uint64(parts[table, 0])) & ((ONE << np.uint64(parts[table, 1])) - ONE))
    for bucket in range(first, last):
        start, end = starts[bucket], ends[bucket]
        if start == end:
            continue
        for flip in flips:
            other = bucket ^ np.int64(flip) ^ moved
            if other < bucket:
                continue
            other_start, other_end = starts[other], ends[other]
            for j in range(other_start, other_end, 64):
                i = next_near(words, j, queries, start, end, limit)
                while i < end:
                    near = near_mask(words, j, queries, i, limit, (0,))
                    if other_end - j < 64:
                        near &= (ONE << np.uint64(other_end - j)) - ONE
                    while near:
                        hit = j + np.int64(lowest_bit(near))
                        near &= near - ONE
                        if (other == bucket and hit <= i) or found_before(queries[i] ^ words[hit], table, parts):
                            continue
                        a, b = np.int64(rows[i]), np.int64(rows[hit])
                        if dot(vectors[a], vectors[b], signs) >= least * lengths[a] * lengths[b]:
                            pairs = grown(pairs, size, 1)
                            pairs[size] = np.uint64(min(a, b)) << np.uint64(32) | np.uint64(max(a, b))
                            size += 1
                    i = next_near(words, j, queries, i + 1, end, limit)
    return pairs[:size]
