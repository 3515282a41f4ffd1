"""Encoding a whole column without an index, by one process or by several that share a folder.

The rows are cut into shards. A process locks a shard, encodes it, writes its codes and unlocks it. A lock ends with its
process, so that others, or the next run, take over what a killed process had begun. Shards are whole batches, so that every
code is the same as if one process had encoded everything.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh import codes
from dcmh.data.columns import Column, Images, Texts
from dcmh.errors import ImageError
from dcmh.inputs.images import content_hash
from dcmh.search.encode import BATCH, Encoders, PictureEncoder, Prepared, encode_texts
from dcmh.util.atomic import whole_file
from dcmh.util.formats import parse_json, readable, reason
from dcmh.util.locks import locked

LEAST = 32 * BATCH  # rows in a shard: whole batches, also of those that a GPU takes
MOST_SHARDS = 20_000
POLL_SECONDS = 0.2
LONGEST_WAIT = 60.0  # seconds for the first process to create the folder

Progress = Callable[[int, int], None]
Codes = dict[int, bytes]  # row to packed code
Failed = dict[int, str]  # row to reason


def encode_column(
    encoders: Encoders, column: Column, modality: str, *, progress: Progress | None = None
) -> tuple[Codes, Failed]:
    """The packed codes of a whole column by row, without an index; and the reasons for rows that cannot be encoded."""
    rows = np.flatnonzero(column.observed).tolist()
    if isinstance(column, Images):
        try:
            return _picture_codes(encoders.pictures(modality), column, rows, progress)
        except BaseException:
            encoders.rest()
            raise
    if isinstance(column, Texts):
        texts = [column.values[row] for row in rows]
        encoded = dict(zip(rows, encode_texts(encoders.words_of(modality), texts), strict=True))
        failed = {row: "no word that the model knows" for row, code in encoded.items() if code is None}
        return {row: code for row, code in encoded.items() if code is not None}, failed
    outputs, _ = encoders.vectors(modality, column.take(np.array(rows)))
    packed = codes.pack(codes.sign(outputs))
    return {row: code.tobytes() for row, code in zip(rows, packed, strict=True)}, {}


def _picture_codes(
    encoder: PictureEncoder, column: Images, rows: list[int], progress: Progress | None
) -> tuple[Codes, Failed]:
    """Batches are decoded and encoded ahead of the one whose codes are collected."""
    encoded: Codes = {}
    failed: Failed = {}
    ahead: deque[tuple[list[int], Prepared]] = deque()

    def finish() -> None:
        batch, prepared = ahead.popleft()
        for row, code in zip(batch, encoder.finish(prepared), strict=True):
            if isinstance(code, ImageError):
                failed[row] = str(code)
            else:
                encoded[row] = code
        if progress:
            progress(len(encoded) + len(failed), len(rows))

    def content(row: int) -> bytes | ImageError:
        try:
            return content_hash(column.source(row))  # type: ignore[arg-type] # it is observed
        except ImageError as error:
            return error

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "dcmh-hash") as pool:
        for start in range(0, len(rows), encoder.batch):
            batch, contents = [], []
            block = rows[start : start + encoder.batch]
            for row, hashed in zip(block, pool.map(content, block), strict=True):
                if isinstance(hashed, ImageError):
                    failed[row] = str(hashed)
                else:
                    batch.append(row)
                    contents.append(hashed)
            ahead.append((batch, encoder.prepare(column, batch, contents)))
            if len(ahead) > encoder.ahead:
                finish()
        while ahead:
            finish()
    return encoded, failed


class Shards:
    """A column in shards; finished ones are in `folder` until all are."""

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
        """Create the folder. The first process does it, and removes it at the end."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def help(self, first: int, over: Callable[[], bool]) -> None:
        """Encode shards while the first process keeps the folder; return if it does not appear, or `over()` says it is done."""
        end = time.monotonic() + LONGEST_WAIT
        while not self.folder.is_dir():
            if over() or time.monotonic() > end:
                return
            time.sleep(POLL_SECONDS)
        with contextlib.suppress(FileNotFoundError):  # the first process has finished
            self.work(first)

    def work(self, first: int = 0, progress: Progress | None = None) -> None:
        """Encode the shards that are neither done nor locked, starting with `first`."""
        for shard in [*range(first, len(self.parts)), *range(first)]:
            if self._done(shard).exists():
                continue
            with self._claim(shard) as mine:
                if mine and not self._done(shard).exists():
                    self._encode(shard, progress)
            if progress:
                progress(self.count(), len(self.rows))

    def finish(self, progress: Progress | None = None) -> tuple[Codes, Failed]:
        """Wait for the other processes, take over what they leave, and return all codes and failures by row."""
        self.open()
        for shard in range(len(self.parts)):
            if self._done(shard).exists() and not self._is_intact(shard):
                self._done(shard).unlink(missing_ok=True)  # it is encoded again
        while any(not self._done(shard).exists() for shard in range(len(self.parts))):
            self.work(progress=progress)
            time.sleep(POLL_SECONDS)
        self.encoders.rest()
        packed_codes: Codes = {}
        failed: Failed = {}
        for shard in range(len(self.parts)):
            file = self._done(shard)
            with readable(file, hint="Delete it; its codes will be made again."):
                rows, packed, reasons = _read_shard(file)
                packed_codes.update((row, code.tobytes()) for row, code in zip(rows, packed, strict=True))
                failed.update((int(row), str(reason)) for row, reason in reasons.items())
        return packed_codes, failed

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def count(self) -> int:
        """The number of finished rows."""
        return sum(len(part) for shard, part in enumerate(self.parts) if self._done(shard).exists())

    def _encode(self, shard: int, progress: Progress | None) -> None:
        rows, before = self.parts[shard], self.count() if progress else 0

        def tell(done: int, total: int) -> None:
            if progress:
                progress(before + done, len(self.rows))

        encoded, failed = encode_column(self.encoders, self.column.take(rows), self.modality, progress=tell)
        local = sorted(encoded)
        packed = np.frombuffer(b"".join(encoded[row] for row in local), np.uint8).reshape(
            len(local), -1 if local else 0
        )
        reasons = json.dumps({str(rows[row]): reason for row, reason in failed.items()})
        with whole_file(self._done(shard)) as draft, open(draft, "wb") as file:
            np.savez(file, rows=rows[local], packed=packed, failed=np.array(reasons))

    def _is_intact(self, shard: int) -> bool:
        """Whether a finished shard is readable: an .npz file has a CRC-32 of each array."""
        try:
            with zipfile.ZipFile(self._done(shard)) as packed:
                return packed.testzip() is None
        except (OSError, zipfile.BadZipFile, EOFError, ValueError, NotImplementedError):
            return False

    def _done(self, shard: int) -> Path:
        return self.folder / f"{self._name}-{shard:05}.npz"

    @contextlib.contextmanager
    def _claim(self, shard: int) -> Iterator[bool]:
        """Lock a shard for the block; gives False if another process has it."""
        with locked(self.folder / f"{self._name}-{shard:05}.lock") as alone:
            yield alone


def _read_shard(file: Path) -> tuple[list[int], NDArray[np.uint8], dict[str, Any]]:
    """The rows of a finished shard, their packed codes, and the reasons for rows that failed."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            return stored["rows"].tolist(), stored["packed"], parse_json(str(stored["failed"]))
    except Exception as error:  # a zip file of .npy files: damage shows in many ways
        raise ValueError(reason(error)) from error


def _identity(encoders: Encoders, column: Column, modality: str) -> str:
    """A hash of the model and of the data, without reading pictures: their paths, sizes and times stand for them."""
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
