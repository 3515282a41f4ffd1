"""Tables with one line per item, as JSON lines, CSV or TSV, beside the files that they name.

Columns: image (or file) and text, or those that `modalities` names; optionally labels, id and split.
"""

from __future__ import annotations

import csv
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from dcmh.data.cells import VectorReader, are_numbers, kind_of, path_in, text_in
from dcmh.data.columns import (
    HEIC_HINT,
    HEIC_SUFFIXES,
    Column,
    Images,
    Kind,
    Texts,
    Vectors,
    can_read_heic,
)
from dcmh.data.dataset import PARTS, Dataset
from dcmh.data.frames import Frame
from dcmh.data.labels import multi_hot
from dcmh.data.values import is_picture
from dcmh.errors import DataError, ParameterError
from dcmh.util.formats import parse_json
from dcmh.util.text import as_scalar

SUFFIXES = (".jsonl", ".csv", ".tsv")
PAIRS = tuple("pairs" + suffix for suffix in SUFFIXES)
CAPTIONS = ("captions.csv", "captions.tsv", "captions.jsonl")

_IMAGE_WORDS = ("image", "file", "filename", "file_name", "path", "photo", "picture", "name", "img")
_TEXT_WORDS = ("text", "caption", "captions", "tags", "title", "description", "comment", "keywords", "words")
_USUAL = (("image", "file", "jpg", "png", "webp"), ("text", "caption"))  # columns of a frame
HEAD = 10_000  # rows of a frame by which the kinds of its columns are judged
_OTHER = ("labels", "id", "split")  # columns that are not modalities
_MODALITY = re.compile(r"(?P<name>[^:?]+)(:(?P<kind>image|text|vector))?(?P<optional>\?)?")


@dataclass(frozen=True)
class Modality:
    """A column of the table that is a modality. If `kind` is None, the cells decide."""

    name: str
    column: str
    kind: Kind | None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `cells` maps each modality to its cell, None if blank."""

    cells: dict[str, Any]
    labels: tuple[str, ...] = ()
    id: str | None = None
    part: str | None = None
    line: int = 0
    extra: Mapping[str, str | int | float] = field(default_factory=dict)  # cells of the unused columns


@dataclass(frozen=True)
class Table:
    """The lines of a table, the kind of each of its modalities, and its unused columns."""

    file: Path
    kinds: dict[str, Kind]
    rows: list[Row]
    unused: tuple[str, ...] = ()
    chosen: bool = False  # whether the user named the modalities
    name: str = ""  # of the data set; default: that of the folder

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
    """Items of one table; the paths in it are relative to its folder.

    Parameters
    ----------
    columns
        Names of the picture and text columns; default `image` (or `file`) and `text`.
    modalities
        Which columns are modalities, such as "image,title,tags,audio". Whether a column holds images, texts or vectors
        (lists of numbers, or .npy files) is judged by its cells, unless given, as in "tags:text". "audio?" is optional:
        it is used if the table has that column.
    keep_partial
        Keep items that lack a modality; otherwise they are left out, with a note.
    """
    return from_table(read(file, columns=columns, modalities=modalities), keep_partial=keep_partial)


def load_frame(
    frame: Frame,
    *,
    root: Path | str = ".",
    name: str = "table",
    columns: tuple[str, str] | None = None,
    keep_partial: bool = False,
    modalities: str | Sequence[str] | None = None,
) -> Dataset:
    """Items of a table of another library or format; the options are those of `load`.

    The column `labels` or `label` holds a class or a list of labels. An item without `id` and path is named by its row number.

    Parameters
    ----------
    root
        The folder that the paths in the table are relative to.
    """
    if modalities is None:
        usual = [next((field for field in words if field in frame.fields), None) for words in _USUAL]
        image, text = columns or usual
        if not {image, text} <= set(frame.fields):
            raise DataError(
                f"The {frame.name} has columns '{', '.join(frame.fields)}'; expected 'image, text'.",
                hint='Name those of pictures, texts and vectors: modalities="photo:image,title:text".',
            )
        chosen = [Modality("image", str(image), None), Modality("text", str(text), "text" if columns else None)]
    else:
        chosen = _choose(frame.name, frame.fields, modalities, columns)
    label = "label" if "label" in frame.fields and "labels" not in frame.fields else "labels"
    records = _numbered(frame.records({modality.column for modality in chosen}), label)
    head = list(islice(records, HEAD))
    if not head:
        raise DataError(f"The {frame.name} has no rows. Give one row per item.")
    fields = [field for field in frame.fields if field != label]
    file = Path(root, frame.name)
    table = _table(file, chain(head, records), chosen, _kinds(chosen, head), fields, is_chosen=modalities is not None)
    picture = table.picture or ""
    rows = [
        row if row.id or isinstance(row.cells.get(picture), str) else replace(row, id=str(row.line - 1))
        for row in table.rows
    ]
    return from_table(replace(table, rows=rows, name=name), keep_partial=keep_partial)


def _numbered(records: Iterable[dict[str, Any]], label: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and records, with the column of labels under its usual name."""
    for number, record in enumerate(records, 1):
        record["labels"] = _listed(record.pop(label, None))
        yield number, record


