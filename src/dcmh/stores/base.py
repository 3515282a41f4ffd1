"""The `Store` protocol: what a search index needs of a folder, of PostgreSQL and of Milvus; and the items that they store."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ModelMismatch
from dcmh.index.protocol import Index
from dcmh.stores.address import Address

Ids = NDArray[np.int64]
Scores = NDArray[np.float32]

EVERYTHING = 200_000  # items up to which every fine vector is scored; of more, those of candidates
COMMON = 20_000  # items that contain a word, beyond which a word counts as common and need not be counted further

UPDATE = "update"  # key in `about`: whether the last run over the whole data finished
UNFINISHED, FINISHED = "unfinished", "finished"
UPLOADS, UPLOADED = "uploads", "upload:"  # the folder of uploaded pictures, and the prefix of their items' names
UPLOADED_FILE = re.compile(r"[0-9a-f]{32}\.(?:jpg|png|webp|gif|bmp|tiff)")  # the hash of its content


@dataclass(frozen=True)
class Item:
    """One item. `content` is the hash of its picture or vectors; a relative `path` starts at the data's root."""

    name: str
    path: str | None = None
    text: str | None = None
    labels: tuple[str, ...] = ()
    content: bytes | None = None
    size: int | None = None
    mtime_ns: int | None = None
    id: int = 0
    uploaded: bool = False  # added by a client of the service, with its file among the uploads; never set by data


@dataclass(frozen=True)
class Skipped:
    """Why an item cannot be indexed, and the state of its file when that was found out."""

    reason: str
    size: int | None = None
    mtime_ns: int | None = None


def was_uploaded(folder: Path, name: str, path: str | None, text: str | None) -> bool:
    """Whether an item is an upload, in an index of a version that did not record it: by its name and its file."""
    file = name.removeprefix(UPLOADED)
    if file == name:
        return False
    if path is None:
        return text is not None and file == hashlib.blake2b(text.encode(errors="replace"), digest_size=16).hexdigest()
    stored = folder / UPLOADS / file
    return UPLOADED_FILE.fullmatch(file) is not None and stored.is_file() and not stored.is_symlink()


class FineVectors(Protocol):
    """The fine vectors of one modality, wherever they are."""

    def __len__(self) -> int: ...

    def scores(self, query: NDArray[np.float32]) -> tuple[Ids, Scores]:
        """All ids, ascending, and the inner product of each vector with the query."""

    def scores_of(self, query: NDArray[np.float32], wanted: Ids) -> Scores:
        """The inner products of some items; nan for an item without a vector."""


SomeIndex = TypeVar("SomeIndex", bound=Index, covariant=True)
SomeFine = TypeVar("SomeFine", bound=FineVectors, covariant=True)


@dataclass(frozen=True)
class Snapshot(Generic[SomeIndex, SomeFine]):
    """What searches read, as of a generation of the store. A search keeps the snapshot it started with."""

    indexes: Mapping[str, SomeIndex]  # by modality in which some item has a code
    fine: Mapping[str, SomeFine]  # by modality in which some item has a fine vector
    items: int
    generation: int


