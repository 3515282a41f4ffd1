"""Pictures decoded by several processes give the same codes, and the processes end."""

from __future__ import annotations

import shutil

import pytest
from folders import COUNT

from dcmh.inputs import decoding, decoding_workers
from dcmh.search import SearchIndex, encode
from dcmh.search.blocks import Blocks, Work
from dcmh.search.encode import Encoders, PictureEncoder
from dcmh.search.pools import ThisProcess
from toy_photos import load


@pytest.mark.parametrize("batch", [32, 64])
def test_processes_give_the_codes_that_threads_give(own, model, monkeypatch, batch):
    """With unreadable files and copies in the middle, in groups of a CPU and of a GPU."""
    if not decoding_workers.can_work():
        pytest.skip("processes share memory on Linux only")
    photos = own / "photos"
    (photos / "020.png").write_bytes((photos / "020.png").read_bytes()[:300])
    (photos / "035.png").write_text("no picture")
    shutil.copy(photos / "003.png", photos / "004.png")
    data, started, sizes = load(photos), [], []
    monkeypatch.setattr("dcmh.inputs.features.batch_on", lambda target: batch)
    monkeypatch.setattr(encode, "BATCHES", 1)  # a group is a batch
    prepare = PictureEncoder.prepare
    monkeypatch.setattr(
        PictureEncoder, "prepare", lambda self, *given: sizes.append(len(given[1])) or prepare(self, *given)
    )
    start = decoding_workers.WorkerPool.start

    def noted(self):
        start(self)
        started.extend(self._workers)

    monkeypatch.setattr(decoding_workers.WorkerPool, "start", noted)
    found = []
    for cores in (1, 4):
        monkeypatch.setattr(decoding, "cores", lambda cores=cores: cores)
        monkeypatch.setattr(decoding, "MIN_FILES", 8)
        monkeypatch.setenv("DCMH_HOME", str(own / f"home {cores}"))  # nothing is known yet
        with SearchIndex.build(model, data, own / f"{cores}.dcmh") as index:
            indexed = [index.codes_of(number) for number in range(1, 1 + len(index))]
            skipped = sorted(index.changes.skipped)
        monkeypatch.setenv("DCMH_HOME", str(own / f"other home {cores}"))
        blocks = Blocks(own / f"blocks {cores}", Encoders(model), data, Work(model, "cpu"), modalities=["image"])
        blocks.encode(ThisProcess())
        encoded = list(blocks)
        found.append((indexed, skipped, encoded))
        assert len(started) == (0 if cores == 1 else 8)
    assert found[0] == found[1]
    assert [name for name, _ in found[0][1]] == ["020.png", "035.png"]
    assert sizes[0] == (32 if batch == 32 else COUNT - 1)  # a copy is not decoded
    assert all(worker.process.returncode is not None for worker in started)


def test_an_interrupted_encoding_ends_its_processes(own, model, monkeypatch):
    if not decoding_workers.can_work():
        pytest.skip("processes share memory on Linux only")
    monkeypatch.setattr(decoding, "cores", lambda: 4)
    monkeypatch.setattr(decoding, "MIN_FILES", 1)
    monkeypatch.setenv("DCMH_HOME", str(own / "home"))
    stopped = []
    monkeypatch.setattr(PictureEncoder, "stop_workers", lambda self: stopped.append(self._decoder.stop_workers()))
    monkeypatch.setattr("dcmh.search.blocks.ROWS", 16)
    blocks = Blocks(own / "blocks", Encoders(model), load(own / "photos"), Work(model, "cpu"))

    def stop(state):
        if state.encoded:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        blocks.encode(ThisProcess(), stop)
    assert stopped