def _listed(labels: Any) -> Any:
    """Labels of one cell as a list or a string with semicolons: a class may be given by its number."""
    if isinstance(labels, np.ndarray):
        return labels.tolist()
    return labels if labels is None or isinstance(labels, str | list | tuple) else [labels]


def read(file: Path, *, columns: tuple[str, str] | None = None, modalities: str | Sequence[str] | None = None) -> Table:
    """The lines of a table. Lines about the same picture are merged if they have no ids."""
    records = list(_records(file))
    if not records:
        raise DataError(f"{file.name} has no rows. Write one line per item: its files and its words.")
    fields = list(records[0][1])
    if modalities is None:
        image, text = _find_columns(file.name, fields, columns)
        chosen = [Modality("image", image, "image"), Modality("text", text, "text")]
    else:
        chosen = _choose(file.name, fields, modalities, columns)
    fields = list(dict.fromkeys(name for _, record in records for name in record))
    return _table(file, records, chosen, _kinds(chosen, records), fields, is_chosen=modalities is not None)


def _kinds(chosen: Sequence[Modality], records: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, Kind]:
    return {
        modality.name: modality.kind or kind_of(record.get(modality.column) for _, record in records)
        for modality in chosen
    }


def _table(
    file: Path,
    records: Iterable[tuple[int, dict[str, Any]]],
    chosen: Sequence[Modality],
    kinds: dict[str, Kind],
    fields: Sequence[str],
    *,
    is_chosen: bool,
) -> Table:
    used = {modality.column for modality in chosen}
    unused = [name for name in fields if name and name not in used and name not in _OTHER]
    rows = [_row(file.name, line, record, chosen, kinds, unused) for line, record in records]
    table = Table(file, kinds, rows, tuple(unused), is_chosen)
    return replace(table, rows=_merge(rows, table.picture, kinds))


def from_table(table: Table, *, keep_partial: bool = False, unlisted: Sequence[str] = ()) -> Dataset:
    """Items of the rows. Rows whose files are missing or unreadable are skipped, with a note.

    `unlisted` are pictures that the table does not list: items without anything else, if partial items are kept.
    """
    for name, kind in table.kinds.items():
        if kind != "image" and all(row.cells[name] is None for row in table.rows):
            what = "texts" if name == "text" else f"cells of {name!r}"
            raise DataError(f"All {len(table.rows):,} {what} in {table.file.name} are empty. Is it the right column?")
    rows, skipped = _readable(table)
    notes = _notes(table, rows, keep_partial, skipped)
    blank = dict.fromkeys(table.kinds)
    rows += [Row({**blank, table.picture: picture}) for picture in unlisted if table.picture is not None]
    rows = [row for row in rows if _is_usable(row, keep_partial)]
    root = table.file.parent
    if not rows:
        what = "every modality" if table.chosen else "both a picture and a text"
        first = skipped[0][0] if skipped else "none given"
        raise DataError(
            f"None of the {len(table.rows):,} rows of {table.file.name} has {what}. "
            f"Paths are relative to {root}; the first missing picture: {first}."
        )
    labels, names = multi_hot([row.labels for row in rows])
    return Dataset(
        {name: _column(table.file.name, name, kind, rows, root) for name, kind in table.kinds.items()},
        labels=labels if names else None,
        label_names=names or None,
        ids=[row.id or row.cells.get(table.picture or "") or f"line {row.line}" for row in rows],
        name=table.name or root.resolve().name,
        notes=notes,
        skipped=skipped,
        parts=[row.part or "database" for row in rows] if any(row.part for row in rows) else None,
        extra=[row.extra for row in rows] if any(row.extra for row in rows) else None,
    )


