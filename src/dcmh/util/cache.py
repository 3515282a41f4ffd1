"""The cache folder, and vectors cached in it under the hash of what they were computed from."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dcmh.errors import DataError, StorageError

log = logging.getLogger(__name__)

# Checksums have a table of their own, so that older versions read and write the same file; their entries have none.
_ENTRIES = "SELECT features.hash AS hash, value, crc32 FROM features LEFT JOIN checksums USING (hash)"


def home() -> Path:
    """The cache folder: $DCMH_HOME, or ~/.cache/dcmh. It need not exist yet."""
    folder = os.environ.get("DCMH_HOME")
    return Path(folder).expanduser() if folder else Path.home() / ".cache" / "dcmh"


class VectorStore:
    """A cache from hash to vector, in the SQLite file KIND/NAME.sqlite of the cache folder.

    Each entry has a checksum. A damaged entry is deleted, so that it is computed again.
    """

    def __init__(self, kind: str, name: str, dtype: DTypeLike = np.float32) -> None:
        self.path = home() / kind / f"{name}.sqlite"
        self.dtype = np.dtype(dtype)

    def get(self, keys: Sequence[bytes]) -> dict[bytes, NDArray[Any]]:
        """The vectors of those of the keys that are cached."""
        if not self.path.exists():
            return {}
        vectors: dict[bytes, NDArray[Any]] = {}
        damaged: list[bytes] = []
        with self._opened() as database:
            for start in range(0, len(keys), 500):
                batch = keys[start : start + 500]
                marks = ",".join("?" * len(batch))
                for key, value, crc32 in database.execute(f"{_ENTRIES} WHERE hash IN ({marks})", batch):
                    if self._is_intact(key, value, crc32):
                        vectors[key] = np.frombuffer(value, self.dtype)
                    else:
                        damaged.append(key)
        if damaged:
            self.drop(damaged)
        return vectors

    def damaged(self) -> tuple[int, list[bytes]]:
        """The number of entries, and the keys of those that do not match their checksum."""
        with self._opened() as database:
            (state,) = database.execute("PRAGMA integrity_check(1)").fetchone()
            if state != "ok":
                raise DataError(f"The feature cache {self.path} is damaged ({state}).", hint="Delete the file.")
            rows = [(key, self._is_intact(key, value, crc32)) for key, value, crc32 in database.execute(_ENTRIES)]
        return len(rows), [key for key, intact in rows if not intact]

    def drop(self, keys: Sequence[bytes]) -> None:
        """Delete entries."""
        log.warning("%d damaged entries of the feature cache %s are computed again.", len(keys), self.path)
        with self._opened() as database, database:
            for table in ("features", "checksums"):
                database.executemany(f"DELETE FROM {table} WHERE hash = ?", [(key,) for key in keys])

    def put(self, entries: Sequence[tuple[bytes, NDArray[Any]]]) -> None:
        """Add vectors; a key that is already cached keeps its vector."""
        rows = [(key, np.ascontiguousarray(value, self.dtype).tobytes()) for key, value in entries]
        with self._opened() as database, database:
            new = [row for row in rows if _insert(database, "features", row)]
            for key, value in new:
                _insert(database, "checksums", (key, zlib.crc32(key + value)))

    def _is_intact(self, key: object, value: object, crc32: int | None) -> bool:
        """Whether an entry matches its checksum, or has none."""
        if not isinstance(key, bytes) or not isinstance(value, bytes) or len(value) % self.dtype.itemsize:
            return False
        return crc32 is None or zlib.crc32(key + value) == crc32

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=60)) as database:
                database.execute(
                    "CREATE TABLE IF NOT EXISTS features (hash BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID"
                )
                database.execute(
                    "CREATE TABLE IF NOT EXISTS checksums (hash BLOB PRIMARY KEY, crc32 INT) WITHOUT ROWID"
                )
                yield database
        except (OSError, sqlite3.OperationalError) as error:
            hint = "Choose another folder for it with the environment variable DCMH_HOME."
            if (storage := StorageError.of(error, self.path)) is not None:
                raise StorageError(storage.what, state=storage.state, which=self.path, hint=hint) from error
            raise DataError(
                f"Cannot use the feature cache {self.path} ({error}).", which=self.path, hint=hint
            ) from error
        except sqlite3.DatabaseError as error:
            raise DataError(
                f"The feature cache {self.path} is damaged ({error}).",
                which=self.path,
                hint="Delete the file: it is only a cache.",
            ) from error


class BackgroundWriter:
    """Writes vectors to caches in a background thread, in batches: callers do not wait for the disk.

    A batch is all that arrives within PAUSE seconds, since few transactions cost a third of many.

    An error of writing is raised by a later `put`, or by `flush`.
    """

    PAUSE = 0.5

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[VectorStore, list[tuple[bytes, NDArray[Any]]]] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._flushing = threading.Event()

    def put(self, store: VectorStore, entries: Sequence[tuple[bytes, NDArray[Any]]]) -> None:
        """Put vectors into a store soon."""
        with self._lock:
            self._pending.setdefault(store, []).extend(entries)
            if self._writing is not None and not self._writing.done():
                return
            self._thread = self._thread or ThreadPoolExecutor(1, "dcmh-cache")
            before, self._writing = self._writing, self._thread.submit(self._write_soon)
        if before is not None:
            before.result()

    def flush(self) -> None:
        """Write what is pending, and end the thread until the next `put`."""
        with self._lock:
            thread, self._thread = self._thread, None
            writing, self._writing = self._writing, None
        self._flushing.set()
        if thread is not None:
            thread.shutdown()
        self._flushing.clear()
        if writing is not None:
            writing.result()
        self._write()

    def _write_soon(self) -> None:
        self._flushing.wait(self.PAUSE)
        while self._write():
            self._flushing.wait(self.PAUSE)

    def _write(self) -> bool:
        """Write what is pending; False if that is nothing."""
        with self._lock:
            pending, self._pending = self._pending, {}
        for store, entries in pending.items():
            store.put(entries)
        return bool(pending)


def _insert(database: sqlite3.Connection, table: str, row: tuple[Any, Any]) -> bool:
    """Add a row; False if its key is known."""
    return database.execute(f"INSERT OR IGNORE INTO {table} VALUES (?, ?)", row).rowcount == 1
