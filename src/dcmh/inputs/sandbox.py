"""Untrusted pictures are decoded in separate processes, which are killed when a picture takes too much time or memory."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ImageError
from dcmh.inputs import images
from dcmh.util import subprocesses

START_SECONDS = 20.0
BLOCK = 1 << 20  # bytes, also of a pipe where the system allows it

_REQUEST = struct.Struct(">cIiIQ")  # operation, framing (size in pixels first), number of bytes that follow
_UNFRAMED = images.Framing(0)
_ANSWER = struct.Struct(">cQ")  # status, number of bytes that follow
_DATA, _PATH, _INSPECT, _DECODE, _THUMBNAIL = b"b", b"p", b"i", b"d", b"t"
_OK, _FAILED, _NO_MEMORY = b"+", b"-", b"m"
_NO_MEMORY_MESSAGES = ("Out of memory", "(unexpected C++ exception)")  # of libavif and libheif
_TOO_SLOW = "takes longer than {:g} s to decode"
_TOO_LARGE = "takes more than {:,} MB to decode"


class LimitExceeded(ImageError):
    """A picture takes too much time or memory to decode, or crashes the decoder."""


def can_run() -> bool:
    """Whether this system and this Python can run the processes; otherwise pictures are decoded here, without limits."""
    return os.name == "posix" and subprocesses.can_start()


class Sandbox:
    """A few processes that decode pictures within limits, started when they are needed. Thread-safe.

    Parameters
    ----------
    processes : maximum number of pictures that are decoded at the same time
    seconds : limit for one step with one picture
    megabytes : memory limit for one picture, in addition to that of the process itself
    """

    def __init__(self, processes: int, seconds: float, megabytes: int) -> None:
        self.seconds = seconds
        self.megabytes = megabytes
        self._idle: queue.LifoQueue[_Process | None] = queue.LifoQueue()  # None: not started
        for _ in range(processes):
            self._idle.put(None)

    @contextlib.contextmanager
    def open(self, source: bytes | Path) -> Iterator[SandboxedPicture]:
        """A picture, to inspect and decode within the block; the bytes of a file, or its path."""
        if not can_run():
            yield SandboxedPicture(source, None)
            return
        process = self._idle.get()
        try:
            if process is not None and not process.is_alive:
                process.end()
                process = None
            if process is None:
                process = _Process(self.seconds, self.megabytes)
            process.load(source)
            yield SandboxedPicture(source, process)
        finally:
            if process is not None and not process.is_alive:
                process.end()
                process = None
            self._idle.put(process)

    def start(self) -> None:
        """Start one process, so that the first picture need not wait for it."""
        with contextlib.suppress(ImageError), self.open(b""):
            pass

    def close(self) -> None:
        """End the processes that are idle."""
        idle = []
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self._idle.get_nowait())
        for process in idle:
            if process is not None:
                process.end()
            self._idle.put(None)


class SandboxedPicture:
    """A picture in a process of a sandbox. Every method raises ImageError where the picture is damaged or exceeds a limit."""

    def __init__(self, source: bytes | Path, process: _Process | None) -> None:
        self.source = source
        self._process = process

    def inspect(self) -> tuple[str, int]:
        """The format and the number of pixels, from the header. See `images.inspect`."""
        if self._process is None:
            return images.inspect(self.source)
        kind, _, pixels = self._process.ask(_INSPECT).decode().partition(" ")
        return kind, int(pixels)

    def decode(self, size: int | images.Framing) -> NDArray[np.uint8]:
        """The pixels, shape (size, size, 3). See `images.decode`."""
        framing = images.Framing.of(size)
        if self._process is None:
            return images.decode(self.source, framing)
        return np.frombuffer(self._process.ask(_DECODE, framing), np.uint8).reshape(framing.size, framing.size, 3)

    def thumbnail(self, size: int) -> bytes:
        """A small JPEG file. See `images.thumbnail`."""
        if self._process is None:
            return images.thumbnail(self.source, size)
        return self._process.ask(_THUMBNAIL, images.Framing(size))


class _Process:
    """One process, as its parent sees it. It is used by one thread at a time."""

    def __init__(self, seconds: float, megabytes: int) -> None:
        self._seconds = seconds
        self._megabytes = megabytes
        code = f"from dcmh.inputs.sandbox import work; work({seconds!r}, {megabytes!r})"
        self._process = subprocess.Popen(
            subprocesses.command(code),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=subprocesses.environment(OMP_NUM_THREADS="1", MALLOC_ARENA_MAX="1"),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        for pipe in (self._input, self._output):
            _widen(pipe)
        self._poll = select.poll()
        self._poll.register(self._output, select.POLLIN)
        self._answer(START_SECONDS)

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None and self._process.poll() is None

    def load(self, source: bytes | Path) -> None:
        """Send the picture that the next requests are about."""
        data = source if isinstance(source, bytes) else os.fsencode(source)
        self._send(_DATA if isinstance(source, bytes) else _PATH, data=data)

    def ask(self, operation: bytes, framing: images.Framing = _UNFRAMED) -> bytes:
        """The result of one step with the picture."""
        self._send(operation, framing)
        return self._answer(self._seconds)

    def end(self) -> None:
        """Kill the process, whatever it is doing, and wait for its end."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _send(self, operation: bytes, framing: images.Framing = _UNFRAMED, data: bytes = b"") -> None:
        view = memoryview(_REQUEST.pack(operation, *framing, len(data)) + data)
        try:
            while view:
                view = view[os.write(self._input, view) :]
        except OSError:
            self._fail()

    def _answer(self, seconds: float) -> bytes:
        end = time.monotonic() + seconds
        status, length = _ANSWER.unpack(self._read(_ANSWER.size, end))
        body = self._read(length, end)
        if status == _OK:
            return body
        if status == _NO_MEMORY:  # it may have none left for the next picture
            self.end()
            raise LimitExceeded(_TOO_LARGE.format(self._megabytes))
        raise ImageError(body.decode("utf-8", "replace"))

    def _read(self, count: int, end: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            if not self._poll.poll(max(0.0, 1000 * (end - time.monotonic()))):
                self.end()
                raise LimitExceeded(_TOO_SLOW.format(self._seconds))
            block = os.read(self._output, min(BLOCK, count - len(data)))
            if not block:
                self._fail()
            data += block
        return bytes(data)

    def _fail(self) -> None:
        """The process has died: of its limits, or of a bug in a decoder."""
        self.end()
        slow = self._process.returncode == -getattr(signal, "SIGXCPU", 24)
        raise LimitExceeded(_TOO_SLOW.format(self._seconds) if slow else "the decoder has crashed")


def _widen(pipe: int) -> None:
    """Let a pipe hold BLOCK bytes (Linux), so that the two sides need not take turns."""
    import fcntl

    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, BLOCK)


