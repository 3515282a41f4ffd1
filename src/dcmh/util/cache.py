"""The cache folder, and vectors cached in it under the hash of what they were computed from."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import DataError


def home() -> Path:
    """The cache folder: $DCMH_HOME, or ~/.cache/dcmh. It need not exist yet."""
    given = os.environ.get("DCMH_HOME")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "dcmh"


class VectorStore:
    """A cache from hash to float32 vector, in the SQLite file KIND/NAME.sqlite of the cache folder."""

    def __init__(self, kind: str, name: str) -> None:
        self.path = home() / kind / f"{name}.sqlite"

    def get(self, keys: Sequence[bytes]) -> dict[bytes, NDArray[np.float32]]:
        """The vectors of those of the keys that are cached."""
        if not self.path.exists():
            return {}
        vectors: dict[bytes, NDArray[np.float32]] = {}
        with self._opened() as database:
            for start in range(0, len(keys), 500):
                some = keys[start : start + 500]
                marks = ",".join("?" * len(some))
                rows = database.execute(f"SELECT hash, value FROM features WHERE hash IN ({marks})", some)
                vectors.update((key, np.frombuffer(value, np.float32)) for key, value in rows)
        return vectors

    def put(self, entries: Sequence[tuple[bytes, NDArray[np.float32]]]) -> None:
        """Add vectors; a key that is already cached keeps its vector."""
        with self._opened() as database, database:
            database.executemany(
                "INSERT OR IGNORE INTO features VALUES (?, ?)",
                [(key, np.ascontiguousarray(value, np.float32).tobytes()) for key, value in entries],
            )

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=60)) as database:
                database.execute(
                    "CREATE TABLE IF NOT EXISTS features (hash BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID"
                )
                yield database
        except (OSError, sqlite3.OperationalError) as error:
            raise DataError(
                f"Cannot use the feature cache {self.path} ({error}). Check the permissions and the free space, "
                "or choose another folder with the environment variable DCMH_HOME."
            ) from error
        except sqlite3.DatabaseError as error:
            raise DataError(
                f"The feature cache {self.path} is damaged ({error}). Delete the file: it is only a cache."
            ) from error
