"""The second stage: fine vectors and words order what is found, as brute force does, and say why."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

import dcmh
from dcmh.errors import ParameterError, QueryError, UnknownWords
from dcmh.index import numpy_kernels
from dcmh.index.fine import FineIndex
from dcmh.inputs import sentences
from dcmh.methods import fine_space, starter
from dcmh.search import Filter, SearchIndex, calibration, rank
from dcmh.search.encode import Encoders
from dcmh.search.query import read_ahead
from dcmh.search.rank import Match, Ranking
from dcmh.search.spelling import in_usual_case
from dcmh.util.text import index_words
from toy_photos import cheap, load, write_pairs, write_photos

COUNT = 48


@pytest.fixture(scope="module", autouse=True)
def cheap_here(cheap_home):
    with cheap(cheap_home):
        yield


@pytest.fixture(scope="module")
def split():
    return dcmh.load_dataset("toy").split(40, seed=0)


@pytest.fixture(scope="module")
def model(split, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "model"
    fitted = dcmh.DCMH(bits=16, hidden=32, epochs=6, device="cpu").fit(split.train)
    report = dcmh.evaluate(fitted, split).to_json() | {calibration.HELD: calibration.measure(fitted, split)}
    fitted.save(folder, extra={"report.json": json.dumps(report)})
    return folder


@pytest.fixture(scope="module")
def ready(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ready")
    SearchIndex.build(model, load(write_photos(folder / "photos", COUNT)), folder / "photos.dcmh").close()
    return folder


@pytest.fixture
def index(ready):
    with SearchIndex.open(ready / "photos.dcmh") as found:
        yield found


@pytest.fixture
def own(ready, tmp_path):
    shutil.copytree(ready, tmp_path / "own")
    return tmp_path / "own"


def brute_force(index, data, text):
    """Score of every item, written down once more from the definition."""
    fitted = dcmh.load(index.folder / "model")
    fine, view = fitted.fine_, fitted.views_["image"]
    query = fine.of_texts([in_usual_case(text, fine.encoder)])[0]
    pictures = fine.restore(fine.quantise(fine.of_inputs("image", view(data.image), view)))
    texts = fine.restore(fine.quantise(fine.of_texts(list(data.text.values))))
    scores = (pictures @ query + rank.TEXT * texts @ query) / (1 + rank.TEXT * rank.RATIO)
    labels = [[data.label_names[column] for column in np.flatnonzero(row)] for row in data.labels]
    held = [set(index_words(" ".join([said, *names]))) for said, names in zip(data.text.values, labels, strict=True)]
    words = index_words(text)
    counts = {word: sum(word in one for one in held) for word in words}
    weight = {word: np.log(len(data) / max(count, 1)) + 0.1 for word, count in counts.items()}
    share = np.array([sum(weight[word] for word in words if word in one) for one in held]) / sum(weight.values())
    whole = np.array([set(words) <= one for one in held])
    first = whole if 0 < whole.sum() <= rank.FEW else np.zeros(len(whole), bool)
    return scores, share, scores + rank.WORDS * share, first


@pytest.mark.parametrize(
    "text", ["sunny yellow bright", "automobile", "snow", "ein Boot auf dem Meer", "winter and ice"]
)
def test_the_order_is_that_of_brute_force(index, text):
    data = load(index.root)
    fine, share, score, first = brute_force(index, data, text)
    hits = index.search(text=text, k=COUNT)
    rows = [data.ids.index(hit.name) for hit in hits]
    np.testing.assert_allclose([hit.score for hit in hits], score[rows], atol=1e-4)
    np.testing.assert_allclose([hit.fine for hit in hits], fine[rows], atol=1e-4)
    assert sorted(rows) == list(range(COUNT))
    assert first[rows].tolist() == sorted(first.tolist(), reverse=True)
    assert (np.diff(score[rows] - 10.0 * ~first[rows]) <= 1e-4).all()
    for hit, row in zip(hits, rows, strict=True):
        assert bool(hit.words) == bool(share[row] > 0)


def test_texts_that_are_read_ahead_have_the_codes_and_vectors_of_each_alone(ready, monkeypatch):
    texts = ["a sunny sea -yellow", "snow", "zeppelin", "ein Boot auf dem Meer", "SNOW and ice", "???", "\u26f5"]
    one_by_one = []
    for text in texts:
        monkeypatch.setattr(sentences, "_recent", {})
        with SearchIndex.open(ready / "photos.dcmh") as index, contextlib.suppress(QueryError):
            one_by_one.append(index.ask(text)[0])
    monkeypatch.setattr(sentences, "_recent", {})
    with SearchIndex.open(ready / "photos.dcmh") as index:
        read_ahead(index.encoders, texts)
        monkeypatch.setattr(type(index.encoders.words), "outputs", None)  # all are remembered
        assert [index.ask(query.text)[0] for query in one_by_one] == one_by_one
    assert len(one_by_one) == len(texts) - 1


@pytest.mark.parametrize("values", [3, 1000, None])
def test_the_best_rows_are_those_of_sorting_all(values):
    chance = np.random.default_rng(0)
    for rows in (1, 5, 300, 5000, 20_000):
        ids = np.cumsum(chance.integers(1, 3, rows))
        score = chance.random(rows) if values is None else chance.integers(0, values, rows) / 8
        score = np.where(chance.random(rows) < 0.1, -np.inf, score).astype(np.float32)
        for k in (1, 2, 31, 500, rows, None):
            wanted = sorted(
                (-value, item, row) for row, (value, item) in enumerate(zip(score, ids, strict=True)) if value > -np.inf
            )
            assert rank._best(ids, score, k).tolist() == [row for _, _, row in wanted][:k]


@pytest.mark.parametrize("gaps", [False, True])
def test_unions_are_those_of_sets(gaps):
    chance = np.random.default_rng(0)
    for _ in range(200):
        every = np.flatnonzero(chance.random(60) < 0.7) + 5 if gaps else np.arange(5, 65)
        sizes = chance.integers(0, len(every) + 1, chance.integers(1, 4))
        lists = [np.sort(chance.choice(every, size, replace=False)).astype(np.int64) for size in sizes]
        lists += [every.astype(np.int64)] * int(chance.integers(0, 2))
        lists += [np.array([0, 70], np.int64)] * int(chance.integers(0, 2))
        assert rank._union([rank.NONE, *lists]).tolist() == sorted({item for ids in lists for item in ids.tolist()})


def test_pages_and_choices_agree_with_one_long_answer(index):
    everything = index.search(text="yellow sea", k=COUNT)
    paged = [hit for offset in range(0, COUNT, 7) for hit in index.search(text="yellow sea", k=7, offset=offset)]
    assert [hit.id for hit in paged] == [hit.id for hit in everything]
    radius = everything[20].distance
    within = index.search(text="yellow sea", radius=radius)
    assert [hit.id for hit in within] == [hit.id for hit in everything if hit.distance <= radius]
    pictures = index.search(text="yellow sea", k=COUNT, modality="image")
    assert not any(hit.words for hit in pictures)
    assert [hit.score for hit in pictures] == sorted((hit.score for hit in pictures), reverse=True)


def test_few_candidates_are_those_of_the_codes_and_of_rare_words(index, monkeypatch):
    monkeypatch.setattr(rank, "EVERYTHING", 10)
    monkeypatch.setattr(rank, "CANDIDATES", 6)
    words = index_words(load(index.root).text.values[0])
    rarest = min(words, key=lambda word: index.store.word_counts([word])[word])
    hits = index.search(text=rarest, k=3)
    assert hits.candidates is not None
    assert hits.candidates < COUNT
    assert index.store.with_word(rarest).tolist()[0] in [hit.id for hit in hits]
    everything = {hit.id: hit.score for hit in index.search(text=rarest, k=COUNT)}
    assert all(everything[hit.id] == hit.score for hit in hits)


@pytest.mark.parametrize("everything", [10, 200_000], ids=["candidates are scored", "all are scored"])
def test_gaps_among_the_ids_change_no_score(own, monkeypatch, everything):
    monkeypatch.setattr(rank, "EVERYTHING", everything)
    gone = [1, 7, 8, 30, COUNT]
    with SearchIndex.open(own / "photos.dcmh") as index:
        before = [(hit.id, hit.score) for hit in index.search(text="zeppelin", k=COUNT) if hit.id not in gone]
        index.remove(gone)
        assert [(hit.id, hit.score) for hit in index.search(text="zeppelin", k=COUNT)] == before
        allowed = index.search(text="zeppelin", k=COUNT, filter=Filter(folder="."))
        assert [(hit.id, hit.score) for hit in allowed] == before


def test_a_word_of_one_item_finds_it_first_whatever_its_picture(own):
    with SearchIndex.open(own / "photos.dcmh") as index:
        (added,) = index.add([own / "photos" / "003.png"], text=["a zeppelin"], ids=["odd"])
        assert index.search(text="zeppelin")[0].id == added
        assert index.search(text="Zeppelins")[0].words == ("zeppelin",)
        (labelled,) = index.add(
            [own / "photos" / "004.png"], labels=[[1]], label_names=["theremin"], text=[None], ids=["label"]
        )
        assert index.search(text="theremin")[0].id == labelled
        index.remove([added])
        assert added not in [hit.id for hit in index.search(text="zeppelin", k=COUNT)]


def test_what_another_process_added_is_found_after_refresh_and_reopening(own):
    with SearchIndex.open(own / "photos.dcmh") as index, SearchIndex.open(own / "photos.dcmh") as other:
        (added,) = other.add([own / "photos" / "003.png"], text=["a zeppelin"], ids=["odd"])
        assert index.refresh()
        before = index.search(text="zeppelin", k=5)
        other.save()
    with SearchIndex.open(own / "photos.dcmh") as again:
        after = again.search(text="zeppelin", k=5)
        assert [(hit.id, hit.score) for hit in after] == [(hit.id, hit.score) for hit in before]
        assert after[0].id == added


def test_pictures_and_items_ask_by_their_fine_vectors(index):
    path = index.root / "007.png"
    by_picture = index.search(image=path, k=6)
    assert by_picture[0].name == "007.png"
    assert all(hit.score is not None for hit in by_picture)
    number = by_picture[0].id
    similar = index.similar(number, k=5)
    assert number not in [hit.id for hit in similar]
    query, request = index.ask(image=path)
    again = index.near(query.key, request.modality, k=6)
    assert {hit.id for hit in again} == {hit.id for hit in by_picture}
    near = pytest.approx([hit.score for hit in by_picture], abs=0.01)  # a key holds one byte per dimension
    assert [hit.score for hit in again] == near
    by_code = index.near(query.code, request.modality, k=6)  # a code alone: the order of distances
    assert [hit.distance for hit in by_code] == sorted(hit.distance for hit in by_code)
    assert by_code[0].score is None


def test_items_without_a_picture_and_joint_codes(model, tmp_path):
    data = load(write_pairs(tmp_path / "photos", 30, without_picture=(3, 4)))
    with SearchIndex.build(model, data, tmp_path / "each.dcmh") as each:
        text = data.text.values[3]
        hits = each.search(text=text, k=30)
        assert hits[0].name == data.ids[3]
        assert {hit.modality for hit in hits} == {"image", "text"}
        assert {hit.name for hit in hits} == set(data.ids)
    with SearchIndex.build(model, data, tmp_path / "joint.dcmh", codes="joint") as joint:
        assert list(joint.modalities) == ["joint"]
        assert joint.search(text=text)[0].name == data.ids[3]
        assert joint.search(text="sunny")[0].score is not None


def test_any_words_are_answered_and_nothing_is_ignored(index):
    query = index.search(text="Ein xyzzyx am Strand").query
    assert query.used == ("ein", "xyzzyx", "am", "strand")
    assert (query.ignored, query.nearest) == ((), {})


def test_what_the_encoder_cannot_read(index):
    text, more = "ሰላም", ", and no item's text contains it"
    with pytest.raises(UnknownWords, match=rf"use-multilingual cannot read any part of '{text}'{more}\. Use words of"):
        index.search(text=text)


def test_a_script_that_the_encoder_cannot_read_is_found_in_texts(own):
    with SearchIndex.open(own / "photos.dcmh") as index:
        (added,) = index.add([own / "photos" / "003.png"], text=["ሰላም ዓለም"], ids=["amharic"])
        assert [hit.id for hit in index.search(text="ሰላም")] == [added]


@pytest.mark.parametrize("text", ["", "   ", 5, ["dog"], b"dog", "x" * 100_000])
def test_queries_that_are_none(index, text):
    with pytest.raises(QueryError):
        index.search(text=text)


def test_empty_and_very_long_texts_are_indexed(own):
    with SearchIndex.open(own / "photos.dcmh") as index:
        pictures = [own / "photos" / f"00{i}.png" for i in (1, 2, 3)]
        added = index.add(pictures, text=["", "😀", "zeppelin " * 20_000], ids=["a", "b", "c"])
        assert index.search(text="zeppelin")[0].id == added[2]


class TestPrecision:
    def test_it_is_that_of_the_curve_of_such_hits(self, index):
        (measured_on,) = index.calibration.sizes  # few items: one size
        curves = measured_on.curves
        assert {kind for kind, _, _ in curves} == {"word", "sentence", "picture"}
        hits = index.search(text="snow", k=COUNT)
        best = max(hit.fine for hit in hits)
        shown = 0
        for place, hit in enumerate(hits):
            where = (
                "matched"
                if hit.words
                else "unmatched"
                if index.store.word_counts(["snow"])["snow"] > 10
                else "uncommon"
            )
            scores, shares = np.array(curves.get(("word", where, calibration.band(place)), [(9, 0)])).T
            value = hit.score - calibration.BEST * best
            measured = value >= scores[0] and (hit.words or best >= measured_on.weakest["word"])
            assert hit.precision == (pytest.approx(np.interp(value, scores, shares)) if measured else None)
            shown += hit.precision is not None
        assert shown

    def test_labels_are_not_a_text(self, own, monkeypatch):
        """Precision was measured on items with and without a text; labels alone are none."""
        seen = {}
        precision = calibration.Calibration.precision

        def spy(self, match, *given, has_text):
            seen[match.id] = has_text
            return precision(self, match, *given, has_text=has_text)

        monkeypatch.setattr(calibration.Calibration, "precision", spy)
        with SearchIndex.open(own / "photos.dcmh") as index:
            (added,) = index.add([own / "photos" / "003.png"], labels=[[1]], label_names=["zeppelin"], ids=["labelled"])
            hits = index.search(text="snow", k=COUNT + 1)
            assert index.item(added).labels == ("zeppelin",)
        assert len(hits) == COUNT + 1
        assert [number for number, has_text in seen.items() if not has_text] == [added]

    def test_what_is_weaker_than_all_that_was_measured_has_none(self, index):
        index.calibration.sizes[0].weakest = {"word": 2.0}
        assert all(hit.precision is None for hit in index.search(text="snow", k=COUNT) if not hit.words)

    def test_a_query_that_is_weaker_than_all_measured_ones_probably_matches_nothing(self, index, monkeypatch):
        monkeypatch.setattr(calibration, "UNLIKELY", 0.0)
        for weakest, is_unlikely in ((-2.0, False), (2.0, True)):
            index.calibration.sizes[0].weakest = {"word": weakest}
            assert index.search(text="quantum", k=3).unlikely is is_unlikely
        assert not index.search(text="snow", k=3).unlikely  # found by its word

    @pytest.mark.parametrize(("best", "is_unlikely"), [(0.2, True), (0.3, False), (None, False)])
    def test_nor_does_one_whose_best_hit_has_a_low_precision(self, best, is_unlikely):
        match = Match(1, 3, "image", 0.5, 0.5)
        ranking = Ranking([match], None, 10, None, None, 0.5, (0.5,))
        judge = calibration.Calibration({}).is_unlikely
        assert judge("picture", ranking, [0.1, best, 0.1], lambda: None) is is_unlikely

    @pytest.mark.parametrize(
        ("kind", "score", "usual", "highest", "is_unlikely"),
        [
            ("word", 0.5, 0.55, 0.7, False),
            ("word", 0.5, 0.63, 0.7, True),  # much less than usual
            ("sentence", 0.5, 0.63, 0.7, True),
            ("combined", 0.5, 0.63, 0.7, False),  # no words alone
            ("word", 0.35, 0.3, 0.35, True),  # nothing shows it, there or here
            ("word", 0.35, 0.3, 0.4, False),
        ],
    )
    def test_a_model_with_reference_pictures_compares_with_them(self, kind, score, usual, highest, is_unlikely):
        scores = np.array(
            [highest] * 3 + [usual - (highest - usual) / 9] * 27 + [0.0] * 970
        )  # the mean of 30 is the usual one
        ranking = Ranking([Match(1, 3, "image", score, score)], None, 100, None, None, score, (score,) * 3)
        judge = calibration.Calibration({}).is_unlikely
        assert judge(kind, ranking, [None], lambda: scores) is is_unlikely
        by_word = replace(ranking, matches=[Match(1, 3, "image", 1.5, score, ("snow",))])
        assert not judge(kind, by_word, [None], lambda: scores)

    @pytest.mark.parametrize(("searched", "is_unlikely"), [(3, False), (1000, True), (50_000, True)])
    def test_a_collection_is_compared_with_as_many_pictures(self, searched, is_unlikely):
        scores = np.linspace(0.8, 0, 1000)
        ranking = Ranking([Match(1, 3, "image", 0.5, 0.5)], None, searched, None, None, 0.5, (0.5,) * 3)
        assert calibration.Calibration({}).is_unlikely("word", ranking, [None], lambda: scores) is is_unlikely

    def test_the_starter_model_has_a_thousand_reference_pictures(self):
        space = Encoders(starter.folder()).fine
        (query,) = space.as_query(space.of_texts(["a dog on the beach"]))
        scores = space.reference_scores(query)
        assert scores.shape == (1000,)
        assert (np.diff(scores) <= 0).all()
        space.arrays.pop(fine_space.REFERENCE)  # as models of one's own have none
        assert space.reference_scores(query) is None

    def test_hits_past_what_was_measured_have_none(self, index):
        assert all(hit.precision is None for hit in index.search(text="snow", k=COUNT, offset=50))
        assert calibration.band(50) is None

    def test_at_least_leaves_out_what_does_not_reach_it(self, index):
        everything = index.search(text="snow", k=30)
        best = max(hit.precision for hit in everything if hit.precision is not None)
        good = index.search(text="snow", k=30, at_least=best)
        assert [hit.id for hit in good] == [h.id for h in everything if h.precision is not None and h.precision >= best]
        assert good.below == COUNT - len(good)  # of all that can have a precision
        assert len(index.search(text="snow", k=1, at_least=0.0)) == 1
        assert len(index.search(text="quantum chromodynamics", k=30, at_least=1.0)) < 30
        for wrong in (-0.1, 1.5, "0.8", True):
            with pytest.raises(ParameterError, match="at_least must be a number from 0 to 1"):
                index.search(text="snow", at_least=wrong)

    def test_a_model_that_was_not_measured_refuses_to_choose(self, tmp_path):
        data = load(write_photos(tmp_path / "photos", 12))
        with SearchIndex.build(None, data, tmp_path / "starter.dcmh") as index:
            assert all(hit.precision is None for hit in index.search(text="snow"))
            with pytest.raises(QueryError, match="was not measured"):
                index.search(text="snow", at_least=0.5)

    def test_no_item_that_was_trained_on_is_measured(self, split, monkeypatch):
        fitted = dcmh.DCMH(bits=16, hidden=8, epochs=1, device="cpu").fit(split.train)
        assert [size["items"] for size in calibration.measure(fitted, split)["sizes"]] == [len(split.query)]
        fitted.fine_ = None
        assert calibration.measure(fitted, split) is None

    def test_hits_without_a_precision_do_not_count(self, split, monkeypatch):
        fitted = dcmh.DCMH(bits=16, hidden=8, epochs=1, device="cpu").fit(split.train)

        def counted():
            seen = []
            monkeypatch.setattr(calibration, "curve_of", lambda hits: seen.append(len(hits)) or [(0.0, 0.5)])
            calibration.measure(fitted, split)
            return sum(seen)

        every = counted()
        monkeypatch.setattr(calibration, "WEAKEST", 1.0)  # only the best query of each kind is not too weak
        assert 0 < counted() < every

    def test_curves_are_those_of_collections_of_that_size(self):
        def curves(items, share):
            return {"items": items, "weakest": {}, "curves": {"word": {"bare": {"10": [[-1, share], [1, share]]}}}}

        held = {"sizes": [curves(4000, 0.8), curves(1000, 0.4), curves(2000, 0.6)]}
        measured = calibration.Calibration({calibration.HELD: held})
        match = Match(1, 3, "image", 0.5, 0.5)

        def shown(items):
            ranking = Ranking([match], None, items, None, None, 0.5)
            return measured.precision(match, 0, "word", "text", ranking, has_text=False)

        sizes = (10, 1000, 2**0.5 * 1000, 2000, 4000, 10**6)
        assert [shown(items) for items in sizes] == pytest.approx([0.4, 0.4, 0.5, 0.6, 0.8, 0.8])
        older = calibration.Calibration({calibration.HELD: curves(4000, 0.8)})  # one size, as first written
        assert (
            older.precision(match, 0, "word", "text", Ranking([match], None, 9, None, None, 0.5), has_text=False) == 0.8
        )

    def test_curves_rise(self):
        rng = np.random.default_rng(0)
        seen = [(score, rng.random() < score) for score in rng.random(2000)]
        scores, shares = np.array(calibration.curve_of(seen)).T
        assert (np.diff(scores) > 0).all()
        assert (np.diff(shares) > 0).all()
        assert np.abs(shares - scores).max() < 0.15

    def test_a_report_that_is_damaged_is_an_error(self, own):
        (own / "photos.dcmh" / "model" / "report.json").write_text('{"held_out": {"curves": {"word": 5}}}')
        with pytest.raises(dcmh.errors.ModelError, match=r"report\.json is damaged"):
            SearchIndex.open(own / "photos.dcmh")


class TestFineIndex:
    def vectors(self, n=20, seed=0):
        rng = np.random.default_rng(seed)
        return np.sort(rng.permutation(100)[:n]), rng.integers(-127, 128, (n, 8)).astype(np.int8)

    def test_scores_are_inner_products(self):
        ids, vectors = self.vectors()
        index, query = FineIndex.of(ids, vectors), np.linspace(-1, 1, 8, dtype=np.float32)
        found, scores = index.scores(query)
        assert (found == ids).all()
        np.testing.assert_allclose(scores, vectors @ query, rtol=1e-5)
        wanted = np.array([ids[3], 1000, ids[0]])
        some = index.scores_of(query, wanted)
        assert np.isnan(some[1])
        np.testing.assert_allclose(some[[0, 2]], (vectors @ query)[[3, 0]], rtol=1e-5)

    def test_the_compiled_kernel_gives_those_of_numpy(self):
        kernels = pytest.importorskip("dcmh.index.kernels")
        chance = np.random.default_rng(1)
        vectors = chance.integers(-127, 128, (5000, 37)).astype(np.int8)
        query = chance.normal(size=37).astype(np.float32)
        both = np.empty((2, 5000), np.float32)
        kernels.products(vectors, query, both[0])
        numpy_kernels.products(vectors, query, both[1])
        np.testing.assert_allclose(both[0], both[1], rtol=1e-5, atol=1e-3)
        again = np.empty(1, np.float32)
        kernels.products(vectors[77:78], query, again)
        assert again[0] == both[0, 77]  # wherever its row is

    def test_changes_leave_older_ones_alone(self, tmp_path):
        ids, vectors = self.vectors()
        first = FineIndex.of(ids, vectors)
        more = first.with_items(np.array([200, 201]), vectors[:2])
        less = more.without(np.array([ids[0], 201, 999]))
        swapped = less.with_items(np.array([ids[5]]), vectors[:1])
        assert [len(one) for one in (first, more, less, swapped)] == [20, 22, 20, 20]
        assert (swapped.vector(int(ids[5])) == vectors[0]).all()
        assert less.vector(201) is None
        swapped.save(tmp_path, 7)
        loaded = FineIndex.load(tmp_path, 7)
        assert (loaded.live()[0] == swapped.live()[0]).all()
        assert (loaded.live()[1] == swapped.live()[1]).all()
        grown = loaded.with_items(np.array([300]), vectors[:1])
        assert (len(grown), len(loaded)) == (21, 20)
        with pytest.raises(dcmh.errors.ModelError, match="out of date"):
            FineIndex.load(tmp_path, 8)

    def test_damaged_files_are_made_again_from_the_catalogue(self, own):
        with SearchIndex.open(own / "photos.dcmh") as index:
            expected = [(hit.id, hit.score) for hit in index.search(text="snow", k=COUNT)]
        folder = own / "photos.dcmh" / "codes" / "image"
        file = next(folder.glob("*-fine.npy"))
        file.write_bytes(file.read_bytes()[:200])
        with SearchIndex.open(own / "photos.dcmh") as index:
            assert [(hit.id, hit.score) for hit in index.search(text="snow", k=COUNT)] == expected


def test_dimensions_are_a_choice(split):
    fitted = dcmh.methods.get("scm")(bits=8).fit(split.train, fine=64)
    assert fitted.fine_.dimensions <= 64
    assert dcmh.methods.get("scm")(bits=8).fit(split.train, fine=0).fine_ is None
    with pytest.raises(ParameterError, match="fine must be one of 0, 64, 128, 256, not 100"):
        dcmh.methods.get("scm")(bits=8).fit(split.train, fine=100)


def test_every_method_has_a_second_stage(split, tmp_path):
    data = load(write_photos(tmp_path / "photos", 20))
    fitted = dcmh.methods.get("scm")(bits=8).fit(split.train)
    with SearchIndex.build(fitted, data, tmp_path / "scm.dcmh", split=split) as index:
        hits = index.search(text="glistening frozen water")  # none of these words is in the vocabulary
        assert hits[0].score is not None
        assert any(hit.precision is not None for hit in hits)


def test_an_index_made_by_another_encoder_is_refused(own):
    path = own / "photos.dcmh" / "model" / "model.json"
    record = json.loads(path.read_text())
    record["fine"]["encoder"]["sha256"] = record["modalities"]["text"]["encoder"]["sha256"] = "0" * 64
    path.write_text(json.dumps(record))
    (path.parent / "checksums.json").unlink()
    other = pytest.raises(dcmh.errors.ModelMismatch, match="learned with other weights of the encoder")
    with SearchIndex.open(own / "photos.dcmh") as index, other:
        index.search(text="snow")


def test_words_ask_without_torch(ready):
    code = (
        "import sys; from dcmh.search import SearchIndex\n"
        f"hits = SearchIndex.open({str(ready / 'photos.dcmh')!r}).search(text='automobile')\n"
        "assert len(hits) == 10 and 'torch' not in sys.modules, sorted(m for m in sys.modules if 'torch' in m)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_the_fine_space_needs_words_for_things():
    rng = np.random.default_rng(0)
    vectors = dcmh.Dataset.from_arrays(
        image=rng.normal(size=(30, 6)),
        text=rng.normal(size=(30, 5)),
        labels=np.eye(3, dtype=np.uint8)[rng.integers(3, size=30)],
    )
    assert dcmh.methods.get("cca")(bits=4).fit(vectors).fine_ is None
    named = dcmh.Dataset(vectors.columns, labels=vectors.labels, label_names=["dog", "boat", "tree"])
    found = dcmh.methods.get("cca")(bits=4).fit(named).fine_
    assert found.modalities == ["image", "text"]
    assert fine_space.DEFAULT == 128


def test_words_of_a_script_that_the_encoder_lacks_have_codes_where_the_model_learned_them(tmp_path):
    toy = dcmh.load_dataset("toy")
    bengali = {chr(ord("a") + i): chr(0x0995 + i) for i in range(26)}
    texts = ["".join(bengali.get(letter, letter) for letter in text) for text in toy.text.values]
    data = dcmh.Dataset({"image": toy.image, "text": dcmh.Texts(texts)}, labels=toy.labels, ids=toy.ids, name="bengali")
    fitted = dcmh.DCMH(bits=16, hidden=8, epochs=1, device="cpu").fit(data)
    with SearchIndex.build(fitted, data, tmp_path / "bengali.dcmh") as index:
        assert index.modalities == {"image": 200, "text": 200}
        assert len(index.search(text=texts[0], modality="image")) == 10


def test_pages_within_a_radius_and_above_a_precision_differ(index):
    everything = [hit.id for hit in index.search(text="snow", radius=16, at_least=0.0)]
    rest = [hit.id for hit in index.search(text="snow", radius=16, at_least=0.0, offset=3)]
    assert rest == everything[3:]
    for wrong in ("1", -1, True):
        with pytest.raises(ParameterError, match="offset must be a whole number"):
            index.search(text="snow", offset=wrong, at_least=0.0)


def test_a_query_that_only_words_answer_keeps_to_its_radius(own):
    with SearchIndex.open(own / "photos.dcmh") as index:
        (added,) = index.add([own / "photos" / "003.png"], text=["ሰላም ዓለም"], ids=["amharic"])
        distance = index.search(text="ሰላም")[0].distance
        assert [hit.id for hit in index.search(text="ሰላም", radius=distance)] == [added]
        assert len(index.search(text="ሰላም", radius=distance - 1)) == 0


def test_searches_see_whole_answers_while_items_change(own):
    with SearchIndex.open(own / "photos.dcmh") as index:
        always = {hit.id for hit in index.search(text="snow", k=9)}
        stop, missing = threading.Event(), []

        def search():
            while not stop.is_set():
                missing.extend(always - {hit.id for hit in index.search(text="snow")})

        readers = [threading.Thread(target=search) for _ in range(2)]
        for reader in readers:
            reader.start()
        for turn in range(8):
            index.add([own / "photos" / "003.png"], text=[f"snow number {turn}"], ids=["changed"])
            index.remove([index.store.find("changed").id])
        stop.set()
        for reader in readers:
            reader.join()
        assert missing == []
