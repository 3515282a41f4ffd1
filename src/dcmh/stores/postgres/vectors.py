"""The vectors of a table that someone else keeps in PostgreSQL with pgvector."""

from __future__ import annotations

import numpy as np

from dcmh.data.columns import Column, Vectors
from dcmh.data.dataset import Dataset
from dcmh.errors import DataError
from dcmh.stores.address import Address
from dcmh.stores.postgres.connection import BUILD_SECONDS, Postgres

_COLUMNS = """
    SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_KINDS = ("vector", "halfvec")


def read_vectors(address: Address, column: str | None = None) -> Dataset:
    """One item per row in which no vector is missing; its name is the value of the column id, or else its number.

    Parameters
    ----------
    address
        Of a database; its collection is the name of the table.
    column
        Names of columns, separated by commas. Default: all columns of vectors.
    """
    from psycopg.sql import SQL, Identifier

    server = Postgres(address)
    table = address.collection
    try:
        kinds = dict(server.rows(_COLUMNS, [f'"{table}"']))
        if not kinds:
            raise DataError(
                f"The database {address.database} has no table {table!r}.",
                which=table,
                hint="Name it: postgresql://user@host/database?collection=TABLE",
            )
        available = [name for name, kind in kinds.items() if kind in _KINDS]
        chosen = available if column is None else [name.strip() for name in column.split(",")]
        if not chosen or not set(chosen) <= set(available):
            raise DataError(
                f"The table {table} has no column of vectors{'' if column is None else f' {column!r}'}. "
                f"Of its columns, these hold some: {', '.join(available) or 'none'}.",
                which=table,
                hint="Name one of them with --column.",
            )
        has_ids = "id" in kinds
        select = [SQL("{}::vector::real[]").format(Identifier(name)) for name in chosen]
        key = SQL("id::text" if has_ids else "row_number() OVER ()::text")
        complete = SQL(" AND ").join(SQL("{} IS NOT NULL").format(Identifier(name)) for name in chosen)
        order = SQL("ORDER BY id") if has_ids else SQL("")
        query = SQL("SELECT {}, {} FROM {} WHERE {} {}").format(
            key, SQL(", ").join(select), Identifier(table), complete, order
        )
        rows = server.work(lambda connection: connection.execute(query).fetchall(), seconds=BUILD_SECONDS)
    finally:
        server.close()
    if not rows:
        raise DataError(f"The table {table} holds no vectors.", which=table, hint="Fill it first.")
    ids, *cells = zip(*rows, strict=True)
    columns: dict[str, Column] = {
        name: Vectors(np.array(values, np.float32)) for name, values in zip(chosen, cells, strict=True)
    }
    return Dataset(columns, ids=list(ids), name=table)
