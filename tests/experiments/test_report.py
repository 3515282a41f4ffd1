"""Tables and figures from made-up results, letter by letter; and the paper's numbers."""

from __future__ import annotations

import json
import re

import pytest

from dcmh.errors import DataError
from dcmh.experiments import tables
from dcmh.experiments.tables import printed


def direction(value, bits, lookup):
    rows = [
        {"radius": r, "precision": None if r < 1 and lookup is None else 0.5, "recall": r / bits, "f": r / 2 / bits}
        for r in range(bits + 1)
    ]
    return {
        "queries": 100,
        "database": 900,
        "chance": 0.25,
        "without_relevant": 0,
        "map": {"stable": value, "expected": value + 0.001, "best": value + 0.1, "worst": value - 0.1},
        "precision_at": {"1": 0.5},
        "recall_at": {"1": 0.5},
        "lookup": rows,
        "lookup_per_query": rows,
        "by_distance": [{"distance": r, "points": 10, "relevant": 5} for r in range(bits + 1)],
    }


def record(
    method, values, *, bits=16, seed=0, data="made-up", features="cnn", error=None, varied=(), lookup=0.5, **settings
):
    titles = {"dcmh": "DCMH", "cca": "CCA", "seph": "SePH"}
    found = {
        "format": 1,
        "data": {"name": data, "source": data, "items": 1000, "fingerprint": "f"},
        "split": {"folder": "given", "seed": None, "queries": 100, "database": 900, "train": 500},
        "features": features,
        "label": method,
        "title": titles[method],
        "method": method,
        "varied": dict(varied),
        "parameters": {"bits": bits, "seed": seed, **settings},
        "bits": bits,
        "seed": seed,
        "ties": "stable",
    }
    if error is not None:
        return found | {"error": error}
    both = {"image_to_text": direction(values[0], bits, lookup), "text_to_image": direction(values[1], bits, lookup)}
    sizes = {"queries": 100, "database": 900, "train": 500, "chance": 0.25, "without_relevant": 0, "k": None}
    return found | {"report": {"bits": bits, **sizes, **both}}


@pytest.fixture
def groups(tmp_path):
    """Write results as files, read them back."""

    def make(*records):
        for place, one in enumerate(records):
            (tmp_path / f"{place}.json").write_text(json.dumps(one))
        return tables.groups(tables.read(tmp_path))

    return make


@pytest.fixture
def usual(groups):
    return groups(
        record("dcmh", (0.71, 0.75), seed=0, features="pixels"),
        record("dcmh", (0.73, 0.77), seed=1, features="pixels"),
        record("dcmh", (0.8, 0.8), bits=32, features="pixels"),
        record("cca", (0.5, 0.9), seed=0),
        record("cca", (0.5, 0.9), seed=1),
        record("cca", None, bits=32, error="CCA gives 20 bits at most, so 32_bits are too many."),
    )


MARKDOWN = """\
Hamming ranking, MAP · made-up · features: cnn · 100 queries, 900 in the database, 500 for training · ties: stable · \
mean ± standard deviation over 1 to 2 seeds

| method |        I→T 16 bits | I→T 32 bits |        T→I 16 bits | T→I 32 bits |
| ------ | -----------------: | ----------: | -----------------: | ----------: |
| DCMH   | **0.7200** ±0.0141 |  **0.8000** |     0.7600 ±0.0141 |  **0.8000** |
| CCA    |     0.5000 ±0.0000 |          –¹ | **0.9000** ±0.0000 |          –¹ |
| chance |             0.2500 |      0.2500 |             0.2500 |      0.2500 |

¹ CCA, 32 bits: CCA gives 20 bits at most, so 32_bits are too many.

The exact mean over all orders of ties differs from these runs by at most 0.0010.

DCMH: learned from the pictures, not from cnn features.
"""
CSV = """\
method,kind,image_to_text_16,image_to_text_16_sd,image_to_text_32,image_to_text_32_sd,text_to_image_16,\
text_to_image_16_sd,text_to_image_32,text_to_image_32_sd,refused
DCMH,method,0.72,0.014142,0.8,,0.76,0.014142,0.8,,
CCA,method,0.5,0.0,,,0.9,0.0,,,"CCA, 32 bits: CCA gives 20 bits at most, so 32_bits are too many."
chance,chance,0.25,,0.25,,0.25,,0.25,,
"""
TEX = r"""\begin{tabular}{lrrrr}
\hline
method & I$\to$T 16 bits & I$\to$T 32 bits & T$\to$I 16 bits & T$\to$I 32 bits \\
\hline
DCMH & \textbf{0.7200} {\scriptsize $\pm$0.0141} & \textbf{0.8000} & 0.7600 {\scriptsize $\pm$0.0141} & \textbf{0.8000} \\
CCA & 0.5000 {\scriptsize $\pm$0.0000} & --$^{1}$ & \textbf{0.9000} {\scriptsize $\pm$0.0000} & --$^{1}$ \\
chance & 0.2500 & 0.2500 & 0.2500 & 0.2500 \\
\hline
\end{tabular}
\par\footnotesize $^{1}$ CCA, 32 bits: CCA gives 20 bits at most, so 32\_bits are too many.
"""
LOOKUP = """\
| method | measure   |            I→T r=0 |            I→T r=1 |            I→T r=2 |            T→I r=0 |\
            T→I r=1 |            T→I r=2 |
| ------ | --------- | -----------------: | -----------------: | -----------------: | -----------------: |\
 -----------------: | -----------------: |
| SePH   | Precision |                  – |             0.5000 |             0.5000 |                  – |\
             0.5000 |             0.5000 |
| SePH   | Recall    |             0.0000 |             0.0625 |             0.1250 |             0.0000 |\
             0.0625 |             0.1250 |
| SePH   | F-measure |         **0.0000** |         **0.0312** |         **0.0625** |         **0.0000** |\
         **0.0312** |         **0.0625** |
"""