class Store(Protocol):
    """The items of one index with their codes, fine vectors and words.

    Threads may read at the same time. One process at a time changes a store, inside `writer()`; each `writing()` block in
    it is one transaction. Ids grow and are never reused.
    """

    @property
    def place(self) -> str:
        """The store's name for people: a path, or an address without its password."""

    @property
    def where(self) -> Path | Address:
        """What opens the store again."""

    @property
    def folder(self) -> Path:
        """A folder on this machine for files that belong to the index, such as uploads."""

    @property
    def model(self) -> Path:
        """The folder of the model on this machine."""

    @property
    def root(self) -> Path | None:
        """The folder that relative paths of items start at."""

    @property
    def snapshot(self) -> Snapshot[Index, FineVectors]:
        """The codes and fine vectors as of the last `read`."""

    @property
    def generation(self) -> int:
        """A number that grows with every change by any process."""

    @property
    def has_words(self) -> bool:
        """Whether the words of texts and labels are indexed."""

    def modalities(self) -> Sequence[str]:
        """The modalities in which an item can have a code."""

    def recall(self) -> dict[str, float] | None:
        """The measured recall of an approximate search, by modality; None where searches are exact."""

    def replaced(self) -> bool:
        """Whether the index was rebuilt since it was opened, so that it must be opened again."""

    def close(self) -> None:
        """Release connections and files."""

    # -- reading ----------------------------------------------------------------------------------------------------

    def about(self, key: str) -> str | None:
        """A property of the whole index, such as "codes" or "root"."""

    def items(self) -> Iterator[Item]:
        """All items, oldest first."""

    def get(self, ids: Iterable[int]) -> dict[int, Item]:
        """Items by id; unknown ids are left out."""

    def find(self, name: str) -> Item | None:
        """The item with this name."""

    def uploads(self) -> list[Item]:
        """The items that clients of the service have added."""

    def with_contents(self, contents: Iterable[bytes]) -> dict[bytes, Item]:
        """The oldest item of each of these contents, where there is one."""

    def codes_of(self, modality: str, ids: Iterable[int]) -> dict[int, bytes]:
        """The packed codes of some items in a modality; items without one are left out."""

    def fine_of(self, modality: str, ids: Iterable[int]) -> dict[int, bytes]:
        """The fine vectors of some items in a modality, one byte per dimension; items without one are left out."""

    def word_counts(self, words: Sequence[str]) -> dict[str, int]:
        """The number of items that contain each word in their text or labels. It may stop counting at COMMON."""

    def with_word(self, word: str, among: Sequence[int] | None = None) -> Ids:
        """The ids of the items that contain a word, ascending; with `among`, only those of these items."""

    def skipped(self) -> dict[str, Skipped]:
        """Everything that could not be indexed, by name."""

    # -- changing ---------------------------------------------------------------------------------------------------

    def writer(self) -> contextlib.AbstractContextManager[None]:
        """Inside the block no other process writes; BusyError where one does."""

    def writing(self) -> contextlib.AbstractContextManager[None]:
        """Inside the block all changes are one transaction. Needs `writer`."""

    def note(self, key: str, value: str) -> None:
        """Set a property of the whole index."""

    def put(self, item: Item) -> int:
        """Add an item, or replace the one with its id; returns the id."""

    def set_code(self, item: int, modality: str, code: bytes | None) -> None:
        """Set the packed code of an item in a modality; None removes it."""

    def set_fine(self, item: int, modality: str, vector: bytes | None) -> None:
        """Set the fine vector of an item in a modality; None removes it."""

    def remove(self, ids: Iterable[int]) -> None:
        """Remove items with their codes, fine vectors and words."""

    def skip(self, name: str, why: Skipped) -> None:
        """Record an item that cannot be indexed."""

    def unskip(self, names: Iterable[str]) -> None:
        """Remove such records."""

    def noted_roots(self) -> list[Path]:
        """Where the data may be: the recorded folders, the likeliest first."""

    def remember_root(self, root: Path | None) -> None:
        """Record the folder of the data. Needs `writer`."""

    def read(self, changed: Iterable[int] | None = None) -> None:
        """Take a new snapshot. With `changed`, only these items were added, changed or removed since the last one."""

    def restore(self) -> None:
        """After a DamagedError: derive codes and fine vectors again, and take a new snapshot."""

    def settle(self, skipped: Sequence[tuple[str, str]] | None = None) -> None:
        """After changes: take a new snapshot and prepare fast opening and searching. Needs `writer`.

        `skipped` lists (name, reason) of a finished update, for a store that shows this list to people.
        """


SomeStore = TypeVar("SomeStore", bound="Closable")


class Closable(Protocol):
    """Anything with a `close` method."""

    def close(self) -> None: ...


@contextlib.contextmanager
def closed_on_error(store: SomeStore) -> Iterator[SomeStore]:
    """Close the store if the block raises."""
    try:
        yield store
    except BaseException:
        store.close()
        raise


def check_model(place: Path | str, was: str, given: str, command: str | None = None) -> None:
    """Refuse another model than the index was built with. `was` and `given` are fingerprints."""
    if was == given:
        return
    shown = 4 if was[:4] != given[:4] else len(was)
    again = command or f"dcmh index DATA --model MODEL --out {shlex.quote(str(place))} --rebuild"
    raise ModelMismatch(f"{place} was built with model {was[:shown]}, not {given[:shown]}.", hint=f"Rebuild: {again}")
