"""dcmh data get and check, and what dcmh data says about a benchmark: licence, size, where it comes from."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcmh.cli import FAILED, console
from dcmh.errors import DataError, ParameterError

if TYPE_CHECKING:
    from dcmh.data.benchmarks.download import Progress


def get(source: str, *, anew: bool, json: bool) -> int:
    """Download and unpack."""
    from dcmh.data.benchmarks import download, sources

    name, folder = _place(source)
    console.say(f"{sources.SOURCES[name].title} into {folder}. Terms: {sources.SOURCES[name].licence}.")
    with ExitStack() as bars:

        def progress(title: str) -> Progress:
            return bars.enter_context(console.progress(title, "bytes")).update

        try:
            done = download.get(name, folder, say=console.say, progress=progress, accept_changed=anew)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"Stopped. Complete files are kept; to get the others: {console.command()}"
            ) from None
    if json:
        console.result_json({"name": name, "folder": str(folder), "archives": [asdict(one) for one in done]})
        return 0
    rows = [[one.name, one.state, _trusted(one.known), one.files] for one in done]
    console.result(console.table(["file", "state", "checksum", "files"], rows))
    for part in sources.SOURCES[name].by_hand:
        console.say(f"Not fetched: {part}.")
    console.say(f"Next: dcmh data check {sources.name_with_folder(name, folder)}")
    return 0


def check(source: str, *, json: bool) -> int:
    """Look at everything; 1 where something is missing or wrong."""
    from dcmh.data.benchmarks import sources
    from dcmh.data.benchmarks.check import check as look

    name, folder = _place(source)
    findings = look(name, folder)
    bad = [finding for finding in findings if finding.is_bad]
    if json:
        console.result_json(
            {"name": name, "folder": str(folder), "whole": not bad, "findings": [asdict(one) for one in findings]}
        )
    else:
        rows = [[finding.what, finding.state, finding.detail] for finding in findings]
        console.result(console.table(["what", "state", "found"], rows))
    if bad:
        said = ", ".join(dict.fromkeys(finding.what for finding in bad))
        command = f"dcmh data get {sources.name_with_folder(name, folder)}"
        console.error(f"{name} in {folder} is not whole: {said}. Get what is missing: {command}")
        return FAILED
    console.say(f"{name} in {folder} is whole. Next: dcmh train {sources.name_with_folder(name, folder)}")
    return 0


def about(name: str, folder: Path | None) -> dict[str, Any]:
    """Licence, size and origin of a benchmark, for JSON."""
    from dcmh.data.benchmarks import sources

    source = sources.SOURCES[name]
    archives = [
        {
            "name": one.name,
            "urls": list(one.urls),
            "bytes": one.size,
            "about": one.about,
            "checksum_known": one.md5 is not None,
        }
        for one in source.archives
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


def about_lines(record: dict[str, Any]) -> list[tuple[str, object]]:
    """The same for people."""
    lines: list[tuple[str, object]] = [(key, record[key]) for key in ("title", "what", "licence", "page")]
    for one in record["archives"]:
        size = f"{one['bytes']:,} bytes" if one["bytes"] else one["about"] or "size not published"
        trust = (
            "checksum published" if one["checksum_known"] else "no checksum published: the first download is trusted"
        )
        lines.append(("file", f"{one['name']} ({size}; {trust}) {' or '.join(one['urls'])}"))
    lines += [("by hand", part) for part in record["by_hand"]]
    return [*lines, ("folder", record["folder"])]


def state(name: str) -> str:
    """At a glance, without looking into the files."""
    from dcmh.data.benchmarks import sources

    folder = sources.home_folder(name)
    there = folder.is_dir() and any(folder.iterdir())
    return f"in {folder}" if there else f"not here: dcmh data get {name}"


def _place(source: str) -> tuple[str, Path]:
    from dcmh.data import named
    from dcmh.data.benchmarks import sources

    found = named(source)
    if found is None or found[0] not in sources.SOURCES:
        hint = f" For the pictures of a folder: dcmh data {source} --check" if Path(source).is_dir() else ""
        raise ParameterError(
            f"Only these can be fetched and checked: {', '.join(sources.SOURCES)}; not {source!r}.{hint}"
        )
    name, folder = found
    folder = folder or sources.home_folder(name)
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file. Name a folder for {name}.")
    return name, folder


def _trusted(known: bool) -> str:
    return "verified" if known else "none published; recorded now"