def test_the_map_table_in_every_form(usual):
    table = tables.tables(usual)[0]
    assert table.name == "map-made-up-cnn"
    assert tables.render(table, "md") == MARKDOWN
    assert tables.render(table, "csv") == CSV
    assert TEX in tables.render(table, "tex")
    assert tables.render(table, "tex").startswith(r"\begin{table}[t]\centering\caption{Hamming ranking, MAP $\cdot$")


def test_unseen_items_and_intervals(groups):
    """Each method is followed by its numbers for unseen items; CSV and JSON have the intervals."""
    one = record("dcmh", (0.71, 0.75))
    apart = record("dcmh", (0.61, 0.65))["report"]
    for found, width in ((one["report"], 0.02), (apart, 0.03)):
        for name in ("image_to_text", "text_to_image"):
            value = found[name]["map"]["stable"]
            found[name] |= {"interval": {"stable": [value - width, value + width]}}
            found[name] |= {"map_at": {"50": dict.fromkeys(("stable", "expected", "best", "worst"), value + 0.1)}}
    one["report"] |= {"seen": 500, "unseen": apart}
    made = groups(one, record("cca", (0.5, 0.9)))  # the second is of an older version
    table = tables.tables(made)[0]
    said = tables.render(table, "md")
    assert [row.names[0] for row in table.rows] == ["DCMH", "· unseen", "CCA", "chance"]
    assert re.search(r"^\| · unseen \| +0.6100 \| +0.6500 \|$", said, re.MULTILINE)
    assert "Unseen: only the items of the database that were not trained on." in said
    assert "would change by at most ±0.0200 (95 % interval)" in said
    lines = tables.render(table, "csv").splitlines()
    assert lines[1].startswith("DCMH,method,0.71,,0.69,0.73,0.75,,")
    assert lines[2].startswith("DCMH,unseen,0.61,,0.58,0.64,0.65,,")
    (other,) = tables.tables(made, measure="map@50")
    assert other.name == "map50-made-up-cnn"
    assert [cell.value for cell in other.rows[1].cells] == pytest.approx([0.71, 0.75])
    assert [cell.value for cell in other.rows[2].cells] == [None, None]


def test_another_rule_for_ties(usual):
    said = tables.render(tables.tables(usual, ties="expected")[0], "md")
    assert "ties: expected" in said
    assert "**0.7210** ±0.0141" in said
    assert "Database order among ties differs from these runs by at most 0.0010." in said


def test_the_lookup_table_leaves_undefined_precision_out(groups):
    made = groups(record("seph", (0.5, 0.5), lookup=None), record("seph", (0.5, 0.5), bits=32))
    said = tables.render(tables.tables(made)[1], "md")
    assert said.startswith("Hash lookup, pooled over queries · 16 bits · made-up · features: cnn · 100 queries")
    lines = [re.sub(r" +", " ", line) for line in said.splitlines() if line.startswith("|")]
    expected = [re.sub(r" +", " ", line) for line in LOOKUP.splitlines()]
    assert [re.sub(r"-+", "-", line) for line in lines] == [re.sub(r"-+", "-", line) for line in expected]
    assert "precision is undefined" in said


