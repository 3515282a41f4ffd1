"""The overview: words that pictures separate are topics, words that they do not are none."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dcmh.search.overview import MAX_TOPICS, Overview
from dcmh.stores.base import Item

ANIMALS = ("dog", "cat", "giraffe", "zebra", "heron", "goat", "whale", "crab")
OF_EACH = 20


class Space:
    """A fine space in which the words that name an animal point to its pictures, and all others nowhere."""

    def of_texts(self, texts):
        noise = np.random.default_rng(0).normal(0, 0.05, (len(texts), len(ANIMALS)))
        return (noise + [[animal in text.split() for animal in ANIMALS] for text in texts]).astype(np.float32)

    def as_query(self, vectors):
        return vectors


def index_of(items):
    """An index whose pictures show one animal after the other."""
    fine = {item.id: np.eye(len(ANIMALS))[(item.id - 1) % len(ANIMALS)].astype(np.int8) for item in items}
    items = {item.id: item for item in items}
    store = SimpleNamespace(
        snapshot=SimpleNamespace(generation=7, fine={"image": None}),
        items=lambda: iter(items.values()),
        get=lambda ids: {number: items[number] for number in ids if number in items},
        fine_of=lambda modality, ids: {number: fine[number].tobytes() for number in ids if number in fine},
    )

    class Index:
        encoders = SimpleNamespace(text="text", picture="image", fine=Space())

        def __len__(self):
            return len(items)

    Index.store, Index.modalities = store, {"image": len(items)}
    return Index()


def animal(number):
    return ANIMALS[(number - 1) % len(ANIMALS)]


def items(describe):
    return [Item(f"{n}.jpg", f"set {n % 2}/{n}.jpg", id=n, **describe(n)) for n in range(1, len(ANIMALS) * OF_EACH + 1)]


def test_labels_that_pictures_separate_are_topics():
    chosen = index_of(items(lambda n: {"labels": (animal(n), "thing", f"batch{n % 9}"), "text": "next to the top"}))
    found = Overview(chosen)
    assert {topic.word for topic in found.topics} == set(ANIMALS)
    assert {(topic.items, topic.precision) for topic in found.topics} == {(OF_EACH, 1.0)}
    assert found.labels[0] == "thing"  # to filter by, any label will do
    assert set(found.folders) == {"set 0", "set 1"}
    assert found.generation == 7


def test_words_of_texts_serve_where_there_are_no_labels():
    others = ("next", "top", "photo", "nice")
    found = Overview(index_of(items(lambda n: {"text": f"a {animal(n)} {others[n % 3]} {others[n % 7 % 4]}"})))
    assert {topic.word for topic in found.topics} == set(ANIMALS)


def test_few_labels_are_joined_by_words():
    found = Overview(index_of(items(lambda n: {"labels": ("dog",) if animal(n) == "dog" else (), "text": animal(n)})))
    assert {topic.word for topic in found.topics} == set(ANIMALS)


def test_without_labels_and_texts_the_classes_that_stand_out_are_topics():
    found = Overview(index_of(items(lambda n: {})))
    assert 0 < len(found.topics) <= MAX_TOPICS
    named = {name for topic in found.topics for name in topic.word.split()}
    assert {"zebra", "whale", "crab", "cat"} <= named  # those that ImageNet has a name for
    assert all(topic.precision is None for topic in found.topics)


@pytest.mark.parametrize("number", [1, 3, 8])
def test_an_item_is_found_by_its_own_word(number):
    chosen = index_of(items(lambda n: {"labels": (animal(n), f"batch{n % 9}"), "text": "next to the top"}))
    assert Overview(chosen).words_for(chosen, number) == [animal(number)]
    assert Overview(chosen).words_for(chosen, 9999) == []


def test_items_are_sampled_also_after_all_older_ones_were_replaced():
    chosen = index_of([replace(item, id=item.id + 8000) for item in items(lambda n: {"labels": (animal(n),)})])
    found = Overview(chosen)
    assert {topic.word for topic in found.topics} == set(ANIMALS)
    assert set(found.folders) == {"set 0", "set 1"}


def test_folders_outside_of_the_data_and_those_of_uploads_are_not_shown():
    inside, outside = Item("1", "a/b/1.jpg", id=1), Item("2", "/srv/secret/2.jpg", id=2)
    upload = Item("upload:3", "photos.dcmh/uploads/3.jpg", id=3, uploaded=True)
    assert Overview(index_of([inside, outside, upload])).folders == ("a/b",)


def test_an_empty_index_has_none():
    chosen = index_of([])
    found = Overview(chosen)
    assert (found.topics, found.labels, found.folders) == ((), (), ())
    assert found.words_for(chosen, 1) == []
