"""dcmh evaluate."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from commands import QUICK

from toy_photos import write_photos


def measured(model):
    """What train measured, less the precision of hits, which only searches use."""
    report = json.loads((model / "report.json").read_text())
    report.pop("held_out")
    return report


def test_it_measures_what_train_measured_without_naming_the_data(cli, toy_model):
    answer = cli("evaluate", toy_model, "--json")
    assert answer.code == 0
    report = json.loads(answer.out)
    assert report == measured(toy_model)
    assert {"bits", "queries", "database", "train", "chance", "image_to_text", "text_to_image"} <= set(report)
    assert set(report["text_to_image"]["map"]) == {"stable", "expected", "best", "worst"}
    assert len(report["text_to_image"]["lookup"]) == 17
    assert json.loads(cli("evaluate", toy_model, "toy", "--json").out) == report


def test_ties_and_k_choose_what_the_table_shows(cli, toy_model):
    header = cli("evaluate", toy_model, "--ties", "worst", "--k", "5").out.splitlines()[0]
    assert re.split(r"  +", header) == ["direction", "searched", "MAP@5 worst", "95 % interval", "P@10", "chance"]
    answer = cli("evaluate", toy_model, "--k", "0")
    assert (answer.code, answer.out) == (1, "")
    assert answer.last == "k must be a whole number of at least 1, not 0."
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
    assert "more is not the training data: 32 of its 59 items have ids of training items" in answer.err
    assert "32 learned from" in answer.err
    assert "trained on, so" not in answer.err  # nothing that is searched was


def test_data_that_grew_keeps_its_queries(cli, photo_model, tmp_path):
    write_photos(tmp_path / "photos", 60)
    answer = cli("evaluate", photo_model)
    assert answer.code == 0
    assert "The data has changed since the split" in answer.err
    assert "8 held-out queries, 52 in the database, 32 learned from" in answer.err


def test_data_that_shrank_is_measured_with_what_is_left(cli, photo_model, tmp_path):
    split = json.loads((photo_model / "split.json").read_text())
    for name in (split["query"][0], split["train"][0], split["train"][1]):
        (tmp_path / "photos" / name).unlink()
    answer = cli("evaluate", photo_model)
    assert answer.code == 0
    assert "1 of its 8 queries and 2 of its 32 training items are gone from the data, and left out." in answer.err
    assert "7 held-out queries" in answer.err


def test_pictures_that_may_have_been_trained_on_are_pointed_at(cli, photo_model, tmp_path):
    folder = write_photos(tmp_path / "again" / "deeper", 40)
    header, *lines = (folder / "captions.csv").read_text().splitlines()
    (tmp_path / "again" / "captions.csv").write_text("\n".join([header, *(f"deeper/{line}" for line in lines)]) + "\n")
    answer = cli("evaluate", photo_model, "again")
    assert answer.code == 0
    assert "32 of the others have the file name of a training item." in answer.err


def write_table(folder, words, n=120, *, ids="i"):
    """Texts and titles without labels: one of the words each, and what they have in common."""
    folder.mkdir(exist_ok=True)
    lines = ["id,title,text"]
    for row in range(n):
        word = words[row % len(words)]
        lines.append(f"{ids}{row},{word} of the {word} day,{word} thing")
    (folder / "pairs.csv").write_text("\n".join(lines) + "\n")


FIRST, LATER = ["apple", "boat", "cloud", "dog", "earth"], ["fox", "goat", "house"]


@pytest.fixture
def wordy_model(cli, tmp_path):
    """Learned from a table without labels."""
    write_table(tmp_path / "things", FIRST)
    answer = cli("train", "things", "--modalities", "title,text", *QUICK)
    assert answer.code == 0, answer.err
    assert "things: No labels given: the 5 most frequent words serve as labels (apple, " in answer.err
    return tmp_path / "things.model"


def test_the_words_that_a_model_learned_from_stay_labels(cli, wordy_model, tmp_path):
    assert sorted(json.loads((wordy_model / "run.json").read_text())["data"]["label_words"]) == FIRST
    before = json.loads(cli("evaluate", wordy_model, "--json").out)
    assert before == measured(wordy_model)
    table = tmp_path / "things" / "pairs.csv"
    table.write_text(
        table.read_text() + "".join(f"n{row},{LATER[row % 3]} day,{LATER[row % 3]}\n" for row in range(90))
    )
    answer = cli("evaluate", wordy_model, "--json")
    assert answer.code == 0
    assert "things: No labels given: the 5 words that served as labels in training (apple" in answer.err
    assert "most frequent words" not in answer.err
    assert "The words that serve as labels are chosen anew" not in answer.err
    after = json.loads(answer.out)
    assert (before["database"], after["database"]) == (96, 186)
    # None of the new items has one of the words: as many are relevant as before, among more.
    assert after["chance"] == pytest.approx(before["chance"] * 96 / 186)
    (tmp_path / "things").rename(tmp_path / "grown")
    assert json.loads(cli("evaluate", wordy_model, "grown", "--json").out) == after
    assert "apple" in dict(line.split(None, 1) for line in cli("info", wordy_model).out.splitlines())["label_words"]


def test_an_older_model_counts_the_words_again(cli, wordy_model, tmp_path):
    run = json.loads((wordy_model / "run.json").read_text())
    del run["data"]["label_words"]
    (wordy_model / "run.json").write_text(json.dumps(run))
    (wordy_model / "checksums.json").unlink()  # as in models of older versions
    same = cli("evaluate", wordy_model, "--json")
    assert json.loads(same.out) == measured(wordy_model)
    assert "The words that serve as labels are chosen anew" not in same.err
    write_table(tmp_path / "things", [*FIRST, *LATER], 180)
    grown = cli("evaluate", wordy_model)
    assert grown.code == 0
    assert "the 8 most frequent words serve as labels" in grown.err
    assert "The words that serve as labels are chosen anew" in grown.err


def test_words_that_tell_nothing_apart_elsewhere_are_counted_again(cli, wordy_model, tmp_path):
    write_table(tmp_path / "others", ["fig", "gold", "hat", "ink", "jam"], 200, ids="o")
    answer = cli("evaluate", wordy_model, "others")
    assert answer.code == 0
    assert "others: No labels given, and the 5 words that served as labels in training" in answer.err
    assert "do not tell these items apart." in answer.err
    assert "others: No labels given: the 5 most frequent words serve as labels (" in answer.err
    assert "others is not the training data: 0 of its 200 items have ids of training items" in answer.err


def test_labels_that_are_given_are_used(cli, toy_model):
    assert json.loads((toy_model / "run.json").read_text())["data"]["label_words"] is None
    assert "No labels" not in cli("evaluate", toy_model).err


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
    assert f"The data that the model was trained on, {tmp_path / 'photos'}, does not exist." in answer.last


def test_a_model_that_does_not_say_what_it_learned_from(cli, toy_model, tmp_path):
    shutil.copytree(toy_model, tmp_path / "m")
    (tmp_path / "m" / "run.json").unlink()
    assert cli("evaluate", "m").last == "m does not record its training data. Name it: dcmh evaluate m DATA"
    (tmp_path / "m" / "split.json").unlink()
    assert cli("evaluate", "m", "toy").last.startswith("m has no split.json, so its training items are unknown")
