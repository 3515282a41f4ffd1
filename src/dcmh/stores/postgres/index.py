"""PostgresIndex: the same searches over codes in a PostgreSQL table, `bit(n)` under an integer primary key.

A small radius uses indexes on substrings of the code (`dcmh.stores.postgres.lookups`); everything else is a parallel
scan. Both are exact. HNSW (pgvector) is for approximate searches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcmh.codes import check_bits
from dcmh.errors import EngineError
from dcmh.index.protocol import Results, as_ids, refuse_known, refuse_missing
from dcmh.stores.address import Address, parse
from dcmh.stores.codes import CodeIndex, Found, Method, Packed, new_items, results_of
from dcmh.stores.postgres import lookups
from dcmh.stores.postgres.connection import BUILD_SECONDS, Postgres
from dcmh.stores.postgres.table import Limit, Table, copy_vectors, limited, make_fine_table, packed_from
from dcmh.util.retry import LOAD_PATIENCE

if TYPE_CHECKING:
    import psycopg

LOADED_AT_ONCE = 100_000  # rows in a transaction of a bulk load
EFFORT = 400  # of an HNSW search


class PostgresIndex(CodeIndex):
    """Codes of `bits` bits in a table of a collection. Threads and processes may share the table.

    Parameters
    ----------
    where
        An address, such as postgresql://user@host/database?collection=photos, or a `Postgres` that is shared.
    name
        The table. It is created if it does not exist, unless `create` is False.
    """

    def __init__(self, where: Postgres | Address | str, bits: int, *, name: str = "codes", create: bool = True) -> None:
        self.server = where if isinstance(where, Postgres) else Postgres(parse(where))
        self.bits = check_bits(bits)
        self.name = name
        self.table = Table(self.server, self.bits, name)
        try:
            self.server.work(lambda connection: self._open(connection, create))
        except BaseException:
            if self.server is not where:
                self.server.close()
            raise

    def __len__(self) -> int:
        return int(self.table.rows("SELECT count(*) FROM {table}")[0][0])

    def __repr__(self) -> str:
        return f"PostgresIndex({str(self.server.address)!r}, bits={self.bits}, name={self.name!r})"

    @property
    def ids(self) -> NDArray[np.int64]:
        """All ids, ascending."""
        return np.array([row[0] for row in self.table.rows("SELECT id FROM {table} ORDER BY id")], np.int64)

    def codes_by_id(self, ids: ArrayLike) -> dict[int, bytes]:
        """The packed codes of some items by id; unknown ids are left out."""
        wanted = as_ids(ids).tolist()
        rows = self.table.rows("SELECT id, bit_send(code) FROM {table} WHERE id = ANY(%s)", (wanted,))
        packed = packed_from([code for _, code in rows], self.bits)
        return {row[0]: code.tobytes() for row, code in zip(rows, packed, strict=True)}

    # -- changing ---------------------------------------------------------------------------------------------------

    def add(self, ids: ArrayLike, codes: Packed, *, alone: NDArray[np.bool_] | None = None) -> None:
        """Add items under new ids. All of them, or none."""
        new, packed = new_items(ids, codes, self.bits)
        attempts = itertools.count()

        def add(connection: psycopg.Connection[Any]) -> None:
            known = self.table.known(connection, new)
            if next(attempts) and len(known) == len(new):
                return  # the connection broke after it was committed
            refuse_known(known)
            self.table.copy(connection, new, packed, alone)

        if len(new):
            self.server.work(add, patience=LOAD_PATIENCE)

    def load(
        self,
        ids: ArrayLike,
        codes: Packed,
        *,
        fine: NDArray[np.int8] | None = None,
        alone: NDArray[np.bool_] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Add the items whose id is new, any number of them; returns how many were added.

        `fine` are their fine vectors, shape (n, dimensions), for the table of fine vectors beside that of codes. Can be
        interrupted and called again: what was committed stays. Call `optimise` at the end.
        """
        new, packed = new_items(ids, codes, self.bits)
        if fine is not None:
            self.server.work(lambda connection: make_fine_table(connection, self.table.fine))
        if len(new) > max(lookups.SMALL_TABLE, self.estimate // 4):
            self._drop_lookups()  # updating them row by row takes ten times longer than building them again
        added = 0
        for start in range(0, len(new), LOADED_AT_ONCE):
            rows = slice(start, start + LOADED_AT_ONCE)
            vectors = None if fine is None else fine[rows]
            task = self._loading(new[rows], packed[rows], None if alone is None else alone[rows], vectors)
            added += self.server.work(task, patience=LOAD_PATIENCE)
            if progress:
                progress(min(rows.stop, len(new)), len(new))
        return added

    def remove(self, ids: ArrayLike, *, missing_ok: bool = False) -> int:
        """Remove items and return how many there were. If an id is unknown none is removed, unless missing_ok."""
        wanted = np.unique(as_ids(ids))
        removed: set[int] = set()

        def remove(connection: psycopg.Connection[Any]) -> int:
            query = self.table.statement("DELETE FROM {table} WHERE id = ANY(%s) RETURNING id")
            removed.update(row[0] for row in connection.execute(query, (wanted.tolist(),)))
            if not missing_ok:
                refuse_missing(np.array([item for item in wanted.tolist() if item not in removed], np.int64))
            return len(removed)

        return self.server.work(remove) if len(wanted) else 0

    def optimise(self) -> None:
        """Build the indexes for lookups, and statistics. For after a bulk load; harmless at any time."""
        plan = lookups.plan_for(self.bits, len(self))

        def build(connection: psycopg.Connection[Any]) -> None:
            if self.has_lookups and self.plan != plan:
                lookups.drop(connection, self.table, self.plan)
            connection.execute("SET LOCAL maintenance_work_mem = '256MB'")
            lookups.build(connection, self.table, plan)
            connection.execute(self.table.statement("ANALYZE {table}"))

        self.server.work(build, patience=LOAD_PATIENCE, seconds=BUILD_SECONDS)
        self.server.work(self._read_indexes)

    def approximate(self, *, m: int = 16, ef_construction: int = 64) -> None:
        """Build an HNSW index for `search(..., method="approximate")`. Takes minutes for a million items."""
        from psycopg.sql import SQL, Identifier

        if self.table.operator != "<~>":
            raise EngineError(
                f"{self.server.address} has no pgvector of at least 0.7, which HNSW needs.", hint="Install it there."
            )

        def build(connection: psycopg.Connection[Any]) -> None:
            connection.execute("SET LOCAL maintenance_work_mem = '1GB'")
            name = Identifier(f"{self.name}_hnsw")
            command = SQL(
                "CREATE INDEX IF NOT EXISTS {} ON {} USING hnsw (code bit_hamming_ops) WITH (m = {}, ef_construction = {})"
            )
            connection.execute(command.format(name, self.table.identifier, int(m), int(ef_construction)))

        self.server.work(build, patience=LOAD_PATIENCE, seconds=BUILD_SECONDS)
        self.server.work(self._read_indexes)

    # -- searching --------------------------------------------------------------------------------------------------

    def _search(self, queries: Packed, k: int, allowed: Any, method: Method) -> Results:
        limit = limited(allowed)
        if method == "approximate" and self.has_hnsw and allowed is None:
            return results_of([self._graph(query, k) for query in queries])
        return results_of([self._nearest(query, k, limit) for query in queries])

    def _within(self, queries: Packed, radius: int, allowed: Any) -> Results:
        limit = limited(allowed)
        return results_of([self._near(query, radius, limit) for query in queries])

    def _sample(self, size: int) -> list[int]:
        return [row[0] for row in self.table.rows("SELECT id FROM {table} ORDER BY md5(id::text) LIMIT %s", (size,))]

    def _nearest(self, query: Packed, k: int, limit: Limit) -> Found:
        """Search within a small radius first: if it has k items, they are the nearest."""
        parts = len(self.plan.starts)
        for radius in (parts - 1, 2 * parts - 1):
            if self._pays(radius) and len(found := self._near(query, radius, limit, k)) == k:
                return found
        return self._found("TRUE", [], query, limit, k)

    def _near(self, query: Packed, radius: int, limit: Limit, k: int | None = None) -> Found:
        from psycopg.sql import SQL

        close = SQL("({} <= {})").format(self.table.distance(query), radius)
        if not self._pays(radius):
            return self._found(close, [], query, limit, k)
        test, values = lookups.near(self.plan, query, self.bits, radius)
        return self._found(SQL("({} AND {})").format(test, close), values, query, limit, k)

    def _pays(self, radius: int) -> bool:
        return self.has_lookups and lookups.pays(self.plan, self.estimate, radius)

    def _graph(self, query: Packed, k: int) -> Found:
        effort = max(k, self.server.address.effort or EFFORT)

        def ask(connection: psycopg.Connection[Any]) -> Found:
            connection.execute(f"SET LOCAL hnsw.ef_search = {min(effort, 1000)}")
            statement = self.table.statement(
                "SELECT id, {distance}::int FROM {table} ORDER BY {distance} LIMIT %s", query
            )
            rows = connection.execute(statement, (k,)).fetchall()
            return sorted(rows, key=lambda row: (row[1], row[0]))

        return self.server.work(ask)

    def _found(self, test: Any, values: list[Any], query: Packed, limit: Limit, k: int | None) -> Found:
        from psycopg.sql import SQL

        statement = self.table.statement(
            "SELECT id, {distance}::int AS distance FROM {table} WHERE {test} AND {limit} ORDER BY distance, id LIMIT %s",
            query,
            test=SQL(test) if isinstance(test, str) else test,
            limit=limit[0],
        )
        return self.server.rows(statement, (*values, *limit[1], k))

    # -- inside -----------------------------------------------------------------------------------------------------

    def _open(self, connection: psycopg.Connection[Any], create: bool) -> None:
        self.table.open(connection, create=create)
        self._read_indexes(connection)

    def _read_indexes(self, connection: psycopg.Connection[Any]) -> None:
        """Read which indexes there are, and the approximate number of rows."""
        names = self.table.indexes(connection)
        plan = lookups.plan_of(self.table, names)
        self.plan, self.has_lookups = plan or lookups.plan_for(self.bits, 0), plan is not None
        self.has_hnsw = f"{self.name}_hnsw" in names
        self.estimate = self.table.estimate(connection)

    def _loading(
        self,
        ids: NDArray[np.int64],
        packed: Packed,
        alone: NDArray[np.bool_] | None,
        vectors: NDArray[np.int8] | None,
    ) -> Callable[[Any], int]:
        def load(connection: psycopg.Connection[Any]) -> int:
            fresh = ~np.isin(ids, self.table.known(connection, ids))
            self.table.copy(connection, ids[fresh], packed[fresh], None if alone is None else alone[fresh])
            if vectors is not None:
                copy_vectors(connection, self.table.fine, ids[fresh], vectors[fresh])
            return int(np.count_nonzero(fresh))

        return load

    def _drop_lookups(self) -> None:
        if self.has_lookups:
            self.server.work(lambda connection: lookups.drop(connection, self.table, self.plan), patience=LOAD_PATIENCE)
            self.has_lookups = False
