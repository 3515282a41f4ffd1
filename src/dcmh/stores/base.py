"""RemoteCatalogue: what `dcmh.stores.local.catalogue.Catalogue` is in a folder, on a server.

Changes are collected within `writing()` and sent at its end. One process at a time writes, which is what makes ids: they
grow and are never given twice. Each change can be sent again without harm, as nobody knows of a broken connection
whether the last one arrived.
"""

from __future__ import annotations

import contextlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh import __version__
from dcmh.codes import bytes_of
from dcmh.data.dataset import JOINT
from dcmh.errors import ModelError, ModelMismatch
from dcmh.index.protocol import Index
from dcmh.stores.address import Address
from dcmh.stores.local.catalogue import UNFINISHED, UPDATE, Catalogue, Item, Skipped

FORMAT = 2  # 1: neither fine vectors nor words
COMMON = 20_000  # items: a word is not counted any further, as `dcmh.search.rank` takes it for common then


@dataclass
class Changes:
    """What one `writing()` does."""

    items: dict[int, Item] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    codes: dict[int, dict[str, bytes | None]] = field(default_factory=dict)  # id to modality to code
    fine: dict[int, dict[str, bytes | None]] = field(default_factory=dict)  # id to modality to vector
    about: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, Skipped | None] = field(default_factory=dict)  # None: no longer


@dataclass
class Rows:
    """The rows of one modality that a change writes, whole, and those that it takes away."""

    ids: NDArray[np.int64]
    packed: NDArray[np.uint8]
    alone: NDArray[np.bool_]  # has no code in another modality
    gone: NDArray[np.int64]


@dataclass
class FineRows:
    """The fine vectors of one modality that a change writes, by id, and the ids of those that it takes away."""

    vectors: dict[int, bytes]
    gone: list[int]


