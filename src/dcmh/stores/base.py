"""The `Store` protocol: what a search index needs of a folder, of PostgreSQL and of Milvus; and the items that they store."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ModelMismatch, ParameterError
from dcmh.index.protocol import Index
from dcmh.stores.address import Address
from dcmh.util.text import as_scalar, folder_words, index_words, sanitized

Ids = NDArray[np.int64]
Scores = NDArray[np.float32]

EVERYTHING = 200_000  # maximum number of items for which every fine vector is scored; beyond it, those of candidates
COMMON = 20_000  # a word in this many items is common, and need not be counted further

UPDATE = "update"  # key in `about`: whether the last run over the whole data finished
UNFINISHED, FINISHED = "unfinished", "finished"
UPGRADING = "upgrading"  # instead of these: the items have no codes of the new model yet
UPLOADS, UPLOADED = "uploads", "upload:"  # the folder of uploaded pictures, and the prefix of their items' names
UPLOADED_FILE = re.compile(r"[0-9a-f]{32}\.(?:jpg|png|webp|gif|bmp|tiff|avif|heic)")  # the hash of its content


COLUMNS = "columns"  # key in `about`: the extra columns of the data, as a JSON list

Scalar = str | int | float
OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
_CONDITION = re.compile(
    r"\s*(?P<column>[^=!<>]*[^=!<>\s])\s*(?P<operator>!=|<=|>=|=|<|>)(?P<value>[^=<>].*)", re.DOTALL
)
_DATE = re.compile(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2}))?)?")


@dataclass(frozen=True)
class Item:
    """One item. `content` is the hash of its picture or vectors; a relative `path` starts at the data's root.

    `taken` is when its photo was taken, or else when its file was written, in local time; None in an index made by a version
    that did not record it. `extra` are the cells of the table's columns that are neither modalities nor labels.
    """

    name: str
    path: str | None = None
    text: str | None = None
    labels: tuple[str, ...] = ()
    content: bytes | None = None
    size: int | None = None
    mtime_ns: int | None = None
    id: int = 0
    uploaded: bool = False  # added by a client of the service, with its file among the uploads; never set by data
    taken: datetime | None = None
    extra: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Condition:
    """A condition on an extra column, which an item without the column never meets.

    Numbers are compared with numbers, and texts with texts; a number and a text are only unequal.
    """

    column: str
    operator: str
    value: Scalar

    @classmethod
    def parse(cls, text: str) -> Condition:
        """A condition such as "rating >= 4"."""
        match = _CONDITION.fullmatch(text)
        value = as_scalar(match["value"].strip().removeprefix('"').removesuffix('"')) if match else None
        if match is None or value is None:
            raise ParameterError(
                f"Not a condition: {text!r}.", hint=f"Write COLUMN {' '.join(OPERATORS)} VALUE, such as 'rating >= 4'."
            )
        return cls(match["column"], match["operator"], value)


@dataclass(frozen=True)
class Filter:
    """Which items may be hits: those that meet every condition given.

    Parameters
    ----------
    labels
        Items with any of these labels.
    folder
        Items whose file is in this folder or a subfolder of it.
    since, until
        Items of these dates and between them: a year, a month, a day, or a time, as in 2019, 2019-07 and 2019-07-14T18:30;
        in local time, unless the time has a zone, as in 2019-07-14T18:30+02:00.
    where
        Conditions such as "rating >= 4" on extra columns of the table that was indexed, with =, !=, <, <=, > or >=.
    """

    labels: Sequence[str] = ()
    folder: str | None = None
    since: str | None = None
    until: str | None = None
    where: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("labels", "where"):
            value = getattr(self, name)
            values = (value,) if isinstance(value, str) else value or ()
            object.__setattr__(self, name, tuple(sanitized(str(one)) for one in values))
        if self.folder is not None:
            folder = sanitized(str(self.folder)).replace("\\", "/").strip()
            object.__setattr__(self, "folder", re.sub(r"(?<=.)/+$", "", re.sub(r"^(\./)+", "", folder)))
        for name in ("since", "until"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else str(value))
        assert self.conditions is not None  # checked
        assert self.taken is not None

    def __bool__(self) -> bool:
        return bool(self.labels or self.folder or self.since or self.until or self.where)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions on extra columns."""
        return tuple(map(Condition.parse, self.where))

    @property
    def taken(self) -> tuple[datetime | None, datetime | None]:
        """The start of the range, and its exclusive end; None where it is open."""
        return None if self.since is None else _moments(self.since)[0], None if self.until is None else _moments(
            self.until
        )[1]

    @property
    def prefix(self) -> str | None:
        """The common prefix of the paths in the folder."""
        return None if not self.folder or self.folder == "." else f"{self.folder.rstrip('/')}/"

    def to_json(self) -> dict[str, Any]:
        """The conditions given, as a record for JSON."""
        return {name: value for name, value in vars(self).items() if value}


