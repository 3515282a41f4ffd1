"""The catalogue of an index folder: items, codes, fine vectors and words in one SQLite file.

It is the source of truth: what is committed here survives a kill and a power cut, and everything else can be derived from
it. The file has a rollback journal, which exists only during a change, so an index can be copied to, and searched on, a
read-only disk; synchronous=EXTRA also waits until the journal's removal, which is the commit, is on the disk.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dcmh import __version__
from dcmh.errors import BusyError, ModelError, StorageError
from dcmh.index.protocol import ascending
from dcmh.stores.base import Filter, Ids, Item, Scalar, Skipped, item_words, was_uploaded
from dcmh.util import checksums
from dcmh.util.arrays import rows_of
from dcmh.util.atomic import sync_folder, whole_file, write_text
from dcmh.util.formats import readable
from dcmh.util.text import index_words

# Version n of the schema is the result of the first n steps. An older file gets those it lacks. Append; never edit.
MIGRATIONS = [
    """
    CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE items (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL UNIQUE,
        path TEXT,
        text TEXT,
        labels TEXT NOT NULL DEFAULT '[]',
        content BLOB,
        size INTEGER,
        mtime_ns INTEGER
    );
    CREATE INDEX items_by_content ON items (content);
    CREATE TABLE codes (
        modality TEXT NOT NULL,
        id INTEGER NOT NULL,
        code BLOB NOT NULL,
        PRIMARY KEY (modality, id)
    ) WITHOUT ROWID;
    CREATE TABLE skipped (
        name TEXT PRIMARY KEY,
        reason TEXT NOT NULL,
        size INTEGER,
        mtime_ns INTEGER
    ) WITHOUT ROWID;
    INSERT INTO about VALUES ('generation', '0');
    """,
    """
    CREATE TABLE fine (
        modality TEXT NOT NULL,
        id INTEGER NOT NULL,
        vector BLOB NOT NULL,
        PRIMARY KEY (modality, id)
    ) WITHOUT ROWID;
    CREATE VIRTUAL TABLE words USING fts5
        (tokens, detail=none, tokenize="unicode61 remove_diacritics 0 categories 'L* M* N* Co Pc'");
    CREATE VIRTUAL TABLE word_counts USING fts5vocab (words, row);
    INSERT INTO words (rowid, tokens) SELECT id, index_words(text, labels) FROM items;
    """,
    """
    ALTER TABLE items ADD COLUMN uploaded INTEGER NOT NULL DEFAULT 0;
    UPDATE items SET uploaded = 1 WHERE name LIKE 'upload:%' AND was_uploaded(name, path, text);
    """,
    """
    ALTER TABLE items ADD COLUMN taken TEXT;
    ALTER TABLE items ADD COLUMN extra TEXT NOT NULL DEFAULT '{}';
    CREATE INDEX items_by_taken ON items (taken);
    CREATE INDEX items_by_path ON items (path);
    CREATE TABLE attributes (
        name TEXT NOT NULL,
        value NOT NULL,
        id INTEGER NOT NULL,
        PRIMARY KEY (name, value, id)
    ) WITHOUT ROWID;
    INSERT OR IGNORE INTO attributes SELECT 'label', json_each.value, items.id FROM items, json_each(items.labels);
    """,
]

LABEL, COLUMN = "label", "column "  # names of attributes; that of an extra column follows the latter
_COLUMNS = "id, name, path, text, labels, content, size, mtime_ns"
KEPT_IDS = 4_000_000  # ids of items that contain recent words, 8 bytes each
SHORT = 30  # ids of a word's list that are read in the time in which one item's words are looked up
_AT_ONCE = 500  # SQLite takes at least 999 parameters


class Catalogue:
    """An open catalogue. Threads may share it. Changes are made inside `writing()`, all of them or none."""

    SEAL = "catalogue.json"  # the file with its checksum

    def __init__(self, path: Path | str) -> None:
        self._lock = threading.RLock()
        self._holders: OrderedDict[str, Ids] = OrderedDict()  # word to the items that contain it
        self._holders_generation = -1
        self._connect(Path(path))

    def _connect(self, path: Path) -> None:
        self.path = path
        self._damaged, self._hint = f"The index {path.parent} is damaged: {path.name}: {{reason}}.", _again(path)
        self._closed = False
        if not self.path.is_file():
            raise ModelError(
                f"The index {self.path.parent} is damaged: {self.path.name} is missing.", hint=_again(self.path)
            )
        with self._explained():
            # Mode rw does not create, and falls back to reading where the file may not be written.
            self._database = sqlite3.connect(
                f"{self.path.resolve().as_uri()}?mode=rw",
                uri=True,
                timeout=10,
                isolation_level=None,
                check_same_thread=False,
            )
        self._database.create_function("index_words", 2, _index_words, deterministic=True)
        self._database.create_function("was_uploaded", 3, self._was_uploaded)
        try:
            self._run("PRAGMA synchronous = EXTRA")
            self._migrate()
        except BaseException:
            self.close()
            raise

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

    def close(self) -> None:
        """Close the file."""
        self._closed = True
        self._database.close()

    @property
    def place(self) -> str:
        """The folder of the index."""
        return str(self.path.parent)

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

    # -- the checksum of the whole file ---------------------------------------------------------------------------

    def seal(self) -> None:
        """Record the checksum of the file, which the next change removes. Needs the only writer of the index."""
        with self._lock:
            if int(self._run("PRAGMA wal_checkpoint(TRUNCATE)")[0][0]):  # a reader keeps part of it outside the file
                return
            entry = {"size": self.path.stat().st_size, "sha256": checksums.sha256(self.path)}
            write_text(self.path.with_name(self.SEAL), checksums.sealed_json(entry))

    def problem(self) -> str | None:
        """What is wrong with the structure of the file, by SQLite's own checks of tables, indexes and words."""
        rows = self._run("PRAGMA integrity_check(3)")
        if [row[0] for row in rows] != ["ok"]:
            return "; ".join(str(row[0]) for row in rows)
        if self.has_words and os.access(self.path, os.W_OK):
            try:
                self._run("INSERT INTO words (words) VALUES ('integrity-check')")
            except ModelError as error:
                return error.what
        return None

    def _unseal(self) -> None:
        """Remove the checksum durably: one that is older than the file would look like damage."""
        path = self.path.with_name(self.SEAL)
        if path.exists():
            path.unlink()
            sync_folder(path.parent)

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
        found: dict[bytes, Item] = {}
        command = f"SELECT {self._columns} FROM items WHERE content IN ({{}}) ORDER BY id"
        for item in self._items(self._many(command, list(set(contents)))):
            found.setdefault(item.content or b"", item)
        return found

    def put(self, item: Item) -> int:
        """Add an item, or replace the one with its id; returns the id."""
        labels = json.dumps(item.labels, ensure_ascii=False)
        values = (item.name, item.path, item.text, labels)
        taken = None if item.taken is None else item.taken.isoformat(timespec="seconds")
        extra = json.dumps(dict(item.extra), ensure_ascii=False)
        values_of_file = (item.content, item.size, item.mtime_ns, int(item.uploaded), taken, extra)
        with self._lock, self._explained():
            if item.id:
                self._forget(item.id)
                self._describe(item.id, item)
                self._database.execute(
                    "UPDATE words SET tokens = ? WHERE rowid = ?", (" ".join(item_words(item)), item.id)
                )
                self._database.execute(
                    "UPDATE items SET name=?, path=?, text=?, labels=?, content=?, size=?, mtime_ns=?, uploaded=?, "
                    "taken=?, extra=? WHERE id=?",
                    (*values, *values_of_file, item.id),
                )
                return item.id
            cursor = self._database.execute(
                "INSERT INTO items (name, path, text, labels, content, size, mtime_ns, uploaded, taken, extra) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*values, *values_of_file),
            )
            number = int(cursor.lastrowid or 0)
            self._database.execute(
                "INSERT INTO words (rowid, tokens) VALUES (?, ?)", (number, " ".join(item_words(item)))
            )
            self._describe(number, item)
            return number

    def _describe(self, number: int, item: Item) -> None:
        """Record the attributes of an item, by which it is filtered."""
        rows = [(name, value, number) for name, value in _attributes(item)]
        self._database.executemany("INSERT OR IGNORE INTO attributes VALUES (?, ?, ?)", rows)

    def _forget(self, number: int) -> None:
        """Remove the attributes of an item."""
        for item in self.get([number]).values():
            rows = [(name, value, number) for name, value in _attributes(item)]
            self._database.executemany("DELETE FROM attributes WHERE name = ? AND value = ? AND id = ?", rows)

    def remove(self, ids: Iterable[int]) -> None:
        """Remove items with their codes, fine vectors and words."""
        modalities, fine = self.coded_modalities(), self._names("fine")
        for item in ids:
            self._forget(item)
            self._run("DELETE FROM items WHERE id = ?", (item,))
            self._run("DELETE FROM words WHERE rowid = ?", (item,))
            for modality in fine:
                self.set_fine(item, modality, None)
            for modality in modalities:
                self.set_code(item, modality, None)

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
        found = [""]
        while rows := self._run(f"SELECT min(modality) FROM {table} WHERE modality > ?", (found[-1],)):
            if rows[0][0] is None:
                break
            found.append(rows[0][0])
        return found[1:]

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
            kept = self._kept_holders()
            found = {word: len(kept[word]) if word in kept else 0 for word in words}
            others = [word for word in found if word not in kept]
            found |= self._many("SELECT term, doc FROM word_counts WHERE term IN ({})", others)
        return found

    def with_word(self, word: str, among: Ids | Sequence[int] | None = None) -> Ids:
        """The ids of the items that contain a word, ascending; with `among`, only those of these items."""
        if not self.has_words:
            return np.empty(0, np.int64)
        wanted = None if among is None else np.sort(np.asarray(among, np.int64))
        with self._lock:
            if wanted is None:
                return self._with_word(word)
            if self.word_counts([word])[word] <= SHORT * len(wanted):
                return wanted[rows_of(self._with_word(word), wanted)[1]]
        command = "SELECT rowid FROM words WHERE instr(' ' || tokens || ' ', ?) AND rowid IN ({})"
        return np.array(sorted(row[0] for row in self._many(command, wanted.tolist(), f" {word} ")), np.int64)

    def _with_word(self, word: str) -> Ids:
        """`with_word` for all items; lists of recent words are kept until the catalogue changes."""
        kept = self._kept_holders()
        if word in kept:
            kept.move_to_end(word)
            return kept[word]
        ids = self._ids("SELECT rowid AS id FROM words WHERE words MATCH ? ORDER BY rowid", (f'"{word}"',))
        ids.flags.writeable = False
        kept[word] = ids
        while len(kept) > 1 and sum(map(len, kept.values())) > KEPT_IDS:
            kept.popitem(last=False)
        return ids

    def _kept_holders(self) -> OrderedDict[str, Ids]:
        """The lists of recent words that are still true; during a change, which may yet be undone, none."""
        if self._database.in_transaction:
            return OrderedDict()
        if self._holders_generation != (generation := self.generation):
            self._holders.clear()
            self._holders_generation = generation
        return self._holders

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
        found = None
        for condition, values in _conditions(filter):
            ids = ascending(np.sort(self._ids(f"SELECT id FROM {condition}", values)))
            found = ids if found is None else np.intersect1d(found, ids, assume_unique=True)
        if found is None:
            found = self._ids("SELECT id FROM items ORDER BY id")
        return found

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

    # -- inside ---------------------------------------------------------------------------------------------------

    def _run(self, command: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock, self._explained():
            return self._database.execute(command, values).fetchall()

    def _many(self, command: str, values: Sequence[Any], *first: Any) -> Iterator[Any]:
        """The rows for any number of values, which {} in the command stands for; `first` are those of the marks before."""
        for start in range(0, len(values), _AT_ONCE):
            block = [
                int(value) if isinstance(value, np.integer) else value for value in values[start : start + _AT_ONCE]
            ]
            yield from self._run(command.replace("{}", ",".join("?" * len(block))), (*first, *block))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Inside the block all commands are one transaction, which begins by removing the checksum of the file."""
        with self._lock:
            self._run("BEGIN IMMEDIATE")
            try:
                self._unseal()
                yield
                self._run("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
                raise

    def _migrate(self) -> None:
        version = int(self._run("PRAGMA user_version")[0][0])
        if version > len(MIGRATIONS):
            raise ModelError(
                f"{self.path.parent} has a catalogue of version {version}; this dcmh ({__version__}) reads up to "
                f"{len(MIGRATIONS)}.",
                hint="Upgrade: pip install -U dcmh",
            )
        if version < len(MIGRATIONS):
            try:
                self._take_steps()
            except (ModelError, StorageError):
                if version == 0 or (os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK)):
                    raise
            else:
                version = len(MIGRATIONS)
        self.has_words = version >= 2  # an older, read-only index has neither words nor fine vectors
        names = [row[1] for row in self._run("PRAGMA table_info(items)")]
        self._uploaded = "uploaded" if "uploaded" in names else "was_uploaded(name, path, text)"  # older and read-only
        self._has_attributes = "extra" in names
        self._columns = f"{_COLUMNS}, {self._uploaded}, {'taken, extra' if self._has_attributes else 'NULL, NULL'}"
        self._run("SELECT value FROM about WHERE key = 'generation'")  # is it a catalogue at all

    def _was_uploaded(self, name: str, path: str | None, text: str | None) -> bool:
        return was_uploaded(self.path.parent, name, path, text)

    def _take_steps(self) -> None:
        with self._transaction():
            version = int(self._run("PRAGMA user_version")[0][0])  # another process may have been quicker
            for step in MIGRATIONS[version:]:
                for statement in filter(str.strip, step.split(";")):
                    self._run(statement)
            self._run(f"PRAGMA user_version = {max(version, len(MIGRATIONS))}")

    def _is_hot(self) -> bool:
        """Whether an interrupted change has left its journal."""
        journal = self.path.with_name(f"{self.path.name}-journal")
        return journal.is_file() and journal.stat().st_size > 0

    def _items(self, rows: Iterable[Sequence[Any]]) -> list[Item]:
        with self._readable():
            return [_item(row) for row in rows]

    def _readable(self) -> contextlib.AbstractContextManager[None]:
        """Inside the block, rows that hold something else than they should are an error that says what to do."""
        return readable(self.path, ModelError, what=self._damaged, hint=self._hint)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of SQLite into errors that say what to do."""
        try:
            yield
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # its own message may quote damaged bytes
            folder, name = self.path.parent, getattr(error, "sqlite_errorname", "")
            if self._closed:
                raise ModelError(f"The index {folder} was closed.", hint="Open it again: SearchIndex.open.") from error
            if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise BusyError(f"Another process is writing {folder}.", hint="Wait for it, then try again.") from error
            if name == "SQLITE_READONLY_ROLLBACK" or (
                name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_IOERR_DELETE")) and self._is_hot()
            ):
                raise StorageError(
                    f"{folder} was being changed when its process or machine stopped, and cannot be restored where it is, "
                    "because it is read-only.",
                    state="read-only",
                    which=folder,
                    hint="Copy the whole folder to a place that can be written and open it there, or make it writable.",
                ) from error
            if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
                raise StorageError(
                    f"Cannot write to {folder} ({error}).",
                    state="read-only",
                    which=folder,
                    hint="Check its permissions, or copy it.",
                ) from error
            if (storage := StorageError.of(error, folder)) is not None:
                raise storage from error
            raise ModelError(
                f"The index {folder} is damaged: {self.path.name}: {error}.", hint=_again(self.path)
            ) from error


def drop_journal(path: Path) -> None:
    """Remove the journal of a catalogue that is about to be replaced: SQLite would roll it back into the new file."""
    journal = path.with_name(f"{path.name}-journal")
    if journal.exists():
        journal.unlink()
        sync_folder(path.parent)


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
    """Names and values by which an item is filtered, besides its path and date."""
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


def _index_words(text: str | None, labels: str) -> str:
    """The words of an item's text and labels: the whole of what an index of an older version is searched by."""
    return " ".join(index_words(" ".join([text or "", *json.loads(labels)])))


def _again(path: Path) -> str:
    return f"Make it again: dcmh index DATA --model MODEL --out {path.parent} --rebuild"
