"""A table of codes in PostgreSQL: creating and reading it, and writing rows by COPY."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dcmh.codes import bytes_of
from dcmh.errors import ModelMismatch
from dcmh.stores.codes import ALONE, Packed, chosen_ids
from dcmh.stores.postgres.connection import Postgres

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composable, Composed, Identifier

Limit = tuple["Composable", list[Any]]

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_REVERSED = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)[:, ::-1], axis=1).reshape(-1)


class Table:
    """A table of codes of `bits` bits in the schema of a collection. Call `open` first."""

    def __init__(self, server: Postgres, bits: int, name: str) -> None:
        from psycopg.sql import Identifier

        self.server = server
        self.bits = bits
        self.name = name
        self._schema = f"dcmh_{server.address.collection}"
        self.identifier = Identifier(self._schema, name)
        self.operator = "bit_count"  # of distances

    def open(self, connection: psycopg.Connection[Any], *, create: bool) -> None:
        """Create the table if it does not exist and `create`; refuse one of other codes."""
        from psycopg.sql import Identifier

        self.operator = _distance_operator(connection, create=create)
        if create:
            make_table(connection, Identifier(self._schema), self.identifier, self.bits)
        kind = connection.execute(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'code'",
            (self.identifier.as_string(connection),),
        ).fetchone()
        if kind is None or kind[0] != f"bit({self.bits})":
            raise ModelMismatch(
                f"{self.server.address} holds codes of type {kind and kind[0]}, not of {self.bits} bits.",
                hint="Use the model it was made with, or another collection.",
            )

    def statement(self, text: str, query: Packed | None = None, **parts: Composable) -> Composed:
        """An SQL statement, with {table} and the {distance} from a query filled in."""
        from psycopg.sql import SQL

        if query is not None:
            parts["distance"] = self.distance(query)
        return SQL(text).format(table=self.identifier, **parts)

    def rows(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        """The rows that a query returns."""
        return self.server.rows(self.statement(text), values)

    def distance(self, query: Packed) -> Composable:
        """The distance of a row's code from the query."""
        from psycopg.sql import SQL, Literal

        code = Literal(bits_of(query, self.bits))
        if self.operator == "<~>":
            return SQL("(code <~> {}::bit({}))").format(code, self.bits)
        return SQL("bit_count(code # {}::bit({}))").format(code, self.bits)

    def beside(self, name: str) -> Identifier:
        """The identifier of this name in the same schema."""
        from psycopg.sql import Identifier

        return Identifier(self._schema, name)

    @property
    def fine(self) -> Identifier:
        """The table of fine vectors that belongs to this one: fine_image to codes_image."""
        return self.beside(self.name.replace("codes", "fine", 1))

    def indexes(self, connection: psycopg.Connection[Any]) -> set[str]:
        """The names of the table's indexes that can be used."""
        rows = connection.execute(
            "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
            "WHERE i.indrelid = %s::regclass AND i.indisvalid",
            (self.identifier.as_string(connection),),
        ).fetchall()
        return {row[0] for row in rows}

    def estimate(self, connection: psycopg.Connection[Any]) -> int:
        """The approximate number of rows."""
        name = self.identifier.as_string(connection)
        row = connection.execute("SELECT reltuples FROM pg_class WHERE oid = %s::regclass", (name,)).fetchone()
        return max(0, int(row[0])) if row else 0

    def known(self, connection: psycopg.Connection[Any], ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of the ids exist."""
        between = self.statement("SELECT EXISTS (SELECT 1 FROM {table} WHERE id BETWEEN %s AND %s)")
        exists = connection.execute(between, (int(ids.min()), int(ids.max()))).fetchone()
        if not exists or not exists[0]:
            return np.empty(0, np.int64)
        rows = connection.execute(
            self.statement("SELECT id FROM {table} WHERE id = ANY(%s)"), (ids.tolist(),)
        ).fetchall()
        return np.array([row[0] for row in rows], np.int64)

    def copy(
        self,
        connection: psycopg.Connection[Any],
        ids: NDArray[np.int64],
        packed: Packed,
        alone: NDArray[np.bool_] | None = None,
    ) -> None:
        """Write rows by binary COPY, inside the caller's transaction."""
        statement = self.statement("COPY {table} (id, code, alone) FROM STDIN (FORMAT binary)")
        _copy(connection, statement, _code_rows(ids, packed, self.bits, alone))


def make_fine_table(connection: psycopg.Connection[Any], table: Identifier) -> None:
    """Create a table of fine vectors if it does not exist.

    They are not in the table of codes, which is scanned and would be three times as large; and a text may have a fine vector
    but no code.
    """
    from psycopg.sql import SQL

    connection.execute(
        SQL("CREATE TABLE IF NOT EXISTS {} (id bigint PRIMARY KEY, vector bytea NOT NULL)").format(table)
    )


def copy_vectors(
    connection: psycopg.Connection[Any], table: Identifier, ids: NDArray[np.int64], vectors: NDArray[np.int8]
) -> None:
    """Write fine vectors (n, dimensions) by binary COPY, inside the caller's transaction."""
    from psycopg.sql import SQL

    dimensions = vectors.shape[1]
    row = [
        ("fields", ">i2"),
        ("id_length", ">i4"),
        ("id", ">i8"),
        ("length", ">i4"),
        ("vector", np.int8, (dimensions,)),
    ]
    rows = np.empty(len(ids), np.dtype(row))
    rows["fields"], rows["id_length"], rows["id"] = 2, 8, ids
    rows["length"], rows["vector"] = dimensions, vectors
    _copy(connection, SQL("COPY {} (id, vector) FROM STDIN (FORMAT binary)").format(table), rows)


def make_table(connection: psycopg.Connection[Any], schema: Composable, table: Composable, bits: int) -> None:
    """Create the table, and its schema, if they do not exist."""
    from psycopg.sql import SQL

    row = connection.execute("SELECT to_regclass(%s)", (table.as_string(connection),)).fetchone()
    if row and row[0] is not None:
        return
    connection.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
    connection.execute(
        SQL(
            "CREATE TABLE IF NOT EXISTS {} (id bigint PRIMARY KEY, code bit({}) NOT NULL, alone boolean NOT NULL)"
        ).format(table, bits)
    )


def _distance_operator(connection: psycopg.Connection[Any], *, create: bool) -> str:
    """<~> of pgvector if it is installed; otherwise PostgreSQL's bit_count, which takes 1.5 times as long."""
    import psycopg

    query = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
    version = connection.execute(query).fetchone()
    if version is None and create:
        try:
            with connection.transaction():
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except psycopg.Error:  # not installed, or not permitted; exact searches do not need it
            return "bit_count"
        version = connection.execute(query).fetchone()
    if version is None or tuple(int(part) for part in version[0].split(".")[:2]) < (0, 7):
        return "bit_count"
    return "<~>"


def limited(allowed: Any) -> Limit:
    """The `allowed` of a search in SQL: a condition, and its values."""
    from psycopg.sql import SQL

    if allowed is None:
        return SQL("TRUE"), []
    if isinstance(allowed, str) and allowed == ALONE:
        return SQL("alone"), []
    if isinstance(allowed, tuple) and isinstance(allowed[0], str) and allowed[0] == ALONE:
        return SQL("alone AND id = ANY(%s)"), [chosen_ids(allowed[1]).tolist()]
    return SQL("id = ANY(%s)"), [chosen_ids(allowed).tolist()]


def bits_of(code: Packed, bits: int) -> str:
    """A packed code in PostgreSQL's notation: bit 0 first."""
    return "".join(map(str, np.unpackbits(code, count=bits, bitorder="little")))


def packed_from(sent: Sequence[bytes], bits: int) -> Packed:
    """Codes in the format of `bit_send`, packed, shape (n, ceil(bits / 8))."""
    joined = b"".join(code[4:] for code in sent)  # the first 4 bytes are the length
    return _REVERSED[np.frombuffer(joined, np.uint8)].reshape(len(sent), bytes_of(bits))


def _copy(connection: psycopg.Connection[Any], statement: Composed, rows: NDArray[np.void]) -> None:
    """Send rows in the binary format of COPY."""
    with connection.cursor().copy(statement) as copy:
        copy.write(_HEADER)
        copy.write(rows.tobytes())
        copy.write(b"\xff\xff")


def _code_rows(ids: NDArray[np.int64], packed: Packed, bits: int, alone: Iterable[Any] | None) -> NDArray[np.void]:
    """Rows in the binary format of COPY: the number of fields, then length and value of each."""
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
    return rows
