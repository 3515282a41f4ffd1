"""Multi-index hashing: exact search within a small radius without a scan (Norouzi, Punjani, Fleet, CVPR 2012).

A code is cut into m disjoint substrings, with a hash table for each: substring → rows. Write the radius as m·a + b with
b < m. A code within the radius has one of the first b + 1 substrings within a of the query's, or one of the others
within a − 1: otherwise its distance would be at least (b + 1)(a + 1) + (m − b − 1)·a = radius + 1. So it is enough to
look in the buckets near the query's substrings and to compare the rows in them in full.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from dcmh.index import scan

Words = NDArray[np.uint64]

MAX_TABLES = 8
MAX_PART = 24  # bits of a substring

# Measured on one core of an AMD EPYC (Zen 4), in units of one word compared by a scan of a batch, about 0.1 ns:
# (rows, cost of looking at a bucket, cost of comparing a row in it), for tables of up to that many rows. Lookups of 64-bit
# codes around 2,000 centres were faster than scans up to these radii, in batches and for a single query
# (benchmarks/results/search.md): 100,000 codes 10 and never, 1 million 11 and 11, 10 million 12 and 13. With these
# costs, `within` switches at 10 and never, 11 and 11, 11 and 13.
COSTS = ((300_000, 150, 40), (3_000_000, 300, 75), (2**32, 600, 85))
QUERY_COST = 3000  # fixed cost of a lookup per query
CALL_COST = 150_000  # fixed cost of a call with lookups
BUILD_COST = 150  # of putting one row into one table
# Queries in a batch share each block of codes; a single query waits for main memory, about twice as long.
WORDS_IN_CACHE = 4_000_000


@dataclass(frozen=True)
class Plan:
    """How a code of `bits` bits is cut for `rows` rows: the start and the length of each substring."""

    rows: int
    starts: tuple[int, ...]
    lengths: tuple[int, ...]

    def radii(self, radius: int) -> list[int]:
        """The radius of each substring; −1: the table is not needed."""
        tables = len(self.starts)
        a, b = divmod(radius, tables)
        return [min(a if t <= b else a - 1, length) for t, length in enumerate(self.lengths)]

    @property
    def costs(self) -> tuple[int, int]:
        """The cost of a bucket and of a row in it."""
        return next((bucket, row) for rows, bucket, row in COSTS if self.rows <= rows)

    @property
    def first_end(self) -> list[int]:
        """The offset of each table's bucket ends, and the total."""
        return [0, *accumulate(2**length + 1 for length in self.lengths)]

    @property
    def build_cost(self) -> int:
        """The cost of building all tables."""
        return BUILD_COST * self.rows * len(self.starts)


