"""Pictures of items: where they may lie, what identifies them, and small ones kept in memory."""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from dcmh.search import SearchIndex
from dcmh.service import log
from dcmh.service.problems import Problem
from dcmh.stores.base import UPLOADS, Item

# How files of the kinds begin that are indexed. Nothing else is sent, whatever its name says.
_BEGINNINGS = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
    (b"II+\0", "image/tiff"),
    (b"MM\0+", "image/tiff"),
)


@dataclass(frozen=True)
class Picture:
    """The file of an item's picture."""

    path: Path  # without links
    status: os.stat_result
    media_type: str

    @property
    def tag(self) -> str:
        """Changes with the file."""
        return f"{self.status.st_ino:x}-{self.status.st_size:x}-{self.status.st_mtime_ns:x}"


def find(index: SearchIndex, item: Item) -> Picture:
    """The picture of an item, if it lies in the data's folder or among the uploads, with links followed."""
    path = index.path_of(item)
    if path is None:
        raise Problem(404, f"Item {item.id} has no picture.", "It was indexed by its words.", kind="no-picture")
    gone = Problem(404, f"The picture of item {item.id} is not there.", "Index the folder again.", kind="no-picture")
    try:
        real = path.resolve(strict=True)
        status = real.stat()
        with open(real, "rb", opener=_open_plain) as file:
            media_type = kind_of(file.read(16))
    except (OSError, RuntimeError, ValueError):  # gone, a loop of links, a name that cannot be
        raise gone from None
    folders = [folder for folder in (index.root, index.folder / UPLOADS) if folder is not None]
    inside = any(real.is_relative_to(folder.resolve()) for folder in folders)
    if not inside or not stat.S_ISREG(status.st_mode) or media_type is None:
        log.events.warning("the picture of item %d is not served: outside of the data's folder, or no picture", item.id)
        raise gone
    return Picture(real, status, media_type)


def kind_of(beginning: bytes) -> str | None:
    """The media type of a picture file by its first 16 bytes; None for anything else."""
    if beginning[:4] == b"RIFF" and beginning[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _BEGINNINGS if beginning.startswith(start)), None)


def _open_plain(path: str, flags: int) -> int:
    """A pipe in place of a picture must not hold a thread."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


class Thumbnails:
    """The latest thumbnails, up to so many bytes. Threads may share it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def put(self, key: str, value: bytes) -> None:
        with self._lock:
            self.bytes += len(value) - len(self._kept.pop(key, b""))
            self._kept[key] = value
            while self.bytes > self.limit and self._kept:
                self.bytes -= len(self._kept.popitem(last=False)[1])
