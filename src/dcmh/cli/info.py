"""dcmh info: show what a folder or file is, and how it was made."""

from __future__ import annotations

import json as json_lines
from pathlib import Path
from typing import Any

from dcmh.cli import console
from dcmh.cli.options import JsonSwitch
from dcmh.errors import DataError
from dcmh.stores.address import is_address, parse
from dcmh.util.checksums import read_checked_text
from dcmh.util.formats import check_format, parse_json, parse_object, read_json, readable

AGAIN = "Make it again, or copy the folder again."


def info(path: str, /, *, json: JsonSwitch = False) -> None:
    """Show what a model, an index, codes, a checkpoint, results or a data folder is, and how it was made.

    Parameters
    ----------
    path
        A folder or file that dcmh wrote, the address of a collection, or data that it reads.
    """
    if is_address(path):
        path, kind, record = str(parse(path)), "search index", _collection(path)
    else:
        kind, record = _look(Path(path).expanduser(), path)
    if json:
        console.result_json({"path": path, "kind": kind, **record})
        return
    console.result(console.fields([("path", path), ("kind", kind), *_lines(record)]))


def kind_of(path: Path) -> str | None:
    """What dcmh wrote at a path: model, search index, codes, Hamming index or checkpoint; None for anything else."""
    from dcmh.methods import folder
    from dcmh.stores.local import layout

    if folder.is_model(path):
        return "model"
    if checkpoint_file(path).is_file():
        return "checkpoint"
    if layout.is_index(path) or (path / layout.CATALOGUE).is_file():
        return "search index"
    if (path / "codes.json").is_file():
        return "codes"
    return "Hamming index" if (path / "hamming.json").is_file() else None


def checkpoint_file(path: Path) -> Path:
    """The file of a checkpoint, which may also be given by its folder."""
    from dcmh.methods import folder

    return path if path.name == folder.STATE else path / folder.STATE


def _look(path: Path, named: str) -> tuple[str, dict[str, Any]]:
    kind = kind_of(path)
    if kind == "model":
        return kind, _model(path)
    if kind == "checkpoint":
        return "unfinished training", _checkpoint(checkpoint_file(path))
    if kind == "search index":
        return kind, _search_index(path)
    if kind == "codes":
        return kind, _codes(path)
    if kind == "Hamming index":
        return kind, _index(path / "hamming.json")
    if _is_results(path):
        return "results of dcmh bench", _results(path)
    from dcmh.cli.data import look

    return "data", look(named)[1]


def _model(path: Path) -> dict[str, Any]:
    from dcmh.methods import folder

    record = folder.read_record(path)
    history = folder.read_history(path)
    run = _read(path / folder.RUN)
    summary: dict[str, Any] = {
        name: record[name] for name in ("method", "bits", "fingerprint", "parameters", "modalities")
    }
    with readable(path / folder.RUN, hint=AGAIN):
        summary["trained_on"] = record.get("trained_on", {}) | ({"source": run["data"]["data"]} if run else {})
        if run:
            summary["label_words"] = run["data"].get("label_words")
            summary |= {name: run.get(name) for name in ("command", "device", "seconds", "finished", "skipped")}
            if run.get("skipped"):
                summary["skipped_list"] = str(path / folder.SKIPPED)
        summary["versions"] = run["versions"] if run else record.get("versions", {})
    summary["iterations"] = len(history)
    summary["bytes"] = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    with readable(path / folder.REPORT, hint=AGAIN):
        if report := _read(path / folder.REPORT):
            directions = {name: value for name, value in report.items() if "_to_" in name}
            summary["measured"] = {
                "queries": report["queries"],
                "database": report["database"],
                "chance": report["chance"],
                "map": {name: value["map"]["stable"] for name, value in directions.items()},
            }
            if unseen := report.get("unseen"):
                summary["measured"]["unseen"] = {
                    name: unseen[name]["map"]["stable"] for name in directions if name in unseen
                }
    return summary


