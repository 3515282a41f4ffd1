"""An index follows its data: what is new, changed, moved or gone, and what is added and removed by hand."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from folders import COUNT, contents
from PIL import Image

import dcmh
from dcmh.errors import DataError, QueryError
from dcmh.search import SearchIndex
from dcmh.stores.local.store import LocalStore
from toy_photos import cheap_features, load, write_photos


def test_what_changed_is_told_and_found(own):
    photos, folder = own / "photos", own / "photos.dcmh"
    (photos / "001.png").unlink()
    (photos / "002.png").unlink()
    lines = (photos / "captions.csv").read_text().splitlines()
    lines = [line for line in lines if not line.startswith(("001", "002", "003"))]
    lines += ["003.png,a lighthouse of stone,stone", "new.png,snow and ice,snow"]
    (photos / "captions.csv").write_text("\n".join(lines) + "\n")
    shutil.copy(photos / "010.png", photos / "004.png")
    Image.new("RGB", (30, 20), "red").save(photos / "new.png")
    with SearchIndex.open(folder) as index:
        before = index.store.find("003.png").id
        changes = index.update(load(photos))
        assert str(changes) == "1 new, 2 changed, 2 gone, 44 unchanged."
        assert index.store.find("003.png").id == before
        assert index.store.find("003.png").text == "a lighthouse of stone"
        same = [hit.name for hit in index.search(image=photos / "010.png", radius=0, modality="image")]
        assert {"004.png", "010.png"} <= set(same)
        assert index.store.find("001.png") is None
        assert len(index) == COUNT - 1
        assert str(index.update(load(photos))) == "0 new, 0 changed, 0 gone, 47 unchanged."
    fresh = own / "fresh.dcmh"
    SearchIndex.build(folder / "model", load(photos), fresh).close()
    assert {item["name"] for item in contents(fresh)[0]} == {item["name"] for item in contents(folder)[0]}


def test_a_failure_of_the_network_in_one_batch_ends_the_update(own, monkeypatch):
    """Of 48 pictures in one group, and two batches; whatever the first has given is not waited for."""

    def fails(backbone, pixels, target):
        if len(pixels) < 32:
            raise RuntimeError("out of memory")
        return cheap_features(backbone, pixels, target)

    monkeypatch.setenv("DCMH_HOME", str(own / "home"))
    monkeypatch.setattr("dcmh.inputs.features.run", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        SearchIndex.build(own / "photos.dcmh" / "model", load(own / "photos"), own / "fails.dcmh")
    with SearchIndex.open(own / "fails.dcmh") as index:
        assert len(index) == 0


def test_renames_and_touches_cost_no_encoding(own, monkeypatch):
    photos = own / "photos"
    (photos / "deep").mkdir()
    for row in range(5):
        (photos / f"{row:03}.png").rename(photos / "deep" / f"{row}.png")
    text = (photos / "captions.csv").read_text()
    for row in range(5):
        text = text.replace(f"{row:03}.png", f"deep/{row}.png")
    (photos / "captions.csv").write_text(text)
    os.utime(photos / "020.png", ns=(1, 1))
    shutil.copy(photos / "030.png", photos / "copy.png")  # the same content costs nothing either
    monkeypatch.setattr("dcmh.inputs.features.run", None)
    monkeypatch.setattr("dcmh.inputs.images.decode", None)
    with SearchIndex.open(own / "photos.dcmh") as index:
        assert str(index.update(load(photos))) == "1 new, 0 changed, 5 moved, 0 gone, 43 unchanged."
        assert index.store.find("deep/3.png").id == 4
        assert index.modalities == {"image": COUNT + 1, "text": COUNT}
        assert str(index.update(load(photos))) == f"0 new, 0 changed, 0 gone, {COUNT + 1} unchanged."


def test_swapped_pictures_swap_their_codes(own):
    photos = own / "photos"
    before = contents(own / "photos.dcmh")[1]["image"][1]
    for source, target in (("000", "swap"), ("001", "000"), ("swap", "001")):
        (photos / f"{source}.png").rename(photos / f"{target}.png")
    with SearchIndex.open(own / "photos.dcmh") as index:
        assert index.update(load(photos)).changed == 2
    after = contents(own / "photos.dcmh")[1]["image"][1]
    assert after == [before[1], before[0], *before[2:]]


def test_gone_items_can_be_kept(own):
    (own / "photos" / "000.png").unlink()
    with SearchIndex.open(own / "photos.dcmh") as index:
        changes = index.update(load(own / "photos"), keep_gone=True)
        assert (changes.gone, len(index)) == (1, COUNT)
        assert index.update(load(own / "photos")).gone == 1
        assert len(index) == COUNT - 1


def test_what_cannot_be_read_is_skipped_listed_and_not_tried_again(own, monkeypatch):
    photos, folder = own / "photos", own / "photos.dcmh"
    (photos / "000.png").write_bytes(b"")
    (photos / "bad one.png").write_bytes(b"no picture")
    (photos / "cut.png").write_bytes((photos / "005.png").read_bytes()[:400])
    shutil.copy(photos / "bad one.png", photos / "worse.png")
    with SearchIndex.open(folder) as index:
        changes = index.update(load(photos))
        reasons = {"000.png": "empty file", "bad one.png": "not an image", "worse.png": "not an image"}
        assert dict(changes.skipped) == {**reasons, "cut.png": "truncated after 400 bytes"}
        assert str(changes) == f"0 new, 0 changed, 1 gone, {COUNT - 1} unchanged."
        lines = (folder / "skipped.tsv").read_text().splitlines()
        assert lines[:2] == ["file\treason", "000.png\tempty file"]
        assert len(lines) == 5
        monkeypatch.setattr("dcmh.inputs.images.decode", None)
        assert index.update(load(photos)).skipped == changes.skipped
        monkeypatch.undo()
        for name in ("000.png", "bad one.png", "cut.png", "worse.png"):
            shutil.copy(photos / "010.png", photos / name)
        assert str(index.update(load(photos))) == f"4 new, 0 changed, 0 gone, {COUNT - 1} unchanged."
    assert not (folder / "skipped.tsv").exists()


def test_half_an_emoji_is_indexed(own):
    with open(own / "photos" / "captions.csv", "a") as table:
        table.write(",sunny bright yellow noon,sun\n")
    data = load(own / "photos")
    texts = ["sunny \ud83d" if text and "noon" in text else text for text in data.text.values]
    data = dcmh.Dataset({"image": data.image, "text": dcmh.data.Texts(texts)}, ids=data.ids)
    with SearchIndex.open(own / "photos.dcmh") as index:
        assert index.update(data).new == 1
        (number,) = index.add(text=["sunny \ud83d"])
        assert index.item(number).text == "sunny \ufffd"


def test_a_root_that_cannot_be_noted_is_refused_before_the_work(own, model, monkeypatch):
    data = load(own / "photos")
    data.image.root = own / "caf\udce9"
    monkeypatch.setattr("dcmh.search.update.Update.run", None)
    with pytest.raises(DataError, match=r"caf\? is not UTF-8"):
        SearchIndex.build(model, data, own / "other.dcmh")


def test_a_folder_without_any_text_is_indexed_by_pictures(own, model):
    (own / "photos" / "captions.csv").unlink()
    with SearchIndex.build(model, load(own / "photos"), own / "bare.dcmh") as index:
        assert index.modalities == {"image": COUNT}
        assert len(index.search(text="sunny")) == 10


def test_items_without_a_picture_are_found_by_their_words(own):
    with open(own / "photos" / "captions.csv", "a") as table:
        table.write(",sunny bright yellow noon,sun\n,qqq zzz,sun\n")
    with SearchIndex.open(own / "photos.dcmh") as index:
        changes = index.update(load(own / "photos"))
        assert changes.new == 1
        assert [reason for _, reason in changes.skipped] == ["no picture, and no word that the model knows"]
        hits = index.search(text="sunny bright yellow noon", k=3)
        assert (hits[0].distance, hits[0].modality, hits[0].path) == (0, "text", None)
        assert hits.searched == COUNT + 1
        assert {hit.modality for hit in hits[1:]} == {"image"}
        within = index.search(text="sunny bright yellow noon", radius=0)
        assert hits[0] in within.hits


def test_other_data_is_a_mistake_not_news(own, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    Image.new("RGB", (9, 9)).save(other / "x.png")
    with SearchIndex.open(own / "photos.dcmh") as index:
        with pytest.raises(DataError, match=rf"None of the {COUNT} items of .*photos\.dcmh .* is in the data"):
            index.update(dcmh.load_dataset("toy"))
        (own / "photos").rename(own / "gone")
        with index.store.writer(), index.store.writing():  # of this copy, not of what it was copied from
            index.store.note("root", str(own / "photos"))
        with pytest.raises(DataError, match=rf"None of the {COUNT} items of .*photos\.dcmh .* is in .*other"):
            index.update(load(other))
        assert len(index) == COUNT
        assert index.root == own / "photos"


@pytest.mark.parametrize("keep_gone", [False, True])
def test_a_second_folder_is_refused_while_the_first_is_there(own, model, keep_gone):
    """Though the names are those of items that the index has: 0 new and 38 gone would lose them."""
    more = write_photos(own / "more", 10)
    before = contents(own / "photos.dcmh")
    says = (
        rf"photos\.dcmh is an index of {own / 'photos'}, and {more} is another folder\. To add photos, put them into "
        rf"{own / 'photos'} and index that again; .* --out; .* --rebuild\."
    )
    with pytest.raises(DataError, match=says):
        SearchIndex.build(model, load(more), own / "photos.dcmh", keep_gone=keep_gone)
    with SearchIndex.open(own / "photos.dcmh") as index:
        with pytest.raises(DataError, match=says):
            index.update(load(more), keep_gone=keep_gone)
        assert index.root == own / "photos"
    assert contents(own / "photos.dcmh") == before
    with SearchIndex.build(model, load(more), own / "photos.dcmh", rebuild=True) as index:
        assert (len(index), index.root) == (10, more)


def test_the_same_folder_by_another_way_and_a_moved_one_are_no_second_folder(own):
    (own / "link").symlink_to(own / "photos")
    unchanged = f"0 new, 0 changed, 0 gone, {COUNT} unchanged."
    with SearchIndex.open(own / "photos.dcmh") as index:
        assert str(index.update(load(own / "link"))) == unchanged
        (own / "link").unlink()
        (own / "photos").rename(own / "moved")
        assert str(index.update(load(own / "moved"))) == unchanged
        assert index.root == own / "moved"


def test_an_unfinished_first_run_has_whole_paths(own, model, monkeypatch):
    from dcmh.search import pipeline, update

    monkeypatch.setattr(update, "COMMIT_SECONDS", 0)
    monkeypatch.setattr(pipeline, "PICTURES", 8)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SearchIndex.build(model, load(own / "photos"), own / "half.dcmh", progress=stop)
    with SearchIndex.open(own / "half.dcmh") as index:
        assert 0 < len(index) < COUNT
        assert index.root == own / "photos"
        assert all(hit.path.is_file() for hit in index.search(text="sunny"))


def test_add_and_remove(own):
    Image.new("RGB", (30, 20), "red").save(own / "red.png")
    shutil.copy(own / "red.png", own / "photos" / "red.png")
    with SearchIndex.open(own / "photos.dcmh") as index, SearchIndex.open(own / "photos.dcmh") as other:
        added = index.add([own / "red.png", own / "photos" / "red.png"], text=["snow and ice", None])
        assert added == [COUNT + 1, COUNT + 2]
        assert [index.item(item).name for item in added] == [str(own / "red.png"), "red.png"]
        assert index.modalities == {"image": COUNT + 2, "text": COUNT + 1}
        assert {hit.id for hit in index.search(image=own / "red.png", radius=0)} >= set(added)
        assert len(other) == COUNT
        assert other.refresh()
        assert not other.refresh()
        assert len(other) == COUNT + 2
        assert index.add(ids=["red.png"], images=[own / "photos" / "005.png"]) == [COUNT + 2]  # replaced
        assert index.add(text=["winter frost"]) == [COUNT + 3]
        assert index.remove([added[0], 1, 999]) == 2
        assert index.remove([]) == 0
        assert len(index) == COUNT + 1
        memory = {name: found.ids.tolist() for name, found in index.store.snapshot.indexes.items()}
        index.save()
    _, coded = contents(own / "photos.dcmh")
    assert {name: ids for name, (ids, _) in coded.items()} == memory
    with SearchIndex.open(own / "photos.dcmh") as index, pytest.raises(DataError, match=r"Cannot index .*none"):
        index.add([own / "none.png"])


def test_an_unreadable_replacement_leaves_no_stale_code(own):
    (own / "bad.png").write_bytes(b"no picture")
    with SearchIndex.open(own / "photos.dcmh") as index:
        number = index.store.find("003.png").id
        with pytest.raises(DataError, match=r"Cannot index 003\.png: not an image"):
            index.add([own / "bad.png", own / "photos" / "004.png"], ids=["003.png", "new"])
        assert index.store.find("003.png") is None
        assert not any(number in found for found in index.store.snapshot.indexes.values())
        assert number not in [hit.id for hit in index.search(image=own / "photos" / "003.png", k=COUNT)]
        assert len(index) == COUNT  # one gone, one new
        assert index.search(image=own / "photos" / "004.png", radius=0)
        assert not index.refresh()


def test_rows_stay_in_the_order_of_ids(own):
    """Also of an item that gets a text, and its code, later than newer items; older items come first at equal distance."""
    pictures = [own / "photos" / "005.png"]
    with SearchIndex.open(own / "photos.dcmh") as index:
        (older,) = index.add(pictures, ids=["older"])
        (newer,) = index.add(pictures, text=["sunny"], ids=["newer"])
        assert index.add(pictures, text=["sunny"], ids=["older"]) == [older]
        assert index.store.snapshot.indexes["text"].ids.tolist()[-2:] == [older, newer]
        hits = [hit.id for hit in index.search(text="sunny", modality="text", radius=0)]
        assert hits == sorted(hits)
        assert {older, newer} <= set(hits)


def test_codes_of_known_pictures_are_read_at_once(own, monkeypatch):
    """Not item by item: on a server each would be a request."""
    photos, requests = own / "photos", []
    for number in range(30):
        os.utime(photos / f"{number:03}.png", ns=(1, 1))
    for name in ("codes_of", "fine_of"):
        read = getattr(LocalStore, name)
        monkeypatch.setattr(
            LocalStore,
            name,
            lambda self, modality, ids, read=read, name=name: (
                requests.append((name, modality)) or read(self, modality, ids)
            ),
        )
    with SearchIndex.open(own / "photos.dcmh") as index:
        assert index.update(load(photos)).unchanged == COUNT
    assert sorted(requests) == [("codes_of", "image"), ("fine_of", "image")]


def test_vectors_and_other_methods(tmp_path):
    toy = dcmh.load_dataset("toy")
    vectors = (toy.labels @ np.random.default_rng(0).normal(size=(8, 12))).astype(np.float32)
    data = dcmh.Dataset.from_arrays(image=vectors, text=toy.text.values, labels=toy.labels, name="made up")
    method = dcmh.methods.get("ridge")(bits=24).fit(data)
    with SearchIndex.build(method, data, tmp_path / "v.dcmh") as index:
        assert index.modalities == {"image": 200, "text": 200}
        assert index.search(text="sunny yellow bright")[0].labels
        with pytest.raises(QueryError, match="takes no pictures"):
            index.search(image=b"")
        assert str(index.update(data)) == "0 new, 0 changed, 0 gone, 200 unchanged."
        vectors[3] += 1
        assert index.update(data).changed == 1


def test_pixels_go_through_a_finetuned_network(own):
    data = load(own / "photos").take(np.arange(12))
    model = dcmh.DCMH(bits=8, hidden=8, epochs=1, batch_size=4, finetune=True, device="cpu").fit(data)
    (own / "photos" / "000.png").write_bytes(b"")
    with SearchIndex.build(model, data, own / "pixels.dcmh") as index:
        assert index.changes.new == 11
        assert index.changes.skipped == [("000.png", "empty file")]


def test_an_upgrade_says_which_vectors_are_not_in_the_data(tmp_path):
    random = np.random.default_rng(0)
    x, y = random.random((30, 4), np.float32), random.random((30, 3), np.float32)
    names = [f"item {row}" for row in range(30)]
    data = dcmh.Dataset.from_arrays(x=x, y=y, labels=np.arange(30) % 3, ids=names)
    for bits in (16, 32):
        dcmh.DCMH(bits=bits, hidden=16, epochs=1, device="cpu").fit(data, fine=0).save(tmp_path / f"{bits}")
    SearchIndex.build(tmp_path / "16", data, tmp_path / "index").close()
    some = data.take(np.arange(28))
    with SearchIndex.build(tmp_path / "32", some, tmp_path / "index", upgrade=True) as index:
        assert (index.changes.recoded, index.changes.gone, len(index)) == (28, 2, 28)
        reason = "not in the data, so that it cannot be encoded with another model"
        assert index.changes.skipped == [("item 28", reason), ("item 29", reason)]
        assert index.search(vector=x[3], query_modality="x", k=1)[0].distance == 0
