"""kill -9 in the middle of loading, of the server and of the client: all items there, none twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import servers

import dcmh
from dcmh.errors import EngineError
from dcmh.stores.milvus.index import MilvusIndex
from dcmh.stores.postgres.index import PostgresIndex

SRC = Path(dcmh.__file__).parents[1]
COUNT = 300_000

CLIENT = """
import sys, numpy as np
from dcmh.stores.milvus.index import MilvusIndex
from dcmh.stores.postgres.index import PostgresIndex
address, count = sys.argv[1], int(sys.argv[2])
codes = np.random.default_rng(0).integers(0, 256, (count, 8), dtype=np.uint8)
index = (MilvusIndex if address.startswith("milvus") else PostgresIndex)(address, 64)
for start in range(0, count, 20_000):
    part = slice(start, start + 20_000)
    index.load(np.arange(count)[part], codes[part])
    print(start, flush=True)
"""


def codes_of(count):
    return np.random.default_rng(0).integers(0, 256, (count, 8), dtype=np.uint8)


def check_whole(index, count):
    """Every id once, each with its code."""
    assert index.ids.tolist() == list(range(count))
    assert len(index) == count
    some = np.random.default_rng(1).choice(count, 2_000, replace=False)
    assert index.codes(some).tolist() == codes_of(count)[some].tolist()
    hits = index.search(codes_of(count)[:3], 5)
    assert [hits[row].ids[0] for row in range(3)] == [0, 1, 2]


class Killer:
    """Kills the server when a third is loaded, and starts it again a moment later, while the client tries on."""

    def __init__(self, server):
        self.server = server
        self.thread = None
        self.failed = None
        self.revived, self.over = threading.Event(), threading.Event()

    def __call__(self, done, total):
        if self.thread is None and done > total // 3:
            assert done < total
            self.server.kill()
            self.thread = threading.Thread(target=self.revive)
            self.thread.start()

    def revive(self):
        time.sleep(0.5)
        try:
            self.server.start()
        except Exception as error:
            self.failed = error
        self.revived.set()
        self.over.wait(280)  # the server ends with the thread that started it

    def check(self):
        assert self.thread is not None
        self.revived.wait(200)
        assert self.failed is None

    def end(self):
        self.over.set()
        if self.thread is not None:
            self.thread.join()


def test_postgres_is_killed_while_loading():
    with servers.run_postgres() as server:
        index = PostgresIndex(server.address(collection="crash"), 64)
        killer = Killer(server)
        index.load(np.arange(COUNT), codes_of(COUNT), progress=killer)  # waits for the server, and goes on
        killer.check()
        check_whole(index, COUNT)
        assert index.load(np.arange(COUNT), codes_of(COUNT)) == 0
        server.kill()
        with pytest.raises(EngineError, match=r"does not respond \(tried for 1 s\).*Is the server running there\?"):
            PostgresIndex(server.address(collection="crash") + "&patience=1", 64)
        index.server.close()
        killer.end()


@pytest.mark.slow
def test_milvus_is_killed_while_loading(tmp_path):
    """Milvus takes a minute to come back."""
    count = 60_000
    server = servers.Milvus(tmp_path, ticks=50)
    killer = Killer(server)
    server.start()
    try:
        index = MilvusIndex(server.address("crash") + "?patience=200", 64)
        index.load(np.arange(count), codes_of(count), progress=killer)
        killer.check()
        check_whole(index, count)
        assert index.load(np.arange(count), codes_of(count)) == 0
        index.server.close()
    finally:
        server.stop()
        killer.end()


def test_the_client_is_killed_while_loading(address):
    count = 60_000
    environment = os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, address, str(count)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    with client.stdout as out:
        assert out.readline().strip() == "0"
        os.kill(client.pid, signal.SIGKILL)
        client.wait()
    index = (MilvusIndex if address.startswith("milvus") else PostgresIndex)(address, 64)
    there = index.count
    assert 20_000 <= there < count
    assert index.load(np.arange(count), codes_of(count)) == count - there
    check_whole(index, count)
    index.server.close()
