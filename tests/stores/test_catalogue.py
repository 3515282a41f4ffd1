"""The catalogue: what is committed stays, what is not leaves no trace, and other versions are understood or refused."""

from __future__ import annotations

import shutil
import sqlite3
import threading

import numpy as np
import pytest

from dcmh import __version__
from dcmh.errors import BusyError, ModelError
from dcmh.stores.base import Item, Skipped, item_words
from dcmh.stores.local import catalogue as module
from dcmh.stores.local import database
from dcmh.stores.local.catalogue import Catalogue

SEA = Item("sea.jpg", "a/sea.jpg", "the sea, ünïcode", ("water", "blue"), b"0" * 16, 120, 17)


@pytest.fixture
def catalogue(tmp_path):
    found = Catalogue.create(tmp_path / "catalogue.sqlite", {"bits": "16"})
    yield found
    found.close()


def put(catalogue, *items):
    with catalogue.writing():
        return [catalogue.put(item) for item in items]


def test_items_come_back_as_they_were_oldest_first(catalogue):
    ids = put(catalogue, SEA, Item("words only", text="nothing but words"))
    assert ids == [1, 2]
    first, second = catalogue.items()
    assert first == Item(**{**vars(SEA), "id": 1})
    assert (second.name, second.path, second.labels, second.content) == ("words only", None, (), None)
    assert catalogue.get([2, 1, 99]) == {1: first, 2: second}
    assert catalogue.find("sea.jpg") == first
    assert catalogue.find("see.jpg") is None
    assert catalogue.with_contents([b"0" * 16, b"1" * 16]) == {b"0" * 16: first}
    assert len(catalogue) == 2


def test_an_item_with_an_id_replaces(catalogue):
    put(catalogue, SEA)
    put(catalogue, Item("lake.jpg", text="a lake", id=1))
    assert [item.name for item in catalogue.items()] == ["lake.jpg"]


def test_ids_are_never_used_again(catalogue):
    put(catalogue, SEA)
    with catalogue.writing():
        catalogue.remove([1])
    assert put(catalogue, SEA) == [2]


def test_codes_by_modality_oldest_first(catalogue):
    put(catalogue, SEA, Item("b"), Item("c"))
    with catalogue.writing():
        for item, code in ((3, b"\3\3"), (1, b"\1\1")):
            catalogue.set_code(item, "image", code)
        catalogue.set_code(2, "text", b"\2\2")
    ids, packed = catalogue.codes("image", 2)
    assert ids.tolist() == [1, 3]
    assert packed.tolist() == [[1, 1], [3, 3]]
    assert packed.dtype == np.uint8
    assert catalogue.coded_modalities() == ["image", "text"]
    assert catalogue.codes_of("image", [1, 2]) == {1: b"\1\1"}
    assert catalogue.codes_of("text", range(1, 2000)) == {2: b"\2\2"}
    with catalogue.writing():
        catalogue.remove([3])
        catalogue.set_code(2, "text", None)
    assert catalogue.codes("image", 2)[0].tolist() == [1]
    assert catalogue.coded_modalities() == ["image"]
    assert catalogue.codes("text", 2)[1].shape == (0, 2)


def test_codes_of_another_length_are_damage(catalogue):
    put(catalogue, SEA)
    with catalogue.writing():
        catalogue.set_code(1, "image", b"\1")
    with pytest.raises(ModelError, match="its codes differ in length"):
        catalogue.codes("image", 2)


def test_a_failed_change_leaves_no_trace(catalogue):
    before = catalogue.generation
    with pytest.raises(ZeroDivisionError), catalogue.writing():
        catalogue.put(SEA)
        _ = 1 / 0
    assert len(catalogue) == 0
    assert catalogue.generation == before
    put(catalogue, SEA)
    assert catalogue.generation == before + 1


def test_what_was_skipped(catalogue):
    with catalogue.writing():
        catalogue.skip("bad.jpg", Skipped("empty file", 0, 5))
        catalogue.skip("worse.jpg", Skipped("not an image"))
        catalogue.unskip(["worse.jpg"])
    assert catalogue.skipped() == {"bad.jpg": Skipped("empty file", 0, 5)}


def test_the_items_with_a_word_follow_every_change(catalogue, tmp_path, monkeypatch):
    put(catalogue, SEA, Item("two", text="the sea"), Item("three", text="a lake"))
    assert catalogue.with_word("sea").tolist() == [1, 2]
    assert catalogue.with_word("sea") is catalogue.with_word("sea")  # kept
    other = Catalogue(tmp_path / "catalogue.sqlite")
    put(other, Item("four", text="sea"))
    assert catalogue.with_word("sea").tolist() == [1, 2, 4]
    with pytest.raises(ZeroDivisionError), catalogue.writing():
        catalogue.remove([1])
        assert catalogue.with_word("sea").tolist() == [2, 4]
        raise ZeroDivisionError
    assert catalogue.with_word("sea").tolist() == [1, 2, 4]
    monkeypatch.setattr(module, "CACHED_IDS", 3)
    catalogue.with_word("lake")
    assert list(catalogue._postings) == ["lake"]
    other.close()


