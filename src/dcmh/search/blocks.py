"""Encoding a collection in blocks: fixed rows of the data per block, one Parquet file per finished block.

Which rows a block has depends on the data alone, never on who encodes it or when. Workers (`dcmh.search.pools`) return
finished blocks; only this process writes them, each atomically and under a fixed name. A run that was interrupted continues
with the blocks that are missing, damaged, or of other items; the result is that of one process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dcmh.data.columns import Column, Images, Stored, Texts
from dcmh.data.dataset import JOINT, Dataset
from dcmh.data.values import InMemory
from dcmh.errors import BusyError, ImageError
from dcmh.search.block_files import EncodedItem, block_file, read_block
from dcmh.search.encode import BATCH, Encoders
from dcmh.search.pipeline import Content, Entry, Pipeline
from dcmh.stores.base import Item
from dcmh.util.atomic import whole_file
from dcmh.util.blas import one_blas_thread
from dcmh.util.locks import locked

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS = 32 * BATCH  # rows of the data in a block: whole batches, also of those that a GPU takes
CACHED_BLOCKS = 2  # in memory, while items are read


@dataclass(frozen=True)
class Work:
    """How workers encode. `joint`: an item gets one code from all its modalities; `cache`: features of pictures are cached."""

    model: Path
    device: str | None = None
    joint: bool = False
    cache: bool = True


@dataclass(frozen=True)
class Task:
    """One block to encode: some rows of the data, and what identifies each of them."""

    number: int
    data: Dataset
    traces: Sequence[bytes]


@dataclass(frozen=True)
class Result:
    """One encoded block: its Parquet file, and how many of its items failed."""

    number: int
    file: bytes
    items: int
    failed: int
    memory: int  # peak memory of its worker, in bytes


@dataclass(frozen=True)
class Capacity:
    """The workers of a pool."""

    nodes: int
    actors: int
    cpus: int  # of an actor
    gpus: int = 0  # of an actor: 0 or 1


class Pool(Protocol):
    """Workers that encode blocks."""

    def capacity(self, device: str | None) -> Capacity:
        """The current number of workers, and the resources of each."""

    def run(self, work: Work, tasks: Iterable[Task], count: int) -> Iterator[Result]:
        """Encode all `count` tasks; results come in any order, each once."""

    def publish(self, state: State) -> None:
        """Publish the progress of a run to the monitoring of the workers."""

    def close(self) -> None:
        """Release what the pool has opened."""


@dataclass(frozen=True)
class State:
    """The progress of a run."""

    done: int  # items, those of earlier runs included
    total: int
    encoded: int  # items of this run
    failed: int
    written: int  # bytes, of this run
    seconds: float

    @property
    def rate(self) -> float:
        """Items per second in this run."""
        return self.encoded / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float:
        """The expected time to the end; nan before anything is encoded."""
        return (self.total - self.done) / self.rate if self.rate else float("nan")

    def metrics(self) -> dict[str, tuple[str, float]]:
        """Name to (description, value)."""
        return {
            "dcmh_encode_items": ("Items in the collection.", self.total),
            "dcmh_encode_items_done": ("Items that are encoded or have failed.", self.done),
            "dcmh_encode_items_failed": ("Items of this run that cannot be encoded.", self.failed),
            "dcmh_encode_bytes_written": ("Bytes of finished blocks, in this run.", self.written),
            "dcmh_encode_items_per_second": ("Items per second, in this run.", self.rate),
            "dcmh_encode_seconds_left": ("Expected time to the end.", self.seconds_left),
        }

    def exposition(self) -> str:
        """The metrics in the text format of Prometheus."""
        return "".join(
            f"# HELP {name} {about}\n# TYPE {name} gauge\n{name} {value:.10g}\n"
            for name, (about, value) in self.metrics().items()
        )


Report = Callable[[State], None]


# -- encoding one block -------------------------------------------------------------------------------------------------


def encode_block(encoders: Encoders, work: Work, task: Task) -> Result:
    """Encode a block."""
    pipeline = Pipeline(encoders, task.data, joint=work.joint, stop_workers=False)
    entries = [Entry(row, Item(name)) for row, name in enumerate(task.data.ids)]
    with one_blas_thread():
        items = [_encoded_item(entry, pipeline.text) for group in pipeline.run(entries) for entry in group]
    names = [JOINT] if work.joint else [name for name in encoders.modalities if name in task.data.modalities]
    file = block_file(task.data.ids, task.traces, items, names, encoders)
    failed = sum(item.error is not None for item in items)
    memory = _peak_memory()
    return Result(task.number, file, len(items), failed, memory)


def _encoded_item(entry: Entry, text: str | None) -> EncodedItem:
    if entry.reason is not None:
        return EncodedItem(error=entry.reason)
    content = entry.content or Content()
    encoded, fine = dict(content.codes), dict(content.fine)
    if text is not None and entry.text_code is not None:
        encoded[text] = entry.text_code
    if text is not None and entry.text_fine is not None:
        fine[text] = entry.text_fine
    return EncodedItem(entry.item.content, entry.item.taken, encoded, fine)


def _peak_memory() -> int:
    """The peak memory of this process, in bytes; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# -- all blocks of a collection -------------------------------------------------------------------------------------------


