"""Excluded words, examples, words with a picture, and filters, each against what brute force finds."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from datetime import datetime

import numpy as np
import pytest
from PIL import Image

import dcmh
from dcmh.errors import ParameterError, QueryError
from dcmh.search import Filter, SearchIndex, rank
from dcmh.search.query import PICTURE, UNLIKE, parse
from dcmh.stores.base import Condition, Item
from dcmh.stores.local import catalogue, database
from filters import FILTERS, holds, passes, write_described
from toy_photos import load

COUNT = 40


@pytest.fixture(scope="module")
def photos(cheap_home, tmp_path_factory):
    """An index with fine vectors of photos with labels, dates, folders and further columns."""
    folder = tmp_path_factory.mktemp("asking")
    train = dcmh.load_dataset("toy").split(12, seed=0).train
    fitted = dcmh.DCMH(bits=16, hidden=32, epochs=4, device="cpu").fit(train, fine=64)
    with SearchIndex.build(fitted, load(write_described(folder / "photos", COUNT)), folder / "photos.dcmh") as index:
        yield index


@pytest.mark.parametrize(
    ("text", "wanted", "without"),
    [
        ("dog -beach", "dog", ["beach"]),
        ("-dog", "", ["dog"]),
        ("no people", "", ["people"]),
        ("without cars", "", ["cars"]),
        ("dog without a leash", "dog", ["leash"]),
        ("dog without a leash on the beach", "dog on the beach", ["leash"]),
        ("a street with no cars or people, at night", "a street at night", ["cars", "people"]),
        ('table -"wine glass" -cup.', "table", ["wine glass", "cup"]),
        ("man in a t-shirt", "man in a t-shirt", []),
        ("well-known -t-shirt", "well-known", ["t-shirt"]),
        ("no parking sign", "no parking sign", []),
        ("room no. 5 at -5 degrees", "room no. 5 at -5 degrees", []),
        ("beach with no one in the water", "beach in the water", ["people"]),
        ("nobody", "", ["people"]),
        ("Hund ohne Leine", "Hund", ["Leine"]),
        ("plage sans gens", "plage", ["gens"]),
        ("calle sin coches", "calle", ["coches"]),
        ("yes or no", "yes or no", []),
        ("dog but not on grass", "dog", ["grass"]),
        ("a bus that is not red", "a bus that is", ["red"]),
        ("cats and no dogs", "cats", ["dogs"]),
        ("street with no cars and no people", "street", ["cars", "people"]),
        ("dog without a leash or a", "dog", ["leash"]),
        ("to go or not to", "to go or not to", []),
        ("dog - beach", "dog - beach", []),
        ("", "", []),
    ],
)
def test_what_a_query_excludes(text, wanted, without):
    assert parse(text) == (wanted, tuple(without))


def test_excluded_words_count_against_items_and_remove_those_that_contain_them(photos):
    plain, less = photos.search("sea", k=COUNT), photos.search("sea -night", k=COUNT)
    assert less.query.without == ("night",)
    night = {hit.id: hit.fine for hit in photos.search("night", k=COUNT, modality="image")}
    bare = {hit.id: hit.fine for hit in photos.search("sea", k=COUNT, modality="image")}
    both = {hit.id: hit.fine for hit in photos.search("sea -night", k=COUNT, modality="image")}
    assert both == pytest.approx({item: bare[item] - night[item] for item in bare}, abs=1e-6)
    assert {hit.id for hit in less} == {
        hit.id for hit in plain if "night" not in (hit.text or "").split() + list(hit.labels)
    }
    assert all(hit.precision is None for hit in less)


def agreement(photos, word, item):
    """1 - 2 distance / bits of the code of a word and that of an item's picture."""
    code, stored = photos.ask(word)[1].code, photos.store.codes_of("image", [item])[item]
    return 1 - 2 * (int.from_bytes(code) ^ int.from_bytes(stored)).bit_count() / photos.bits


def test_codes_of_what_is_wanted_and_excluded_count_as_well(photos):
    plain = {hit.id: hit.fine for hit in photos.search("sea -night", k=COUNT, modality="image")}
    scores = {
        item: fine + rank.WANTED * agreement(photos, "sea", item) - rank.UNWANTED * agreement(photos, "night", item)
        for item, fine in plain.items()
    }
    hits = photos.search("sea -night", k=COUNT, modality="image")
    assert {hit.id: hit.score for hit in hits} == pytest.approx(scores, abs=1e-6)
    assert [hit.score for hit in hits] == pytest.approx(sorted(scores.values(), reverse=True), abs=1e-6)


