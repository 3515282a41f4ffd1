"""Adding, removing, finding ids, and searching meanwhile."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from oracle import expected, listed, random_codes

from dcmh.errors import DataError
from dcmh.index import HammingIndex
from dcmh.index.table import Table

BITS = 40


class Life(RuleBasedStateMachine):
    """An index and a plain dictionary live the same life."""

    def __init__(self):
        super().__init__()
        self.index = HammingIndex(BITS)
        self.items: dict[int, np.ndarray] = {}
        self.rng = np.random.default_rng(0)

    @rule(ids=st.lists(st.integers(-30, 200), unique=True, max_size=40), ascending=st.booleans())
    def add(self, ids, ascending):
        ids = sorted(ids) if ascending else ids
        ids = [i for i in ids if i not in self.items]
        packed = random_codes(self.rng, len(ids), BITS)
        self.index.add(ids, packed)
        self.items.update(zip(ids, packed, strict=True))

    @rule(ids=st.lists(st.integers(-30, 200), unique=True, max_size=30))
    def remove(self, ids):
        known = [i for i in ids if i in self.items]
        assert self.index.remove(ids, missing_ok=True) == len(known)
        for i in known:
            del self.items[i]

    @rule()
    def look(self):
        query = random_codes(self.rng, 2, BITS)
        ids, packed = list(self.items), np.array(list(self.items.values()), np.uint8).reshape(-1, BITS // 8)
        assert listed(self.index.search(query, 9)) == expected(query, packed, ids, k=9)
        assert listed(self.index.within(query, 14)) == expected(query, packed, ids, radius=14)
        assert self.index.codes(ids[::-1]).tolist() == packed[::-1].tolist()

    @invariant()
    def same(self):
        assert self.index.ids.tolist() == list(self.items)
        assert len(self.index) == self.index.count == len(self.items)
        assert all((i in self.index) == (i in self.items) for i in (-30, 0, 7, 200))


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_ids_are_unique():
    index = HammingIndex(8)
    with pytest.raises(DataError, match="Id 5 is given more than once"):
        index.add([5, 6, 5], np.zeros((3, 1), np.uint8))
    index.add([5, 6], np.zeros((2, 1), np.uint8))
    with pytest.raises(DataError, match=r"Id 6 is already in the index \(and 1 more\)"):
        index.add([7, 6, 5], np.zeros((3, 1), np.uint8))
    assert index.ids.tolist() == [5, 6]
    with pytest.raises(ValueError, match="read-only"):
        index.ids[0] = 1


def test_unknown_ids():
    index = HammingIndex(8)
    index.add([5, 6], np.zeros((2, 1), np.uint8))
    with pytest.raises(DataError, match="Id 9 is not in the index"):
        index.remove([5, 9])
    with pytest.raises(DataError, match="Id 1 is not in the index"):
        index.codes([1])
    assert len(index) == 2
    assert index.remove([5, 9, 5], missing_ok=True) == 1
    assert repr(index) == "HammingIndex(bits=8, count=1)"


def test_many_small_additions_in_any_order():
    rng = np.random.default_rng(0)
    ids, packed = rng.permutation(4000), rng.integers(0, 256, (4000, 8), dtype=np.uint8)
    index = HammingIndex(64)
    for start in range(0, 4000, 50):
        index.add(ids[start : start + 50], packed[start : start + 50])
    assert len(index._finder.runs) < 10
    order = rng.permutation(4000)
    assert (index.codes(ids[order]) == packed[order]).all()


def test_memory_per_item():
    """8 bytes for a 64-bit code; ids and finding them take at most 16 more, removed marks included."""
    index = HammingIndex(64)
    ids = np.random.default_rng(0).permutation(10_000)
    index.add(ids, np.zeros((10_000, 8), np.uint8))
    index.remove(ids[:100])
    table = index._state.table
    assert table.words_room.nbytes == 8 * 10_000
    assert table.ids_room.nbytes + table.live.nbytes + sum(run.nbytes for run in index._finder.runs) <= 16 * 10_000


def test_too_many_rows(monkeypatch):
    monkeypatch.setattr("dcmh.index.table.MAX_ROWS", 2)
    with pytest.raises(DataError, match="at most 2 items, not 3"):
        Table.empty(8).with_rows(np.arange(3), np.zeros((3, 1), np.uint64))


def test_two_threads_search_while_a_third_changes(numba_engine):
    rng = np.random.default_rng(1)
    packed = random_codes(rng, 3000, 64)
    index = HammingIndex(64)
    index.add(np.arange(2000), packed[:2000])
    answers, stop, wrong = expected(packed[:4], packed[:1000], range(1000), k=5), threading.Event(), []

    def search() -> None:
        while not stop.is_set():
            some = index.search(packed[:4], 5, allowed=np.arange(1000))
            nearby = index.within(packed[:4], 10)
            if listed(some) != answers or not set(range(4)) <= set(nearby.ids.tolist()):
                wrong.append(listed(some))

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(60):
        index.add(np.arange(2000, 3000), packed[2000:])
        index.remove(np.arange(1000 + turn, 3000), missing_ok=True)  # more than a quarter: rows move
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
