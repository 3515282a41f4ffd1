"""The scripts in examples/ run as they are, in an empty folder, without a warning, and their output is sensible."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dcmh
from toy_photos import write_photos

EXAMPLES = Path(__file__).parents[1] / "examples"
SRC = Path(dcmh.__file__).parents[1]


@pytest.fixture
def run(tmp_path):
    """Runs Python in an empty folder, which must stay empty, and returns the output. Warnings are errors."""
    empty = tmp_path / "empty"
    empty.mkdir()

    def execute(*arguments: object, path: Path | None = None) -> str:
        folders = [str(folder) for folder in (SRC, path) if folder]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", "PYTHONPATH": os.pathsep.join(folders)}
        process = subprocess.run(
            [sys.executable, "-W", "error", *map(str, arguments)],
            cwd=empty,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
        )
        assert process.returncode == 0, process.stderr
        assert process.stderr == ""
        assert not list(empty.iterdir())
        return process.stdout

    return execute


def numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.\d+", line)]


def row(output: str, name: str) -> list[float]:
    """The numbers of a table's row."""
    (line,) = re.findall(rf"^{name} .*", output, re.MULTILINE)
    return numbers(line)


def beats_chance(output: str) -> None:
    """Lines such as MAP image to text: 0.8 (by chance 0.1)."""
    lines = re.findall(r"^MAP \w+ to \w+: .*", output, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        measured, chance = numbers(line)
        assert measured > 2.5 * chance, line


def test_first_search(run):
    output = run(EXAMPLES / "first_search.py")
    beats_chance(output)
    (about,) = re.findall(r"about: (.*)", output)
    by_words, by_picture = output.split("precision of such hits\n")[1:]
    for hits in (by_words, by_picture):
        assert len(re.findall(r"^  \d\.\d\d  ", hits, re.MULTILINE)) == 4
        assert set(about.split(", ")) & set(re.findall(r"\w+", hits.splitlines()[0]))


@pytest.mark.slow
def test_compare_methods(run):
    output = run(EXAMPLES / "compare_methods.py")
    chance = row(output, "chance")[0]
    for method, times in (("ridge", 3), ("cca", 1.5), ("scm", 3), ("dcmh", 3)):
        forward, _, backward, _ = row(output, method)[:4]
        assert min(forward, backward) > times * chance, method


@pytest.mark.slow
def test_own_method(run):
    output = run(EXAMPLES / "own_method.py")
    beats_chance(output)
    assert "Saved and read again: the same codes." in output


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
    output = run(EXAMPLES / "own_codes.py")
    assert float(re.findall(r"([\d.]+)% of 500", output)[0]) > 95
    assert re.search(r"hits of query 7, .*: \[\(7, \d+\)", output)
    assert re.search(r"even ids only: \[\(\d*[02468], \d+\), \(\d*[02468], \d+\)\]", output)
    (after,) = re.findall(r"removed: (.*)", output)
    assert "(" in after
    assert "(7," not in after
    assert "count=49999), the same answers" in output


def test_draw_codes(run, tmp_path):
    (tmp_path / "photos").mkdir()
    photos = dcmh.load_dataset(write_photos(tmp_path / "photos"))
    dcmh.SearchIndex.build(None, photos, tmp_path / "photos.dcmh").close()
    words = ("animal", "sea")
    output = run(EXAMPLES / "draw_codes.py", tmp_path / "photos.dcmh", tmp_path / "codes.png", *words, "-k", 2)
    assert output.startswith("4 items, 64 bits; on average ")
    assert (tmp_path / "codes.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_three_modalities(run):
    output = run(EXAMPLES / "three_modalities.py")
    chance = numbers(re.findall(r"by chance \d\.\d+", output)[0])[0]
    for query in ("image", "text", "sound"):
        measured = row(output, query)
        assert len(measured) == 3
        assert min(measured) > 2 * chance, query
    by_words, by_sound = output.split("items:\n")[1:]
    assert sum("sea" in line for line in by_words.splitlines()[:4]) >= 2
    assert re.search(r"sea.*known by image, sound", by_words)  # words find items without words
    assert sum("sea" in line for line in by_sound.splitlines()) >= 3


@pytest.mark.slow
def test_without_labels(run):
    output = run(EXAMPLES / "without_labels.py")
    table = [row(output, name) for name in ("labels", "tags", "pairing", "chance")]
    for column in zip(*table, strict=True):
        assert list(column) == sorted(column, reverse=True)
        assert column[2] > 1.2 * column[3]  # even the pairing alone beats chance


NOTEBOOK = """
import ast, json, sys
names = {}
with open(sys.argv[1], encoding="utf-8") as file:
    cells = json.load(file)["cells"]
for cell in cells:
    if cell["cell_type"] == "code":
        *body, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(body, []), sys.argv[1], "exec"), names)
        shown = eval(compile(ast.Expression(last.value), sys.argv[1], "eval"), names)
        print(repr(shown), len(getattr(shown, "_repr_html_", str)()), "characters of HTML")
"""


@pytest.mark.slow
def test_from_a_table(run, tmp_path, monkeypatch):
    """The notebook, from a DataFrame to a table of hits, as Jupyter would run and show it."""
    notebook = EXAMPLES / "from_a_table.ipynb"
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    lines = [line for cell in cells if cell["cell_type"] == "code" for line in cell["source"]]
    assert len(lines) < 40
    assert not any(cell.get("outputs") for cell in cells)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    output = run("-c", NOTEBOOK, notebook)
    assert "DCMH(bits=32, epochs=30, hidden=256)" in output
    for direction in ("image → text", "text → image"):
        stable, _, _, expected, *_, chance = row(output, direction)
        assert min(stable, expected) > 2.5 * chance
    assert re.search(r"map_expected +precision_at_10 +chance", output)
    assert re.search(r"5 hits for '.*' among 250 items", output)
    assert all(int(size) > 200 for size in re.findall(r"\n.* (\d+) characters of HTML", output)[2:])


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
