"""SearchIndex: finds what is near, follows the data, survives kills, moves with its folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dcmh
from dcmh import codes
from dcmh.errors import BusyError, DataError, ModelError, ModelMismatch, ParameterError, QueryError
from dcmh.inputs import decoding, decoding_workers
from dcmh.search import SearchIndex
from dcmh.search.columns import encode_column
from dcmh.search.encode import Encoders, PictureEncoder
from dcmh.stores.local import layout
from toy_photos import cheap, load, write_photos

COUNT = 48


@pytest.fixture(scope="module", autouse=True)
def cheap_here(cheap_home):
    with cheap(cheap_home):
        yield


def train(data, bits=16, **settings):
    split = data.split(12, seed=0)
    model = dcmh.DCMH(bits=bits, hidden=32, epochs=6, device="cpu", text_encoder="none", **settings)
    model.fit(split.train, fine=0)  # codes alone, as the paper searches; tests/search covers the second stage
    return model, dcmh.evaluate(model, split)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    fitted, report = train(dcmh.load_dataset("toy"))
    fitted.save(folder / "model", extra={"report.json": json.dumps(report.to_json())})
    return folder / "model"


@pytest.fixture(scope="module")
def ready(model, tmp_path_factory):
    """Photos and their index, for tests that change neither."""
    folder = tmp_path_factory.mktemp("ready")
    SearchIndex.build(model, load(write_photos(folder / "photos", COUNT)), folder / "photos.dcmh").close()
    return folder


@pytest.fixture
def own(ready, tmp_path):
    """The same, for tests that change them."""
    shutil.copytree(ready, tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture
def index(ready):
    with SearchIndex.open(ready / "photos.dcmh") as found:
        yield found


def contents(folder):
    """All that an index says, item by item."""
    with SearchIndex.open(folder) as index:
        items = [{**vars(item), "mtime_ns": None} for item in index.catalogue.items()]
        coded = {}
        for name in index.modalities:
            hamming = index._codes[name]
            coded[name] = (hamming.ids.tolist(), hamming.codes(hamming.ids).tolist())
    return items, coded


class TestSearching:
    def test_words_find_pictures_as_brute_force_does(self, index, model):
        fitted = dcmh.load(model)
        data = load(index.root)
        words = "sunny yellow bright"
        distance = codes.hamming(fitted.encode(text=[words]), fitted.encode(image=data.image))[0]
        order = np.argsort(distance, kind="stable")[:7]
        hits = index.search(text=words, k=7)
        assert [hit.name for hit in hits] == [data.ids[row] for row in order]
        assert [hit.distance for hit in hits] == distance[order].tolist()
        first = hits[0]
        assert (first.bits, first.modality, first.text) == (16, "image", data.text.values[order[0]])
        assert first.path == index.root / first.name
        assert first.path.is_file()
        assert set(first.labels) <= set(data.label_names)
        assert (hits.searched, len(hits), hits.query.used) == (COUNT, 7, ("sunny", "yellow", "bright"))
        assert hits.took_ms > 0

    def test_precision_is_what_was_measured_at_that_distance(self, index, model):
        rows = json.loads((model / "report.json").read_text())["text_to_image"]["by_distance"]
        for hit in index.search(text="sunny sea", k=COUNT):
            points = rows[hit.distance]["points"]
            assert hit.precision == (rows[hit.distance]["relevant"] / points if points else None)

    def test_a_picture_finds_itself_first_and_looks_at_pictures_and_words(self, index):
        path = index.root / "007.png"
        hits = index.search(image=path, k=COUNT)
        assert hits[0].name == "007.png" or hits[0].distance == 0
        by_name = {hit.name: hit for hit in hits}
        assert by_name["007.png"].distance == 0
        assert {hit.modality for hit in hits} == {"image", "text"}
        assert hits.query.image == str(path)
        apart = {
            name: {hit.name: hit.distance for hit in index.search(image=path, k=COUNT, in_=name)}
            for name in ("image", "text")
        }
        for hit in hits:
            both = [found[hit.name] for found in apart.values() if hit.name in found]
            assert hit.distance == min(both)
            if hit.modality == "image":  # of equal distances, that across modalities, as its precision is known
                assert hit.distance < apart["text"].get(hit.name, 99)
                assert hit.precision is None
        order = [(hit.distance, hit.id) for hit in hits]
        assert order == sorted(order)

    def test_a_picture_may_be_bytes_or_an_array(self, index):
        path = index.root / "007.png"
        expected = index.search(image=path).hits
        assert index.search(image=path.read_bytes()).hits == expected
        assert index.search(image=np.asarray(Image.open(path))).hits == expected

    def test_radius_gives_all_within_it_unless_k_is_given(self, index):
        everything = index.search(text="sunny", k=COUNT)
        radius = everything[20].distance
        within = index.search(text="sunny", radius=radius)
        assert within.hits == tuple(hit for hit in everything if hit.distance <= radius)
        assert len(within) > 10
        assert index.search(text="sunny", radius=radius, k=3).hits == everything[:3]
        assert len(index.search(text="sunny")) == 10

    def test_nothing_within_a_radius_names_the_nearest(self, index):
        nearest = index.search(text="sunny yellow", k=1)[0]
        assert nearest.distance > 0
        hits = index.search(text="sunny yellow", radius=nearest.distance - 1)
        assert len(hits) == 0
        assert hits.nearest == nearest

    def test_unknown_words_are_ignored_with_an_offer(self, index):
        query = index.search(text="the sunnyy yellow xyzzyx of it").query
        assert query.used == ("yellow",)
        assert query.ignored == ("the", "sunnyy", "xyzzyx", "of", "it")
        assert query.nearest["sunnyy"][0] == "sunny"
        assert set(query.nearest) == {"sunnyy"}

    def test_nothing_but_unknown_words_is_an_error(self, index):
        known = len(index.encoders.words.bag)
        with pytest.raises(
            QueryError,
            match=rf"^No word of 'yelow' is in the model's vocabulary \({known} words\), nor in any item's text\. "
            r"Closest known: yellow.*\. .*vocabulary\.txt lists them all\.$",
        ):
            index.search(text="yelow")
        with pytest.raises(QueryError, match="The query is empty"):
            index.search(text="  ")

    def test_a_picture_that_cannot_be_read_is_an_error(self, index, tmp_path):
        with pytest.raises(QueryError, match=r"Cannot read .*none\.jpg: does not exist\. Give another picture\."):
            index.search(image=tmp_path / "none.jpg")
        with pytest.raises(QueryError, match="Cannot read the picture: not an image"):
            index.search(image=b"no picture")

    @pytest.mark.parametrize(
        ("query", "says"),
        [
            ({}, "Give one of text, image and vector"),
            ({"text": "a", "image": "b"}, "Give one of text, image and vector"),
            ({"text": "sunny", "k": 0}, "k must be a whole number of at least 1, not 0"),
            ({"text": "sunny", "radius": -1}, "radius must be a whole number of at least 0, not -1"),
            ({"text": "sunny", "in_": "sound"}, "has no 'sound' codes. It has: image, text."),
            ({"text": "sunny", "offset": -1}, "offset must be a whole number of at least 0, not -1"),
            ({"text": "sunny", "k": 3, "offset": -5}, "offset must be a whole number of at least 0, not -5"),
            ({"text": "sunny", "radius": 3, "offset": 0.5}, "offset must be a whole number"),
        ],
    )
    def test_what_makes_no_sense(self, index, query, says):
        with pytest.raises(ParameterError, match=says):
            index.search(**query)

    def test_more_like_one_leaves_itself_out(self, index):
        item = index.catalogue.find("007.png")
        hits = index.similar(item.id, k=5)
        assert len(hits) == 5
        assert item.id not in [hit.id for hit in hits]
        expected = [hit for hit in index.search(image=index.root / "007.png", k=COUNT) if hit.id != item.id]
        assert list(hits) == expected[:5]
        with pytest.raises(QueryError, match="There is no item 999"):
            index.similar(999)

    def test_an_id_is_any_whole_number_and_nothing_else(self, own):
        with SearchIndex.open(own / "photos.dcmh") as index:
            assert index.item(np.int64(7)) == index.item(7)
            assert index.codes_of(np.uint8(7)) == index.codes_of(7) != {}
            assert list(index.similar(np.int32(7), k=3)) == list(index.similar(7, k=3))
            for wrong in ("7", 7.0, True, None, 2**70):
                for act in (index.item, index.similar, index.codes_of, lambda item: index.remove([item])):
                    with pytest.raises(ParameterError, match="An id is a whole number"):
                        act(wrong)
            with pytest.raises(ParameterError, match="a list of ids"):
                index.remove(7)
            assert len(index) == COUNT
            assert index.remove(np.array([1, 2, 999])) == 2
            assert len(index) == COUNT - 2

    def test_a_closed_index_says_that_it_is_closed(self, ready):
        index = SearchIndex.open(ready / "photos.dcmh")
        index.close()
        with pytest.raises(ModelError, match=r"photos\.dcmh was closed\. Open it again"):
            index.search(text="sunny")

    def test_the_record_for_json(self, index):
        record = index.search(text="sunny", k=2, radius=16).to_json()
        assert set(record) == {"query", "searched", "took_ms", "radius", "candidates", "at_least", "hits"}
        assert set(record["query"]) >= {"text", "used", "ignored"}
        assert set(record["hits"][0]) >= {"id", "distance", "bits", "precision", "text", "path"}
        json.dumps(record)


class TestFollowing:
    def test_what_changed_is_told_and_found(self, own):
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
            before = index.catalogue.find("003.png").id
            changes = index.update(load(photos))
            assert str(changes) == "1 new, 2 changed, 2 gone, 44 unchanged."
            assert index.catalogue.find("003.png").id == before
            assert index.catalogue.find("003.png").text == "a lighthouse of stone"
            same = [hit.name for hit in index.search(image=photos / "010.png", radius=0, in_="image")]
            assert {"004.png", "010.png"} <= set(same)
            assert index.catalogue.find("001.png") is None
            assert len(index) == COUNT - 1
            assert str(index.update(load(photos))) == "0 new, 0 changed, 0 gone, 47 unchanged."
        fresh = own / "fresh.dcmh"
        SearchIndex.build(folder / "model", load(photos), fresh).close()
        assert {item["name"] for item in contents(fresh)[0]} == {item["name"] for item in contents(folder)[0]}

    def test_renames_and_touches_cost_no_encoding(self, own, monkeypatch):
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
            assert index.catalogue.find("deep/3.png").id == 4
            assert index.modalities == {"image": COUNT + 1, "text": COUNT}
            assert str(index.update(load(photos))) == f"0 new, 0 changed, 0 gone, {COUNT + 1} unchanged."

    def test_swapped_pictures_swap_their_codes(self, own):
        photos = own / "photos"
        before = contents(own / "photos.dcmh")[1]["image"][1]
        for source, target in (("000", "swap"), ("001", "000"), ("swap", "001")):
            (photos / f"{source}.png").rename(photos / f"{target}.png")
        with SearchIndex.open(own / "photos.dcmh") as index:
            assert index.update(load(photos)).changed == 2
        after = contents(own / "photos.dcmh")[1]["image"][1]
        assert after == [before[1], before[0], *before[2:]]

    def test_gone_items_can_be_kept(self, own):
        (own / "photos" / "000.png").unlink()
        with SearchIndex.open(own / "photos.dcmh") as index:
            changes = index.update(load(own / "photos"), keep_gone=True)
            assert (changes.gone, len(index)) == (1, COUNT)
            assert index.update(load(own / "photos")).gone == 1
            assert len(index) == COUNT - 1

    def test_what_cannot_be_read_is_skipped_listed_and_not_tried_again(self, own, monkeypatch):
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

    def test_half_an_emoji_is_indexed(self, own):
        with open(own / "photos" / "captions.csv", "a") as table:
            table.write(",sunny bright yellow noon,sun\n")
        data = load(own / "photos")
        texts = ["sunny \ud83d" if text and "noon" in text else text for text in data.text.values]
        data = dcmh.Dataset({"image": data.image, "text": dcmh.data.Texts(texts)}, ids=data.ids)
        with SearchIndex.open(own / "photos.dcmh") as index:
            assert index.update(data).new == 1
            (number,) = index.add(text=["sunny \ud83d"])
            assert index.item(number).text == "sunny \ufffd"

    def test_a_root_that_cannot_be_noted_is_refused_before_the_work(self, own, model, monkeypatch):
        data = load(own / "photos")
        data.image.root = own / "caf\udce9"
        monkeypatch.setattr("dcmh.search.update.Update.run", None)
        with pytest.raises(DataError, match=r"caf\? is not UTF-8"):
            SearchIndex.build(model, data, own / "other.dcmh")

    def test_a_folder_without_any_text_is_indexed_by_pictures(self, own, model):
        (own / "photos" / "captions.csv").unlink()
        with SearchIndex.build(model, load(own / "photos"), own / "bare.dcmh") as index:
            assert index.modalities == {"image": COUNT}
            assert len(index.search(text="sunny")) == 10

    def test_items_without_a_picture_are_found_by_their_words(self, own):
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

    def test_other_data_is_a_mistake_not_news(self, own, tmp_path):
        other = tmp_path / "other"
        other.mkdir()
        Image.new("RGB", (9, 9)).save(other / "x.png")
        with SearchIndex.open(own / "photos.dcmh") as index:
            with pytest.raises(DataError, match=rf"None of the {COUNT} items of .*photos\.dcmh .* is in the data"):
                index.update(dcmh.load_dataset("toy"))
            (own / "photos").rename(own / "gone")
            with index._writer(), index.catalogue.writing():  # of this copy, not of what it was copied from
                index.catalogue.note("root", str(own / "photos"))
            with pytest.raises(DataError, match=rf"None of the {COUNT} items of .*photos\.dcmh .* is in .*other"):
                index.update(load(other))
            assert len(index) == COUNT
            assert index.root == own / "photos"

    @pytest.mark.parametrize("keep_gone", [False, True])
    def test_a_second_folder_is_refused_while_the_first_is_there(self, own, model, keep_gone):
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

    def test_the_same_folder_by_another_way_and_a_moved_one_are_no_second_folder(self, own):
        (own / "link").symlink_to(own / "photos")
        unchanged = f"0 new, 0 changed, 0 gone, {COUNT} unchanged."
        with SearchIndex.open(own / "photos.dcmh") as index:
            assert str(index.update(load(own / "link"))) == unchanged
            (own / "link").unlink()
            (own / "photos").rename(own / "moved")
            assert str(index.update(load(own / "moved"))) == unchanged
            assert index.root == own / "moved"

    def test_an_unfinished_first_run_has_whole_paths(self, own, model, monkeypatch):
        from dcmh.search import update

        monkeypatch.setattr(update, "COMMIT_SECONDS", 0)
        monkeypatch.setattr(update, "PICTURES", 8)

        def stop(done, total):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            SearchIndex.build(model, load(own / "photos"), own / "half.dcmh", progress=stop)
        with SearchIndex.open(own / "half.dcmh") as index:
            assert 0 < len(index) < COUNT
            assert index.root == own / "photos"
            assert all(hit.path.is_file() for hit in index.search(text="sunny"))

    def test_add_and_remove(self, own):
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
            memory = {name: index._codes[name].ids.tolist() for name in index.modalities}
            index.save()
        _, coded = contents(own / "photos.dcmh")
        assert {name: ids for name, (ids, _) in coded.items()} == memory
        with SearchIndex.open(own / "photos.dcmh") as index, pytest.raises(DataError, match=r"Cannot index .*none"):
            index.add([own / "none.png"])

    def test_vectors_and_other_methods(self, tmp_path):
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

    @pytest.mark.parametrize("batch", [32, 64])
    def test_processes_give_the_codes_that_threads_give(self, own, model, monkeypatch, batch):
        """With unreadable files and copies in the middle, in groups of a CPU and of a GPU."""
        if not decoding_workers.can_work():
            pytest.skip("processes share memory on Linux only")
        photos = own / "photos"
        (photos / "020.png").write_bytes((photos / "020.png").read_bytes()[:300])
        (photos / "035.png").write_text("no picture")
        shutil.copy(photos / "003.png", photos / "004.png")
        data, started, sizes = load(photos), [], []
        monkeypatch.setattr("dcmh.inputs.features.batch_on", lambda target: batch)
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
            monkeypatch.setattr(decoding, "FILES", 8)
            monkeypatch.setenv("DCMH_HOME", str(own / f"home {cores}"))  # nothing is known yet
            with SearchIndex.build(model, data, own / f"{cores}.dcmh") as index:
                indexed = [index.codes_of(number) for number in range(1, 1 + len(index))]
                skipped = sorted(index.changes.skipped)
            monkeypatch.setenv("DCMH_HOME", str(own / f"other home {cores}"))
            encoders = Encoders(model, device="cpu")
            encoded = encode_column(encoders, data["image"], "image")
            encoders.rest()
            found.append((indexed, skipped, encoded))
            assert len(started) == (0 if cores == 1 else 8)
        assert found[0] == found[1]
        assert [name for name, _ in found[0][1]] == ["020.png", "035.png"]
        assert sizes[0] == (32 if batch == 32 else COUNT - 1)  # a copy is not decoded
        assert all(worker.process.returncode is not None for worker in started)

    def test_an_interrupted_encoding_ends_its_processes(self, own, model, monkeypatch):
        if not decoding_workers.can_work():
            pytest.skip("processes share memory on Linux only")
        monkeypatch.setattr(decoding, "cores", lambda: 4)
        monkeypatch.setattr(decoding, "FILES", 1)
        monkeypatch.setenv("DCMH_HOME", str(own / "home"))
        encoders = Encoders(model, device="cpu")
        rested = []
        monkeypatch.setattr(PictureEncoder, "rest", lambda self: rested.append(self._decoder.stop_workers()))

        def stop(done, total):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            encode_column(encoders, load(own / "photos")["image"], "image", progress=stop)
        assert rested

    def test_pixels_go_through_a_finetuned_network(self, own):
        data = load(own / "photos").take(np.arange(12))
        model = dcmh.DCMH(bits=8, hidden=8, epochs=1, batch_size=4, finetune=True, device="cpu").fit(data)
        (own / "photos" / "000.png").write_bytes(b"")
        with SearchIndex.build(model, data, own / "pixels.dcmh") as index:
            assert index.changes.new == 11
            assert index.changes.skipped == [("000.png", "empty file")]


class TestFolder:
    def test_it_moves_alone_or_with_its_photos(self, own):
        with SearchIndex.open(own / "photos.dcmh") as index:
            expected = [hit.name for hit in index.search(text="sunny")]
        (own / "away").mkdir()
        shutil.move(own / "photos.dcmh", own / "away" / "p.dcmh")
        with SearchIndex.open(own / "away" / "p.dcmh") as index:  # the photos are where they were made from
            hits = index.search(text="sunny")
            assert [hit.name for hit in hits] == expected
            assert hits[0].path.is_file()
        shutil.copytree(own / "away" / "p.dcmh", own / "new" / "photos.dcmh")
        shutil.move(own / "photos", own / "new" / "photos")
        with SearchIndex.open(own / "new" / "photos.dcmh") as index:
            assert index.root == own / "new" / "photos"
            assert index.search(text="sunny")[0].path.is_file()
            assert str(index.update(load(own / "new" / "photos"))) == f"0 new, 0 changed, 0 gone, {COUNT} unchanged."

    def test_it_lives_without_the_model_it_was_built_with(self, own, model, tmp_path):
        shutil.copytree(model, tmp_path / "m")
        SearchIndex.build(tmp_path / "m", load(own / "photos"), tmp_path / "p.dcmh").close()
        shutil.rmtree(tmp_path / "m")
        with SearchIndex.open(tmp_path / "p.dcmh") as index:
            assert index.search(image=own / "photos" / "000.png")[0].distance == 0

    def test_the_model_may_lie_in_the_index_from_the_start(self, own, model):
        shutil.copytree(model, own / "in.dcmh" / "model")
        with SearchIndex.build(own / "in.dcmh" / "model", load(own / "photos"), own / "in.dcmh") as index:
            assert len(index) == COUNT

    def test_another_model_is_refused_and_rebuilds_on_request(self, own, model):
        other, report = train(load(own / "photos"), seed=1)
        was = json.loads((model / "model.json").read_text())["fingerprint"][:4]
        with pytest.raises(
            ModelMismatch, match=rf"photos\.dcmh was built with model {was}, not ....\. Rebuild: .*--rebuild"
        ):
            SearchIndex.build(other, load(own / "photos"), own / "photos.dcmh")
        assert sorted(entry.name for entry in (own / "photos.dcmh").iterdir()) == [
            "catalogue.sqlite",
            "codes",
            "index.json",
            "lock",
            "model",
        ]
        with SearchIndex.build(other, load(own / "photos"), own / "photos.dcmh", rebuild=True, report=report) as index:
            assert index.changes.new == COUNT
            assert any(hit.precision is not None for hit in index.search(text="sunny", k=COUNT))
        with SearchIndex.build(other, load(own / "photos"), own / "photos.dcmh") as index:
            assert index.changes.unchanged == COUNT

    def test_an_interrupted_rebuild_is_taken_up(self, own, model, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr("dcmh.stores.local.layout._keep_model", lambda *arguments: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                SearchIndex.build(model, load(own / "photos"), own / "photos.dcmh", rebuild=True)
        with pytest.raises(ModelError, match="was only begun"):
            SearchIndex.open(own / "photos.dcmh")
        with SearchIndex.build(model, load(own / "photos"), own / "photos.dcmh") as index:
            assert index.changes.new == COUNT

    def test_the_codes_are_made_again_when_they_are_stale_or_damaged(self, own):
        folder = own / "photos.dcmh"
        expected = contents(folder)
        for spoil in ("codes-", "ids-", "hamming.json"):
            victim = next(path for path in (folder / "codes" / "image").iterdir() if path.name.startswith(spoil))
            victim.write_bytes(victim.read_bytes()[:20])
            assert contents(folder) == expected
        shutil.rmtree(folder / "codes")
        assert contents(folder) == expected

    def test_an_index_that_may_not_be_written_is_searched(self, own, monkeypatch):
        folder = own / "photos.dcmh"
        shutil.rmtree(folder / "codes")

        def refuse(path):
            raise ModelError("may not be written")

        monkeypatch.setattr("dcmh.stores.local.layout.writer", refuse)
        with SearchIndex.open(folder) as index:
            assert len(index.search(text="sunny")) == 10
            with pytest.raises(ModelError, match="may not be written"):
                index.remove([1])
        assert not (folder / "codes").exists()

    def test_two_writers_do_not_meet(self, own):
        with SearchIndex.open(own / "photos.dcmh") as index, layout.writer(own / "photos.dcmh"):
            with pytest.raises(BusyError, match=r"Another process is writing .*photos\.dcmh\. Wait for it"):
                index.remove([1])
            assert len(index.search(text="sunny")) == 10

    def test_what_is_no_index_is_explained(self, own, model, tmp_path):
        for folder, says in (
            (tmp_path / "none", "There is no index .*none. Make one: dcmh index DATA"),
            (
                own / "photos",
                r"photos is not a dcmh index \(no index.json\). Make one: dcmh index .*photos --model MODEL",
            ),
            (model, "It is a model: make an index with it, dcmh index DATA --model"),
        ):
            with pytest.raises(ModelError, match=says):
                SearchIndex.open(folder)
        with pytest.raises(ModelError, match="exists and is no dcmh index, so it is not overwritten"):
            SearchIndex.build(model, load(own / "photos"), own / "photos")
        with pytest.raises(ModelMismatch, match="The model's image holds images, the data's vectors"):
            data = dcmh.Dataset.from_arrays(image=np.ones((3, 2)), text=["a", "b", "c"])
            SearchIndex.build(model, data, tmp_path / "x.dcmh")
        with pytest.raises(ModelMismatch, match="The data has sound, the model knows image, text"):
            SearchIndex.build(dcmh.load(model), dcmh.Dataset.from_arrays(sound=np.ones((3, 2))), tmp_path / "x.dcmh")
        assert not (tmp_path / "x.dcmh").exists()

    def test_damage_and_newer_formats_are_explained(self, own):
        header = own / "photos.dcmh" / "index.json"
        good = header.read_text()
        header.write_text(json.dumps({**json.loads(good), "format": 3}))
        with pytest.raises(
            ModelError, match=r"has format 3; this dcmh \(0\.1\.0\) reads up to 1\. Upgrade: pip install"
        ):
            SearchIndex.open(own / "photos.dcmh")
        header.write_text(good[:40])
        with pytest.raises(ModelError, match=r"is damaged: index\.json .* --rebuild"):
            SearchIndex.open(own / "photos.dcmh")
        header.write_text(good)
        (own / "photos.dcmh" / "catalogue.sqlite").write_bytes(b"rubbish" * 1000)
        with pytest.raises(ModelError, match=r"is damaged: catalogue\.sqlite: .* --rebuild"):
            SearchIndex.open(own / "photos.dcmh")
        with SearchIndex.build(
            own / "photos.dcmh" / "model", load(own / "photos"), own / "photos.dcmh", rebuild=True
        ) as index:
            assert len(index) == COUNT

    def test_build_without_a_folder_takes_the_name_of_the_data(self, own, model, monkeypatch):
        monkeypatch.chdir(own.parent)
        with SearchIndex.build(model, load(own / "photos")) as index:
            assert index.folder == Path("photos.dcmh")
            assert repr(index) == f"<SearchIndex 'photos.dcmh': {COUNT} items, 16 bits>"
            assert dcmh.SearchIndex.load("photos.dcmh").bits == 16


KILLING = """
import os, random, signal, sys, time
sys.path.insert(0, os.environ["TESTS"])
import dcmh.inputs.features
from pathlib import Path
from toy_photos import cheap_features, load
from dcmh.errors import ModelError
from dcmh.search import SearchIndex, update
dcmh.inputs.features.run, dcmh.inputs.features.frozen = cheap_features, lambda *arguments: None
update.COMMIT_SECONDS, update.PICTURES = 0, 2
photos, model, out, seed = sys.argv[1:]
data, model = load(photos), Path(model)
finish, commit = update.Update._finish, update.Update._commit
def slowly(self, *arguments):
    time.sleep(0.08)
    return finish(self, *arguments)
