"""Locks between processes: one process at a time holds a lock file, and loses it when it ends."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(file: Path, *, wait: float = 0.0) -> Iterator[bool]:
    """Hold a lock file within the block; gives False if another process still holds it after `wait` seconds.

    The file is created if needed and stays behind; its folder must exist. An OSError means that the file cannot be
    opened.
    """
    from filelock import FileLock, Timeout  # imports asyncio, 30 ms that most commands do without

    with open(file, "a") as opened:
        lock = FileLock(file)
        try:
            lock.acquire(timeout=wait, poll_interval=0.02)
        except Timeout:
            yield False
            return
        try:
            if os.fstat(opened.fileno()).st_nlink == 0:  # FileLock recreated the folder, which had been removed
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
            yield True
        finally:
            lock.release()
