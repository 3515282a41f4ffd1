"""Model folders whose files are damaged, and methods whose result is not finite: an error that says what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import dcmh
from dcmh.cli.info import info
from dcmh.data import Dataset, Vectors
from dcmh.errors import DCMHError, DivergedError, ModelError
from dcmh.methods.cca import CCA
from dcmh.service.state import _read_measures

FIXTURE = Path(__file__).parents[1] / "fixtures" / "format-1" / "model"


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(FIXTURE, tmp_path / "model")
    return tmp_path / "model"


def change(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("version", [0, -1, True, 1.5, "1", None])
def test_format_numbers(folder, version):
    change(folder / "model.json", format=version)
    with pytest.raises(ModelError, match=r"is damaged: it says that it has format .*copy it again"):
        dcmh.load(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 3_000 + "]" * 3_000, '{"format": 1}', "\xff"])
def test_a_damaged_record(folder, text):
    (folder / "model.json").write_text(text, encoding="latin1")
    with pytest.raises(ModelError, match=r"model\.json is damaged \(.*\)\. Train the model again, or copy"):
        dcmh.load(folder)


@pytest.mark.parametrize("changes", [{"parameters": {"bitz": 3}}, {"modalities": {"text": 3}}, {"trained_on": 5}])
def test_a_record_of_other_content(folder, changes):
    change(folder / "model.json", **changes)
    with pytest.raises(DCMHError):
        dcmh.load(folder)


def test_a_torn_history(folder):
    lines = (folder / "history.jsonl").read_text()
    (folder / "history.jsonl").write_text(lines[:-20])
    for read in (dcmh.load, lambda path: info(str(path))):
        with pytest.raises(ModelError, match=r"history\.jsonl is damaged \(line 5: .*\)\. Delete it"):
            read(folder)


@pytest.mark.parametrize("report", ["{}", '{"a_to_b": {}}', '{"a_to_b": {"map": 5}}', "[", "[1]", "[" * 3_000])
def test_a_damaged_report(folder, report):
    (folder / "report.json").write_text(report)
    if report != "{}":
        assert _read_measures(folder / "report.json") == []  # a service runs on, and logs it
        with pytest.raises(DCMHError, match=r"report\.json is damaged"):
            info(str(folder))


def test_a_closed_form_that_is_not_finite(monkeypatch):
    random = np.random.default_rng(0)
    columns = {name: Vectors(random.normal(size=(40, 5))) for name in ("a", "b")}
    data = Dataset(columns, labels=np.eye(2, dtype=np.uint8)[np.arange(40) % 2])
    state = CCA._state

    def broken(self):
        return {name: np.full_like(array, np.nan) for name, array in state(self).items()}

    monkeypatch.setattr(CCA, "_state", broken)
    model = CCA(bits=4)
    with pytest.raises(DivergedError, match=r"CCA did not learn anything usable: .* holds NaN or infinity"):
        model.fit(data, fine=0)
    assert not hasattr(model, "views_")
