"""Searching by words and pictures: what is near is found, in the order of distances, and unknown words are explained."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest
from folders import COUNT
from PIL import Image

import dcmh
from dcmh import codes
from dcmh.errors import ModelError, ParameterError, QueryError
from dcmh.search import SearchIndex
from toy_photos import load


def test_words_find_pictures_as_brute_force_does(index, model):
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


def test_precision_is_what_was_measured_at_that_distance(index, model):
    rows = json.loads((model / "report.json").read_text())["text_to_image"]["by_distance"]
    for hit in index.search(text="sunny sea", k=COUNT):
        points = rows[hit.distance]["points"]
        assert hit.precision == (rows[hit.distance]["relevant"] / points if points else None)


def test_a_picture_finds_itself_first_and_looks_at_pictures_and_words(index):
    path = index.root / "007.png"
    hits = index.search(image=path, k=COUNT)
    assert hits[0].name == "007.png" or hits[0].distance == 0
    by_name = {hit.name: hit for hit in hits}
    assert by_name["007.png"].distance == 0
    assert {hit.modality for hit in hits} == {"image", "text"}
    assert hits.query.image == str(path)
    apart = {
        name: {hit.name: hit.distance for hit in index.search(image=path, k=COUNT, modality=name)}
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


def test_a_picture_may_be_bytes_or_an_array(index):
    path = index.root / "007.png"
    expected = index.search(image=path).hits
    assert index.search(image=path.read_bytes()).hits == expected
    assert index.search(image=np.asarray(Image.open(path))).hits == expected


def test_radius_gives_all_within_it_unless_k_is_given(index):
    everything = index.search(text="sunny", k=COUNT)
    radius = everything[20].distance
    within = index.search(text="sunny", radius=radius)
    assert within.hits == tuple(hit for hit in everything if hit.distance <= radius)
    assert len(within) > 10
    assert index.search(text="sunny", radius=radius, k=3).hits == everything[:3]
    assert len(index.search(text="sunny")) == 10


def test_nothing_within_a_radius_names_the_nearest(index):
    nearest = index.search(text="sunny yellow", k=1)[0]
    assert nearest.distance > 0
    hits = index.search(text="sunny yellow", radius=nearest.distance - 1)
    assert len(hits) == 0
    assert hits.nearest == nearest


def test_unknown_words_are_ignored_with_an_offer(index):
    query = index.search(text="the sunnyy yellow xyzzyx of it").query
    assert query.used == ("yellow",)
    assert query.ignored == ("the", "sunnyy", "xyzzyx", "of", "it")
    assert query.nearest["sunnyy"][0] == "sunny"
    assert set(query.nearest) == {"sunnyy"}


def test_nothing_but_unknown_words_is_an_error(index):
    known = len(index.encoders.words.bag)
    with pytest.raises(
        QueryError,
        match=rf"^No word of 'yelow' is in the model's vocabulary \({known} words\), nor in any item's text\. "
        r"Closest known: yellow.*\. .*vocabulary\.txt lists them all\.$",
    ):
        index.search(text="yelow")
    with pytest.raises(QueryError, match="The query is empty"):
        index.search(text="  ")


def test_a_picture_that_cannot_be_read_is_an_error(index, tmp_path):
    with pytest.raises(QueryError, match=r"Cannot read .*none\.jpg: does not exist\. Give another picture\."):
        index.search(image=tmp_path / "none.jpg")
    with pytest.raises(QueryError, match="Cannot read the picture: not an image"):
        index.search(image=b"no picture")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({}, "Give text, an image or a vector to search for, or examples"),
        ({"image": "a", "vector": "b"}, "Give one of image and vector"),
        ({"text": "sunny", "k": 0}, "k must be a whole number of at least 1, not 0"),
        ({"text": "sunny", "radius": -1}, "radius must be a whole number of at least 0, not -1"),
        ({"text": "sunny", "modality": "sound"}, "has no 'sound' codes. It has: image, text."),
        ({"text": "sunny", "offset": -1}, "offset must be a whole number of at least 0, not -1"),
        ({"text": "sunny", "k": 3, "offset": -5}, "offset must be a whole number of at least 0, not -5"),
        ({"text": "sunny", "radius": 3, "offset": 0.5}, "offset must be a whole number"),
    ],
)
def test_what_makes_no_sense(index, query, says):
    with pytest.raises(ParameterError, match=says):
        index.search(**query)


def test_more_like_one_leaves_itself_out(index):
    item = index.store.find("007.png")
    hits = index.similar(item.id, k=5)
    assert len(hits) == 5
    assert item.id not in [hit.id for hit in hits]
    expected = [hit for hit in index.search(image=index.root / "007.png", k=COUNT) if hit.id != item.id]
    assert list(hits) == expected[:5]
    with pytest.raises(QueryError, match="There is no item 999"):
        index.similar(999)


def test_an_id_is_any_whole_number_and_nothing_else(own):
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


def test_a_closed_index_says_that_it_is_closed(ready):
    index = SearchIndex.open(ready / "photos.dcmh")
    index.close()
    with pytest.raises(ModelError, match=r"photos\.dcmh was closed\. Open it again"):
        index.search(text="sunny")


def test_the_record_for_json(index):
    record = index.search(text="sunny", k=2, radius=16).to_json()
    assert set(record) == {"query", "searched", "took_ms", "radius", "candidates", "at_least", "unlikely", "hits"}
    assert set(record["query"]) >= {"text", "used", "ignored"}
    assert set(record["hits"][0]) >= {"id", "distance", "bits", "precision", "text", "path"}
    json.dumps(record)


def test_the_least_precision_is_looked_for_among_all_items_if_distances_were_measured(index, monkeypatch):
    monkeypatch.setattr("dcmh.search.calibration.BANDS", (1, 2))
    everything = index.search(text="sunny sea", k=COUNT)
    some = sorted(hit.precision for hit in everything if hit.precision is not None)[COUNT // 2]
    good = [hit.id for hit in everything if hit.precision is not None and hit.precision >= some]
    assert len(good) > 2
    assert [hit.id for hit in index.search(text="sunny sea", k=3, at_least=some)] == good[:3]
    assert [hit.id for hit in index.search(text="sunny sea", k=COUNT, at_least=some)] == good


def test_a_copy_is_an_index_of_its_own(ready):
    with SearchIndex.open(ready / "photos.dcmh") as index:
        made = (copy.copy(index), pickle.loads(pickle.dumps(index)))
        wanted = [hit.id for hit in index.search("sunny sea")]
    for other in made:
        with other:
            assert [hit.id for hit in other.search("sunny sea")] == wanted


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"like": 12}, r"like and unlike take a list of ids, not 12\. Write \[id\]\."),
        ({"unlike": "12"}, "like and unlike take a list of ids, not '12'"),
        ({"filter": {"labels": ["pets"]}}, r"filter must be a dcmh\.Filter, not \{'labels'"),
    ],
)
def test_arguments_of_another_type(index, wrong, says):
    with pytest.raises(ParameterError, match=says):
        index.search("sunny", **wrong)


def test_an_index_is_built_of_a_data_set(model, tmp_path):
    with pytest.raises(ParameterError, match=r"The data is a str, not a Dataset\. Write SearchIndex\.build"):
        SearchIndex.build(model, "photos", tmp_path / "photos.dcmh")
