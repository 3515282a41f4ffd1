"""Unpacking a downloaded zip: checked before a byte is written, written beside its place, then moved there."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from dcmh.data.benchmarks.release import BROKEN
from dcmh.errors import DataError

MAX_BYTES = 64 << 30  # of all files of one zip
MAX_FILES = 2_000_000
MAX_RATIO = 200  # unpacked to packed, of a zip that unpacks to more than 100 MB
_SMALL = 100 << 20

Progress = Callable[[int, int], None]  # bytes done, bytes in all


def unpack(archive: Path, folder: Path, *, progress: Progress | None = None) -> int:
    """Unpack a zip into a folder, and return the number of files. What is there already, at the same size, is left.

    A zip is refused as a whole where a path leads out of the folder, an entry is a link, is encrypted or comes twice, or
    where it unpacks to far more than it holds.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            files = _checked(opened, archive)
            total = sum(info.file_size for info in files)
            new = [info for info in files if not _is_there(folder / info.filename, info)]
            _check_space(folder, sum(info.file_size for info in new), archive)
            _write(opened, new, folder, total, progress)
    except DataError:
        raise
    except BROKEN as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise DataError(f"{archive} is damaged ({error}). Delete it and get it again.") from error
    return len(files)


def _checked(opened: zipfile.ZipFile, archive: Path) -> list[zipfile.ZipInfo]:
    """The files of the zip; a DataError names the first that must not be unpacked."""
    files = [info for info in opened.infolist() if not info.is_dir()]
    seen: set[str] = set()
    for info in opened.infolist():
        reason = _refused(info)
        if reason is None and not info.is_dir() and info.filename.lower() in seen:
            reason = "comes twice"
        if reason is not None:
            raise DataError(
                f"{archive} is not unpacked: its entry {info.filename!r} {reason}. Get it from its own site."
            )
        seen.add(info.filename.lower())
    total = sum(info.file_size for info in files)
    packed = max(1, archive.stat().st_size)
    if len(files) > MAX_FILES or total > MAX_BYTES or (total > _SMALL and total / packed > MAX_RATIO):
        raise DataError(
            f"{archive} is not unpacked: {packed:,} bytes would become {total:,} in {len(files):,} files. "
            "Get it from its own site."
        )
    return files


def _refused(info: zipfile.ZipInfo) -> str | None:
    path = PurePosixPath(info.filename)
    if (
        path.is_absolute()
        or ".." in path.parts
        or "\\" in info.filename
        or ":" in info.filename
        or "\0" in info.filename
    ):
        return "leads out of the folder"
    mode = info.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or a device"
    return "is encrypted" if info.flag_bits & 1 else None


def _is_there(path: Path, info: zipfile.ZipInfo) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == info.file_size


def _check_space(folder: Path, needed: int, archive: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"{archive.name} unpacks to {needed / 1e9:.1f} GB, but {folder} has {free / 1e9:.1f} GB left. "
            "Make room, or choose another folder with DCMH_HOME."
        )


def _write(
    opened: zipfile.ZipFile, new: list[zipfile.ZipInfo], folder: Path, total: int, progress: Progress | None
) -> None:
    """Every file is written to a draft folder first, so that one in its place is whole."""
    done = total - sum(info.file_size for info in new)
    draft = Path(tempfile.mkdtemp(dir=folder, prefix=".unpack.", suffix=".part"))
    try:
        for number, info in enumerate(new):
            target = folder / info.filename
            _make_folder(target.parent, folder)
            part = draft / str(number)
            with opened.open(info) as source, part.open("wb") as file:
                shutil.copyfileobj(
                    source, file, 1 << 20
                )  # no more than file_size is read, and its checksum is verified
            os.replace(part, target)
            done += info.file_size
            if progress is not None:
                progress(done, total)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _make_folder(place: Path, root: Path) -> None:
    """Make a folder under the root; a link on the way would lead out of it."""
    for parent in [*reversed(place.relative_to(root).parents), place.relative_to(root)]:
        whole = root / parent
        if whole != root and whole.is_symlink():
            raise DataError(f"{whole} is a link, so nothing is unpacked through it. Remove it.")
        whole.mkdir(exist_ok=True)
