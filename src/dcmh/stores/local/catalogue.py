"""The catalogue of an index folder: items, codes, fine vectors and words in one SQLite file.

It is the source of truth: what is committed here survives a kill and a power cut, and everything else can be derived from
it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial, reduce
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ModelError
from dcmh.index.protocol import ascending
from dcmh.stores.base import Filter, Ids, Item, Scalar, Skipped, item_words
from dcmh.stores.local.database import Database, drop_journal
from dcmh.util.arrays import rows_of
from dcmh.util.atomic import whole_file

LABEL, COLUMN = "label", "column "  # names of attributes; that of an extra column follows the latter
CACHED_IDS = 4_000_000  # in the postings of recent words, 8 bytes each
IDS_PER_LOOKUP = 30  # of a word's postings: reading them takes as long as looking up the words of one item


class Catalogue(Database):
    """An open catalogue. Threads may share it. Changes are made inside `writing()`, all of them or none."""

    def __init__(self, path: Path | str) -> None:
        self._postings: OrderedDict[str, Ids] = OrderedDict()  # recent words to the items that contain them
        self._postings_generation = -1
        super().__init__(path)

    @classmethod
    def create(cls, path: Path | str, about: Mapping[str, str]) -> Self:
        """Create an empty catalogue, replacing an existing file."""
        path = Path(path)
        path.with_name(cls.SEAL).unlink(missing_ok=True)
        drop_journal(path)
        with whole_file(path) as draft:
            catalogue = cls(draft)
            with catalogue.writing():
                for key, value in about.items():
                    catalogue.note(key, value)
            catalogue.close()
        return cls(path)

    @classmethod
    def create_from(cls, other: Path, path: Path, about: Mapping[str, str]) -> None:
        """Create a catalogue with the items of another one, but none of their codes. Needs the only writer of both."""
        with contextlib.closing(cls(other)):  # rolls back what was interrupted, and migrates
            pass
        with whole_file(path) as draft:
            shutil.copyfile(other, draft)
            with contextlib.closing(cls(draft)) as catalogue, catalogue.writing():
                for table in ("codes", "fine", "skipped"):
                    catalogue._run(f"DELETE FROM {table}")
                for key, value in about.items():
                    catalogue.note(key, value)

    def __len__(self) -> int:
        return int(self._run("SELECT count(*) FROM items")[0][0])

    # -- about the whole ------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """A number that grows with every change by any process."""
        with self._readable():
            return int(self.about("generation") or 0)

    def about(self, key: str) -> str | None:
        """A property of the whole index."""
        rows = self._run("SELECT value FROM about WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else None

    def note(self, key: str, value: str) -> None:
        """Set a property of the whole index."""
        self._run("INSERT OR REPLACE INTO about VALUES (?, ?)", (key, value))

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Inside the block all changes are one transaction."""
        with self._transaction():
            yield
            self._run("UPDATE about SET value = value + 1 WHERE key = 'generation'")

    # -- items ----------------------------------------------------------------------------------------------------

    def items(self) -> Iterator[Item]:
        """All items, oldest first."""
        last = -1
        while rows := self._run(f"SELECT {self._columns} FROM items WHERE id > ? ORDER BY id LIMIT 10000", (last,)):
            yield from self._items(rows)
            last = rows[-1][0]

    def get(self, ids: Iterable[int]) -> dict[int, Item]:
        """Items by id; unknown ids are left out."""
        rows = self._many(f"SELECT {self._columns} FROM items WHERE id IN ({{}})", list(ids))
        return {item.id: item for item in self._items(rows)}

    def find(self, name: str) -> Item | None:
        """The item with this name."""
        rows = self._run(f"SELECT {self._columns} FROM items WHERE name = ?", (name,))
        return next(iter(self._items(rows)), None)

    def uploads(self) -> list[Item]:
        """The items that clients of the service have added."""
        return self._items(self._run(f"SELECT {self._columns} FROM items WHERE {self._uploaded}"))

    def with_contents(self, contents: Iterable[bytes]) -> dict[bytes, Item]:
        """The oldest item of each of these contents, where there is one."""
        items: dict[bytes, Item] = {}
        command = f"SELECT {self._columns} FROM items WHERE content IN ({{}}) ORDER BY id"
        for item in self._items(self._many(command, list(set(contents)))):
            items.setdefault(item.content or b"", item)
        return items

    def put(self, item: Item) -> int:
        """Add an item, or replace the one with its id; returns the id."""
        row = {
            "name": item.name,
            "path": item.path,
            "text": item.text,
            "labels": json.dumps(item.labels, ensure_ascii=False),
            "content": item.content,
            "size": item.size,
            "mtime_ns": item.mtime_ns,
            "uploaded": int(item.uploaded),
            "taken": None if item.taken is None else item.taken.isoformat(timespec="seconds"),
            "extra": json.dumps(dict(item.extra), ensure_ascii=False),
        }
        columns, marks, values = ", ".join(row), ", ".join("?" * len(row)), list(row.values())
        words, number = " ".join(item_words(item)), item.id
        with self._lock, self._explained():
            if number:
                self._remove_attributes(number)
                self._database.execute("UPDATE words SET tokens = ? WHERE rowid = ?", (words, number))
                self._database.execute(f"UPDATE items SET ({columns}) = ({marks}) WHERE id = ?", (*values, number))
            else:
                cursor = self._database.execute(f"INSERT INTO items ({columns}) VALUES ({marks})", values)
                number = int(cursor.lastrowid or 0)
                self._database.execute("INSERT INTO words (rowid, tokens) VALUES (?, ?)", (number, words))
            attributes = [(name, value, number) for name, value in _attributes(item)]
            self._database.executemany("INSERT OR IGNORE INTO attributes VALUES (?, ?, ?)", attributes)
        return number

    def _remove_attributes(self, number: int) -> None:
        for item in self.get([number]).values():
            rows = [(name, value, number) for name, value in _attributes(item)]
            self._database.executemany("DELETE FROM attributes WHERE name = ? AND value = ? AND id = ?", rows)

    def remove(self, ids: Iterable[int]) -> None:
        """Remove items with their codes, fine vectors and words."""
        modalities, fine = self.coded_modalities(), self._names("fine")
        for item in ids:
            self._remove_attributes(item)
            self._run("DELETE FROM items WHERE id = ?", (item,))
            self._run("DELETE FROM words WHERE rowid = ?", (item,))
            for modality in fine:
                self.set_fine(item, modality, None)
            for modality in modalities:
                self.set_code(item, modality, None)

    def _items(self, rows: Iterable[Sequence[Any]]) -> list[Item]:
        with self._readable():
            return [_item(row) for row in rows]

    # -- codes ----------------------------------------------------------------------------------------------------

    def set_code(self, item: int, modality: str, code: bytes | None) -> None:
        """Set the packed code of an item in a modality; None removes it."""
        if code is None:
            self._run("DELETE FROM codes WHERE modality = ? AND id = ?", (modality, item))
        else:
            self._run("INSERT OR REPLACE INTO codes VALUES (?, ?, ?)", (modality, item, code))

    def coded_modalities(self) -> list[str]:
        """The modalities in which some item has a code."""
        return self._names("codes")

    def _names(self, table: str) -> list[str]:
        """The modalities in a table, by one step in its primary key for each."""
        names: list[str] = []
        command = f"SELECT min(modality) FROM {table} WHERE modality > ?"
        while (name := self._run(command, (names[-1] if names else "",))[0][0]) is not None:
            names.append(name)
        return names

    def code_counts(self) -> dict[str, int]:
        """The number of items that have a code in each modality."""
        return dict(self._run("SELECT modality, count(*) FROM codes GROUP BY modality"))

    def codes_of(self, modality: str, ids: Iterable[int]) -> dict[int, bytes]:
        """The packed codes of some items in a modality; items without one are left out."""
        return dict(self._many("SELECT id, code FROM codes WHERE modality = ? AND id IN ({})", list(ids), modality))

    def codes(self, modality: str, width: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Ids (n,) and packed codes (n, width) of all items that have a code in a modality, oldest first."""
        rows = self._run("SELECT id, code FROM codes WHERE modality = ? ORDER BY id", (modality,))
        ids, joined = self._joined(rows, width, "codes")
        return ids, np.frombuffer(joined, np.uint8).reshape(len(rows), width)

    # -- fine vectors ---------------------------------------------------------------------------------------------

    def set_fine(self, item: int, modality: str, vector: bytes | None) -> None:
        """Set the fine vector of an item in a modality, one byte per dimension; None removes it."""
        if vector is None:
            self._run("DELETE FROM fine WHERE modality = ? AND id = ?", (modality, item))
        else:
            self._run("INSERT OR REPLACE INTO fine VALUES (?, ?, ?)", (modality, item, vector))

    def fine(self, modality: str) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        """Ids (n,) and fine vectors (n, dimensions) of all items that have one in a modality, oldest first."""
        if not self.has_words:
            return np.empty(0, np.int64), np.empty((0, 0), np.int8)
        rows = self._run("SELECT id, vector FROM fine WHERE modality = ? ORDER BY id", (modality,))
        with self._readable():
            width = len(rows[0][1]) if rows else 0
        ids, joined = self._joined(rows, width, "fine vectors")
        return ids, np.frombuffer(joined, np.int8).reshape(len(rows), width)

    def _joined(self, rows: Sequence[tuple[int, bytes]], width: int, what: str) -> tuple[NDArray[np.int64], bytes]:
        """The ids of rows and their joined values, each `width` bytes long."""
        with self._readable():
            joined = b"".join(value for _, value in rows)
            if len(joined) != len(rows) * width:
                raise ValueError(f"its {what} differ in length")
            return np.fromiter((number for number, _ in rows), np.int64, len(rows)), joined

    def fine_of(self, modality: str, ids: Iterable[int]) -> dict[int, bytes]:
        """The fine vectors of some items in a modality; items without one are left out."""
        if not self.has_words:
            return {}
        return dict(self._many("SELECT id, vector FROM fine WHERE modality = ? AND id IN ({})", list(ids), modality))

    # -- words in texts and labels --------------------------------------------------------------------------------

    def word_counts(self, words: Iterable[str]) -> dict[str, int]:
        """The number of items that contain each word (see `dcmh.stores.base.item_words`)."""
        if not self.has_words:
            return {}
        with self._lock:
            postings = self._current_postings()
            counts = {word: len(postings[word]) if word in postings else 0 for word in words}
            others = [word for word in counts if word not in postings]
            counts |= self._many("SELECT term, doc FROM word_counts WHERE term IN ({})", others)
        return counts

    def with_word(self, word: str, among: Ids | Sequence[int] | None = None) -> Ids:
        """The ids of the items that contain a word, ascending; with `among`, only those of these items."""
        if not self.has_words:
            return np.empty(0, np.int64)
        wanted = None if among is None else np.sort(np.asarray(among, np.int64))
        with self._lock:
            if wanted is None:
                return self._with_word(word)
            if self.word_counts([word])[word] <= IDS_PER_LOOKUP * len(wanted):
                return wanted[rows_of(self._with_word(word), wanted)[1]]
        command = "SELECT rowid FROM words WHERE instr(' ' || tokens || ' ', ?) AND rowid IN ({})"
        return np.array(sorted(row[0] for row in self._many(command, wanted.tolist(), f" {word} ")), np.int64)

    def _with_word(self, word: str) -> Ids:
        """`with_word` for all items."""
        postings = self._current_postings()
        if word in postings:
            postings.move_to_end(word)
            return postings[word]
        ids = self._ids("SELECT rowid AS id FROM words WHERE words MATCH ? ORDER BY rowid", (f'"{word}"',))
        ids.flags.writeable = False
        postings[word] = ids
        while len(postings) > 1 and sum(map(len, postings.values())) > CACHED_IDS:
            postings.popitem(last=False)
        return ids

    def _current_postings(self) -> OrderedDict[str, Ids]:
        """The postings of recent words that are still valid; during a change, which may be rolled back, none."""
        if self._database.in_transaction:
            return OrderedDict()
        if self._postings_generation != (generation := self.generation):
            self._postings.clear()
            self._postings_generation = generation
        return self._postings

    def _ids(self, command: str, values: Sequence[Any] = ()) -> Ids:
        """The ids that a command selects. SQLite joins them: as rows they would take five times as long."""
        ((joined,),) = self._run(f"SELECT group_concat(id) FROM ({command})", values)
        with self._readable():
            return np.empty(0, np.int64) if joined is None else np.fromstring(joined, np.int64, sep=",")

    # -- filters --------------------------------------------------------------------------------------------------

    def matching(self, filter: Filter) -> Ids:  # noqa: A002 - the word for it
        """The ids of the items that pass a filter, ascending; from indexes of the file."""
        if not self._has_attributes:
            raise ModelError(
                f"{self.path.parent} was made by an older version that did not record what filters need, and is read-only.",
                hint="Copy it to a place that can be written, and index the photos again.",
            )
        sets = [
            ascending(np.sort(self._ids(f"SELECT id FROM {condition}", values)))
            for condition, values in _conditions(filter)
        ]
        if not sets:
            return self._ids("SELECT id FROM items ORDER BY id")
        return reduce(partial(np.intersect1d, assume_unique=True), sets)

    # -- what was skipped -----------------------------------------------------------------------------------------

    def skipped(self) -> dict[str, Skipped]:
        """Everything that could not be indexed, by name."""
        rows = self._run("SELECT name, reason, size, mtime_ns FROM skipped ORDER BY name")
        return {name: Skipped(reason, size, mtime_ns) for name, reason, size, mtime_ns in rows}

    def skip(self, name: str, why: Skipped) -> None:
        """Record an item that cannot be indexed."""
        self._run("INSERT OR REPLACE INTO skipped VALUES (?, ?, ?, ?)", (name, why.reason, why.size, why.mtime_ns))

    def unskip(self, names: Iterable[str]) -> None:
        """Remove such records."""
        for name in names:
            self._run("DELETE FROM skipped WHERE name = ?", (name,))


@functools.lru_cache(maxsize=1 << 12)
def _labels(text: str) -> tuple[str, ...]:
    """The labels of an item; those of others are often the same."""
    return tuple(json.loads(text))


def _item(row: Sequence[Any]) -> Item:
    number, name, path, text, labels, content, size, mtime_ns, uploaded, taken, extra = row
    return Item(
        name,
        path,
        text,
        _labels(labels),
        content,
        size,
        mtime_ns,
        number,
        bool(uploaded),
        None if taken is None else datetime.fromisoformat(taken),
        json.loads(extra) if extra and extra != "{}" else {},
    )


def _attributes(item: Item) -> list[tuple[str, Scalar]]:
    """Names and values by which an item is filtered, in addition to its path and date."""
    columns = [(f"{COLUMN}{name}", value) for name, value in item.extra.items()]
    return [*((LABEL, label) for label in item.labels), *columns]


def _conditions(filter: Filter) -> Iterator[tuple[str, list[Any]]]:  # noqa: A002 - the word for it
    """What a filter asks for, each as a table with a condition, and its values."""
    if filter.labels:
        yield f"attributes WHERE name = ? AND value IN ({','.join('?' * len(filter.labels))})", [LABEL, *filter.labels]
    if filter.prefix is not None:
        yield "items WHERE path >= ? AND path < ?", [filter.prefix, f"{filter.prefix[:-1]}0"]  # 0 follows /
    first, end = (None if moment is None else moment.isoformat(timespec="seconds") for moment in filter.taken)
    if first is not None or end is not None:
        yield "items WHERE taken >= ? AND taken < ?", [first or "", end or ":"]  # : follows 9
    for condition in filter.conditions:
        # SQLite sorts numbers before texts, of which '' is the first.
        kind = f"AND value {'>=' if isinstance(condition.value, str) else '<'} ''"
        same = "" if condition.operator in ("=", "!=") else kind
        test = f"attributes WHERE name = ? AND value {condition.operator} ? {same}"
        yield test, [f"{COLUMN}{condition.column}", condition.value]
