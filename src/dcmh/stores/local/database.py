"""The SQLite file of a catalogue: its schema, transactions and checksum, and errors that say what to do.

The file has a rollback journal, which exists only during a change, so an index can be copied to, and searched on, a
read-only disk; synchronous=EXTRA also waits until the journal's removal, which is the commit, is on the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dcmh import __version__
from dcmh.errors import BusyError, ModelError, StorageError
from dcmh.stores.base import was_uploaded
from dcmh.util import checksums
from dcmh.util.atomic import sync_folder, write_text
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

_COLUMNS = "id, name, path, text, labels, content, size, mtime_ns"
VALUES_AT_ONCE = 500  # in a command: SQLite takes at least 999


class Database:
    """An open file, brought to the current schema. Threads may share it."""

    SEAL = "catalogue.json"  # the file with its checksum
    has_words = False  # nor fine vectors, in a read-only file of the oldest version

    def __init__(self, path: Path | str) -> None:
        self._lock = threading.RLock()
        self._connect(Path(path))

    def _connect(self, path: Path) -> None:
        self.path = path
        self._damaged = f"The index {path.parent} is damaged: {path.name}: {{reason}}."
        self._hint = f"Make it again: dcmh index DATA --model MODEL --out {path.parent} --rebuild"
        self._closed = False
        if not path.is_file():
            raise ModelError(f"The index {path.parent} is damaged: {path.name} is missing.", hint=self._hint)
        with self._explained():
            # Mode rw does not create, and falls back to reading where the file may not be written.
            self._database = sqlite3.connect(
                f"{path.resolve().as_uri()}?mode=rw",
                uri=True,
                timeout=10,
                isolation_level=None,
                check_same_thread=False,
            )
        self._database.create_function("index_words", 2, _index_words, deterministic=True)
        self._database.create_function("was_uploaded", 3, partial(was_uploaded, path.parent))
        try:
            self._run("PRAGMA synchronous = EXTRA")
            self._migrate()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._closed = True
        self._database.close()

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

    # -- inside ---------------------------------------------------------------------------------------------------

    def _run(self, command: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock, self._explained():
            return self._database.execute(command, values).fetchall()

    def _many(self, command: str, values: Sequence[Any], *first: Any) -> Iterator[Any]:
        """The rows for any number of values, which {} in the command stands for; `first` are those of the marks before."""
        for start in range(0, len(values), VALUES_AT_ONCE):
            block = [
                int(value) if isinstance(value, np.integer) else value
                for value in values[start : start + VALUES_AT_ONCE]
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
        self.has_words = version >= 2
        names = [row[1] for row in self._run("PRAGMA table_info(items)")]
        self._uploaded = "uploaded" if "uploaded" in names else "was_uploaded(name, path, text)"  # older and read-only
        self._has_attributes = "extra" in names
        self._columns = f"{_COLUMNS}, {self._uploaded}, {'taken, extra' if self._has_attributes else 'NULL, NULL'}"
        self._run("SELECT value FROM about WHERE key = 'generation'")  # is it a catalogue at all

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
            raise ModelError(self._damaged.replace("{reason}", str(error)), hint=self._hint) from error


def drop_journal(path: Path) -> None:
    """Remove the journal of a catalogue that is about to be replaced: SQLite would roll it back into the new file."""
    journal = path.with_name(f"{path.name}-journal")
    if journal.exists():
        journal.unlink()
        sync_folder(path.parent)


def _index_words(text: str | None, labels: str) -> str:
    """The words of an item's text and labels: the whole of what an index of an older version is searched by."""
    return " ".join(index_words(" ".join([text or "", *json.loads(labels)])))
