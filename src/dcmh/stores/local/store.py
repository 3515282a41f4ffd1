"""LocalStore: an index folder. SQLite holds the items; codes and fine vectors are searched in memory-mapped files."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from dcmh import codes
from dcmh.data.dataset import JOINT
from dcmh.errors import BusyError, DamagedError, ModelError, ModelMismatch
from dcmh.index import HammingIndex
from dcmh.index.fine import FineIndex
from dcmh.methods.folder import read_record
from dcmh.stores.base import Snapshot, Store, check_model, closed_on_error, stacked
from dcmh.stores.local import layout
from dcmh.stores.local.catalogue import Catalogue

if TYPE_CHECKING:
    from dcmh.methods.base import Hasher

log = logging.getLogger(__name__)


class LocalStore(Catalogue, Store):
    """The store in a folder. The catalogue is the source of truth; codes/ is derived from it and rebuilt when stale."""

    def __init__(self, folder: Path, files: Path | None = None) -> None:
        self.files = files or folder  # another folder while the index is rebuilt
        super().__init__(self.files / layout.CATALOGUE)
        self.folder = folder
        self.where = folder
        self.place = str(folder)
        self.model = self.files / layout.MODEL
        self.record = read_record(self.model)
        self.bits = int(self.record["bits"])
        self._modalities = (JOINT,) if self.about("codes") == JOINT else tuple(self.record["modalities"])
        self._file = layout.identity(self.files)
        self.snapshot: Snapshot[HammingIndex, FineIndex] = Snapshot({}, {}, 0, -1)
        self._stale = False  # the files are not those of the snapshot

    @classmethod
    def open(cls, folder: Path, model: Path | None = None) -> Self:
        """Open an index folder; a model other than its own is refused."""
        while True:
            layout.await_switch(folder)
            before = layout.identity(folder)
            try:
                store = cls._open(folder, model)
            except (ModelError, ModelMismatch):
                if layout.identity(folder) == before and not (folder / layout.READY).is_dir():
                    raise
                continue  # a rebuilt index has taken its place meanwhile
            if layout.identity(folder) == before and not (folder / layout.READY).is_dir():
                return store
            store.close()

    @classmethod
    def _open(cls, folder: Path, model: Path | None) -> Self:
        built_with = layout.read_header(folder)["fingerprint"]
        for used in (folder / layout.MODEL,) if model is None else (model, folder / layout.MODEL):
            check_model(folder, built_with, str(read_record(used)["fingerprint"]))
        with closed_on_error(cls(folder)) as store:
            store.read()
            if not store._is_saved():  # the writer was killed, or has not saved yet
                store._save_if_possible()
        return store

    @classmethod
    @contextlib.contextmanager
    def building(
        cls,
        folder: Path,
        model: Hasher | Path,
        *,
        rebuild: bool,
        upgrade: bool = False,
        report: str | None,
        codes: str | None,
    ) -> Iterator[Self]:
        """Inside the block: the store of a folder, created where there is none, with this process as its only writer."""
        layout.check_target(folder)
        with layout.writer(folder):
            files = layout.begin(folder, model, rebuild=rebuild, upgrade=upgrade, report=report, codes=codes)
            try:
                with closed_on_error(cls(folder, files)) as store:
                    yield store
                    if files != folder:
                        store.close()
                        layout.switch(folder)
                        store._move()
            except BaseException:
                if files != folder:
                    shutil.rmtree(files, ignore_errors=True)
                raise

    def _move(self) -> None:
        """Use the files where `layout.switch` has put them."""
        self.files = self.folder
        self.model = self.files / layout.MODEL
        self._connect(self.files / layout.CATALOGUE)

    @property
    def root(self) -> Path | None:
        """The data's folder: the first recorded place that exists, or else where it was."""
        noted = self.data_folders()
        return next((root for root in noted if root.is_dir()), noted[-1] if noted else None)

    def modalities(self) -> Sequence[str]:
        """The modalities in which an item can have a code."""
        return self._modalities

    def recall(self) -> None:
        """Searches in a folder are exact."""
        return

    def replaced(self) -> bool:
        """Whether the folder holds another complete index by now."""
        if layout.identity(self.folder) in (None, self._file) or not layout.is_index(self.folder):
            return False
        with contextlib.closing(Catalogue(self.folder / layout.CATALOGUE)) as other:
            return bool(layout.read_header(self.folder)["generation"] == other.generation)

    def writer(self) -> contextlib.AbstractContextManager[None]:
        """Inside the block no other process writes the folder."""
        return layout.writer(self.folder)

    def data_folders(self) -> list[Path]:
        """Where the data may be: beside the index as it was, then where it was."""
        beside, absolute = self.about("root_beside"), self.about("root")
        roots = [] if beside is None else [Path(os.path.normpath(self.folder.absolute() / beside))]
        return roots if absolute is None else [*roots, Path(absolute)]

    def remember_root(self, root: Path | None) -> None:
        """Record the data's folder, absolute and relative to the index, so that both can be moved together or alone."""
        if root is None:
            return
        noted = {"root": os.path.abspath(root)}
        with contextlib.suppress(ValueError):  # on another drive
            noted["root_beside"] = os.path.relpath(root.resolve(), self.folder.resolve())
        if any(self.about(key) != value for key, value in noted.items()):
            with self.writing():
                for key, value in noted.items():
                    self.note(key, value)

    # -- codes and fine vectors -------------------------------------------------------------------------------------

    def read(self, changed: Iterable[int] | None = None) -> None:
        """Take a new snapshot: map the files if they are current, or read the catalogue."""
        if changed is not None:
            try:
                self._read_changed(sorted(set(changed)))
            except DamagedError as error:
                log.warning("%s Reading the codes from the catalogue instead.", error.what)
                self._derive()
            return
        generation = self.generation
        header = layout.read_header(self.files)
        if header["generation"] == generation:
            try:
                indexes = {name: self._mapped(name, count) for name, count in header["codes"].items()}
                fine = {
                    name: FineIndex.load(self.files / layout.CODES / name, generation)
                    for name in header.get("fine", ())
                }
                self.snapshot = Snapshot(indexes, fine, int(header["items"]), generation)
                return
            except ModelError as error:  # the catalogue has it all
                log.warning("%s Reading the codes from the catalogue instead.", error.what)
        self._derive()

    def _derive(self) -> None:
        """Take a new snapshot from the catalogue alone."""
        generation = self.generation
        self._stale = True
        coded = self.coded_modalities()
        indexes = {name: self._from_catalogue(name) for name in self._modalities if name in coded}
        fine = {name: FineIndex.of(*self.fine(name)) for name in indexes}
        self._publish(indexes, fine, generation)

    def _read_changed(self, ids: list[int]) -> None:
        """Bring some items up to date. Running searches keep the indexes they started with, or lose removed items."""
        indexes, fine = dict(self.snapshot.indexes), dict(self.snapshot.fine)
        every = np.array(ids, np.int64)
        for modality in self._modalities:
            if modality in fine:
                fine[modality] = fine[modality].without(every)
            if vectors := self.fine_of(modality, ids):
                numbers, stack = stacked(vectors, len(next(iter(vectors.values()))))
                empty = FineIndex.of(numbers[:0], stack[:0])
                fine[modality] = fine.get(modality, empty).with_items(numbers, stack)
        # Fine vectors first: an item without a code is left out of the hits, one without a fine vector is ranked last.
        self.snapshot = Snapshot(self.snapshot.indexes, fine, self.snapshot.items, self.snapshot.generation)
        for modality in self._modalities:
            index = indexes.setdefault(modality, HammingIndex(self.bits))
            before, now = index.codes_by_id(ids), self.codes_of(modality, ids)
            new = sorted(number for number in now if number not in before)
            changed = any(now.get(number, code) != code for number, code in before.items())
            if changed or (new and len(index) and new[0] < index.ids.max()):
                indexes[modality] = self._from_catalogue(modality)  # rows are in the order of ids
                continue
            if gone := [number for number in before if number not in now]:
                index.remove(gone)
            if new:
                index.add(new, np.stack([np.frombuffer(now[number], np.uint8) for number in new]))
        self._publish(indexes, fine, self.generation)

    def _publish(self, indexes: dict[str, HammingIndex], fine: dict[str, FineIndex], generation: int) -> None:
        self.snapshot = Snapshot(
            {name: index for name, index in indexes.items() if len(index)},
            {name: index for name, index in fine.items() if len(index)},
            len(self),
            generation,
        )

    def settle(self, skipped: Sequence[tuple[str, str]] | None = None) -> None:
        """Write codes and fine vectors to be mapped, then index.json, which records their generation."""
        if skipped is not None:
            layout.write_skipped(self.files, skipped)
            listed = layout.skipped_checksum(self.files)
            self._stale = self._stale or layout.read_header(self.files).get("skipped") != listed
        if self.generation != self.snapshot.generation:
            self.read()
        if self._is_saved():
            return
        try:
            self._save()
        except DamagedError as error:
            log.warning("%s Reading the codes from the catalogue instead.", error.what)
            self._derive()
            self._save()

    def restore(self) -> None:
        """After a DamagedError: derive codes and fine vectors from the catalogue, and save them where that is possible."""
        log.warning("The codes of %s are damaged. Reading them from the catalogue instead.", self.folder)
        self._derive()
        self._save_if_possible()

    def rederive(self) -> None:
        """Write everything that is derived from the catalogue again, index.json included. Needs `writer`."""
        self._derive()
        listed = [(name, entry.reason) for name, entry in self.skipped().items()]
        layout.write_skipped(self.files, listed)
        self._save()

    def _save_if_possible(self) -> None:
        """If another process writes the folder, or it is read-only, codes are derived at the next opening too."""
        with contextlib.suppress(BusyError, ModelError, OSError), layout.writer(self.folder):
            self.settle()

    def _save(self) -> None:
        now = self.snapshot
        for name, index in now.indexes.items():
            index.save(self.files / layout.CODES / name)
        for name, vectors in now.fine.items():
            vectors.save(self.files / layout.CODES / name, now.generation)
        layout.write_header(
            self.files,
            bits=self.bits,
            generation=now.generation,
            items=now.items,
            codes={name: len(index) for name, index in now.indexes.items()},
            fine=sorted(now.fine),
            fingerprint=self.record["fingerprint"],
            method=self.record["method"],
            root=self.about("root"),
            skipped=layout.skipped_checksum(self.files),
        )
        self._stale = False
        self.seal()

    def _is_saved(self) -> bool:
        return not self._stale and bool(layout.read_header(self.files)["generation"] == self.snapshot.generation)

    def _mapped(self, modality: str, count: int) -> HammingIndex:
        index = HammingIndex.load(self.files / layout.CODES / modality)
        if len(index) != count or index.bits != self.bits:
            raise ModelError(f"The codes of {self.folder} are out of date.")
        return index

    def _from_catalogue(self, modality: str) -> HammingIndex:
        index = HammingIndex(self.bits)
        index.add(*self.codes(modality, codes.bytes_of(self.bits)))
        return index
