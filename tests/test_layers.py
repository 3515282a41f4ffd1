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
    ("index", "evaluation"),
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


def module_of(path: Path) -> str:
    return ".".join(["dcmh", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


def modules_imported(tree: ast.AST, known: set[str]):
    """Modules of dcmh that a module imports, also inside functions, but not only for type checking."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "dcmh":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        else:
            yield from modules_imported(node, known)


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import one another in a circle, the first one again at the end; [] where there are none."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module not in done:
            for imported in sorted(graph[module]):
                if circle := visit(imported, [*path, module]):
                    return circle
            done.add(module)
        return []

    return next((circle for module in sorted(graph) if (circle := visit(module, []))), [])


def test_no_module_imports_itself_through_others():
    paths = {module_of(path): path for path in ROOT.rglob("*.py")}
    del paths["dcmh"]  # its names load when they are first used
    graph = {
        module: set(modules_imported(ast.parse(path.read_text(encoding="utf-8")), set(paths))) & set(paths)
        for module, path in paths.items()
    }
    graph = {module: (imported & set(graph)) - {module} for module, imported in graph.items()}
    assert " → ".join(cycle_in(graph)) == ""


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
