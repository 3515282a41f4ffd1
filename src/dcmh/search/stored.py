"""The codes of an index in memory: mapped from the folder where they are current, made from the catalogue where not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from dcmh import codes
from dcmh.data.dataset import JOINT
from dcmh.errors import BusyError, ModelError
from dcmh.index import HammingIndex
from dcmh.index.fine import FineIndex
from dcmh.search.encode import Encoders
from dcmh.stores.local import layout
from dcmh.stores.local.catalogue import Catalogue


class StoredCodes(Mapping[str, HammingIndex]):
    """A Hamming index for each modality in which some item has a code; `item_count` counts items, `generation` is theirs."""

    def __init__(self, folder: Path, catalogue: Catalogue, encoders: Encoders) -> None:
        self.folder = folder
        self.catalogue = catalogue
        self.record = encoders.record  # of the model
        self.bits = encoders.bits
        self.modalities = (JOINT,) if catalogue.about("codes") == JOINT else encoders.modalities
        self.item_count = 0
        self.generation = -1
        self._indexes: dict[str, HammingIndex] = {}
        self._fine: dict[str, FineIndex] = {}
        self.read()

    def __getitem__(self, modality: str) -> HammingIndex:
        return self._indexes[modality]

    def __iter__(self) -> Iterator[str]:
        return iter(self._indexes)

    def __len__(self) -> int:
        return len(self._indexes)

    def now(self) -> dict[str, HammingIndex]:
        """The indexes as they are: a later `read` in another thread does not change what this call gave."""
        return self._indexes

    @property
    def fine(self) -> dict[str, FineIndex]:
        """The fine vectors of each modality that has some, as they are."""
        return self._fine

    def read(self) -> None:
        """Take the state of the folder."""
        header = layout.read_header(self.folder)
        generation = self.catalogue.generation
        if header["generation"] == generation:
            with contextlib.suppress(ModelError):  # damaged: they can be made again
                indexes = {name: self._mapped(name, count) for name, count in header["codes"].items()}
                fine = {
                    name: FineIndex.load(self.folder / layout.CODES / name, generation)
                    for name in header.get("fine", ())
                }
                self._indexes, self._fine = indexes, fine
                self.item_count, self.generation = int(header["items"]), generation
                return
        found = {name: self._from_catalogue(name) for name in self.catalogue.modalities()}
        self._indexes = {name: found[name] for name in self.modalities if name in found}
        vectors = {name: FineIndex.of(*self.catalogue.fine(name)) for name in self._indexes}
        self._fine = {name: index for name, index in vectors.items() if len(index)}
        self.item_count, self.generation = len(self.catalogue), generation

    def add(self, ids: list[int]) -> None:
        """Bring some items up to date that the catalogue has now."""
        indexes, fine = dict(self._indexes), dict(self._fine)
        fresh = sorted(ids)
        for modality in self.modalities:
            vectors = self.catalogue.fine_of(modality, fresh)
            if vectors or modality in fine:
                numbers = np.array(sorted(vectors), np.int64)
                joined = b"".join(vectors[number] for number in numbers.tolist())
                index_before = fine.get(modality)
                if index_before is not None:
                    index_before = index_before.without(np.array(fresh, np.int64))
                if len(numbers):
                    rows_of = np.frombuffer(joined, np.int8).reshape(len(numbers), -1)
                    empty = FineIndex.of(numbers[:0], rows_of[:0])
                    index_before = (index_before or empty).with_items(numbers, rows_of)
                if index_before is not None:
                    fine[modality] = index_before
            index = indexes.setdefault(modality, HammingIndex(self.bits))
            if any(number in index for number in fresh):  # a changed item keeps its place among its elders
                indexes[modality] = self._from_catalogue(modality)  # and who searches now keeps the older codes
                continue
            rows = [(number, self.catalogue.codes_of(number, [modality]).get(modality)) for number in fresh]
            there = [(number, np.frombuffer(code, np.uint8)) for number, code in rows if code is not None]
            if there:
                index.add([number for number, _ in there], np.stack([code for _, code in there]))
        self._indexes = {name: index for name, index in indexes.items() if len(index)}
        self._fine = fine
        self.item_count, self.generation = len(self.catalogue), self.catalogue.generation

    def remove(self, ids: list[int]) -> None:
        """Forget items that the catalogue no longer has: fine vectors first, as they are looked up by code later."""
        self._fine = {name: index.without(np.array(ids, np.int64)) for name, index in self._fine.items()}
        for index in self._indexes.values():
            index.remove(ids, missing_ok=True)
        self._indexes = {name: index for name, index in self._indexes.items() if len(index)}
        self.item_count, self.generation = len(self.catalogue), self.catalogue.generation

    def save(self) -> None:
        """Write the codes and index.json, which is last, so that a reader finds current codes or knows they are not.

        Needs `layout.writer`.
        """
        if self.is_saved() or self.catalogue.generation != self.generation:
            return  # as it is, or what is in memory is out of date: another process has changed the index
        counts = {name: len(index) for name, index in self._indexes.items()}
        for name, index in self._indexes.items():
            index.save(self.folder / layout.CODES / name)
        for name, vectors in self._fine.items():
            vectors.save(self.folder / layout.CODES / name, self.generation)
        layout.write_header(
            self.folder,
            bits=self.bits,
            generation=self.generation,
            items=self.item_count,
            codes=counts,
            fine=sorted(self._fine),
            fingerprint=self.record["fingerprint"],
            method=self.record["method"],
            root=self.catalogue.about("root"),
        )

    def is_saved(self) -> bool:
        header = layout.read_header(self.folder)
        return bool(header["generation"] == self.generation)

    def _mapped(self, modality: str, count: int) -> HammingIndex:
        index = HammingIndex.load(self.folder / layout.CODES / modality)
        if len(index) != count or index.bits != self.bits:
            raise ModelError(f"The codes of {self.folder} are out of date.")
        return index

    def _from_catalogue(self, modality: str) -> HammingIndex:
        index = HammingIndex(self.bits)
        index.add(*self.catalogue.codes(modality, codes.bytes_of(self.bits)))
        return index


def try_to_save(stored: StoredCodes) -> None:
    """Save unless somebody else writes the folder or it may not be written: then codes are made anew next time too."""
    with contextlib.suppress(BusyError, ModelError, OSError), layout.writer(stored.folder):
        stored.save()
