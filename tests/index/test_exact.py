"""HammingIndex against brute force and faiss, with both engines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import expected, listed, random_codes, use

from dcmh.errors import DataError, ModelMismatch, ParameterError
from dcmh.index import HammingIndex, scan

quiet = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def built(items, ids, bits, **options) -> HammingIndex:
    index = HammingIndex(bits, **options)
    index.add(ids, items)
    return index


@quiet
@given(bits=st.integers(1, 200), n=st.integers(0, 300), k=st.integers(1, 310), seed=st.integers(0, 99), data=st.data())
def test_equals_brute_force(bits, n, k, seed, data, engine):
    rng = np.random.default_rng(seed)
    items, queries = random_codes(rng, n, bits), random_codes(rng, 19, bits)
    ids = rng.permutation(1000)[:n] - 500
    index = built(items, ids, bits, threads=data.draw(st.sampled_from([1, 2])))
    assert listed(index.search(queries, k)) == expected(queries, items, ids, k=k)
    radius = data.draw(st.integers(0, bits))
    assert listed(index.within(queries, radius)) == expected(queries, items, ids, radius=radius)


@pytest.mark.parametrize("bits", [256, 320, 1000, 1024])
def test_long_codes(bits, engine):
    rng = np.random.default_rng(bits)
    items, queries = random_codes(rng, 700, bits), random_codes(rng, 3, bits)
    index = built(items, np.arange(700), bits)
    assert listed(index.search(queries, 20)) == expected(queries, items, np.arange(700), k=20)
    for radius in (0, bits // 5, bits):
        assert listed(index.within(queries, radius)) == expected(queries, items, np.arange(700), radius=radius)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_blocks_threads_and_full_buffers(threads, engine, monkeypatch):
    monkeypatch.setattr(scan, "WORDS_BEFORE_THREADS", 0)
    rng = np.random.default_rng(0)
    items, queries = random_codes(rng, 9001, 64, centres=40), random_codes(rng, 70, 64, centres=40)
    index = built(items, np.arange(9001), 64, threads=threads)
    for some in (queries[:1], queries[:17], queries):
        for k in (1, 10, 400):
            assert listed(index.search(some, k)) == expected(some, items, np.arange(9001), k=k)
        assert listed(index.within(some, 20)) == expected(some, items, np.arange(9001), radius=20)


def test_distances_that_only_fall(engine):
    """Every row nearer than all before it: the worst case for the buffer of survivors."""
    ones = np.arange(5000)[:, None] // 40 < np.arange(128)[None, ::-1]
    items = np.packbits(ones, axis=1, bitorder="little")
    query = np.zeros((1, 16), np.uint8)
    index = built(items, np.arange(5000), 128)
    assert listed(index.search(query, 30)) == expected(query, items, np.arange(5000), k=30)


def test_ties_go_to_the_older_item(engine):
    items = np.repeat(np.array([[3], [1]], np.uint8), 500, axis=0)
    index = built(items, np.arange(1000)[::-1], 8)
    assert index.search(items[-1:], 4)[0].ids.tolist() == [499, 498, 497, 496]
    index.remove([498])
    index.add([498], items[-1:])
    assert index.search(items[-1:], 3)[0].ids.tolist() == [499, 497, 496]
    assert index.within(items[-1:], 0)[0].ids[-1] == 498


def test_faiss_agrees(numba_engine):
    import faiss

    rng = np.random.default_rng(5)
    items, queries = random_codes(rng, 20_000, 128, centres=50), random_codes(rng, 40, 128, centres=50)
    flat = faiss.IndexBinaryFlat(128)
    flat.add(items)
    index = built(items, np.arange(20_000), 128)
    distances, _ = flat.search(queries, 25)
    results = index.search(queries, 25)
    assert results.distances.reshape(40, 25).tolist() == distances.tolist()
    for radius in (0, 8, 30):
        limits, distances, rows = flat.range_search(queries, radius + 1)  # faiss's radius is strict
        results = index.within(queries, radius)
        assert results.offsets.tolist() == limits.tolist()
        for query in range(40):
            part = slice(limits[query], limits[query + 1])
            assert sorted(results[query]) == sorted(zip(rows[part].tolist(), distances[part].tolist(), strict=True))


@quiet
@given(seed=st.integers(0, 999), share=st.sampled_from([0.0, 0.03, 0.5, 1.0]), kind=st.sampled_from(["ids", "mask"]))
def test_filters(seed, share, kind, engine):
    rng = np.random.default_rng(seed)
    items, queries = random_codes(rng, 500, 64), random_codes(rng, 3, 64)
    ids = rng.permutation(900)[:500]
    index = built(items, ids, 64)
    gone = rng.choice(ids, 60, replace=False)
    index.remove(gone)
    mask = rng.random(700) < share  # ids from 700 on are never allowed
    allowed = mask if kind == "mask" else np.append(np.flatnonzero(mask), 5000)
    kept = np.array([i < 700 and mask[i] and i not in gone for i in ids], bool)
    assert listed(index.search(queries, 7, allowed=allowed)) == expected(queries, items[kept], ids[kept], k=7)
    for radius in (0, 12, 64):
        found = index.within(queries, radius, allowed=allowed)
        assert listed(found) == expected(queries, items[kept], ids[kept], radius=radius)


def test_negative_ids_are_outside_a_mask(engine):
    index = built(np.zeros((2, 1), np.uint8), [-1, 0], 8)
    assert index.search(np.zeros((1, 1), np.uint8), 5, allowed=np.array([True]))[0].ids.tolist() == [0]


def test_empty_index_and_no_queries(engine):
    index = HammingIndex(64)
    one = np.zeros((1, 8), np.uint8)
    assert len(index) == 0
    assert index.search(one, 3).counts.tolist() == index.within(one, 64).counts.tolist() == [0]
    index.add([4], one)
    assert len(index.search(one[:0], 3)) == len(index.within(one[:0], 3)) == 0
    assert index.search(one, 3, allowed=[]).counts.tolist() == index.within(one, 3, allowed=[]).counts.tolist() == [0]


def test_results_are_named_and_ragged(engine):
    index = built(np.array([[0], [1], [255]], np.uint8), [7, 8, 9], 8)
    results = index.within(np.array([[0], [254]], np.uint8), 1)
    assert (len(results), results.counts.tolist(), results.offsets.tolist()) == (2, [2, 1], [0, 2, 3])
    assert list(results[0]) == [(7, 0), (8, 1)]
    assert [hits.ids.tolist() for hits in results] == [[7, 8], [9]]
    assert (len(results[-1]), results[1].ids.dtype, results[1].distances.dtype) == (1, np.int64, np.uint16)
    with pytest.raises(IndexError, match="2 queries, but not for query 2"):
        results[2]


def test_bits_past_the_code_do_not_count(engine):
    index = built(np.array([[0b0111]], np.uint8), [1], 3)
    assert list(index.search(np.array([[0b1111_1111]], np.uint8), 1)[0]) == [(1, 0)]
    assert index.codes([1]).tolist() == [[0b0111]]


def test_one_question_does_not_load_numba(monkeypatch):
    engines = scan._Engines()
    monkeypatch.setattr(scan.sys, "modules", {})
    assert engines.choose(1_000_000) is scan.numpy_kernels
    assert engines.kernels is None


def test_without_numba(monkeypatch, caplog):
    """NumPy searches, says so once, and only a lookup that was asked for by name is refused."""
    use("numba", monkeypatch)
    monkeypatch.setitem(scan.sys.modules, "dcmh.index.kernels", None)
    monkeypatch.delattr("dcmh.index.kernels", raising=False)
    index = built(np.zeros((3, 8), np.uint8), [1, 2, 3], 64)
    query = np.zeros((1, 8), np.uint8)
    assert index.search(query, 1)[0].ids.tolist() == index.search(query, 1)[0].ids.tolist() == [1]
    assert caplog.text.count("pip install numba") == 1
    with pytest.raises(ImportError, match="needs numba"):
        index.within(query, 1, method="lookup")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda i: i.search(np.zeros((1, 2), np.uint8), 1), ModelMismatch, r"Query codes have 2 bytes .* has 64 bits"),
        (lambda i: i.within(np.zeros((1, 9), np.uint8), 1), ModelMismatch, r"Query codes have 9 bytes .* has 64 bits"),
        (lambda i: i.add([1], np.zeros((1, 2), np.uint8)), ModelMismatch, r"Codes have 2 bytes .* has 64 bits"),
        (lambda i: i.search(np.zeros(8, np.uint8), 1), DataError, r"shape \(n, 8\), not uint8 of shape \(8,\)"),
        (lambda i: i.search(np.zeros((1, 8)), 1), DataError, "not float64"),
        (lambda i: i.search(np.zeros((1, 8), np.uint8), 0), ParameterError, "k must be a whole number of at least 1"),
        (lambda i: i.within(np.zeros((1, 8), np.uint8), -1), ParameterError, "radius must be .* at least 0, not -1"),
        (lambda i: i.within(np.zeros((1, 8), np.uint8), 1, method="magic"), ParameterError, "'lookup', not 'magic'"),
        (lambda i: i.add([1, 2], np.zeros((1, 8), np.uint8)), DataError, "2 ids but 1 codes"),
        (lambda i: i.add(["a"], np.zeros((1, 8), np.uint8)), DataError, "Ids must be integers"),
        (lambda i: i.add([[1]], np.zeros((1, 8), np.uint8)), DataError, "Ids must have one dimension"),
        (lambda i: i.add(np.array([2**63], np.uint64), np.zeros((1, 8), np.uint8)), DataError, "fit in 64 bits"),
        (lambda i: i.search(np.zeros((1, 8), np.uint8), 1, allowed=np.ones((2, 2), bool)), DataError, "one dimension"),
        (lambda i: HammingIndex(0), ParameterError, "bits must be"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(HammingIndex(64))