def test_against_the_paper(groups):
    made = groups(
        record("dcmh", (0.7250, 0.7), data="MIRFLICKR-25K", features="pixels"),
        record("cca", (0.5, 0.6), data="MIRFLICKR-25K", features="sift-512"),
    )
    said = tables.render(tables.tables(made, against_paper=True)[0], "md")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in said.splitlines() if line[:1] == "|"]
    assert rows[2:] == [
        ["DCMH", "**0.7250**", "**0.7000**"],
        ["· paper", "0.7127", "0.7504"],
        ["· Δ", "+0.0123", "−0.0504"],
        ["CCA", "0.5000", "0.6000"],
        ["· paper", "0.5634", "0.5639"],
        ["· Δ", "−0.0634", "+0.0361"],
        ["chance", "0.2500", "0.2500"],
    ]
    assert "Paper: table:mir_map_ori, 512-dimensional SIFT features." in said
    assert "The paper has 2,000 queries and 5,000 training items; these runs have 100 and 500." in said
    lines = tables.render(tables.tables(made, against_paper=True)[0], "csv").splitlines()
    assert lines[2] == "DCMH,paper,0.7127,,0.7504,,"
    assert lines[3] == "DCMH,difference,0.0123,,-0.0504,,"


def test_lookup_against_the_paper(groups):
    made = groups(record("dcmh", (0.7, 0.7), data="mirflickr25k"), record("cca", (0.7, 0.7), data="mirflickr25k"))
    said = tables.render(tables.tables(made, against_paper=True)[1], "md")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in said.splitlines() if line[:1] == "|"]
    assert rows[3] == ["· paper", "Precision", "0.8434", "0.8316", "0.8166", "0.8370", "0.8220", "0.8106"]
    assert [row[0] for row in rows].count("· paper") == 3  # the table has no CCA


def test_data_that_the_paper_does_not_have(usual):
    for table in tables.tables(usual, against_paper=True):
        assert "The paper has no numbers for made-up: it reports on MIRFLICKR-25K and NUS-WIDE." in table.notes
        assert not any(row.kind == "paper" for row in table.rows)


def test_one_method_with_two_settings_has_two_rows_and_grids_have_none(groups):
    made = groups(
        record("cca", (0.5, 0.5), ridge=1.0, hidden=8),
        record("cca", (0.6, 0.6), ridge=2.0, hidden=8),
        record("dcmh", (0.5, 0.5), gamma=1.0),
        record("dcmh", (0.6, 0.6), gamma=2.0, varied={"gamma": 2.0}),
    )
    rows = tables.tables(made)[0].rows
    assert [row.names[0] for row in rows] == ["DCMH", "CCA (ridge 1.0)", "CCA (ridge 2.0)", "chance"]


def test_results_of_changed_data_are_not_passed_over(groups):
    changed = record("cca", (0.5, 0.5), seed=1)
    changed["data"]["fingerprint"] = "other"
    table = tables.tables(groups(record("cca", (0.5, 0.5)), changed))[0]
    assert any(note.startswith("The data changed between these runs") for note in table.notes)


def test_figures_over_a_setting_have_a_point_a_value(groups, tmp_path):
    made = groups(
        *(
            record("dcmh", (0.5 + gamma / 100 + seed / 50, 0.5), seed=seed, gamma=gamma, varied=varied)
            for seed in (0, 1)
            for gamma, varied in ((0.5, {"gamma": 0.5}), (1.0, {}), (2.0, {"gamma": 2.0}))
        ),
        record("dcmh", (0.1, 0.1), gamma=1.0, eta=3.0, varied={"eta": 3.0}),
    )
    (figure,) = tables.figures(made, "gamma")
    curve = figure.panels[0][0].curves[0]
    assert curve.x == (0.5, 1.0, 2.0)
    assert curve.y == pytest.approx((0.515, 0.52, 0.53))
    assert curve.spread == pytest.approx((0.014142,) * 3, abs=1e-5)
    first = [file.read_bytes() for file in tables.draw(figure, tmp_path / "a")]
    assert first == [file.read_bytes() for file in tables.draw(figure, tmp_path / "b")]
    assert first[0].startswith(b"<?xml")
    assert first[1].startswith(b"\x89PNG")
    assert first[2].decode().splitlines()[1] == "image_to_text,16,0.5,0.515,0.014142,2"


