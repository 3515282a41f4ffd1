"""Blocks: the same items in the same block whoever encodes them, none twice, and damaged or outdated ones again."""

from __future__ import annotations

import os
import signal

import numpy as np
import psutil
import pytest
from folders import contents

import dcmh
from dcmh.errors import BusyError, DataError, MissingExtra, ParameterError
from dcmh.search import SearchIndex, blocks, pools
from dcmh.search.block_files import read_block
from dcmh.search.blocks import Blocks, Task, Work
from dcmh.search.encode import Encoders
from dcmh.search.plan import measure
from dcmh.search.pools import Processes, RayPool, ThisProcess, open_pool
from toy_photos import load


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(blocks, "ROWS", 32)


@pytest.fixture(scope="session")
def words_model(tmp_path_factory):
    """A model of vectors and texts, which workers load without torch."""
    folder = tmp_path_factory.mktemp("trained") / "words"
    toy = dcmh.load_dataset("toy")
    vectors = np.random.default_rng(0).random((len(toy), 8)).astype(np.float32)
    data = dcmh.Dataset({"image": dcmh.Vectors(vectors), "text": toy.text}, labels=toy.labels)
    dcmh.DCMH(bits=16, hidden=16, epochs=1, device="cpu").fit(data.split(12, seed=0).train).save(folder)
    return folder


def texts(count=320, **changed):
    values = [f"sunny {n} yellow" if n % 5 else "😀" for n in range(count)]
    for row, text in changed.items():
        values[int(row.removeprefix("row"))] = text
    return dcmh.Dataset({"text": dcmh.Texts(values)}, ids=[f"item {n}" for n in range(count)])


def of(folder, model, data, **options):
    return Blocks(folder, Encoders(model), data, Work(model, "cpu"), **options)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


def written(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}


def test_the_rows_of_a_block_do_not_depend_on_what_is_wanted(tmp_path, words_model):
    data = texts(100)
    whole = of(tmp_path, words_model, data)
    assert {number: len(rows) for number, rows in whole.rows.items()} == {0: 32, 1: 32, 2: 32, 3: 4}
    some = of(tmp_path, words_model, data, rows=[99, 3, 40])
    assert {number: rows.tolist() for number, rows in some.rows.items()} == {0: [3], 1: [40], 3: [99]}
    assert of(tmp_path, words_model, data, rows=[]).encode(ThisProcess()).total == 0


def test_codes_are_those_of_the_model_and_failures_are_listed(tmp_path, words_model):
    data = texts()
    made = of(tmp_path, words_model, data)
    state = made.encode(ThisProcess())
    assert (state.done, state.total, state.encoded, state.failed) == (320, 320, 320, 64)
    assert state.written == sum(map(len, files(tmp_path).values()))
    packed = dcmh.codes.pack(dcmh.load(words_model).encode(text=data.text))
    for row, item in made:
        if row % 5:
            assert item.codes["text"] == packed[row].tobytes()
            assert len(item.fine["text"]) == Encoders(words_model).fine.dimensions
        else:
            assert "no word that the model knows" in item.error
            assert not item.codes


