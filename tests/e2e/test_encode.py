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
    """Enough words for several blocks, and hardly a picture."""
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
def test_workers_write_the_same_as_one_process(captions, toy_model, tmp_path):
    command = ("encode", "captions", "--model", toy_model, "--modality", "text", "--out")
    one = finish(spawn(*command, "one", cwd=tmp_path))
    assert (one.code, one.out) == (0, "2,500 codes of 16 bits in one\n")
    assert finish(spawn(*command, "two", "--workers", "2", cwd=tmp_path)).code == 0
    assert whole(tmp_path / "one") == whole(tmp_path / "two")
    assert left_behind(tmp_path) == ["captions", "one", "two"]


def test_blocks_as_the_result(cli, captions, toy_model, tmp_path):
    import pyarrow.parquet

    command = ("encode", "captions", "--model", toy_model, "--modality", "text", "--out")
    assert cli(*command, "plain").code == 0
    answer = cli(*command, "blocks", "--format", "parquet", "--json", "--metrics", "state.prom")
    assert answer.code == 0
    record = json.loads(answer.out)
    assert (record["count"], record["blocks"], record["encoded"]) == (2500, 3, 2500)
    names = [f"block-{number:06}.parquet" for number in range(3)]
    assert left_behind(tmp_path / "blocks") == [*names, "checksums.json", "codes.json"]
    tables = [pyarrow.parquet.read_table(tmp_path / "blocks" / name) for name in names]
    assert [len(table) for table in tables] == [1024, 1024, 452]
    joined = b"".join(code for table in tables for code in table.column("code_text").to_pylist())
    assert joined == np.load(tmp_path / "plain" / "codes.npy").tobytes()
    assert "dcmh_encode_items_done 2500\n" in (tmp_path / "state.prom").read_text()
    assert cli("check", "blocks").code == 0


def test_a_dry_run_encodes_nothing(cli, captions, toy_model, tmp_path):
    answer = cli("encode", "captions", "--model", toy_model, "--modality", "text", "--dry-run")
    assert answer.code == 0
    assert "2,500, of which 2,500 are still to be encoded" in answer.out
    assert "items/s, measured with 256 items" in answer.out
    answer = cli("index", "captions", "--model", toy_model, "--dry-run", "--json")
    plan = json.loads(answer.out)
    assert (plan["items"], plan["blocks"], plan["workers"]) == (2500, 3, 1)
    assert left_behind(tmp_path) == ["captions"]


def test_no_workers_make_no_sense(cli, photos, toy_model):
    answer = cli("encode", "photos", "--model", toy_model, "--modality", "image", "--workers", "0")
    assert (answer.code, answer.last) == (1, "--workers must be at least 1, not 0.")
