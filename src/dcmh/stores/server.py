"""ServerStore: the store of an index on a server, and what PostgreSQL and Milvus have in common.

Changes are collected inside `writing()` and sent at its end. One process at a time writes, and it assigns the ids: they
grow and are never reused. Every change is idempotent, because after a broken connection it is unknown whether the last one
arrived.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from abc import abstractmethod
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
from dcmh.stores.base import UNFINISHED, UPDATE, Item, Skipped, Snapshot, Store, check_model, closed_on_error
from dcmh.stores.codes import CodeIndex, CountedIndex
from dcmh.stores.fetched_vectors import FetchedVectors
from dcmh.stores.transaction import CodeRows, Transaction
from dcmh.util.cache import home
from dcmh.util.formats import check_format

if TYPE_CHECKING:
    from dcmh.methods.base import Hasher

FORMAT = 2  # 1: without fine vectors and words


class ServerStore(Store):
    """The items of a collection. Threads may read; one writes.

    `folder` holds what this machine keeps of the collection: fine vectors, and uploads. `open` and `building` set `model`.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.where = address
        self.place = str(address)
        digest = hashlib.blake2b(address.identity.encode(), digest_size=4).hexdigest()
        self.folder = home() / "engines" / f"{address.collection}-{digest}"
        self.snapshot: Snapshot[CountedIndex, FetchedVectors] = Snapshot({}, {}, 0, -1)
        self._changes: Transaction | None = None
        self._next = 0  # the next id, while writing
        self._properties: dict[str, str] = {}  # for those that do not change
        self._made: str | None = None  # a random id, which tells the collection from one that replaced it
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
            store.model = models.add(model, report)
            fresh = rebuild or not store.read_about()
            store.begin(read_record(store.model), rebuild=rebuild, codes=codes)
            if fresh:
                store.upload_model(models.files_of(store.model))
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
        self._properties = about
        return about

    def find_model(self, fingerprint: str, given: Path | None = None) -> Path:
        """The folder of the collection's model: a given one, one that this machine has, or the copy on the server."""
        if given is not None:
            self._check_model(fingerprint, read_record(given))
            return models.add(given)
        folder = models.find(fingerprint)
        if folder is None and (files := self.download_model()) is not None:
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
        """Create the collection if it does not exist; refuse a model other than its own. Needs `writer`."""
        about = self.read_about()
        if about and rebuild:
            self.drop()
            self._properties, about = {}, {}
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
        return self._fixed("modalities").split()

    @property
    def bits(self) -> int:
        """The length of the codes."""
        return int(self._fixed("bits") or 0)

    @property
    def dimensions(self) -> int:
        """The length of a fine vector; 0 if the collection has none."""
        return int(self._fixed("fine") or 0)

    def _fixed(self, key: str) -> str:
        """A property that does not change while the collection exists."""
        self._properties = self._properties or self.read_about()
        return self._properties.get(key, "")

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
        """The measured recall of approximate searches, by modality; None if searches are exact."""
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
        # Recording them is itself a change: the sizes are those of the generation that it makes.
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

    def code_rows(self, changes: Transaction) -> dict[str, CodeRows]:
        """The complete rows of codes that a change writes, by modality."""
        modalities, recoded = self.modalities(), changes.recoded()
        stored = {modality: self.codes_of(modality, recoded) for modality in modalities} if recoded else {}
        return changes.code_rows(modalities, stored, bytes_of(self.bits))

    # -- reading ----------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Item | None:
        """The item with this name."""
        return next(iter(self.found_by("name", [name])), None)

    def with_contents(self, contents: Iterable[bytes]) -> dict[bytes, Item]:
        """The oldest item with each of these contents; contents without an item are left out."""
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

    @abstractmethod
    def create(self, bits: int, modalities: Sequence[str], about: Mapping[str, str]) -> None:
        """Create an empty collection with these properties. Must be idempotent: it may have been interrupted before."""

    @abstractmethod
    def migrate(self) -> None:
        """Bring a collection of an older format to this one; the caller records the format. Must be idempotent."""

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
        """Make searches fast after many changes. Returns measured properties to record."""

    @abstractmethod
    def read_about(self) -> dict[str, str]:
        """The properties of the collection; empty if it does not exist."""

    @abstractmethod
    def __len__(self) -> int: ...

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
    def index(self, modality: str) -> CodeIndex:
        """The codes of a modality, to be searched."""

    @abstractmethod
    def upload_model(self, files: Mapping[str, bytes]) -> None:
        """Store the files of a model on the server, if it can store them."""

    @abstractmethod
    def download_model(self) -> dict[str, bytes] | None:
        """The files of the model on the server, if it has them."""
