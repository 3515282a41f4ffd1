"""Hashing methods, one per file or package, which gives the method its name.

Other packages add methods through the entry-point group `dcmh.methods`.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import pkgutil
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcmh.errors import ParameterError
from dcmh.util import hub

if TYPE_CHECKING:
    from dcmh.methods.base import Hasher

_NOT_METHODS = {"base", "estimator", "export", "fine_space", "folder", "from_encoder", "starter"}


def available() -> dict[str, str]:
    """Method names, each with the first line of its docstring: its paper. Imports none of them."""
    methods = {}
    for name, file in _own_methods().items():
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        methods[name] = docstring.partition("\n")[0]
    for point in entry_points(group="dcmh.methods"):
        methods.setdefault(point.name, f"from the package {point.dist.name if point.dist else point.value}")
    return dict(sorted(methods.items()))


def get(name: str) -> type[Hasher]:
    """The class of a method: `dcmh.methods.get("cca")(bits=32)`."""
    known = available()  # a method of this package wins over one of the same name elsewhere
    if name not in known:
        close = difflib.get_close_matches(str(name), known, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ParameterError(f"No hashing method {name!r}.{hint} Available: {', '.join(known)}.")
    if name in _own_methods():
        return _class_of(importlib.import_module(f"dcmh.methods.{name.replace('-', '_')}"))
    point = next(point for point in entry_points(group="dcmh.methods") if point.name == name)
    loaded: type[Hasher] = point.load()
    return loaded


def _own_methods() -> dict[str, Path]:
    """The methods of this package, each with its file."""
    return {
        module.name.replace("_", "-"): Path(__path__[0], module.name + ("/__init__.py" if module.ispkg else ".py"))
        for module in pkgutil.iter_modules(__path__)
        if module.name not in _NOT_METHODS and not module.name.startswith("_")
    }


def _class_of(module: Any) -> type[Hasher]:
    from dcmh.methods.base import Hasher

    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Hasher) and value.__module__.startswith(module.__name__):
            return value
    raise ParameterError(f"{module.__name__} defines no Hasher. A method file needs one class derived from Hasher.")


def load(folder: Path | str, *, method: type[Hasher] | None = None) -> Hasher:
    """Read a model folder, whichever method wrote it. `method`: its class, where it is not installed.

    hf://OWNER/NAME, or hf://OWNER/NAME@REVISION, is downloaded from the Hugging Face hub.
    """
    from dcmh.errors import ModelError
    from dcmh.methods import folder as model_folder
    from dcmh.util.formats import readable

    folder = hub.download(folder) if isinstance(folder, str) and folder.startswith(hub.PREFIX) else Path(folder)
    record = model_folder.read_record(folder)
    if method is None and record["method"] not in available():
        raise ModelError(
            f"{folder} was made by the method {record['method']!r}, which is not installed. Install it, or give its class: "
            f"dcmh.load(folder, method=…). Installed: {', '.join(available())}."
        )
    what = "{path} is damaged or of another version ({reason})."
    with readable(folder, ModelError, what=what, hint="Train the model again."):
        return (method or get(record["method"])).from_folder(folder, record)
