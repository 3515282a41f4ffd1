"""The files of a published data set in a folder, unpacked or still inside zips."""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dcmh.data.columns import Stored
from dcmh.errors import DataError, ImageError

# What the standard library raises for a damaged zip, or a damaged file in one.
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)


class Zip:
    """The files of one zip, read one at a time; also the `Store` of its pictures."""

    def __init__(self, path: Path) -> None:
        self.file = path
        try:
            self._file = zipfile.ZipFile(path)
        except BROKEN as error:
            raise DataError(f"{path} is damaged ({error}). Delete it and get it again.") from error

    def names(self) -> list[str]:
        """The paths of all files in the zip."""
        return [info.filename for info in self._file.infolist() if not info.is_dir()]

    def open(self, name: str) -> IO[bytes]:
        """One file, opened for reading."""
        return self._file.open(name)

    def read(self, key: str) -> bytes:
        """The bytes of one picture; an ImageError if it is damaged."""
        try:
            return self._file.read(key)
        except BROKEN as error:
            raise ImageError(f"damaged in {self.file.name} ({error})") from error

    def __reduce__(self) -> tuple[type[Zip], tuple[Path]]:
        return Zip, (self.file,)


class Release:
    """All files under a folder by their relative path; an unpacked file takes precedence over the same one in a zip.

    Parameters
    ----------
    zips : names of the release's own archives
    leave : suffixes of files to ignore
    """

    def __init__(self, folder: Path, zips: re.Pattern[str], *, leave: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self._files: dict[str, Zip | None] = {}  # None: unpacked
        self._by_name: dict[str, list[str]] = {}
        archives: list[Path] = []
        for parent, folders, files in os.walk(folder):
            folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
            start = "" if parent == str(folder) else f"{Path(parent).relative_to(folder).as_posix()}/"
            for name in sorted(files):
                if zips.fullmatch(name):
                    archives.append(Path(parent, name))
                elif not name.startswith(".") and not name.endswith(leave):
                    self._files[start + name] = None
        for archive in archives:
            zipped = Zip(archive)
            for name in zipped.names():
                if not name.startswith("__MACOSX/") and not name.endswith(leave):
                    self._files.setdefault(name, zipped)
        for path in self._files:
            self._by_name.setdefault(path.rpartition("/")[2].lower(), []).append(path)

    def matching(self, pattern: str) -> Iterator[tuple[re.Match[str], str]]:
        """Files whose whole path matches, with the match; unpacked ones first."""
        compiled = re.compile(pattern)
        for path in self._files:
            match = compiled.fullmatch(path)
            if match:
                yield match, path

    def named(self, name: str) -> str | None:
        """The path of the file of this name in any folder: an unpacked one first, then the one with the shortest path."""

        def order(path: str) -> tuple[bool, int, str]:
            return self._files[path] is not None, len(path), path

        return min(self._by_name.get(name.lower(), []), key=order, default=None)

    def picture(self, path: str) -> str | Stored:
        """The picture as a value of an `Images` column whose root is this folder."""
        zipped = self._files[path]
        return path if zipped is None else Stored(zipped, path)

    def read(self, path: str) -> bytes:
        """The content of a small file."""
        with self.open(path) as file:
            return file.read()

    def lines(self, path: str) -> list[str]:
        """The non-blank lines of a small UTF-8 file, stripped."""
        try:
            text = self.read(path).decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.describe(path)} is not UTF-8 (byte {error.start:,}). Get the file again, or save it as UTF-8."
            ) from error
        return [line for line in (line.strip("\ufeff \t\r") for line in text.split("\n")) if line]

    @contextmanager
    def open(self, path: str) -> Iterator[IO[bytes]]:
        """A file, opened for reading; a DataError if it is damaged."""
        zipped = self._files[path]
        try:
            with (self.folder / path).open("rb") if zipped is None else zipped.open(path) as file:
                yield file
        except BROKEN as error:
            raise DataError(f"Cannot read {self.describe(path)} ({error}). Get it again.") from error

    def describe(self, path: str) -> str:
        """Where the file is, for messages: a path, or a path in a zip."""
        zipped = self._files[path]
        return str(self.folder / path) if zipped is None else f"{path} in {zipped.file}"
