"""One contract, three back ends: every answer is that of brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from oracle import expected, listed, random_codes

from dcmh.errors import DataError, ModelMismatch, ParameterError
from dcmh.index import HammingIndex, Index

BACK_ENDS = [
    "exact",
    pytest.param("postgres", marks=pytest.mark.engines),
    pytest.param("postgres without pgvector", marks=pytest.mark.engines),
    pytest.param("milvus", marks=pytest.mark.engines),
]
numbers = itertools.count()


class Life:
    """An index, and the items that it must hold."""

    def __init__(self, index: Index, *, by_id: bool) -> None:
        self.index = index
        self.by_id = by_id  # ties go to the smallest id; in the embedded index, to the item that came first
        self.items: dict[int, np.ndarray] = {}

    def add(self, ids, packed) -> None:
        self.index.add(ids, packed)
        self.items.update(zip(np.asarray(ids).tolist(), packed, strict=True))

    def remove(self, ids) -> None:
        assert self.index.remove(ids) == len(ids)
        for item in ids:
            del self.items[item]

    def check(self, queries, *, ks=(1, 7, 100), radii=(0, 1, 3, 9), allowed=None) -> None:
        order = sorted(self.items) if self.by_id else list(self.items)
        assert self.index.ids.tolist() == order
        assert len(self.index) == self.index.count == len(order)
        if allowed is not None:
            chosen = np.asarray(allowed)
            kept = set(np.flatnonzero(chosen).tolist() if chosen.dtype == bool else chosen.tolist())
            order = [item for item in order if item in kept]
        packed = np.array([self.items[item] for item in order], np.uint8).reshape(len(order), queries.shape[1])
        for k in ks:
            assert listed(self.index.search(queries, k, allowed=allowed)) == expected(queries, packed, order, k=k)
        for radius in radii:
            found = listed(self.index.within(queries, radius, allowed=allowed))
            assert found == expected(queries, packed, order, radius=radius)


@pytest.fixture(params=BACK_ENDS)
def back_end(request):
    """Makes an empty index of so many bits."""
    made = []

    def make(bits: int) -> Life:
        if request.param == "exact":
            return Life(HammingIndex(bits), by_id=False)
        name = f"contract{next(numbers)}"
        if request.param == "milvus":
            from dcmh.stores.milvus.index import MilvusIndex

            index = MilvusIndex(request.getfixturevalue("milvus").address(name), bits)
            made.append(lambda: index.server.call(lambda client, _: client.drop_collection(name)))
        else:
            from dcmh.stores.postgres.index import PostgresIndex

            index = PostgresIndex(request.getfixturevalue("postgres").address(collection=name), bits)
            if "without" in request.param:
                index.table.operator = "bit_count"
        made.append(index.server.close)
        return Life(index, by_id=True)

    yield make
    for clean in made:
        clean()


@pytest.mark.parametrize("bits", [16, 64, 100, 256])
def test_the_life_of_an_index(back_end, bits):
    rng = np.random.default_rng(bits)
    life = back_end(bits)
    queries = np.concatenate([random_codes(rng, 3, bits), random_codes(rng, 1, bits, flip=0.5)])
    life.check(queries, ks=(1,), radii=(0, bits))  # nothing there
    life.add(np.arange(400) * 3, random_codes(rng, 400, bits, flip=0.05))
    life.check(queries, radii=(0, 1, 3, 9, bits))
    life.remove([0, 3, 600, 1197])
    life.check(queries)
    life.add([600, 5000], random_codes(rng, 2, bits))  # again, under another code
    life.add([1, 2], np.repeat(queries[:1], 2, axis=0))  # equal codes
    life.check(queries)
    assert 600 in life.index
    assert np.int64(600) in life.index
    assert not any(item in life.index for item in (3, "600", 600.5, True, None, 2**70))
    assert life.index.codes([5000, 600, 1]).tolist() == [life.items[item].tolist() for item in (5000, 600, 1)]


@pytest.mark.parametrize("bits", [64])
def test_filters(back_end, bits):
    rng = np.random.default_rng(1)
    life = back_end(bits)
    life.add(np.arange(300), random_codes(rng, 300, bits))
    queries = random_codes(rng, 2, bits)
    life.check(queries, allowed=[7, 9, 11, 250, 9999])
    life.check(queries, allowed=np.arange(300) % 3 == 0)
    life.check(queries, allowed=[])
    life.check(queries, allowed=np.zeros(5, bool))


def test_many_ties(back_end):
    """More equal codes than an engine gives at once: the smallest ids still win, and a radius still finds all."""
    life = back_end(16)
    packed = np.zeros((40_000, 2), np.uint8)
    packed[::4] = 255
    life.add(np.arange(40_000), packed)
    queries = np.array([[0, 0], [255, 255]], np.uint8)
    life.check(queries, ks=(5, 20_000), radii=(1,))


def test_refusals(back_end):
    life = back_end(64)
    codes = np.zeros((2, 8), np.uint8)
    life.add([5, 6], codes)
    with pytest.raises(DataError, match="Id 6 is already in the index"):
        life.index.add([7, 6], codes)
    with pytest.raises(DataError, match="Id 8 is given more than once"):
        life.index.add([8, 8], codes)
    with pytest.raises(DataError, match="3 ids but 2 codes"):
        life.index.add([7, 8, 9], codes)
    with pytest.raises(ModelMismatch, match="4 bytes each, but the index has 64 bits"):
        life.index.search(np.zeros((1, 4), np.uint8), 3)
    with pytest.raises(ParameterError, match="k must be a whole number of at least 1"):
        life.index.search(codes, 0)
    with pytest.raises(ParameterError, match="radius must be"):
        life.index.within(codes, -1)
    with pytest.raises(DataError, match="Id 9 is not in the index"):
        life.index.remove([5, 9])
    with pytest.raises(DataError, match="Id 9 is not in the index"):
        life.index.codes([9])
    assert life.index.remove([5, 9], missing_ok=True) == 1
    assert life.index.ids.tolist() == [6]
