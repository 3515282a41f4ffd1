"""dcmh evaluate."""

from __future__ import annotations

import json
import shutil

import pytest
from commands import QUICK

from toy_photos import write_photos


def test_it_measures_what_train_measured_without_naming_the_data(cli, toy_model):
    answer = cli("evaluate", toy_model, "--json")
    assert answer.code == 0
    report = json.loads(answer.out)
    assert report == json.loads((toy_model / "report.json").read_text())
    assert {"bits", "queries", "database", "train", "chance", "image_to_text", "text_to_image"} <= set(report)
    assert set(report["text_to_image"]["map"]) == {"stable", "expected", "best", "worst"}
    assert len(report["text_to_image"]["lookup"]) == 17
    assert json.loads(cli("evaluate", toy_model, "toy", "--json").out) == report


def test_ties_and_k_choose_what_the_table_shows(cli, toy_model):
    assert cli("evaluate", toy_model, "--ties", "worst", "--k", "5").out.split()[:5] == [
        "direction",
        "MAP@5",
        "worst",
        "P@10",
        "chance",
    ]
    answer = cli("evaluate", toy_model, "--k", "0")
    assert (answer.code, answer.out) == (1, "")
    assert answer.last == "k must be a whole number of ranks, at least 1, not 0."
    assert cli("evaluate", toy_model, "--ties", "random").code == 2


@pytest.fixture
def photo_model(cli, tmp_path):
    write_photos(tmp_path / "photos", 40)
    assert cli("train", "photos", *QUICK).code == 0
    return tmp_path / "photos.model"


def test_of_other_data_nothing_that_was_trained_on_is_a_query(cli, photo_model, tmp_path):
    write_photos(tmp_path / "more", 60)
    trained = set(json.loads((photo_model / "split.json").read_text())["train"])
    held_out = {f"{row:03}.png" for row in range(40)} - trained
    (tmp_path / "more" / min(held_out)).unlink()
    answer = cli("evaluate", photo_model, "more")
    assert answer.code == 0
    assert "more is not the data the model was trained on: 32 of its 59 items were trained on (by id)" in answer.err
    assert "32 learned from" in answer.err


def test_data_that_grew_keeps_its_queries(cli, photo_model, tmp_path):
    write_photos(tmp_path / "photos", 60)
    answer = cli("evaluate", photo_model)
    assert answer.code == 0
    assert "The data has changed since the split" in answer.err
    assert "8 held-out queries, 52 in the database, 32 learned from" in answer.err


def test_data_of_which_everything_was_trained_on_is_refused(cli, photo_model, tmp_path):
    trained = set(json.loads((photo_model / "split.json").read_text())["train"])
    for picture in (tmp_path / "photos").glob("*.png"):
        if picture.name not in trained:
            picture.unlink()
    shutil.move(tmp_path / "photos", tmp_path / "others")
    answer = cli("evaluate", photo_model, "others")
    assert (answer.code, answer.out) == (1, "")
    assert answer.last.startswith("All 32 items of others have ids that the model was trained on")
    answer = cli("evaluate", photo_model)
    assert answer.code == 1
    assert f"The data that the model was trained on, {tmp_path / 'photos'}, is not there." in answer.last


def test_a_model_that_does_not_say_what_it_learned_from(cli, toy_model, tmp_path):
    shutil.copytree(toy_model, tmp_path / "m")
    (tmp_path / "m" / "run.json").unlink()
    assert cli("evaluate", "m").last == "m does not say which data it was trained on. Name it: dcmh evaluate m DATA"
    (tmp_path / "m" / "split.json").unlink()
    assert cli("evaluate", "m", "toy").last.startswith("m has no split.json, so nothing says which items it learned")
