"""Vectors that are cached in the background."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dcmh.errors import DataError
from dcmh.util.cache import BackgroundWriter, VectorStore


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("DCMH_HOME", str(tmp_path))
    return VectorStore("features", "test")


def entries(*numbers):
    return [(bytes([number]), np.full(4, number, np.float32)) for number in numbers]


def test_what_was_put_is_there_after_flush(store):
    writer = BackgroundWriter()
    for number in range(50):
        writer.put(store, entries(number))
    writer.flush()
    assert {key[0]: vector[0] for key, vector in store.get([bytes([n]) for n in range(50)]).items()} == {
        number: number for number in range(50)
    }
    writer.put(store, entries(77))
    writer.flush()
    assert len(store.get([b"\x4d"])) == 1


def test_nobody_waits_for_the_disk_and_much_is_written_at_once(store, monkeypatch):
    put, calls, disk = VectorStore.put, [], threading.Event()

    def slow(self, some):
        calls.append(len(some))
        assert disk.wait(10)
        put(self, some)

    monkeypatch.setattr(VectorStore, "put", slow)
    writer = BackgroundWriter()
    for number in range(20):
        writer.put(store, entries(number))
    disk.set()
    writer.flush()
    assert sum(calls) == 20
    assert len(calls) <= 3


def test_what_comes_within_a_pause_is_written_at_once_without_flush(store, monkeypatch):
    put, calls, written = VectorStore.put, [], threading.Event()

    def told(self, some):
        put(self, some)
        calls.append(len(some))
        written.set()

    monkeypatch.setattr(VectorStore, "put", told)
    writer = BackgroundWriter()
    for number in range(20):
        writer.put(store, entries(number))
    assert written.wait(10)
    assert calls == [20]
    writer.flush()
    assert calls == [20]


def test_an_error_of_writing_is_raised_later(store):
    store.path.parent.mkdir(parents=True)
    store.path.write_bytes(b"this is not a database, and long enough to be read as one" * 20)
    writer = BackgroundWriter()
    writer.put(store, entries(1))
    with pytest.raises(DataError, match="damaged"):
        writer.flush()
    writer.flush()  # once