def loudly(self, *arguments):
    commit(self, *arguments)
    os.write(telling, b".")
update.Update._finish, update.Update._commit = slowly, loudly
# This process itself starts no thread: children forked from one that did might wait for ever for a lock it held.
def apart(work):
    hearing, telling = os.pipe()
    if (child := os.fork()) == 0:
        os.write(telling, str(work()).encode())
        os._exit(0)
    os.close(telling)
    said = os.read(hearing, 1000).decode()
    os.close(hearing)
    assert os.waitpid(child, 0)[1] == 0
    return said
def built(place):
    SearchIndex.build(model, data, place).close()
def looked():
    try:
        with SearchIndex.open(out) as index:
            index.search(text="sunny")
            return len(index)
    except ModelError as error:
        assert "begun" in str(error) or "no index" in str(error), error
hearing, telling = os.pipe()
apart(lambda: built(out + ".unbroken"))
os.close(hearing), os.close(telling)
moments = random.Random(int(seed))
killed, seen = 0, set()
for _ in range(20):
    hearing, telling = os.pipe()
    if (child := os.fork()) == 0:
        built(out)
        os._exit(0)
    os.close(telling)
    for _ in range(moments.randrange(2)):  # commits to wait for; then any moment
        os.read(hearing, 1)
    time.sleep(moments.uniform(0, 0.12))
    os.kill(child, signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    os.close(hearing)
    seen.add(apart(looked))
print(killed, len(seen - {"None"}))
hearing, telling = os.pipe()
apart(lambda: built(out))
"""


def test_killed_twenty_times_it_is_the_index_of_an_unbroken_run(own, model, tmp_path):
    seed = int.from_bytes(os.urandom(2))
    out = tmp_path / "killed.dcmh"
    (own / "photos" / "011.png").write_bytes(b"no picture")
    shutil.copy(own / "photos" / "012.png", own / "photos" / "013.png")
    tests = Path(__file__).parent
    paths = {
        "PYTHONPATH": str(Path(dcmh.__file__).parents[1]),
        "TESTS": str(tests),
        "DCMH_HOME": str(tmp_path / "home"),
    }
    said = subprocess.check_output(
        [sys.executable, "-c", KILLING, str(own / "photos"), str(model), str(out), str(seed)],
        env=os.environ | paths,
        text=True,
    )
    killed, states = map(int, said.split())
    assert killed >= 15, seed  # the last few may have had nothing left to do
    assert states >= 3, seed
    assert contents(out) == contents(tmp_path / "killed.dcmh.unbroken"), seed
    assert not [entry.name for entry in out.iterdir() if entry.name.startswith(".")]
