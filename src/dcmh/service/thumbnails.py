"""The picture files of items: which may be served, their ETags, and a cache of thumbnails."""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from dcmh.inputs.images import HEIC_BRANDS
from dcmh.search import SearchIndex
from dcmh.service import logs
from dcmh.service.problems import Problem
from dcmh.stores.base import UPLOADS, Item

# The first bytes of the formats that are indexed. Nothing else is served, whatever its name says.
_SIGNATURES = (
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
    """The picture of an item, if it is in the data folder or among the uploads once links are resolved."""
    path = index.path_of(item)
    if path is None:
        raise Problem(404, f"Item {item.id} has no picture.", "It was indexed by its text.", kind="no-picture")
    missing = Problem(404, f"The picture of item {item.id} is missing.", "Index the folder again.", kind="no-picture")
    try:
        real = path.resolve(strict=True)
        status = real.stat()
        with open(real, "rb", opener=_open_plain) as file:
            media_type = sniff(file.read(16))
    except (OSError, RuntimeError, ValueError):  # missing, a loop of links, an impossible name
        raise missing from None
    folders = [folder for folder in (index.root, index.folder / UPLOADS) if folder is not None]
    inside = any(real.is_relative_to(folder.resolve()) for folder in folders)
    if not inside or not stat.S_ISREG(status.st_mode) or media_type is None:
        logs.events.warning("the picture of item %d is not served: outside the data folder, or not a picture", item.id)
        raise missing
    return Picture(real, status, media_type)


def sniff(head: bytes) -> str | None:
    """The media type of a picture by its first 16 bytes; None for anything else."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    if head[4:8] == b"ftyp":
        return "image/avif" if head[8:11] == b"avi" else "image/heic" if head[8:11] in HEIC_BRANDS else None
    return next((kind for signature, kind in _SIGNATURES if head.startswith(signature)), None)


def _open_plain(path: str, flags: int) -> int:
    """Opening a pipe in place of a picture must not block the thread."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


class ByteCache:
    """An LRU cache of thumbnails or responses, limited by their size in bytes. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        """The cached bytes of a key, or None."""
        with self._lock:
            kept = self._cache.get(key)
            if kept is not None:
                self._cache.move_to_end(key)
            return kept

    def put(self, key: str, value: bytes) -> None:
        """Cache some bytes; the least recently used entries are evicted."""
        with self._lock:
            self.bytes += len(value) - len(self._cache.pop(key, b""))
            self._cache[key] = value
            while self.bytes > self.limit and self._cache:
                self.bytes -= len(self._cache.popitem(last=False)[1])
