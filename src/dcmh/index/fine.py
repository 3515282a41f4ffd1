"""FineIndex: int8 vectors under ids, in memory or memory-mapped, and their inner products with a query.

Like a `Table` it is immutable to its readers: adding and removing make a new one, which shares the arrays if possible.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ModelError
from dcmh.index import storage
from dcmh.index.scan import engines
from dcmh.util import checksums
from dcmh.util.arrays import rows_of
from dcmh.util.atomic import whole_file, write_text
from dcmh.util.formats import read_npy, readable

HEADER, IDS, VECTORS, SUMS = "fine.json", "ids.npy", "fine.npy", "fine.sums"
BLOCK = 4096  # rows whose checksums are computed at a time
PREFETCHED = 2 << 30  # bytes of vectors, from which on many of them are likely not in memory

Ids = NDArray[np.int64]
Vectors = NDArray[np.int8]


class StoredFine:
    """The files of saved fine vectors and their checksums. Each vector has one, which is checked when it is used."""

    def __init__(self, folder: Path, header: dict[str, Any], ids: Ids, vectors: Vectors) -> None:
        sums = header.get("crc32", {})
        self.ids = storage.stored(folder / os.path.basename(header["ids"]), ids, sums.get("ids"))
        self.vectors = storage.stored(folder / os.path.basename(header["vectors"]), vectors, sums.get("vectors"))
        self._sums = _mapped(folder / os.path.basename(header["sums"])) if "sums" in header and len(ids) else None
        if self._sums is not None and self._sums.shape != ids.shape:
            raise checksums.mismatch(folder / header["sums"])
        self._ids_checked = self._whole_checked = False

    def check_ids(self) -> None:
        """Check the ids, once."""
        if not self._ids_checked:
            self.ids.check()
            self._ids_checked = True

    def read(self, rows: NDArray[np.intp]) -> Vectors:
        """Some vectors, checked."""
        sums = None if self._whole_checked else self._sums
        for array in (self.vectors.array, sums):
            if array is not None and self.vectors.array.nbytes >= PREFETCHED:
                _prefetch(array, rows)
        vectors = self.vectors.array[rows]
        if sums is not None and not np.array_equal(row_sums(vectors), sums[rows]):
            raise checksums.mismatch(self.vectors.path)
        return vectors

    def check(self) -> None:
        """Check everything, once."""
        if not self._whole_checked:
            self.check_ids()
            self.vectors.check()
            self._whole_checked = True


@dataclass(frozen=True, eq=False)
class FineIndex:
    """Rows by ascending id; the arrays may have room for more."""

    ids_room: Ids
    vectors_room: Vectors
    count: int
    removed: NDArray[np.bool_] | None = None  # (count,)
    files: StoredFine | None = None  # that it was loaded from

    @classmethod
    def of(cls, ids: Ids, vectors: Vectors) -> FineIndex:
        """An index of ascending ids and their vectors (n, dimensions)."""
        return cls(ids, vectors, len(ids))

    def __len__(self) -> int:
        return self.count if self.removed is None else int(self.count - np.count_nonzero(self.removed))

    @property
    def dimensions(self) -> int:
        """The length of the vectors."""
        return int(self.vectors_room.shape[1])

    def live(self) -> tuple[Ids, Vectors]:
        """Ids and vectors of the items that are not removed."""
        self.check()
        ids, vectors = self.ids_room[: self.count], self.vectors_room[: self.count]
        return (ids, vectors) if self.removed is None else (ids[~self.removed], vectors[~self.removed])

    def scores(self, query: NDArray[np.float32]) -> tuple[Ids, NDArray[np.float32]]:
        """All ids, and the inner product of each vector with the query."""
        self.check()
        ids, vectors = self.ids_room[: self.count], self.vectors_room[: self.count]
        products = _products(vectors, query)
        return (ids, products) if self.removed is None else (ids[~self.removed], products[~self.removed])

    def scores_of(self, query: NDArray[np.float32], wanted: Ids) -> NDArray[np.float32]:
        """The inner products of these items with the query, NaN for an item that is not in the index."""
        rows, known = self._rows(wanted)
        products = np.full(len(wanted), np.nan, np.float32)
        products[known] = _products(self._read(rows[known]), query)
        return products

    def vector(self, item: int) -> Vectors | None:
        """The vector of one item; None if it is not in the index."""
        rows, known = self._rows(np.array([item], np.int64))
        return self._read(rows)[0] if known[0] else None

    def check(self) -> None:
        """Compare the files that this index was loaded from with their checksums: DamagedError if one differs.

        Searches check what they read.
        """
        if self.files is not None:
            self.files.check()

    def with_items(self, ids: Ids, vectors: Vectors) -> FineIndex:
        """This index with these items, which replace those of the same ids. Only the newest index may grow."""
        kept = self.without(ids)
        if kept is self and (not self.count or ids[0] > self.ids_room[self.count - 1]):
            return self._appended(ids, vectors)
        old_ids, old_vectors = kept.live()
        order = np.argsort(joined := np.concatenate([old_ids, ids]), kind="stable")
        return FineIndex.of(joined[order], np.concatenate([old_vectors, vectors])[order])

    def _appended(self, ids: Ids, vectors: Vectors) -> FineIndex:
        self.check()
        count = self.count + len(ids)
        ids_room, vectors_room = self.ids_room, self.vectors_room
        if count > len(ids_room) or not vectors_room.flags.writeable:
            room = max(count, self.count + self.count // 2)
            ids_room, vectors_room = np.empty(room, np.int64), np.empty((room, vectors.shape[1]), np.int8)
            ids_room[: self.count] = self.ids_room[: self.count]
            vectors_room[: self.count] = self.vectors_room[: self.count].reshape(self.count, vectors.shape[1])
        ids_room[self.count : count], vectors_room[self.count : count] = ids, vectors
        removed = None if self.removed is None else np.append(self.removed, np.zeros(len(ids), bool))
        return FineIndex(ids_room, vectors_room, count, removed)

    def without(self, ids: Ids) -> FineIndex:
        """This index without these items; unknown ids are ignored."""
        rows, known = self._rows(np.asarray(ids, np.int64))
        if not known.any():
            return self
        removed = np.zeros(self.count, bool) if self.removed is None else self.removed.copy()
        removed[rows[known]] = True
        return FineIndex(self.ids_room, self.vectors_room, self.count, removed, self.files)

    def _rows(self, wanted: Ids) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """The row of each id, and whether the id is in the index."""
        if self.files is not None:
            self.files.check_ids()
        rows, known = rows_of(self.ids_room[: self.count], wanted)
        if self.removed is not None:
            known[known] = ~self.removed[rows[known]]
        return rows, known

    def _read(self, rows: NDArray[np.intp]) -> Vectors:
        """The vectors of some rows."""
        return np.asarray(self.vectors_room[rows]) if self.files is None else self.files.read(rows)

    # -- in a folder ------------------------------------------------------------------------------------------------

    def save(self, folder: Path, generation: int) -> None:
        """Write it, to be memory-mapped. The header, written last, names the generation of the catalogue that it is of."""
        ids, vectors = self.live()
        names = {"ids": f"{generation}-{IDS}", "vectors": f"{generation}-{VECTORS}", "sums": f"{generation}-{SUMS}"}
        for name, array in (("ids", ids), ("vectors", vectors)):
            with whole_file(folder / names[name]) as draft, open(draft, "wb") as file:
                np.save(file, np.ascontiguousarray(array), allow_pickle=False)
        with whole_file(folder / names["sums"]) as draft:
            blocks = (row_sums(vectors[start : start + BLOCK]) for start in range(0, len(vectors), BLOCK))
            draft.write_bytes(b"".join(block.tobytes() for block in blocks))
        header = {"format": 1, "generation": generation, "count": len(ids), "dimensions": self.dimensions, **names}
        header["crc32"] = {name: checksums.crc32(folder / file) for name, file in names.items()}
        write_text(folder / HEADER, checksums.sealed_json(header))
        for path in folder.iterdir():
            if path.name.endswith((f"-{IDS}", f"-{VECTORS}", f"-{SUMS}")) and path.name not in names.values():
                path.unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path, generation: int) -> FineIndex:
        """Memory-map what `save` wrote for this generation."""
        what = f"The fine vectors in {folder} cannot be used ({{reason}})."
        with readable(folder / HEADER, ModelError, what=what, hint=""):
            header = checksums.read_sealed_json(folder / HEADER)
            count, width = int(header["count"]), int(header["dimensions"])
            if header["format"] != 1 or header["generation"] != generation:
                raise ValueError("it is out of date")
            ids = read_npy(folder / os.path.basename(header["ids"]), mmap="r")
            vectors = read_npy(folder / os.path.basename(header["vectors"]), mmap="r")
            if (
                ids.dtype != np.int64
                or ids.shape != (count,)
                or vectors.dtype != np.int8
                or vectors.shape != (count, width)
            ):
                raise ValueError("the shapes of its arrays do not match its header")
            files = StoredFine(folder, header, np.asarray(ids), np.asarray(vectors))
        return cls(files.ids.array, files.vectors.array, count, None, files if "crc32" in header else None)


def row_sums(vectors: Vectors) -> NDArray[np.uint64]:
    """A checksum of each vector, which every change within 8 bytes changes: a sum of its words, times odd numbers."""
    missing = -vectors.shape[1] % 8
    padded = np.ascontiguousarray(np.pad(vectors, ((0, 0), (0, missing))) if missing else vectors)
    words = padded.view("<u8").reshape(len(vectors), padded.shape[1] // 8)
    odd = np.arange(1, 2 * words.shape[1], 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray((words * odd).sum(axis=1, dtype=np.uint64), "<u8")


def _mapped(path: Path) -> NDArray[np.uint64]:
    """A file of checksums, which stays readable after another process has replaced it."""
    with open(path, "rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), "<u8")


def _prefetch(array: NDArray[Any], rows: NDArray[np.intp]) -> None:
    """Let the system fetch rows of a mapped array all at once, instead of one after another as they are used."""
    mapped = array.base.obj if isinstance(array.base, memoryview) else getattr(array.base, "_mmap", array.base)
    if not isinstance(mapped, mmap.mmap) or not hasattr(mapped, "madvise"):
        return
    offset = len(mapped) - array.nbytes  # of a .npy file: its header
    width = array.nbytes // max(1, len(array))
    starts = offset + np.asarray(rows, np.int64) * width
    firsts = starts // mmap.PAGESIZE * mmap.PAGESIZE
    for first, end in zip(firsts.tolist(), (starts + width).tolist(), strict=True):
        mapped.madvise(mmap.MADV_WILLNEED, first, end - first)


def _products(vectors: Vectors, query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Inner products, by the kernels that Hamming distances take; NumPy multiplies 16 numbers while it compares a word."""
    out = np.empty(len(vectors), np.float32)
    engines.choose(vectors.size // 16).products(vectors, np.ascontiguousarray(query, np.float32), out)
    return out