def test_precision_recall_curves_have_a_point_a_radius(usual):
    (figure,) = tables.figures(usual, "pr")
    assert [[panel.title for panel in row] for row in figure.panels] == [
        ["I→T, 16 bits", "T→I, 16 bits"],
        ["I→T, 32 bits", "T→I, 32 bits"],
    ]
    assert [curve.title for curve in figure.panels[1][0].curves] == ["DCMH"]
    assert figure.panels[0][0].curves[1].x[-1] == 1.0
    assert len(figure.panels[0][0].curves[1].x) == 17


def test_precision_over_the_radius(usual):
    (figure,) = tables.figures(usual, "radius")
    assert figure.x == "Hamming radius"
    curve = figure.panels[0][0].curves[1]
    assert curve.x == tuple(range(17))
    assert curve.y == (0.5,) * 17


def test_training_curves(tmp_path):
    losses = {"likelihood": 0.5, "quantisation": 0.4, "balance": 0.1}
    history = [
        {"epoch": epoch, **losses, "map": {"image_to_text": epoch / 10, "text_to_image": 0.5} if epoch % 2 else {}}
        for epoch in (1, 2, 3)
    ]
    terms, measured = tables.training(history).panels[0]
    assert {curve.title: curve.y for curve in terms.curves} == {name: (value,) * 3 for name, value in losses.items()}
    assert {curve.title: (curve.x, curve.y) for curve in measured.curves} == {
        "I→T": ((1, 3), (0.1, 0.3)),
        "T→I": ((1, 3), (0.5, 0.5)),
    }
    unmeasured = tables.training([row | {"map": {}} for row in history])
    assert len(unmeasured.panels[0]) == 1
    assert len(tables.draw(unmeasured, tmp_path)) == 3
    other = tables.training([{"iteration": step, "objective": 1 / step} for step in (1, 2)])
    assert other.panels[0][0].curves == (tables.Curve("objective", (1, 2), (1.0, 0.5)),)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', '{"some": "json"}'])
def test_a_file_that_is_no_result_is_named(tmp_path, text):
    (tmp_path / "notes.json").write_text(text)
    with pytest.raises(DataError, match=r"notes\.json is not a result of dcmh bench"):
        tables.read(tmp_path)


def test_a_newer_format_is_said(tmp_path):
    (tmp_path / "0.json").write_text('{"format": 9}')
    with pytest.raises(DataError, match=r"has format 9; this dcmh \(.*\) reads up to 1"):
        tables.read(tmp_path)


def test_the_papers_numbers():
    tables = {table.source: table for table in printed.printed()}
    assert set(tables) == {
        *("table:mir_map_ori", "table:nus_map_ori", "table:mir_map_vgg", "table:nus_map_vgg", "table:mir_pr_vgg"),
    }
    for source, direction, method, bits, value in (
        ("table:mir_map_ori", "image_to_text", "dcmh", 64, 0.7303),
        ("table:mir_map_ori", "text_to_image", "cca", 16, 0.5639),
        ("table:nus_map_ori", "text_to_image", "dcmh", 32, 0.6829),
        ("table:nus_map_ori", "image_to_text", "stmh", 64, 0.4534),
        ("table:mir_map_vgg", "image_to_text", "dcmh", 16, 0.7150),
        ("table:mir_map_vgg", "text_to_image", "seph", 64, 0.7309),
        ("table:nus_map_vgg", "image_to_text", "seph", 16, 0.6538),
        ("table:nus_map_vgg", "text_to_image", "seph-linear", 64, 0.6551),
    ):
        assert tables[source].map(direction, method, bits) == value
    lookup = tables["table:mir_pr_vgg"]
    assert lookup.lookup("image_to_text", "dcmh", "f", 2) == 0.3367
    assert lookup.lookup("text_to_image", "stmh", "precision", 0) == 0.8578
    assert lookup.map("image_to_text", "scm", 16) is None
    for direction in ("image_to_text", "text_to_image"):
        for values in lookup.values[direction].values():  # F follows from precision and recall, but for rounding
            for p, r, f in zip(values["precision"], values["recall"], values["f"], strict=True):
                assert 2 * p * r / (p + r) == pytest.approx(f, abs=2e-4)


def test_the_papers_tables_are_found_by_data_and_features():
    assert printed.find("NUS-WIDE", "cnn-f", "map").source == "table:nus_map_vgg"
    assert printed.find("mirflickr25k", "sift", "map").source == "table:mir_map_ori"
    assert printed.find("nuswide21", "sift", "map") is None
    assert printed.find("nuswide", "cnn", "lookup") is None
    assert printed.find("nuswide", "given", "map") is None
