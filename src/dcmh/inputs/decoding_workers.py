"""Processes that decode image files into shared memory (Linux)."""

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
from dcmh.util import subprocesses

Item = TypeVar("Item")

CHUNK = 16  # pictures per task
SLOTS = 4  # tasks that a worker has at a time
START_TIMEOUT = 20  # seconds


def can_work() -> bool:
    """Whether this system and this Python can run workers."""
    return hasattr(os, "memfd_create") and subprocesses.can_start()


def decode_into(
    out: NDArray[np.uint8],
    items: Sequence[Item],
    source_of: Callable[[Item], images.Source | None],
    framing: images.Framing,
) -> list[str | None]:
    """Decode pictures into `out`, (n, size, size, 3); returns for each why it cannot be read, or None."""
    failures: list[str | None] = []
    for item, pixels in zip(items, out, strict=True):
        try:
            source = source_of(item)
            if source is None:
                raise ImageError("there is no picture")
            pixels[...] = images.decode(source, framing)
            failures.append(None)
        except ImageError as error:
            failures.append(str(error))
    return failures


@dataclass(eq=False)
class Task:
    """A few files to decode."""

    paths: list[str]
    out: NDArray[np.uint8]  # (n, size, size, 3)
    decoded: NDArray[np.bool_] | None = None  # which files could be decoded; None until the task is done
    worker: Worker | None = None  # that has the task


class WorkerPool:
    """Several workers, their tasks, and the tasks that wait for a free slot."""

    def __init__(self, count: int, framing: images.Framing) -> None:
        self._count, self._framing = count, framing
        self._waiting: deque[Task] = deque()
        self._workers: list[Worker] = []

    def start(self) -> None:
        """Start the workers and wait until they are ready; an OSError if that fails."""
        try:
            for _ in range(self._count):
                self._workers.append(Worker(self._framing))
            for worker in self._workers:
                worker.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def submit(self, task: Task) -> None:
        """Give a task to a worker as soon as one has a free slot."""
        self._waiting.append(task)
        self._assign()

    def finish(self, task: Task) -> None:
        """Wait until a task is done; a ChildProcessError if a worker has ended."""
        while task.decoded is None:
            busiest = max(self._workers, key=lambda worker: len(worker.tasks))
            (task.worker or busiest).collect()
            self._assign()

    def stop(self) -> None:
        """End all workers, whatever they are doing."""
        with contextlib.ExitStack() as stack:  # so that all are closed even if one is interrupted
            for worker in self._workers:
                worker.process.kill()
                stack.callback(worker.close)

    def _assign(self) -> None:
        while self._waiting:
            idlest = min(self._workers, key=lambda worker: len(worker.tasks))
            if not idlest.free:
                return
            idlest.send(self._waiting.popleft())


class Worker:
    """A process that decodes files into memory shared with this one.

    Python's own process pools would import the main module again, which users' scripts are not written for. A line with a slot
    and paths is sent to its standard input; a byte comes back through a pipe when the slot is filled.
    """

    def __init__(self, framing: images.Framing) -> None:
        size = framing.size
        self.tasks: deque[tuple[int, Task]] = deque()  # slot and task, in the order in which they are done
        self.free = list(range(SLOTS))
        with contextlib.ExitStack() as opened:
            memory = _high(os.memfd_create("dcmh-pixels"))
            opened.callback(os.close, memory)
            os.ftruncate(memory, SLOTS * CHUNK * (size * size * 3 + 1))
            self._pixels, self._decoded = _shared(memory, size)
            self._answers, answer = map(_high, os.pipe())
            opened.callback(os.close, answer)
            settings = memory, answer, images.MAX_MEGAPIXELS, *map(int, framing)
            program = f"from dcmh.inputs.decoding_workers import work; work{settings}"
            try:
                self.process = subprocess.Popen(
                    subprocesses.command(program),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(memory, answer),
                    env=subprocesses.environment(),
                )
            except BaseException:
                os.close(self._answers)
                raise

    def wait_until_ready(self) -> None:
        """Wait until the process has started; an OSError if it does not."""
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        if not poll.poll(1000 * START_TIMEOUT) or not os.read(self._answers, 1):
            raise ChildProcessError(f"{sys.executable} does not answer")

    def send(self, task: Task) -> None:
        """Send it a task; there must be a free slot."""
        slot = self.free.pop()
        self.tasks.append((slot, task))
        task.worker = self
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `collect` raises the error
            self.process.stdin.write(json.dumps([slot, task.paths]).encode() + b"\n")
            self.process.stdin.flush()

    def collect(self) -> None:
        """Wait for its oldest task; a ChildProcessError if the process has ended."""
        if not os.read(self._answers, 1):
            raise ChildProcessError("a worker process has ended")
        slot, task = self.tasks.popleft()
        task.out[...] = self._pixels[slot, : len(task.out)]
        task.decoded = self._decoded[slot, : len(task.out)] != 0
        self.free.append(slot)

    def close(self) -> None:
        """End the process and release what belongs to it."""
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


def work(memory: int, answer: int, megapixels: int, *framing: int) -> None:
    """The main function of a worker process."""
    frame = images.Framing(*framing)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main program, whose end closes the input
    images.MAX_MEGAPIXELS = megapixels
    images.decode_in_one_thread()
    pixels, decoded = _shared(memory, frame.size)
    os.write(answer, b"!")
    for line in sys.stdin.buffer:
        slot, paths = json.loads(line)
        failures = decode_into(pixels[slot, : len(paths)], paths, Path, frame)
        decoded[slot, : len(paths)] = [failure is None for failure in failures]
        os.write(answer, b".")


def _shared(memory: int, size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels (slots, chunk, size, size, 3), and which pictures could be decoded, (slots, chunk)."""
    shared = np.frombuffer(mmap.mmap(memory, 0), np.uint8)
    pixels = shared[: SLOTS * CHUNK * size * size * 3].reshape(SLOTS, CHUNK, size, size, 3)
    return pixels, shared[pixels.size :].reshape(SLOTS, CHUNK)


def _high(descriptor: int) -> int:
    """The same file under a descriptor of 3 or more: those below become the worker's standard input and output."""
    if descriptor > 2:
        return descriptor
    import fcntl

    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)
