"""The architecture, as a test: layers import downwards, modules form no cycle, only the console prints."""

from __future__ import annotations

import ast
from pathlib import Path

import dcmh

ROOT = Path(dcmh.__file__).parent
# Seven layers. A package imports the layers above it in this list, and the packages to its left.
LAYERS = [
    ("errors", "codes", "util"),
    ("data",),
    ("networks", "inputs"),
    ("evaluation", "index"),
    ("methods",),
    ("stores", "search", "experiments"),
    ("service", "cli"),
]
ORDER = [package for layer in LAYERS for package in layer]


def imports(tree: ast.AST):
    """Packages of dcmh that a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "dcmh":
            yield from (alias.name for alias in node.names if alias.name in ORDER)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dcmh."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("dcmh."))


def test_imports_point_downwards():
    wrong = []
    for path in ROOT.rglob("*.py"):
        package = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if package in ("__init__", "__main__"):
            continue
        assert package in ORDER, f"{path}: give {package} a place in LAYERS"
        for used in imports(ast.parse(path.read_text(encoding="utf-8"))):
            if ORDER.index(used) > ORDER.index(package):
                wrong.append(f"{path.relative_to(ROOT)}: {package} must not import {used}")
    assert not wrong, "\n".join(wrong)


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