# -- in the process ---------------------------------------------------------------------------------------------------


def work(seconds: float, megabytes: int) -> None:
    """Answer requests on stdin until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    images.decode_in_one_thread()  # Pillow and all formats are loaded
    images.decode(np.zeros((8, 8, 3), np.uint8), 4)
    _limit_memory(megabytes)
    answers.write(_ANSWER.pack(_OK, 0))
    answers.flush()
    source: bytes | Path = b""
    while len(header := requests.read(_REQUEST.size)) == _REQUEST.size:
        operation, *framing, length = _REQUEST.unpack(header)
        data = requests.read(length)
        if operation in (_DATA, _PATH):
            source = data if operation == _DATA else Path(os.fsdecode(data))
            continue
        _limit_time(seconds)
        try:
            _reply(answers, _OK, _result(source, operation, images.Framing(*framing)))
        except ImageError as error:
            _reply(answers, _FAILED, str(error).encode("utf-8", "replace"))
        except MemoryError:
            _reply(answers, _NO_MEMORY, b"")


def _result(source: bytes | Path, operation: bytes, framing: images.Framing) -> bytes:
    try:
        if operation == _INSPECT:
            kind, pixels = images.inspect(source)
            return f"{kind} {pixels}".encode()
        if operation == _THUMBNAIL:
            return images.thumbnail(source, framing.size)
        return images.decode(source, framing).tobytes()
    except ImageError as error:
        cause = error.__cause__
        if isinstance(cause, MemoryError) or str(cause).endswith(_NO_MEMORY_MESSAGES):
            raise MemoryError from None
        raise


def _reply(answers: BinaryIO, status: bytes, body: bytes) -> None:
    answers.write(_ANSWER.pack(status, len(body)) + body)
    answers.flush()


def _limit_memory(megabytes: int) -> None:
    """Limit the address space to what the process has now and `megabytes` more. No core dumps."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # no /proc, or a system without this limit
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + megabytes * 10**6
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _limit_time(seconds: float) -> None:
    """Limit the CPU time of the next step, for when the parent is gone and cannot end this process."""
    import resource

    used = time.process_time()
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (int(used + seconds) + 2, resource.RLIM_INFINITY))
