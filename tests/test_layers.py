"""Imports point downwards, and nothing prints but the console: held by a test, not by memory."""

from __future__ import annotations

import ast
from pathlib import Path

import dcmh

ROOT = Path(dcmh.__file__).parent
# Each layer may import those before it and itself, none after.
LAYERS = [
    "errors",
    "files",
    "home",
    "util",
    "engines",
    "codes",
    "text",
    "images",
    "data",
    "decoding_workers",
    "decoding",
    "device",
    "distributed",
    "objective",
    "likelihood_kernel",
    "likelihood",
    "networks",
    "features",
    "sift",
    "inputs",
    "views",
    "similarity",
    "pixels",
    "training",
    "checkpoint",
    "recipes",
    "metrics",
    "held_out",
    "methods",
    "starter",
    "words",
    "evaluation",
    "bench",
    "report",
    "tuning",
    "index",
    "catalogue",
    "remote",
    "search",
    "service",
    "cli",
    "__main__",
]


def imports(tree: ast.AST):
    """Layers of dcmh that a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "dcmh":
            yield from (alias.name for alias in node.names if alias.name in LAYERS)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dcmh."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("dcmh."))


def test_imports_point_downwards():
    for path in ROOT.rglob("*.py"):
        layer = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if layer == "__init__":
            continue
        assert layer in LAYERS, f"{path}: give {layer} a place in LAYERS"
        for used in imports(ast.parse(path.read_text(encoding="utf-8"))):
            assert LAYERS.index(used) <= LAYERS.index(layer), f"{path}: {layer} must not import {used}"


def test_only_the_console_prints():
    for path in ROOT.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        prints = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "print"]
        assert not prints or path == ROOT / "cli" / "console.py", path


def test_no_pickle():
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert "pickle" not in names, path
