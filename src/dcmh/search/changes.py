"""Data compared with an index: which items are new, changed, unchanged or gone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dcmh.data.columns import Images, Texts
from dcmh.data.dataset import Dataset
from dcmh.errors import DataError
from dcmh.search.pipeline import HASH, Entry, other_content
from dcmh.stores.base import Item, Store
from dcmh.util.atomic import check_spelling


@dataclass
class Changes:
    """What an update did. `skipped`: (name, reason)."""

    new: int = 0
    changed: int = 0
    moved: int = 0
    gone: int = 0
    unchanged: int = 0
    recoded: int = 0  # known items that were encoded with another model
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        moved = f"{self.moved:,} moved, " if self.moved else ""
        recoded = f"{self.recoded:,} encoded again, " if self.recoded else ""
        return f"{recoded}{self.new:,} new, {self.changed:,} changed, {moved}{self.gone:,} gone, {self.unchanged:,} unchanged."


def data_root(data: Dataset) -> Path | None:
    """The folder that relative paths of the data start at; refused if its name cannot be stored."""
    roots = [column.root for column in data.columns.values() if isinstance(column, Images)]
    root = next((root for root in roots if root is not None), None)
    if roots:
        check_spelling(root or ".")
    return root


def check_root(place: str, noted: Sequence[Path], root: Path | None) -> None:
    """Refuse a folder other than the one that was indexed, unless that one is gone: then it may have moved."""
    existing = [folder for folder in noted if folder.is_dir()]
    if root is None or not existing or any(_same_folder(folder, root) for folder in existing):
        return
    raise DataError(
        f"{place} is an index of {existing[0]}, and {root} is another folder.",
        hint=f"To add photos, put them into {existing[0]} and "
        "index that again; to index them separately, choose another --out; to replace the collection add --rebuild.",
    )


def _same_folder(folder: Path, other: Path) -> bool:
    try:
        return os.path.samefile(folder, other)
    except OSError:
        return os.path.realpath(folder) == os.path.realpath(other)


class Comparison:
    """The data compared with the store.

    `entries` are the items that are not clearly unchanged, in the data's order; `gone` the items that are not in the
    data, by content, as an item may only have moved. With `partial` the data is not all that is indexed, so nothing is gone.
    With `uploaded` it comes from a client of the service; other data cannot replace what clients have added.
    With `recode` known items are entries, too: they keep their ids, but need new codes. With `stored`, the data was made from
    these items, which are the entries.
    """

    def __init__(
        self,
        store: Store,
        data: Dataset,
        sources: list[str],
        text: str | None,
        root: Path | None,
        *,
        partial: bool,
        uploaded: bool = False,
        recode: bool = False,
        stored: Sequence[Item] | None = None,
    ) -> None:
        self.uploaded = uploaded
        self.recode = recode
        self.store = store
        self.data = data
        self.sources = sources
        self.text = text
        self.root = root
        self._base = None if root is None else os.path.join(os.path.abspath(root), "")
        self.partial = partial
        self.failed = store.skipped()
        self.gone: dict[bytes, list[Item]] = {}
        self.changes = Changes(skipped=list(data.skipped))
        if stored is None:
            self.entries = self._compare()
        else:
            self.entries = [Entry(row, item, None) for row, item in enumerate(stored)]

    def _compare(self) -> list[Entry]:
        """Entries for all items that are not clearly unchanged, in the data's order."""
        described = {name: self._describe(row) for row, name in enumerate(self.data.ids)}
        entries: dict[int, Entry] = {}
        row_of = {name: row for row, name in enumerate(self.data.ids)}
        known = 0
        for before in self._known():
            item = described.get(before.name)
            if before.uploaded and not self.uploaded:  # never was in the data
                if described.pop(before.name, None) is not None:
                    self.changes.skipped.append((before.name, "its id is that of an uploaded item"))
                continue
            if item is None:
                self.gone.setdefault(before.content or b"", []).append(before)
                continue
            known += 1
            row = row_of[before.name]
            del described[before.name]
            same_file = self._is_same_file(item, before, row)
            if same_file:
                item = replace(item, content=before.content, taken=before.taken)
            # An older version has not recorded the date.
            dated = item.taken is not None or item.path is None
            if same_file and dated and replace(item, id=before.id) == before and not self.recode:
                self.changes.unchanged += 1
            else:
                entries[row] = Entry(row, replace(item, id=before.id), None if self.recode else before)
        for name, item in described.items():
            failed = self.failed.get(name)
            if failed and item.size is not None and (failed.size, failed.mtime_ns) == (item.size, item.mtime_ns):
                self.changes.skipped.append((name, failed.reason))
            else:
                entries[row_of[name]] = Entry(row_of[name], item, None)
        self.known = known  # items that are in the data and in the index
        return [entries[row] for row in sorted(entries)]

    def _is_same_file(self, item: Item, before: Item, row: int) -> bool:
        """Whether the content is the same: the file says so of the picture; the rest of the content is compared."""
        if item.size is None or (item.path, item.size, item.mtime_ns) != (before.path, before.size, before.mtime_ns):
            return False
        rest = other_content(self.data, self.sources, row)
        return not rest or (before.content or b"")[HASH:] == rest

    def _known(self) -> Iterator[Item]:
        """The items to compare with: all, or those with the names in the data."""
        if not self.partial:
            yield from self.store.items()
            return
        for name in self.data.ids:
            item = self.store.find(name)
            if item is not None:
                yield item

    def _describe(self, row: int) -> Item:
        """What is known of an item without reading its picture."""
        path = next((path for name in self.sources if (path := self._path(name, row)) is not None), None)
        size = mtime = None
        if path is not None:
            try:
                status = os.stat(path)
                size, mtime = status.st_size, status.st_mtime_ns
            except OSError:
                size = -1  # reading it will say why
        texts = self.data[self.text] if self.text is not None else None
        return Item(
            self.data.ids[row],
            None if path is None else self._relative(path),
            texts.values[row] if isinstance(texts, Texts) else None,
            self._labels(row),
            None,
            size,
            mtime,
            uploaded=self.uploaded,
            extra=self.data.extra[row] if self.data.extra is not None else {},
        )

    def _path(self, name: str, row: int) -> str | None:
        """The absolute path of a picture, as a string: pathlib would take most of the time with 12,000 photos."""
        column = self.data[name]
        value = column.values[row]
        if not isinstance(column, Images) or not isinstance(value, str | Path):
            return None
        return os.path.abspath(value if column.root is None else os.path.join(column.root, value))

    def _relative(self, path: str) -> str:
        """Relative to the root, if it is inside."""
        if self._base is None or not path.startswith(self._base):
            return path
        return path[len(self._base) :].replace(os.sep, "/")

    def _labels(self, row: int) -> tuple[str, ...]:
        if self.data.labels is None:
            return ()
        columns = np.flatnonzero(self.data.labels[row]).tolist()
        names = self.data.label_names
        return tuple(str(column) if names is None else names[column] for column in columns)

    def refuse_other_data(self) -> None:
        """Refuse data that has no item in common with an index of other data: more likely a mistake than all items gone."""
        if self.known or not self.gone:
            return
        was, place = self.store.about("root"), self.store.place
        if was is None or (self.root is not None and was == os.path.abspath(self.root)):
            return
        count = sum(len(items) for items in self.gone.values())
        raise DataError(
            f"None of the {count:,} items of {place} (made from {was}) is in {self.root or 'the data'}.",
            hint="Choose another --out, keep the older items with --keep-gone, or start over with --rebuild.",
        )