def _is_usable(row: Row, keep_partial: bool) -> bool:
    """Whether a row has every modality, or any if partial items are kept."""
    return (any if keep_partial else all)(cell is not None for cell in row.cells.values())


def _readable(table: Table) -> tuple[list[Row], list[tuple[str, str]]]:
    """The rows whose files exist, with their vectors read; and the unusable files, with reasons."""
    root = table.file.parent
    vectors = VectorReader(root)
    heic = can_read_heic()
    rows: list[Row] = []
    skipped: list[tuple[str, str]] = []
    for row in table.rows:
        values, before = row.cells, len(skipped)
        for name, cell in row.cells.items():
            kind = table.kinds[name]
            if cell is None or kind == "text" or (kind == "image" and is_picture(cell)):
                continue
            if kind == "vector":
                try:
                    vector = vectors(cell)
                    if vector is not cell:
                        values = {**values, name: vector}
                except DataError as error:
                    skipped.append((text_in(cell) or "", str(error)))
            elif not os.path.isfile(root / cell):
                skipped.append((cell, "does not exist" if "\ufffd" not in cell else "does not exist, or is not UTF-8"))
            elif not heic and cell.lower().endswith(HEIC_SUFFIXES):
                skipped.append((cell, HEIC_HINT))
        if len(skipped) == before:
            rows.append(row if values is row.cells else replace(row, cells=values))
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
    matrix = first.base  # of a frame that holds its vectors in one array: no copy, if all of its rows are kept
    if (
        isinstance(matrix, np.ndarray)
        and len(matrix) == len(values)
        and all(value is not None and value.base is matrix for value in values)
    ):
        return Vectors(matrix)
    vectors = np.zeros((len(values), len(first)), np.float32)
    for row, value in enumerate(values):
        if value is not None:
            if len(value) != len(first):
                raise DataError(
                    f"{file} line {rows[row].line}: {name!r} has {len(value)} numbers, others have {len(first)}. "
                    "Give vectors of the same length."
                )
            vectors[row] = value
    return Vectors(vectors, observed=np.array([value is not None for value in values], bool))


def _notes(table: Table, readable: Sequence[Row], keep_partial: bool, skipped: Sequence[tuple[str, str]]) -> list[str]:
    total, name = len(table.rows), table.file.name
    lost = sum(not _is_usable(row, keep_partial) for row in readable)
    if table.chosen:
        counts = [
            f"{modality} ({kind}s) for {sum(row.cells[modality] is not None for row in readable):,}"
            for modality, kind in table.kinds.items()
        ]
        left_out = f"; {lost:,} that lack one left out" if lost else ""
        notes = [f"From {name}, of {total:,} items: {', '.join(counts)}{left_out}."]
    else:
        with_text = sum(row.cells["text"] is not None for row in readable)
        left_out = f"; {lost:,} without text or picture left out" if lost else ""
        notes = [f"Text from {name} for {with_text:,} of {total:,} items{left_out}."]
    if skipped:
        missing = not table.chosen and all(reason.startswith("does not exist") for _, reason in skipped)
        why = "because the picture does not exist" if missing else "because a file cannot be read"
        notes.append(
            f"Skipped {len(skipped):,} of {total:,} {why}: {skipped[0][0]}{', …' if len(skipped) > 1 else ''}."
        )
    if table.unused and not table.chosen:
        names = ",".join([*table.kinds, *table.unused])
        notes.append(
            f"Further columns, for filters (--where): {', '.join(table.unused)}. To learn from them: --modalities {names}"
        )
    return notes


