"""Reports as tables: at the prompt, in a notebook, and as a frame."""

import numpy as np
import pytest

import dcmh
from dcmh.errors import MissingExtra


@pytest.fixture(scope="module")
def report():
    generator = np.random.default_rng(0)
    labels = np.arange(60) % 4
    data = dcmh.Dataset.from_arrays(
        a=np.eye(4)[labels] + 0.1 * generator.random((60, 4)), b=np.eye(4)[labels], labels=labels
    )
    split = data.split(queries=20)
    return dcmh.evaluate(dcmh.methods.get("ridge")(bits=16).fit(split.train, fine=0), split)


def test_short_at_the_prompt(report):
    lines = repr(report).splitlines()
    assert lines[0] == "16 bits, 20 queries, 40 items in the database"
    assert lines[1].split()[:4] == ["direction", "searched", "MAP", "stable"]
    assert len(lines) == 2 + len(report.directions)
    assert any(line.startswith("a → b") for line in lines)


def test_a_table_in_a_notebook(report):
    html = report._repr_html_()
    assert html.count("<tr>") == 1 + len(report.directions)
    assert f"<td>{report['a_to_b'].map['stable']:.3f}</td>" in html


def test_a_frame(report, monkeypatch):
    frame = report.to_frame()
    assert list(frame.index) == list(report.directions)
    assert frame.index.name == "direction"
    assert frame.loc["a_to_b", "map_expected"] == report["a_to_b"].map["expected"]
    assert frame.loc["b_to_a", "queries"] == 20
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingExtra, match="pip install pandas"):
        report.to_frame()
