"""Whether a benchmark is complete: checksums of its archives, its files, their alignment, and the counts of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from dcmh.data.benchmarks import download, mirflickr, nuswide, sources
from dcmh.errors import DataError

State = Literal["ok", "missing", "wrong", "optional", "unknown"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. `optional`: missing, but not needed. `unknown`: cannot be verified."""

    what: str
    state: State
    detail: str

    @property
    def is_bad(self) -> bool:
        """Whether the data set cannot be used as it is."""
        return self.state in ("missing", "wrong")


def check(name: str, folder: Path) -> list[Finding]:
    """All findings about a data set in a folder. An unreadable file is a finding, not an error."""
    if not folder.is_dir():
        return [Finding("folder", "missing", f"{folder} does not exist. {sources.how_to_get(name, folder)}")]
    findings = list(_archives(name, folder))
    try:
        findings += _mirflickr(folder) if name == "mirflickr25k" else _nuswide(name, folder)
    except DataError as error:
        findings.append(Finding("files", "wrong", str(error)))
    return findings


def _archives(name: str, folder: Path) -> Iterator[Finding]:
    record = download.read_record(folder)
    for archive in sources.SOURCES[name].archives:
        path = folder / archive.name
        if not path.is_file():
            yield Finding(archive.name, "optional", "not here: only its unpacked files are checked")
            continue
        try:
            sha256 = download.verify(archive, path, record.get(archive.name))
        except DataError as error:
            yield Finding(archive.name, "wrong", str(error))
            continue
        if archive.md5 is not None:
            yield Finding(archive.name, "ok", "has the checksum that its publishers give")
        elif archive.name in record:
            yield Finding(
                archive.name,
                "ok",
                f"is what was fetched on {record[archive.name]['when'][:10]} (SHA-256 {sha256[:16]}…)",
            )
        else:
            yield Finding(archive.name, "unknown", f"no checksum of it is published (SHA-256 {sha256})")


# -- MIRFLICKR-25K --------------------------------------------------------------------------------------------------


def _mirflickr(folder: Path) -> Iterator[Finding]:
    files = mirflickr.find(folder)
    expected = set(range(1, mirflickr.PHOTOS + 1))
    yield _numbered("photos", "im{}.jpg", set(files.photos), expected)
    yield _numbered("tags", "tags{}.txt", set(files.tags), expected)
    absent = [f"{label}.txt" for label in mirflickr.LABELS if label not in files.annotations]
    yield Finding("annotations", "missing" if absent else "ok", _missing(len(mirflickr.LABELS), absent))
    if files.words is None:
        yield Finding("words", "missing", "mirflickr/doc/common_tags.txt")
    else:
        yield _check("words", lambda: _same(len(mirflickr.word_list(files)), mirflickr.WORDS, "words"))
    yield _check("pictures", lambda: _headers(files))
    both = sorted(set(files.photos) & set(files.tags))
    if absent or files.words is None or not both:
        yield Finding("points", "unknown", "not counted: files are missing")
        return
    yield _check("annotated photos", lambda: _annotated(files, both))
    yield _check("points", lambda: _points(files, both))


def _numbered(what: str, name: str, numbers: set[int], expected: set[int]) -> Finding:
    missing, extra = sorted(expected - numbers), sorted(numbers - expected)
    if missing:
        count = f"{len(expected) - len(missing):,} of {len(expected):,}"
        return Finding(what, "missing", f"{count}; missing: {_ranges(missing, name)}")
    if extra:
        return Finding(
            what, "wrong", f"{len(numbers):,}, more than the {len(expected):,} of the release: {_ranges(extra, name)}"
        )
    return Finding(what, "ok", f"{len(numbers):,}")


def _headers(files: mirflickr.Files) -> tuple[State, str]:
    """Whether every photo starts like a JPEG file."""
    bad = []
    for number, path in sorted(files.photos.items()):
        with files.release.open(path) as file:
            if file.read(2) != b"\xff\xd8":
                bad.append(number)
    if bad:
        return "wrong", f"not JPEG: {_ranges(bad, 'im{}.jpg')}; unpack mirflickr25k.zip again"
    return "ok", f"{len(files.photos):,} start like JPEG files; dcmh data mirflickr25k --check decodes each"


def _annotated(files: mirflickr.Files, numbers: Sequence[int]) -> tuple[State, str]:
    labels = mirflickr.annotated(files, numbers)
    return "ok", f"{int(labels.any(axis=1).sum()):,} photos have a label; every number in the annotations is a photo"


