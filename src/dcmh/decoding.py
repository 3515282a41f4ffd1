"""Pictures of a column as batches of pixels, decoded ahead of the network that eats them: in threads, or in processes.

Pillow lets go of the interpreter while it decodes, but not while it reads a header. Of small pictures, threads decode no more
than two or three processors could; so where there are more, and many files, processes do it (benchmarks/decode.py).
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
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

Decoded = tuple[NDArray[np.uint8], list[str | None]]  # pixels (n, size, size, 3), and what is wrong with each picture


def decoded_batches(
    column: Images, rows: Sequence[int], *, batch: int = BATCH, size: int = SIZE, on_error: OnError | None = None
) -> Iterator[tuple[list[int], NDArray[np.uint8]]]:
    """Rows and their pixels (n, size, size, 3), in batches, in order.

    A picture that cannot be read is an error, unless `on_error` takes it: then it is left out.
    """
    parts = [list(rows[start : start + batch]) for start in range(0, len(rows), batch)]
    decode = _in_processes if processes_pay(column, rows) else _in_threads
    for part, (pixels, wrong) in zip(parts, decode(column, parts, size), strict=True):
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


def processes_pay(column: Images, rows: Sequence[int]) -> bool:
    """Whether there are enough processors, and files of their own, for them. (Sharing memory as we do is Linux's way.)"""
    if not hasattr(os, "memfd_create") or not sys.executable or getattr(sys, "frozen", False):
        return False
    return cores() >= CORES and len(rows) >= FILES and all(column.path(row) is not None for row in rows)


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


def _in_threads(column: Images, parts: Sequence[Sequence[int]], size: int) -> Iterator[Decoded]:
    threads = min(THREADS, cores())

    with ThreadPoolExecutor(threads, "dcmh-decode") as pool:

        def begin(part: Sequence[int]) -> tuple[NDArray[np.uint8], list[Future[list[str | None]]]]:
            out = np.empty((len(part), size, size, 3), np.uint8)
            step = max(
                1, len(part) // (2 * threads)
            )  # pictures at a time: handing over a task costs as much as a header
            few = [slice(start, start + step) for start in range(0, len(part), step)]
            return out, [pool.submit(_decode, part[rows], column.source, out[rows]) for rows in few]

        ahead = [begin(part) for part in parts[:AHEAD]]
        for i in range(len(parts)):
            out, begun = ahead.pop(0)
            if i + AHEAD < len(parts):
                ahead.append(begin(parts[i + AHEAD]))
            yield out, [reason for future in begun for reason in future.result()]


# -- processes --------------------------------------------------------------------------------------------------------


def _in_processes(column: Images, parts: Sequence[Sequence[int]], size: int) -> Iterator[Decoded]:
    """Batches go round: number i to process i mod n, each into its next slot of shared memory."""
    with contextlib.ExitStack() as stack:
        count = min(PROCESSES, cores(), len(parts))
        workers = [stack.enter_context(Worker(max(map(len, parts)), size)) for _ in range(count)]

        def send(i: int) -> None:
            if i < len(parts):
                workers[i % count].send(i // count % SLOTS, [str(column.path(row)) for row in parts[i]])

        for i in range(SLOTS * count):
            send(i)
        for i, part in enumerate(parts):
            worker = workers[i % count]
            wrong = worker.receive()
            pixels = worker.slots[i // count % SLOTS, : len(part)].copy()
            if wrong is None:  # the process has ended, perhaps for want of memory
                wrong = _decode(part, column.source, pixels)
            send(i + SLOTS * count)
            yield pixels, wrong


class Worker:
    """A process that decodes files into memory shared with this one.

    Not one of Python's own pools: they import the program's main module once more, for which a script must be written.
    """

    def __init__(self, batch: int, size: int) -> None:
        shape = (SLOTS, batch, size, size, 3)
        memory = os.memfd_create("dcmh-pixels")
        try:
            os.ftruncate(memory, int(np.prod(shape)))
            self.slots = np.frombuffer(mmap.mmap(memory, 0), np.uint8).reshape(shape)
            program = f"from dcmh.decoding import work; work({memory}, {shape})"
            paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(memory,),
                env=os.environ | {"PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"},
                text=True,
            )
        finally:
            os.close(memory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def send(self, slot: int, paths: Sequence[str]) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps([slot, paths]) + "\n")
            self.process.stdin.flush()

    def receive(self) -> list[str | None] | None:
        """What is wrong with each picture of the batch sent first; None if the process is no more."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else None


def work(memory: int, shape: tuple[int, ...]) -> None:
    """What a worker does: a line with a slot and paths comes in, pixels go to memory, a line with what is wrong goes out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, whose end ends the input
    slots = np.frombuffer(mmap.mmap(memory, 0), np.uint8).reshape(shape)
    for line in sys.stdin:
        slot, paths = json.loads(line)
        wrong = _decode(paths, Path, slots[slot, : len(paths)])
        sys.stdout.write(json.dumps(wrong) + "\n")
        sys.stdout.flush()
