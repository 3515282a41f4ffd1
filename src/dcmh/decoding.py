"""Pictures of a column as batches of pixels, decoded ahead of the network that eats them: in threads, or in processes.

Pillow lets go of the interpreter while it decodes, but not while it reads a header. Of small pictures, threads decode no more
than two or three processors could; so where there are more, and many files, processes do it (benchmarks/decode.py).
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dcmh import images
from dcmh.errors import DataError, ImageError

if TYPE_CHECKING:  # a worker does without
    from dcmh.data.columns import Images

Item = TypeVar("Item")
OnError = Callable[[int, str], None]  # row, reason

SIZE = 224  # pixels, square: what both image networks take
BATCH = 32
THREADS = 8  # at most
AHEAD = 2  # batches that threads decode beforehand

PROCESSES = 8  # at most
CORES = 4  # from which on processes pay
FILES = 2000  # from which on they pay: that many take threads a second, and processes a few tenths to start
SLOTS = 2  # batches that a process decodes beforehand
PATIENCE = 20  # seconds to wait for its first sign of life

log = logging.getLogger(__name__)

Decoded = tuple[NDArray[np.uint8], list[str | None]]  # pixels (n, size, size, 3), and what is wrong with each picture


def decoded_batches(
    column: Images, rows: Sequence[int], *, batch: int = BATCH, size: int = SIZE, on_error: OnError | None = None
) -> Iterator[tuple[list[int], NDArray[np.uint8]]]:
    """Rows and their pixels (n, size, size, 3), in batches, in order.

    A picture that cannot be read is an error, unless `on_error` takes it: then it is left out.
    """
    parts = [list(rows[start : start + batch]) for start in range(0, len(rows), batch)]
    decode = _in_processes if processes_pay(column, rows, batch) else _in_threads
    with contextlib.closing(decode(column, parts, size)) as decoded:  # whoever stops early ends the workers, too
        for part, (pixels, wrong) in zip(parts, decoded, strict=True):
            if not any(wrong):
                yield part, pixels
                continue
            good = []
            for i, reason in enumerate(wrong):
                if reason is None:
                    good.append(i)
                elif on_error is None:
                    raise unreadable(column, part[i], reason)
                else:
                    on_error(part[i], reason)
            yield [part[i] for i in good], pixels[good]


def unreadable(column: Images, row: int, reason: object) -> DataError:
    path = column.path(row)
    return DataError(f"Cannot read {path or f'picture {row}'}: {reason}. Remove it from the data, or repair the file.")


def processes_pay(column: Images, rows: Sequence[int], batch: int = BATCH) -> bool:
    """Whether there are enough processors, and files of their own, for them. (Sharing memory as we do is Linux's way.)"""
    if not hasattr(os, "memfd_create") or not sys.executable or getattr(sys, "frozen", False):
        return False
    enough = cores() >= CORES and len(rows) >= max(FILES, 2 * CORES * batch)
    return enough and all(column.path(row) is not None for row in rows)


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _decode(
    items: Sequence[Item], source_of: Callable[[Item], images.Source | None], out: NDArray[np.uint8]
) -> list[str | None]:
    """Pictures into `out`, (n, size, size, 3); what is wrong with each."""
    wrong: list[str | None] = []
    for item, pixels in zip(items, out, strict=True):
        try:
            source = source_of(item)
            if source is None:
                raise ImageError("there is no picture")
            pixels[...] = images.decode(source, len(pixels))
            wrong.append(None)
        except ImageError as error:
            wrong.append(str(error))
    return wrong


# -- threads ----------------------------------------------------------------------------------------------------------


def _in_threads(column: Images, parts: Sequence[Sequence[int]], size: int) -> Generator[Decoded, None, None]:
    threads = min(THREADS, cores())
    with ThreadPoolExecutor(threads, "dcmh-decode") as pool:

        def begin(part: Sequence[int]) -> tuple[NDArray[np.uint8], list[Future[list[str | None]]]]:
            out = np.empty((len(part), size, size, 3), np.uint8)
            # A task for each picture would cost as much as its header.
            step = max(1, len(part) // (2 * threads))
            few = [slice(start, start + step) for start in range(0, len(part), step)]
            return out, [pool.submit(_decode, part[rows], column.source, out[rows]) for rows in few]

        ahead = [begin(part) for part in parts[:AHEAD]]
        for i in range(len(parts)):
            out, begun = ahead.pop(0)
            if i + AHEAD < len(parts):
                ahead.append(begin(parts[i + AHEAD]))
            yield out, [reason for future in begun for reason in future.result()]


# -- processes --------------------------------------------------------------------------------------------------------


def _in_processes(column: Images, parts: Sequence[Sequence[int]], size: int) -> Generator[Decoded, None, None]:
    """Batches go round: number i to process i mod n, each into its next slot of shared memory.

    What a process cannot decode is tried once more here, where Pillow may have been told otherwise, and where the reason is
    wanted. If processes cannot be had, or one ends before its time, threads do the rest.
    """
    count = max(1, min(PROCESSES, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), len(parts)))
    with contextlib.ExitStack() as stack:
        try:
            workers = [stack.enter_context(Worker(max(map(len, parts)), size)) for _ in range(count)]
            for worker in workers:
                worker.greet()
        except OSError as error:  # no memory, no descriptors, no processes, no such program
            log.warning("Pictures are decoded in threads, as processes could not be started: %s.", error)
            yield from _in_threads(column, parts, size)
            return

        def send(i: int) -> None:
            if i < len(parts):
                workers[i % count].send(i // count % SLOTS, [str(column.path(row)) for row in parts[i]])

        for i in range(SLOTS * count):
            send(i)
        for i, part in enumerate(parts):
            worker, slot = workers[i % count], i // count % SLOTS
            if not worker.has_answered():
                log.warning("Pictures are decoded in threads, as a process for it has ended.")
                yield from _in_threads(column, parts[i:], size)
                return
            pixels, good = worker.pixels[slot, : len(part)].copy(), worker.good[slot, : len(part)].copy()
            send(i + SLOTS * count)
            wrong: list[str | None] = [None] * len(part)
            for j in np.flatnonzero(good == 0).tolist():
                (wrong[j],) = _decode(part[j : j + 1], column.source, pixels[j : j + 1])
            yield pixels, wrong


class Worker:
    """A process that decodes files into memory shared with this one.

    Not one of Python's own pools: they import the program's main module once more, for which a script must be written.
    A line with a slot and paths goes in by its standard input; a byte comes back by a pipe when the slot is filled.
    """

    def __init__(self, batch: int, size: int) -> None:
        with contextlib.ExitStack() as ours:
            memory = _high(os.memfd_create("dcmh-pixels"))
            ours.callback(os.close, memory)
            os.ftruncate(memory, SLOTS * batch * (size * size * 3 + 1))
            self.pixels, self.good = _shared(memory, batch, size)
            self.answers, answer = map(_high, os.pipe())
            ours.callback(os.close, answer)
            given = (memory, answer, batch, size, images.MAX_MEGAPIXELS)
            program = f"from dcmh.decoding import work; work{given}"
            paths = [str(Path(__file__).parents[1]), *(path for path in sys.path if isinstance(path, str) and path)]
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", program],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(memory, answer),
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"},
                )
            except BaseException:
                os.close(self.answers)
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self.answers)

    def greet(self) -> None:
        """Wait until the process is ready; an OSError, if it does not get so, or was never one of ours."""
        poll = select.poll()
        poll.register(self.answers, select.POLLIN)
        if not poll.poll(1000 * PATIENCE) or not self.has_answered():
            raise ChildProcessError(f"{sys.executable} does not answer")

    def send(self, slot: int, paths: Sequence[str]) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps([slot, paths]).encode() + b"\n")
            self.process.stdin.flush()

    def has_answered(self) -> bool:
        """Wait for a byte: the batch sent first is there. No, if the process is no more."""
        return bool(os.read(self.answers, 1))


def work(memory: int, answer: int, batch: int, size: int, megapixels: int) -> None:
    """What a worker does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, whose end ends the input
    images.MAX_MEGAPIXELS = megapixels
    pixels, good = _shared(memory, batch, size)
    os.write(answer, b"!")
    for line in sys.stdin.buffer:
        slot, paths = json.loads(line)
        wrong = _decode(paths, Path, pixels[slot, : len(paths)])
        good[slot, : len(paths)] = [reason is None for reason in wrong]
        os.write(answer, b".")


def _shared(memory: int, batch: int, size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels (slots, batch, size, size, 3), and which pictures are good, (slots, batch)."""
    whole = np.frombuffer(mmap.mmap(memory, 0), np.uint8)
    pixels = whole[: SLOTS * batch * size * size * 3].reshape(SLOTS, batch, size, size, 3)
    return pixels, whole[pixels.size :].reshape(SLOTS, batch)


def _high(descriptor: int) -> int:
    """The same file under a number of 3 or more: those below become the worker's standard input and output."""
    if descriptor > 2:
        return descriptor
    import fcntl

    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)
