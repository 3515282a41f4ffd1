"""Merging indexes: equal to indexing everything together."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from folders import COUNT
from PIL import Image

import dcmh
from dcmh.cli import main
from dcmh.errors import DataError, ModelError, ModelMismatch, ParameterError
from dcmh.search import Filter, SearchIndex
from dcmh.search.merge import merge
from toy_photos import load


def stored(folder):
    """Everything that a store holds, except where."""
    with SearchIndex.open(folder) as index:
        store = index.store
        items = list(store.items())
        ids = [item.id for item in items]
        vectors = {name: (store.codes_of(name, ids), store.fine_of(name, ids)) for name in store.modalities()}
        words = {word: store.with_word(word).tolist() for word in ("sunny", "night")}
        return items, vectors, words, store.skipped(), index.modalities, store.root


@pytest.fixture(scope="module")
def fine_model(cheap_home, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fine") / "model"
    split = dcmh.load_dataset("toy").split(12, 160, seed=0)
    dcmh.DCMH(bits=16, hidden=32, epochs=2, device="cpu").fit(split.train).save(folder)
    return folder


@pytest.fixture
def halves(ready, fine_model, tmp_path):
    data = load(ready / "photos")
    for name, rows in (("a", range(20)), ("b", range(18, COUNT))):
        SearchIndex.build(fine_model, data.take(np.array(rows)), tmp_path / f"{name}.dcmh").close()
    return tmp_path


def test_merged_indexes_equal_one_of_all_items(ready, halves, fine_model, capsys):
    out = halves / "both.dcmh"
    assert main(["merge", str(halves / "a.dcmh"), str(halves / "b.dcmh"), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) | {"merged": 2, "index": 0} == {
        "index": 0,
        "items": COUNT,
        "repeated": 2,
        "merged": 2,
    }
    SearchIndex.build(fine_model, load(ready / "photos"), halves / "whole.dcmh").close()
    assert stored(out) == stored(halves / "whole.dcmh")
    assert main(["check", str(out)]) == 0
    with SearchIndex.open(out) as index:
        assert str(index.update(load(ready / "photos"))) == f"0 new, 0 changed, 0 gone, {COUNT} unchanged."
    with pytest.raises(ModelError, match="exists"):
        merge([halves / "a.dcmh", halves / "b.dcmh"], out)


def test_the_prefix_gives_the_names_of_the_common_folder(model, tmp_path):
    generator = np.random.default_rng(0)
    for folder in ("a", "b"):
        (tmp_path / "photos" / folder).mkdir(parents=True)
        for name in ("1.png", "2.png"):
            pixels = generator.integers(0, 256, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / folder / name)
        (tmp_path / "photos" / folder / "broken.png").write_bytes(b"no picture")
        SearchIndex.build(model, load(tmp_path / "photos" / folder), tmp_path / f"{folder}.dcmh").close()
    parts = [tmp_path / "a.dcmh", tmp_path / "b.dcmh"]
    with pytest.raises(DataError, match=r"1\.png of .*b\.dcmh is another item.*--prefix") as error:
        merge(parts, tmp_path / "both.dcmh")
    assert error.value.which == "1.png"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.dcmh", "b.dcmh", "photos"]
    merge(parts, tmp_path / "both.dcmh", prefix=True)
    SearchIndex.build(model, load(tmp_path / "photos"), tmp_path / "whole.dcmh").close()
    assert stored(tmp_path / "both.dcmh") == stored(tmp_path / "whole.dcmh")
    assert (tmp_path / "both.dcmh" / "skipped.tsv").read_text() == (tmp_path / "whole.dcmh" / "skipped.tsv").read_text()


def test_columns_of_all_indexes_can_be_filtered_by(halves, ready, fine_model):
    data = load(ready / "photos")
    for name, rows, column in (("c", range(20), "rating"), ("d", range(20, COUNT), "city")):
        part = data.take(np.array(rows))
        part.extra = [{column: row} for row in rows]
        SearchIndex.build(fine_model, part, halves / f"{name}.dcmh").close()
    merge([halves / "c.dcmh", halves / "d.dcmh"], halves / "both.dcmh")
    with SearchIndex.open(halves / "both.dcmh") as index:
        for condition, found in (("rating < 3", 3), ("city >= 22", COUNT - 22)):
            assert len(index.search("sea", k=COUNT, filter=Filter(where=[condition]))) == found


def test_uploads_are_copied(halves, ready):
    from dcmh.service import uploads

    photo = next((ready / "photos").glob("*.png")).read_bytes()
    with SearchIndex.open(halves / "b.dcmh") as index:
        uploads.add_item(index, photo, "PNG", "a sunny upload", ["upload"])
    merge([halves / "a.dcmh", halves / "b.dcmh"], halves / "both.dcmh")
    shutil.rmtree(halves / "b.dcmh")
    with SearchIndex.open(halves / "both.dcmh") as index:
        (item,) = index.store.uploads()
        assert (item.text, item.labels) == ("a sunny upload", ("upload",))
        assert index.path_of(item).read_bytes() == photo


def test_other_models_and_targets_are_refused(halves, ready):
    with pytest.raises(ModelMismatch, match="was built with model"):
        merge([halves / "a.dcmh", ready / "photos.dcmh"], halves / "both.dcmh")
    with pytest.raises(ParameterError, match="at least two"):
        merge([halves / "a.dcmh"], halves / "both.dcmh")
    with pytest.raises(ParameterError, match="to a folder"):
        merge([halves / "a.dcmh", halves / "b.dcmh"], "milvus://host/photos")
    assert not (halves / "both.dcmh").exists()
