"""Atomic writes: readers see either the old file or folder or the new one, never a part of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dcmh.errors import DataError


@contextlib.contextmanager
def whole_file(path: Path | str) -> Iterator[Path]:
    """Give a temporary path beside `path`, which replaces `path` if the block succeeds and is removed otherwise."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.chmod(0o644)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Path | str, text: str) -> None:
    """Write a UTF-8 file atomically."""
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="\n")


@contextlib.contextmanager
def whole_folder(path: Path | str) -> Iterator[Path]:
    """Give an empty temporary folder, which replaces `path` if the block succeeds and is removed otherwise."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    try:
        yield draft
        draft.chmod(0o755)
        for file in draft.iterdir():  # some libraries write files that only their owner can read
            file.chmod(0o755 if file.is_dir() else 0o644)
        if path.exists():
            _replace_folder(draft, path)
        else:
            os.replace(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _replace_folder(draft: Path, path: Path) -> None:
    """Replace a folder by another; if that fails, the old one is restored."""
    old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".old"))
    was = old / "was"
    try:
        os.replace(path, was)
        os.replace(draft, path)
    except BaseException:
        if was.exists() and not path.exists():
            os.replace(was, path)
        shutil.rmtree(old)
        raise
    shutil.rmtree(old)


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
