"""An index as a folder: two .npy files, and hamming.json, which names them.

Saving writes new files under new names and then replaces hamming.json atomically. If it is killed before that, the older
index remains; processes that have the older files mapped keep them. Of two concurrent saves, the later one wins.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ModelError
from dcmh.index.table import ALL_LIVE, Table
from dcmh.util.formats import check_format, read_json, read_npy, readable

FORMAT = 1
KIND = "dcmh Hamming index"
HEADER = "hamming.json"
ABANDONED = 24 * 3600  # seconds after which files that no header names are assumed to be left by a killed save
_OURS = re.compile(r"(codes|ids)-[0-9a-f]{16}\.npy|hamming-[0-9a-f]{16}\.json")


def save(table: Table, bits: int, folder: str | Path) -> None:
    """Write a table, without its removed rows, to a folder, which is created if needed."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    table = table.compact()
    token = secrets.token_hex(8)
    header: dict[str, Any] = {"kind": KIND, "format": FORMAT, "bits": bits, "count": table.count}
    for name, array in (("codes", table.words), ("ids", table.ids)):
        header[name] = f"{name}-{token}.npy"
        with open(folder / header[name], "wb") as file:
            np.save(file, array, allow_pickle=False)
            _settle(file)
    fresh = folder / f"hamming-{token}.json"
    with open(fresh, "w", encoding="utf-8") as file:
        json.dump(header, file, indent=1)
        _settle(file)
    before = _named(folder)
    os.replace(fresh, folder / HEADER)
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


def load(folder: str | Path, *, mmap: bool) -> tuple[Table, int]:
    """The table and the number of bits of a saved index."""
    folder = Path(folder)
    header = _header(folder)
    while True:
        try:
            return _table(folder, header, mmap), header["bits"]
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
        header = read_json(folder / HEADER)
    if not isinstance(header, dict) or header.get("kind") != KIND:
        raise ModelError(f"{folder / HEADER} does not describe a Hamming index. Give the folder of a saved index.")
    check_format(header.get("format"), FORMAT, f"The index {folder}", ModelError)
    sizes = (header.get("bits"), header.get("count"))
    names = (header.get("codes"), header.get("ids"))
    if not all(type(n) is int and n >= 0 for n in sizes) or not all(
        isinstance(n, str) and _OURS.fullmatch(n) for n in names
    ):
        raise ModelError(f"The index {folder} is damaged: {HEADER} lacks an entry. Build it again.")
    return header


def _table(folder: Path, header: dict[str, Any], mmap: bool) -> Table:
    count, width = header["count"], -(-header["bits"] // 64)
    words = _array(folder / header["codes"], (count, width), np.dtype(np.uint64), mmap)
    ids = _array(folder / header["ids"], (count,), np.dtype(np.int64), mmap)
    return Table(words, ids, count, ALL_LIVE, count)


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
