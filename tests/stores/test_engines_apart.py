"""Engines know nothing of each other, and search knows none of them: it uses what all stores have in common."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dcmh

ROOT = Path(dcmh.__file__).parent
ENGINES = ("local", "postgres", "milvus")


def engines_imported(path):
    """The engines whose modules a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (engine for name in names for engine in ENGINES if f"{name}.".startswith(f"dcmh.stores.{engine}."))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_imports_no_other(engine):
    for path in (ROOT / "stores" / engine).glob("*.py"):
        assert set(engines_imported(path)) <= {engine}, path


def test_search_imports_no_engine():
    paths = [*(ROOT / "search").glob("*.py"), *(ROOT / "stores").glob("*.py")]
    importing = [path.relative_to(ROOT) for path in paths if set(engines_imported(path))]
    # `dcmh check` looks at the files of a folder; `stores` opens every engine.
    assert importing == [Path("search/check.py"), Path("stores/__init__.py")]
