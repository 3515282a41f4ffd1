"""A published data set as it lies on a disk: the files of a folder, and those inside zips that have not been unpacked."""

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

# What a damaged zip, or a damaged file in one, makes the standard library raise.
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)


class Zip:
    """Files of one zip, read one at a time; also the `Store` of its pictures."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = zipfile.ZipFile(path)
        except BROKEN as error:
            raise DataError(f"{path} is no whole zip ({error}). Delete it and get it again.") from error

    def names(self) -> list[str]:
        return [info.filename for info in self._file.infolist() if not info.is_dir()]

    def open(self, name: str) -> IO[bytes]:
        return self._file.open(name)

    def read(self, key: str) -> bytes:
        """The bytes of one picture; a damaged one is an ImageError, as everywhere."""
        try:
            return self._file.read(key)
        except BROKEN as error:
            raise ImageError(f"damaged in {self.path.name} ({error})") from error

    def __reduce__(self) -> tuple[type[Zip], tuple[Path]]:
        return Zip, (self.path,)


class Release:
    """All files under a folder by their path from it; an unpacked file hides the same file in a zip.

    Parameters
    ----------
    zips : names of the release's own archives
    leave : endings of files that do not count
    """

    def __init__(self, folder: Path, zips: re.Pattern[str], *, leave: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self._files: dict[str, Zip | None] = {}  # None for an unpacked one
        self._by_name: dict[str, list[str]] = {}
        archives: list[Path] = []
        for place, folders, files in os.walk(folder):
            folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
            start = "" if place == str(folder) else f"{Path(place).relative_to(folder).as_posix()}/"
            for name in sorted(files):
                if zips.fullmatch(name):
                    archives.append(Path(place, name))
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
            found = compiled.fullmatch(path)
            if found:
                yield found, path

    def named(self, name: str) -> str | None:
        """The file of this name in any folder: an unpacked one first, then the one nearest to the root."""

        def order(path: str) -> tuple[bool, int, str]:
            return self._files[path] is not None, len(path), path

        return min(self._by_name.get(name.lower(), []), key=order, default=None)

    def picture(self, path: str) -> str | Stored:
        """What a column of pictures with this folder as its root takes."""
        zipped = self._files[path]
        return path if zipped is None else Stored(zipped, path)

    def read(self, path: str) -> bytes:
        """The bytes of a small file."""
        with self.open(path) as file:
            return file.read()

    @contextmanager
    def open(self, path: str) -> Iterator[IO[bytes]]:
        """A file to be read in blocks."""
        zipped = self._files[path]
        try:
            with (self.folder / path).open("rb") if zipped is None else zipped.open(path) as file:
                yield file
        except BROKEN as error:
            raise DataError(f"Cannot read {self.spelt(path)} ({error}). Get it again.") from error

    def spelt(self, path: str) -> str:
        """The file's place for people: a path, or a path in a zip."""
        zipped = self._files[path]
        return str(self.folder / path) if zipped is None else f"{path} in {zipped.path}"
