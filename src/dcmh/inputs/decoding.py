"""Pictures of a column to pixels, decoded ahead of the network that eats them: in threads, or in processes.

Pillow lets go of the interpreter while it decodes, but not while it reads a header. Of small pictures, threads decode no more
than two or three processors could; so where there are more, and many files, processes do it (benchmarks/decode.py).
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

from dcmh.errors import DataError
from dcmh.inputs import decoding_workers
from dcmh.inputs.decoding_workers import CHUNK, SLOTS, Crew, Task, decode_into

if TYPE_CHECKING:
    from dcmh.data.columns import Images

OnError = Callable[[int, str], None]  # row, reason

SIZE = 224  # pixels, square: what both image networks take
BATCH = 32
THREADS = 8  # at most
AHEAD = 2  # batches that threads decode beforehand

PROCESSES = 8  # at most
CORES = 4  # from which on processes pay
FILES = 2000  # from which on they pay: that many take threads a second, and processes a few tenths to start

log = logging.getLogger(__name__)


def decoded_batches(
    column: Images, rows: Sequence[int], *, batch: int = BATCH, size: int = SIZE, on_error: OnError | None = None
) -> Iterator[tuple[list[int], NDArray[np.uint8]]]:
    """Rows and their pixels (n, size, size, 3), in batches, in order.

    A picture that cannot be read is an error, unless `on_error` takes it: then it is left out.
    """
    parts = [list(rows[start : start + batch]) for start in range(0, len(rows), batch)]
    begun: deque[Begun] = deque()
    with Decoder(size, expected=len(rows)) as decoder:
        for i, part in enumerate(parts):
            while len(begun) <= decoder.ahead(batch) and i + len(begun) < len(parts):
                begun.append(decoder.begin(column, parts[i + len(begun)]))
            pixels, wrong = begun.popleft().result()
            if not any(wrong):
                yield part, pixels
                continue
            good = []
            for j, reason in enumerate(wrong):
                if reason is None:
                    good.append(j)
                elif on_error is None:
                    raise unreadable(column, part[j], reason)
                else:
                    on_error(part[j], reason)
            yield [part[j] for j in good], pixels[good]


def unreadable(column: Images, row: int, reason: object) -> DataError:
    path = column.path(row)
    return DataError(f"Cannot read {path or f'picture {row}'}: {reason}. Remove it from the data, or repair the file.")


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Decoder:
    """Decodes pictures that are `begun` before they are needed; best asked for in that order.

    Threads do it until FILES have come, then processes, if there are the processors for it; processes from the start, if so
    many are `expected`. What a process cannot decode is tried once more here, where Pillow may have been told otherwise, and
    where the reason is wanted. If processes cannot be had, or one ends before its time, threads do the rest.
    """

    def __init__(self, size: int = SIZE, *, expected: int = 0) -> None:
        self._size = size
        self._threads = ThreadPoolExecutor(min(THREADS, cores()), "dcmh-decode")
        mine = cores() // max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))  # of torchrun, and of encode --workers
        self._count = max(1, min(PROCESSES, mine))
        self._able = mine >= CORES and decoding_workers.can_work()
        self._given_up = False
        self._expected, self._seen = expected, 0
        self._crew: Crew | None = None
        self._lock = threading.Lock()  # pictures may come from several threads

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()
        self._threads.shutdown(cancel_futures=True)

    def ahead(self, batch: int) -> int:
        """Batches to begin before one is asked for, so that nobody is idle."""
        return AHEAD if self._crew is None else max(AHEAD, self._count * SLOTS * CHUNK // batch)

    def begin(self, column: Images, rows: Sequence[int]) -> Begun:
        out = np.empty((len(rows), self._size, self._size, 3), np.uint8)
        with self._lock:
            self._seen += len(rows)
            many = max(self._expected, self._seen) >= FILES
            if many and self._able and not self._given_up:
                paths = [path for row in rows if (path := column.path(row)) is not None]
                if len(paths) == len(rows) and (crew := self._hired()):
                    # The processes may have begun in another folder. Not by `abspath`, which mistakes a link and .. after it.
                    whole = [str(path) if path.is_absolute() else os.path.join(os.getcwd(), path) for path in paths]
                    given = []
                    for some in (slice(start, start + CHUNK) for start in range(0, len(rows), CHUNK)):
                        given.append(Given(self, crew, Task(whole[some], out[some]), column, rows[some]))
                        crew.give(given[-1].task)
                    return Begun(out, given)
        # A task for each picture would cost as much as its header.
        step = max(1, len(rows) // (2 * min(THREADS, cores())))
        few = [slice(start, start + step) for start in range(0, len(rows), step)]
        submit = self._threads.submit
        return Begun(out, [submit(decode_into, out[some], rows[some], column.source) for some in few])

    def rest(self) -> None:
        """End the processes; when many files come again, there will be new ones."""
        with self._lock:
            self._expected = self._seen = 0
            self._given_up = False
            self._dismiss()

    def finish(self, crew: Crew, task: Task) -> None:
        """Wait until a process has done the task; it stays undone if there are no processes any more."""
        with self._lock:
            if task.good is None and crew is self._crew:
                try:
                    crew.finish(task)
                except ChildProcessError as error:
                    self._give_up(str(error))
                except BaseException:  # such as Ctrl-C: an answer may have been read and not noted
                    self._dismiss()
                    raise

    def _hired(self) -> Crew | None:
        """The processes, which may have to be started; None if there can be none."""
        if self._crew is None:
            try:
                self._crew = Crew(self._count, self._size)
            except OSError as error:  # no memory, no descriptors, no processes, no such program
                self._give_up(f"processes could not be started: {error}")
        return self._crew

    def _give_up(self, why: str) -> None:
        log.warning("Pictures are decoded in threads, as %s.", why)
        self._given_up = True
        self._dismiss()

    def _dismiss(self) -> None:
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.close()


class Begun:
    """Pictures that are being decoded."""

    def __init__(self, pixels: NDArray[np.uint8], parts: Sequence[Future[list[str | None]] | Given]) -> None:
        self._pixels = pixels
        self._parts = parts

    def result(self) -> tuple[NDArray[np.uint8], list[str | None]]:
        """Pixels (n, size, size, 3), and what is wrong with each picture."""
        return self._pixels, [reason for part in self._parts for reason in part.result()]

    def cancel(self) -> None:
        for part in self._parts:
            part.cancel()


@dataclass(frozen=True)
class Given:
    """Files that were given to processes."""

    decoder: Decoder
    crew: Crew
    task: Task
    column: Images
    rows: Sequence[int]

    def result(self) -> list[str | None]:
        self.decoder.finish(self.crew, self.task)
        good, out = self.task.good, self.task.out
        wrong: list[str | None] = [None] * len(out)
        for i in range(len(out)):
            if good is None or not good[i]:
                (wrong[i],) = decode_into(out[i : i + 1], self.rows[i : i + 1], self.column.source)
        return wrong

    def cancel(self) -> None:
        """Nothing: it will be done, or end with the processes."""
