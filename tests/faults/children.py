"""Operations in forked children, traced by strace: their system calls are recorded, or one of them fails."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from dcmh.errors import StorageError

SECONDS = 60.0
RUNNING, SUCCESS = "still running", "success"
ANY_TRACER = (0x59616D61, ctypes.c_ulong(-1))  # PR_SET_PTRACER, PR_SET_PTRACER_ANY


def can_trace() -> bool:
    return shutil.which("strace") is not None


def run(work: Callable[[], None], *strace: str, file_limit: int | None = None) -> str:
    """Do something in a child, traced with these options of strace, or with no file larger than `file_limit` bytes.

    Returns "success", "storage: MESSAGE", or "other: MESSAGE" for any other exception. Nothing of it uses a system call after
    the work, so an injected fault cannot hit it.
    """
    shared = mmap.mmap(-1, 4096)
    shared.write(RUNNING.encode())
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        _child(work, shared, ready, file_limit)
    os.close(ready)
    tracer = None
    if strace:
        command = ["strace", "-f", "-p", str(child), *strace]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert tracer.stderr is not None
        line = tracer.stderr.readline()
        assert "attached" in line, line
    os.write(go, b".")
    os.close(go)
    _wait(child)
    if tracer is not None:
        tracer.communicate()
    shared.seek(0)
    return shared.read().rstrip(b"\0").decode(errors="replace")


def _child(work: Callable[[], None], shared: mmap.mmap, ready: int, file_limit: int | None) -> None:
    ctypes.CDLL(None).prctl(*ANY_TRACER, 0, 0, 0)
    os.read(ready, 1)
    if file_limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, resource.RLIM_INFINITY))
    try:
        work()
        outcome = SUCCESS
    except StorageError as error:
        outcome = f"storage: {error}"
    except BaseException as error:
        cause = error.__cause__ or error.__context__
        outcome = f"other: {type(error).__name__}: {error} [{type(cause).__name__}: {cause}]"
    text = outcome.encode(errors="replace")[:4096]
    shared[: len(text)] = text
    shared[len(text) :] = bytes(4096 - len(text))
    os._exit(0)


def _wait(child: int) -> None:
    """Wait for the child; end it when it takes too long."""
    handle = os.pidfd_open(child)
    if not select.select([handle], [], [], SECONDS)[0]:
        os.kill(child, signal.SIGKILL)
        time.sleep(0.1)
    os.close(handle)
    os.waitpid(child, 0)


def copied(source: Path, target: Path) -> Path:
    """A fresh copy of a folder."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target
