"""dcmh methods: list the hashing methods, or describe one."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

from dcmh.cli import console
from dcmh.cli.options import JsonSwitch

if TYPE_CHECKING:
    from dcmh.methods.base import Hasher


def methods(name: str | None = None, /, *, json: JsonSwitch = False) -> None:
    """List the hashing methods, or describe one.

    Parameters
    ----------
    name
        A method. Default: the list.
    """
    from dcmh import methods

    if name is not None:
        record = _describe(name, methods.get(name))
        console.result_json(record) if json else console.result(_page(record))
        if not json:
            console.say(f"Next: dcmh train DATA --method {name}")
        return
    rows = [
        {"name": name, "labels": methods.get(name).uses_labels, "paper": paper}
        for name, paper in methods.available().items()
    ]
    if json:
        console.result_json(rows)
    else:
        cells = [[row["name"], _labels(str(row["name"]), bool(row["labels"])), row["paper"]] for row in rows]
        console.result(console.table(["name", "labels", "paper"], cells))


def _labels(name: str, used: bool) -> str:
    if not used:
        return "not used"
    return "needed, or --similarity" if name == "dcmh" else "needed"


def _describe(name: str, kind: type[Hasher]) -> dict[str, Any]:
    module = sys.modules.get(f"dcmh.methods.{name.replace('-', '_')}") or sys.modules[kind.__module__]
    paper, _, rest = (inspect.getdoc(module) or "").partition("\n")
    return {
        "name": name,
        "paper": paper,
        "labels": kind.uses_labels,
        "parameters": {key: _plain(value.default) for key, value in inspect.signature(kind).parameters.items()},
        "about": rest.strip(),
        "text": inspect.cleandoc(kind.__doc__ or ""),
    }


def _page(record: dict[str, Any]) -> str:
    settings = [(key, "none" if value is None else str(value)) for key, value in record["parameters"].items()]
    parts = [
        record["paper"],
        f"Labels: {_labels(record['name'], record['labels'])}.",
        record["about"],
        record["text"],
        "Settings and their defaults\n---------------------------\n" + console.fields(settings),
    ]
    return "\n\n".join(part for part in parts if part)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
