"""ServerStore: the store of an index on a server, and what PostgreSQL and Milvus have in common.

Changes are collected inside `writing()` and sent at its end. One process at a time writes, and it assigns the ids: they
grow and are never reused. Every change is idempotent, because after a broken connection nobody knows whether the last one
arrived.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from dcmh import __version__
from dcmh.codes import bytes_of
from dcmh.data.dataset import JOINT
from dcmh.errors import ModelError, ModelMismatch
from dcmh.methods.folder import read_record
from dcmh.stores import models
from dcmh.stores.address import Address
from dcmh.stores.base import UNFINISHED, UPDATE, Filter, Ids, Item, Skipped, Snapshot, check_model, closed_on_error
from dcmh.stores.codes import CodeIndex, CountedIndex
from dcmh.stores.fetched_vectors import FetchedVectors
from dcmh.stores.transaction import CodeRows, Transaction
from dcmh.util.cache import home
from dcmh.util.formats import check_format

if TYPE_CHECKING:
    from dcmh.methods.base import Hasher

FORMAT = 2  # 1: without fine vectors and words


class ServerStore(ABC):
    """The items of a collection. Threads may read; one writes.

    `folder` holds what this machine keeps of the collection: fine vectors, and uploads.
    """

    model: Path  # set by `open` and `building`

    def __init__(self, address: Address) -> None:
        self.address = address
        self.where = address
        self.place = str(address)
        digest = hashlib.blake2b(address.identity.encode(), digest_size=4).hexdigest()
        self.folder = home() / "engines" / f"{address.collection}-{digest}"
        self.snapshot: Snapshot[CountedIndex, FetchedVectors] = Snapshot({}, {}, 0, -1)
        self._changes: Transaction | None = None
        self._next = 0  # the next id, while writing
        self._modalities: list[str] = []
        self._bits = 0
        self._dimensions: int | None = None
        self._made: str | None = None  # identifies the collection, as opposed to one that replaced it
        self._root: tuple[int, str | None] | None = None  # generation and root

    @classmethod
    def open(cls, address: Address, model: Path | None = None) -> Self:
        """Open a collection; see `find_model` for `model`."""
        with closed_on_error(cls(address)) as store:
            store.model = store.find_model(store.read_header()["fingerprint"], model)
            store.read()
        return store

    @classmethod
    @contextlib.contextmanager
    def building(
        cls, address: Address, model: Hasher | Path, *, rebuild: bool, report: str | None, codes: str | None
    ) -> Iterator[Self]:
        """Inside the block: a collection, created where there is none, with this process as its only writer."""
        with closed_on_error(cls(address)) as store, store.writer():
            store.model = models.keep(model, report)
            fresh = rebuild or not store.read_about()
            store.begin(read_record(store.model), rebuild=rebuild, codes=codes)
            if fresh:
                store.keep_model(models.files_of(store.model))
            store.read()
            yield store

    # -- the collection ---------------------------------------------------------------------------------------------

    def read_header(self) -> dict[str, str]:
        """The properties of the collection, checked: ModelError if it does not exist or is newer than this version."""
        about = self.read_about()
        if not about:
            raise ModelError(
                f"There is no index {self.address}.",
                hint=f"Make one: dcmh index DATA --model MODEL --out '{self.address}'",
            )
        version = about.get("format", "")
        check_format(int(version) if version.isdecimal() else version, FORMAT, self.address, ModelError)
        self._dimensions = int(about.get("fine", 0))
        return about

    def find_model(self, fingerprint: str, given: Path | None = None) -> Path:
        """The folder of the collection's model: a given one, one that this machine has, or the copy on the server."""
        if given is not None:
            self._check_model(fingerprint, read_record(given))
            return models.keep(given)
        folder = models.find(fingerprint)
        if folder is None and (files := self.kept_model()) is not None:
            folder = models.restore(files)
            self._check_model(fingerprint, read_record(folder))
        if folder is None:
            raise ModelError(
                f"{self.place} was built with model {fingerprint[:4]}, which this machine does not have.",
                hint="Copy the model's folder here and give it once: --model MODEL",
            )
        return folder

    def _check_model(self, fingerprint: str, record: Mapping[str, Any]) -> None:
        again = f"dcmh index DATA --model MODEL --out '{self.place}' --rebuild"
        check_model(self.place, fingerprint, str(record["fingerprint"]), again)

    def begin(self, record: Mapping[str, Any], *, rebuild: bool = False, codes: str | None = None) -> None:
        """Create the collection if it does not exist; refuse another model than it was built with. Needs `writer`."""
        about = self.read_about()
        if about and rebuild:
            self.drop()
            self._modalities, self._bits, self._dimensions, about = [], 0, None, {}
        if about:
            self.read_header()
            self._check_model(about["fingerprint"], record)
            if codes not in (None, about["codes"]):
                raise ModelMismatch(
                    f"{self.place} was built with codes {about['codes']!r}, not {codes!r}.",
                    hint="Rebuild it with --rebuild.",
                )
            if int(about["format"]) < FORMAT:
                with self.writing():  # which migrates it
                    self.note("format", str(FORMAT))
        else:
            about = {"format": str(FORMAT), "version": __version__, "generation": "0", "next_id": "1"}
            about[UPDATE] = UNFINISHED
            about |= {"codes": codes or "each", "method": str(record["method"]), "made": secrets.token_hex(8)}
            about |= {"fingerprint": str(record["fingerprint"]), "bits": str(record["bits"])}
            about["fine"] = str((record.get("fine") or {}).get("dimensions", 0))
            modalities = (JOINT,) if codes == JOINT else tuple(record["modalities"])
            self.create(int(record["bits"]), modalities, about)
        self.sweep()

    @property
    def generation(self) -> int:
        """A number that grows with every change by any process."""
        return int(self.about("generation") or 0)

    def about(self, key: str) -> str | None:
        """A property of the collection."""
        return self.read_about().get(key)

    def modalities(self) -> list[str]:
        """The modalities in which an item can have a code."""
        if not self._modalities:
            self._modalities = (self.about("modalities") or "").split()
        return self._modalities

    @property
    def bits(self) -> int:
        """The length of the codes."""
        if not self._bits:
            self._bits = int(self.about("bits") or 0)
        return self._bits

    @property
    def dimensions(self) -> int:
        """The length of a fine vector; 0 if the collection has none."""
        if self._dimensions is None:
            self._dimensions = int(self.about("fine") or 0)
        return self._dimensions

    @property
    def root(self) -> Path | None:
        """The folder that relative paths start at, on the machine that indexed them."""
        generation = self.snapshot.generation
        if self._root is None or self._root[0] != generation:
            self._root = generation, self.about("root")
        return None if self._root[1] is None else Path(self._root[1])

    def data_folders(self) -> list[Path]:
        """Where the data was when it was indexed."""
        root = self.about("root")
        return [] if root is None else [Path(root)]

    def remember_root(self, root: Path | None) -> None:
        """Record the folder of the data."""
        absolute = None if root is None else str(root.absolute())
        if absolute is not None and absolute != self.about("root"):
            with self.writing():
                self.note("root", absolute)

    def recall(self) -> dict[str, float] | None:
        """What approximate searches found of the true nearest, by modality, when it was measured; None if exact."""
        if not self.address.approximate:
            return None
        about = self.read_about()
        return {key.removeprefix("recall "): float(value) for key, value in about.items() if key.startswith("recall ")}

    def replaced(self) -> bool:
        """Whether the collection was rebuilt since it was opened."""
        return self.about("made") != self._made

    def read(self, changed: Iterable[int] | None = None) -> None:
        """Take a new snapshot. Sizes are recorded when a writer settles, and counted if it did not."""
        about = self.read_header()
        sizes = json.loads(about.get("sizes", "{}"))
        generation, before = int(about["generation"]), self.snapshot
        current = sizes.get("generation") == generation
        known_changes = [] if generation == before.generation else None if changed is None else list(changed)
        indexes: dict[str, CountedIndex] = {}
        fine: dict[str, FetchedVectors] = {}
        for modality in about["modalities"].split():
            index = self.index(modality)
            if count := int(sizes["codes"][modality]) if current else len(index):
                indexes[modality] = CountedIndex(index, count, approximate=self.address.approximate)
            if count := int(sizes["fine"][modality]) if "fine" in sizes and current else self.fine_count(modality):
                folder = self.folder / "fine" / about["made"] / modality
                fine[modality] = FetchedVectors(self, modality, count, generation, folder)
                if modality in before.fine and known_changes is not None:
                    fine[modality].take_over(before.fine[modality], known_changes)
        self.snapshot = Snapshot(indexes, fine, int(sizes["items"]) if current else len(self), generation)
        self._made = self._made or about["made"]

    def restore(self) -> None:
        """Files on this machine are only a cache, and are checked, and fetched again, when they are read."""
        self.read()

    def settle(self, skipped: Sequence[tuple[str, str]] | None = None) -> None:
        """Optimise the collection for searches and record its sizes, if it has changed since that was done."""
        about = self.read_about()
        settled = json.loads(about.get("sizes", "{}")).get("generation") == int(about["generation"])
        if settled and (self.recall() or not self.address.approximate):
            self.read()
            return
        measured = self.optimise()
        self.read()
        names, now = self.modalities(), self.snapshot
        codes = {name: len(now.indexes.get(name, ())) for name in names}
        fine = {name: len(now.fine.get(name, ())) for name in names}
        # The note itself is a change: the sizes are those of the generation that it makes.
        sizes = {"generation": now.generation + 1, "items": now.items, "codes": codes, "fine": fine}
        with self.writing():
            for key, value in (measured | {"sizes": json.dumps(sizes)}).items():
                self.note(key, value)
        self.read([])

    # -- changing ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Collect changes inside the block and send them at its end. A collection of an older format is migrated."""
        about = self.read_about()
        if int(about["format"]) < FORMAT:
            self.migrate()
        self._next = int(about["next_id"])
        noted = {"generation": str(int(about["generation"]) + 1), "format": str(FORMAT)}
        self._changes = Transaction(self._next, noted)
        try:
            yield
            self._changes.about["next_id"] = str(self._next)
            self.apply(self._changes)
        finally:
            self._changes = None

    def note(self, key: str, value: str) -> None:
        """Set a property of the collection."""
        self._open_changes.about[key] = value

    def put(self, item: Item) -> int:
        """Add an item, or replace the one with its id; returns the id."""
        number = item.id or self._next
        self._next = max(self._next, number + 1)
        self._open_changes.items[number] = replace(item, id=number)
        return number

    def set_code(self, item: int, modality: str, code: bytes | None) -> None:
        """Set the packed code of an item in a modality; None removes it."""
        self._open_changes.codes.setdefault(item, {})[modality] = code

    def set_fine(self, item: int, modality: str, vector: bytes | None) -> None:
        """Set the fine vector of an item in a modality, one byte per dimension; None removes it."""
        if self.dimensions:
            self._open_changes.fine.setdefault(item, {})[modality] = vector

    def remove(self, ids: Iterable[int]) -> None:
        """Remove items with their codes, fine vectors and words."""
        for item in ids:
            self._open_changes.remove(item)

    def skip(self, name: str, why: Skipped) -> None:
        """Record an item that cannot be indexed."""
        self._open_changes.skipped[name] = why

    def unskip(self, names: Iterable[str]) -> None:
        """Remove such records."""
        for name in names:
            self._open_changes.skipped[name] = None

    @property
    def _open_changes(self) -> Transaction:
        assert self._changes is not None, "changes are made inside writing()"
        return self._changes

    def all_modalities(self, changes: Transaction) -> list[str]:
        """The collection's modalities and those that a change adds, which are recorded with it."""
        known = self.modalities()
        fresh = sorted(changes.modalities().difference(known))
        if fresh:
            changes.about["modalities"] = "\n".join([*known, *fresh])
            self._modalities = []
        return [*known, *fresh]

    def code_rows(self, changes: Transaction, modalities: Sequence[str]) -> dict[str, CodeRows]:
        """The complete rows of codes that a change writes, by modality."""
        known = changes.recoded()
        stored = {modality: self.codes_of(modality, known) for modality in self.modalities()} if known else {}
        return changes.code_rows(modalities, stored, bytes_of(self.bits))

    # -- reading ----------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Item | None:
        """The item with this name."""
        return next(iter(self.found_by("name", [name])), None)

    @abstractmethod
    def uploads(self) -> list[Item]:
        """The items that clients of the service have added."""

    def with_contents(self, contents: Iterable[bytes]) -> dict[bytes, Item]:
        """The oldest item of each of these contents, where there is one."""
        items: dict[bytes, Item] = {}
        for item in sorted(self.found_by("content", sorted(set(contents))), key=lambda item: item.id):
            items.setdefault(item.content or b"", item)
        return items

    def codes_of(self, modality: str, ids: Iterable[int]) -> dict[int, bytes]:
        """The packed codes of some items in a modality, in one request; items without one are left out."""
        wanted = [int(number) for number in ids] if modality in self.modalities() else []
        return self.codes_in(modality, wanted) if wanted else {}

    def fine(self, modality: str) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        """Ids (n,) and fine vectors (n, dimensions) of all items that have one in a modality, oldest first."""
        if not self._has_fine(modality):
            return np.empty(0, np.int64), np.empty((0, self.dimensions), np.int8)
        ids, joined = self.vectors(modality)
        if len(joined) != len(ids) * self.dimensions:
            raise ModelError(
                f"{self.place} is damaged: its fine vectors differ in length.", hint="Index it with --rebuild."
            )
        return ids, np.frombuffer(joined, np.int8).reshape(len(ids), self.dimensions)

    def fine_of(self, modality: str, ids: Iterable[int]) -> dict[int, bytes]:
        """The fine vectors of some items in a modality; items without one are left out."""
        wanted = [int(number) for number in ids] if self._has_fine(modality) else []
        return self.vectors_of(modality, wanted) if wanted else {}

    def fine_count(self, modality: str) -> int:
        """The number of items that have a fine vector in a modality."""
        return self.vector_count(modality) if self._has_fine(modality) else 0

    def _has_fine(self, modality: str) -> bool:
        return bool(self.dimensions) and modality in self.modalities()

    # -- what an engine implements ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def has_words(self) -> bool:
        """Whether the words of texts and labels are indexed."""

    @abstractmethod
    def writer(self) -> contextlib.AbstractContextManager[None]:
        """Inside the block no other process writes the collection."""

    @abstractmethod
    def create(self, bits: int, modalities: Sequence[str], about: Mapping[str, str]) -> None:
        """Create an empty collection with these properties. Must be idempotent: it may have been interrupted before."""

    @abstractmethod
    def migrate(self) -> None:
        """Bring a collection of an older format to this one, except for the note of it. Must be idempotent."""

    @abstractmethod
    def drop(self) -> None:
        """Delete the collection."""

    @abstractmethod
    def sweep(self) -> None:
        """Remove what a killed writer left behind."""

    @abstractmethod
    def apply(self, changes: Transaction) -> None:
        """Send changes; writing `about` completes them. Must be idempotent."""

    @abstractmethod
    def optimise(self) -> dict[str, str]:
        """Make searches fast after many changes. Returns what was measured, to be noted."""

    @abstractmethod
    def read_about(self) -> dict[str, str]:
        """The properties of the collection; empty if it does not exist."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def items(self) -> Iterator[Item]:
        """All items, oldest first."""

    @abstractmethod
    def get(self, ids: Iterable[int]) -> dict[int, Item]:
        """Items by id; unknown ids are left out."""

    @abstractmethod
    def found_by(self, column: str, values: Sequence[Any]) -> list[Item]:
        """Items whose name or content is one of these."""

    @abstractmethod
    def codes_in(self, modality: str, ids: Sequence[int]) -> dict[int, bytes]:
        """The packed codes of some items in a modality of the collection; items without one are left out."""

    @abstractmethod
    def vectors(self, modality: str) -> tuple[NDArray[np.int64], bytes]:
        """Ids and joined fine vectors of all items that have one in a modality, oldest first."""

    @abstractmethod
    def vectors_of(self, modality: str, ids: Sequence[int]) -> dict[int, bytes]:
        """The fine vectors of some items in a modality; items without one are left out."""

    @abstractmethod
    def vector_count(self, modality: str) -> int:
        """The number of items that have a fine vector in a modality."""

    @abstractmethod
    def word_counts(self, words: Iterable[str]) -> dict[str, int]:
        """The number of items that contain each word in their text or labels, up to COMMON."""

    @abstractmethod
    def with_word(self, word: str, among: Ids | Sequence[int] | None = None) -> Ids:
        """The ids of the items that contain a word, ascending; with `among`, only those of these items."""

    @abstractmethod
    def matching(self, filter: Filter) -> NDArray[np.int64]:  # noqa: A002 - the word for it
        """The ids of the items that pass a filter, ascending."""

    @abstractmethod
    def skipped(self) -> dict[str, Skipped]:
        """Everything that could not be indexed, by name."""

    @abstractmethod
    def index(self, modality: str) -> CodeIndex:
        """The codes of a modality, to be searched."""

    @abstractmethod
    def keep_model(self, files: Mapping[str, bytes]) -> None:
        """Keep the files of a model on the server, if it can store them."""

    @abstractmethod
    def kept_model(self) -> dict[str, bytes] | None:
        """The files of the model on the server, if it has them."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""
