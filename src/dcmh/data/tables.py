"""Our plain format: a table with one line an item, as JSON lines, CSV or TSV, beside the files that it names.

Columns: image (or file) and text, or those that `modalities` names; labels, id and split where there are any.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dcmh.data import cells
from dcmh.data.columns import Column, Images, Kind, Texts, Vectors
from dcmh.data.dataset import PARTS, Dataset
from dcmh.data.labels import multi_hot
from dcmh.errors import DataError, ParameterError
from dcmh.util.text import mended

SUFFIXES = (".jsonl", ".csv", ".tsv")
PAIRS = tuple("pairs" + suffix for suffix in SUFFIXES)
CAPTIONS = ("captions.csv", "captions.tsv", "captions.jsonl")

_IMAGE_WORDS = ("image", "file", "filename", "file_name", "path", "photo", "picture", "name", "img")
_TEXT_WORDS = ("text", "caption", "captions", "tags", "title", "description", "comment", "keywords", "words")
_OTHER = ("labels", "id", "split")  # columns that are no modality
_ASKED = re.compile(r"(?P<name>[^:?]+)(:(?P<kind>image|text|vector))?(?P<optional>\?)?")


@dataclass(frozen=True)
class Modality:
    """A column of the table that is a modality. `kind` None: told by its cells."""

    name: str
    column: str
    kind: Kind | None


@dataclass(frozen=True)
class Row:
    """One line of the table; `cells` has what it says of each modality, None where that is blank."""

    cells: dict[str, Any]
    labels: tuple[str, ...] = ()
    id: str | None = None
    part: str | None = None
    line: int = 0


@dataclass(frozen=True)
class Table:
    """The lines of a table, the kind of each of its modalities, and the columns that nothing uses."""

    file: Path
    kinds: dict[str, Kind]
    rows: list[Row]
    unused: tuple[str, ...] = ()
    chosen: bool = False  # the modalities were named

    @property
    def picture(self) -> str | None:
        """The modality whose files name the items."""
        return next((name for name, kind in self.kinds.items() if kind == "image"), None)


def load(
    file: Path,
    *,
    columns: tuple[str, str] | None = None,
    keep_partial: bool = False,
    modalities: str | Sequence[str] | None = None,
) -> Dataset:
    """Items of one table; files count from its folder.

    Parameters
    ----------
    columns
        Names of the picture and text columns; default `image` (or `file`) and `text`.
    modalities
        Which columns are modalities, as "image,title,tags,audio". The cells tell whether a column holds pictures, words
        or vectors (numbers, or .npy files); "tags:text" says it, and "audio?" takes the column only where it is there.
    keep_partial
        Keep items that lack a modality; otherwise they are left out, and a note says so.
    """
    return from_table(read(file, columns=columns, modalities=modalities), keep_partial=keep_partial)


def read(file: Path, *, columns: tuple[str, str] | None = None, modalities: str | Sequence[str] | None = None) -> Table:
    """The lines of a table; several lines on one picture, without ids, become one."""
    found = list(_records(file))
    if not found:
        raise DataError(f"{file.name} has no rows. Write one line for each item: its files and its words.")
    fields = list(found[0][1])
    if modalities is None:
        image, text = _find_columns(file.name, fields, columns)
        asked = [Modality("image", image, "image"), Modality("text", text, "text")]
    else:
        asked = _asked(file.name, fields, modalities, columns)
    kinds = {one.name: one.kind or cells.kind_of(record.get(one.column) for _, record in found) for one in asked}
    rows = [_row(file.name, line, record, asked, kinds) for line, record in found]
    used = {one.column for one in asked}
    unused = [field for field in fields if field not in used and field not in _OTHER and field]
    table = Table(file, kinds, rows, tuple(unused), modalities is not None)
    return replace(table, rows=_merge(rows, table.picture, kinds))


def from_table(table: Table, *, keep_partial: bool = False) -> Dataset:
    """Items of the rows; what cannot be an item is skipped, and notes say so."""
    _check_filled(table)
    rows, skipped = _readable(table)
    kept = [row for row in rows if keep_partial or all(cell is not None for cell in row.cells.values())]
    kept = [row for row in kept if any(cell is not None for cell in row.cells.values())]
    root = table.file.parent
    if not kept:
        what = "every modality" if table.chosen else "both a picture and a text"
        first = skipped[0][0] if skipped else "none given"
        raise DataError(
            f"None of the {len(table.rows):,} rows of {table.file.name} has {what}. "
            f"Paths count from {root}; the first missing picture: {first}."
        )
    labels, names = multi_hot([row.labels for row in kept])
    return Dataset(
        {name: _column(table.file.name, name, kind, kept, root) for name, kind in table.kinds.items()},
        labels=labels if names else None,
        label_names=names or None,
        ids=[row.id or row.cells.get(table.picture or "") or f"line {row.line}" for row in kept],
        name=root.resolve().name,
        notes=_notes(table, rows, kept, skipped),
        skipped=skipped,
        parts=[row.part or "database" for row in kept] if any(row.part for row in kept) else None,
    )


def _check_filled(table: Table) -> None:
    for name, kind in table.kinds.items():
        if kind != "image" and all(row.cells[name] is None for row in table.rows):
            what = "texts" if name == "text" else f"cells of {name!r}"
            raise DataError(f"All {len(table.rows):,} {what} in {table.file.name} are empty. Is it the right column?")


def _readable(table: Table) -> tuple[list[Row], list[tuple[str, str]]]:
    """The rows whose files are there, vectors read; and the files that are not, with reasons."""
    root = table.file.parent
    vectors = cells.VectorReader(root)
    rows: list[Row] = []
    skipped: list[tuple[str, str]] = []
    for row in table.rows:
        values, bad = dict(row.cells), len(skipped)
        for name, cell in row.cells.items():
            if cell is not None and table.kinds[name] == "image" and not os.path.isfile(root / cell):
                skipped.append((cell, "does not exist" if "\ufffd" not in cell else "does not exist, or is not UTF-8"))
            elif cell is not None and table.kinds[name] == "vector":
                try:
                    values[name] = vectors(cell)
                except DataError as error:
                    skipped.append((cells.words(cell) or "", str(error)))
        if len(skipped) == bad:
            rows.append(replace(row, cells=values))
    return rows, skipped


def _column(file: str, name: str, kind: Kind, rows: Sequence[Row], root: Path) -> Column:
    values = [row.cells[name] for row in rows]
    if kind == "image":
        return Images(values, root=root)
    if kind == "text":
        return Texts(values)
    first = next((value for value in values if value is not None), None)
    if first is None:
        raise DataError(
            f"No item of {file} that can be used has a vector {name!r}. Leave it out, or keep partial items."
        )
    whole = np.zeros((len(values), len(first)), np.float32)
    for place, value in enumerate(values):
        if value is not None:
            if len(value) != len(first):
                raise DataError(
                    f"{file} line {rows[place].line}: {name!r} has {len(value)} numbers, others have {len(first)}. "
                    "Give vectors of one length."
                )
            whole[place] = value
    return Vectors(whole, observed=np.array([value is not None for value in values], bool))


def _notes(table: Table, there: Sequence[Row], kept: Sequence[Row], skipped: Sequence[tuple[str, str]]) -> list[str]:
    total, name = len(table.rows), table.file.name
    lost = len(there) - len(kept)
    if table.chosen:
        counts = [
            f"{modality} ({kind}s) for {sum(row.cells[modality] is not None for row in there):,}"
            for modality, kind in table.kinds.items()
        ]
        left_out = f"; {lost:,} that lack one left out" if lost else ""
        notes = [f"From {name}, of {total:,} items: {', '.join(counts)}{left_out}."]
    else:
        with_text = sum(row.cells["text"] is not None for row in there)
        left_out = f"; {lost:,} without text or picture left out" if lost else ""
        notes = [f"Text from {name} for {with_text:,} of {total:,} items{left_out}."]
    if skipped:
        why = "because the picture does not exist" if not table.chosen else "because a file cannot be read"
        notes.append(f"Skipped {len(skipped):,} of {total:,} {why}: {skipped[0][0]}, ….")
    if table.unused and not table.chosen:
        would = ",".join([*table.kinds, *table.unused])
        notes.append(f"Columns that are not used: {', '.join(table.unused)}. To learn from them: --modalities {would}")
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
            if any(cell.strip() for cell in record.pop(None, ())):
                raise DataError(
                    f"{file.name} line {reader.line_num} has more cells than the header. "
                    f"Put a text that holds {delimiter!r} in quotes."
                )
            yield reader.line_num, record
    except csv.Error as error:
        line = reader.reader.line_num  # DictReader's own number is that of the last good line
        raise DataError(f"{file.name} line {line} cannot be read: {error}. Mend that line.") from error


def _asked(
    name: str, fields: list[str], modalities: str | Sequence[str], columns: tuple[str, str] | None
) -> list[Modality]:
    """What `modalities` names, found among the columns."""
    asked: list[Modality] = []
    for said in modalities.split(",") if isinstance(modalities, str) else modalities:
        match = _ASKED.fullmatch(said.strip())
        if match is None:
            raise ParameterError(f"--modalities {said!r}: expected the name of a column, such as title, or tags:text.")
        modality = match["name"].strip()
        other = dict(zip(("image", "text"), columns, strict=True)).get(modality) if columns else None
        if other is None and modality == "image" and "image" not in fields:
            other = "file"
        column = other or modality
        if column in fields and column not in _OTHER:
            asked.append(Modality(modality, column, match["kind"]))  # type: ignore[arg-type]
        elif not match["optional"]:
            usable = [field for field in fields if field not in _OTHER]
            raise DataError(f"{name} has no column {column!r} for a modality. It has: {', '.join(usable)}.")
    if not asked:
        raise DataError(f"{name} has none of the columns {modalities}. Give data of the kind the model learned from.")
    return asked


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


def _row(name: str, line: int, record: dict[str, Any], asked: Sequence[Modality], kinds: dict[str, Kind]) -> Row:
    part = cells.words(record.get("split"))
    if part is not None and part not in PARTS:
        raise DataError(f"{name} line {line}: split is '{part}'; expected {', '.join(PARTS)}, or nothing.")
    labels = record.get("labels") or ()
    if isinstance(labels, str):
        labels = labels.split(";")
    elif not isinstance(labels, list | tuple):
        raise DataError(f"{name} line {line}: labels must be a list or separated by ';', not {labels!r}.")
    return Row(
        cells={one.name: _cell(record.get(one.column), kinds[one.name]) for one in asked},
        labels=tuple(dict.fromkeys(text for label in labels if (text := mended(str(label)).strip()))),
        id=cells.words(record.get("id")),
        part=part,
        line=line,
    )


def _cell(value: Any, kind: Kind) -> Any:
    """Paths and texts as strings; vectors as they are written, to be read once the items are known."""
    if kind == "vector":
        return value if cells.words(value) is not None else None
    return cells.picture(value) if kind == "image" else cells.words(value)


def _merge(rows: list[Row], picture: str | None, kinds: dict[str, Kind]) -> list[Row]:
    """One row a picture: the texts of rows without id that name the same picture are joined."""
    merged: dict[object, Row] = {}
    for number, row in enumerate(rows):
        file = row.cells.get(picture) if picture is not None else None
        key = file if row.id is None and file is not None else number
        first = merged.get(key)
        if first is None:
            merged[key] = row
            continue
        both = {}
        for name, kind in kinds.items():
            said = [cell for cell in (first.cells[name], row.cells[name]) if cell is not None]
            both[name] = "\n".join(said) if kind == "text" and said else said[0] if said else None
        labels = tuple(dict.fromkeys(first.labels + row.labels))
        merged[key] = replace(first, cells=both, labels=labels, part=first.part or row.part)
    return list(merged.values())