@pytest.mark.parametrize("short", [0, 30], ids=["the words of each item", "the list of the word"])
def test_the_items_with_a_word_among_some(catalogue, monkeypatch, short):
    monkeypatch.setattr(module, "IDS_PER_LOOKUP", short)
    put(catalogue, *(Item(f"{number}", text="the season" if number % 3 else "the sea") for number in range(700)))
    among = [999, 700, *range(602, 0, -1)]
    assert catalogue.with_word("sea", among).tolist() == [*range(1, 603, 3), 700]
    assert ("sea" in catalogue._postings) == (short > 0)
    assert catalogue.with_word("sea", []).tolist() == []
    assert catalogue.with_word("lake", among).tolist() == []
    counts = {"sea": 234, "season": 466, "lake": 0}
    assert catalogue.word_counts(list(counts)) == counts
    assert len(catalogue.with_word("season")) == counts["season"]
    assert catalogue.word_counts(list(counts)) == counts


def test_many_words_are_counted_at_once(catalogue):
    put(catalogue, *(Item(f"{number}", text=f"common w{number}") for number in range(1200)))
    kept = catalogue.with_word("w7")
    counts = catalogue.word_counts(["common", "nowhere", *(f"w{number}" for number in range(2, 1400))])
    assert counts == {"common": 1200, "nowhere": 0} | {f"w{number}": int(number < 1200) for number in range(2, 1400)}
    assert counts["w7"] == len(kept)


def test_threads_share_it(catalogue):
    def work(name):
        for number in range(20):
            put(catalogue, Item(f"{name} {number}"))
            list(catalogue.items())

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(catalogue) == 80


def test_an_older_version_is_brought_up_to_date(catalogue, tmp_path, monkeypatch):
    put(catalogue, SEA)
    catalogue.close()
    step = "ALTER TABLE items ADD COLUMN rating INTEGER; INSERT INTO about VALUES ('rated', 'no');"
    monkeypatch.setattr(database, "MIGRATIONS", [*database.MIGRATIONS, step])
    newer = Catalogue(tmp_path / "catalogue.sqlite")
    assert newer.about("rated") == "no"
    assert [item.name for item in newer.items()] == ["sea.jpg"]
    newer.close()
    newer = Catalogue(tmp_path / "catalogue.sqlite")  # the step is not taken twice
    newer.close()
    monkeypatch.undo()
    last = len(database.MIGRATIONS)
    message = rf"has a catalogue of version {last + 1}; this dcmh \({__version__}\) reads up to {last}. Upgrade"
    with pytest.raises(ModelError, match=message):
        Catalogue(tmp_path / "catalogue.sqlite")


def test_a_step_that_fails_changes_nothing(catalogue, tmp_path, monkeypatch):
    catalogue.close()
    bad = "INSERT INTO about VALUES ('half', 'done'); SELECT nonsense FROM nowhere;"
    monkeypatch.setattr(database, "MIGRATIONS", [*database.MIGRATIONS, bad])
    with pytest.raises(ModelError):
        Catalogue(tmp_path / "catalogue.sqlite")
    monkeypatch.undo()
    same = Catalogue(tmp_path / "catalogue.sqlite")
    assert same.about("half") is None
    same.close()


@pytest.mark.parametrize(
    "content", [b"no database at all, but long enough to be one" * 40, b"SQLite format 3\0" + b"x" * 4096]
)
def test_a_damaged_file_is_explained(tmp_path, content):
    path = tmp_path / "photos.dcmh" / "catalogue.sqlite"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"photos.dcmh is damaged: catalogue.sqlite: .*--rebuild"):
        Catalogue(path)
    path.unlink()
    with pytest.raises(ModelError, match=r"catalogue\.sqlite is missing"):
        Catalogue(path)


def test_another_writer_is_waited_for_then_named(catalogue, tmp_path, monkeypatch):
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **{**k, "timeout": 0.05}))
    other = Catalogue(tmp_path / "catalogue.sqlite")
    with catalogue.writing(), pytest.raises(BusyError, match="Another process is writing"), other.writing():
        pass
    other.close()


def test_a_copy_of_the_file_is_a_catalogue(catalogue, tmp_path):
    put(catalogue, SEA)
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "catalogue.sqlite", tmp_path / "copy")
    copy = Catalogue(tmp_path / "copy" / "catalogue.sqlite")
    assert list(copy.items()) == list(catalogue.items())
    copy.close()


def test_a_closed_catalogue_says_that_it_is_closed(catalogue):
    catalogue.close()
    for act in (lambda: catalogue.get([1]), lambda: put(catalogue, SEA), lambda: catalogue.generation):
        with pytest.raises(ModelError, match=r"was closed\. Open it again") as caught:
            act()
        assert "damaged" not in str(caught.value)


def test_the_words_of_an_item():
    """Those of its text, or else of its folders, and of its labels."""
    path = "holiday/Beaches/DCIM/1.jpg"
    assert item_words(Item("a", path)) == ["holiday", "beach"]
    assert item_words(Item("a", path, labels=("dogs",))) == ["holiday", "beach", "dog"]
    assert item_words(Item("a", path, "two cats", ("dogs",))) == ["cat", "dog"]
    assert item_words(Item("upload:1.jpg", "x/uploads/1.jpg", uploaded=True)) == []
    assert item_words(Item("a", "/elsewhere/beach/1.jpg")) == []