def make_plan(bits: int, rows: int) -> Plan:
    """As many substrings as give about one row per bucket."""
    longest = min(MAX_PART, max(8, int(math.log2(max(rows, 1)))))
    tables = min(MAX_TABLES, -(-bits // longest))
    cuts = [table * bits // tables for table in range(tables + 1)]
    lengths = tuple(min(longest, cuts[t + 1] - cuts[t]) for t in range(tables))
    return Plan(rows, tuple(cuts[:-1]), lengths)


@lru_cache(maxsize=256)
def buckets(plan: Plan, radius: int) -> tuple[int, ...]:
    """The number of buckets of each table that a query looks at."""
    pairs = zip(plan.lengths, plan.radii(radius), strict=True)
    return tuple(sum(math.comb(length, flips) for flips in range(near + 1)) for length, near in pairs)


@lru_cache(maxsize=256)
def cost(plan: Plan, radius: int) -> float:
    """The cost of one query if codes are uniformly distributed, in words compared by a scan."""
    bucket, row = plan.costs
    pairs = zip(plan.lengths, buckets(plan, radius), strict=True)
    return float(QUERY_COST + sum(count * (bucket + row * plan.rows / (1 << length)) for length, count in pairs))


def flip_patterns(length: int, radius: int) -> NDArray[np.uint32]:
    """All words of `length` bits with at most `radius` bits set; none for a radius of −1."""
    levels = [np.zeros(0 if radius < 0 else 1, np.uint32)]
    for _ in range(radius):
        smaller = levels[-1]  # set one more bit, above the highest set bit
        bits = [np.uint32(1 << bit) for bit in range(length)]
        levels.append(np.concatenate([smaller[smaller < bit] | bit for bit in bits]))
    return np.concatenate(levels)


@lru_cache(maxsize=16)
def layout(plan: Plan, radius: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """The arguments of `look_up`: a row for each table, shape (tables, 6), and the flip patterns of all tables."""
    near = plan.radii(radius)
    patterns = [flip_patterns(length, r) for length, r in zip(plan.lengths, near, strict=True)]
    last = np.cumsum([len(pattern) for pattern in patterns])
    columns = (plan.starts, plan.lengths, near, [0, *last[:-1]], last, plan.first_end[:-1])
    return np.array(columns, np.int64).T.copy(), np.concatenate(patterns)


class MultiHash:
    """Hash tables over the first `plan.rows` rows of an index: 4 bytes per row and table, and 4 bytes per bucket."""

    def __init__(self, words: Words, plan: Plan, threads: int) -> None:
        from dcmh.index import multihash_kernels as kernels

        self.plan = plan
        first, tables = plan.first_end, len(plan.starts)
        self.ends = np.empty(first[-1], np.uint32)  # not np.zeros: only np.empty uses huge pages
        self.ends[:] = 0
        self.rows = np.empty((tables, plan.rows), np.uint32)
        flat, width = words.reshape(-1), (0,) * words.shape[1]

        def build_table(t: int) -> Callable[[], None]:
            ends = self.ends[first[t] : first[t + 1]]
            return lambda: kernels.build(flat, width, plan.starts[t], plan.lengths[t], ends, self.rows[t])

        for t in range(0, tables, threads):
            scan.in_threads([build_table(table) for table in range(t, min(t + threads, tables))])

    @property
    def nbytes(self) -> int:
        """The memory of the tables in bytes."""
        return self.ends.nbytes + self.rows.nbytes

    def near(
        self, words: Words, live: Words, queries: Words, radius: int, threads: int
    ) -> tuple[Words, NDArray[np.bool_]]:
        """Unsorted keys as of `kernels.near`, and which queries must be scanned because too many rows are near them."""
        from dcmh.index import multihash_kernels as kernels

        if sum(buckets(self.plan, radius)) > self.plan.rows:
            return np.empty(0, np.uint64), np.ones(len(queries), bool)
        parts, flips = layout(self.plan, radius)
        most = words.size // self.plan.costs[1]  # comparing this many costs as much as a scan
        flat, width, flat_queries = words.reshape(-1), (0,) * words.shape[1], np.ascontiguousarray(queries).reshape(-1)
        gave_up = np.zeros(len(queries), bool)

        def look_up(q0: int, q1: int) -> Callable[[], Words]:
            return lambda: kernels.look_up(
                flat, width, live, flat_queries, q0, q1, radius, most, parts, flips, self.ends, self.rows, gave_up
            )

        threads = min(threads, max(1, len(queries) // 64))
        cuts = [len(queries) * thread // threads for thread in range(threads + 1)]
        keys = scan.in_threads([look_up(q0, q1) for q0, q1 in pairwise(cuts)])
        return keys[0] if len(keys) == 1 else np.concatenate(keys), gave_up


# -- lookup or scan ---------------------------------------------------------------------------------------------


def plan_for(bits: int, rows: int) -> Plan:
    """The plan for tables over the first rows of an index: a multiple of 64, since the rest is scanned from there."""
    return make_plan(bits, rows // 64 * 64)


def words_saved(plan: Plan, radius: int, width: int, queries: int) -> float:
    """How many fewer words a query compares with lookups than with a scan; negative if a scan is faster."""
    words = plan.rows * width
    alone = queries < 4 and words > WORDS_IN_CACHE
    return (2 * words if alone else words) - cost(plan, radius) - CALL_COST / max(queries, 1)


def covers_most(lookups: MultiHash | None, rows: int) -> bool:
    """Whether the tables cover most of the rows; the others are scanned."""
    return lookups is not None and rows - lookups.plan.rows <= max(4096, rows // 8)


def near(words: Words, live: Words, queries: Words, radius: int, threads: int, lookups: MultiHash | None) -> Words:
    """Sorted keys (query << 43 | distance << 32 | row) of all live rows within the radius, by lookup or by scan."""
    if lookups is None:
        return scan.near(words, live, queries, radius, threads)
    covered = lookups.plan.rows
    keys, gave_up = lookups.near(words[:covered], live, queries, radius, threads)
    blocks = [keys]
    if covered < len(words):
        blocks.append(scan.near(words, live, queries, radius, threads, first=covered))
    if gave_up.any():
        left = np.flatnonzero(gave_up)
        scanned = scan.near(words[:covered], live, queries[left], radius, threads)
        query = left[(scanned >> np.uint64(43)).astype(np.int64)].astype(np.uint64)
        blocks.append(query << np.uint64(43) | scanned & np.uint64(2**43 - 1))
    keys = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    keys.sort()
    return keys
