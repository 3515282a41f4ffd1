"""docs/paper-map.md: every `file` · `name` in its table exists under src/dcmh."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import dcmh

ROOT = Path(dcmh.__file__).parent
MAP = Path(__file__).parents[1] / "docs" / "paper-map.md"
ROWS = [line for line in MAP.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
REFERENCES = sorted(
    {pair for row in ROWS for pair in re.findall(r"`([\w/]+\.py)` · `([\w.]+)`", row.rpartition(" | ")[2])}
)


def defined(body: list[ast.stmt], path: list[str]) -> bool:
    """Whether a module's or class's body defines a function or class, or a method such as Paper.loss."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == path[0]:
            return len(path) == 1 or (isinstance(node, ast.ClassDef) and defined(node.body, path[1:]))
    return False


@pytest.mark.parametrize(("file", "name"), REFERENCES)
def test_each_reference_exists(file, name):
    source = ROOT / file
    assert source.is_file(), f"{MAP.name} names {file}, which does not exist"
    assert defined(ast.parse(source.read_text(encoding="utf-8")).body, name.split(".")), f"{file} has no {name}"


def test_each_row_has_a_reference():
    assert len(ROWS) > 20
    assert [row for row in ROWS if not re.search(r"`[\w/]+\.py` · `", row)] == []


def test_each_module_named_is_found():
    """Names in backticks that end in .py, outside the table too."""
    for file in re.findall(r"`([\w/]+\.py)`", MAP.read_text(encoding="utf-8")):
        assert (ROOT / file).is_file() or (ROOT / "methods" / "dcmh" / file).is_file(), file
