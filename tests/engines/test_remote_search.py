"""The same index on a server: the same items, the same hits to the last digit, the same changes."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import dcmh
from dcmh.errors import BusyError, DataError, ModelError, ModelMismatch, UnknownWords
from dcmh.search import SearchIndex
from dcmh.stores.local.catalogue import Catalogue
from toy_photos import load, write_pairs

ASKED = [
    {"text": "sunny yellow bright", "k": 7},
    {"text": "sunny yellow bright", "k": 100},
    {"text": "sunny", "radius": 12},
    {"text": "sunny", "radius": 0},
    {"text": "sunny bright", "k": 5, "modality": "text"},
    {"text": "sea", "k": 5, "modality": "image"},
    {"text": "a sunny day over the sea", "k": 5, "offset": 3},
    {"text": "stove 日本", "k": 5},
    {"text": "sunnny umbrela", "k": 5},
    {"image": "005.png", "k": 9},
    {"image": "005.png", "k": 4, "offset": 4, "modality": "image"},
    {"image": "005.png", "radius": 9},
]
WORDS = ["sunny", "sea", "yellow", "nowhere", "clock", "猫"]


@pytest.fixture(autouse=True)
def folder_like(request, monkeypatch):
    """Milvus has no index of words: it answers as a folder does without words."""
    if "address" in request.fixturenames and request.getfixturevalue("address").startswith("milvus"):
        monkeypatch.setattr(Catalogue, "word_counts", lambda self, words: {})
        monkeypatch.setattr(Catalogue, "with_word", lambda self, word, among=None: np.empty(0, np.int64))


def told(index, photos):
    """What an index answers to a few questions."""
    answers = []
    for question in ASKED:
        asked = dict(question)
        if "image" in asked:
            asked["image"] = photos / asked["image"]
        hits = index.search(**asked)
        answers.append((list(hits), hits.searched, hits.candidates, hits.nearest))
    items = [item.id for item in index.store.items()]
    return answers, [list(index.similar(item, k=5)) for item in items[:3]], index.near(hits.query.key, "image").hits


def contents(index):
    """All that an index holds."""
    items = list(index.store.items())
    coded = {}
    for name, codes in index.store.snapshot.indexes.items():
        coded[name] = (codes.ids.tolist(), codes.codes(codes.ids).tolist())
    assert {name: code.hex() for name, code in index.codes_of(items[0].id).items()} == {
        name: bytes(coded[name][1][0]).hex() for name in coded if coded[name][0][0] == items[0].id
    }
    fine = {}
    for name in coded:
        ids, vectors = index.store.fine(name)
        some = index.store.fine_of(name, [*ids[:2].tolist(), 9999])
        assert some == {number: vector.tobytes() for number, vector in zip(ids.tolist()[:2], vectors, strict=False)}
        assert len(index.store.snapshot.fine[name]) == len(ids)
        fine[name] = (ids.tolist(), vectors.tolist())
    words = [index.store.with_word(word).tolist() for word in WORDS]
    words += [index.store.with_word(word, [14, 3, 1]).tolist() for word in WORDS]
    return items, coded, index.modalities, index.store.skipped(), fine, words, index.store.word_counts(WORDS)


def test_the_same_index_as_in_a_folder(address, models, photos, folder_index):
    with SearchIndex.build(models[0], load(photos), address) as made:
        assert (made.changes.new, made.changes.unchanged) == (40, 0)
        assert contents(made) == contents(folder_index)
        assert told(made, photos) == told(folder_index, photos)
    with SearchIndex.open(address) as opened:  # the model was kept at home
        assert len(opened) == 40
        assert contents(opened) == contents(folder_index)
        assert told(opened, photos) == told(folder_index, photos)
        assert opened.search("sunny")[0].score is not None
    again = SearchIndex.build(models[0], load(photos), address)
    assert (again.changes.new, again.changes.changed, again.changes.unchanged) == (0, 0, 40)
    again.close()


def test_changes_are_followed_as_in_a_folder(address, models, tmp_path):
    """New words, another picture, a renamed one, one that is gone, one that came, one that cannot be read."""
    photos = write_pairs(tmp_path / "photos", 20, without_picture=(3,))
    indexes = [SearchIndex.build(models[0], load(photos), place) for place in (tmp_path / "index", address)]
    lines = (photos / "pairs.jsonl").read_text().splitlines()
    lines[2] = lines[2].replace('"text": "', '"text": "sunny bright ')
    shutil.copy(photos / "007.png", photos / "008.png")
    (photos / "009.png").rename(photos / "moved.png")
    lines[9] = lines[9].replace("009", "moved")
    (photos / "010.png").write_bytes(b"no picture")
    lines[11] = lines[11].replace(', "image": "011.png"', "")  # only its words are left
    del lines[12]
    lines.append('{"id": "new", "text": "sunny bright", "image": "004.png", "labels": []}')
    (photos / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    changes = [index.update(load(photos)) for index in indexes]
    assert changes[0] == changes[1]
    assert changes[1].gone
    assert contents(indexes[1]) == contents(indexes[0])
    assert told(indexes[1], photos) == told(indexes[0], photos)
    for index in indexes:
        assert index.remove([1, 5, 9999]) == 2
        (added,) = index.add([photos / "002.png"], text=["sunny sunny"], ids=["mine"])
        assert index.item(added).name == "mine"
    assert contents(indexes[1]) == contents(indexes[0])
    assert told(indexes[1], photos) == told(indexes[0], photos)
    other = SearchIndex.open(address)
    assert not other.refresh()
    indexes[1].remove([2])
    assert other.refresh()
    assert len(other) == len(indexes[1])
    for index in (*indexes, other):
        index.close()


def test_a_word_that_nobody_knows(address, models, photos):
    """The error says that no text contains it only where texts are searched, which is not so on Milvus."""
    with SearchIndex.build(models[0], load(photos), address) as index:
        with pytest.raises(
            UnknownWords, match=r"cannot read any part of 'ሰላም'(, and no item's text contains it)?\."
        ) as error:
            index.search("ሰላም")
        assert ("no item's text" in str(error.value)) == ("milvus" not in address)


def test_a_second_folder_is_refused(address, models, photos, tmp_path):
    more = write_pairs(tmp_path / "more", 5)
    with SearchIndex.build(models[0], load(photos), address) as index:
        with pytest.raises(DataError, match=rf"is an index of {photos}, and {more} is another folder\. .* --rebuild"):
            index.update(load(more), keep_gone=True)
        assert (len(index), index.root) == (40, photos)
    SearchIndex.build(models[0], load(more), address, rebuild=True).close()
    more.rename(tmp_path / "moved")
    with SearchIndex.build(models[0], load(tmp_path / "moved"), address) as index:
        assert (index.changes.unchanged, index.root) == (5, tmp_path / "moved")


def test_another_model_is_refused(address, models, photos, monkeypatch, tmp_path):
    SearchIndex.build(models[0], load(photos), address, codes="joint").close()
    with pytest.raises(ModelMismatch, match="was built with model"):
        SearchIndex.build(models[1], load(photos), address)
    with pytest.raises(ModelMismatch, match="was built with codes 'joint'"):
        SearchIndex.build(models[0], load(photos), address, codes="each")
    with pytest.raises(ModelMismatch, match="was built with model"):
        SearchIndex.open(address, model=models[1])
    with SearchIndex.open(address) as before:
        assert list(before.modalities) == ["joint"]
        SearchIndex.build(models[1], load(photos), address, rebuild=True).close()
        assert before.replaced()
    monkeypatch.setenv("DCMH_HOME", str(tmp_path / "another machine"))
    if "milvus" in address:
        with pytest.raises(ModelError, match=r"which this machine does not have.*--model MODEL"):
            SearchIndex.open(address)
        SearchIndex.open(address, model=models[1]).close()  # once
    with SearchIndex.open(address) as opened:  # PostgreSQL keeps a copy
        assert opened.fingerprint == dcmh.methods.folder.read_record(models[1])["fingerprint"]
        assert len(opened.search(text="sunny", k=3)) == 3


def test_one_writer_at_a_time(address, models, photos):
    with SearchIndex.build(models[0], load(photos), address) as index:
        with index.store.writer():
            other = SearchIndex.open(address)
            if "milvus" in address:  # a lease of this very process would be its own
                index.store._lease = "elsewhere 1"
                index.store._note({})
            with pytest.raises(BusyError, match="Another process is writing"):
                other.remove([1])
            other.close()
        assert index.remove([1]) == 1


class Killed(BaseException):
    """As sudden as kill -9."""


def test_a_writer_that_dies_leaves_nothing_half_done(address, models, photos, folder_index, monkeypatch):
    """It dies when all of a change was sent but its end; the next writer sweeps up, and every item gets its id."""
    from dcmh.search import pipeline, update
    from dcmh.stores.milvus.store import MilvusStore
    from dcmh.stores.postgres.store import PostgresStore

    kind = MilvusStore if "milvus" in address else PostgresStore
    note = kind._note

    def die(self, *arguments):
        if "next_id" in arguments[-1] and arguments[-1]["next_id"] != "1":
            raise Killed
        return note(self, *arguments)

    monkeypatch.setattr(pipeline, "ENTRIES", 16)
    monkeypatch.setattr(update, "COMMIT_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "_note", die)
        with pytest.raises(Killed):
            SearchIndex.build(models[0], load(photos), address)
    with SearchIndex.open(address) as begun:
        assert begun.root == photos
    with SearchIndex.build(models[0], load(photos), address) as index:
        assert index.changes.new == 40
        assert contents(index) == contents(folder_index)
        assert told(index, photos) == told(folder_index, photos)