class Blocks:
    """The items of some data in blocks, of which the finished ones are in `folder`.

    Block n holds the rows from n * ROWS on that are among `rows` (default: all). So an update that needs few items encodes
    only these.
    """

    def __init__(
        self,
        folder: Path,
        encoders: Encoders,
        data: Dataset,
        work: Work,
        *,
        rows: Sequence[int] | None = None,
        modalities: Sequence[str] | None = None,
    ) -> None:
        self.folder = folder
        self.work = work
        self.modalities = list(encoders.check(data) if modalities is None else modalities)
        self._data = data
        self._model = str(encoders.record["fingerprint"])
        wanted = np.arange(len(data)) if rows is None else np.asarray(sorted(rows), np.intp)
        edges = np.flatnonzero(np.diff(wanted // ROWS)) + 1
        self.rows = {int(part[0]) // ROWS: part for part in np.split(wanted, edges) if len(part)}
        self.total = len(wanted)
        self._read = lru_cache(CACHED_BLOCKS)(self._load)

    def file(self, number: int) -> Path:
        """The Parquet file of a finished block."""
        return self.folder / f"block-{number:06}.parquet"

    def missing(self) -> list[int]:
        """The blocks that are still to be encoded: missing, damaged, or of other items, pictures or another model."""
        return [number for number in self.rows if not self._is_finished(number)]

    def encode(self, pool: Pool, report: Report | None = None) -> State:
        """Encode what is missing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            missing = self.missing()
            left = sum(len(self.rows[number]) for number in missing)
            began = time.monotonic()
            state = State(self.total - left, self.total, 0, 0, 0, 0.0)
            if report:
                report(state)
            for result in pool.run(self.work, map(self.task, missing), len(missing)):
                with whole_file(self.file(result.number)) as draft:
                    draft.write_bytes(result.file)
                state = State(
                    state.done + result.items,
                    self.total,
                    state.encoded + result.items,
                    state.failed + result.failed,
                    state.written + len(result.file),
                    time.monotonic() - began,
                )
                pool.publish(state)
                if report:
                    report(state)
        return state

    def task(self, number: int, rows: NDArray[np.intp] | None = None) -> Task:
        """What a worker needs to encode a block, or only some rows."""
        rows = self.rows[number] if rows is None else rows
        columns = {name: _portable(self._data[name].take(rows)) for name in self.modalities}
        return Task(number, Dataset(columns, ids=[self._data.ids[row] for row in rows]), self._traces(rows))

    def __iter__(self) -> Iterator[tuple[int, EncodedItem]]:
        """All items with their rows, in order."""
        for number, rows in self.rows.items():
            items = self._read(number)
            yield from ((row, items[self._data.ids[row]]) for row in rows.tolist())

    def __getitem__(self, row: int) -> EncodedItem:
        """One item by its row in the data."""
        return self._read(row // ROWS)[self._data.ids[row]]

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _load(self, number: int) -> dict[str, EncodedItem]:
        known, items = read_block(self.file(number))
        return dict(zip((name for name, _ in known), items, strict=True))

    def _is_finished(self, number: int) -> bool:
        if not self.file(number).is_file():
            return False
        try:
            known = set(read_block(self.file(number))[0])
        except (ValueError, OSError):
            return False
        rows = self.rows[number]
        return known.issuperset(zip((self._data.ids[row] for row in rows), self._traces(rows), strict=True))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with locked(self.folder / "lock") as acquired:
            if not acquired:
                raise BusyError(f"Another process is encoding into {self.folder}.", hint="Wait for it, then try again.")
            yield

    def _traces(self, rows: Sequence[int] | NDArray[np.intp]) -> list[bytes]:
        """A hash per row of the model and of what it encodes; a file is identified by path, size and time, not read."""
        start = f"{self._model} {self.work.joint} {' '.join(self.modalities)}".encode()
        traces = []
        for row in rows:
            digest = hashlib.blake2b(start, digest_size=16)
            for name in self.modalities:
                column = self._data[name]
                digest.update(b"\0" + _trace(column, int(row)) if column.observed[row] else b"\1")
            traces.append(digest.digest())
        return traces


def _trace(column: Column, row: int) -> bytes:
    value = column.values[row]
    if isinstance(column, Texts):
        return str(value).encode(errors="surrogatepass")
    if isinstance(column, Images) and isinstance(value, str | Path):
        return _file_trace(os.path.abspath(value if column.root is None else os.path.join(column.root, value)))
    if isinstance(value, Stored):
        if (file := getattr(value.store, "file", None)) is not None:
            return _file_trace(str(file)) + repr(value.key).encode()
        with contextlib.suppress(ImageError):
            value = value.read()
    return hashlib.blake2b(value if isinstance(value, bytes) else np.ascontiguousarray(value).tobytes()).digest()


def _file_trace(path: str) -> bytes:
    try:
        status = os.stat(path)
    except OSError:
        return os.fsencode(path)
    return os.fsencode(path) + f" {status.st_size} {status.st_mtime_ns}".encode()


def _portable(column: Column) -> Column:
    """The column as other processes can read it: absolute paths, and pictures that are in no file by their content."""
    if not isinstance(column, Images):
        return column
    return Images([_portable_picture(column, row) for row in range(len(column))])


def _portable_picture(column: Images, row: int) -> Any:
    value = column.values[row]
    if isinstance(value, str | Path):
        # Not `abspath`, which resolves .. after a link wrongly.
        path = str(column.path(row))
        return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    if isinstance(value, Stored) and getattr(value.store, "file", None) is None:
        try:
            content = value.read()
        except ImageError:
            content = b""
        return Stored(InMemory(), content) if isinstance(content, bytes) else content
    return value
