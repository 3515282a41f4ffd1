"""A real Ray cluster of two nodes: the result of one process, also when workers, nodes and the driver are killed."""

from __future__ import annotations

import json
import os
import random
import time

import numpy as np
import pytest
from folders import contents
from PIL import Image

import dcmh
from clusters import Written, drive, finish_with_kills, nodes
from dcmh.errors import DataError, EngineError
from dcmh.search import SearchIndex, blocks, pools
from dcmh.search.blocks import Blocks, Task, Work
from dcmh.search.encode import Encoders
from dcmh.search.plan import measure
from dcmh.search.pools import RayPool, ThisProcess

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray


@pytest.fixture(scope="module")
def words_model(tmp_path_factory):
    """A model of vectors and texts, which workers load without torch."""
    folder = tmp_path_factory.mktemp("trained") / "words"
    toy = dcmh.load_dataset("toy")
    vectors = np.random.default_rng(0).random((len(toy), 8)).astype(np.float32)
    data = dcmh.Dataset({"image": dcmh.Vectors(vectors), "text": toy.text}, labels=toy.labels)
    dcmh.DCMH(bits=16, hidden=16, epochs=1, device="cpu").fit(data.split(12, seed=0).train).save(folder)
    return folder


@pytest.fixture(scope="module")
def cluster():
    with nodes(2) as started:
        yield started


@pytest.fixture
def pool(cluster):
    import ray

    yield RayPool(cluster.address)
    ray.shutdown()


def texts(count):
    values = [f"sunny {n} yellow" if n % 5 else "😀" for n in range(count)]
    return dcmh.Dataset({"text": dcmh.Texts(values)}, ids=[f"item {n}" for n in range(count)])


def files(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


def wait_for(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_killed_workers_and_nodes_change_nothing(cluster, pool, words_model, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "ROWS", 16)
    data, work = texts(1600), Work(words_model, "cpu")
    Blocks(tmp_path / "one", Encoders(words_model), data, work).encode(ThisProcess())
    made = Blocks(tmp_path / "ray", Encoders(words_model), data, work)
    kills = iter([cluster.kill_worker, cluster.kill_node, cluster.kill_worker])
    seen = Written(tmp_path / "ray")
    done = []

    def kill(state):
        assert seen.check() == state.encoded // 16
        if state.encoded in (160, 480, 960):
            done.append(next(kills)(random.Random(0)))

    assert pool.capacity("cpu") == blocks.Capacity(3, 2, 1, 0)
    state = made.encode(pool, kill)
    assert done == [True, True, True]
    assert (state.encoded, state.failed) == (1600, 320)
    assert files(tmp_path / "one") == files(tmp_path / "ray")


@pytest.mark.slow
def test_a_killed_driver_loses_only_blocks_in_flight(cluster, words_model, tmp_path):
    lines = [json.dumps({"id": f"{n}", "text": f"sunny {n} yellow"}) for n in range(1200)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    command = ("encode", tmp_path / "pairs.jsonl", "--model", words_model, "--modality", "text", "--out")
    assert drive(*command, "one", rows=8, cwd=tmp_path, log=tmp_path / "log").wait() == 0
    driver = drive(*command, "ray", "--ray", cluster.address, rows=8, cwd=tmp_path, log=tmp_path / "log")
    seen = Written(tmp_path / ".ray.blocks")
    wait_for(lambda: seen.check() >= 5)
    driver.kill()
    driver.wait()
    before = seen.check()
    assert before < 150
    again = drive(*command, "ray", "--ray", cluster.address, rows=8, cwd=tmp_path, log=tmp_path / "log")
    while again.poll() is None:
        seen.check()  # what was finished is not written again
    assert again.returncode == 0, (tmp_path / "log").read_text()
    for name in ("codes.npy", "ids.txt", "codes.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "ray" / name).read_bytes()
    assert not (tmp_path / ".ray.blocks").exists()


@pytest.mark.slow
def test_an_index_of_photos_is_that_of_one_process(pool, own, tmp_path):
    """By another process: workers use the real network, for which these tests have put another one into this process."""
    photos = own / "photos"
    (photos / "020.png").write_bytes(b"no picture")
    data = dcmh.load_dataset(photos, keep_partial=True)
    SearchIndex.build(None, data, tmp_path / "ray.dcmh", pool=pool, device="cpu").close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DCMH_HOME", str(tmp_path / "home"))
        one = drive("index", photos, "--out", tmp_path / "one.dcmh", rows=1024, cwd=tmp_path, log=tmp_path / "log")
        assert one.wait() == 0, (tmp_path / "log").read_text()
    assert contents(tmp_path / "one.dcmh") == contents(tmp_path / "ray.dcmh")


def test_the_plan_knows_the_cluster(pool, words_model, tmp_path):
    plan = measure(Blocks(tmp_path, Encoders(words_model), texts(5000), Work(words_model, "cpu")), pool)
    assert (plan.nodes, plan.workers, plan.cpus, plan.blocks, plan.sampled) == (3, 2, 1, 5, 512)


class Deadly:
    """Ends the process that unpickles it."""

    ids = ("a.jpg", "z.jpg")

    def __reduce__(self):
        return os._exit, (9,)


class Broken:
    def __init__(self, *arguments):
        raise RuntimeError("no driver for this device")

    def ready(self):
        return 0


@pytest.mark.slow
def test_errors_of_actors(pool, words_model, monkeypatch):
    monkeypatch.setattr(pools, "ATTEMPTS", 2)
    with pytest.raises(AttributeError):
        list(pool.run(Work(words_model, "cpu"), [Task(0, None, [])], 1))
    with pytest.raises(DataError, match=r"block 7 \(items a.jpg to z.jpg\) ended 2 times"):
        list(pool.run(Work(words_model, "cpu"), [Task(7, Deadly(), [])], 1))
    monkeypatch.setattr(pools, "_Actor", Broken)
    with pytest.raises(EngineError, match="Ray actors do not start"):
        list(pool.run(Work(words_model, "cpu"), [Task(0, texts(1), [bytes(16)])], 1))


def test_an_address_where_nobody_answers():
    with pytest.raises(EngineError, match=r"no Ray cluster at 127.0.0.1:9\."):
        RayPool("127.0.0.1:9")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kills_of_workers_nodes_and_driver(tmp_path):
    """How many there is time for depends on the machine; benchmarks/scale.py kills 20 times in 12,000 photos."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for row in range(1500):
        Image.fromarray(rng.integers(0, 256, (48, 48, 3), dtype=np.uint8)).save(tmp_path / "photos" / f"{row:04}.png")
    (tmp_path / "photos" / "0700.png").write_bytes(b"no picture")
    from dcmh.methods import starter

    command = ("encode", "photos", "--model", starter.folder(), "--modality", "image", "--device", "cpu", "--out")
    assert drive(*command, "one", rows=16, cwd=tmp_path, log=tmp_path / "log").wait() == 0
    seed = int.from_bytes(os.urandom(2))
    with nodes(2) as cluster:
        done = finish_with_kills(
            cluster,
            (*command, "ray", "--ray", cluster.address),
            rows=16,
            cwd=tmp_path,
            blocks=tmp_path / ".ray.blocks",
            kills=12,
            wait=1.5,
            seed=seed,
        )
    assert sum(done.values()) >= 5, (seed, done)
    for name in ("codes.npy", "ids.txt", "codes.json", "skipped.tsv"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "ray" / name).read_bytes(), seed
