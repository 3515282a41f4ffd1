"""Processes that decode picture files into memory they share with the program (Linux)."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ImageError
from dcmh.inputs import images

Item = TypeVar("Item")

CHUNK = 16  # pictures in a task
SLOTS = 4  # tasks that a worker has at a time
PATIENCE = 20  # seconds to wait for its first sign of life


def can_work() -> bool:
    """Whether this system and this Python can have workers."""
    return hasattr(os, "memfd_create") and bool(sys.executable) and not getattr(sys, "frozen", False)


def decode_into(
    out: NDArray[np.uint8], items: Sequence[Item], source_of: Callable[[Item], images.Source | None]
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


@dataclass(eq=False)
class Task:
    """A few files to be decoded; it is done when `good` says which could be."""

    paths: list[str]
    out: NDArray[np.uint8]  # (n, size, size, 3)
    good: NDArray[np.bool_] | None = None
    worker: Worker | None = None  # who has it


class Crew:
    """Several workers and the tasks they have, or will have as soon as one has room."""

    def __init__(self, count: int, size: int) -> None:
        """Starts the workers; an OSError, if that cannot be."""
        self._waiting: deque[Task] = deque()
        self._workers: list[Worker] = []
        try:
            for _ in range(count):
                self._workers.append(Worker(size))
            for worker in self._workers:
                worker.greet()
        except BaseException:
            self.close()
            raise

    def give(self, task: Task) -> None:
        self._waiting.append(task)
        self._hand_out()

    def finish(self, task: Task) -> None:
        """Wait until the task is done; a ChildProcessError, if a worker has ended."""
        while task.good is None:
            busiest = max(self._workers, key=lambda worker: len(worker.tasks))
            (task.worker or busiest).collect()
            self._hand_out()

    def close(self) -> None:
        with contextlib.ExitStack() as all_of_them:  # also if one is interrupted
            for worker in self._workers:
                worker.process.kill()
                all_of_them.callback(worker.close)

    def _hand_out(self) -> None:
        while self._waiting:
            idlest = min(self._workers, key=lambda worker: len(worker.tasks))
            if not idlest.free:
                return
            idlest.send(self._waiting.popleft())


class Worker:
    """A process that decodes files into memory shared with this one.

    Not one of Python's own pools: they import the program's main module once more, for which a script must be written.
    A line with a slot and paths goes in by its standard input; a byte comes back by a pipe when the slot is filled.
    """

    def __init__(self, size: int) -> None:
        self.tasks: deque[tuple[int, Task]] = deque()  # that it has, with their slots, in its order
        self.free = list(range(SLOTS))
        with contextlib.ExitStack() as ours:
            memory = _high(os.memfd_create("dcmh-pixels"))
            ours.callback(os.close, memory)
            os.ftruncate(memory, SLOTS * CHUNK * (size * size * 3 + 1))
            self._pixels, self._good = _shared(memory, size)
            self._answers, answer = map(_high, os.pipe())
            ours.callback(os.close, answer)
            program = (
                f"from dcmh.inputs.decoding_workers import work; work{(memory, answer, size, images.MAX_MEGAPIXELS)}"
            )
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
                os.close(self._answers)
                raise

    def greet(self) -> None:
        """Wait until the process is ready; an OSError, if it does not get so, or was never one of ours."""
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        if not poll.poll(1000 * PATIENCE) or not os.read(self._answers, 1):
            raise ChildProcessError(f"{sys.executable} does not answer")

    def send(self, task: Task) -> None:
        """Give it a task; there must be a free slot."""
        slot = self.free.pop()
        self.tasks.append((slot, task))
        task.worker = self
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `collect` will tell
            self.process.stdin.write(json.dumps([slot, task.paths]).encode() + b"\n")
            self.process.stdin.flush()

    def collect(self) -> None:
        """Wait for the task that it was given first; a ChildProcessError, if the process is no more."""
        if not os.read(self._answers, 1):
            raise ChildProcessError("a process for it has ended")
        slot, task = self.tasks.popleft()
        task.out[...] = self._pixels[slot, : len(task.out)]
        task.good = self._good[slot, : len(task.out)] != 0
        self.free.append(slot)

    def close(self) -> None:
        self.process.kill()
        answers, self._answers = self._answers, -1
        try:
            self.process.communicate()
        finally:
            self.tasks.clear()
            if self.process.stdin is not None:
                with contextlib.suppress(OSError):
                    self.process.stdin.close()
            if answers >= 0:
                os.close(answers)


def work(memory: int, answer: int, size: int, megapixels: int) -> None:
    """What the process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, whose end ends the input
    images.MAX_MEGAPIXELS = megapixels
    pixels, good = _shared(memory, size)
    os.write(answer, b"!")
    for line in sys.stdin.buffer:
        slot, paths = json.loads(line)
        wrong = decode_into(pixels[slot, : len(paths)], paths, Path)
        good[slot, : len(paths)] = [reason is None for reason in wrong]
        os.write(answer, b".")


def _shared(memory: int, size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels (slots, chunk, size, size, 3), and which pictures are good, (slots, chunk)."""
    whole = np.frombuffer(mmap.mmap(memory, 0), np.uint8)
    pixels = whole[: SLOTS * CHUNK * size * size * 3].reshape(SLOTS, CHUNK, size, size, 3)
    return pixels, whole[pixels.size :].reshape(SLOTS, CHUNK)


def _high(descriptor: int) -> int:
    """The same file under a number of 3 or more: those below become the worker's standard input and output."""
    if descriptor > 2:
        return descriptor
    import fcntl

    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)
