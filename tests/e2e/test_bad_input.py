"""What users can do wrong: one sentence on stderr, nothing on stdout, nothing half written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import QUICK, left_behind

import dcmh
from dcmh.errors import DataError
from toy_photos import write_photos


def write_table(folder, *lines):
    """Photos with another table."""
    write_photos(folder, 20)
    (folder / "captions.csv").write_text("\n".join(lines) + "\n")


def no_images(folder):
    folder.mkdir()


def no_text(folder):
    write_photos(folder, 20)
    (folder / "captions.csv").unlink()


def wrong_columns(folder):
    write_table(folder, "filename,caption", "000.png,a sunny day")


def empty_texts(folder):
    write_table(folder, "file,text", *(f"{row:03}.png," for row in range(20)))


def one_label(folder):
    write_table(folder, "file,text,labels", *(f"{row:03}.png,a sunny day,sun" for row in range(20)))


def few_tags(folder):
    write_table(folder, "file,text", *(f"{row:03}.png,{'sun' if row % 2 else 'sea'}" for row in range(20)))


def pictures_gone(folder):
    write_photos(folder, 20)
    for picture in folder.glob("*.png"):
        picture.unlink()
    (folder / "captions.csv").rename(folder / "pairs.csv")


def pictures_unreadable(folder):
    write_photos(folder, 20)
    for picture in folder.glob("*.png"):
        picture.write_bytes(b"no picture")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            no_images,
            "No images in photos/ (looked for jpg, png, webp, gif, bmp, tiff, avif, heic, also in subfolders). "
            "It is empty. Is it the right folder?",
        ),
        (
            no_text,
            "Found 20 pictures in photos/ but no texts to learn from. Put pairs.csv there (columns: image, text)",
        ),
        (
            wrong_columns,
            "captions.csv has columns 'filename, caption'; expected 'image, text'. Rename them, "
            "or: --text captions.csv:filename,caption",
        ),
        (empty_texts, "All 20 texts in captions.csv are empty. Is it the right column?"),
        (
            one_label,
            "The labels do not distinguish items: only one is in use, or all items share one. "
            "Give labels that distinguish items, or none.",
        ),
        (few_tags, "There are no labels, and words cannot serve instead: only "),
        (pictures_gone, "None of the 20 rows of pairs.csv has both a picture and a text."),
        (pictures_unreadable, "None of the 20 pictures can be read; the first, 000.png: not an image."),
    ],
)
def test_a_folder_that_cannot_be_learned_from(cli, tmp_path, make, says):
    make(tmp_path / "photos")
    answer = cli("train", "photos", *QUICK)
    assert answer.code == 1
    assert answer.out == ""
    assert answer.last.startswith(says)
    assert "Traceback" not in answer.err
    assert left_behind(tmp_path) == ["photos"]


def test_the_columns_that_the_error_offers_work(cli, tmp_path):
    write_photos(tmp_path / "photos", header="filename,caption,labels")
    for text in ("captions.csv:filename,caption", "photos/captions.csv:filename,caption"):
        assert cli("train", "photos", "--text", text, *QUICK).code == 0
    assert cli("evaluate", "photos.model").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("toy", "--bits", "0"), 1, "bits must be a whole number from 1 to 1024, not 0."),
        (("toy", "--bits", "1025"), 1, "bits must be a whole number from 1 to 1024, not 1025."),
        (("toy", "--bits", "many"), 2, 'Invalid value for --bits: unable to convert "many" into int. Try: dcmh train'),
        (("toy", "--queries", "500"), 1, "500 queries were requested, but only 200 of 200 items can be one"),
        (("toy", "--queries", "50", "--train-size", "151"), 1, "50 queries and 151 training items need 201 items"),
        (("toy", "--queries", "0"), 1, "queries must be a whole number of at least 1, not 0."),
        (("toy", "--epochs", "0"), 1, "epochs must be a whole number of at least 1, not 0."),
        (("toy", "--gamma", "nan"), 1, "gamma must be a number of at least 0, not nan."),
        (("toy", "--seed", "-1"), 1, "seed must be a whole number of at least 0, not -1."),
        (
            ("toy", "--network", "resnet"),
            1,
            "No image network 'resnet'. Available: efficientnet-lite0, efficientnet-lite2, cnn-f.",
        ),
        (("toy", "--method", "dchm"), 1, "No hashing method 'dchm'. Did you mean 'dcmh'?"),
        (("toy", "--device", "abacus"), 1, "There is no device 'abacus'. Use --device auto, cpu, or cuda."),
        (("toyy",), 1, "No data set or folder 'toyy'. Did you mean 'toy'?"),
        (("toy", "--epoch", "3"), 2, "Unknown option: --epoch. Did you mean --epochs? Try: dcmh train --help"),
        ((), 2, 'Command "train" parameter DATA requires an argument. Try: dcmh train --help'),
    ],
)
def test_settings_that_make_no_sense(cli, tmp_path, arguments, code, says):
    answer = cli("train", *arguments)
    assert (answer.code, answer.out) == (code, "")
    assert answer.last.startswith(says)
    assert answer.err.count("\n") == 1
    assert left_behind(tmp_path) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there(cli, tmp_path, toy_model):
    says = f"--device cuda: PyTorch sees no CUDA device (torch {torch.__version__}). Use --device cpu, or install"
    assert cli("train", "toy", "--device", "cuda").last.startswith(says)
    assert cli("evaluate", toy_model, "--device", "cuda").last.startswith(says)
    assert left_behind(tmp_path) == []


def test_features_that_are_no_numbers(cli, tmp_path):
    from scipy.io import savemat

    generator = np.random.default_rng(0)
    arrays = {f"{kind}_{part}": generator.random((40, 6)) for kind in "IT" for part in ("tr", "te")}
    arrays |= {f"L_{part}": np.eye(4)[np.arange(40) % 4] for part in ("tr", "te")}
    arrays["I_tr"][3, 2] = np.nan
    savemat(tmp_path / "wiki.mat", arrays)
    answer = cli("train", "wiki.mat", *QUICK)
    assert (answer.code, answer.out) == (1, "")
    assert answer.last.startswith("Feature vector of item 43 holds NaN or infinity.")
    assert left_behind(tmp_path) == ["wiki.mat"]
    with pytest.raises(DataError, match="Feature vector of item 43"):
        dcmh.load_dataset(tmp_path / "wiki.mat")


def test_a_place_that_holds_something_else_is_not_overwritten(cli, tmp_path, photos):
    before = left_behind(photos)
    answer = cli("train", "photos", "--out", "photos", *QUICK)
    assert (answer.code, answer.out) == (1, "")
    assert answer.last == "photos exists but is not a dcmh model, so it is not overwritten. Choose another --out."
    assert left_behind(photos) == before
    (tmp_path / "file").write_text("mine")
    answer = cli("train", "photos", "--out", "file/model", *QUICK)
    assert answer.code == 1
    assert "is a file, not a folder. Choose another --out." in answer.last


@pytest.mark.parametrize("command", ["evaluate", "info"])
class TestModels:
    def test_none(self, cli, command):
        answer = cli(command, "nothing.model")
        assert (answer.code, answer.out) == (1, "")
        says = {"evaluate": "There is no model nothing.model.", "info": "No data set or folder 'nothing.model'."}
        assert answer.last.startswith(says[command])

    def test_newer(self, cli, command, toy_model, tmp_path):
        newer = self.changed(toy_model, tmp_path, format=2)
        answer = cli(command, newer)
        assert (answer.code, answer.out) == (1, "")
        assert (
            answer.last
            == f"{newer} has format 2; this dcmh ({dcmh.__version__}) reads up to 1. Upgrade: pip install -U dcmh"
        )

    def test_damaged_record(self, cli, command, toy_model, tmp_path):
        damaged = self.changed(toy_model, tmp_path)
        text = (damaged / "model.json").read_text()
        (damaged / "model.json").write_text(text[: len(text) // 2])
        answer = cli(command, damaged)
        assert (answer.code, answer.out) == (1, "")
        assert "model.json is damaged" in answer.last

    def changed(self, toy_model, tmp_path, **changes):
        copy = tmp_path / "copy.model"
        shutil.copytree(toy_model, copy)
        record = json.loads((copy / "model.json").read_text())
        (copy / "model.json").write_text(json.dumps(record | changes))
        return copy


def test_a_folder_that_is_no_model(cli, photos):
    answer = cli("evaluate", "photos")
    assert (answer.code, answer.out) == (1, "")
    assert answer.last == (
        "photos is not a dcmh model (no model.json). It holds images or pairs: did you mean dcmh train photos ?"
    )


@pytest.mark.parametrize("name", ["weights.safetensors", "text.vocabulary.txt", "split.json", "run.json"])
def test_a_model_with_a_damaged_file(cli, toy_model, tmp_path, name):
    copy = tmp_path / "copy.model"
    shutil.copytree(toy_model, copy)
    whole = (copy / name).read_bytes()
    (copy / name).write_bytes(whole[: len(whole) // 2])
    answer = cli("evaluate", copy)
    assert (answer.code, answer.out) == (1, "")
    assert "Traceback" not in answer.err
    assert answer.err.count("\n") == 1


def test_half_an_emoji_in_a_table_stops_nothing(cli, tmp_path):
    lines = []
    for row in range(60):
        words = ["red apple", "blue boat", "grey owl"][row % 3]
        record = {"id": f"i{row}\ud83d", "title": words, "tags": f"{words} \ud83d", "labels": [f"{row % 3}\ud83d"]}
        lines.append(json.dumps(record))
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    answer = cli("train", "pairs.jsonl", "--modalities", "title,tags", *QUICK, "--out", "half.model")
    assert answer.code == 0, answer.err
    answer = cli("index", "pairs.jsonl", "--model", "half.model", "--out", "half.dcmh")
    assert (answer.code, answer.out) == (0, "60 new, 0 changed, 0 gone, 0 unchanged.\n"), answer.err
    answer = cli("search", "half.dcmh", "boat", "-k", "1")
    assert (answer.code, "\ufffd" in answer.out) == (0, True)


@pytest.mark.skipif(os.name == "nt", reason="names are always Unicode there")
def test_names_that_are_not_unicode_are_said_before_the_work(cli, photos, toy_model):
    other = Path(os.fsdecode(b"caf\xe9"))
    try:
        shutil.copytree(photos, other)
    except OSError:
        pytest.skip("this file system takes Unicode names only")
    shutil.copy(photos / "captions.csv", f"{other}.csv")
    for arguments in (
        ("train", other, *QUICK),
        ("train", photos, "--text", f"{other}.csv", *QUICK),
        ("train", photos, "--similarity", f"pairs:{other}.csv", *QUICK),
        ("index", other, "--model", toy_model),
    ):
        answer = cli(*arguments)
        assert (answer.code, answer.out) == (1, "")
        assert "is not UTF-8, so it cannot be stored" in answer.last
        assert answer.err.count("\n") == 1
    answer = cli("train", photos, *QUICK, "--out", f"{other}.model")
    assert answer.code == 0, answer.err
    assert "caf?.model" in json.loads(Path(f"{other}.model", "run.json").read_text())["command"]
