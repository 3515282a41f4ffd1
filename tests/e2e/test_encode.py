"""dcmh encode: codes for other programs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from commands import finish, left_behind, spawn

import dcmh
from dcmh import codes
from toy_photos import write_photos


@pytest.mark.parametrize("modality", ["image", "text"])
def test_the_codes_are_those_of_the_model(cli, photos, toy_model, tmp_path, modality):
    answer = cli("encode", "photos", "--model", toy_model, "--modality", modality, "--out", "codes")
    assert answer.code == 0
    assert answer.out == "40 codes of 16 bits in codes\n"
    assert left_behind(tmp_path / "codes") == ["checksums.json", "codes.json", "codes.npy", "ids.txt"]
    data = dcmh.load_dataset(photos)
    packed = np.load(tmp_path / "codes" / "codes.npy", allow_pickle=False)
    expected = codes.pack(dcmh.load(toy_model).encode(**{modality: data[modality]}))
    assert packed.shape == (40, 2)
    assert np.bitwise_count(packed ^ expected).sum() <= 1  # an output next to 0 may fall to either side
    assert (tmp_path / "codes" / "ids.txt").read_text().splitlines() == data.ids
    record = json.loads((tmp_path / "codes" / "codes.json").read_text())
    assert (record["format"], record["bits"], record["count"], record["modality"]) == (1, 16, 40, modality)
    assert record["model"] == json.loads((toy_model / "model.json").read_text())["fingerprint"]
    assert json.loads(cli("info", "codes", "--json").out)["kind"] == "codes"


def test_what_is_skipped_is_listed(cli, photos, toy_model, tmp_path):
    (photos / "002.png").write_bytes(b"no picture")
    with open(photos / "captions.csv", "a") as table:
        table.write(",😀,\n")
    command = ("encode", "photos", "--model", toy_model, "--json", "--strict")
    answer = cli(*command, "--modality", "image")
    assert answer.code == 3
    record = json.loads(answer.out)
    assert (record["codes"], record["count"], record["skipped"]) == ("photos.image.codes", 39, 1)
    assert (tmp_path / "photos.image.codes" / "skipped.tsv").read_text() == "file\treason\n002.png\tnot an image\n"
    answer = cli(*command, "--modality", "text")
    assert answer.code == 3
    assert "no word that the model knows" in answer.err
    assert json.loads(answer.out)["count"] == 40


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("photos", "--modality", "sound"), "has no modality 'sound'. It has: image, text."),
        (
            ("photos", "--modality", "image", "--out", "photos"),
            "photos exists but does not hold dcmh codes, so it is not",
        ),
        (("nothing", "--modality", "image"), "No data set or folder 'nothing'."),
    ],
)
def test_what_cannot_be_done_is_one_line(cli, photos, toy_model, arguments, says):
    answer = cli("encode", *arguments, "--model", toy_model)
    assert (answer.code, answer.out) == (1, "")
    assert says in answer.err
    assert answer.err.count("\n") == 1


def test_no_text_no_codes_of_text(cli, photos, toy_model):
    (photos / "captions.csv").unlink()
    answer = cli("encode", "photos", "--model", toy_model, "--modality", "text")
    assert answer.code == 1
    assert answer.last == "No item of photos has the modality 'text'. It has: image, text."


@pytest.fixture
def captions(tmp_path):
    """Enough words for several shards, and hardly a picture."""
    words = dcmh.load_dataset("toy").text.values
    lines = [json.dumps({"id": f"{row}", "text": f"{words[row % len(words)]} {row}"}) for row in range(2500)]
    lines[0] = lines[0].replace("{", '{"image": "000.png", ', 1)
    write_photos(tmp_path / "captions", 1)
    (tmp_path / "captions" / "captions.csv").unlink()
    (tmp_path / "captions" / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "captions"


def whole(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.slow
def test_workers_and_torchrun_write_the_same_as_one_process(captions, toy_model, tmp_path):
    command = ("encode", "captions", "--model", toy_model, "--modality", "text", "--out")
    one = finish(spawn(*command, "one", cwd=tmp_path))
    assert (one.code, one.out) == (0, "2,500 codes of 16 bits in one\n")
    assert finish(spawn(*command, "three", "--workers", "3", cwd=tmp_path)).code == 0
    run = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "dcmh")
    shared = finish(spawn(*command, "shared", cwd=tmp_path, program=run))
    assert shared.code == 0, shared.err
    assert shared.out == "2,500 codes of 16 bits in shared\n"
    assert whole(tmp_path / "one") == whole(tmp_path / "three") == whole(tmp_path / "shared")
    assert left_behind(tmp_path) == ["captions", "one", "shared", "three"]


def test_no_workers_make_no_sense(cli, photos, toy_model):
    answer = cli("encode", "photos", "--model", toy_model, "--modality", "image", "--workers", "0")
    assert (answer.code, answer.last) == (1, "--workers must be at least 1, not 0.")
