"""dcmh demo, on a stand-in for OpenMoji that needs no drawing."""

from __future__ import annotations

import json

import pytest
from commands import left_behind

from dcmh.data import Dataset, load_dataset
from dcmh.data.benchmarks import openmoji


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    def load() -> Dataset:
        data = load_dataset("toy")
        names = ["smileys & emotion", *data.label_names[1:]]
        ids = [f"{0x1F300 + row:X}" for row in range(len(data))]
        return Dataset(
            data.columns, labels=data.labels, label_names=names, ids=ids, name="openmoji", notes=[openmoji.ATTRIBUTION]
        )

    monkeypatch.setattr(openmoji, "load", load)
    for name, value in (("SETTINGS", {"hidden": 32}), ("QUERIES", 40), ("WORDS", ("sun", "ocean boat", "Schiff"))):
        monkeypatch.setattr(f"dcmh.cli.demo.{name}", value)


def test_the_whole_story(cli, tmp_path):
    answer = cli("demo")
    assert answer.code == 0
    assert "image → text" in answer.out
    assert answer.out.count(" find, of 200 drawings:\n") == 2
    assert 'The words "Schiff" find, of 200 drawings; no text contains them:\n' in answer.out
    assert answer.out.count("; held out of training):\n") == 1
    assert answer.out.count("  (contains ") + answer.out.count("  (by its drawing and text)") == 16
    assert "  (contains sun)" in answer.out
    assert openmoji.ATTRIBUTION in answer.err
    assert "Wrote demo/model and demo/openmoji.dcmh in" in answer.err
    assert "dcmh evaluate demo/model" in answer.err
    assert answer.last == "  dcmh serve demo/openmoji.dcmh    (search it in a browser)"
    assert left_behind(tmp_path / "demo") == ["model", "openmoji.dcmh"]
    assert cli("search", "demo/openmoji.dcmh", "ocean boat").code == 0
    assert cli("evaluate", "demo/model").code == 0

    said = json.loads(cli("demo", "--json", "--out", "again").out)
    report = said["report"]
    assert report["queries"] == 40
    assert min(report[name]["map"]["stable"] for name in ("image_to_text", "text_to_image")) > 2 * report["chance"]
    held_out = json.loads((tmp_path / "again" / "model" / "split.json").read_text())["query"]
    assert said["searches"][-1]["query"]["image"] in held_out


def test_a_folder_with_something_else_is_not_touched(cli, tmp_path):
    (tmp_path / "demo" / "model").mkdir(parents=True)
    (tmp_path / "demo" / "model" / "mine.txt").write_text("mine")
    answer = cli("demo")
    assert (answer.code, answer.out) == (1, "")
    assert answer.last == "demo/model exists but is not a dcmh model, so it is not overwritten. Choose another --out."
