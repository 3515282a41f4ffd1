"""Pictures of a column to pixels, decoded ahead of the network that takes them, in threads or in processes.

Pillow releases the GIL while it decodes, but not while it reads a header. With small pictures, threads keep no more than two or
three cores busy; so with more cores and many files, processes decode them (benchmarks/decode.py).
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from dcmh.data.columns import PICTURE_SIZE
from dcmh.errors import DataError
from dcmh.inputs import decoding_workers
from dcmh.inputs.decoding_workers import CHUNK, SLOTS, Task, WorkerPool, decode_into
from dcmh.inputs.images import Framing

if TYPE_CHECKING:
    from dcmh.data.columns import Images

OnError = Callable[[int, str], None]  # row, reason

BATCH = 32
MAX_THREADS = 8
BATCHES_AHEAD = 2  # that threads decode in advance

MAX_PROCESSES = 8
MIN_CORES = 4  # for processes
MIN_FILES = 2000  # for processes: threads decode that many in a second, and processes take a few tenths to start

log = logging.getLogger(__name__)


def decoded_batches(
    column: Images,
    rows: Sequence[int],
    *,
    batch: int = BATCH,
    size: int | Framing = PICTURE_SIZE,
    on_error: OnError | None = None,
) -> Iterator[tuple[list[int], NDArray[np.uint8]]]:
    """Rows and their pixels (n, size, size, 3), in batches, in order.

    A picture that cannot be read is an error, unless `on_error` is given: then it is left out.
    """
    batches = [list(rows[start : start + batch]) for start in range(0, len(rows), batch)]
    pending: deque[PendingBatch] = deque()
    with Decoder(size, expected=len(rows)) as decoder:
        for i, numbers in enumerate(batches):
            while len(pending) <= decoder.ahead(batch) and i + len(pending) < len(batches):
                pending.append(decoder.submit(column, batches[i + len(pending)]))
            pixels, failures = pending.popleft().result()
            if not any(failures):
                yield numbers, pixels
                continue
            decoded = []
            for j, reason in enumerate(failures):
                if reason is None:
                    decoded.append(j)
                elif on_error is None:
                    raise unreadable(column, numbers[j], reason)
                else:
                    on_error(numbers[j], reason)
            yield [numbers[j] for j in decoded], pixels[decoded]


def unreadable(column: Images, row: int, reason: object) -> DataError:
    """The error for a picture that cannot be read."""
    path = column.path(row)
    return DataError(f"Cannot read {path or f'picture {row}'}: {reason}. Remove it from the data, or repair the file.")


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Decoder:
    """Decodes pictures in the background; results are best taken in the order of submission.

    Threads decode the first MIN_FILES pictures, then processes, if there are enough cores; processes from the start, if that
    many are `expected`. What a process cannot decode is tried again in this process, where Pillow may be configured
    differently and where the reason is needed. If processes cannot be started, or one ends, threads decode the rest.
    """

    def __init__(self, size: int | Framing = PICTURE_SIZE, *, expected: int = 0) -> None:
        self.framing = Framing.of(size)
        self._threads = ThreadPoolExecutor(min(MAX_THREADS, cores()), "dcmh-decode")
        share = cores() // max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))  # of torchrun, and of dcmh.search.pools
        self._count = max(1, min(MAX_PROCESSES, share))
        self._may_start = share >= MIN_CORES and decoding_workers.can_work()
        self._failed = False
        self._expected, self._seen = expected, 0
        self._pool: WorkerPool | None = None
        self._lock = threading.Lock()  # several threads may submit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_workers()
        self._threads.shutdown(cancel_futures=True)

    def ahead(self, batch: int) -> int:
        """How many batches to submit in advance, so that no worker is idle."""
        return BATCHES_AHEAD if self._pool is None else max(BATCHES_AHEAD, self._count * SLOTS * CHUNK // batch)

    def submit(self, column: Images, rows: Sequence[int]) -> PendingBatch:
        """Start to decode the pictures of these rows."""
        out = np.empty((len(rows), self.framing.size, self.framing.size, 3), np.uint8)
        with self._lock:
            self._seen += len(rows)
            many = max(self._expected, self._seen) >= MIN_FILES
            if many and self._may_start and not self._failed:
                paths = [path for row in rows if (path := column.path(row)) is not None]
                if len(paths) == len(rows) and (pool := self._workers()):
                    # Workers may have another current folder. Not `abspath`, which resolves .. after a link wrongly.
                    absolute = [str(path) if path.is_absolute() else os.path.join(os.getcwd(), path) for path in paths]
                    tasks = []
                    for chunk in (slice(start, start + CHUNK) for start in range(0, len(rows), CHUNK)):
                        tasks.append(PendingTask(self, pool, Task(absolute[chunk], out[chunk]), column, rows[chunk]))
                        pool.submit(tasks[-1].task)
                    return PendingBatch(out, tasks)
        # One task per picture would cost as much as reading its header.
        step = max(1, len(rows) // (2 * min(MAX_THREADS, cores())))
        chunks = [slice(start, start + step) for start in range(0, len(rows), step)]
        started = [
            self._threads.submit(decode_into, out[chunk], rows[chunk], column.source, self.framing) for chunk in chunks
        ]
        return PendingBatch(out, started)

    def stop_workers(self) -> None:
        """End the processes; if many files are submitted again, new ones are started."""
        with self._lock:
            self._expected = self._seen = 0
            self._failed = False
            self._stop()

    def finish(self, pool: WorkerPool, task: Task) -> None:
        """Wait until a worker has done the task; it stays undone if its pool is no longer running."""
        with self._lock:
            if task.decoded is None and pool is self._pool:
                try:
                    pool.finish(task)
                except ChildProcessError as error:
                    self._fall_back(str(error))
                except BaseException:  # such as Ctrl-C: an answer may have been read but not recorded
                    self._stop()
                    raise

    def _workers(self) -> WorkerPool | None:
        """The running pool, started if needed; None if it cannot be started."""
        if self._pool is None:
            pool = WorkerPool(self._count, self.framing)
            try:
                pool.start()
            except OSError as error:  # no memory, no descriptors, no processes, no such program
                self._fall_back(f"processes could not be started: {error}")
            else:
                self._pool = pool
        return self._pool

    def _fall_back(self, reason: str) -> None:
        log.warning("Pictures are decoded in threads: %s.", reason)
        self._failed = True
        self._stop()

    def _stop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()


class PendingBatch:
    """Pictures that are being decoded."""

    def __init__(self, pixels: NDArray[np.uint8], tasks: Sequence[Future[list[str | None]] | PendingTask]) -> None:
        self._pixels = pixels
        self._tasks = tasks

    def result(self) -> tuple[NDArray[np.uint8], list[str | None]]:
        """Pixels (n, size, size, 3), and for each picture why it cannot be read, or None."""
        return self._pixels, [reason for task in self._tasks for reason in task.result()]

    def cancel(self) -> None:
        """Do not start what has not been started."""
        for task in self._tasks:
            task.cancel()


@dataclass(frozen=True)
class PendingTask:
    """Files that worker processes decode, with the interface of a future."""

    decoder: Decoder
    pool: WorkerPool
    task: Task
    column: Images
    rows: Sequence[int]

    def result(self) -> list[str | None]:
        """For each picture why it cannot be read, or None."""
        self.decoder.finish(self.pool, self.task)
        decoded, out = self.task.decoded, self.task.out
        failures: list[str | None] = [None] * len(out)
        for i in range(len(out)):
            if decoded is None or not decoded[i]:
                one = slice(i, i + 1)
                (failures[i],) = decode_into(out[one], self.rows[one], self.column.source, self.decoder.framing)
        return failures

    def cancel(self) -> None:
        """Does nothing: the task is done, or ends with the pool."""
