"""Lookups in PostgreSQL: indexes on substrings of the codes find everything within a small radius without a scan. Exact.

Multi-index hashing, as in `dcmh.index.multihash`, with B-trees instead of hash tables.
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

SMALL_TABLE = 10_000  # rows, which a scan reads in 2 ms
MAX_SHARE = 0.05  # of the rows that a lookup may read: each row costs about twenty times more than in a scan
MAX_VALUES = 20_000  # of a lookup
# Bits of a substring by number of rows: long substrings select fewer rows, short ones allow a larger radius.
PARTS = ((16, 20_000_000), (21, 500_000_000), (32, 2**63))
MAX_PARTS = 8


def make_plan(bits: int, part: int) -> Plan:
    """The substrings of a code: of `part` bits or slightly more, at most 8, of at most 32 bits."""
    parts = min(MAX_PARTS, max(1, bits // part))
    cuts = [part * bits // parts for part in range(parts + 1)]
    return Plan(1, tuple(cuts[:-1]), tuple(min(32, end - start) for start, end in itertools.pairwise(cuts)))


def plan_for(bits: int, rows: int) -> Plan:
    """The plan for a table with this number of rows."""
    return make_plan(bits, next(part for part, most in PARTS if rows <= most))


def plan_of(table: Table, indexes: set[str]) -> Plan | None:
    """The plan whose indexes all exist."""
    plans = [make_plan(table.bits, part) for part, _ in PARTS]
    return next((plan for plan in plans if indexes.issuperset(names(table, plan))), None)


def names(table: Table, plan: Plan) -> list[str]:
    """The names of the indexes on substrings."""
    return [f"{table.name}_part_{start}_{length}" for start, length in _cuts(plan)]


def build(connection: psycopg.Connection[Any], table: Table, plan: Plan) -> None:
    """Create the indexes that do not exist."""
    from psycopg.sql import SQL, Identifier

    for index, (start, length) in zip(names(table, plan), _cuts(plan), strict=True):
        command = SQL("CREATE INDEX IF NOT EXISTS {} ON {} ({})")
        connection.execute(command.format(Identifier(index), table.identifier, _part(start, length)))


def drop(connection: psycopg.Connection[Any], table: Table, plan: Plan) -> None:
    """Drop the indexes of a plan."""
    from psycopg.sql import SQL

    for index in names(table, plan):
        connection.execute(SQL("DROP INDEX IF EXISTS {}").format(table.beside(index)))


def pays(plan: Plan, rows: int, radius: int) -> bool:
    """Whether a lookup is estimated to be faster than a scan of this number of rows."""
    if rows < SMALL_TABLE or any(near > 3 for near in plan.radii(radius)):
        return False
    values = buckets(plan, radius)
    share = sum(count / 2.0**length for count, length in zip(values, plan.lengths, strict=True))
    return share < MAX_SHARE and sum(values) < MAX_VALUES


def near(plan: Plan, query: NDArray[np.uint8], bits: int, radius: int) -> tuple[Composable, list[Any]]:
    """A condition that all rows within the radius of a packed query satisfy, and few others; and its values."""
    from psycopg.sql import SQL

    code = bits_of(query, bits)
    tests, values = [], []
    for (start, length), flips in zip(_cuts(plan), plan.radii(radius), strict=True):
        if flips >= 0:
            wanted = int(code[start : start + length], 2) ^ flip_patterns(length, flips).astype(np.uint32)
            tests.append(SQL("{} = ANY(%s::int[])").format(_part(start, length)))
            values.append(wanted.astype(np.uint32).view(np.int32).tolist())
    return SQL("({})").format(SQL(" OR ").join(tests)), values


def _cuts(plan: Plan) -> list[tuple[int, int]]:
    """Start and length of each substring."""
    return list(zip(plan.starts, plan.lengths, strict=True))


def _part(start: int, length: int) -> Composable:
    """A substring as an integer."""
    from psycopg.sql import SQL

    return SQL("((substring(code from {} for {})::bit({}))::int)").format(start + 1, length, length)
