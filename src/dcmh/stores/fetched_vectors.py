"""The fine vectors of a collection on a server, as searches on this machine use them."""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ModelError
from dcmh.index.fine import FineIndex
from dcmh.stores.base import EVERYTHING, Ids, Scores, stacked

if TYPE_CHECKING:
    from dcmh.stores.server import ServerStore


class FetchedVectors:
    """The fine vectors of one modality, as of a generation.

    Up to EVERYTHING of them are all fetched when they are first needed, and kept in memory and in a folder of this machine;
    of a larger collection only those of candidates are fetched, for each search.
    """

    def __init__(self, store: ServerStore, modality: str, count: int, generation: int, folder: Path) -> None:
        self.store = store
        self.modality = modality
        self.count = count
        self.generation = generation
        self.folder = folder
        self._whole: FineIndex | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.count

    def scores(self, query: NDArray[np.float32]) -> tuple[Ids, Scores]:
        """As in `FineIndex`."""
        return self._all().scores(query)

    def scores_of(self, query: NDArray[np.float32], wanted: Ids) -> Scores:
        """As in `FineIndex`."""
        index = self._all() if self.count <= EVERYTHING else FineIndex.of(*self._fetch(wanted.tolist()))
        return index.scores_of(query, wanted)

    def take_over(self, before: FetchedVectors, changed: list[int]) -> None:
        """Reuse the vectors of an earlier snapshot, since which only these items have changed."""
        if before._whole is not None:
            index = before._whole.without(np.array(changed, np.int64))
            ids, vectors = self._fetch(changed)
            if len(ids):
                index = index.with_items(ids, vectors)
            self._whole = index if len(index) == self.count else None

    def _fetch(self, ids: list[int]) -> tuple[Ids, NDArray[np.int8]]:
        """Ids, ascending, and vectors of those of the items that have one."""
        return stacked(self.store.fine_of(self.modality, ids), self.store.dimensions)

    def _all(self) -> FineIndex:
        with self._lock:
            if self._whole is None:
                with contextlib.suppress(ModelError):  # not cached here yet, of another generation, or damaged
                    cached = FineIndex.load(self.folder, self.generation)
                    cached.check()
                    self._whole = cached
            if self._whole is None:
                self._whole = FineIndex.of(*self.store.fine(self.modality))
                if self.store.generation == self.generation:  # otherwise they may be newer
                    self._keep(self._whole)
            return self._whole

    def _keep(self, index: FineIndex) -> None:
        """Write them to the folder, if it is writable, and delete those of a collection that this one replaced."""
        with contextlib.suppress(OSError):
            index.save(self.folder, self.generation)
            collection = self.folder.parent
            for other in collection.parent.iterdir():
                if other != collection:
                    shutil.rmtree(other, ignore_errors=True)
