"""A folder of photos, with their texts in a table or in text files beside them; and what else a folder holds."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from dcmh.data import tables
from dcmh.data.columns import HEIC_HINT, HEIC_SUFFIXES, IMAGE_SUFFIXES, Images, Texts, can_read_heic
from dcmh.data.dataset import Dataset
from dcmh.errors import DataError
from dcmh.util.text import folder_words, sanitized

HEIC = "HEIC picture"
NO_IMAGES = "images"  # `which` of the error for a folder with neither pictures nor a table
_KINDS = {  # of files that are not read
    "video": "3gp avi flv m2ts m4v mkv mov mp4 mpeg mpg mts webm wmv",
    "camera raw file": "3fr arw cr2 cr3 dng erf iiq kdc mef mos mrw nef nrw orf pef raf rw2 rwl sr2 srf srw x3f",
    "picture of another format": "ai eps ico j2k jp2 jxl psd svg tga xcf",
    "PDF file": "pdf",
    "audio file": "aac flac m4a mp3 ogg opus wav",
    "document": "doc docx epub htm html md odp ods odt pages ppt pptx rtf xls xlsx",
    "archive": "7z gz rar tar tgz zip",
    "text file": "txt",
    "table": "csv json jsonl tsv",
}
_KIND_OF = {f".{suffix}": kind for kind, suffixes in _KINDS.items() for suffix in suffixes.split()}
_OTHER = "other file"
_EXPECTED = ("text file", "table", _OTHER)  # kinds that no note mentions
# Beside hidden ones. Of Synology, QNAP, Windows, macOS and Linux: thumbnails, recycle bins and snapshots.
_SYSTEM_FOLDERS = {
    *("@eadir", "#recycle", "#snapshot", "@tmp", "@__thumb", "@recycle", "@recently-snapshot"),
    *("$recycle.bin", "recycler", "system volume information", "__macosx", "lost+found"),
}
_SYSTEM_FILES = ("thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r")


@dataclass
class Contents:
    """What a folder and its subfolders hold. All paths are relative to the folder and sorted."""

    folder: Path
    images: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)  # what cannot be read, with reasons
    unread: dict[str, list[str]] = field(default_factory=dict)  # files that are not read, by kind
    left_out_folders: Counter[str] = field(default_factory=Counter)  # hidden folders and those of the system, by name
    left_out_files: Counter[str] = field(default_factory=Counter)

    def notes(self) -> list[str]:
        """Sentences about the files that are not read, texts and tables aside, and about those left out."""
        notes = []
        counts = {kind: files for kind, files in self.unread.items() if kind not in _EXPECTED}
        if counts:
            hint = f" ({HEIC_HINT})" if HEIC in counts else ""
            command = f"dcmh data {shlex.quote(str(self.folder))} --check"
            notes.append(f"Not read: {count_kinds(counts)}{hint}. To list them: {command}")
        if self.left_out_folders or self.left_out_files:
            notes.append(f"Left out: {'; '.join(self.left_out())}.")
        return notes

    def left_out(self) -> list[str]:
        """What is left out, as numbers and names."""
        parts = []
        for what, names in (("folder", self.left_out_folders), ("file", self.left_out_files)):
            if names:
                most = [name if count == 1 else f"{count:,} {name}" for name, count in names.most_common(3)]
                parts.append(
                    f"{_plural(names.total(), f'hidden or system {what}')} "
                    f"({', '.join(most)}{', …' if len(names) > 3 else ''})"
                )
        return parts


def load(
    folder: Path | str,
    *,
    text: str | None = None,
    keep_partial: bool = False,
    modalities: str | Sequence[str] | None = None,
    only_listed: bool = False,
) -> Dataset:
    """Photos of a folder and its subfolders, with their texts; notes say where the texts came from.

    Texts come from the first of these that exists: the file named by `text`; pairs.jsonl, .csv or .tsv; captions.csv, .tsv
    or .jsonl; name.txt beside name.jpg. The tables have the columns image (or file), text, and optionally labels.

    Parameters
    ----------
    text
        A table, "FILE" or "FILE:image column,text column", relative to the folder.
    modalities
        Which columns of the table are modalities. See `dcmh.data.tables.load`.
    keep_partial
        Keep photos without text, also those that the table does not list, and items that lack any modality; otherwise they
        are left out, with a note.
    only_listed
        Leave out photos that the table does not list.
    """
    folder = Path(folder)
    if text is not None:
        file, columns = _named_table(folder, text)
        return _with_table(folder, file, columns, modalities, keep_partial, only_listed)
    for name in (*tables.PAIRS, *tables.CAPTIONS):
        if (folder / name).is_file():
            return _with_table(folder, folder / name, None, modalities, keep_partial, only_listed)
    data = _with_text_files(folder, keep_partial)
    for name in modalities.split(",") if isinstance(modalities, str) else modalities or ():
        if name.partition(":")[0].rstrip("?") not in data.modalities and not name.endswith("?"):
            raise DataError(f"{folder}/ has no table, so no column {name!r}. Put pairs.csv there: image, text, ….")
    return data


def scan(folder: Path) -> Contents:
    """What a folder and its subfolders hold.

    Hidden files and folders, and those of file managers and NAS systems, are left out and counted. A folder that is linked
    several times is visited once.
    """
    contents = Contents(folder)
    visited: set[tuple[int, int]] = set()
    heic = can_read_heic()

    def unreadable(error: OSError) -> None:
        contents.skipped.append((sanitized(os.path.relpath(error.filename, folder)), "permission denied"))

    for parent, folders, files in os.walk(folder, followlinks=True, onerror=unreadable):
        status = os.stat(parent)
        if (status.st_dev, status.st_ino) in visited:
            folders.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        left_out = [name for name in folders if name.startswith(".") or name.lower() in _SYSTEM_FOLDERS]
        contents.left_out_folders.update(map(sanitized, left_out))
        folders[:] = sorted(set(folders).difference(left_out))
        inside = PurePath(parent).relative_to(folder).as_posix()
        prefix = "" if inside == "." else f"{inside}/"
        for name in files:
            if name.startswith(".") or name.lower() in _SYSTEM_FILES:
                contents.left_out_files[sanitized(name)] += 1
                continue
            relative = prefix + name
            if relative in (*tables.PAIRS, *tables.CAPTIONS):
                continue
            kind = _kind(name, heic)
            if kind is not None:
                contents.unread.setdefault(kind, []).append(sanitized(relative))
            elif sanitized(relative) != relative:
                contents.skipped.append((sanitized(relative), "name is not UTF-8"))
            elif _is_special(os.path.join(parent, name)):
                contents.skipped.append((relative, "not a file"))
            else:
                contents.images.append(relative)
    contents.images.sort()
    stems = {os.path.splitext(image)[0] for image in contents.images}
    texts = [file for file in contents.unread.pop("text file", []) if os.path.splitext(file)[0] not in stems]
    if texts:
        contents.unread["text file"] = texts
    contents.unread = {kind: sorted(contents.unread[kind]) for kind in sorted(contents.unread)}
    return contents


def count_kinds(kinds: Mapping[str, Sequence[str]]) -> str:
    """Numbers of files by kind, each with an example: 2 videos (a.mp4, …), 1 PDF file (b.pdf)."""
    return ", ".join(
        f"{_plural(len(files), kind)} ({files[0]}{', …' if len(files) > 1 else ''})" for kind, files in kinds.items()
    )


def _plural(count: int, what: str) -> str:
    words = what if count == 1 else f"pictures{what[7:]}" if what.startswith("picture ") else f"{what}s"
    return f"{count:,} {words}"


def _kind(name: str, heic: bool) -> str | None:
    """The kind of a file that is not read; None for a picture."""
    suffix = os.path.splitext(name)[1].lower()
    if suffix in IMAGE_SUFFIXES:
        return HEIC if suffix in HEIC_SUFFIXES and not heic else None
    return _KIND_OF.get(suffix, _OTHER)


def _is_special(path: str) -> bool:
    """Whether this exists but is not a file: reading a named pipe, for example, would block forever."""
    return not os.path.isfile(path) and os.path.exists(path)


def _named_table(folder: Path, text: str) -> tuple[Path, tuple[str, str] | None]:
    name, colon, words = text.rpartition(":")
    columns = tuple(column.strip() for column in words.split(","))
    if colon and len(columns) == 2:
        return folder / name, (columns[0], columns[1])
    return folder / text, None


def _with_table(
    folder: Path,
    file: Path,
    columns: tuple[str, str] | None,
    modalities: str | Sequence[str] | None,
    keep_partial: bool,
    only_listed: bool,
) -> Dataset:
    """The items of a table; and the photos beside it that it does not list, which have no text."""
    table = tables.read(file, columns=columns, modalities=modalities)
    if table.picture is None or only_listed or not _same_folder(file.parent, folder):
        return tables.from_table(table, keep_partial=keep_partial)
    contents = scan(folder)
    pictures = [name for name, kind in table.kinds.items() if kind == "image"]
    cells = (row.cells[name] for row in table.rows for name in pictures)
    listed = {os.path.normpath(os.path.join(folder, cell)) for cell in cells if cell is not None}
    ids = {row.id for row in table.rows}
    unlisted = []
    for image in contents.images:
        if os.path.normpath(os.path.join(folder, image)) in listed:
            continue
        if image in ids:
            contents.skipped.append((image, f"{file.name} has another item with this id"))
        else:
            unlisted.append(image)
    data = tables.from_table(table, keep_partial=keep_partial, unlisted=unlisted)
    data.skipped += contents.skipped
    notes = contents.notes()
    if unlisted:
        state = "kept without text (--only-listed leaves them out)" if keep_partial else "left out"
        names = f"{', '.join(unlisted[:3])}{', …' if len(unlisted) > 3 else ''}"
        notes.insert(0, f"Not listed in {file.name}: {_plural(len(unlisted), 'picture')} ({names}), {state}.")
    data.notes += tuple(notes)
    return data


def _same_folder(a: Path, b: Path) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:
        return False


def _with_text_files(folder: Path, keep_partial: bool) -> Dataset:
    contents = scan(folder)
    images, skipped = contents.images, contents.skipped
    if not images:
        raise _no_images(folder, contents)
    texts: list[str | None] = []
    for image in images:
        file = (folder / image).with_suffix(".txt")
        try:
            texts.append(file.read_text(encoding="utf-8-sig").strip() or None)
        except FileNotFoundError:
            texts.append(None)
        except (OSError, UnicodeDecodeError) as error:
            reason = "text is not UTF-8" if isinstance(error, UnicodeDecodeError) else "text: permission denied"
            skipped.append((file.relative_to(folder).as_posix(), reason))
            texts.append(None)
    with_text = [row for row, text in enumerate(texts) if text is not None]
    if not with_text and not keep_partial:
        raise DataError(
            f"Found {_plural(len(images), 'picture')} in {folder}/ but no texts to learn from.",
            which=folder,
            hint="Put pairs.csv there (columns: image, text), or name.txt beside name.jpg. To search without training: "
            f"dcmh index {shlex.quote(str(folder))}",
        )
    rows = list(range(len(images))) if keep_partial else with_text
    left_out = f"; {len(images) - len(rows):,} without text left out" if len(rows) < len(images) else ""
    origin = f"Text from name.txt beside name.jpg for {len(with_text):,} of {len(images):,} images{left_out}."
    no_text = "No captions: the names of folders serve as words." if any(map(folder_words, images)) else "No captions."
    return Dataset(
        {"image": Images([images[row] for row in rows], root=folder), "text": Texts([texts[row] for row in rows])},
        ids=[images[row] for row in rows],
        name=folder.resolve().name,
        notes=[origin if with_text else no_text, *contents.notes()],
        skipped=skipped,
    )


def _no_images(folder: Path, contents: Contents) -> DataError:
    if (".", "permission denied") in contents.skipped:
        return DataError(f"Permission denied: {folder}/.", which=folder, hint="Check the permissions of the folder.")
    for file, kind, command in (
        ("index.json", "a search index", f"dcmh search {shlex.quote(str(folder))} 'some words'"),
        ("model.json", "a model", f"dcmh index PHOTOS --model {shlex.quote(str(folder))}"),
    ):
        if (folder / file).is_file():
            return DataError(
                f"{folder}/ is {kind}, not a folder of photos.", which=folder, hint=f"To use it: {command}"
            )
    looked = "looked for jpg, png, webp, gif, bmp, tiff, avif, heic, also in subfolders"
    holds = [count_kinds(contents.unread)] if contents.unread else []
    holds += [f"{name}: {reason}" for name, reason in contents.skipped[:3]]
    holds += contents.left_out()
    hint = f"{HEIC_HINT[0].upper()}{HEIC_HINT[1:]}" if HEIC in contents.unread else "Is it the right folder?"
    listing = f" It holds: {'; '.join(holds)}." if holds else " It is empty."
    return DataError(f"No images in {folder}/ ({looked}).{listing}", which=NO_IMAGES, hint=hint)
