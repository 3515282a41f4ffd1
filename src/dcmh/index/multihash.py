"""Multi-index hashing: all codes within a small radius without a scan (Norouzi, Punjani, Fleet, CVPR 2012). Exact.

A code has m substrings, none overlapping, and a table for each: substring → rows. Write the radius as m·a + b with
b < m. A code within it has one of the first b + 1 substrings within a of the query's, or one of the others within
a − 1: otherwise its distance were at least (b + 1)(a + 1) + (m − b − 1)·a = radius + 1. So it is enough to look in the
buckets near the query's substrings and to compare in full the rows found there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dcmh.index.scan import in_threads

Words = NDArray[np.uint64]

MAX_TABLES = 8
MAX_PART = 24  # bits of a substring

# Measured on one core of an AMD EPYC (Zen 4) at 10 million codes, in units of one word compared by a scan of a batch,
# about 0.1 ns. With these, 64-bit codes are looked up rather than scanned, in batches, up to radius:
#     100,000 codes  CROSSOVER_100K      1 million  CROSSOVER_1M      10 million  CROSSOVER_10M
BUCKET_COST = 500  # looking at one bucket
CANDIDATE_COST = 90  # comparing one row found in a bucket
QUERY_COST = 3000  # everything else that a lookup does for a query
BUILD_COST = 150  # putting one row into one table


@dataclass(frozen=True)
class Plan:
    """How a code of `bits` bits is cut for `rows` rows: the start and the length of each substring."""

    rows: int
    starts: tuple[int, ...]
    lengths: tuple[int, ...]

    @classmethod
    def make(cls, bits: int, rows: int) -> Plan:
        """As many substrings as give about one row a bucket."""
        longest = min(MAX_PART, max(8, int(math.log2(max(rows, 1)))))
        tables = min(MAX_TABLES, -(-bits // longest))
        cuts = [table * bits // tables for table in range(tables + 1)]
        lengths = tuple(min(longest, cuts[t + 1] - cuts[t]) for t in range(tables))
        return cls(rows, tuple(cuts[:-1]), lengths)

    def radii(self, radius: int) -> list[int]:
        """Radius of each substring; −1: the table is not needed."""
        tables = len(self.starts)
        a, b = divmod(radius, tables)
        return [min(a if t <= b else a - 1, length) for t, length in enumerate(self.lengths)]

    def cost(self, radius: int) -> float:
        """What one query costs if codes are spread evenly, in words compared by a scan."""
        total = float(QUERY_COST)
        for length, near in zip(self.lengths, self.radii(radius), strict=True):
            buckets = sum(math.comb(length, flips) for flips in range(near + 1))
            total += buckets * (BUCKET_COST + CANDIDATE_COST * self.rows / 2**length)
        return total

    @property
    def build_cost(self) -> int:
        return BUILD_COST * self.rows * len(self.starts)


@lru_cache(maxsize=64)
def flip_patterns(length: int, radius: int) -> NDArray[np.uint32]:
    """All words of `length` bits with at most `radius` bits set; none for a radius of −1."""
    levels = [np.zeros(0 if radius < 0 else 1, np.uint32)]
    for _ in range(radius):
        smaller = levels[-1]  # set one more bit, above those that are set
        bits = [np.uint32(1 << bit) for bit in range(length)]
        levels.append(np.concatenate([smaller[smaller < bit] | bit for bit in bits]))
    return np.concatenate(levels)


class MultiHash:
    """Tables over the first `plan.rows` rows of an index: 4 bytes a row and table, and 4 bytes a bucket."""

    def __init__(self, words: Words, plan: Plan, threads: int) -> None:
        from dcmh.index import multihash_kernels as kernels

        self.plan = plan
        sizes = [2**length + 1 for length in plan.lengths]
        self.first_end = np.cumsum([0, *sizes])  # (tables + 1,)
        self.ends = np.empty(int(self.first_end[-1]), np.uint32)  # not np.zeros: NumPy asks for huge pages here only
        self.ends[:] = 0
        self.rows = np.empty((len(sizes), plan.rows), np.uint32)
        flat, width = words.reshape(-1), (0,) * words.shape[1]

        def part(t: int) -> Callable[[], None]:
            ends = self.ends[self.first_end[t] : self.first_end[t + 1]]
            return lambda: kernels.build(flat, width, plan.starts[t], plan.lengths[t], ends, self.rows[t])

        for t in range(0, len(sizes), threads):
            in_threads([part(table) for table in range(t, min(t + threads, len(sizes)))])

    @property
    def nbytes(self) -> int:
        return self.ends.nbytes + self.rows.nbytes

    def near(
        self, words: Words, live: Words, queries: Words, radius: int, threads: int
    ) -> tuple[Words, NDArray[np.bool_]]:
        """Keys as `kernels.near` has them, unsorted, and which queries must be scanned as too much is near them."""
        from dcmh.index import multihash_kernels as kernels

        near = self.plan.radii(radius)
        patterns = [flip_patterns(length, r) for length, r in zip(self.plan.lengths, near, strict=True)]
        flips = np.concatenate(patterns)
        last = np.cumsum([len(pattern) for pattern in patterns])
        columns = (self.plan.starts, self.plan.lengths, near, [0, *last[:-1]], last, self.first_end[:-1])
        parts = np.array(columns, np.int64).T.copy()  # (tables, 6)
        most = words.size // (2 * CANDIDATE_COST)  # half of what a scan costs
        flat, width, questions = words.reshape(-1), (0,) * words.shape[1], np.ascontiguousarray(queries).reshape(-1)
        gave_up = np.zeros(len(queries), bool)

        def part(q0: int, q1: int) -> Callable[[], Words]:
            return lambda: kernels.look_up(
                flat, width, live, questions, q0, q1, radius, most, parts, flips, self.ends, self.rows, gave_up
            )

        threads = min(threads, max(1, len(queries) // 64))
        cuts = np.linspace(0, len(queries), threads + 1).astype(int).tolist()
        keys = in_threads([part(q0, q1) for q0, q1 in pairwise(cuts)])
        return np.concatenate(keys), gave_up