def test_only_the_best_items_are_ordered_again(photos, monkeypatch):
    best = [hit.id for hit in photos.search("sea -night", k=COUNT, modality="image")]
    monkeypatch.setattr(rank, "UNWANTED", 0.0)
    monkeypatch.setattr(rank, "WANTED", 0.0)
    plain = [hit.id for hit in photos.search("sea -night", k=COUNT, modality="image")]
    assert plain != best
    monkeypatch.setattr(rank, "UNWANTED", -5.0)  # codes speak against the best items
    monkeypatch.setattr(rank, "RERANKED", 7)
    hits = list(photos.search("sea -night", k=COUNT, modality="image"))
    assert {hit.id for hit in hits[:7]} == set(plain[:7])
    assert [hit.id for hit in hits[7:]] == plain[7:]
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)


def test_a_query_of_excluded_words_alone_ranks_by_absence(photos):
    night = {hit.id: hit.fine for hit in photos.search("night", k=COUNT, modality="image")}
    absent = photos.search("no night", k=COUNT, modality="image")
    assert {hit.id: hit.fine for hit in absent} == pytest.approx({item: -fine for item, fine in night.items()})
    scores = [-night[hit.id] - rank.UNWANTED * agreement(photos, "night", hit.id) for hit in absent]
    assert [hit.score for hit in absent] == pytest.approx(scores)
    assert scores == sorted(scores, reverse=True)
    assert absent.query.used == ()
    assert not any("night" in hit.labels for hit in photos.search("-night", k=COUNT))


def test_without_fine_vectors_words_are_excluded_as_well(index):
    night = {hit.id for hit in index.search("night", k=48) if "night" in (hit.text or "").split() + list(hit.labels)}
    hits = index.search("sea -night", k=48)
    assert night
    assert not night & {hit.id for hit in hits}
    assert len(hits) == 48 - len(night)
    assert len(index.search("sea -night", k=3)) == 3
    assert all(hit.precision is None for hit in hits)


def test_excluding_a_word_that_the_model_does_not_know_changes_no_distance(index):
    assert not index.search("sea", k=48).query.ignored
    plain = [(hit.id, hit.distance) for hit in index.search("sea", k=48)]
    assert [(hit.id, hit.distance) for hit in index.search("sea -qqqq", k=48)] == plain
    picture = next(hit.path for hit in index.search("sea", k=1))
    shown = [(hit.id, hit.distance) for hit in index.search(image=picture, k=48)]
    assert [(hit.id, hit.distance) for hit in index.search("qqqq", picture, k=48)] == shown


def test_no_word_is_suggested_for_what_is_excluded(index, monkeypatch):
    """Each suggestion takes milliseconds, and a query may exclude hundreds of words."""
    monkeypatch.setattr(type(index.encoders.words.bag), "nearest", None)
    assert index.search("sea -qqqq -wwww").query.without == ("qqqq", "wwww")


def test_if_all_within_the_radius_are_excluded_the_nearest_other_is_named(photos, monkeypatch):
    monkeypatch.setattr("dcmh.search.query.EXCLUDED", 0.0)  # only the words count
    every = photos.search("night", k=COUNT, radius=16)
    radius = min(hit.distance for hit in every)
    question = " ".join(["night", *(f"-{hit.text.split()[0]}" for hit in every if hit.distance == radius)])
    nearest = min(photos.search(question, k=COUNT, radius=16), key=lambda hit: (hit.distance, hit.id))
    found = photos.search(question, radius=radius)
    assert (len(found), found.nearest.id) == (0, nearest.id)


def test_words_and_a_picture_are_one_query(photos):
    picture = next(hit.path for hit in photos.search("sea", k=1))
    words = {hit.id: hit for hit in photos.search("night", k=COUNT)}
    shown = {hit.id: hit for hit in photos.search(image=picture, k=COUNT)}
    both = photos.search("night", picture, k=COUNT)
    assert both.query.text == "night"
    assert both.query.image == str(picture)
    for hit in both:
        assert hit.fine == pytest.approx((words[hit.id].fine + PICTURE * shown[hit.id].fine) / (1 + PICTURE), abs=1e-6)
        assert hit.words == words[hit.id].words
        assert hit.precision is None
    again = photos.near(both.query.key, "image", text="night", k=COUNT)  # up to quantisation of the picture's vector
    assert [hit.id for hit in again][:5] == [hit.id for hit in both][:5]


