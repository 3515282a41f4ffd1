"""dcmh compress reads the vectors of a table that someone else keeps with pgvector."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dcmh.cli import main
from dcmh.errors import DataError
from dcmh.stores.address import parse
from dcmh.stores.postgres.connection import Postgres
from dcmh.stores.postgres.vectors import read_vectors


@pytest.fixture(scope="module")
def table(postgres):
    """A table of 200 vectors, one of which is missing, under names."""
    vectors = np.random.default_rng(0).standard_normal((200, 8)).astype(np.float32)
    address = parse(postgres.address(collection="items"))
    server = Postgres(address)

    def fill(connection):
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute("DROP TABLE IF EXISTS items; DROP TABLE IF EXISTS empty")
        connection.execute("CREATE TABLE items (id text, title text, embedding vector(8), small halfvec(8))")
        connection.execute("CREATE TABLE empty (embedding vector(8))")
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO items VALUES (%s, 'a', %s, %s)",
                [(f"n{i:03}", str(row.tolist()), str(row.tolist())) for i, row in enumerate(vectors)],
            )
        connection.execute("UPDATE items SET embedding = NULL WHERE id = 'n005'")

    server.work(fill)
    server.close()
    return address, np.delete(vectors, 5, axis=0)


def test_vectors_of_a_table(table, postgres, tmp_path, monkeypatch, capsys):
    address, vectors = table
    data = read_vectors(address, "embedding")
    assert data.ids[:6] == ["n000", "n001", "n002", "n003", "n004", "n006"]
    np.testing.assert_array_equal(data["embedding"].values, vectors)
    assert read_vectors(address).modalities == ("embedding", "small")
    monkeypatch.chdir(tmp_path)
    given = postgres.address(collection="items")
    assert main(["compress", given, "--column", "embedding", "--bits", "8", "--out", "c", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["count"] == 199
    assert np.load(tmp_path / "c" / "codes.npy").shape == (199, 1)
    assert np.load(tmp_path / "c" / "fine.npy").shape == (199, 8)


def test_tables_without_vectors(table, postgres):
    with pytest.raises(DataError, match="no table 'nothing'"):
        read_vectors(parse(postgres.address(collection="nothing")))
    with pytest.raises(DataError, match="these hold some: embedding, small"):
        read_vectors(table[0], "title")
    with pytest.raises(DataError, match="holds no vectors"):
        read_vectors(parse(postgres.address(collection="empty")))
