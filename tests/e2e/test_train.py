"""dcmh train."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from commands import QUICK, finish, left_behind, spawn
from safetensors import SafetensorError

import dcmh
from dcmh.cli.train import default_queries, default_unseen, leaves_unseen
from dcmh.cli.training_run import CheckpointFolder
from dcmh.data import Dataset, dataset
from dcmh.methods.dcmh import similarity, state
from toy_photos import write_photos


def test_a_model_is_learned_measured_and_written_whole(cli, tmp_path):
    answer = cli("train", "toy", *QUICK)
    assert answer.code == 0
    header, image_to_text, text_to_image, *joint = answer.out.splitlines()
    titles = ["direction", "searched", "MAP stable", "95 % interval", "MAP expected", "P@10", "chance"]
    assert re.split(r"  +", header) == titles
    assert "Everything searched was trained on, so that new items will be found less well" in answer.err
    assert "Caution: 40 queries cannot tell much: with others, MAP" in answer.err
    assert image_to_text.startswith("image → text")
    assert text_to_image.startswith("text → image")
    assert [line.split("  ")[0] for line in joint] == ["image → joint", "text → joint"]
    assert (
        "Learning 16-bit codes with dcmh on cpu from 160 of 200 items of toy (image, text, 264 words, 8 labels); "
        "40 held out as queries, 160 in the database.\n"
    ) in answer.err
    assert answer.last == "Wrote toy.model. Next: dcmh index toy --model toy.model"
    assert left_behind(tmp_path) == ["toy.model"]
    assert left_behind(tmp_path / "toy.model") == [
        "checksums.json",
        "history.jsonl",
        "model.json",
        "report.json",
        "run.json",
        "split.json",
        "text.vocabulary.txt",
        "weights.safetensors",
        "weights.safetensors.crc32",
    ]
    assert dcmh.load(tmp_path / "toy.model").bits == 16


def test_data_is_prepared_once(cli, monkeypatch):
    """One split, one similarity; one fingerprint of all items, for the split, and one of the training items."""
    calls = Counter()

    def counted(name, function):
        return lambda *arguments: calls.update([name]) or function(*arguments)

    for owner, name in ((dataset, "make_split"), (similarity, "build"), (Dataset, "fingerprint")):
        monkeypatch.setattr(owner, name, counted(name, getattr(owner, name)))
    assert cli("train", "toy", *QUICK, "--similarity", "tags").code == 0
    assert calls == {"make_split": 1, "build": 1, "fingerprint": 2}


def test_it_works_as_a_program_whose_output_is_json(tmp_path):
    answer = finish(spawn("train", "toy", "--method", "ridge", "--bits", "8", "--json", cwd=tmp_path))
    assert answer.code == 0
    said = json.loads(answer.out)
    assert said["model"] == "toy.model"
    assert said["method"] == "ridge"
    assert set(said["report"]["image_to_text"]["map"]) == {"stable", "expected", "best", "worst"}
    assert said["report"]["queries"] == 40
    answer = finish(spawn("report", "toy.model", cwd=tmp_path))
    assert answer.code == 1
    assert answer.last == "toy.model has no history: its method does not learn in iterations, so there are no curves."


def test_a_flag_wins_over_the_file_and_the_file_over_the_default(cli, tmp_path):
    (tmp_path / "run.toml").write_text(
        'bits = 24\nepochs = 2\nhidden = 32\nqueries = 30\n"train-size" = 100\ndropout = 0.1\n[option]\ngamma = 2\n'
    )
    assert cli("train", "toy", "--config", "run.toml", "--bits", "8", "--out", "m").code == 0
    model = dcmh.load(tmp_path / "m")
    assert (model.bits, model.epochs, model.hidden, model.dropout, model.gamma, model.seed) == (8, 2, 32, 0.1, 2.0, 0)
    split = json.loads((tmp_path / "m" / "split.json").read_text())
    assert (len(split["query"]), len(split["train"])) == (30, 100)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("bits = 'many'", 'unable to convert "many" into int'),
        ("bitz = 8", "Unknown option"),
        ("bits 8", "run.toml is not TOML"),
    ],
)
def test_a_wrong_settings_file_is_explained(cli, tmp_path, content, says):
    (tmp_path / "run.toml").write_text(content)
    answer = cli("train", "toy", "--config", "run.toml")
    assert answer.code == 1
    assert says in answer.err
    assert answer.err.count("\n") == 1


def test_settings_of_other_methods_are_given_by_name(cli, tmp_path):
    assert cli("train", "toy", "--method", "ridge", "--bits", "8", "--option", "ridge=0.5", "--out", "m").code == 0
    assert dcmh.load(tmp_path / "m").parameters == {"bits": 8, "seed": 0, "ridge": 0.5}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--gamma", "2"), "--gamma: the method ridge has no setting 'gamma'. It has: bits, seed, ridge."),
        (("--option", "rigde=2"), "has no setting 'rigde'. Did you mean 'ridge'? It has: bits, seed, ridge."),
        (("--option", "ridge=much"), "--option ridge=much: 'much' is not of type float."),
        (("--option", "ridge"), "--option ridge: expected NAME=VALUE, such as --option ridge=0.1."),
    ],
)
def test_a_setting_the_method_does_not_have_is_refused(cli, arguments, says, tmp_path):
    answer = cli("train", "toy", "--method", "ridge", *arguments)
    assert answer.code == 1
    assert says in answer.err
    assert left_behind(tmp_path) == []


def test_without_labels_frequent_words_serve_and_it_says_so(cli, tmp_path):
    write_photos(tmp_path / "photos", 60, header="file,text")
    answer = cli("train", "photos", *QUICK, "--min-tag-count", "4")
    assert answer.code == 0
    assert "No labels given: the" in answer.err
    assert "most frequent words serve as labels" in answer.err
    assert cli("evaluate", "photos.model").out == answer.out


def test_a_split_that_the_data_came_with_is_used_unless_queries_are_asked_for(cli, tmp_path):
    folder = write_photos(tmp_path / "photos")
    lines = (folder / "captions.csv").read_text().splitlines()
    parts = ["split", *(["query"] * 10 + ["train"] * 30)]
    (folder / "pairs.csv").write_text("\n".join(f"{line},{part}" for line, part in zip(lines, parts, strict=True)))
    answer = cli("train", "photos", *QUICK)
    assert "Using the split of the data" in answer.err
    assert "from 30 of 40 items" in answer.err
    assert "from 35 of 40 items" in cli("train", "photos", "--queries", "5", *QUICK).err
    answer = cli("train", "photos", "--train-size", "5", *QUICK)
    assert answer.code == 1
    assert "Give --queries as well as --train-size" in answer.err


def test_unreadable_pictures_are_skipped_and_listed(cli, photos, tmp_path):
    spoil(photos)
    answer = cli("train", "photos", *QUICK)
    assert answer.code == 0
    assert "5 skipped, listed in photos.model/skipped.tsv." in answer.err
    assert "of 35 items" in answer.err
    rows = [line.split("\t") for line in (tmp_path / "photos.model" / "skipped.tsv").read_text().splitlines()]
    assert rows[0] == ["file", "reason"]
    reasons = dict(rows[1:])
    assert reasons["000.png"] == "empty file"
    assert reasons["001.png"] == "not an image"
    assert reasons["002.png"].startswith("truncated after")
    assert "144 megapixels, more than the limit of 100" in reasons["003.png"]
    assert reasons["004.png"] == "does not exist"
    again = cli("evaluate", "photos.model")
    assert again.code == 0
    assert again.out == answer.out
    assert "has changed" not in again.err
    assert cli("report", "photos.model").last == "Wrote 3 files into report."


def test_strict_stops_before_training_with_code_3_and_writes_nothing(cli, photos, tmp_path):
    spoil(photos)
    answer = cli("train", "photos", "--strict", *QUICK)
    assert answer.code == 3
    assert answer.out == ""
    assert answer.last.startswith("Stopped because of --strict")
    assert left_behind(tmp_path) == ["photos"]


def spoil(photos):
    """Empty, no picture, truncated, a decompression bomb, gone."""
    from PIL import Image

    (photos / "000.png").write_bytes(b"")
    (photos / "001.png").write_bytes(b"no picture at all")
    whole = (photos / "002.png").read_bytes()
    (photos / "002.png").write_bytes(whole[: len(whole) // 2])
    Image.new("1", (12_000, 12_000)).save(photos / "003.png")
    (photos / "004.png").unlink()


def test_finetuning_reads_pixels(cli, photos, tmp_path):
    spoil(photos)
    sizes = {"train-size": 8, "queries": 8, "epochs": 1, "hidden": 8, "bits": 8, "batch-size": 4}
    answer = cli("train", "photos", "--finetune", "--device", "cpu", *(f"--{name}={n}" for name, n in sizes.items()))
    assert answer.code == 0
    assert "5 skipped" in answer.err
    assert json.loads((tmp_path / "photos.model" / "model.json").read_text())["modalities"]["image"]["view"] == "pixels"


def test_an_old_checkpoint_is_dropped_and_nothing_to_resume_is_said(cli, tmp_path):
    work = CheckpointFolder(tmp_path / "toy.model")
    work.folder.mkdir()
    work.state.write_bytes(b"of an older run")
    answer = cli("train", "toy", *QUICK)
    assert answer.code == 0
    assert "toy.model.checkpoint holds an unfinished training, which is dropped" in answer.err
    assert (
        "Nothing to resume in toy.model.checkpoint; starting from the beginning."
        in cli("train", "toy", "--resume", *QUICK).err
    )
    assert left_behind(tmp_path) == ["toy.model"]


def test_two_trainings_do_not_write_the_same_model(cli, tmp_path):
    work = CheckpointFolder(tmp_path / "toy.model")
    work.open(resume=False)
    answer = cli("train", "toy", *QUICK)
    work.close(finished=True)
    assert answer.code == 1
    assert answer.last == "Another dcmh train is writing toy.model.checkpoint. Wait for it, or choose another --out."


def test_a_finished_training_that_finds_no_room_keeps_its_checkpoint(cli, tmp_path, monkeypatch):
    def full(*arguments):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(state, "CHECKPOINT_SECONDS", -1.0)
    with monkeypatch.context() as patch:
        patch.setattr("safetensors.numpy.save_file", full)
        answer = cli("train", "toy", *QUICK)
    assert answer.code == 4
    assert answer.last.startswith("The disk is full: cannot write toy.model (No space left on device). Free some space")
    assert answer.last.endswith(
        f"The training is kept in toy.model.checkpoint. Continue: dcmh train toy {' '.join(QUICK)} --resume "
        "(with another --out NAME, first move that folder to NAME.checkpoint)"
    )
    assert left_behind(tmp_path) == ["toy.model.checkpoint"]
    (tmp_path / "toy.model.checkpoint").rename(tmp_path / "other.checkpoint")
    answer = cli("train", "toy", *QUICK, "--out", "other", "--resume")
    assert answer.code == 0
    assert left_behind(tmp_path) == ["other"]
    cli("train", "toy", *QUICK)
    assert (
        dcmh.load("other").encode(text=["sunny sea"]).tolist()
        == dcmh.load("toy.model").encode(text=["sunny sea"]).tolist()
    )


def test_items_are_kept_apart_to_measure_how_new_ones_are_found(cli, tmp_path):
    """From 500 items on, unless all are asked for or the recipe is the paper's; the same command evaluates to the same."""
    write_table(tmp_path / "things", 500)
    fast = ("--method", "ridge", "--bits", "8", "--modalities", "title,text", "--text-encoder", "none", "--fine", "0")
    answer = cli("train", "things", *fast, "--json")
    assert answer.code == 0, answer.err
    assert "Caution: the training texts have only 8 different words" in answer.err
    assert "Caution: 2 of 9 labels have fewer than 5 training items" in answer.err
    assert "450 in the database, 50 of them not trained on, to measure how new items are found." in answer.err
    report = json.loads(answer.out)["report"]
    assert (report["train"], report["seen"], report["database"], report["unseen"]["database"]) == (400, 400, 450, 50)
    assert json.loads(cli("evaluate", "things.model", "--json").out) == report
    shown = cli("evaluate", "things.model", "--more")
    assert "50 unseen" in shown.out
    assert "NDCG@100" in shown.out
    assert "Unseen items were not trained on" in shown.err
    measured = json.loads(cli("info", "things.model", "--json").out)["measured"]
    assert set(measured["unseen"]) == {name for name in report["unseen"] if "_to_" in name}
    whole = cli("train", "things", *fast, "--train-size", "all", "--json")
    assert "450 in the database." in whole.err
    assert json.loads(whole.out)["report"]["unseen"] is None


def write_table(folder, n):
    folder.mkdir()
    words = ["apple", "boat", "cloud", "dog", "earth", "fox", "goat"]
    lines = [f"i{row},{words[row % 7]} of the day,{words[row % 7]} thing,{words[row % 7]}" for row in range(n)]
    lines[0] += " rare"
    lines[1] += " unusual"
    (folder / "pairs.csv").write_text("\n".join(["id,title,text,labels", *lines]) + "\n")


@pytest.mark.parametrize(
    ("items", "queries", "apart"),
    [(499, 50, 0), (500, 50, 50), (2000, 100, 100), (12_000, 2000, 600), (3000, 2000, 0), (10**6, 2000, 2000)],
)
def test_default_unseen(items, queries, apart):
    assert default_unseen(items, queries) == apart


def test_the_papers_recipe_keeps_its_protocol():
    assert not leaves_unseen(dcmh.DCMH(recipe="paper"))
    assert leaves_unseen(dcmh.DCMH())


@pytest.mark.parametrize(("items", "queries"), [(5, 1), (100, 20), (600, 50), (2000, 100), (10**6, 2000)])
def test_default_queries(items, queries):
    assert default_queries(items) == queries
