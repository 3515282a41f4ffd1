"""Our plain format: a table of pictures and their words, as JSON lines, CSV or TSV, beside the pictures."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from dcmh.data.columns import Images, Texts
from dcmh.data.dataset import PARTS, Dataset
from dcmh.data.labels import multi_hot
from dcmh.errors import DataError

SUFFIXES = (".jsonl", ".csv", ".tsv")
PAIRS = tuple("pairs" + suffix for suffix in SUFFIXES)
CAPTIONS = ("captions.csv", "captions.tsv", "captions.jsonl")

_IMAGE_WORDS = ("image", "file", "filename", "file_name", "path", "photo", "picture", "name", "img")
_TEXT_WORDS = ("text", "caption", "captions", "tags", "title", "description", "comment", "keywords", "words")


@dataclass(frozen=True)
class Row:
    """One line of the table. A blank picture, text or part is None."""

    image: str | None
    text: str | None
    labels: tuple[str, ...] = ()
    id: str | None = None
    part: str | None = None


def load(file: Path, *, columns: tuple[str, str] | None = None, keep_partial: bool = False) -> Dataset:
    """Items of one table; pictures count from its folder.

    Parameters
    ----------
    columns
        Names of the picture and text columns; default `image` (or `file`) and `text`.
    keep_partial
        Keep items without text or without picture; otherwise they are left out, and a note says so.
    """
    return from_rows(read(file, columns=columns), file, keep_partial=keep_partial)


def read(file: Path, *, columns: tuple[str, str] | None = None) -> list[Row]:
    """The lines of a table; several lines on one picture, without ids, become one."""
    rows = []
    names: tuple[str, str] | None = None
    for line, record in _records(file):
        if names is None:
            names = _find_columns(file.name, list(record), columns)
        rows.append(_row(file.name, line, record, names))
    if not rows:
        raise DataError(f"{file.name} has no rows. Write one line for each picture: its path and its text.")
    return _merge(rows)


def from_rows(rows: Sequence[Row], file: Path, *, keep_partial: bool = False) -> Dataset:
    """Items of the rows; what cannot be an item is skipped, and notes say so."""
    if all(row.text is None for row in rows):
        raise DataError(f"All {len(rows):,} texts in {file.name} are empty. Is it the right column?")
    root = file.parent
    skipped = [(row.image, "does not exist") for row in rows if row.image and not os.path.isfile(root / row.image)]
    gone = {image for image, _ in skipped}
    there = [row for row in rows if row.image not in gone]
    kept = [row for row in there if keep_partial or (row.image is not None and row.text is not None)]
    if not kept:
        first = skipped[0][0] if skipped else "none given"
        raise DataError(
            f"None of the {len(rows):,} rows of {file.name} has both a picture and a text. "
            f"Paths count from {root}; the first missing picture: {first}."
        )
    labels, names = multi_hot([row.labels for row in kept])
    return Dataset(
        {"image": Images([row.image for row in kept], root=root), "text": Texts([row.text for row in kept])},
        labels=labels if names else None,
        label_names=names or None,
        ids=_ids(kept),
        name=root.resolve().name,
        notes=_notes(file.name, rows, there, kept, skipped),
        skipped=skipped,
        parts=[row.part or "database" for row in kept] if any(row.part for row in kept) else None,
    )


def _ids(rows: Sequence[Row]) -> list[str]:
    return [row.id or row.image or f"line {number}" for number, row in enumerate(rows, 1)]


def _notes(
    name: str, rows: Sequence[Row], there: Sequence[Row], kept: Sequence[Row], skipped: Sequence[tuple[str, str]]
) -> list[str]:
    with_text = sum(row.text is not None for row in there)
    left_out = f"; {len(there) - len(kept):,} without text or picture left out" if len(kept) < len(there) else ""
    notes = [f"Text from {name} for {with_text:,} of {len(rows):,} items{left_out}."]
    if skipped:
        notes.append(
            f"Skipped {len(skipped):,} of {len(rows):,} because the picture does not exist: {skipped[0][0]}, …."
        )
    return notes


def _records(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and fields of each line."""
    try:
        # utf-8-sig: spreadsheets put a mark before the first column's name.
        with open(file, encoding="utf-8-sig", newline="") as lines:
            yield from _json_records(file.name, lines) if file.suffix == ".jsonl" else _table_records(file, lines)
    except FileNotFoundError:
        raise DataError(f"{file} does not exist. Give a file with a line for each picture.") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{file.name} is not UTF-8 (byte {error.start}). Save it as UTF-8.") from error


