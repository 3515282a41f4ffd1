"""A folder of photos, with their words in one table or in small text files beside them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePath

from dcmh.data import tables
from dcmh.data.columns import IMAGE_SUFFIXES, Images, Texts
from dcmh.data.dataset import Dataset
from dcmh.errors import DataError
from dcmh.util.text import mended


def load(
    folder: Path | str,
    *,
    text: str | None = None,
    keep_partial: bool = False,
    modalities: str | Sequence[str] | None = None,
) -> Dataset:
    """Photos of a folder and the folders in it, with their words; notes say where the words came from.

    The first that is there gives the words: the file named by `text`; pairs.jsonl, .csv or .tsv, which lists the
    items; captions.csv, .tsv or .jsonl (columns file, text, optional labels); name.txt beside name.jpg.

    Parameters
    ----------
    text
        A table, "FILE" or "FILE:image column,text column", its path counted from the folder.
    modalities
        Which columns of the table are modalities. See `dcmh.data.tables.load`.
    keep_partial
        Keep photos without text, or items that lack any modality; otherwise they are left out, and a note says so.
    """
    folder = Path(folder)
    if text is not None:
        file, columns = _named_table(folder, text)
        return tables.load(file, columns=columns, modalities=modalities, keep_partial=keep_partial)
    for name in tables.PAIRS:
        if (folder / name).is_file():
            return tables.load(folder / name, modalities=modalities, keep_partial=keep_partial)
    for name in tables.CAPTIONS:
        if (folder / name).is_file():
            return _with_captions(folder, folder / name, modalities, keep_partial)
    data = _with_text_files(folder, keep_partial)
    for said in modalities.split(",") if isinstance(modalities, str) else modalities or ():
        if said.partition(":")[0].rstrip("?") not in data.modalities and not said.endswith("?"):
            raise DataError(
                f"{_spelt(folder)} has no table, so no column {said!r}. Put pairs.csv there: image, text, …."
            )
    return data


def image_files(folder: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Pictures in a folder and its folders, relative and sorted; and what was skipped, with reasons.

    Hidden files and folders do not count. A folder that links lead to again is visited once.
    """
    found: list[str] = []
    skipped: list[tuple[str, str]] = []
    seen: set[tuple[int, int]] = set()

    def unreadable(error: OSError) -> None:
        skipped.append((mended(os.path.relpath(error.filename, folder)), "folder may not be read"))

    for place, folders, files in os.walk(folder, followlinks=True, onerror=unreadable):
        status = os.stat(place)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            if name.startswith(".") or not name.lower().endswith(IMAGE_SUFFIXES):
                continue
            relative = PurePath(place, name).relative_to(folder).as_posix()
            if mended(relative) != relative:
                skipped.append((mended(relative), "name is not UTF-8"))
            elif _is_something_else(os.path.join(place, name)):
                skipped.append((relative, "not a file"))
            else:
                found.append(relative)
    return sorted(found), skipped


def _is_something_else(path: str) -> bool:
    """Whether this is there and is no file, such as a pipe, which would keep a reader waiting for ever."""
    return not os.path.isfile(path) and os.path.exists(path)


def _named_table(folder: Path, text: str) -> tuple[Path, tuple[str, str] | None]:
    name, colon, given = text.rpartition(":")
    columns = tuple(part.strip() for part in given.split(","))
    if colon and len(columns) == 2:
        return folder / name, (columns[0], columns[1])
    return folder / text, None


def _with_captions(folder: Path, file: Path, modalities: str | Sequence[str] | None, keep_partial: bool) -> Dataset:
    """Photos of the folder; those the table does not name have no text."""
    images, skipped = image_files(folder)
    if not images:
        raise _no_images(folder)
    table = tables.read(file, modalities=modalities)
    if table.picture is not None:
        named = {os.path.normpath(cell) for row in table.rows if (cell := row.cells[table.picture]) is not None}
        blank = dict.fromkeys(table.kinds)
        others = [image for image in images if os.path.normpath(image) not in named]
        table.rows.extend(tables.Row({**blank, table.picture: image}) for image in others)
    data = tables.from_table(table, keep_partial=keep_partial)
    data.skipped += skipped
    return data


def _with_text_files(folder: Path, keep_partial: bool) -> Dataset:
    images, skipped = image_files(folder)
    if not images:
        raise _no_images(folder)
    texts: list[str | None] = []
    for image in images:
        beside = (folder / image).with_suffix(".txt")
        try:
            texts.append(beside.read_text(encoding="utf-8-sig").strip() or None)
        except FileNotFoundError:
            texts.append(None)
        except (OSError, UnicodeDecodeError) as error:
            reason = "text is not UTF-8" if isinstance(error, UnicodeDecodeError) else "text may not be read"
            skipped.append((beside.relative_to(folder).as_posix(), reason))
            texts.append(None)
    with_text = [row for row, text in enumerate(texts) if text is not None]
    if not with_text and not keep_partial:
        raise DataError(
            f"Found {len(images):,} images but no captions or tags. Put captions.csv (columns: file, text) in "
            f"{_spelt(folder)}; or index them with a model that you have: dcmh index {_spelt(folder)} --model MODEL"
        )
    rows = list(range(len(images))) if keep_partial else with_text
    left_out = f"; {len(images) - len(rows):,} without text left out" if len(rows) < len(images) else ""
    notes = [f"Text from name.txt beside name.jpg for {len(with_text):,} of {len(images):,} images{left_out}."]
    return Dataset(
        {"image": Images([images[row] for row in rows], root=folder), "text": Texts([texts[row] for row in rows])},
        ids=[images[row] for row in rows],
        name=folder.resolve().name,
        notes=notes,
        skipped=skipped,
    )


def _no_images(folder: Path) -> DataError:
    return DataError(
        f"No images in {_spelt(folder)} (looked for jpg, png, webp, gif, bmp, tiff in it and its folders). "
        f"Is it the right folder?"
    )


def _spelt(folder: Path) -> str:
    return f"{folder}/"
