"""FineIndex: int8 vectors under ids, in memory or memory-mapped, and their inner products with a query.

Like a `Table` it is immutable to its readers: adding and removing make a new one, which shares the arrays if possible.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ModelError
from dcmh.util.atomic import whole_file, write_text
from dcmh.util.formats import read_npy, read_object, readable

HEADER, IDS, VECTORS = "fine.json", "ids.npy", "fine.npy"
BLOCK = 4096  # rows that are converted to float32 at a time, so that they stay in a core's cache

Ids = NDArray[np.int64]
Vectors = NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class FineIndex:
    """Rows by ascending id; the arrays may have room for more."""

    ids_room: Ids
    vectors_room: Vectors
    count: int
    removed: NDArray[np.bool_] | None = None  # (count,)

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
        ids, vectors = self.ids_room[: self.count], self.vectors_room[: self.count]
        return (ids, vectors) if self.removed is None else (ids[~self.removed], vectors[~self.removed])

    def scores(self, query: NDArray[np.float32]) -> tuple[Ids, NDArray[np.float32]]:
        """All ids, and the inner product of each vector with the query."""
        ids, vectors = self.ids_room[: self.count], self.vectors_room[: self.count]
        products = np.empty(self.count, np.float32)
        for start in range(0, self.count, BLOCK):
            products[start : start + BLOCK] = _products(vectors[start : start + BLOCK], query)
        return (ids, products) if self.removed is None else (ids[~self.removed], products[~self.removed])

    def scores_of(self, query: NDArray[np.float32], wanted: Ids) -> NDArray[np.float32]:
        """The inner products of these items with the query, NaN for an item that is not in the index."""
        rows, known = self._rows(wanted)
        products = np.full(len(wanted), np.nan, np.float32)
        products[known] = _products(self.vectors_room[rows[known]], query)
        return products

    def vector(self, item: int) -> Vectors | None:
        """The vector of one item; None if it is not in the index."""
        rows, known = self._rows(np.array([item], np.int64))
        return np.asarray(self.vectors_room[rows[0]]) if known[0] else None

    def with_items(self, ids: Ids, vectors: Vectors) -> FineIndex:
        """This index with these items, which replace those of the same ids. Only the newest index may grow."""
        kept = self.without(ids)
        if kept is self and (not self.count or ids[0] > self.ids_room[self.count - 1]):
            return self._appended(ids, vectors)
        old_ids, old_vectors = kept.live()
        order = np.argsort(joined := np.concatenate([old_ids, ids]), kind="stable")
        return FineIndex.of(joined[order], np.concatenate([old_vectors, vectors])[order])

    def _appended(self, ids: Ids, vectors: Vectors) -> FineIndex:
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
        return FineIndex(self.ids_room, self.vectors_room, self.count, removed)

    def _rows(self, wanted: Ids) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """The row of each id, and whether the id is in the index."""
        ids = self.ids_room[: self.count]
        rows = np.searchsorted(ids, wanted)
        known = rows < self.count
        known[known] = ids[rows[known]] == wanted[known]
        if self.removed is not None:
            known[known] = ~self.removed[rows[known]]
        return rows, known

    # -- in a folder ------------------------------------------------------------------------------------------------

    def save(self, folder: Path, generation: int) -> None:
        """Write it, to be memory-mapped. The header, written last, names the generation of the catalogue that it is of."""
        ids, vectors = self.live()
        names = {"ids": f"{generation}-{IDS}", "vectors": f"{generation}-{VECTORS}"}
        for name, array in (("ids", ids), ("vectors", vectors)):
            with whole_file(folder / names[name]) as draft, open(draft, "wb") as file:
                np.save(file, np.ascontiguousarray(array), allow_pickle=False)
        header = {"format": 1, "generation": generation, "count": len(ids), "dimensions": self.dimensions, **names}
        write_text(folder / HEADER, json.dumps(header) + "\n")
        for path in folder.iterdir():
            if path.name.endswith((f"-{IDS}", f"-{VECTORS}")) and path.name not in names.values():
                path.unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path, generation: int) -> FineIndex:
        """Memory-map what `save` wrote for this generation."""
        what = f"The fine vectors in {folder} cannot be used ({{reason}})."
        with readable(folder / HEADER, ModelError, what=what, hint=""):
            header = read_object(folder / HEADER)
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
        return cls.of(ids, vectors)


def _products(vectors: Vectors, query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Inner products that do not depend on the position of a row, unlike those of BLAS, in the last digit."""
    return np.asarray(np.einsum("ij,j->i", vectors.astype(np.float32), query), np.float32)
