"""The index that is being served, and its changes: whoever has begun with one index ends with it."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dcmh.errors import DCMHError
from dcmh.methods import folder as model_folder
from dcmh.search import SearchIndex
from dcmh.search.calibration import FEWEST
from dcmh.service import log
from dcmh.service.words import Vocabulary


class Opened:
    """An open index with what is derived from its model."""

    def __init__(self, index: SearchIndex, *, ours: bool) -> None:
        self.index = index
        self.ours = ours  # to be closed by us
        encoder = index.encoders.words  # now: later the folder may hold another model
        self.words = Vocabulary(encoder.bag if encoder else None)
        self.loaded = False  # the image network
        self.users = 0
        self.retired = False
        self.measured = _measured(index.encoders.folder / model_folder.REPORT)

    @property
    def text_encoder(self) -> str | None:
        """The sentence encoder that queries in words are read with: any words work. None where a vocabulary limits them."""
        words, fine = self.index.encoders.words, self.index.encoders.fine
        encoder = None if words is None else words.encoder or (fine.encoder if fine is not None else None)
        return None if encoder is None else os.path.basename(encoder.name)  # a name, or a folder

    def warm_up(self) -> None:
        """Search once: the sentence encoder is loaded and memory-mapped vectors are read before anybody waits for them."""
        with contextlib.suppress(DCMHError):
            self.index.search(text="photo", k=1)


class Served:
    """Holds the current index. `check` takes in changes; an index that was replaced is closed after its last use."""

    def __init__(self, index: SearchIndex | Path | str, *, every: float) -> None:
        given = isinstance(index, SearchIndex)
        self.address = index.where if isinstance(index, SearchIndex) else index
        opened = index if isinstance(index, SearchIndex) else SearchIndex.open(index)
        self._current = Opened(opened, ours=not given)
        self._lock = threading.Lock()
        self.writing = threading.Lock()  # one change, or one look for changes, at a time
        self._every = every
        self._checked = time.monotonic()
        self.failed = 0

    @contextlib.contextmanager
    def use(self) -> Iterator[Opened]:
        """The current index, which stays open within the block."""
        with self._lock:
            opened = self._current
            opened.users += 1
        try:
            yield opened
        finally:
            with self._lock:
                opened.users -= 1
            self._close_if_done(opened)

    @property
    def due(self) -> bool:
        """Whether it is time to look for changes."""
        return time.monotonic() - self._checked > self._every

    def check(self, *, wait: bool = False) -> bool:
        """Look for changes that other processes made and take them in; whether there were any.

        Where the folder cannot be read, as while it is being rebuilt, the index that was open stays. Where this process
        is changing the index, that change takes in the others; `wait` looks after it nevertheless.
        """
        self._checked = time.monotonic()
        if not self.writing.acquire(blocking=wait):
            return False
        try:
            with self.use() as opened:
                if not opened.index.replaced():
                    return opened.index.refresh()
                self._replace(SearchIndex.open(self.address))
                return True
        except (DCMHError, OSError) as error:
            self.failed += 1
            log.events.warning("the index has changed but cannot be opened, so the old one is served: %s", error)
            return False
        finally:
            self.writing.release()

    def close(self) -> None:
        with self._lock:
            opened = self._current
            opened.retired = True
        self._close_if_done(opened)

    def _replace(self, index: SearchIndex) -> None:
        opened = Opened(index, ours=True)
        opened.warm_up()
        with self._lock:
            old, self._current = self._current, opened
            old.retired = True
        log.events.info("opened the index anew: %d items, model %s", len(index), index.fingerprint[:12])

    def _close_if_done(self, opened: Opened) -> None:
        with self._lock:
            done = opened.retired and opened.users == 0 and opened.ours
        if done:
            opened.index.close()


def _measured(path: Path) -> list[dict[str, Any]]:
    """For each direction of the model's report: precision and recall within each radius; None for too few pairs."""
    if not path.is_file():
        return []
    report = json.loads(path.read_text(encoding="utf-8"))
    return [_direction(name, record) for name, record in report.items() if "_to_" in name]


def _direction(name: str, record: dict[str, Any]) -> dict[str, Any]:
    asked, _, found = name.partition("_to_")
    total = sum(row["relevant"] for row in record["by_distance"])
    points = relevant = 0
    by_radius = []
    for row in record["by_distance"]:
        points += row["points"]
        relevant += row["relevant"]
        precision = round(relevant / points, 4) if points >= FEWEST else None
        by_radius.append(
            {"radius": row["distance"], "precision": precision, "recall": round(relevant / total, 6) if total else None}
        )
    plain = {key: record[key] for key in ("queries", "database", "chance")}
    return {"from": asked, "to": found, **plain, "map": record["map"]["stable"], "by_radius": by_radius}
