"""What older versions wrote is read, and gives the same answers to the bit. One small set for each format, kept for ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import dcmh
from dcmh.search import SearchIndex

FORMATS = sorted((Path(__file__).parent / "fixtures").glob("format-*"))


@pytest.fixture(params=FORMATS, ids=lambda path: path.name)
def older(request, tmp_path):
    shutil.copytree(request.param, tmp_path / "older")
    return tmp_path / "older"


def test_there_is_one_of_each():
    assert [path.name for path in FORMATS] == ["format-1"]


def test_a_model_gives_the_same_codes(older):
    answers = json.loads((older / "answers.json").read_text())
    model = dcmh.load(older / "model")
    with SearchIndex.open(older / "index.dcmh") as index:
        texts = [index.item(number).text for number in range(1, 25)]
    assert (model.encode(text=texts) == np.array(answers["codes"])).all()
    sound = np.array(answers["sound"], np.float32)
    assert (model.encode(sound=sound) == np.array(answers["sound codes"])).all()


@pytest.mark.parametrize("writable", [True, False])
def test_an_index_gives_the_same_hits(older, writable):
    answers = json.loads((older / "answers.json").read_text())
    if not writable:
        for path in (older / "index.dcmh").rglob("*"):
            path.chmod(0o555 if path.is_dir() else 0o444)
        (older / "index.dcmh").chmod(0o555)
    with SearchIndex.open(older / "index.dcmh") as index:
        for text in ("sunny yellow", "boat sea", "snow"):
            hits = index.search(text=text, k=8)
            assert [[hit.name, hit.distance, hit.precision] for hit in hits] == answers[text]
            assert all(hit.score is None for hit in hits)


def test_words_of_texts_find_what_the_vocabulary_lacks(older):
    with SearchIndex.open(older / "index.dcmh") as index:
        bag = index.encoders.words.bag
        rare = next(
            (word, number)
            for number in range(1, 25)
            for word in index.item(number).text.split()
            if bag.used_and_ignored(word)[0] == []
        )
        assert rare[1] in [hit.id for hit in index.search(text=rare[0])]
