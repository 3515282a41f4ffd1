"""A flipped byte is noticed: by opening and searching where that is cheap, and always by `dcmh check`."""

from __future__ import annotations

import json
import logging
import shutil

import numpy as np
import pytest
from folders import contents

import dcmh
import flips
from dcmh.cli import main
from dcmh.errors import DamagedError, DataError
from dcmh.index import HammingIndex
from dcmh.index.fine import FineIndex
from dcmh.search import SearchIndex
from dcmh.search.check import DAMAGED, OK, REPAIRED, UNVERIFIED, Check
from dcmh.search.words import WordEncoder
from dcmh.util import checksums
from dcmh.util.cache import VectorStore
from toy_photos import cheap


@pytest.fixture(scope="module")
def things(cheap_home, tmp_path_factory):
    with cheap(cheap_home):
        return flips.build(tmp_path_factory.mktemp("things"))


@pytest.fixture
def kept(things, tmp_path):
    shutil.copytree(things, tmp_path / "kept")
    return tmp_path / "kept"


def flip(path, offset=-1, change=1):
    content = bytearray(path.read_bytes())
    content[offset] ^= change
    path.write_bytes(content)


def checked(folder, *, repair=False):
    check = Check(repair=repair)
    check.index(folder)
    return check


def results(check):
    return {finding.what: finding.result for finding in check.findings}


def test_every_flip_is_noticed_by_check(kept):
    for kind, outcome in flips.run(kept, 40, seed=1, use=False).items():
        assert outcome["check"] == outcome["flips"], (kind, outcome)


def test_intact_things_are_intact(kept, capsys):
    for kind in flips.KINDS:
        assert main(["check", str(kept / kind), "--json"]) == 0
        record = json.loads(capsys.readouterr().out)
        assert record["intact"]
        assert {finding["result"] for finding in record["findings"]} == {OK}
    check = Check()
    check.index(kept / "index.dcmh")
    assert results(check)["catalogue.json"] == OK  # SQLite's own checks changed nothing


def test_damaged_codes_are_derived_from_the_catalogue(kept, caplog):
    folder = kept / "index.dcmh"
    expected = contents(folder)
    for pattern in ("codes-*.npy", "ids-*.npy", "hamming.json", "fine.json"):
        flip(next((folder / "codes" / "image").glob(pattern)), 150)
        assert not checked(folder).is_intact, pattern
        with caplog.at_level(logging.WARNING, "dcmh"), SearchIndex.open(folder) as index:
            assert len(index.search(text="sunny")) == 10
        assert "from the catalogue instead" in caplog.text
        assert contents(folder) == expected
        assert checked(folder).is_intact, pattern  # it was written again
        caplog.clear()
    for pattern in ("*-fine.npy", "*-ids.npy", "*-fine.sums"):  # which this model's queries do not use
        flip(next((folder / "codes" / "image").glob(pattern)), 2)
        assert not checked(folder).is_intact, pattern
        assert checked(folder, repair=True).is_intact
        assert checked(folder).is_intact


def test_damaged_codes_never_get_into_what_is_saved(kept):
    folder = kept / "index.dcmh"
    expected = contents(folder)
    with SearchIndex.open(folder) as index:
        flip(next((folder / "codes" / "image").glob("codes-*.npy")))  # mapped, and not used yet
        (added,) = index.add(text=["sunny yellow"], ids=["new"])
        index.remove([added])
        index.save()
    assert contents(folder) == expected
    check = checked(folder)
    assert check.is_intact


def test_a_read_only_index_with_damaged_codes_is_searched(kept, monkeypatch):
    folder = kept / "index.dcmh"
    expected = contents(folder)
    victim = next((folder / "codes" / "image").glob("codes-*.npy"))
    flip(victim)
    damaged = victim.read_bytes()

    def refuse(path):
        raise dcmh.errors.ModelError("may not be written")

    monkeypatch.setattr("dcmh.stores.local.layout.writer", refuse)
    with SearchIndex.open(folder) as index:
        index.search(text="sunny")
        hamming = index.store.snapshot.indexes["image"]
        assert hamming.codes(hamming.ids).tolist() == expected[1]["image"][1]
    assert victim.read_bytes() == damaged


def test_repair_derives_what_it_can_and_says_what_it_cannot(kept, capsys):
    folder = kept / "index.dcmh"
    flip(folder / "index.json", 40)
    flip(folder / "skipped.tsv", 3)
    flip(folder / "catalogue.json", 5)
    assert main(["check", str(folder)]) == 1
    capsys.readouterr()
    assert main(["check", str(folder), "--repair"]) == 0
    assert "derived from the catalogue" in capsys.readouterr().out
    assert main(["check", str(folder)]) == 0
    capsys.readouterr()
    flip(folder / "catalogue.sqlite", 5000)
    assert main(["check", str(folder), "--repair"]) == 1
    shown = capsys.readouterr()
    assert "It cannot be derived. Make the index again: dcmh index DATA" in shown.err
    assert "catalogue.sqlite" in shown.out


def test_an_index_that_was_not_saved_gets_the_weaker_check_which_is_said(kept):
    folder = kept / "index.dcmh"
    with SearchIndex.open(folder) as index:
        index.add(text=["sunny yellow"], ids=["new"])
    check = checked(folder)
    assert check.is_intact
    assert results(check)["catalogue.json"] == UNVERIFIED
    check = checked(folder, repair=True)
    assert results(check)["catalogue.json"] == REPAIRED
    check = checked(folder)
    assert set(results(check).values()) == {OK}