def test_examples_are_averaged_and_no_hits(photos):
    one, two, other = (photos.similar(item, k=COUNT) for item in (4, 9, 12))
    fine = [{hit.id: hit.fine for hit in hits} for hits in (one, two, other)]
    hits = photos.search(like=[4, 9], unlike=[12], k=COUNT)
    assert (hits.query.like, hits.query.unlike) == ((4, 9), (12,))
    assert {4, 9, 12}.isdisjoint(hit.id for hit in hits)
    for hit in hits:
        mean = (fine[0][hit.id] + fine[1][hit.id]) / 2
        assert hit.fine == pytest.approx(mean - UNLIKE * fine[2][hit.id], abs=1e-6)
    assert list(photos.search(like=[4], k=COUNT)) == list(one)
    assert len(photos.search("sea", like=[4], k=5)) == 5
    assert len(photos.search(unlike=[4], k=5)) == 5
    with pytest.raises(QueryError, match="There is no item 999"):
        photos.search(like=[999])


@pytest.mark.parametrize("chosen", FILTERS, ids=lambda chosen: str(chosen.to_json()))
def test_filters_leave_out_hits_and_change_nothing_else(photos, chosen):
    passing = [item.id for item in photos.store.items() if passes(chosen, item)]
    assert photos.store.matching(chosen).tolist() == passing
    for question in ({"text": "sunny sea"}, {"image": photos.root / "2020/005.png"}, {"text": "sea", "radius": 7}):
        everything = photos.search(**question, **({} if "radius" in question else {"k": COUNT}))
        hits = photos.search(**question, k=COUNT, filter=chosen)
        assert [(hit.id, hit.score) for hit in hits] == [(hit.id, hit.score) for hit in everything if hit.id in passing]
        assert hits.searched == len(passing)
        assert all(hit.precision is None for hit in hits)
    assert [hit.id for hit in photos.similar(3, k=COUNT, filter=chosen)] == [
        hit.id for hit in photos.similar(3, k=COUNT) if hit.id in passing
    ]


def test_some_filters_pass_some_items(photos):
    counts = [len(photos.store.matching(chosen)) for chosen in FILTERS]
    assert sum(0 < count < COUNT for count in counts) > len(FILTERS) // 2


def test_many_items_are_filtered_before_their_nearest_are_scored(photos, monkeypatch):
    """As in an index of more than EVERYTHING items."""
    monkeypatch.setattr("dcmh.search.rank.EVERYTHING", 10)
    monkeypatch.setattr("dcmh.search.rank.CANDIDATES", 15)
    chosen = Filter(labels=["sea"])
    passing = set(photos.store.matching(chosen).tolist())
    hits = photos.search("night", k=COUNT, filter=chosen)
    assert {hit.id for hit in hits} == passing
    assert hits.candidates <= 15


def test_an_absolute_folder_is_found_in_the_data(photos):
    assert len(photos.search("sea", k=COUNT, filter=Filter(folder=str(photos.root / "2019")))) == 20
    assert len(photos.search("sea", k=COUNT, filter=Filter(folder="./2019/"))) == 20


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"since": "2019-13"}, "Not a date: '2019-13'"),
        ({"until": "yesterday"}, "Not a date: 'yesterday'"),
        ({"where": ["rating"]}, "Not a condition: 'rating'"),
        ({"where": ["rating >="]}, "Not a condition"),
        ({"where": ["rating == 4"]}, "Not a condition"),
        ({"where": ["rating >>= 4"]}, "Not a condition"),
        ({"where": ["rating =< 4"]}, "Not a condition"),
        ({"where": ["rating <> 4"]}, "Not a condition"),
        ({"until": "2019-02-30"}, "Not a date: '2019-02-30'"),
    ],
)
def test_filters_that_make_no_sense(wrong, says):
    with pytest.raises(ParameterError, match=says):
        Filter(**wrong)


@pytest.mark.parametrize(
    ("until", "end"),
    [
        ("2019-07-14", datetime(2019, 7, 15)),
        ("20190714", datetime(2019, 7, 15)),
        ("2019-07-14 18:30:05", datetime(2019, 7, 14, 18, 30, 6)),
    ],
)
def test_the_last_moment_of_a_date(until, end):
    assert Filter(until=until).taken == (None, end)


def test_an_unknown_column_is_named_with_those_there_are(photos):
    with pytest.raises(QueryError, match=r"no column 'ratng'\. It has: rating, city, code\."):
        photos.search("sea", filter=Filter(where=["ratng > 3"]))
    with pytest.raises(QueryError, match="precision of hits was not measured"):
        photos.calibration.by_distance = {("text", "image"): {1: 0.5}}
        photos.search("sea", at_least=0.5, filter=Filter(labels=["sea"]))


