"""Lookups in PostgreSQL: indexes on substrings of the codes find what is within a small radius without a scan. Exact.

Why it is enough to look near the query's substrings is in `dcmh.index.multihash`; here B-trees stand for its tables.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dcmh.index.multihash import Plan, buckets, flip_patterns
from dcmh.stores.postgres.table import Table, bits_of

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composable

FEW = 10_000  # rows: scanning these takes 2 ms
WORTH = 0.05  # share of the rows that a lookup may touch: one by one they cost some twenty times more than in a scan
MOST_VALUES = 20_000  # values that a lookup may ask for
# Bits of a substring for up to so many rows: long ones point at few rows, short ones allow more radius.
PARTS = ((16, 20_000_000), (21, 500_000_000), (32, 2**63))
MOST_PARTS = 8


def make_plan(bits: int, part: int) -> Plan:
    """How a code is cut: into substrings of so many bits or a few more, but at most 8 of them, of 32 bits at most."""
    parts = min(MOST_PARTS, max(1, bits // part))
    cuts = [part * bits // parts for part in range(parts + 1)]
    return Plan(1, tuple(cuts[:-1]), tuple(min(32, end - start) for start, end in itertools.pairwise(cuts)))


def plan_for(bits: int, rows: int) -> Plan:
    """The plan for a table of so many rows."""
    return make_plan(bits, next(part for part, most in PARTS if rows <= most))


def plan_of(table: Table, indexes: set[str]) -> Plan | None:
    """The plan whose indexes are all there, by name."""
    plans = [make_plan(table.bits, part) for part, _ in PARTS]
    return next((plan for plan in plans if indexes.issuperset(names(table, plan))), None)


def names(table: Table, plan: Plan) -> list[str]:
    """Of the indexes on substrings."""
    return [f"{table.name}_part_{start}_{length}" for start, length in _cuts(plan)]


def build(connection: psycopg.Connection[Any], table: Table, plan: Plan) -> None:
    """Make the indexes that are not there."""
    from psycopg.sql import SQL, Identifier

    for named, (start, length) in zip(names(table, plan), _cuts(plan), strict=True):
        command = SQL("CREATE INDEX IF NOT EXISTS {} ON {} ({})")
        connection.execute(command.format(Identifier(named), table.identifier, _part(start, length)))


def drop(connection: psycopg.Connection[Any], table: Table, plan: Plan) -> None:
    from psycopg.sql import SQL

    for named in names(table, plan):
        connection.execute(SQL("DROP INDEX IF EXISTS {}").format(table.beside(named)))


def pays(plan: Plan, rows: int, radius: int) -> bool:
    """Whether a lookup is faster than a scan of so many rows, as far as can be known."""
    if rows < FEW or any(near > 3 for near in plan.radii(radius)):
        return False
    asked = buckets(plan, radius)
    share = sum(count / 2.0**length for count, length in zip(asked, plan.lengths, strict=True))
    return share < WORTH and sum(asked) < MOST_VALUES


def near(plan: Plan, query: NDArray[np.uint8], bits: int, radius: int) -> tuple[Composable, list[Any]]:
    """A test that all rows within the radius of a packed query pass, and few others; and the values that it asks for."""
    from psycopg.sql import SQL

    said = bits_of(query, bits)
    tests, values = [], []
    for (start, length), flips in zip(_cuts(plan), plan.radii(radius), strict=True):
        if flips >= 0:
            asked = int(said[start : start + length], 2) ^ flip_patterns(length, flips).astype(np.uint32)
            tests.append(SQL("{} = ANY(%s::int[])").format(_part(start, length)))
            values.append(asked.astype(np.uint32).view(np.int32).tolist())
    return SQL("({})").format(SQL(" OR ").join(tests)), values


def _cuts(plan: Plan) -> list[tuple[int, int]]:
    """Start and length of each substring."""
    return list(zip(plan.starts, plan.lengths, strict=True))


def _part(start: int, length: int) -> Composable:
    """A substring as an integer."""
    from psycopg.sql import SQL

    return SQL("((substring(code from {} for {})::bit({}))::int)").format(start + 1, length, length)