@pytest.mark.parametrize(("text", "byte"), [(b"sunny", b"\xed"), (b'["', b"x")])
def test_damaged_rows_of_the_catalogue_are_explained(kept, text, byte):
    path = kept / "index.dcmh" / "catalogue.sqlite"
    path.write_bytes(path.read_bytes().replace(text, byte + text[1:]))
    assert not checked(kept / "index.dcmh").is_intact
    with pytest.raises(dcmh.errors.ModelError, match="damaged"), SearchIndex.open(kept / "index.dcmh") as index:
        list(index.store.items())


def test_index_and_model_must_belong_together(kept):
    other = dcmh.DCMH(**flips.SETTINGS, epochs=1, seed=5).fit(dcmh.load_dataset("toy").take(np.arange(60)), fine=0)
    shutil.rmtree(kept / "index.dcmh" / "model")
    other.save(kept / "index.dcmh" / "model")
    check = Check()
    check.index(kept / "index.dcmh")
    assert results(check)["index and model belong together"] == DAMAGED


def test_folders_without_checksums_open_and_get_them_on_request(kept):
    for kind in ("model", "codes"):
        (kept / kind / "checksums.json").unlink()
        (kept / kind / "weights.safetensors.crc32").unlink(missing_ok=True)
        for repair, expected in ((False, UNVERIFIED), (True, REPAIRED), (False, OK)):
            check = Check(repair=repair)
            (check.model if kind == "model" else check.codes)(kept / kind)
            assert check.is_intact
            assert results(check)["checksums.json"] == expected
    assert dcmh.load(kept / "model").encode(text=["sunny"]).shape == (1, 16)


def test_word_queries_check_the_weights_that_they_read(kept):
    whole = WordEncoder(kept / "model")
    size = (kept / "model" / "weights.safetensors").stat().st_size
    expected = whole.encode(["sunny yellow"])
    noticed = 0
    for offset in range(9, size, size // 40):
        flip(kept / "model" / "weights.safetensors", offset, 64)
        try:
            assert (WordEncoder(kept / "model").encode(["sunny yellow"]) == expected).all()
        except DamagedError:
            noticed += 1
        flip(kept / "model" / "weights.safetensors", offset, 64)
    assert noticed > 0


@pytest.mark.parametrize("name", ["model.json", "history.jsonl", "text.vocabulary.txt", "checksums.json"])
def test_small_files_of_a_model_are_checked_when_they_are_read(kept, name):
    flip(kept / "model" / name, 30)
    with pytest.raises(dcmh.errors.ModelError, match="damaged"):
        dcmh.load(kept / "model")


def test_a_damaged_checkpoint_says_how_to_go_on(kept):
    flip(kept / "state.safetensors", 2000)
    with pytest.raises(
        DataError, match=r"does not match its checksum\)\. Start over: repeat the command without --resume"
    ):
        flips.resume(kept)


def test_saved_arrays_are_checked_before_they_are_used(tmp_path):
    index = HammingIndex(16)
    index.add(np.arange(50), np.arange(100, dtype=np.uint8).reshape(50, 2))
    index.save(tmp_path)
    opened = HammingIndex.load(tmp_path)
    flip(next(tmp_path.glob("codes-*.npy")), -9)
    for use in (lambda: opened.search(np.zeros((1, 2), np.uint8), 3), lambda: opened.save(tmp_path)):
        with pytest.raises(DamagedError, match="does not match its checksum"):
            use()
    with pytest.raises(DamagedError):
        HammingIndex.load(tmp_path, mmap=False)


def test_fine_vectors_are_checked_where_they_are_read(tmp_path):
    ids = np.arange(1000)
    vectors = np.random.default_rng(0).integers(-40, 41, (1000, 64), np.int8)
    FineIndex.of(ids, vectors).save(tmp_path, 1)
    flip(next(tmp_path.glob("*-fine.npy")), -10)
    query = np.ones(64, np.float32)
    opened = FineIndex.load(tmp_path, 1)
    assert opened.scores_of(query, ids[:5]).tolist() == vectors[:5].sum(axis=1).tolist()
    for use in (lambda: opened.scores_of(query, ids[-1:]), lambda: opened.scores(query), lambda: opened.live()):
        with pytest.raises(DamagedError):
            use()
    FineIndex.of(ids, vectors).save(tmp_path, 2)
    replaced = FineIndex.load(tmp_path, 2)
    FineIndex.of(ids, vectors).save(tmp_path, 3)  # by another process: the older files are gone, and still mapped
    assert replaced.scores_of(query, ids[-1:]).tolist() == [vectors[-1].sum()]


def test_a_damaged_entry_of_the_cache_is_dropped(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("DCMH_HOME", str(tmp_path))
    store = VectorStore("features", "x")
    store.put([(bytes([n]) * 16, np.full(100, n, np.float32)) for n in range(5)])
    content = store.path.read_bytes()
    store.path.write_bytes(content.replace(np.full(3, 2, np.float32).tobytes(), np.full(3, 7, np.float32).tobytes()))
    assert main(["check"]) == 1
    with caplog.at_level(logging.WARNING, "dcmh"):
        assert sorted(key[0] for key in store.get([bytes([n]) * 16 for n in range(5)])) == [0, 1, 3, 4]
    assert "1 damaged entries" in caplog.text
    store.put([(bytes([2]) * 16, np.full(100, 2, np.float32))])
    assert len(store.get([bytes([2]) * 16])) == 1
    assert main(["check"]) == 0


def test_a_file_that_contains_its_checksum_hides_no_flip(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(checksums.sealed_json({"a": 1, "b": ["c"]}, indent=1))
    whole = path.read_bytes()
    for offset in range(len(whole)):
        for change in (1, 0x20, 0x80):
            flip(path, offset, change)
            with pytest.raises(DamagedError):
                checksums.check_sealed(path.read_bytes(), path)
            path.write_bytes(whole)
    assert checksums.check_sealed(whole, path)
    assert not checksums.check_sealed(b"{}", path)
