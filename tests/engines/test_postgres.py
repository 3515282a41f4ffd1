"""What only PostgreSQL has: lookups by substrings, HNSW, a bulk load that can be repeated."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dcmh.errors import ModelMismatch
from dcmh.search import SearchIndex
from dcmh.stores.postgres import lookups
from dcmh.stores.postgres.index import PostgresIndex
from toy_photos import load

COUNT = 30_000


@pytest.fixture(params=[16, 64, 128, 256])
def loaded(request, postgres):
    """Codes around a few centres, in bulk, with lookups."""
    bits = request.param
    rng = np.random.default_rng(bits)
    middle = rng.random((400, bits)) < 0.5
    ones = middle[rng.integers(0, 400, COUNT)] ^ (rng.random((COUNT, bits)) < 0.03)
    codes = np.packbits(ones, axis=1, bitorder="little")
    index = PostgresIndex(postgres.address(collection=f"loaded{bits}"), bits)
    assert index.load(np.arange(COUNT), codes) in (0, COUNT)
    index.optimise()
    yield index, codes
    index.server.close()


def brute(codes, query, *, radius=None, k=None):
    distance = np.bitwise_count(codes ^ query).sum(axis=1)
    near = np.flatnonzero(distance <= radius) if radius is not None else np.arange(len(codes))
    order = near[np.argsort(distance[near], kind="stable")][:k]
    return list(zip(order.tolist(), distance[order].tolist(), strict=True))


def check(index, codes):
    queries = codes[[5, 77, 2000]]
    for radius in (0, 1, 2, 3, 4, 7, 9, 12):
        found = index.within(queries, radius)
        assert [list(hits) for hits in found] == [brute(codes, query, radius=radius) for query in queries]
    found = index.search(queries, 10)
    assert [list(hits) for hits in found] == [brute(codes, query, k=10) for query in queries]


def test_lookups_are_exact(loaded):
    index, codes = loaded
    assert index.has_lookups
    assert index._pays(2) or index.bits == 16
    check(index, codes)
    allowed = np.arange(0, COUNT, 3)
    (hits,) = index.within(codes[5:6], 3, allowed=allowed)
    assert list(hits) == [hit for hit in brute(codes, codes[5], radius=3) if hit[0] % 3 == 0]


@pytest.mark.parametrize("part", [21, 32])
def test_longer_substrings_for_larger_tables(loaded, monkeypatch, part):
    index, codes = loaded
    if index.bits < 64:
        assert lookups.make_plan(16, part) == lookups.make_plan(16, 16)
        return
    monkeypatch.setattr(lookups, "PARTS", ((16, 10), (part, 2**63)))
    index.optimise()
    assert index.plan == lookups.make_plan(index.bits, part)
    check(index, codes)
    monkeypatch.undo()
    index.optimise()
    assert index.plan == lookups.make_plan(index.bits, 16)
    names = [row[0] for row in index.table.rows("SELECT indexname FROM pg_indexes WHERE tablename = 'codes'")]
    assert len(set(names) & set(lookups.names(index.table, index.plan))) == len(index.plan.starts)


def test_the_plan_asks_the_indexes(loaded):
    """A small radius does not read the whole table."""
    index, codes = loaded
    if index.bits != 64:
        return
    asked = []
    rows = index.server.rows
    index.server.rows = lambda query, values=(), **more: asked.append((query, values)) or rows(query, values, **more)
    index.within(codes[5:6], 3)
    index.server.rows = rows
    ((query, values),) = asked
    plan = index.server.work(
        lambda connection: connection.execute("EXPLAIN " + query.as_string(connection), values).fetchall()
    )
    assert any("Bitmap Index Scan" in line for (line,) in plan)
    assert not any("Seq Scan" in line for (line,) in plan)


def test_a_load_may_be_repeated_and_grow(postgres):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (1000, 8), dtype=np.uint8)
    index = PostgresIndex(postgres.address(collection="again"), 64)
    assert index.load(np.arange(0, 1000, 2), codes[::2]) == 500
    assert index.load(np.arange(1000), codes) == 500
    assert index.load(np.arange(1000), codes) == 0
    assert index.ids.tolist() == list(range(1000))
    assert index.codes(range(1000)).tolist() == codes.tolist()
    with pytest.raises(ModelMismatch, match=r"holds codes of type bit\(64\), not of 32 bits"):
        PostgresIndex(postgres.address(collection="again"), 32)
    index.server.close()


def test_hnsw_reports_its_recall(postgres):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (3000, 8), dtype=np.uint8)
    index = PostgresIndex(postgres.address(collection="graph") + "&effort=200", 64)
    index.load(np.arange(3000), codes)
    exact = index.search(codes[:5], 10)
    assert [list(hits) for hits in index.search(codes[:5], 10, method="approximate")] == [list(hits) for hits in exact]
    index.approximate()
    assert 0.8 < index.recall(k=10, sample=50) <= 1.0
    assert [list(hits) for hits in index.search(codes[:5], 10)] == [list(hits) for hits in exact]
    index.server.close()


def test_a_table_in_partitions_that_a_dba_made(postgres):
    """As docs/scale.md advises for more rows than one table should have."""
    import psycopg

    with psycopg.connect(postgres.address(collection=None)) as connection:
        connection.execute("CREATE SCHEMA dcmh_parts")
        connection.execute(
            "CREATE TABLE dcmh_parts.codes (id bigint PRIMARY KEY, code bit(64) NOT NULL, alone boolean NOT NULL) "
            "PARTITION BY HASH (id)"
        )
        for part in range(4):
            connection.execute(
                f"CREATE TABLE dcmh_parts.codes_{part} PARTITION OF dcmh_parts.codes "
                f"FOR VALUES WITH (MODULUS 4, REMAINDER {part})"
            )
    rng = np.random.default_rng(0)
    middle = rng.integers(0, 256, (100, 8), dtype=np.uint8)
    codes = middle[rng.integers(0, 100, COUNT)] ^ np.packbits(rng.random((COUNT, 64)) < 0.03, axis=1)
    index = PostgresIndex(postgres.address(collection="parts"), 64)
    assert index.load(np.arange(COUNT), codes) == COUNT
    index.optimise()
    assert index.has_lookups
    assert index.estimate == COUNT
    check(index, codes)
    index.server.close()


def test_names_are_quoted(postgres):
    index = PostgresIndex(postgres.address(collection="quoted"), 16, name='codes_a "b"; DROP TABLE x --')
    index.add([1], np.zeros((1, 2), np.uint8))
    assert index.count == 1
    index.optimise()
    assert list(index.within(np.zeros((1, 2), np.uint8), 0)[0]) == [(1, 0)]
    index.server.close()


def test_a_text_with_a_null_character_does_not_stop_an_import(postgres, models, tmp_path):
    """PostgreSQL does not store U+0000."""
    words = ["sunny yellow", "boat\0sea", "snow"]
    lines = [{"id": f"a\0{row}", "image": "", "text": word, "labels": ["x\0y"]} for row, word in enumerate(words)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = load(tmp_path / "pairs.jsonl")
    with SearchIndex.build(models[0], data, postgres.address(collection="nulls")) as index:
        assert len(index) == 3
        assert sorted(hit.text for hit in index.search(text="sea boat", k=3)) == [
            "boat\ufffdsea",
            "snow",
            "sunny yellow",
        ]
    with SearchIndex.build(models[0], data, postgres.address(collection="nulls")) as index:
        assert index.changes.unchanged == 3
