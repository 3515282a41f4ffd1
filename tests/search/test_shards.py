"""Encoding by several processes: no shard twice, none left out, the same codes as one process; also after kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dcmh
from dcmh.search import shards as module
from dcmh.search.encode import Encoders
from dcmh.search.shards import Shards, encode_column

SRC = Path(dcmh.__file__).parents[1]

# A worker in its own process: small shards, and a word for each one that it has encoded.
WORKER = """
import sys, time
from pathlib import Path
import dcmh
from dcmh.search import shards
from dcmh.search.encode import Encoders
shards.LEAST = 32
folder, model, first = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
encode = shards.encode_column
def slow(*arguments, **more):
    time.sleep(0.05)
    return encode(*arguments, **more)
shards.encode_column = slow
class Told(shards.Shards):
    def _encode(self, shard, progress):
        print(shard, flush=True)
        super()._encode(shard, progress)
texts = dcmh.Texts([f"sunny {n} yellow" if n % 5 else "😀" for n in range(1000)])
work = Told(folder, Encoders(model), texts, "text")
work.open()
work.work(first)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "model"
    toy = dcmh.load_dataset("toy")
    assert "sunny" in " ".join(toy.text.values).split()
    vectors = np.random.default_rng(0).random((len(toy), 8)).astype(np.float32)
    data = dcmh.Dataset({"image": dcmh.Vectors(vectors), "text": toy.text}, labels=toy.labels)
    dcmh.DCMH(bits=16, hidden=16, epochs=1, device="cpu").fit(data.split(12, seed=0).train).save(folder)
    return folder


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(module, "LEAST", 32)


def texts():
    return dcmh.Texts([f"sunny {n} yellow" if n % 5 else "😀" for n in range(1000)])


def start(folder, model, first=0):
    environment = os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder), str(model), str(first)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_processes_share_the_work(small, tmp_path, model):
    whole = encode_column(Encoders(model), texts(), "text")
    assert len(whole[0]) == 800
    assert set(whole[1].values()) == {"no word that the model knows"}
    team = [start(tmp_path / "work", model, first) for first in (0, 10, 20)]
    said = [process.communicate(timeout=60)[0].split() for process in team]
    assert [process.returncode for process in team] == [0, 0, 0]
    assert sorted(int(shard) for done in said for shard in done) == list(range(32))  # each once
    shards = Shards(tmp_path / "work", Encoders(model), texts(), "text")
    assert shards.count() == 1000
    assert shards.finish() == whole
    shards.remove()
    assert not (tmp_path / "work").exists()


def test_what_a_killed_process_did_is_kept(small, tmp_path, model):
    worker = start(tmp_path / "work", model)
    assert worker.stdout is not None
    with worker.stdout as out:
        for _ in range(6):  # it has begun the sixth shard
            out.readline()
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
    shards = Shards(tmp_path / "work", Encoders(model), texts(), "text")
    done = sorted((tmp_path / "work").glob("*.npz"))
    assert 5 <= len(done) < 32
    before = [path.stat().st_mtime_ns for path in done]
    assert shards.finish() == encode_column(Encoders(model), texts(), "text")
    assert [path.stat().st_mtime_ns for path in done] == before


def test_other_data_or_another_model_is_other_work(small, tmp_path, model):
    one = Shards(tmp_path, Encoders(model), texts(), "text")
    one.open()
    one.work()
    changed = texts()
    changed.values[7] = "another text"
    other = Shards(tmp_path, Encoders(model), changed, "text")
    assert (one.count(), other.count()) == (1000, 0)


def test_pictures_are_the_same_in_shards(small, tmp_path, monkeypatch):
    """Batches are whole, so the network sees the same ones."""
    seen = []

    def one(encoders, column, modality, progress=None):
        seen.append(len(column))
        return {row: bytes([row]) for row in range(len(column))}, {}

    class Nothing:
        def __init__(self):
            self.record = {"fingerprint": "x"}

        def rest(self):
            pass

    monkeypatch.setattr(module, "encode_column", one)
    rng = np.random.default_rng(0)
    pictures = dcmh.Images(list(rng.integers(0, 256, (100, 4, 4, 3), dtype=np.uint8)))
    found, failed = Shards(tmp_path, Nothing(), pictures, "image").finish()
    assert seen == [32, 32, 32, 4]
    assert sorted(found) == list(range(100))
    assert not failed
