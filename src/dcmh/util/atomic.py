"""Writing so that readers see the old file or the new one, never half of it; and paths that can be written down."""

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
    """Give a draft path beside `path`; it takes the place of `path` when the block ends well, and vanishes otherwise."""
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
    """Write a whole UTF-8 file or nothing."""
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="\n")


@contextlib.contextmanager
def whole_folder(path: Path | str) -> Iterator[Path]:
    """Give an empty draft folder; it takes the place of `path` when the block ends well, and vanishes otherwise."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    try:
        yield draft
        draft.chmod(0o755)
        for file in draft.iterdir():  # some libraries write files that only their owner may read
            file.chmod(0o755 if file.is_dir() else 0o644)
        if path.exists():
            _replace_folder(draft, path)
        else:
            os.replace(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _replace_folder(draft: Path, path: Path) -> None:
    """Put a folder in the place of another, which comes back where that fails."""
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
    """Refuse a path that is not UTF-8, before the work: no JSON file and no database could name it."""
    for whole in (os.path.abspath(path), os.path.realpath(path)):
        try:
            whole.encode()
        except UnicodeEncodeError:
            shown = whole.encode(errors="replace").decode()
            raise DataError(
                f"The path {shown} is not UTF-8, so it cannot be noted. Rename that folder or file."
            ) from None