def _moments(text: str) -> tuple[datetime, datetime]:
    """The beginning of a year, month, day or second, and the beginning of the next."""
    moment = re.sub(r"^(\d{4})(\d\d)(\d\d)$", r"\1-\2-\3", text.strip())  # 20190714 is a day, not its first second
    try:
        if match := _DATE.fullmatch(moment):
            year, month, day = (None if part is None else int(part) for part in match.groups())
            first = datetime(year or 0, month or 1, day or 1)
            if day is not None:
                return first, first + timedelta(days=1)
            if month is not None:
                return first, datetime(first.year + month // 12, month % 12 + 1, 1)
            return first, datetime(first.year + 1, 1, 1)
        first = datetime.fromisoformat(moment)
        if first.tzinfo is not None:
            first = first.astimezone()  # in local time, as dates of photos are
        first = first.replace(tzinfo=None, microsecond=0)
        return first, first + timedelta(seconds=1)
    except (ValueError, OverflowError, OSError):
        raise ParameterError(
            f"Not a date: {text!r}.",
            hint="Write a year, a month, a day or a time, such as 2019, 2019-07 or 2019-07-14.",
        ) from None


def item_words(item: Item) -> list[str]:
    """The words that an item is indexed under: those of its text, or else of its folders, and of its labels."""
    text = item.text or (folder_words(item.path) if item.path and not item.uploaded else "")
    return index_words(" ".join([text, *item.labels]))


@dataclass(frozen=True)
class Skipped:
    """Why an item cannot be indexed, and the state of its file at that time."""

    reason: str
    size: int | None = None
    mtime_ns: int | None = None


def was_uploaded(folder: Path, name: str, path: str | None, text: str | None) -> bool:
    """Whether an item is an upload, judged by its name and file, for an index whose version did not record it."""
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


def stacked(vectors: Mapping[int, bytes], width: int) -> tuple[Ids, NDArray[np.int8]]:
    """Ids, ascending, and fine vectors (n, width)."""
    ids = np.array(sorted(vectors), np.int64)
    joined = b"".join(vectors[number] for number in ids.tolist())
    return ids, np.frombuffer(joined, np.int8).reshape(len(ids), width)


SomeIndex = TypeVar("SomeIndex", bound=Index, covariant=True)
SomeFine = TypeVar("SomeFine", bound=FineVectors, covariant=True)


@dataclass(frozen=True)
class Snapshot(Generic[SomeIndex, SomeFine]):
    """What searches read: the store at one generation. A search keeps the snapshot it started with."""

    indexes: Mapping[str, SomeIndex]  # by modality in which some item has a code
    fine: Mapping[str, SomeFine]  # by modality in which some item has a fine vector
    items: int
    generation: int


class Store(Protocol):
    """The items of one index with their codes, fine vectors and words.

    Threads may read at the same time. One process at a time changes a store, inside `writer()`; each `writing()` block in
    it is one transaction. Ids grow and are never reused.
    """

    place: str
    """The store's display name: a path, or an address without its password."""
    where: Path | Address
    """The path or address that opens the store again."""
    folder: Path
    """A folder on this machine for files that belong to the index, such as uploads."""
    model: Path
    """The folder of the model on this machine."""
    snapshot: Snapshot[Index, FineVectors]
    """The codes and fine vectors as of the last `read`."""

    @property
    def root(self) -> Path | None:
        """The folder that relative paths of items start at."""

    @property
    def generation(self) -> int:
        """A number that grows with every change by any process."""

    @property
    def has_words(self) -> bool:
        """Whether the words of items are indexed."""

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
        """The oldest item with each of these contents; contents without an item are left out."""

    def codes_of(self, modality: str, ids: Iterable[int]) -> dict[int, bytes]:
        """The packed codes of some items in a modality; items without one are left out."""

    def fine_of(self, modality: str, ids: Iterable[int]) -> dict[int, bytes]:
        """The fine vectors of some items in a modality, one byte per dimension; items without one are left out."""

    def word_counts(self, words: Sequence[str]) -> dict[str, int]:
        """The number of items that contain each word (see `item_words`). It may stop counting at COMMON."""

    def with_word(self, word: str, among: Ids | Sequence[int] | None = None) -> Ids:
        """The ids of the items that contain a word, ascending; with `among`, only those of these items."""

    def matching(self, filter: Filter) -> Ids:  # noqa: A002 - the word for it
        """The ids of the items that pass a filter, ascending."""

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

    def data_folders(self) -> list[Path]:
        """Where the data may be: the recorded folders, most likely first."""

    def remember_root(self, root: Path | None) -> None:
        """Record the folder of the data. Needs `writer`."""

    def read(self, changed: Iterable[int] | None = None) -> None:
        """Take a new snapshot. With `changed`, only these items have been added, changed or removed since the last one."""

    def restore(self) -> None:
        """After a DamagedError: derive codes and fine vectors again, and take a new snapshot."""

    def settle(self, skipped: Sequence[tuple[str, str]] | None = None) -> None:
        """After changes: take a new snapshot and prepare fast opening and searching. Needs `writer`.

        `skipped` lists (name, reason) of a finished update, for a store that shows this list to people.
        """


SomeStore = TypeVar("SomeStore", bound=Store)


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
    again = command or f"dcmh index DATA --model MODEL --out {shlex.quote(str(place))} --upgrade"
    raise ModelMismatch(
        f"{place} was built with model {was[:shown]}, not {given[:shown]}.", hint=f"Upgrade it: {again}"
    )
