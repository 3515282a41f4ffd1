"""An index as a folder: two .npy files, and hamming.json, which names them.

Saving writes new files under new names and then replaces hamming.json atomically. If it is killed before that, the older
index remains; processes that have the older files mapped keep them. Of two concurrent saves, the later one wins.
hamming.json contains its own checksum and those of the arrays, which `Stored.check` verifies.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ModelError
from dcmh.index.table import ALL_LIVE, Table
from dcmh.util import checksums
from dcmh.util.atomic import make_folder, storage_errors, sync_folder
from dcmh.util.formats import check_format, parse_json, read_npy, readable

FORMAT = 1
KIND = "dcmh Hamming index"
HEADER = "hamming.json"
ABANDONED = 24 * 3600  # seconds after which files that no header names are assumed to be left by a killed save
NPY_ERRORS = (ValueError, EOFError, SyntaxError, TokenError, OverflowError, MemoryError)  # np.load, of a damaged file
_OURS = re.compile(r"(codes|ids)-[0-9a-f]{16}\.npy|hamming-[0-9a-f]{16}\.json")


@dataclass(frozen=True, eq=False)
class Stored:
    """A file that an array was loaded from, and the CRC-32 that it should have; None: the file has none."""

    path: Path
    array: NDArray[Any]
    header: bytes  # what is before the array in the file
    crc32: int | None

    def check(self) -> None:
        """DamagedError if the loaded file does not match its checksum."""
        if self.crc32 is not None and zlib.crc32(self.array.data, zlib.crc32(self.header)) != self.crc32:
            raise checksums.mismatch(self.path)


def save(table: Table, bits: int, folder: str | Path) -> None:
    """Write a table, without its removed rows, to a folder, which is created if needed."""
    with storage_errors(folder):
        _save(table, bits, Path(folder))


def _save(table: Table, bits: int, folder: Path) -> None:
    make_folder(folder)
    table = table.compact()
    token = secrets.token_hex(8)
    header: dict[str, Any] = {"kind": KIND, "format": FORMAT, "bits": bits, "count": table.count}
    for name, array in (("codes", table.words), ("ids", table.ids)):
        header[name] = f"{name}-{token}.npy"
        with open(folder / header[name], "wb") as file:
            np.save(file, array, allow_pickle=False)
            _settle(file)
    header["crc32"] = {name: checksums.crc32(folder / header[name]) for name in ("codes", "ids")}
    fresh = folder / f"hamming-{token}.json"
    with open(fresh, "w", encoding="utf-8") as file:
        file.write(checksums.sealed_json(header, indent=1))
        _settle(file)
    before = _named(folder)
    os.replace(fresh, folder / HEADER)
    sync_folder(folder)  # before the files of the older index are removed
    _tidy(folder, before, {header["codes"], header["ids"]})


def _named(folder: Path) -> set[str]:
    """The files of the index in the folder."""
    try:
        header = _header(folder)
    except ModelError:
        return set()
    return {header["codes"], header["ids"]}


def _tidy(folder: Path, before: set[str], now: set[str]) -> None:
    """Remove the files of the previous index and those left by killed saves.

    Other files may belong to a save in progress.
    """
    for path in folder.iterdir():
        if not _OURS.fullmatch(path.name) or path.name in now:
            continue
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            if path.name in before or time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()


def _settle(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def load(folder: str | Path, *, mmap: bool) -> tuple[Table, int, list[Stored]]:
    """The table and the number of bits of a saved index, and its files, not checked yet."""
    folder = Path(folder)
    header = _header(folder)
    while True:
        try:
            table, files = _table(folder, header, mmap)
            return table, header["bits"], files
        except FileNotFoundError as error:
            missing, read, header = Path(error.filename).name, header, _header(folder)
            if header == read:  # otherwise it was saved again in between
                raise ModelError(
                    f"The index {folder} is damaged: {missing} is missing. Build it again, or restore the folder."
                ) from None


def _header(folder: Path) -> dict[str, Any]:
    if not (folder / HEADER).is_file():
        raise ModelError(f"No index in {folder}: there is no {HEADER}. Save one there with HammingIndex.save.")
    what = f"The index {folder} is damaged: {HEADER} is not JSON ({{reason}})."
    with readable(folder / HEADER, ModelError, what=what, hint="Build it again."):
        data = (folder / HEADER).read_bytes()
        header = parse_json(data)
    if not isinstance(header, dict) or header.get("kind") != KIND:
        raise ModelError(f"{folder / HEADER} does not describe a Hamming index. Give the folder of a saved index.")
    check_format(header.get("format"), FORMAT, f"The index {folder}", ModelError)
    sizes = (header.get("bits"), header.get("count"))
    names = (header.get("codes"), header.get("ids"))
    if not all(type(n) is int and n >= 0 for n in sizes) or not all(
        isinstance(n, str) and _OURS.fullmatch(n) for n in names
    ):
        raise ModelError(f"The index {folder} is damaged: {HEADER} lacks an entry. Build it again.")
    checksums.check_sealed(data, folder / HEADER)
    return header


def _table(folder: Path, header: dict[str, Any], mmap: bool) -> tuple[Table, list[Stored]]:
    count, width = header["count"], -(-header["bits"] // 64)
    words = _array(folder / header["codes"], (count, width), np.dtype(np.uint64), mmap)
    ids = _array(folder / header["ids"], (count,), np.dtype(np.int64), mmap)
    sums = header.get("crc32", {})
    files = [stored(folder / header[name], array, sums.get(name)) for name, array in (("codes", words), ("ids", ids))]
    return Table(words, ids, count, ALL_LIVE, count), files


def stored(path: Path, array: NDArray[Any], crc32: int | None) -> Stored:
    """The .npy file that an array was loaded from. A mapped file may have been replaced by another since."""
    if isinstance(array.base, np.memmap):
        return Stored(path, array, array.base._mmap[: array.base.offset], crc32)  # type: ignore[attr-defined]
    with open(path, "rb") as file:
        header = file.read(max(0, os.fstat(file.fileno()).st_size - array.nbytes))
    return Stored(path, array, header, crc32)


def _array(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], mmap: bool) -> NDArray[Any]:
    try:
        # Mode c (copy-on-write): nothing writes, but the kernels are compiled for writable arrays only.
        array = read_npy(path, mmap="c" if mmap else None)
    except ValueError as error:
        raise ModelError(
            f"The index {path.parent} is damaged: {path.name} cannot be read ({error}). Build it again."
        ) from None
    if array.shape != shape or array.dtype != dtype:
        raise ModelError(
            f"The index {path.parent} is damaged: {path.name} holds {array.dtype} of shape {array.shape}, "
            f"not {dtype} of shape {shape}. Build it again."
        )
    return array