def _records(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and fields of each line."""
    try:
        # utf-8-sig: spreadsheets put a mark before the first column's name.
        with open(file, encoding="utf-8-sig", newline="") as lines:
            yield from _json_records(file.name, lines) if file.suffix == ".jsonl" else _table_records(file, lines)
    except FileNotFoundError:
        raise DataError(f"{file} does not exist. Give a file with one line per picture.") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{file.name} is not UTF-8 (byte {error.start}). Save it as UTF-8.") from error


def _json_records(name: str, lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    example = '{"image": "a.jpg", "text": "two dogs"}'
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except ValueError as error:
            raise DataError(
                f"{name} line {number} is not JSON: {error}. Write one object per line: {example}"
            ) from error
        if not isinstance(record, dict):
            raise DataError(f"{name} line {number} is not a JSON object. Write one object per line: {example}")
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
        raise DataError(f"{file.name} line {line} cannot be read: {error}. Fix that line.") from error


def _choose(
    name: str, fields: list[str], modalities: str | Sequence[str], columns: tuple[str, str] | None
) -> list[Modality]:
    """The columns that `modalities` names."""
    chosen: list[Modality] = []
    for word in modalities.split(",") if isinstance(modalities, str) else modalities:
        match = _MODALITY.fullmatch(word.strip())
        if match is None:
            raise ParameterError(f"--modalities {word!r}: expected the name of a column, such as title, or tags:text.")
        modality = match["name"].strip()
        usual = "file" if modality == "image" and "image" not in fields else modality
        column = (dict(zip(("image", "text"), columns, strict=True)).get(modality) if columns else None) or usual
        if column in fields and column not in _OTHER:
            chosen.append(Modality(modality, column, match["kind"]))  # type: ignore[arg-type]
        elif not match["optional"]:
            usable = [field for field in fields if field not in _OTHER]
            raise DataError(f"{name} has no column {column!r} for a modality. It has: {', '.join(usable)}.")
    if not chosen:
        raise DataError(f"{name} has none of the columns {modalities}. Give data like that the model learned from.")
    return chosen


def _find_columns(name: str, fields: list[str], columns: tuple[str, str] | None) -> tuple[str, str]:
    if columns is not None:
        missing = [column for column in columns if column not in fields]
        if missing:
            raise DataError(f"{name} has columns '{', '.join(fields)}'; there is no '{missing[0]}' among them.")
        return columns
    image = "image" if "image" in fields else "file"
    if image in fields and "text" in fields:
        return image, "text"
    likely = [next((field for field in fields if field.lower() in words), "") for words in (_IMAGE_WORDS, _TEXT_WORDS)]
    usable = ",".join(field for field in fields if field not in _OTHER)
    hint = f"--text {name}:{likely[0]},{likely[1]}" if all(likely) else f"--modalities {shlex.quote(usable)}"
    raise DataError(f"{name} has columns '{', '.join(fields)}'; expected 'image, text'. Rename them, or: {hint}")


def _row(
    name: str,
    line: int,
    record: dict[str, Any],
    modalities: Sequence[Modality],
    kinds: dict[str, Kind],
    unused: Sequence[str],
) -> Row:
    part = text_in(record.get("split"))
    if part is not None and part not in PARTS:
        raise DataError(f"{name} line {line}: split is '{part}'; expected {', '.join(PARTS)}, or nothing.")
    labels = record.get("labels") or ()
    if isinstance(labels, str):
        labels = labels.split(";")
    elif not isinstance(labels, list | tuple):
        raise DataError(f"{name} line {line}: labels must be a list or separated by ';', not {labels!r}.")
    scalars = {column: as_scalar(record.get(column)) for column in unused if not are_numbers(record.get(column))}
    return Row(
        cells={modality.name: _cell(record.get(modality.column), kinds[modality.name]) for modality in modalities},
        labels=tuple(dict.fromkeys(text for label in labels if (text := text_in(label)))),
        id=text_in(record.get("id")),
        part=part,
        line=line,
        extra={column: value for column, value in scalars.items() if value is not None},
    )


def _cell(value: Any, kind: Kind) -> Any:
    """Paths and texts as strings; vectors as written, to be read once it is known which items are kept."""
    if is_picture(value) or (kind == "vector" and isinstance(value, np.ndarray)):
        return value
    if kind == "vector":
        return value if text_in(value) is not None else None
    return path_in(value) if kind == "image" else text_in(value)


def _merge(rows: list[Row], picture: str | None, kinds: dict[str, Kind]) -> list[Row]:
    """One row per picture: rows without id that name the same picture are merged, and their texts joined."""
    merged: dict[object, Row] = {}
    for number, row in enumerate(rows):
        file = row.cells.get(picture) if picture is not None else None
        key = file if row.id is None and isinstance(file, str) else number
        first = merged.get(key)
        if first is None:
            merged[key] = row
            continue
        cells = {}
        for name, kind in kinds.items():
            values = [cell for cell in (first.cells[name], row.cells[name]) if cell is not None]
            cells[name] = "\n".join(values) if kind == "text" and values else values[0] if values else None
        labels = tuple(dict.fromkeys(first.labels + row.labels))
        extra = {**row.extra, **first.extra}
        merged[key] = replace(first, cells=cells, labels=labels, part=first.part or row.part, extra=extra)
    return list(merged.values())
