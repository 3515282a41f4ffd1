"""PostgresStore: an index in PostgreSQL, in a schema per collection, with one transaction per change."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ParameterError
from dcmh.stores.address import Address
from dcmh.stores.base import COMMON, Filter, Ids, Item, Skipped, item_words, was_uploaded
from dcmh.stores.postgres.connection import BUILD_SECONDS, Postgres, advisory_lock
from dcmh.stores.postgres.index import PostgresIndex
from dcmh.stores.postgres.table import copy_vectors, make_fine_table
from dcmh.stores.server import ServerStore
from dcmh.stores.transaction import Transaction
from dcmh.util.retry import LOAD_PATIENCE
from dcmh.util.text import STOP_WORDS, index_words

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Identifier

TABLES = (
    "CREATE TABLE IF NOT EXISTS {schema}.about (key text PRIMARY KEY, value text NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {schema}.items (id bigint PRIMARY KEY, name text NOT NULL, path text, text text, "
    "labels text NOT NULL, content bytea, size bigint, mtime_ns bigint)",
    "CREATE UNIQUE INDEX IF NOT EXISTS items_by_name ON {schema}.items (md5(name))",  # a name may be longer than an index entry
    "CREATE INDEX IF NOT EXISTS items_by_content ON {schema}.items (content)",
    "CREATE TABLE IF NOT EXISTS {schema}.skipped (name text PRIMARY KEY, reason text NOT NULL, size bigint, mtime_ns bigint)",
    "CREATE TABLE IF NOT EXISTS {schema}.model (name text, part int, data bytea NOT NULL, PRIMARY KEY (name, part))",
)
# Separate, because collections of format 1 lack them.
WORDS = (
    'ALTER TABLE {schema}.items ADD COLUMN IF NOT EXISTS words text[] COLLATE "C"',
    "CREATE INDEX IF NOT EXISTS items_by_word ON {schema}.items USING gin (words)",
)
# Tables of older versions get these columns with the first write; they are null in existing rows.
ADDED = {"uploaded": "boolean", "taken": "timestamp", "extra": "jsonb"}
ADD_COLUMNS = tuple(
    f"ALTER TABLE {{schema}}.items ADD COLUMN IF NOT EXISTS {name} {kind}" for name, kind in ADDED.items()
)
ADD_INDEX = "CREATE INDEX IF NOT EXISTS items_by_taken ON {schema}.items (taken)"
COLUMNS = "id, name, path, text, labels, content, size, mtime_ns"
TYPES = ("int8", "text", "text", "text", "text", "bytea", "int8", "int8")
PAGE = 10_000
PIECE = 8 << 20  # bytes of a model in one row
LONGEST_WORD = 500  # characters: an index entry holds 2,700 bytes


class PostgresStore(ServerStore):
    """The items of a collection in PostgreSQL."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.server = Postgres(address)
        self._indexes: dict[str, PostgresIndex] = {}
        self._has_words = False
        self._added: set[str] = set()  # columns of ADDED that the table of items has

    def close(self) -> None:
        self.server.close()

    # -- the collection --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writer(self) -> Iterator[None]:
        with advisory_lock(self.server, f"dcmh {self.address.collection}", self.place):
            yield

    def create(self, bits: int, modalities: Sequence[str], about: Mapping[str, str]) -> None:
        for modality in modalities:
            if len(f"codes_{modality}_part_1000_32".encode()) > 63:
                raise ParameterError(
                    f"The modality name {modality!r} is too long for PostgreSQL.", hint="Use a shorter one."
                )

        def create(connection: psycopg.Connection[Any]) -> None:
            connection.execute(self._statement("CREATE SCHEMA IF NOT EXISTS {schema}"))
            # Some may exist: a DBA can create them beforehand, partitioned or distributed.
            for command in (*TABLES, *WORDS, *ADD_COLUMNS, ADD_INDEX):
                connection.execute(self._statement(command))
            for modality in modalities if int(about["fine"]) else ():
                make_fine_table(connection, self._fine_table(modality))

        self.server.work(create)
        for modality in modalities:
            PostgresIndex(self.server, bits, name=f"codes_{modality}")
        properties = {**about, "modalities": "\n".join(modalities)}
        self.server.work(lambda connection: self._note(connection, properties))

    def migrate(self) -> None:
        add, index = WORDS
        self._run(add)
        items = self.items()
        while page := [(_words_of(item), item.id) for item in itertools.islice(items, PAGE)]:
            self.server.work(partial(self._set_words, page), patience=LOAD_PATIENCE)
        self._run(index, patience=LOAD_PATIENCE, seconds=BUILD_SECONDS)

    def _set_words(self, page: list[tuple[list[str], int]], connection: psycopg.Connection[Any]) -> None:
        with connection.cursor() as cursor:
            cursor.executemany(self._statement("UPDATE {schema}.items SET words = %s WHERE id = %s"), page)

    def drop(self) -> None:
        self._indexes.clear()
        self.server.work(lambda connection: connection.execute(self._statement("DROP SCHEMA {schema} CASCADE")))

    def sweep(self) -> None:
        """Nothing to do: an aborted transaction leaves nothing behind."""

    def optimise(self) -> dict[str, str]:
        measured = {}
        for modality in self.modalities():
            index = self.index(modality)
            index.optimise()
            if self.address.approximate and len(index):
                index.approximate()
                measured[f"recall {modality}"] = f"{index.recall():.3f}"
        self._run("ANALYZE {schema}.items", seconds=BUILD_SECONDS)
        return measured

    def read_about(self) -> dict[str, str]:
        def read(connection: psycopg.Connection[Any]) -> dict[str, str]:
            row = connection.execute("SELECT to_regclass(%s)", (f"dcmh_{self.address.collection}.about",)).fetchone()
            if not row or row[0] is None:
                return {}
            return dict(connection.execute(self._statement("SELECT key, value FROM {schema}.about")).fetchall())

        return self.server.work(read)

    # -- changing ---------------------------------------------------------------------------------------------------

    def apply(self, changes: Transaction) -> None:
        self._added_columns()
        indexes = {modality: self.index(modality, create=True) for modality in self.modalities()}
        rows = self.code_rows(changes)
        stale = [number for number in changes.items if number < changes.first_new] + sorted(changes.removed)

        def apply(connection: psycopg.Connection[Any]) -> None:
            row = connection.execute(
                self._statement("SELECT value FROM {schema}.about WHERE key = 'generation'")
            ).fetchone()
            if row and row[0] == changes.about["generation"]:
                return  # the connection broke after this was committed
            self._delete(connection, "items", stale)
            self._copy_items(connection, list(changes.items.values()))
            for modality, index in indexes.items():
                coded = rows[modality]
                rewritten = coded.ids[coded.ids < changes.first_new]
                self._delete(connection, f"codes_{modality}", np.union1d(rewritten, coded.deleted).tolist())
                if len(coded.ids):
                    index.table.copy(connection, coded.ids, coded.packed, coded.alone)
                if self.dimensions:
                    self._write_fine(connection, modality, changes)
            self._write_skipped(connection, changes.skipped)
            self._note(connection, changes.about)

        self.server.work(apply, patience=LOAD_PATIENCE)

    def _copy_items(self, connection: psycopg.Connection[Any], items: list[Item]) -> None:
        from psycopg.types.json import Jsonb

        if not items:
            return
        for command in (*ADD_COLUMNS, ADD_INDEX) if len(self._added) < len(ADDED) else ():
            connection.execute(self._statement(command))
        columns = ", ".join([COLUMNS, "words", *ADDED])
        statement = self._statement(f"COPY {{schema}}.items ({columns}) FROM STDIN (FORMAT binary)")
        with connection.cursor().copy(statement) as copy:
            copy.set_types((*TYPES, "text[]", "bool", "timestamp", "jsonb"))
            for item in items:
                labels = json.dumps(item.labels, ensure_ascii=False)
                row = (item.id, item.name, item.path, item.text, labels, item.content, item.size, item.mtime_ns)
                copy.write_row((*row, _words_of(item), item.uploaded, item.taken, Jsonb(dict(item.extra))))

    def _write_fine(self, connection: psycopg.Connection[Any], modality: str, changes: Transaction) -> None:
        table, rows = f"fine_{modality}", changes.fine_rows(modality)
        self._delete(
            connection, table, [number for number in rows.vectors if number < changes.first_new] + rows.deleted
        )
        if rows.vectors:
            joined = np.frombuffer(b"".join(rows.vectors.values()), np.int8).reshape(len(rows.vectors), -1)
            ids = np.fromiter(rows.vectors, np.int64, len(rows.vectors))
            copy_vectors(connection, self._fine_table(modality), ids, joined)

    def _delete(self, connection: psycopg.Connection[Any], table: str, ids: list[int]) -> None:
        if ids:
            connection.execute(self._statement("DELETE FROM {schema}.{table} WHERE id = ANY(%s)", table), (ids,))

    def _write_skipped(self, connection: psycopg.Connection[Any], skipped: Mapping[str, Skipped | None]) -> None:
        if not skipped:
            return
        connection.execute(self._statement("DELETE FROM {schema}.skipped WHERE name = ANY(%s)"), (list(skipped),))
        rows = [(name, why.reason, why.size, why.mtime_ns) for name, why in skipped.items() if why is not None]
        with connection.cursor() as cursor:
            cursor.executemany(self._statement("INSERT INTO {schema}.skipped VALUES (%s, %s, %s, %s)"), rows)

    def _note(self, connection: psycopg.Connection[Any], about: Mapping[str, str]) -> None:
        statement = self._statement(
            "INSERT INTO {schema}.about VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        )
        with connection.cursor() as cursor:
            cursor.executemany(statement, list(about.items()))

    def upload_model(self, files: Mapping[str, bytes]) -> None:
        def upload(connection: psycopg.Connection[Any]) -> None:
            connection.execute(self._statement("DELETE FROM {schema}.model"))
            for name, data in files.items():
                for part, start in enumerate(range(0, max(1, len(data)), PIECE)):
                    piece = data[start : start + PIECE]
                    connection.execute(
                        self._statement("INSERT INTO {schema}.model VALUES (%s, %s, %s)"), (name, part, piece)
                    )

        self.server.work(upload, patience=LOAD_PATIENCE)

    def download_model(self) -> dict[str, bytes] | None:
        files: dict[str, bytes] = {}
        for name, data in self._run("SELECT name, data FROM {schema}.model ORDER BY name, part"):
            files[name] = files.get(name, b"") + bytes(data)
        return files or None

    # -- reading ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._run("SELECT count(*) FROM {schema}.items")[0][0])

    def items(self) -> Iterator[Item]:
        last = -1
        statement = f"SELECT {self._columns} FROM {{schema}}.items WHERE id > %s ORDER BY id LIMIT {PAGE}"
        while rows := self._run(statement, (last,)):
            yield from map(self._item, rows)
            last = rows[-1][0]

    def get(self, ids: Iterable[int]) -> dict[int, Item]:
        wanted = [int(number) for number in ids]
        if not wanted:
            return {}
        rows = self._run(f"SELECT {self._columns} FROM {{schema}}.items WHERE id = ANY(%s)", (wanted,))
        return {row[0]: self._item(row) for row in rows}

    def found_by(self, column: str, values: Sequence[Any]) -> list[Item]:
        if not values:
            return []
        test = "md5(name) IN (SELECT md5(v) FROM unnest(%s::text[]) v)" if column == "name" else "content = ANY(%s)"
        rows = self._run(f"SELECT {self._columns} FROM {{schema}}.items WHERE {test}", (list(values),))
        return [self._item(row) for row in rows]

    def uploads(self) -> list[Item]:
        rows = self._run(f"SELECT {self._columns} FROM {{schema}}.items WHERE name LIKE 'upload:%%'")
        return [item for item in map(self._item, rows) if item.uploaded]

    def codes_in(self, modality: str, ids: Sequence[int]) -> dict[int, bytes]:
        return self.index(modality).codes_by_id(ids)

    def vectors(self, modality: str) -> tuple[NDArray[np.int64], bytes]:
        """Joined by the server: row by row takes several times longer."""
        ((ids, joined),) = self._run(
            "SELECT string_agg(int8send(id), ''::bytea ORDER BY id), string_agg(vector, ''::bytea ORDER BY id) "
            "FROM {schema}.{table}",
            table=f"fine_{modality}",
        )
        return np.frombuffer(ids or b"", ">i8").astype(np.int64), joined or b""

    def vectors_of(self, modality: str, ids: Sequence[int]) -> dict[int, bytes]:
        statement = "SELECT id, vector FROM {schema}.{table} WHERE id = ANY(%s)"
        return dict(self._run(statement, (list(ids),), table=f"fine_{modality}"))

    def vector_count(self, modality: str) -> int:
        return int(self._run("SELECT count(*) FROM {schema}.{table}", table=f"fine_{modality}")[0][0])

    def word_counts(self, words: Iterable[str]) -> dict[str, int]:
        """Each word on its own: the planner knows common words, and scans for them until there are enough."""
        wanted = list(words)
        if not wanted or not self.has_words:
            return {}
        count = "(SELECT count(*) FROM (SELECT FROM {schema}.items WHERE words @> %s::text[] LIMIT %s) rows)"
        values = [value for word in wanted for value in ([_entry(word)], COMMON)]
        ((counts,),) = self._run(f"SELECT ARRAY[{', '.join([count] * len(wanted))}]", values)
        return dict(zip(wanted, counts, strict=True))

    def with_word(self, word: str, among: Ids | Sequence[int] | None = None) -> Ids:
        if not self.has_words:
            return np.empty(0, np.int64)
        test, values = ("", []) if among is None else (" AND id = ANY(%s)", [[int(number) for number in among]])
        statement = f"SELECT id FROM {{schema}}.items WHERE words @> %s::text[]{test} ORDER BY id"
        rows = self._run(statement, ([_entry(word)], *values))
        return np.fromiter((row[0] for row in rows), np.int64, len(rows))

    def matching(self, filter: Filter) -> NDArray[np.int64]:  # noqa: A002 - the word for it
        tests, values = _conditions(filter)
        if not self._added_columns().issuperset(ADDED):
            tests = ["FALSE"] if any("taken" in test or "extra" in test for test in tests) else tests
            values = [] if tests == ["FALSE"] else values
        ids = "SELECT string_agg(int8send(id), ''::bytea ORDER BY id) FROM {schema}.items WHERE "
        ((joined,),) = self._run(ids + " AND ".join(tests or ["TRUE"]), values)
        return np.frombuffer(joined or b"", ">i8").astype(np.int64)

    @property
    def has_words(self) -> bool:
        """A collection of format 1 has no words until its first change."""
        self._has_words = self._has_words or int(self.about("format") or 0) >= 2
        return self._has_words

    def skipped(self) -> dict[str, Skipped]:
        rows = self._run("SELECT name, reason, size, mtime_ns FROM {schema}.skipped ORDER BY name")
        return {name: Skipped(reason, size, mtime_ns) for name, reason, size, mtime_ns in rows}

    # -- inside -----------------------------------------------------------------------------------------------------

    def index(self, modality: str, *, create: bool = False) -> PostgresIndex:
        if modality not in self._indexes:
            index = PostgresIndex(self.server, self.bits, name=f"codes_{modality}", create=create)
            self._indexes[modality] = index
        return self._indexes[modality]

    @property
    def _columns(self) -> str:
        known = self._added_columns()
        return ", ".join([COLUMNS, *(name if name in known else f"NULL::{kind}" for name, kind in ADDED.items())])

    def _added_columns(self) -> set[str]:
        """The columns of ADDED that the table of items has."""
        if len(self._added) < len(ADDED):
            query = "SELECT attname FROM pg_attribute WHERE attrelid = '{schema}.items'::regclass AND attname = ANY(%s)"
            self._added = {row[0] for row in self._run(query, (list(ADDED),))}
        return self._added

    def _item(self, row: Sequence[Any]) -> Item:
        number, name, path, text, labels, content, size, mtime_ns, uploaded, taken, extra = row
        content = None if content is None else bytes(content)
        if uploaded is None:
            uploaded = was_uploaded(self.folder, name, path, text)
        known = (tuple(json.loads(labels)), content, size, mtime_ns, number, uploaded, taken)
        return Item(name, path, text, *known, extra or {})

    def _fine_table(self, modality: str) -> Identifier:
        from psycopg.sql import Identifier

        return Identifier(f"dcmh_{self.address.collection}", f"fine_{modality}")

    def _statement(self, text: str, table: str | None = None) -> Any:
        from psycopg.sql import SQL, Identifier

        parts = {"schema": Identifier(f"dcmh_{self.address.collection}")}
        if table is not None:
            parts["table"] = Identifier(table)
        return SQL(text).format(**parts)

    def _run(self, text: str, values: Sequence[Any] = (), *, table: str | None = None, **options: Any) -> list[Any]:
        statement = self._statement(text, table)

        def run(connection: psycopg.Connection[Any]) -> list[Any]:
            cursor = connection.execute(statement, values, binary=True)
            return cursor.fetchall() if cursor.description else []

        return self.server.work(run, **options)


def _conditions(filter: Filter) -> tuple[list[str], list[Any]]:  # noqa: A002 - the word for it
    """What a filter asks for, in SQL, and its values."""
    tests: list[str] = []
    values: list[Any] = []
    if filter.labels:
        # The words of labels are indexed, beside a text without its stop words, so that few rows are read.
        each = "(words @> %s::text[] AND labels::jsonb ? %s)"
        tests.append(f"({' OR '.join([each] * len(filter.labels))})")
        for label in filter.labels:
            kept = [word for word in index_words(label) if word not in STOP_WORDS and (len(word) > 1 or word > "z")]
            values += [[_entry(word) for word in kept], label]
    if filter.prefix is not None:
        tests.append("starts_with(path, %s)")
        values.append(filter.prefix)
    for test, moment in zip(("taken >= %s", "taken < %s"), filter.taken, strict=True):
        if moment is not None:
            tests.append(test)
            values.append(moment)
    for condition in filter.conditions:
        text = isinstance(condition.value, str)
        kind = f"jsonb_typeof(extra -> %s) = '{'string' if text else 'number'}'"
        cell = '(extra ->> %s) COLLATE "C"' if text else "(extra ->> %s)::numeric"
        other = "ELSE extra ? %s" if condition.operator == "!=" else ""
        operator = "<>" if condition.operator == "!=" else condition.operator
        value = "%s::text" if text else "%s::numeric"
        tests.append(f"CASE WHEN {kind} THEN {cell} {operator} {value} {other} END")
        values += [condition.column, condition.column, condition.value if text else repr(condition.value)]
        values += [condition.column] if other else []
    return tests, values


def _words_of(item: Item) -> list[str]:
    """The words of an item, as the table keeps them."""
    return [_entry(word) for word in item_words(item)]


def _entry(word: str) -> str:
    """A word, or its hash if it is too long for an index."""
    return word if len(word) <= LONGEST_WORD else hashlib.blake2b(word.encode()).hexdigest()