class RemoteCatalogue(ABC):
    """Items of a collection, by id. Threads may read; one writes."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._changes: Changes | None = None
        self._next = 0  # the next id, while writing
        self._known_before = 0  # ids from here on are new in this `writing()`
        self._modalities: list[str] = []
        self._bits = 0
        self._dimensions: int | None = None

    @property
    def place(self) -> str:
        """How to name it to people."""
        return str(self.address)

    # -- the whole --------------------------------------------------------------------------------------------------

    def open(self) -> dict[str, str]:
        """What is noted about the collection, checked: one that is not there, or is newer, gives a sentence."""
        about = self.read_about()
        if not about:
            raise ModelError(
                f"There is no index {self.address}. Make one: dcmh index DATA --model MODEL --out '{self.address}'"
            )
        version = int(about.get("format", 0))
        if version > FORMAT:
            raise ModelError(
                f"{self.address} has format {version}; this dcmh ({__version__}) reads up to {FORMAT}. "
                "Upgrade: pip install -U dcmh"
            )
        self._dimensions = int(about.get("fine", 0))
        return about

    def begin(self, record: Mapping[str, Any], *, rebuild: bool = False, codes: str | None = None) -> None:
        """Make the collection if it is not there; refuse another model than the one it was made with. Needs `writer`."""
        about = self.read_about()
        if about and rebuild:
            self.drop()
            self._modalities, self._bits, self._dimensions, about = [], 0, None, {}
        if about:
            self.open()
            check_model(self.place, about["fingerprint"], str(record["fingerprint"]))
            if codes not in (None, about["codes"]):
                raise ModelMismatch(
                    f"{self.place} was built with codes {about['codes']!r}, not {codes!r}. Rebuild it with --rebuild."
                )
            if int(about["format"]) < FORMAT:
                with self.writing():
                    pass  # which brings it to this format
        else:
            said = {"format": str(FORMAT), "version": __version__, "generation": "0", "next_id": "1"}
            said[UPDATE] = UNFINISHED
            said |= {"codes": codes or "each", "method": str(record["method"]), "made": secrets.token_hex(8)}
            said |= {"fingerprint": str(record["fingerprint"]), "bits": str(record["bits"])}
            said["fine"] = str((record.get("fine") or {}).get("dimensions", 0))
            modalities = (JOINT,) if codes == JOINT else tuple(record["modalities"])
            self.create(int(record["bits"]), modalities, said)
        self.sweep()

    @property
    def generation(self) -> int:
        """Grows with every change."""
        return int(self.about("generation") or 0)

    def about(self, key: str) -> str | None:
        return self.read_about().get(key)

    def modalities(self) -> list[str]:
        """The modalities in which an item can have a code."""
        if not self._modalities:
            self._modalities = (self.about("modalities") or "").split()
        return self._modalities

    @property
    def bits(self) -> int:
        if not self._bits:
            self._bits = int(self.about("bits") or 0)
        return self._bits

    @property
    def dimensions(self) -> int:
        """Of a fine vector; 0 where the collection keeps none."""
        if self._dimensions is None:
            self._dimensions = int(self.about("fine") or 0)
        return self._dimensions

    # -- changing ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Within the block changes are collected; at its end they are sent. A collection of an older format is migrated."""
        about = self.read_about()
        if int(about["format"]) < FORMAT:
            self.migrate()
        self._next = self._known_before = int(about["next_id"])
        self._changes = Changes(about={"generation": str(int(about["generation"]) + 1), "format": str(FORMAT)})
        try:
            yield
            changes, changes.about["next_id"] = self._changes, str(self._next)
            self.apply(changes)
        finally:
            self._changes = None

    def note(self, key: str, value: str) -> None:
        self._open_changes.about[key] = value

    def put(self, item: Item) -> int:
        """Add an item, or replace the one of its id; its id."""
        number = item.id or self._next
        self._next = max(self._next, number + 1)
        self._open_changes.items[number] = replace(item, id=number)
        return number

    def set_code(self, item: int, modality: str, code: bytes | None) -> None:
        """Give an item its packed code in a modality; None takes it away."""
        self._open_changes.codes.setdefault(item, {})[modality] = code

    def set_fine(self, item: int, modality: str, vector: bytes | None) -> None:
        """Give an item its fine vector in a modality, a byte for each dimension; None takes it away."""
        if self.dimensions:
            self._open_changes.fine.setdefault(item, {})[modality] = vector

    def remove(self, ids: Iterable[int]) -> None:
        """Remove items with their codes, fine vectors and words."""
        for item in ids:
            self._open_changes.removed.add(item)
            self._open_changes.items.pop(item, None)
            self._open_changes.codes.pop(item, None)
            self._open_changes.fine.pop(item, None)

    def skip(self, name: str, why: Skipped) -> None:
        self._open_changes.skipped[name] = why

    def unskip(self, names: Iterable[str]) -> None:
        for name in names:
            self._open_changes.skipped[name] = None

    @property
    def _open_changes(self) -> Changes:
        assert self._changes is not None, "changes happen within writing()"
        return self._changes

    def all_modalities(self, changes: Changes) -> list[str]:
        """Those that are there, and those that a change brings in, which are noted with it."""
        known = self.modalities()
        said = (*changes.codes.values(), *changes.fine.values())
        new = sorted({name for values in said for name, value in values.items() if value is not None})
        fresh = [name for name in new if name not in known]
        if fresh:
            changes.about["modalities"] = "\n".join([*known, *fresh])
            self._modalities = []
        return [*known, *fresh]

    def rows_of(self, changes: Changes, modalities: Sequence[str]) -> dict[str, Rows]:
        """What a change means for the codes: whole rows, as whether an item is alone depends on its other codes."""
        width = bytes_of(self.bits)
        known = {number for number in changes.codes if number < self._known_before}
        whole: dict[int, dict[str, bytes | None]] = {number: {} for number in changes.codes}
        for modality in self.modalities() if known else ():
            for number, code in self.codes_in(modality, sorted(known)).items():
                whole[number][modality] = code
        for number, said in changes.codes.items():
            whole[number].update(said)
        rows = {}
        for modality in modalities:
            there = [number for number in sorted(whole) if whole[number].get(modality) is not None]
            lone = [sum(code is not None for code in whole[number].values()) == 1 for number in there]
            joined = b"".join(whole[number][modality] or b"" for number in there)
            gone = {number for number in known if whole[number].get(modality) is None} | changes.removed
            rows[modality] = Rows(
                np.array(there, np.int64),
                np.frombuffer(joined, np.uint8).reshape(len(there), width),
                np.array(lone, bool),
                np.array(sorted(gone), np.int64),
            )
        return rows

    def fine_rows(self, changes: Changes, modality: str) -> FineRows:
        """What a change means for the fine vectors of a modality."""
        said = {number: values[modality] for number, values in changes.fine.items() if modality in values}
        vectors = {number: vector for number, vector in sorted(said.items()) if vector is not None}
        gone = {number for number in said if number not in vectors and number < self._known_before}
        return FineRows(vectors, sorted(gone | changes.removed))

    # -- reading ----------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Item | None:
        """The item of this name."""
        return next(iter(self.found_by("name", [name])), None)

    def with_contents(self, contents: Iterable[bytes]) -> dict[bytes, Item]:
        """The oldest item of each of these contents, where there is one."""
        found: dict[bytes, Item] = {}
        for item in sorted(self.found_by("content", sorted(set(contents))), key=lambda item: item.id):
            found.setdefault(item.content or b"", item)
        return found

    def codes_of(self, item: int, modalities: Iterable[str]) -> dict[str, bytes]:
        """An item's packed codes, by modality."""
        there = set(self.modalities())
        found = {modality: self.codes_in(modality, [item]).get(item) for modality in modalities if modality in there}
        return {modality: code for modality, code in found.items() if code is not None}

    def fine(self, modality: str) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        """Ids (n,) and fine vectors (n, dimensions) of all items that have one in a modality, oldest first."""
        if not self._has_fine(modality):
            return np.empty(0, np.int64), np.empty((0, self.dimensions), np.int8)
        ids, joined = self.vectors(modality)
        if len(joined) != len(ids) * self.dimensions:
            raise ModelError(f"{self.place} is damaged: its fine vectors differ in length. Index it with --rebuild.")
        return ids, np.frombuffer(joined, np.int8).reshape(len(ids), self.dimensions)

    def fine_of(self, modality: str, ids: Iterable[int]) -> dict[int, bytes]:
        """The fine vectors of some items in a modality; those that have none are left out."""
        wanted = [int(number) for number in ids] if self._has_fine(modality) else []
        return self.vectors_of(modality, wanted) if wanted else {}

    def fine_count(self, modality: str) -> int:
        """How many items have a fine vector in a modality."""
        return self.vector_count(modality) if self._has_fine(modality) else 0

    def _has_fine(self, modality: str) -> bool:
        return bool(self.dimensions) and modality in self.modalities()

    # -- what an engine does ----------------------------------------------------------------------------------------

    @abstractmethod
    def writer(self) -> contextlib.AbstractContextManager[None]:
        """Within the block this process is the only one that writes."""

    @abstractmethod
    def create(self, bits: int, modalities: Sequence[str], about: Mapping[str, str]) -> None: ...

    @abstractmethod
    def migrate(self) -> None:
        """Bring a collection of an older format to this one, but for the note of it. May be interrupted and repeated."""

    @abstractmethod
    def drop(self) -> None: ...

    @abstractmethod
    def sweep(self) -> None:
        """Remove what a writer that was killed left behind."""

    @abstractmethod
    def apply(self, changes: Changes) -> None:
        """Send changes; `about` counts as their end."""

    @abstractmethod
    def settle(self) -> dict[str, str]:
        """After the last change: make searches fast. Returns what was measured, to be told."""

    @abstractmethod
    def read_about(self) -> dict[str, str]: ...

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def items(self) -> Iterator[Item]:
        """All items, oldest first."""

    @abstractmethod
    def get(self, ids: Iterable[int]) -> dict[int, Item]:
        """Some items, by id; those that are not there are left out."""

    @abstractmethod
    def found_by(self, column: str, values: Sequence[Any]) -> list[Item]:
        """Items whose name or content is one of these."""

    @abstractmethod
    def codes_in(self, modality: str, ids: Sequence[int]) -> dict[int, bytes]:
        """Packed codes of some items in a modality; those that have none are left out."""

    @abstractmethod
    def vectors(self, modality: str) -> tuple[NDArray[np.int64], bytes]:
        """Ids and joined fine vectors of all items that have one in a modality, oldest first."""

    @abstractmethod
    def vectors_of(self, modality: str, ids: Sequence[int]) -> dict[int, bytes]:
        """The fine vectors of some items in a modality; those that have none are left out."""

    @abstractmethod
    def vector_count(self, modality: str) -> int: ...

    @abstractmethod
    def word_counts(self, words: Iterable[str]) -> dict[str, int]:
        """How many items hold each of these words in their text or labels, up to COMMON."""

    @abstractmethod
    def with_word(self, word: str, among: Sequence[int] | None = None) -> NDArray[np.int64]:
        """Ids of the items that hold a word, ascending; of some items only, if `among` names them."""

    @abstractmethod
    def skipped(self) -> dict[str, Skipped]: ...

    @abstractmethod
    def index(self, modality: str) -> Index:
        """The codes of a modality, to be searched."""

    def keep_model(self, files: Mapping[str, bytes]) -> None:
        """Keep a model in the database, where that is a place for it."""
        return

    def kept_model(self) -> dict[str, bytes] | None:
        """The model as the database keeps it."""
        return None

    @abstractmethod
    def close(self) -> None: ...


AnyCatalogue = Catalogue | RemoteCatalogue


def check_model(place: str, was: str, given: str) -> None:
    """Refuse another model than the index was built with."""
    if was != given:
        shown = 4 if was[:4] != given[:4] else len(was)
        raise ModelMismatch(
            f"{place} was built with model {was[:shown]}, not {given[:shown]}. "
            f"Rebuild: dcmh index DATA --model MODEL --out '{place}' --rebuild"
        )
