"""dcmh bench and dcmh report: a miniature of configs/openmoji.toml, run twice, killed, and reported."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from commands import finish, spawn

from toy_photos import write_photos

OPENMOJI = Path(__file__).parents[2] / "configs" / "openmoji.toml"
METHODS = """
[methods.dcmh]
features = ["pixels"]
epochs = 2
hidden = 32

[methods.dcmh.grid]
gamma = [0.5, 2]

[methods.ridge]

[methods.cca]
"""


def miniature(folder):
    """configs/openmoji.toml on a few toy pictures, with three cheap methods and two seeds."""
    write_photos(folder / "photos", 48)
    text = OPENMOJI.read_text(encoding="utf-8").partition("[methods.")[0] + METHODS
    for old, new in (
        ('"openmoji"', '"photos"'),
        ("queries = 300", "queries = 12"),
        ("[16, 32, 64]", "[16, 64]"),
        ("[0, 1, 2]", "[0, 1]"),
        ('"sift"', '"sift-32"'),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "mini.toml").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    miniature(folder)
    return folder


def files(folder):
    return {file: file.read_bytes() for file in sorted((folder / "results").rglob("*")) if file.is_file()}


@pytest.fixture(scope="module")
def done(folder):
    """The miniature, run once by the command."""
    answer = finish(spawn("bench", "mini.toml", "--device", "cpu", cwd=folder))
    assert answer.code == 0, answer.err
    assert answer.err.startswith("7 settings of 3 methods × 2 code lengths × 2 seeds = 28 runs; 0 done, 28 to do.\n")
    assert re.fullmatch(
        r"Runs: 28 done now, 28 in all; \d+ were refused by the method, the report says why.\n", answer.out
    )
    assert answer.last == "Results are in results/photos. Next: dcmh report results/photos"
    return files(folder)


@pytest.fixture
def here(cli, folder, monkeypatch):
    monkeypatch.chdir(folder)
    return cli


def test_the_second_time_nothing_is_done_and_the_tables_are_the_same(here, done, folder):
    assert len(done) == 28
    before = here("report", "results/photos").out
    answer = here("bench", "mini.toml", "--device", "cpu")
    assert answer.code == 0
    assert answer.out.startswith("Nothing to do: all 28 runs are done; ")
    assert files(folder) == done
    assert here("report", "results/photos").out == before


def test_a_dry_run_says_what_is_to_do_and_does_nothing(here, done, folder, tmp_path):
    answer = here("bench", "mini.toml", "--dry-run", "--only", "ridge", "--only", "cca", "--seeds", "1")
    assert answer.out == "2 methods × 2 feature sets × 2 code lengths × 1 seed = 8 runs; 8 done, 0 to do.\n"
    answer = here("bench", "mini.toml", "--dry-run", "--bits", "16", "--out", tmp_path / "other", "--json")
    said = json.loads(answer.out)
    assert (said["runs"], said["done"], len(said["to_do"])) == (14, 0, 14)
    assert not (tmp_path / "other").exists()
    assert files(folder) == done


def test_the_tables(here, done):
    answer = here("report", "results", "--against", "paper")
    assert answer.code == 0
    parts = answer.out.split("\n\n")
    assert parts[0].startswith("Hamming ranking, MAP · photos · features: cnn · 12 queries, 36 in the database, 36 for")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in parts[1].splitlines()]
    assert rows[0] == ["method", "I→T 16 bits", "I→T 64 bits", "T→I 16 bits", "T→I 64 bits"]
    assert [row[0] for row in rows[2:]] == ["DCMH", "CCA", "Ridge", "chance"]
    assert re.fullmatch(r"(\*\*)?0\.\d{4}(\*\*)? ±0\.\d{4}", rows[2][1])
    assert rows[3][2] == "–¹"  # 36 training items have fewer than 64 pairs of directions
    assert sum("**" in row[1] for row in rows) == 1
    assert "¹ CCA, 64 bits: CCA gives one bit for each pair of independent directions" in answer.out
    assert "DCMH: learned from the pictures, not from sift-32 features." in answer.out
    assert "The paper has no numbers for photos: it reports on MIRFLICKR-25K and NUS-WIDE." in answer.out


def test_files_and_figures(here, done, tmp_path):
    answer = here("report", "results", "--figure", "all", "--out", tmp_path / "out", "--format", "csv")
    assert answer.code == 0
    assert answer.out.startswith("method,kind,image_to_text_16,image_to_text_16_sd,")
    assert "No results vary eta." in answer.err
    tables = {f"{kind}-photos-{seen}" for kind in ("map", "lookup") for seen in ("cnn", "sift-32")}
    figures = {f"{kind}-photos-{seen}" for kind in ("pr", "radius") for seen in ("cnn", "sift-32")}
    figures.add("gamma-photos-pixels-dcmh")
    expected = {f"{name}.{form}" for name in tables for form in ("md", "csv", "tex")}
    expected |= {f"{name}.{form}" for name in figures for form in ("svg", "png", "csv")}
    assert {file.name for file in (tmp_path / "out").iterdir()} == expected
    curve = (tmp_path / "out" / "pr-photos-cnn.csv").read_text().splitlines()
    assert curve[0] == "direction,bits,method,radius,precision,recall"
    assert curve[17].startswith("image_to_text,16,DCMH,16,")
    assert curve[17].endswith(",1.0")
    gammas = (tmp_path / "out" / "gamma-photos-pixels-dcmh.csv").read_text().splitlines()
    assert [line.split(",")[2] for line in gammas[1:4]] == ["0.5", "1.0", "2.0"]
    assert here("report", "results", "--figure", "eta").code == 1
    said = json.loads(here("report", "results", "--json").out)
    assert [table["name"] for table in said["tables"]][:2] == ["map-photos-cnn", "lookup-photos-cnn"]


def test_matplotlib_is_an_extra(here, done, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    answer = here("report", "results", "--figure", "pr", "--out", tmp_path / "out")
    assert answer.code == 1
    assert answer.last == 'Figures need matplotlib. Install: pip install "dcmh[bench]"'


@pytest.mark.slow
def test_killed_in_the_middle_only_whole_files_are_left_and_it_goes_on(folder, done, tmp_path):
    command = ("bench", "mini.toml", "--device", "cpu", "--only", "ridge", "--out", tmp_path / "results")
    process = spawn(*command, cwd=folder)
    while process.poll() is None and len(list((tmp_path).rglob("*.json"))) < 3:
        time.sleep(0.001)
    process.kill()
    assert finish(process).code in (-signal.SIGKILL, 0)
    left = {file: json.loads(file.read_text()) for file in tmp_path.rglob("*.json")}
    assert 3 <= len(left) <= 8
    times = {file: file.stat().st_mtime_ns for file in left}
    answer = finish(spawn(*command, "--jobs", "2", cwd=folder))
    assert answer.code == 0, answer.err
    assert f"= 8 runs; {len(left)} done, {8 - len(left)} to do." in answer.err
    assert {file: file.stat().st_mtime_ns for file in left} == times
    for file in tmp_path.rglob("*.json"):  # and in two processes the same numbers come out
        twin = folder / "results" / file.relative_to(tmp_path / "results")
        assert json.loads(file.read_text())["report"] == json.loads(twin.read_text())["report"]


def test_info_explains_results(here, done):
    page = dict(line.split(None, 1) for line in here("info", "results").out.splitlines())
    assert page["kind"] == "results of dcmh bench"
    assert page["runs"] == "28"
    assert page["methods"] == "cca; dcmh; ridge"
    assert page["lengths"] == "16; 64"


def test_what_cannot_be_done_is_said(here, tmp_path):
    assert here("bench", "none.toml").last == (
        "Cannot read the bench none.toml: No such file or directory. Give a TOML file."
    )
    assert here("report", "none").last == "There is no folder none. Make results first: dcmh bench CONFIG.toml"
    (tmp_path / "empty").mkdir()
    answer = here("report", tmp_path / "empty")
    assert (answer.code, answer.last.partition(".")[0]) == (1, f"No results in {tmp_path / 'empty'}")
    assert here("bench", "mini.toml", "--jobs", "0").code == 1