def _points(files: mirflickr.Files, numbers: Sequence[int]) -> tuple[State, str]:
    labels = mirflickr.annotated(files, numbers)
    tagged, notes = mirflickr.tags_of(files, numbers)
    keep = mirflickr.bag(tagged, mirflickr.word_list(files)).any(axis=1) & labels.any(axis=1)
    counts = dict(zip(mirflickr.LABELS, labels[keep].sum(axis=0, dtype=int).tolist(), strict=True))
    differing = [f"{label} {counts[label]:,} not {n:,}" for label, n in mirflickr.LABELS.items() if counts[label] != n]
    state, points = _same(int(keep.sum()), mirflickr.ITEMS, "points")
    if differing:
        return "wrong", f"{points}; label counts differ from those of the public .mat: {', '.join(differing)}"
    return state, "; ".join([f"{points}, with the label counts of the public .mat", *notes])


# -- NUS-WIDE -------------------------------------------------------------------------------------------------------


def _nuswide(name: str, folder: Path) -> Iterator[Finding]:
    files = nuswide.find(folder)
    absent = [f"Labels_{concept}.txt" for concept in nuswide.ALL_CONCEPTS if concept not in files.labels]
    yield Finding("labels", "missing" if absent else "ok", _missing(len(nuswide.ALL_CONCEPTS), absent))
    tables: tuple[tuple[str, Sequence[str | None] | None, str, State], ...] = (
        ("list of photos", [files.images], "ImageList/Imagelist.txt", "missing"),
        ("list of tags", [files.words], "NUS_WID_Tags/TagList1k.txt, which only text = words needs", "optional"),
        ("tags", files.tags, "NUS_WID_Tags/AllTags1k.txt, or Train_Tags1k.dat and Test_Tags1k.dat", "missing"),
        ("visual words", files.bags, "BoW_int.dat, which only the hand-crafted features need", "optional"),
    )
    for what, paths, expected, state in tables:
        found = " and ".join(files.release.describe(path) for path in paths or () if path)
        yield Finding(what, "ok" if found else state, found or expected)
    if files.images is None:
        yield Finding("alignment", "unknown", "not checked: the list of photos is missing")
        return
    listed = nuswide.photo_names(files)
    yield _check("photos listed", lambda: _same(len(set(listed)), nuswide.PHOTOS, "different photos"))
    yield _nuswide_photos(folder, listed)
    missing_files = files.missing()
    if missing_files:
        yield Finding("points", "unknown", f"not counted: missing are {'; '.join(missing_files)}")
        return
    yield _check("rows", lambda: _rows(files, listed))
    yield _check("points", lambda: _concepts(files, len(listed), name))


def _nuswide_photos(folder: Path, listed: Sequence[str]) -> Finding:
    root = nuswide.find_photos(folder, listed)
    if root is None:
        return Finding("photos", "optional", "none here; see dcmh data nuswide for how to request them")
    missing = [photo for photo, path in zip(listed, nuswide.existing(root, listed), strict=True) if path is None]
    if missing:
        return Finding(
            "photos", "missing", f"{len(listed) - len(missing):,} of {len(listed):,}; missing: {', '.join(missing)}"
        )
    return Finding("photos", "ok", f"{len(listed):,} in {root}")


def _rows(files: nuswide.Files, listed: Sequence[str]) -> tuple[State, str]:
    keep = np.ones(len(listed), bool)
    checked = [f"tags {nuswide.table(files, files.tags, nuswide.WORDS, listed, keep).shape[1]:,} per photo"]
    if files.bags is not None:
        checked.append(
            f"visual words {nuswide.table(files, files.bags, nuswide.VISUAL_WORDS, listed, keep).shape[1]:,}"
        )
    return "ok", f"every table has {len(listed):,} rows: {', '.join(checked)}, {len(files.labels)} labels"


def _concepts(files: nuswide.Files, rows: int, name: str) -> tuple[State, str]:
    labels, concepts = nuswide.most_frequent(files, rows, nuswide.CONCEPTS[name])
    state, points = _same(int(labels.any(axis=1).sum()), nuswide.ITEMS[name], "points")
    return state, f"{points}; concepts: {', '.join(concepts)}"


# -- both -----------------------------------------------------------------------------------------------------------


def _check(what: str, run: Callable[[], tuple[State, str]]) -> Finding:
    """One check; if the loader raises an error, the finding is its message."""
    try:
        state, detail = run()
    except DataError as error:
        state, detail = "wrong", str(error)
    return Finding(what, state, detail)


def _same(count: int, expected: int, what: str) -> tuple[State, str]:
    return ("ok", f"{count:,} {what}") if count == expected else ("wrong", f"{count:,} {what}, not {expected:,}")


def _missing(count: int, absent: Sequence[str]) -> str:
    return f"{count - len(absent)} of {count}" + (f"; missing: {', '.join(absent)}" if absent else "")


def _ranges(numbers: Iterable[int], name: str) -> str:
    """File names of all numbers, with runs as first … last."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join(" … ".join(name.format(number) for number in run) for run in runs)
