"""Compiled kernels of multi-index hashing: building the tables, and looking up codes. Importing this imports numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.index.kernels import Words, compiled, distance, grown, popcount

Numbers = NDArray[np.int64]


@compiled
def substring(words: Words, row: int, width: tuple[int, ...], start: int, bits: int) -> Any:
    """The `bits` bits (fewer than 64) of a code from `start` on."""
    word, shift = row * len(width) + (start >> 6), start & 63
    value = words[word] >> np.uint64(shift)
    if shift + bits > 64:
        value |= words[word + 1] << np.uint64(64 - shift)
    return value & ((np.uint64(1) << np.uint64(bits)) - np.uint64(1))


@compiled
def build(
    words: Words, width: tuple[int, ...], start: int, bits: int, ends: NDArray[np.uint32], rows: NDArray[np.uint32]
) -> None:
    """Sort the rows by substring: those of bucket b become rows[ends[b] : ends[b + 1]], in row order.

    `ends`, shape (2 ** bits + 1,), starts as zeros.
    """
    for row in range(len(rows)):
        ends[substring(words, row, width, start, bits) + np.uint64(1)] += np.uint32(1)
    for bucket in range(1, len(ends)):
        ends[bucket] += ends[bucket - 1]
    # Filling a bucket moves its start to the start of the next one, so they are shifted back afterwards.
    for row in range(len(rows)):
        bucket = substring(words, row, width, start, bits)
        rows[ends[bucket]] = row
        ends[bucket] += np.uint32(1)
    for bucket in range(len(ends) - 1, 0, -1):
        ends[bucket] = ends[bucket - 1]
    ends[0] = 0


@compiled
def find_buckets(
    queries: Words,
    query: int,
    width: tuple[int, ...],
    parts: Numbers,
    flips: NDArray[np.uint32],
    ends: NDArray[np.uint32],
    buckets: NDArray[np.uint32],
) -> tuple[Any, Any]:
    """Write the start and end of the buckets near a query; returns how many rows they hold, and the most in one table.

    `parts` is as in `look_up`.
    """
    total, most_in_table = np.int64(0), np.int64(0)
    for t in range(len(parts)):
        value, in_table = substring(queries, query, width, parts[t, 0], parts[t, 1]), np.int64(0)
        for i in range(parts[t, 3], parts[t, 4]):
            bucket = np.int64(value ^ np.uint64(flips[i])) + parts[t, 5]
            buckets[i, 0], buckets[i, 1] = ends[bucket], ends[bucket + 1]
            in_table += np.int64(buckets[i, 1]) - np.int64(buckets[i, 0])
        total += in_table
        most_in_table = max(most_in_table, in_table)
    return total, most_in_table


@compiled
def collect(buckets: NDArray[np.uint32], rows: NDArray[np.uint32], candidates: NDArray[np.uint32]) -> int:
    """Copy the rows of the buckets, given by start and end, and return their number."""
    count = 0
    for i in range(len(buckets)):
        for place in range(np.int64(buckets[i, 0]), np.int64(buckets[i, 1])):
            candidates[count] = rows[place]
            count += 1
    return count


@compiled
def keep_near(
    words: Words, width: tuple[int, ...], queries: Words, query: int, radius: int, candidates: Any, count: int
) -> int:
    """Move the candidates within the radius to the front and return their number."""
    code = queries[query * len(width) : (query + 1) * len(width)]
    kept = 0
    for i in range(count):
        row = np.int64(candidates[i])
        d = np.uint64(0)
        for word in range(len(width)):
            d += popcount(words[row * len(width) + word] ^ code[word])
        if d <= np.uint64(radius):
            candidates[kept] = candidates[i]
            kept += 1
    return kept


@compiled
def look_up(
    words: Words,
    width: tuple[int, ...],
    live: Words,
    queries: Words,
    q0: int,
    q1: int,
    radius: int,
    most: int,
    parts: Numbers,
    flips: NDArray[np.uint32],
    ends: NDArray[np.uint32],
    rows: NDArray[np.uint32],
    gave_up: NDArray[np.bool_],
) -> Words:
    """Keys (query << 43 | distance << 32 | row) of live rows within the radius of the queries q0 to q1, in no order.

    A query whose buckets hold more than `most` rows is marked in `gave_up` and has no keys.
    `parts` has a row for each table: start, bits, radius of its substring; first and last flip pattern in `flips`;
    first entry in `ends`. Table t's rows are rows[t].
    """
    keys, size = np.empty(1024, np.uint64), 0
    buckets = np.empty((len(flips), 2), np.uint32)  # start and end of each bucket
    candidates = np.empty(1024, np.uint32)
    for query in range(q0, q1):
        # Three passes, each with independent loads: buckets, their rows, the codes of the rows.
        total, most_in_table = find_buckets(queries, query, width, parts, flips, ends, buckets)
        if total > most:
            gave_up[query] = True
            continue
        if most_in_table > len(candidates):
            candidates = np.empty(2 * most_in_table, np.uint32)
        for t in range(len(parts)):
            count = collect(buckets[parts[t, 3] : parts[t, 4]], rows[t], candidates)
            count = keep_near(words, width, queries, query, radius, candidates, count)
            keys = grown(keys, size, count)
            for row in candidates[:count]:
                if is_new(words, np.int64(row), width, live, queries, query, parts, t):
                    d = distance(words, np.int64(row), queries, query, width)
                    keys[size] = np.uint64(query) << np.uint64(43) | d << np.uint64(32) | np.uint64(row)
                    size += 1
    return keys[:size]


@compiled
def is_new(
    words: Words, row: int, width: tuple[int, ...], live: Words, queries: Words, query: int, parts: Numbers, table: int
) -> bool:
    """Whether a row is live, and no earlier table has found it: its substrings there are too far from the query's."""
    if len(live) > 0 and not live[row >> 6] >> np.uint64(row & 63) & np.uint64(1):
        return False
    for t in range(table):
        a = substring(words, row, width, parts[t, 0], parts[t, 1])
        b = substring(queries, query, width, parts[t, 0], parts[t, 1])
        if np.int64(popcount(a ^ b)) <= parts[t, 2]:
            return False
    return True
