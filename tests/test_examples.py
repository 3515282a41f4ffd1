"""The scripts in examples/ run as they are, in an empty folder, without a warning, and what they print is sensible."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dcmh

EXAMPLES = Path(__file__).parents[1] / "examples"
SRC = Path(dcmh.__file__).parents[1]


@pytest.fixture
def run(tmp_path):
    """Run Python in an empty folder, which stays empty; what it printed. Warnings are errors there too."""
    empty = tmp_path / "empty"
    empty.mkdir()

    def answer(*arguments: object, path: Path | None = None) -> str:
        places = [str(place) for place in (SRC, path) if place]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", "PYTHONPATH": os.pathsep.join(places)}
        done = subprocess.run(
            [sys.executable, "-W", "error", *map(str, arguments)],
            cwd=empty,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert not list(empty.iterdir())
        return done.stdout

    return answer


def numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.\d+", line)]


def row(said: str, name: str) -> list[float]:
    """The numbers of a table's row."""
    (line,) = re.findall(rf"^{name} .*", said, re.MULTILINE)
    return numbers(line)


def beats_chance(said: str) -> None:
    """Lines such as MAP image to text: 0.8 (by chance 0.1)."""
    lines = re.findall(r"^MAP \w+ to \w+: .*", said, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        found, chance = numbers(line)
        assert found > 2.5 * chance, line


def test_first_search(run):
    said = run(EXAMPLES / "first_search.py")
    beats_chance(said)
    (about,) = re.findall(r"about: (.*)", said)
    by_words, by_picture = said.split("precision of such hits\n")[1:]
    for hits in (by_words, by_picture):
        assert len(re.findall(r"^  \d\.\d\d  ", hits, re.MULTILINE)) == 4
        assert set(about.split(", ")) & set(re.findall(r"\w+", hits.splitlines()[0]))


def test_compare_methods(run):
    said = run(EXAMPLES / "compare_methods.py")
    chance = row(said, "chance")[0]
    for method, times in (("ridge", 3), ("cca", 1.5), ("scm", 3), ("dcmh", 3)):
        forward, _, backward, _ = row(said, method)[:4]
        assert min(forward, backward) > times * chance, method


def test_own_method(run):
    said = run(EXAMPLES / "own_method.py")
    beats_chance(said)
    assert "Saved and read again: the same codes." in said


@pytest.mark.parametrize("name", ["own-method", "means"])
def test_own_method_joins_by_an_entry_point_of_any_name(run, tmp_path, name):
    site = tmp_path / "site"
    (site / "mine-1.dist-info").mkdir(parents=True)
    shutil.copy(EXAMPLES / "own_method.py", site)
    (site / "mine-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (site / "mine-1.dist-info" / "entry_points.txt").write_text(f"[dcmh.methods]\n{name} = own_method:LabelMeans\n")
    code = f"""
import numpy as np
import dcmh
data = dcmh.Dataset.from_arrays(image=np.eye(8), text=np.eye(8), labels=np.arange(8) // 2)
model = dcmh.methods.get({name!r})(bits=16, shrink=0.5).fit(data)
model.save({str(tmp_path / "model")!r})
again = dcmh.load({str(tmp_path / "model")!r})
print(again.name, again.parameters, (again.encode(text=np.eye(8)) == model.encode(text=np.eye(8))).all())
"""
    assert run("-c", code, path=site).strip() == f"{name} {{'bits': 16, 'seed': 0, 'shrink': 0.5}} True"


def test_own_codes(run):
    said = run(EXAMPLES / "own_codes.py")
    assert float(re.findall(r"([\d.]+)% of 500", said)[0]) > 95
    assert re.search(r"hits of query 7, .*: \[\(7, \d+\)", said)
    assert re.search(r"even ids only: \[\(\d*[02468], \d+\), \(\d*[02468], \d+\)\]", said)
    (after,) = re.findall(r"removed: (.*)", said)
    assert "(" in after
    assert "(7," not in after
    assert "count=49999), the same answers" in said


def test_three_modalities(run):
    said = run(EXAMPLES / "three_modalities.py")
    chance = numbers(re.findall(r"by chance \d\.\d+", said)[0])[0]
    for asked in ("image", "text", "sound"):
        measured = row(said, asked)
        assert len(measured) == 3
        assert min(measured) > 2 * chance, asked
    by_words, by_sound = said.split("items:\n")[1:]
    assert sum("sea" in line for line in by_words.splitlines()[:4]) >= 2
    assert re.search(r"sea.*known by image, sound", by_words)  # words find what has none
    assert sum("sea" in line for line in by_sound.splitlines()) >= 3


def test_without_labels(run):
    said = run(EXAMPLES / "without_labels.py")
    table = [row(said, name) for name in ("labels", "tags", "pairing", "chance")]
    for column in zip(*table, strict=True):
        assert list(column) == sorted(column, reverse=True)
        assert column[2] > 1.2 * column[3]  # the pairing alone says something


def test_each_is_short_has_a_test_and_says_what_it_shows():
    files = sorted(EXAMPLES.glob("*.py"))
    assert len(files) >= 5
    for file in files:
        source = file.read_text(encoding="utf-8")
        assert len(source.splitlines()) <= 60, file.name
        assert f"test_{file.stem}" in globals(), file.name
        first = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
        assert first.endswith("."), file.name
        assert f"python examples/{file.name}" in source
