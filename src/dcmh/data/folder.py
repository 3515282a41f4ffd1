"""A folder of photos, with their texts in a table or in text files beside them."""

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
    """Photos of a folder and its subfolders, with their texts; notes say where the texts came from.

    Texts come from the first of these that exists: the file named by `text`; pairs.jsonl, .csv or .tsv, which lists the
    items; captions.csv, .tsv or .jsonl (columns file, text, optional labels); name.txt beside name.jpg.

    Parameters
    ----------
    text
        A table, "FILE" or "FILE:image column,text column", relative to the folder.
    modalities
        Which columns of the table are modalities. See `dcmh.data.tables.load`.
    keep_partial
        Keep photos without text, or items that lack any modality; otherwise they are left out, with a note.
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
    for name in modalities.split(",") if isinstance(modalities, str) else modalities or ():
        if name.partition(":")[0].rstrip("?") not in data.modalities and not name.endswith("?"):
            raise DataError(f"{folder}/ has no table, so no column {name!r}. Put pairs.csv there: image, text, ….")
    return data


def image_files(folder: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Relative paths of the pictures in a folder and its subfolders, sorted; and what was skipped, with reasons.

    Hidden files and folders are ignored. A folder that is linked several times is visited once.
    """
    images: list[str] = []
    skipped: list[tuple[str, str]] = []
    seen: set[tuple[int, int]] = set()

    def unreadable(error: OSError) -> None:
        skipped.append((mended(os.path.relpath(error.filename, folder)), "permission denied"))

    for parent, folders, files in os.walk(folder, followlinks=True, onerror=unreadable):
        status = os.stat(parent)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            if name.startswith(".") or not name.lower().endswith(IMAGE_SUFFIXES):
                continue
            relative = PurePath(parent, name).relative_to(folder).as_posix()
            if mended(relative) != relative:
                skipped.append((mended(relative), "name is not UTF-8"))
            elif _is_special(os.path.join(parent, name)):
                skipped.append((relative, "not a file"))
            else:
                images.append(relative)
    return sorted(images), skipped


def _is_special(path: str) -> bool:
    """Whether this exists but is not a file: a named pipe, for example, would block a reader for ever."""
    return not os.path.isfile(path) and os.path.exists(path)


def _named_table(folder: Path, text: str) -> tuple[Path, tuple[str, str] | None]:
    name, colon, given = text.rpartition(":")
    columns = tuple(column.strip() for column in given.split(","))
    if colon and len(columns) == 2:
        return folder / name, (columns[0], columns[1])
    return folder / text, None


def _with_captions(folder: Path, file: Path, modalities: str | Sequence[str] | None, keep_partial: bool) -> Dataset:
    """Photos of the folder; those that are not in the table have no text."""
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
            reason = "text is not UTF-8" if isinstance(error, UnicodeDecodeError) else "text: permission denied"
            skipped.append((beside.relative_to(folder).as_posix(), reason))
            texts.append(None)
    with_text = [row for row, text in enumerate(texts) if text is not None]
    if not with_text and not keep_partial:
        raise DataError(
            f"Found {len(images):,} images but no captions or tags. Put captions.csv (columns: file, text) in "
            f"{folder}/; or index them with a model that you have: dcmh index {folder}/ --model MODEL"
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
        f"No images in {folder}/ (looked for jpg, png, webp, gif, bmp, tiff, also in subfolders). "
        f"Is it the right folder?"
    )
