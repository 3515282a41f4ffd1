"""Saving and loading: memory-mapped, atomic, and clear about damage."""

from __future__ import annotations

import json
import os
import threading
import time

import numpy as np
import pytest
from oracle import listed, random_codes

from dcmh.errors import ModelError
from dcmh.index import HammingIndex, fine, storage


@pytest.fixture
def index():
    index = HammingIndex(100)
    index.add(np.arange(200)[::-1], random_codes(np.random.default_rng(0), 200, 100))
    index.remove([3, 50])
    return index


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("mmap", [True, False])
def test_round_trip_then_change(index, tmp_path, mmap, engine):
    index.save(tmp_path / "new" / "index")
    again = HammingIndex.load(tmp_path / "new" / "index", mmap=mmap, threads=1)
    queries = index.codes([7, 8])
    assert (again.bits, again.threads, again.ids.tolist()) == (100, 1, index.ids.tolist())
    assert listed(again.search(queries, 9)) == listed(index.search(queries, 9))
    again.add([3], queries[:1])
    again.remove([7])
    assert again.search(queries, 1)[0].ids.tolist() == [3]
    again.save(tmp_path / "new" / "index")
    assert HammingIndex.load(tmp_path / "new" / "index").ids.tolist() == again.ids.tolist()
    assert len(index) == 198


def test_loading_does_not_read_the_file_into_memory(index, tmp_path):
    index.save(tmp_path)
    words = HammingIndex.load(tmp_path)._state.table.words_room
    assert isinstance(words.base, np.memmap)


def test_empty_index(tmp_path):
    HammingIndex(16).save(tmp_path)
    index = HammingIndex.load(tmp_path)
    index.add([1], np.zeros((1, 2), np.uint8))
    assert len(index) == 1


def test_size_on_disk(tmp_path):
    index = HammingIndex(64)
    index.add(np.arange(5000), np.zeros((5000, 8), np.uint8))
    index.save(tmp_path)
    sizes = {path.name.split("-")[0]: path.stat().st_size for path in tmp_path.glob("*.npy")}
    assert sizes == {"codes": 8 * 5000 + 128, "ids": 8 * 5000 + 128}


def test_saving_again_replaces_and_tidies_up(index, tmp_path):
    left = tmp_path / "codes-0123456789abcdef.npy"
    left.write_bytes(b"left by a crash")
    os.utime(left, (time.time() - 2 * storage.ABANDONED,) * 2)
    (tmp_path / "catalogue.sqlite").write_bytes(b"not ours")
    index.save(tmp_path)
    before = names(tmp_path)
    mapped = HammingIndex.load(tmp_path)
    index.add([999], index.codes([5]))
    index.save(tmp_path)
    assert len(names(tmp_path)) == len(before) == 4
    assert "catalogue.sqlite" in names(tmp_path)
    assert len(mapped.search(index.codes([5]), 500)[0]) == 198  # its files are gone by name, not by content


def test_those_who_save_at_once_leave_one_index_whole(tmp_path):
    """Every reader finds what one of them saved, whole; and so does the last one."""
    saved = [HammingIndex(64) for _ in range(3)]
    for size, index in enumerate(saved, 1):
        index.add(np.arange(100 * size), random_codes(np.random.default_rng(size), 100 * size, 64))
    saved[0].save(tmp_path)
    found, wrong = [], []

    def repeat(act):
        def run():
            try:
                for _ in range(30):
                    act()
            except Exception as error:
                wrong.append(error)

        return run

    def read():
        index = HammingIndex.load(tmp_path, mmap=False)
        found.append((len(index), index.codes(index.ids).tobytes()))

    acts = [lambda index=index: index.save(tmp_path) for index in saved]
    threads = [threading.Thread(target=repeat(act)) for act in [*acts, read, read]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    read()
    assert set(found) <= {(len(index), index.codes(index.ids).tobytes()) for index in saved}


def test_files_of_somebody_who_saves_now_stay(index, tmp_path):
    index.save(tmp_path)
    (tmp_path / "codes-0123456789abcdef.npy").write_bytes(b"half of it")
    index.save(tmp_path)
    assert "codes-0123456789abcdef.npy" in names(tmp_path)
    assert len(names(tmp_path)) == 4


def test_a_save_that_breaks_off_changes_nothing(index, tmp_path, monkeypatch):
    index.save(tmp_path)
    index.remove([5])

    def fail(*_):
        raise OSError("killed")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="killed"):
        index.save(tmp_path)
    assert len(HammingIndex.load(tmp_path)) == 198


def damage_truncate(folder):
    path = next(folder.glob("codes-*.npy"))
    path.write_bytes(path.read_bytes()[:-8])


def damage_header_only(folder):
    path = next(folder.glob("ids-*.npy"))
    path.write_bytes(path.read_bytes()[:20])


def damage_foreign_array(folder):
    np.save(next(folder.glob("ids-*.npy")), np.zeros(198))


def damage_delete(folder):
    next(folder.glob("codes-*.npy")).unlink()


def edit(**changes):
    def change(folder):
        header = json.loads((folder / "hamming.json").read_text())
        header.update(changes)
        del header["checksum"]  # which would reveal the change first
        (folder / "hamming.json").write_text(json.dumps(header))

    return change


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_truncate, "damaged: codes-.*cannot be read"),
        (damage_header_only, "damaged: ids-.*cannot be read"),
        (damage_foreign_array, "damaged: ids-.*holds float64"),
        (damage_delete, "damaged: codes-.*is missing"),
        (lambda folder: (folder / "hamming.json").write_text("{"), "is not JSON"),
        (lambda folder: (folder / "hamming.json").write_text("[]"), "does not describe a Hamming index"),
        (lambda folder: (folder / "hamming.json").unlink(), "there is no hamming.json"),
        (edit(format=99), r"has format 99; this dcmh \(.*\) reads up to 1\. Upgrade"),
        (edit(kind="a poem"), "does not describe a Hamming index"),
        (edit(codes="/etc/passwd"), "lacks an entry"),
        (edit(bits=300), "holds uint64 of shape"),
    ],
)
def test_damaged_or_foreign_folders(index, tmp_path, damage, message, mmap):
    index.save(tmp_path)
    damage(tmp_path)
    with pytest.raises(ModelError, match=message):
        HammingIndex.load(tmp_path, mmap=mmap)


def test_a_file_is_no_index(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="No index in"):
        HammingIndex.load(tmp_path / "file")


def test_fine_vectors_that_are_fetched_ahead_score_the_same(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    vectors = rng.integers(-128, 128, (5000, 128)).astype(np.int8)
    fine.FineIndex.of(np.arange(1, 5001), vectors).save(tmp_path, 0)
    loaded, query = fine.FineIndex.load(tmp_path, 0), rng.standard_normal(128).astype(np.float32)
    wanted = np.array([1, 32, 33, 4999, 5000, 6000])
    before = loaded.scores_of(query, wanted)
    fetched = []
    monkeypatch.setattr(fine, "PREFETCHED", 0)
    prefetch = fine._prefetch
    monkeypatch.setattr(fine, "_prefetch", lambda array, rows: fetched.append(len(rows)) or prefetch(array, rows))
    np.testing.assert_array_equal(loaded.scores_of(query, wanted), before)
    assert fetched == [5, 5]  # vectors and checksums
    assert np.isnan(before[-1])
