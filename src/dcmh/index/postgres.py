"""PostgresIndex: the same searches over codes in a PostgreSQL table, `bit(n)` under an integer primary key.

A radius that is small goes through indexes on substrings of the code, as in `dcmh.index.multihash`; anything else is a
scan, which PostgreSQL shares among its workers. Both are exact. HNSW (pgvector) is the approximate way, for whoever
asks for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcmh.codes import bytes_of, check_bits
from dcmh.engines.address import Address, parse
from dcmh.engines.patience import LOADING
from dcmh.engines.postgres import BUILD_SECONDS, Postgres
from dcmh.errors import DataError, EngineError, ModelMismatch
from dcmh.index.arguments import as_ids, at_least, refuse_known, refuse_missing, refuse_repeated
from dcmh.index.multihash import Plan, buckets, flip_patterns
from dcmh.index.remote import ALONE, as_packed, chosen_ids, measure_recall, results_of
from dcmh.index.results import Results

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composable, Composed

Packed = NDArray[np.uint8]
Found = list[tuple[int, int]]  # (id, distance), nearest first

LOADED_AT_ONCE = 100_000  # rows in a transaction of a bulk load
FEW = 10_000  # rows: scanning these takes 2 ms
WORTH = 0.05  # share of the rows that a lookup may touch: one by one they cost some twenty times more than in a scan
MOST_VALUES = 20_000  # values that a lookup may ask for
# Bits of a substring for up to so many rows: long ones point at few rows, short ones allow more radius.
PARTS = ((16, 20_000_000), (21, 500_000_000), (32, 2**63))
MOST_PARTS = 8
EFFORT = 400  # of an HNSW search

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_REVERSED = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)[:, ::-1], axis=1).reshape(-1)


def make_plan(bits: int, part: int) -> Plan:
    """How a code is cut: into substrings of so many bits or a few more, but at most 8 of them, of 32 bits at most."""
    parts = min(MOST_PARTS, max(1, bits // part))
    cuts = [part * bits // parts for part in range(parts + 1)]
    return Plan(1, tuple(cuts[:-1]), tuple(min(32, end - start) for start, end in itertools.pairwise(cuts)))


class PostgresIndex:
    """Codes of `bits` bits in a table of a collection. Threads and processes may share the table.

    Parameters
    ----------
    where
        An address, such as postgresql://user@host/database?collection=photos, or a `Postgres` that is shared.
    name
        The table. It is made if it is not there, unless `create` is False.
    """

    def __init__(self, where: Postgres | Address | str, bits: int, *, name: str = "codes", create: bool = True) -> None:
        from psycopg import sql

        self.server = where if isinstance(where, Postgres) else Postgres(parse(where))
        self.bits = check_bits(bits)
        self.name = name
        self.plan = make_plan(self.bits, PARTS[0][0])
        self._sql = sql
        schema = f"dcmh_{self.server.address.collection}"
        self._schema, self._table = sql.Identifier(schema), sql.Identifier(schema, name)
        try:
            self.server.work(self._prepare(create))
        except BaseException:
            if self.server is not where:
                self.server.close()
            raise

    def __len__(self) -> int:
        return int(self._rows("SELECT count(*) FROM {table}")[0][0])

    def __repr__(self) -> str:
        return f"PostgresIndex({str(self.server.address)!r}, bits={self.bits}, name={self.name!r})"

    def __contains__(self, item: int) -> bool:
        return bool(self._rows("SELECT 1 FROM {table} WHERE id = %s", (int(item),)))

    @property
    def count(self) -> int:
        """The number of items."""
        return len(self)

    @property
    def ids(self) -> NDArray[np.int64]:
        """All ids, ascending."""
        return np.array([row[0] for row in self._rows("SELECT id FROM {table} ORDER BY id")], np.int64)

    def codes(self, ids: ArrayLike) -> Packed:
        """The packed codes of some items, in the order asked for."""
        wanted = as_ids(ids)
        found = self.codes_there(wanted)
        refuse_missing(np.array([item for item in wanted.tolist() if item not in found], np.int64))
        joined = b"".join(found[item] for item in wanted.tolist())
        return np.frombuffer(joined, np.uint8).reshape(len(wanted), bytes_of(self.bits))

    def codes_there(self, ids: ArrayLike) -> dict[int, bytes]:
        """The packed codes of those of the items that are there."""
        wanted = as_ids(ids).tolist()
        rows = self._rows("SELECT id, bit_send(code) FROM {table} WHERE id = ANY(%s)", (wanted,))
        joined = b"".join(code[4:] for _, code in rows)  # the first 4 bytes are the length
        packed = _REVERSED[np.frombuffer(joined, np.uint8)].reshape(len(rows), bytes_of(self.bits))
        return {row[0]: code.tobytes() for row, code in zip(rows, packed, strict=True)}

    # -- changing ---------------------------------------------------------------------------------------------------

    def add(self, ids: ArrayLike, codes: Packed, *, alone: NDArray[np.bool_] | None = None) -> None:
        """Add items under new ids. All of them, or none."""
        new, packed = as_ids(ids), as_packed(codes, self.bits, "Codes")
        if len(new) != len(packed):
            raise DataError(f"There are {len(new)} ids but {len(packed)} codes. Give one id for each code.")
        refuse_repeated(new)
        attempts = itertools.count()

        def add(connection: psycopg.Connection[Any]) -> None:
            known = self._known(connection, new)
            if next(attempts) and len(known) == len(new):
                return  # the connection broke after it was committed
            refuse_known(known)
            self.copy(connection, new, packed, alone)

        if len(new):
            self.server.work(add, patience=LOADING)

    def load(
        self,
        ids: ArrayLike,
        codes: Packed,
        *,
        alone: NDArray[np.bool_] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Add those items whose id is not there yet, however many there are; how many that were.

        May be stopped at any time, and called again: what was committed stays. Call `optimise` at the end.
        """
        new, packed = as_ids(ids), as_packed(codes, self.bits, "Codes")
        if len(new) != len(packed):
            raise DataError(f"There are {len(new)} ids but {len(packed)} codes. Give one id for each code.")
        refuse_repeated(new)
        if len(new) > max(FEW, self.estimate // 4):
            self._drop_lookups()  # keeping them up to date row by row takes ten times longer than making them anew
        added = 0
        for start in range(0, len(new), LOADED_AT_ONCE):
            part = slice(start, start + LOADED_AT_ONCE)
            added += self.server.work(self._loading(new[part], packed[part], alone, part), patience=LOADING)
            if progress:
                progress(min(part.stop, len(new)), len(new))
        return added

    def remove(self, ids: ArrayLike, *, missing_ok: bool = False) -> int:
        """Remove items and return how many there were. If an id is unknown none is removed, unless missing_ok."""
        wanted = np.unique(as_ids(ids))
        gone: set[int] = set()

        def remove(connection: psycopg.Connection[Any]) -> int:
            query = self._said("DELETE FROM {table} WHERE id = ANY(%s) RETURNING id")
            gone.update(row[0] for row in connection.execute(query, (wanted.tolist(),)))
            if not missing_ok:
                refuse_missing(np.array([item for item in wanted.tolist() if item not in gone], np.int64))
            return len(gone)

        return self.server.work(remove) if len(wanted) else 0

    def optimise(self) -> None:
        """Make the indexes that lookups need, and statistics. After a bulk load; harmless at any time."""
        count = len(self)
        plan = make_plan(self.bits, next(part for part, rows in PARTS if count <= rows))

        def build(connection: psycopg.Connection[Any]) -> None:
            if self.has_lookups and self.plan != plan:
                self._drop(connection)
            connection.execute("SET LOCAL maintenance_work_mem = '256MB'")
            for named, (start, length) in zip(self._names(plan), _cuts(plan), strict=True):
                command = self._sql.SQL("CREATE INDEX IF NOT EXISTS {} ON {} ({})")
                connection.execute(command.format(self._sql.Identifier(named), self._table, self._part(start, length)))
            connection.execute(self._said("ANALYZE {table}"))

        self.server.work(build, patience=LOADING, seconds=BUILD_SECONDS)
        self._look()

    def approximate(self, *, m: int = 16, ef_construction: int = 64) -> None:
        """Make an HNSW index, which `search(..., method="approximate")` uses. Takes long: minutes for a million."""
        if self._distance_sql != "<~>":
            raise EngineError(
                f"{self.server.address} has no pgvector of at least 0.7, which HNSW needs. Install it there."
            )

        def build(connection: psycopg.Connection[Any]) -> None:
            connection.execute("SET LOCAL maintenance_work_mem = '1GB'")
            named = self._sql.Identifier(f"{self.name}_hnsw")
            command = self._sql.SQL(
                "CREATE INDEX IF NOT EXISTS {} ON {} USING hnsw (code bit_hamming_ops) WITH (m = {}, ef_construction = {})"
            )
            connection.execute(command.format(named, self._table, int(m), int(ef_construction)))

        self.server.work(build, patience=LOADING, seconds=BUILD_SECONDS)
        self._look()

    def recall(self, *, k: int = 10, sample: int = 100) -> float:
        """The share of true nearest items that the approximate search finds, measured on codes of the collection."""
        return measure_recall(self, self._sample(sample), k)

    def _sample(self, sample: int) -> Packed:
        rows = self._rows("SELECT id FROM {table} ORDER BY md5(id::text) LIMIT %s", (sample,))
        return self.codes([row[0] for row in rows])

    # -- searching --------------------------------------------------------------------------------------------------

    def search(
        self, codes: Packed, k: int, *, allowed: Any = None, method: Literal["exact", "approximate"] = "exact"
    ) -> Results:
        """The k nearest items of each query, or all items where there are fewer.

        `allowed` as in `Index`, or "alone": items that have no code in another table of the collection.
        """
        queries, k = as_packed(codes, self.bits, "Query codes"), at_least(k, 1, "k")
        limit = self._limited(allowed)
        if method == "approximate" and self.has_hnsw and allowed is None:
            return results_of([self._graph(query, k) for query in queries])
        return results_of([self._nearest(query, k, limit) for query in queries])

    def within(self, codes: Packed, radius: int, *, allowed: Any = None) -> Results:
        """All items at most `radius` bits away from each query."""
        queries = as_packed(codes, self.bits, "Query codes")
        radius = min(at_least(radius, 0, "radius"), self.bits)
        limit = self._limited(allowed)
        return results_of([self._near(query, radius, limit) for query in queries])

    def _nearest(self, query: Packed, k: int, limit: tuple[Composable, list[Any]]) -> Found:
        """Look within a small radius first: if k items are there, they are the nearest."""
        parts = len(self.plan.starts)
        for radius in (parts - 1, 2 * parts - 1):
            if self._pays(radius) and len(found := self._near(query, radius, limit, k)) == k:
                return found
        return self._found("TRUE", [], query, limit, k)

    def _near(self, query: Packed, radius: int, limit: tuple[Composable, list[Any]], k: int | None = None) -> Found:
        close = self._sql.SQL("({} <= {})").format(self._distance(query), radius)
        if not self._pays(radius):
            return self._found(close, [], query, limit, k)
        said = _bits_of(query, self.bits)
        tests, values = [], []
        for (start, length), near in zip(_cuts(self.plan), self.plan.radii(radius), strict=True):
            if near >= 0:
                asked = int(said[start : start + length], 2) ^ flip_patterns(length, near).astype(np.uint32)
                tests.append(self._sql.SQL("{} = ANY(%s::int[])").format(self._part(start, length)))
                values.append(asked.astype(np.uint32).view(np.int32).tolist())
        some = self._sql.SQL("(({}) AND {})").format(self._sql.SQL(" OR ").join(tests), close)
        return self._found(some, values, query, limit, k)

    def _graph(self, query: Packed, k: int) -> Found:
        effort = max(k, self.server.address.effort or EFFORT)

        def ask(connection: psycopg.Connection[Any]) -> Found:
            connection.execute(f"SET LOCAL hnsw.ef_search = {min(effort, 1000)}")
            statement = self._said("SELECT id, {distance}::int FROM {table} ORDER BY {distance} LIMIT %s", query)
            rows = connection.execute(statement, (k,)).fetchall()
            return sorted(rows, key=lambda row: (row[1], row[0]))

        return self.server.work(ask)

    def _found(
        self, test: Any, values: list[Any], query: Packed, limit: tuple[Composable, list[Any]], k: int | None
    ) -> Found:
        test = self._sql.SQL(test) if isinstance(test, str) else test
        statement = self._said(
            "SELECT id, {distance}::int AS distance FROM {table} WHERE {test} AND {limit} ORDER BY distance, id LIMIT %s",
            query,
            test=test,
            limit=limit[0],
        )
        return self.server.rows(statement, (*values, *limit[1], k))

    def _limited(self, allowed: Any) -> tuple[Composable, list[Any]]:
        """What `allowed` is in SQL."""
        if allowed is None:
            return self._sql.SQL("TRUE"), []
        if isinstance(allowed, str) and allowed == ALONE:
            return self._sql.SQL("alone"), []
        return self._sql.SQL("id = ANY(%s)"), [chosen_ids(allowed).tolist()]

    def _pays(self, radius: int) -> bool:
        """Whether a lookup is faster than a scan, as far as can be known."""
        if not self.has_lookups or self.estimate < FEW:
            return False
        if any(near > 3 for near in self.plan.radii(radius)):
            return False
        asked = buckets(self.plan, radius)
        rows = sum(count / 2.0**length for count, length in zip(asked, self.plan.lengths, strict=True))
        return rows < WORTH and sum(asked) < MOST_VALUES

    # -- inside -----------------------------------------------------------------------------------------------------

    def _distance(self, query: Packed) -> Composable:
        said = self._sql.Literal(_bits_of(query, self.bits))
        if self._distance_sql == "<~>":
            return self._sql.SQL("(code <~> {}::bit({}))").format(said, self.bits)
        return self._sql.SQL("bit_count(code # {}::bit({}))").format(said, self.bits)

    def _said(self, text: str, query: Packed | None = None, **parts: Composable) -> Composed:
        if query is not None:
            parts["distance"] = self._distance(query)
        return self._sql.SQL(text).format(table=self._table, **parts)

    def _rows(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        return self.server.rows(self._said(text), values)

    def _prepare(self, create: bool) -> Callable[[Any], None]:
        def prepare(connection: psycopg.Connection[Any]) -> None:
            self._distance_sql = _distance_operator(connection, create=create)
            if create:
                make_table(connection, self._schema, self._table, self.bits)
            kind = connection.execute(
                "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'code'",
                (self._table.as_string(connection),),
            ).fetchone()
            if kind is None or kind[0] != f"bit({self.bits})":
                raise ModelMismatch(
                    f"{self.server.address} holds codes of type {kind and kind[0]}, not of {self.bits} bits. "
                    "Use the model it was made with, or another collection."
                )
            self._look_with(connection)

        return prepare

    def _look(self) -> None:
        self.server.work(self._look_with)

    def _look_with(self, connection: psycopg.Connection[Any]) -> None:
        """See which indexes there are, and how many rows, roughly."""
        named = self._table.as_string(connection)
        rows = connection.execute(
            "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
            "WHERE i.indrelid = %s::regclass AND i.indisvalid",
            (named,),
        ).fetchall()
        there = {row[0] for row in rows}
        plans = [make_plan(self.bits, part) for part, _ in PARTS]
        whole = next((plan for plan in plans if there.issuperset(self._names(plan))), None)
        self.plan, self.has_lookups = whole or plans[0], whole is not None
        self.has_hnsw = f"{self.name}_hnsw" in there
        found = connection.execute("SELECT reltuples FROM pg_class WHERE oid = %s::regclass", (named,)).fetchone()
        self.estimate = max(0, int(found[0])) if found else 0

    def _known(self, connection: psycopg.Connection[Any], ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of the ids are there."""
        between = self._said("SELECT EXISTS (SELECT 1 FROM {table} WHERE id BETWEEN %s AND %s)")
        some = connection.execute(between, (int(ids.min()), int(ids.max()))).fetchone()
        if not some or not some[0]:
            return np.empty(0, np.int64)
        rows = connection.execute(self._said("SELECT id FROM {table} WHERE id = ANY(%s)"), (ids.tolist(),)).fetchall()
        return np.array([row[0] for row in rows], np.int64)

    def _loading(
        self, ids: NDArray[np.int64], packed: Packed, alone: NDArray[np.bool_] | None, part: slice
    ) -> Callable[[Any], int]:
        def load(connection: psycopg.Connection[Any]) -> int:
            fresh = ~np.isin(ids, self._known(connection, ids))
            self.copy(connection, ids[fresh], packed[fresh], None if alone is None else alone[part][fresh])
            return int(np.count_nonzero(fresh))

        return load

    def copy(
        self,
        connection: psycopg.Connection[Any],
        ids: NDArray[np.int64],
        packed: Packed,
        alone: NDArray[np.bool_] | None = None,
    ) -> None:
        """Send rows by binary COPY, within the caller's transaction."""
        with connection.cursor().copy(self._said("COPY {table} (id, code, alone) FROM STDIN (FORMAT binary)")) as copy:
            copy.write(_HEADER)
            copy.write(_copy_rows(ids, packed, self.bits, alone))
            copy.write(b"\xff\xff")

    def _drop_lookups(self) -> None:
        def drop(connection: psycopg.Connection[Any]) -> None:
            self._drop(connection)

        if self.has_lookups:
            self.server.work(drop, patience=LOADING)
            self.has_lookups = False

    def _drop(self, connection: psycopg.Connection[Any]) -> None:
        for named in self._names(self.plan):
            whole = self._sql.Identifier(f"dcmh_{self.server.address.collection}", named)
            connection.execute(self._sql.SQL("DROP INDEX IF EXISTS {}").format(whole))

    def _names(self, plan: Plan) -> list[str]:
        """Of the indexes on substrings."""
        return [f"{self.name}_part_{start}_{length}" for start, length in _cuts(plan)]

    def _part(self, start: int, length: int) -> Composable:
        """A substring as an integer."""
        return self._sql.SQL("((substring(code from {} for {})::bit({}))::int)").format(start + 1, length, length)


def _cuts(plan: Plan) -> list[tuple[int, int]]:
    """Start and length of each substring."""
    return list(zip(plan.starts, plan.lengths, strict=True))


def make_table(connection: psycopg.Connection[Any], schema: Composable, table: Composable, bits: int) -> None:
    from psycopg.sql import SQL

    there = connection.execute("SELECT to_regclass(%s)", (table.as_string(connection),)).fetchone()
    if there and there[0] is not None:
        return
    connection.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
    connection.execute(
        SQL(
            "CREATE TABLE IF NOT EXISTS {} (id bigint PRIMARY KEY, code bit({}) NOT NULL, alone boolean NOT NULL)"
        ).format(table, bits)
    )


def _distance_operator(connection: psycopg.Connection[Any], *, create: bool) -> str:
    """pgvector's <~> where there is pgvector; otherwise PostgreSQL's own bit_count, which takes half as long again."""
    import psycopg

    query = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
    found = connection.execute(query).fetchone()
    if found is None and create:
        try:
            with connection.transaction():
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except psycopg.Error:  # not installed on the server, or no right to: it is not needed for exact searches
            return "bit_count"
        found = connection.execute(query).fetchone()
    if found is None or tuple(int(part) for part in found[0].split(".")[:2]) < (0, 7):
        return "bit_count"
    return "<~>"


def _bits_of(code: Packed, bits: int) -> str:
    """A packed code as PostgreSQL writes it: bit 0 first."""
    return "".join(map(str, np.unpackbits(code, count=bits, bitorder="little")))


def _copy_rows(ids: NDArray[np.int64], packed: Packed, bits: int, alone: Iterable[Any] | None) -> bytes:
    """Rows as COPY's binary format has them: the number of fields, then length and value of each."""
    octets = bytes_of(bits)
    row = np.dtype(
        [
            ("fields", ">i2"),
            ("id_length", ">i4"),
            ("id", ">i8"),
            ("code_length", ">i4"),
            ("bits", ">i4"),
            ("code", np.uint8, (octets,)),
            ("alone_length", ">i4"),
            ("alone", np.uint8),
        ]
    )
    rows = np.empty(len(ids), row)
    rows["fields"], rows["id_length"], rows["id"] = 3, 8, ids
    rows["code_length"], rows["bits"], rows["code"] = 4 + octets, bits, _REVERSED[packed]
    rows["alone_length"], rows["alone"] = 1, 0 if alone is None else np.asarray(alone, np.uint8)
    return rows.tobytes()
