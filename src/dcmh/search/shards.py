"""Encoding a collection by several processes, on one machine or on many that share a folder.

The rows are cut into shards. Whoever wants one takes its lock, encodes it, writes its codes and lets go; a lock goes with
its process, so what a killed one had begun is free for others, or for the next run. Shards are whole batches, so that
every code is that of one process that encodes all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dcmh.data.columns import Column, Images, Texts
from dcmh.search.columns import Codes, Failed, encode_column
from dcmh.search.encode import BATCH, Encoders
from dcmh.util.atomic import whole_file
from dcmh.util.locks import locked

LEAST = 32 * BATCH  # rows in a shard: whole batches, also of those that a GPU takes
MOST_SHARDS = 20_000
GLANCE = 0.2  # seconds between looks at what others have done
LONGEST_WAIT = 60.0  # seconds for the first process to begin

Progress = Callable[[int, int], None]


class Shards:
    """A column in shards; `folder` holds those that are done, until all are."""

    def __init__(self, folder: Path, encoders: Encoders, column: Column, modality: str) -> None:
        self.folder = folder
        self.encoders = encoders
        self.column = column
        self.modality = modality
        self.rows = np.flatnonzero(column.observed)
        size = max(1, -(-len(self.rows) // (MOST_SHARDS * LEAST))) * LEAST
        self.parts = [self.rows[start : start + size] for start in range(0, len(self.rows), size)]
        self._name = _identity(encoders, column, modality)  # another model or other data make other files

    def open(self) -> None:
        """Make the folder: what the first process does, and removes at the end."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def help(self, first: int, over: Callable[[], bool]) -> None:
        """Work while the first process has the folder open; wait for it, unless all is over or it never comes."""
        end = time.monotonic() + LONGEST_WAIT
        while not self.folder.is_dir():
            if over() or time.monotonic() > end:
                return
            time.sleep(GLANCE)
        with contextlib.suppress(FileNotFoundError):  # the first process has finished
            self.work(first)

    def work(self, first: int = 0, progress: Progress | None = None) -> None:
        """Encode the shards that nobody has done or holds, those from `first` on before the others."""
        for shard in [*range(first, len(self.parts)), *range(first)]:
            if self._done(shard).exists():
                continue
            with self._claim(shard) as mine:
                if mine and not self._done(shard).exists():
                    self._encode(shard, progress)
            if progress:
                progress(self.count(), len(self.rows))

    def finish(self, progress: Progress | None = None) -> tuple[Codes, Failed]:
        """Wait for the others, take over what they leave, and give all codes and failures by row."""
        self.open()
        while any(not self._done(shard).exists() for shard in range(len(self.parts))):
            self.work(progress=progress)
            time.sleep(GLANCE)
        self.encoders.rest()
        found: Codes = {}
        failed: Failed = {}
        for shard in range(len(self.parts)):
            with np.load(self._done(shard), allow_pickle=False) as stored:
                rows, packed = stored["rows"].tolist(), stored["packed"]
                found.update((row, code.tobytes()) for row, code in zip(rows, packed, strict=True))
                failed.update((int(row), reason) for row, reason in json.loads(str(stored["failed"])).items())
        return found, failed

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def count(self) -> int:
        """How many rows are done."""
        return sum(len(part) for shard, part in enumerate(self.parts) if self._done(shard).exists())

    def _encode(self, shard: int, progress: Progress | None) -> None:
        part, before = self.parts[shard], self.count() if progress else 0

        def tell(done: int, total: int) -> None:
            if progress:
                progress(before + done, len(self.rows))

        found, failed = encode_column(self.encoders, self.column.take(part), self.modality, progress=tell)
        local = sorted(found)
        packed = np.frombuffer(b"".join(found[row] for row in local), np.uint8).reshape(len(local), -1 if local else 0)
        reasons = json.dumps({str(part[row]): reason for row, reason in failed.items()})
        with whole_file(self._done(shard)) as draft, open(draft, "wb") as file:
            np.savez(file, rows=part[local], packed=packed, failed=np.array(reasons))

    def _done(self, shard: int) -> Path:
        return self.folder / f"{self._name}-{shard:05}.npz"

    @contextlib.contextmanager
    def _claim(self, shard: int) -> Iterator[bool]:
        """Within the block the shard is this process's alone, or the answer was no."""
        with locked(self.folder / f"{self._name}-{shard:05}.lock") as alone:
            yield alone


def _identity(encoders: Encoders, column: Column, modality: str) -> str:
    """A hash of the model and of what is to be encoded, as far as it can be known without reading pictures."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(f"{encoders.record['fingerprint']} {modality} {len(column)} ".encode())
    for row in range(len(column)):
        digest.update(_trace(column, row) + b"\0" if column.observed[row] else b"\1")
    return digest.hexdigest()


def _trace(column: Column, row: int) -> bytes:
    value = column.values[row]
    if isinstance(column, Texts):
        return str(value).encode(errors="surrogatepass")
    if isinstance(column, Images) and isinstance(value, str | Path):
        path = os.path.abspath(value if column.root is None else os.path.join(column.root, value))
        try:
            status = os.stat(path)
        except OSError:
            return os.fsencode(path)
        return os.fsencode(path) + f" {status.st_size} {status.st_mtime_ns}".encode()
    array: NDArray[np.generic] = np.asarray(value)
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).digest()
