"""Everything within a radius: by scan or by lookup, whichever is faster, with equal answers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dcmh.index import scan
from dcmh.index.multihash import CALL_COST, MultiHash, Plan, cost, make_plan

Words = NDArray[np.uint64]

# Queries in a batch share each block of codes; a query alone waits for main memory, about twice as long.
WORDS_IN_CACHE = 4_000_000


def plan_for(bits: int, rows: int) -> Plan:
    """Tables for the first rows of an index; a multiple of 64, as scans of the rest start there."""
    return make_plan(bits, rows // 64 * 64)


def saved(plan: Plan, radius: int, width: int, queries: int) -> float:
    """How many words fewer a query compares with lookups than without; negative where a scan is faster."""
    words = plan.rows * width
    alone = queries < 4 and words > WORDS_IN_CACHE
    return (2 * words if alone else words) - cost(plan, radius) - CALL_COST / max(queries, 1)


def still_good(lookups: MultiHash | None, rows: int) -> bool:
    """Whether tables cover most of the rows; the others are scanned."""
    return lookups is not None and rows - lookups.plan.rows <= max(4096, rows // 8)


def near(words: Words, live: Words, queries: Words, radius: int, threads: int, lookups: MultiHash | None) -> Words:
    """Sorted keys (query << 43 | distance << 32 | row) of all live rows within the radius."""
    if lookups is None:
        return scan.near(words, live, queries, radius, threads)
    covered = lookups.plan.rows
    keys, gave_up = lookups.near(words[:covered], live, queries, radius, threads)
    found = [keys]
    if covered < len(words):
        found.append(scan.near(words, live, queries, radius, threads, first=covered))
    if gave_up.any():
        left = np.flatnonzero(gave_up)
        more = scan.near(words[:covered], live, queries[left], radius, threads)
        asked = left[(more >> np.uint64(43)).astype(np.int64)].astype(np.uint64)
        found.append(asked << np.uint64(43) | more & np.uint64(2**43 - 1))
    keys = found[0] if len(found) == 1 else np.concatenate(found)
    keys.sort()
    return keys
