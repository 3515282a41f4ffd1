"""Atomic and durable writes: readers see either the old file or folder or the new one, never a part of it.

When a block of `whole_file` or `whole_folder` ends, the new content and its name are on the disk: the file (or all files and
folders) is synced, renamed, and then the parent folder is synced. A folder is replaced by exchanging two names
(Linux's renameat2), so it is never missing. Where the file system cannot do that, the old folder is moved aside first; if
the process is killed in between, `recover` puts the old folder back the next time it is read or written.

A draft is locked (flock) while it is written. The first write of a process in a folder removes drafts that no process has locked.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from dcmh.errors import DataError, StorageError

DRAFT, OLD = ".part", ".old"
_EXCHANGE = 2  # RENAME_EXCHANGE
_AT_FDCWD = -100
_LEFTOVER = re.compile(r"\.(.+)\.[a-z0-9_]{8}\.(part|old)", re.DOTALL)  # names of tempfile
_swept: set[str] = set()  # folders that this process has looked through for leftovers
_GAP_SECONDS = 1.0  # how long a reader waits for a writer that replaces a folder in two steps


@contextlib.contextmanager
def whole_file(path: Path | str) -> Iterator[Path]:
    """Give a temporary path beside `path`, which replaces `path` if the block succeeds and is removed otherwise."""
    path = Path(path)
    with storage_errors(path):
        make_folder(path.parent)
        _sweep(path.parent)
        handle, draft = _draft(path)
        try:
            yield draft
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            draft.chmod(0o644)
            os.replace(draft, path)
            sync_folder(path.parent)
        finally:
            os.close(handle)
            draft.unlink(missing_ok=True)


def write_text(path: Path | str, text: str) -> None:
    """Write a UTF-8 file atomically."""
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="\n")


@contextlib.contextmanager
def whole_folder(path: Path | str) -> Iterator[Path]:
    """Give an empty temporary folder, which replaces `path` if the block succeeds and is removed otherwise."""
    path = Path(path)
    with storage_errors(path):
        make_folder(path.parent)
        recover(path)
        _sweep(path.parent)
        draft = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=DRAFT))
        try:
            with _locked(draft):
                yield draft
                draft.chmod(0o755)
                for file in draft.iterdir():  # some libraries write files that only their owner can read
                    file.chmod(0o755 if file.is_dir() else 0o644)
                sync_tree(draft)
                if not path.exists():
                    os.replace(draft, path)
                elif not _exchange(draft, path):
                    _replace_in_two_steps(draft, path)
                sync_folder(path.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)  # after an exchange, the old folder


def _draft(path: Path) -> tuple[int, Path]:
    """A new empty file beside `path`, open and locked."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=DRAFT)
        _lock(handle, wait=True)
        if os.path.exists(name):  # else another process has swept it before it was locked
            return handle, Path(name)
        os.close(handle)


@contextlib.contextmanager
def storage_errors(path: Path | str) -> Iterator[None]:
    """Inside the block, errors of a full, failing or read-only disk become a `StorageError`."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        if (storage := StorageError.of(error, path)) is None:
            raise
        raise storage from error


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, durably."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if sys.platform == "win32":  # cannot open a folder
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems sync at once
            raise
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Wait until all files and names under a folder are on the disk."""
    for parent, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(parent, name), "rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(parent))


def recover(path: Path) -> None:
    """Put a folder back that a killed writer had moved aside; wait for a writer that is doing so now."""
    end = time.monotonic() + _GAP_SECONDS
    while not path.exists():
        beside = path.parent.glob(f".{glob.escape(path.name)}.*{OLD}")
        aside = [old / "was" for old in beside if (old / "was").is_dir()]
        if not aside:
            return
        if time.monotonic() > end:
            with contextlib.suppress(OSError):  # another reader was quicker
                os.rename(aside[0], path)
            return
        time.sleep(0.02)


def _exchange(draft: Path, path: Path) -> bool:
    """Exchange two folders in one step; False where the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(draft), _AT_FDCWD, os.fsencode(path), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(path))


def _replace_in_two_steps(draft: Path, path: Path) -> None:
    """Replace a folder by another; if that fails, the old one is restored."""
    old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=OLD))
    was = old / "was"
    try:
        with _locked(old):
            os.replace(path, was)
            os.replace(draft, path)
            sync_folder(path.parent)
    except BaseException:
        if was.exists() and not path.exists():
            os.replace(was, path)
        shutil.rmtree(old)
        raise
    shutil.rmtree(old)


def _sweep(folder: Path) -> None:
    """Remove what killed processes have left in a folder; once per process, as a folder can hold many files."""
    where = os.path.realpath(folder)
    if where in _swept:
        return
    _swept.add(where)
    for entry in os.scandir(where):
        match = _LEFTOVER.fullmatch(entry.name)
        if match is None or (match[2] == "old" and not (Path(where) / match[1]).exists()):  # left for `recover`
            continue
        with contextlib.suppress(OSError), _locked(Path(entry)) as alone:
            if alone:
                shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold a lock on a file or folder itself, if no other process does; gives whether this one has it."""
    if sys.platform == "win32":
        yield False
        return
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        yield _lock(handle)
    finally:
        os.close(handle)


def _lock(handle: int, *, wait: bool = False) -> bool:
    """Lock an open file until it is closed or the process ends; False if it is locked, or the system has no such locks."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def check_spelling(path: Path | str) -> None:
    """Raise a DataError for a path that is not UTF-8, which neither JSON nor a database can store."""
    for resolved in (os.path.abspath(path), os.path.realpath(path)):
        try:
            resolved.encode()
        except UnicodeEncodeError:
            shown = resolved.encode(errors="replace").decode()
            raise DataError(
                f"The path {shown} is not UTF-8, so it cannot be stored. Rename that folder or file."
            ) from None