def _checkpoint(state: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    what, hint = "The checkpoint {path} is damaged ({reason}).", "Delete it to start from the beginning."
    with readable(state, what=what, hint=hint):
        try:
            with safe_open(state, framework="numpy") as file:
                metadata = file.metadata() or {}
        except SafetensorError as error:
            raise ValueError(str(error)) from error
        version, fingerprint, parameters = parse_json(metadata["identity"])
        history = parse_json(metadata["record"])["history"]
        summary = {"done": len(history), "of": history[-1]["epochs"] if history else None, "parameters": parameters}
    return summary | {
        "data": fingerprint,
        "versions": {"dcmh": version},
        "next": "the command that was interrupted, with --resume",
    }


def _index(header: Path) -> dict[str, Any]:
    record = _read(header) or {}
    return {name: record.get(name) for name in ("format", "bits", "count")}


def _search_index(place: Path) -> dict[str, Any]:
    from dcmh.methods import folder, from_encoder
    from dcmh.stores.base import UPDATE
    from dcmh.stores.local import layout
    from dcmh.stores.local.catalogue import Catalogue

    header = layout.read_header(place)
    model = folder.read_record(place / layout.MODEL)
    catalogue = Catalogue(place / layout.CATALOGUE)
    listed = place / layout.SKIPPED
    files = [file for file in place.rglob("*") if file.is_file()]
    current = header["generation"] == catalogue.generation
    summary = {
        "items": len(catalogue),
        "codes": header["codes"] if current else catalogue.code_counts(),
        "bits": header["bits"],
        "method": header.get("method"),
        "model": header["fingerprint"],
        "encoder": (from_encoder.encoder_of(model) or {}).get("name"),
        "trained_on": _model(place / layout.MODEL).get("trained_on"),
        "data": catalogue.about("root"),
        "state": _state(catalogue.about(UPDATE), current=current),
        "skipped": len(listed.read_text(encoding="utf-8").splitlines()) - 1 if listed.is_file() else 0,
        "bytes": sum(file.stat().st_size for file in files),
        "format": header["format"],
        "versions": {"dcmh": header.get("version")},
    }
    catalogue.close()
    return summary


def _collection(address: str) -> dict[str, Any]:
    from contextlib import closing

    from dcmh import stores
    from dcmh.stores.base import UPDATE

    with closing(stores.connect(parse(address))) as catalogue:
        about = catalogue.read_header()
        sizes = json_lines.loads(about.get("sizes", "{}"))
        current = sizes.get("generation") == int(about["generation"])
        counted = {} if current else {name: len(catalogue.index(name)) for name in catalogue.modalities()}
        return {
            "items": len(catalogue),
            "codes": sizes["codes"] if current else counted,
            "bits": int(about["bits"]),
            "method": about["method"],
            "model": about["fingerprint"],
            "data": about.get("root"),
            "state": _state(about.get(UPDATE), current=current),
            "recall": {key.removeprefix("recall "): float(value) for key, value in about.items() if "recall " in key},
            "skipped": len(catalogue.skipped()),
            "format": int(about["format"]),
            "versions": {"dcmh": about["version"]},
        }


def _state(update: str | None, *, current: bool) -> str:
    """Whether dcmh index finished, and whether the index has been changed since."""
    from dcmh.stores.base import FINISHED, UNFINISHED

    if update == UNFINISHED or (update != FINISHED and not current):  # older indexes do not record it
        return "unfinished: run dcmh index again"
    return "ready" if current else "ready; changed since dcmh index ran, by dcmh serve or a program"


def _codes(path: Path) -> dict[str, Any]:
    from dcmh.cli import encode

    record = _read(path / "codes.json") or {}
    check_format(record.get("format"), encode.FORMAT, path, DataError)
    return {name: value for name, value in record.items() if name != "kind"}


def _is_results(path: Path) -> bool:
    """Whether a folder holds results: its first JSON file is a run of a method."""
    file = next(path.rglob("*.json"), None) if path.is_dir() else None
    try:
        record = None if file is None else read_json(file)
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and {"format", "method", "varied", "parameters"} <= set(record)


def _results(path: Path) -> dict[str, Any]:
    from dcmh.experiments import tables

    runs = tables.read(path)
    return {
        "data": sorted({run.data for run in runs}),
        "runs": len(runs),
        "refused": sum(run.error is not None for run in runs),
        "methods": sorted({run.label for run in runs}),
        "features": sorted({run.features for run in runs}),
        "lengths": sorted({run.bits for run in runs}),
        "seeds": sorted({run.seed for run in runs}),
        "next": f"dcmh report {path}",
    }


def _read(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is no such file."""
    if not path.is_file():
        return None
    with readable(path, hint=AGAIN):
        return parse_object(read_checked_text(path))


def _lines(record: dict[str, Any]) -> list[tuple[str, object]]:
    return [(name, _formatted(value)) for name, value in record.items() if value not in (None, [], {})]


def _formatted(value: Any) -> object:
    """A value on one line; nested values as name value, name value."""
    if isinstance(value, dict):
        return ", ".join(
            f"{name} {_formatted(part)}" if not isinstance(part, dict) else f"{name} ({_formatted(part)})"
            for name, part in value.items()
        )
    if isinstance(value, list):
        return "; ".join(str(_formatted(part)) for part in value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
