"""The self-join of codes: all pairs within a radius, exactly, and of these the pairs whose vectors are similar.

As in `multihash`, codes are cut into substrings with a hash table for each. Here every bucket is compared with the buckets
near it as a whole, so that both stay in a core's cache: the work is a small share of all pairs, done at the speed of a scan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.index import scan
from dcmh.index.multihash import Plan, buckets, flip_patterns

Words = NDArray[np.uint64]
Vectors = NDArray[np.int8]

SMALL = 4096  # codes that a scan compares before numba is loaded
BLOCK = 256  # queries of a scan
SHARES = 64  # parts that the buckets of a table are cut into, so that threads finish together
BITS = 64
LANES = 8  # words in a cache line


def pairs(
    codes: Words,
    vectors: Vectors,
    radius: int,
    least: float,
    *,
    mask: int = 0,
    signs: Vectors | None = None,
    threads: int | None = None,
) -> NDArray[np.int64]:
    """Pairs of rows (n, 2), the smaller first, ascending: codes at most `radius` bits apart, and similar vectors.

    Parameters
    ----------
    codes
        Codes of 64 bits, shape (items,).
    vectors
        Shape (items, dimensions). The cosine of a pair must be at least `least`.
    mask, signs
        Bits that are inverted in one code of each pair, and signs that one vector is multiplied by: with those of a mirror
        image, mirrored pairs are found.
    """
    signs = np.ones(vectors.shape[1], np.int8) if signs is None else signs
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float32))
    if len(codes) > SMALL and scan.engines.load():
        keys = _by_tables(codes, vectors, lengths, radius, least, mask, signs, scan.threads_of(threads))
    else:
        keys = _by_scan(codes, vectors, lengths, radius, least, mask, signs, scan.threads_of(threads))
    keys.sort()
    return np.stack([keys >> np.uint64(32), keys & np.uint64(2**32 - 1)], axis=1).astype(np.int64)


def make_plan(rows: int, radius: int) -> Plan:
    """The number of substrings with the least work; 64 rows are compared at a time."""

    def cut(tables: int) -> Plan:
        cuts = [table * BITS // tables for table in range(tables + 1)]
        return Plan(rows, tuple(cuts[:-1]), tuple(b - a for a, b in pairwise(cuts)))

    def work(plan: Plan) -> Any:
        per_bucket = [
            (rows / 2**length, count) for length, count in zip(plan.lengths, buckets(plan, radius), strict=True)
        ]
        return sum(count * (min(1.0, held) * 20 + held + 32) for held, count in per_bucket)

    return min((cut(tables) for tables in range(3, 9)), key=work)


def _by_tables(
    codes: Words,
    vectors: Vectors,
    lengths: NDArray[np.float32],
    radius: int,
    least: float,
    mask: int,
    signs: Vectors,
    threads: int,
) -> Words:
    from dcmh.index import join_kernels as kernels
    from dcmh.index.multihash_kernels import build

    plan = make_plan(len(codes), radius)
    parts = np.array((plan.starts, plan.lengths, plan.radii(radius)), np.int64).T.copy()
    order = np.empty(len(codes), np.uint32)
    found = [np.empty(0, np.uint64)]
    for table, (start, length, near) in enumerate(parts.tolist()):
        bounds = np.zeros(2**length + 1, np.uint32)
        build(codes, (0,), start, length, bounds, order)
        counts = np.diff(bounds).astype(np.int64)
        ends = np.cumsum(-(-counts // LANES) * LANES)
        starts = np.concatenate([[0], ends[:-1]])
        places = np.arange(len(codes)) + np.repeat(starts - bounds[:-1], counts)
        words, rows = _aligned(int(ends[-1]) + 64), np.zeros(int(ends[-1]), np.uint32)
        words[places], rows[places] = codes[order], order
        ends = starts + counts
        queries = words ^ np.uint64(mask)
        del places
        flips = flip_patterns(length, near)

        work = partial(
            kernels.join,
            words,
            queries,
            rows,
            starts,
            ends,
            flips,
            table,
            parts,
            np.uint64(mask),
            radius,
            vectors,
            lengths,
            signs,
            least,
        )
        found += _shared(work, np.linspace(0, 2**length, SHARES + 1).astype(int).tolist(), threads)
    return np.concatenate(found)


def _aligned(size: int) -> Words:
    """Zeros whose first word is at the start of a cache line, as buckets are: loads across two lines take twice as long."""
    room = np.zeros(size + LANES, np.uint64)
    first = -room.ctypes.data % 64 // 8
    return room[first : first + size]


def _shared(work: Callable[[int, int], Words], cuts: list[int], threads: int) -> Iterator[Words]:
    """Run the work on the ranges between the cuts, each thread taking the next one when it is done."""
    ranges = iter(list(pairwise(cuts)))

    def take() -> list[Words]:
        return [work(first, last) for first, last in ranges]

    for blocks in scan.in_threads([take] * threads):
        yield from blocks


def _by_scan(
    codes: Words,
    vectors: Vectors,
    lengths: NDArray[np.float32],
    radius: int,
    least: float,
    mask: int,
    signs: Vectors,
    threads: int,
) -> Words:
    found = [np.empty(0, np.uint64)]
    none = np.empty(0, np.uint64)
    for start in range(0, len(codes), BLOCK):
        queries = (codes[start : start + BLOCK] ^ np.uint64(mask))[:, None]
        keys = scan.near(codes[:, None], none, queries, radius, threads)
        a, b = (keys >> np.uint64(43)).astype(np.int64) + start, (keys & np.uint64(2**32 - 1)).astype(np.int64)
        a, b = a[a < b], b[a < b]
        products = np.einsum("ij,ij->i", vectors[a].astype(np.float32) * signs, vectors[b].astype(np.float32))
        alike = products >= least * lengths[a] * lengths[b]
        found.append(a[alike].astype(np.uint64) << np.uint64(32) | b[alike].astype(np.uint64))
    return np.concatenate(found)
