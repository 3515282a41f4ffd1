"""Filters on a server pass the same items as in a folder, and excluded words and examples find the same hits."""

from __future__ import annotations

import pytest

from dcmh.search import Filter, SearchIndex
from filters import FILTERS, passes, write_described
from toy_photos import load

COUNT = 40
ASKED = [
    {"text": "sunny sea"},
    {"text": "sea", "modality": "text"},
    {"text": "night", "like": [3, 4], "unlike": [5]},
    {"like": [7]},
]


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    """Photos, of which one has only words."""
    folder = write_described(tmp_path_factory.mktemp("described") / "photos", COUNT)
    pairs = (folder / "pairs.jsonl").read_text()
    (folder / "pairs.jsonl").write_text(pairs.replace('"image": "2019/006.png", ', ""))
    (folder / "2019/006.png").unlink()
    return folder


def test_hits_are_those_that_pass(address, models, described):
    with SearchIndex.build(models[0], load(described), address) as index:
        items = list(index.store.items())
        assert (items[0].extra["rating"], items[0].taken.year, len(items)) == (0, 2019, COUNT)
        for chosen in FILTERS:
            passing = [item.id for item in items if passes(chosen, item)]
            assert index.store.matching(chosen).tolist() == passing, chosen
            for question in ASKED:
                everything = index.search(**question, k=COUNT)
                hits = index.search(**question, k=COUNT, filter=chosen)
                assert [(hit.id, hit.score, hit.distance) for hit in hits] == [
                    (hit.id, hit.score, hit.distance) for hit in everything if hit.id in passing
                ]


def test_the_search_itself_is_limited(address, models, described, monkeypatch):
    """As in a collection of more than EVERYTHING items: the server returns the nearest codes of those that pass."""
    with SearchIndex.build(models[0], load(described), address) as index:
        monkeypatch.setattr("dcmh.search.rank.EVERYTHING", 10)
        monkeypatch.setattr("dcmh.search.rank.CANDIDATES", 15)
        for chosen in (Filter(labels=["sea"]), Filter(folder="2019", where=["rating < 2"])):
            passing = set(index.store.matching(chosen).tolist())
            assert {hit.id for hit in index.search("night", k=15, filter=chosen)} == passing
            near = index.search("night", radius=32, k=COUNT, filter=chosen)
            assert {hit.id for hit in near} == passing


def test_excluded_words(address, models, described):
    with SearchIndex.build(models[0], load(described), address) as index:
        hits = index.search("sea -night", k=COUNT)
        if index.store.has_words:  # Milvus has no index of words: they are only subtracted
            assert not any("night" in hit.labels for hit in hits)
        plain = {hit.id: hit.fine for hit in index.search("sea", k=COUNT)}
        night = {hit.id: hit.fine for hit in index.search("night", k=COUNT)}
        assert all(hit.fine == pytest.approx(plain[hit.id] - night[hit.id], abs=1e-6) for hit in hits)