def test_a_finished_block_is_not_encoded_again_unless_it_is_damaged(tmp_path, words_model):
    made = of(tmp_path, words_model, texts())
    made.encode(ThisProcess())
    first, before = files(tmp_path), written(tmp_path)
    assert made.encode(ThisProcess()).encoded == 0
    damaged = bytearray(first["block-000004.parquet"])
    damaged[len(damaged) // 3] ^= 1
    made.file(4).write_bytes(damaged)
    made.file(6).unlink()
    made.file(7).write_bytes(first["block-000007.parquet"][:-20])
    assert made.missing() == [4, 6, 7]
    assert made.encode(ThisProcess()).encoded == 96
    assert files(tmp_path) == first
    kept = {name for name, moment in written(tmp_path).items() if before[name] == moment}
    assert len(kept) == 7


def test_other_items_texts_and_models_are_other_work(tmp_path, words_model, model):
    of(tmp_path, words_model, texts()).encode(ThisProcess())
    assert of(tmp_path, words_model, texts(row70="another text")).missing() == [2]
    assert of(tmp_path, words_model, texts(330)).missing() == [10]
    assert len(of(tmp_path, model, texts()).missing()) == 10
    joint = Blocks(tmp_path, Encoders(words_model), texts(), Work(words_model, "cpu", joint=True))
    assert len(joint.missing()) == 10


def test_a_block_serves_those_of_its_items_that_are_still_wanted(tmp_path, words_model):
    """An index that was killed while it loaded a block has some of its items already."""
    of(tmp_path, words_model, texts()).encode(ThisProcess())
    assert of(tmp_path, words_model, texts(), rows=range(50, 320)).missing() == []


def test_one_process_at_a_time_writes(tmp_path, words_model):
    made = of(tmp_path, words_model, texts())

    def intrude(state):
        with pytest.raises(BusyError, match="Another process is encoding"):
            of(tmp_path, words_model, texts()).encode(ThisProcess())

    made.encode(ThisProcess(), intrude)


def test_files_that_are_no_blocks(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    parquet.write_table(pa.table({"id": ["a"]}), tmp_path / "other.parquet")
    with pytest.raises(ValueError, match="not a block"):
        read_block(tmp_path / "other.parquet")


# -- worker processes -----------------------------------------------------------------------------------------------------


def test_processes_write_the_same_bytes_also_when_one_is_killed(tmp_path, words_model):
    of(tmp_path / "one", words_model, texts()).encode(ThisProcess())
    killed = []

    def kill(state):
        if state.encoded >= 64 and not killed:
            workers = [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]
            killed.append(workers[0].pid)
            os.kill(workers[0].pid, signal.SIGKILL)

    state = of(tmp_path / "two", words_model, texts()).encode(Processes(2), kill)
    assert killed
    assert state.encoded == 320
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_block_that_the_pool_of_processes_refuses_is_encoded_later(tmp_path, words_model, monkeypatch):
    """A process may end between the wait for results and the next submission."""
    submissions = []

    class Breaking(pools.ProcessPoolExecutor):
        def submit(self, *arguments):
            submissions.append(arguments)
            if len(submissions) == 3:
                raise pools.BrokenProcessPool
            return super().submit(*arguments)

    monkeypatch.setattr(pools, "ProcessPoolExecutor", Breaking)
    made = of(tmp_path, words_model, texts())
    assert made.encode(Processes(2)).encoded == 320
    assert made.missing() == []


class Deadly:
    """Ends the process that unpickles it."""

    ids = ("a.jpg", "z.jpg")

    def __reduce__(self):
        return os._exit, (9,)


def test_a_block_that_ends_every_worker_is_an_error_that_names_it(monkeypatch, words_model):
    monkeypatch.setattr(pools, "ATTEMPTS", 2)
    with pytest.raises(DataError, match=r"block 7 \(items a.jpg to z.jpg\) ended 2 times"):
        list(Processes(2).run(Work(words_model), [Task(7, Deadly(), [])], 1))


def test_an_error_of_a_worker_is_the_error_of_the_run(words_model, tmp_path):
    with pytest.raises(AttributeError):
        list(Processes(2).run(Work(words_model), [Task(0, None, [])], 1))


def test_how_to_encode_is_checked():
    with pytest.raises(ParameterError, match="--workers must be at least 1, not 0"):
        open_pool(workers=0)
    with pytest.raises(ParameterError, match="mutually exclusive"):
        open_pool(workers=2, ray="local")


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtra, match=r'pip install "dcmh\[ray\]"'):
        RayPool("local")


# -- indexes, plans, metrics ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codes", ["each", "joint"])
def test_an_index_from_blocks_is_that_of_one_process(own, model, codes):
    photos = own / "photos"
    (photos / "020.png").write_bytes(b"no picture")
    (photos / "004.png").write_bytes((photos / "003.png").read_bytes())
    SearchIndex.build(model, load(photos), own / "one.dcmh", codes=codes).close()
    seen = []
    built = SearchIndex.build(
        model, load(photos), own / "two.dcmh", codes=codes, pool=ThisProcess(), on_block=seen.append
    )
    assert [name for name, _ in built.changes.skipped] == ["020.png"]
    built.close()
    assert seen[-1].done == 48
    assert contents(own / "one.dcmh") == contents(own / "two.dcmh")
    assert not list(own.glob(".*.blocks"))


def test_an_update_encodes_only_what_is_new(own, model):
    (own / "photos" / "new.png").write_bytes((own / "photos" / "003.png").read_bytes() + b" ")
    seen = []
    with SearchIndex.build(
        model, load(own / "photos"), own / "photos.dcmh", pool=ThisProcess(), on_block=seen.append
    ) as index:
        assert (index.changes.new, index.changes.unchanged) == (1, 48)
    assert seen[-1].total == 1


def test_an_index_that_was_killed_while_it_loaded_encodes_nothing_again(own, model, monkeypatch):
    SearchIndex.build(model, load(own / "photos"), own / "one.dcmh").close()
    monkeypatch.setattr("dcmh.search.update.COMMIT_SECONDS", 0)
    monkeypatch.setattr("dcmh.search.pipeline.ENTRIES", 20)
    commit, commits = dcmh.search.update.Update._commit, []

    def stop(self, groups):
        if self.encoded is not None:
            commits.append(len(groups))
            if len(commits) == 2:
                raise KeyboardInterrupt
        commit(self, groups)

    monkeypatch.setattr("dcmh.search.update.Update._commit", stop)
    with pytest.raises(KeyboardInterrupt):
        SearchIndex.build(model, load(own / "photos"), own / "two.dcmh", pool=ThisProcess())
    seen = []
    SearchIndex.build(model, load(own / "photos"), own / "two.dcmh", pool=ThisProcess(), on_block=seen.append).close()
    assert (seen[-1].total, seen[-1].encoded) == (28, 0)
    assert contents(own / "one.dcmh") == contents(own / "two.dcmh")


def test_the_plan_comes_from_a_sample(tmp_path, words_model):
    made = of(tmp_path, words_model, texts(1000))
    made.encode(ThisProcess())
    made.file(0).unlink()
    plan = measure(made, Processes(2))
    assert (plan.items, plan.left, plan.blocks, plan.blocks_left) == (1000, 32, 32, 1)
    assert (plan.workers, plan.nodes, plan.sampled) == (2, 1, 32)
    assert plan.rate > 0
    assert plan.seconds == pytest.approx(32 / plan.rate)
    assert plan.code_bytes == 1000 * (2 + 8)
    assert plan.worker_bytes > 10_000_000
    assert not made.file(0).exists()


def test_metrics_are_in_the_format_of_prometheus(tmp_path, words_model):
    parser = pytest.importorskip("prometheus_client.parser")
    state = of(tmp_path, words_model, texts()).encode(ThisProcess())
    found = {
        family.name: family.samples[0].value for family in parser.text_string_to_metric_families(state.exposition())
    }
    assert found["dcmh_encode_items_done"] == found["dcmh_encode_items"] == 320
    assert found["dcmh_encode_items_failed"] == 64
    assert found["dcmh_encode_bytes_written"] == state.written
    assert found["dcmh_encode_items_per_second"] > 0