def test_conditions_compare_numbers_with_numbers_and_texts_with_texts():
    item = Item("a", extra={"n": 4, "t": "Rome", "z": "7a"})
    assert holds(Condition.parse("n = 4"), item)
    assert holds(Condition.parse("n=4.0"), item)
    assert holds(Condition.parse("n < 10"), item)
    assert holds(Condition.parse("t >= Paris"), item)
    assert holds(Condition.parse('t = "Rome"'), item)
    assert holds(Condition.parse("z != 7"), item)
    assert not holds(Condition.parse("z > 7"), item)
    assert not holds(Condition.parse("t != Rome"), item)
    assert not holds(Condition.parse("missing != 1"), item)


def test_dates_come_from_exif_or_else_from_the_file(tmp_path, model, cheap_home):
    folder = tmp_path / "photos"
    folder.mkdir()
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9003] = "2019:07:14 18:30:05"
    toy = dcmh.load_dataset("toy")
    Image.fromarray(toy.image.values[0]).save(folder / "a.jpg", exif=exif)
    Image.fromarray(toy.image.values[1]).save(folder / "b.png")
    os.utime(folder / "b.png", (0, datetime(2020, 2, 29, 12).timestamp()))
    with SearchIndex.build(model, load(folder), tmp_path / "index") as index:
        assert index.item(1).taken == datetime(2019, 7, 14, 18, 30, 5)
        assert index.item(2).taken == datetime(2020, 2, 29, 12)
        for since, until, found in (("2019", "2019", [1]), ("2020-02", None, [2]), (None, "2020-02-29", [1, 2])):
            assert index.store.matching(Filter(since=since, until=until)).tolist() == found
    # An index of a version that recorded no dates has them after the next run, and nothing is encoded again.
    with sqlite3.connect(tmp_path / "index" / "catalogue.sqlite") as database:
        database.execute("UPDATE items SET taken = NULL")
    (tmp_path / "index" / "catalogue.json").unlink()
    with SearchIndex.open(tmp_path / "index") as index:
        assert index.store.matching(Filter(since="1990")).tolist() == []
        assert index.update(load(folder)).unchanged == 2
        assert index.store.matching(Filter(since="1990")).tolist() == [1, 2]


def test_an_older_catalogue_gets_what_filters_need(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(database, "MIGRATIONS", database.MIGRATIONS[:3])
        old = catalogue.Catalogue.create(tmp_path / "catalogue.sqlite", {})
        old._run("INSERT INTO items (name, path, labels) VALUES ('a', 'x/a.jpg', ?)", (json.dumps(["sea", "sun"]),))
        old._run("INSERT INTO words (rowid, tokens) VALUES (1, 'sea sun')")
        assert old.get([1])[1].taken is None
        old.close()
    new = catalogue.Catalogue(tmp_path / "catalogue.sqlite")
    assert new.matching(Filter(labels=["sun"], folder="x")).tolist() == [1]
    with new.writing():
        new.put(Item("a", "y/a.jpg", labels=("sea",), id=1, extra={"n": 1}))
    assert new.matching(Filter(labels=["sun"])).tolist() == []
    assert new.matching(Filter(labels=["sea"], folder="y", where=["n = 1"])).tolist() == [1]
    with new.writing():
        new.remove([1])
    assert new._run("SELECT * FROM attributes") == []
    new.close()


def test_columns_of_a_table_travel_with_the_items(photos):
    assert photos.item(1).extra == {"rating": 0, "city": "Rome", "code": "7a"}
    assert json.loads(photos.store.about("columns")) == ["rating", "city", "code"]
    data = load(photos.root)
    assert data.take([3, 1]).extra == [data.extra[3], data.extra[1]]
    assert np.all([len(cells) >= 2 for cells in data.extra])


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the system cannot set a time zone")
def test_a_time_with_a_zone_is_brought_to_local_time(monkeypatch):
    monkeypatch.setenv("TZ", "UTC-3")  # three hours ahead of UTC
    time.tzset()
    try:
        first, _ = Filter(since="2019-07-14T18:30+01:00").taken
        assert first == datetime(2019, 7, 14, 20, 30)
        assert Filter(since="2019-07-14T18:30Z").taken[0] == datetime(2019, 7, 14, 21, 30)
        assert Filter(since="2019-07-14T18:30").taken[0] == datetime(2019, 7, 14, 18, 30)
    finally:
        monkeypatch.undo()
        time.tzset()
