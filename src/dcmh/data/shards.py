"""Tables in files, called shards where there are several: Parquet, Arrow, and WebDataset, which are uncompressed .tar files."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcmh.data.columns import IMAGE_SUFFIXES, Stored
from dcmh.data.frames import ARROW_SUFFIXES, Frame, Record, open_arrow_file
from dcmh.data.remote import RemoteFile
from dcmh.errors import DataError
from dcmh.util.formats import parse_json

SHARDS = (".tar", ".parquet")  # a folder of these, and of no pictures, is one table
SUFFIXES = (*ARROW_SUFFIXES, ".tar")


def open_files(files: Sequence[Path | RemoteFile]) -> Frame:
    """The rows of Parquet or Arrow files, or of WebDataset shards, one file after another."""
    frames = [_open_tar(file) if file.suffix.lower() == ".tar" else open_arrow_file(file) for file in files]
    fields = list(dict.fromkeys(field for frame in frames for field in frame.fields))

    def records(modalities: set[str]) -> Iterator[Record]:
        for frame in frames:
            yield from frame.records(modalities)

    return Frame(files[0].name, fields, records)


@dataclass(frozen=True)
class _Tar:
    """The pictures of an uncompressed .tar, read by their position in it."""

    file: Path | RemoteFile

    def read(self, key: tuple[int, int]) -> bytes:
        with self.file.open("rb") as file:
            file.seek(key[0])
            return file.read(key[1])


def _open_tar(file: Path | RemoteFile) -> Frame:
    """One sample per row: files of the same folder and name, such as 00017.jpg, 00017.txt and 00017.json."""

    def records(modalities: set[str]) -> Iterator[Record]:
        store = _Tar(file)
        name, sample = "", Record()
        try:
            with file.open("rb") as opened, tarfile.open(fileobj=opened, mode="r:") as tar:
                for member in tar:
                    folder, slash, base = member.name.removeprefix("./").rpartition("/")
                    key, _, suffix = base.partition(".")
                    if not member.isfile() or not key:
                        continue
                    key = f"{folder}{slash}{key}"
                    if key != name and sample:
                        yield sample
                    if key != name:
                        name, sample = key, {"id": f"{file.stem}/{key}", "image": None, "text": None}
                    if f".{suffix.lower()}".endswith(IMAGE_SUFFIXES):
                        if sample["image"] is None or "." not in suffix:  # 0.jpg is the picture, not 0.seg.png
                            sample["image"] = Stored(store, (member.offset_data, member.size))
                    elif suffix in ("txt", "json", "cls"):
                        content = tar.extractfile(member)
                        _add_file(sample, suffix, (content.read() if content else b"").decode(errors="replace"), file)
                    tar.members.clear()  # type: ignore[attr-defined] # tarfile keeps all of them otherwise
        except (tarfile.TarError, OSError, EOFError) as error:
            raise DataError(
                f"{file} cannot be read as an uncompressed .tar: {error}.",
                which=file,
                hint="Get it again, or decompress it.",
            ) from error
        if sample:
            yield sample

    first = next(records(set()), None)
    if first is None:
        raise DataError(f"{file} holds no samples.", which=file, hint="Give files such as 0.jpg, 0.txt and 0.json.")
    return Frame(file.name, list(first), records)


def _add_file(sample: Record, suffix: str, content: str, file: Path | RemoteFile) -> None:
    """Add a file to its sample: the text, the class, or further columns."""
    if suffix == "txt":
        sample["text"] = content
    elif suffix == "cls":
        sample["labels"] = content.strip()
    else:
        try:
            record = parse_json(content)
        except ValueError as error:
            raise DataError(f"{file}: the JSON of {sample['id']} cannot be read ({error}).", which=file) from error
        cells = record if isinstance(record, dict) else {}
        sample["text"] = sample["text"] or cells.get("caption")
        sample |= {
            key: cell
            for key, cell in cells.items()
            if key not in ("id", "image", "text") and not isinstance(cell, dict)
        }