def _json_records(name: str, lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    example = '{"image": "a.jpg", "text": "two dogs"}'
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(f"{name} line {number} is not JSON: {error}. Write one object a line: {example}") from error
        if not isinstance(record, dict):
            raise DataError(f"{name} line {number} is no JSON object. Write one object a line: {example}")
        yield number, record


def _table_records(file: Path, lines: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    header = lines.readline()
    lines.seek(0)
    delimiter = "\t" if file.suffix == ".tsv" else ";" if ";" in header and "," not in header else ","
    reader = csv.DictReader(lines, delimiter=delimiter)
    if reader.fieldnames is not None:
        reader.fieldnames = [field.strip() for field in reader.fieldnames]
    try:
        for record in reader:
            yield reader.line_num, record
    except csv.Error as error:
        line = reader.reader.line_num  # DictReader's own number is that of the last good line
        raise DataError(f"{file.name} line {line} cannot be read: {error}. Mend that line.") from error


def _find_columns(name: str, fields: list[str], columns: tuple[str, str] | None) -> tuple[str, str]:
    if columns is not None:
        missing = [column for column in columns if column not in fields]
        if missing:
            raise DataError(f"{name} has columns '{', '.join(fields)}'; there is no '{missing[0]}' among them.")
        return columns
    image = "image" if "image" in fields else "file"
    if image in fields and "text" in fields:
        return image, "text"
    expected = "file, text" if name.startswith("captions") else "image, text"
    found = [next((field for field in fields if field.lower() in words), "") for words in (_IMAGE_WORDS, _TEXT_WORDS)]
    hint = f", or: --text {name}:{found[0]},{found[1]}" if all(found) else ""
    raise DataError(f"{name} has columns '{', '.join(fields)}'; expected '{expected}'. Rename them{hint}")


def _row(name: str, line: int, record: dict[str, Any], names: tuple[str, str]) -> Row:
    part = _blank_to_none(record.get("split"))
    if part is not None and part not in PARTS:
        raise DataError(f"{name} line {line}: split is '{part}'; expected {', '.join(PARTS)}, or nothing.")
    labels = record.get("labels") or ()
    if isinstance(labels, str):
        labels = labels.split(";")
    elif not isinstance(labels, list | tuple):
        raise DataError(f"{name} line {line}: labels must be a list or separated by ';', not {labels!r}.")
    image = _blank_to_none(record.get(names[0]))
    return Row(
        image=image and PurePosixPath(image).as_posix(),  # ./a.jpg is a.jpg
        text=_blank_to_none(record.get(names[1])),
        labels=tuple(dict.fromkeys(text for label in labels if (text := str(label).strip()))),
        id=_blank_to_none(record.get("id")),
        part=part,
    )


def _blank_to_none(value: Any) -> str | None:
    if isinstance(value, list):  # a list of tags
        value = " ".join(str(part) for part in value)
    return None if value is None else str(value).strip() or None


def _merge(rows: list[Row]) -> list[Row]:
    """One row a picture: the texts of rows without id that name the same picture are joined."""
    merged: dict[object, Row] = {}
    for number, row in enumerate(rows):
        key = row.image if row.id is None and row.image is not None else number
        first = merged.get(key)
        if first is None:
            merged[key] = row
        else:
            text = "\n".join(part for part in (first.text, row.text) if part) or None
            merged[key] = replace(
                first, text=text, labels=tuple(dict.fromkeys(first.labels + row.labels)), part=first.part or row.part
            )
    return list(merged.values())
