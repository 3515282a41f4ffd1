"""The catalogue on PostgreSQL: a schema for each collection, and one transaction for each change."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dcmh.catalogue import Item, Skipped
from dcmh.engines.address import Address
from dcmh.engines.patience import LOADING
from dcmh.engines.postgres import BUILD_SECONDS, Postgres, held
from dcmh.errors import ParameterError
from dcmh.index.postgres import PostgresIndex
from dcmh.remote.catalogue import Changes, RemoteCatalogue

if TYPE_CHECKING:
    import psycopg

TABLES = (
    "CREATE TABLE IF NOT EXISTS {schema}.about (key text PRIMARY KEY, value text NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {schema}.items (id bigint PRIMARY KEY, name text NOT NULL, path text, text text, "
    "labels text NOT NULL, content bytea, size bigint, mtime_ns bigint)",
    "CREATE UNIQUE INDEX IF NOT EXISTS items_by_name ON {schema}.items (md5(name))",  # a name may be longer than an index entry
    "CREATE INDEX IF NOT EXISTS items_by_content ON {schema}.items (content)",
    "CREATE TABLE IF NOT EXISTS {schema}.skipped (name text PRIMARY KEY, reason text NOT NULL, size bigint, mtime_ns bigint)",
    "CREATE TABLE IF NOT EXISTS {schema}.model (name text, part int, data bytea NOT NULL, PRIMARY KEY (name, part))",
)
COLUMNS = "id, name, path, text, labels, content, size, mtime_ns"
TYPES = ("int8", "text", "text", "text", "text", "bytea", "int8", "int8")
PAGE = 10_000
PIECE = 8 << 20  # bytes of a model in one row


class PostgresCatalogue(RemoteCatalogue):
    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.server = Postgres(address)
        self._indexes: dict[str, PostgresIndex] = {}

    def close(self) -> None:
        self.server.close()

    # -- the whole --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writer(self) -> Iterator[None]:
        with held(self.server, f"dcmh {self.address.collection}", self.place):
            yield

    def create(self, bits: int, modalities: Sequence[str], about: Mapping[str, str]) -> None:
        for modality in modalities:
            if len(f"codes_{modality}_part_1000_32".encode()) > 63:
                raise ParameterError(
                    f"PostgreSQL has no room for the name {modality!r} of a modality. Use a shorter one."
                )

        def create(connection: psycopg.Connection[Any]) -> None:
            connection.execute(self._said("CREATE SCHEMA IF NOT EXISTS {schema}"))
            for table in TABLES:  # a DBA may have made some already, in parts or spread over machines
                connection.execute(self._said(table))

        self.server.work(create)
        for modality in modalities:
            PostgresIndex(self.server, bits, name=f"codes_{modality}")
        said = {**about, "modalities": "\n".join(modalities)}
        self.server.work(lambda connection: self._note(connection, said))

    def drop(self) -> None:
        self._indexes.clear()
        self.server.work(lambda connection: connection.execute(self._said("DROP SCHEMA {schema} CASCADE")))

    def sweep(self) -> None:
        """Nothing to do: a transaction leaves nothing behind."""

    def settle(self) -> dict[str, str]:
        measured = {}
        for modality in self.modalities():
            index = self._index(modality)
            index.optimise()
            if self.address.approximate and len(index):
                index.approximate()
                measured[f"recall {modality}"] = f"{index.recall():.3f}"
        self._run("ANALYZE {schema}.items", seconds=BUILD_SECONDS)
        return measured

    def read_about(self) -> dict[str, str]:
        def read(connection: psycopg.Connection[Any]) -> dict[str, str]:
            there = connection.execute("SELECT to_regclass(%s)", (f"dcmh_{self.address.collection}.about",)).fetchone()
            if not there or there[0] is None:
                return {}
            return dict(connection.execute(self._said("SELECT key, value FROM {schema}.about")).fetchall())

        return self.server.work(read)

    # -- changing ---------------------------------------------------------------------------------------------------

    def apply(self, changes: Changes) -> None:
        modalities = self.all_modalities(changes)
        indexes = {modality: self._index(modality, create=True) for modality in modalities}
        rows = self.rows_of(changes, modalities)
        stale = [number for number in changes.items if number < self._known_before] + sorted(changes.removed)

        def apply(connection: psycopg.Connection[Any]) -> None:
            found = connection.execute(
                self._said("SELECT value FROM {schema}.about WHERE key = 'generation'")
            ).fetchone()
            if found and found[0] == changes.about["generation"]:
                return  # the connection broke after this was committed
            self._delete(connection, "items", stale)
            self._copy_items(connection, list(changes.items.values()))
            for modality, index in indexes.items():
                part = rows[modality]
                written = part.ids[part.ids < self._known_before]
                self._delete(connection, f"codes_{modality}", np.union1d(written, part.gone).tolist())
                if len(part.ids):
                    index.copy(connection, part.ids, part.packed, part.alone)
            self._write_skipped(connection, changes.skipped)
            self._note(connection, changes.about)

        self.server.work(apply, patience=LOADING)

    def _copy_items(self, connection: psycopg.Connection[Any], items: list[Item]) -> None:
        if not items:
            return
        statement = self._said(f"COPY {{schema}}.items ({COLUMNS}) FROM STDIN (FORMAT binary)")
        with connection.cursor().copy(statement) as copy:
            copy.set_types(TYPES)
            for item in items:
                labels = json.dumps(item.labels, ensure_ascii=False)
                told = (item.id, item.name, item.path, item.text, labels, item.content, item.size, item.mtime_ns)
                copy.write_row(told)

    def _delete(self, connection: psycopg.Connection[Any], table: str, ids: list[int]) -> None:
        if ids:
            connection.execute(self._said("DELETE FROM {schema}.{table} WHERE id = ANY(%s)", table), (ids,))

    def _write_skipped(self, connection: psycopg.Connection[Any], skipped: Mapping[str, Skipped | None]) -> None:
        if not skipped:
            return
        connection.execute(self._said("DELETE FROM {schema}.skipped WHERE name = ANY(%s)"), (list(skipped),))
        told = [(name, why.reason, why.size, why.mtime_ns) for name, why in skipped.items() if why is not None]
        with connection.cursor() as cursor:
            cursor.executemany(self._said("INSERT INTO {schema}.skipped VALUES (%s, %s, %s, %s)"), told)

    def _note(self, connection: psycopg.Connection[Any], about: Mapping[str, str]) -> None:
        statement = self._said(
            "INSERT INTO {schema}.about VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        )
        with connection.cursor() as cursor:
            cursor.executemany(statement, list(about.items()))

    def keep_model(self, files: Mapping[str, bytes]) -> None:
        def keep(connection: psycopg.Connection[Any]) -> None:
            connection.execute(self._said("DELETE FROM {schema}.model"))
            for name, data in files.items():
                for part, start in enumerate(range(0, max(1, len(data)), PIECE)):
                    piece = data[start : start + PIECE]
                    connection.execute(
                        self._said("INSERT INTO {schema}.model VALUES (%s, %s, %s)"), (name, part, piece)
                    )

        self.server.work(keep, patience=LOADING)

    def kept_model(self) -> dict[str, bytes] | None:
        files: dict[str, bytes] = {}
        for name, data in self._run("SELECT name, data FROM {schema}.model ORDER BY name, part"):
            files[name] = files.get(name, b"") + bytes(data)
        return files or None

    # -- reading ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._run("SELECT count(*) FROM {schema}.items")[0][0])

    def items(self) -> Iterator[Item]:
        last = -1
        statement = f"SELECT {COLUMNS} FROM {{schema}}.items WHERE id > %s ORDER BY id LIMIT {PAGE}"
        while rows := self._run(statement, (last,)):
            yield from map(_item, rows)
            last = rows[-1][0]

    def get(self, ids: Iterable[int]) -> dict[int, Item]:
        wanted = [int(number) for number in ids]
        rows = self._run(f"SELECT {COLUMNS} FROM {{schema}}.items WHERE id = ANY(%s)", (wanted,)) if wanted else []
        return {row[0]: _item(row) for row in rows}

    def found_by(self, column: str, values: Sequence[Any]) -> list[Item]:
        if not values:
            return []
        test = "md5(name) IN (SELECT md5(v) FROM unnest(%s::text[]) v)" if column == "name" else "content = ANY(%s)"
        return [
            _item(row) for row in self._run(f"SELECT {COLUMNS} FROM {{schema}}.items WHERE {test}", (list(values),))
        ]

    def codes_in(self, modality: str, ids: Sequence[int]) -> dict[int, bytes]:
        return self._index(modality).codes_there(ids)

    def skipped(self) -> dict[str, Skipped]:
        rows = self._run("SELECT name, reason, size, mtime_ns FROM {schema}.skipped ORDER BY name")
        return {name: Skipped(reason, size, mtime_ns) for name, reason, size, mtime_ns in rows}

    def index(self, modality: str) -> PostgresIndex:
        return self._index(modality)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _index(self, modality: str, *, create: bool = False) -> PostgresIndex:
        if modality not in self._indexes:
            made = PostgresIndex(self.server, self.bits, name=f"codes_{modality}", create=create)
            self._indexes[modality] = made
        return self._indexes[modality]

    def _said(self, text: str, table: str | None = None) -> Any:
        from psycopg.sql import SQL, Identifier

        parts = {"schema": Identifier(f"dcmh_{self.address.collection}")}
        if table is not None:
            parts["table"] = Identifier(table)
        return SQL(text).format(**parts)

    def _run(self, text: str, values: Sequence[Any] = (), **options: Any) -> list[Any]:
        statement = self._said(text)

        def run(connection: psycopg.Connection[Any]) -> list[Any]:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

        return self.server.work(run, **options)


def _item(row: Sequence[Any]) -> Item:
    number, name, path, text, labels, content, size, mtime_ns = row
    content = None if content is None else bytes(content)
    return Item(name, path, text, tuple(json.loads(labels)), content, size, mtime_ns, number)
