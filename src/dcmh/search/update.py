"""Bringing an index up to date with data: new, changed, moved and gone items. Only what is needed is encoded.

Items are encoded in the data's order and committed in whole groups; a run that was killed continues after the last commit.
On a CPU a picture's code does not depend on its group, so the result is the same to the bit as that of an uninterrupted
run; on a GPU features differ in the last digits from group to group.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dcmh.data.dataset import JOINT, Dataset
from dcmh.errors import ImageError
from dcmh.search import pipeline
from dcmh.search.changes import Changes, Comparison
from dcmh.search.encode import Encoders
from dcmh.search.pipeline import Content, Entry, Pipeline
from dcmh.stores.base import COLUMNS, FINISHED, UNFINISHED, UPDATE, Item, Skipped, Store
from dcmh.util.blas import one_blas_thread

if TYPE_CHECKING:
    from dcmh.search.blocks import Blocks

COMMIT_SECONDS = 1.0

Progress = Callable[[int, int], None]  # items done, items to do


class Update:
    """One run over some data.

    Items that are not in the data are gone, and removed at the end, unless `keep`. With `partial` the data is not all that is
    indexed, so nothing is gone. `touched` are the ids of all items that the run has written or removed.

    `encoded` may be set before `run`: the blocks in which other processes have encoded the items.
    """

    def __init__(
        self,
        store: Store,
        encoders: Encoders,
        data: Dataset,
        *,
        root: Path | None,
        keep: bool = False,
        partial: bool = False,
        uploaded: bool = False,
        recode: bool = False,
        stored: Sequence[Item] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.store = store
        self.encoded: Blocks | None = None
        self.data = data
        self.keep = keep
        self.partial = partial
        self.recode = recode
        self.progress = progress
        self.joint = store.about("codes") == JOINT
        self.pipeline = Pipeline(encoders, data, joint=self.joint, known=self._known, on_new=self._find_moved)
        self.compared = Comparison(
            store,
            data,
            self.pipeline.sources,
            self.pipeline.shown_text,
            root,
            partial=partial,
            uploaded=uploaded,
            recode=recode,
            stored=stored,
        )
        self.changes = self.compared.changes
        self.touched: set[int] = set()
        self._new_columns = self._columns()
        self._unskipped: set[str] = set()  # names in the table `skipped` that can be indexed now

    def _columns(self) -> list[str]:
        """The extra columns of the index and of the data, if these add any."""
        known = json.loads(self.store.about(COLUMNS) or "[]")
        columns = dict.fromkeys([*known, *(name for cells in self.data.extra or () for name in cells)])
        return list(columns) if len(columns) > len(known) else []

    def check(self) -> None:
        """Refuse data that looks like a mistake, before anything is written."""
        if not self.keep:
            self.compared.refuse_other_data()

    def run(self) -> Changes:
        """Encode and write what has changed."""
        with one_blas_thread():  # the cores belong to the image network
            self._work(self.compared.entries)
        gone = [item.id for items in self.compared.gone.values() for item in items]
        self.changes.gone += len(gone)
        names = set(self.data.ids)
        unskipped = self._unskipped | {name for name in self.compared.failed if name not in names and not self.partial}
        ending = not self.partial and self.store.about(UPDATE) != FINISHED
        if (gone and not self.keep) or unskipped or ending:
            with self.store.writing():
                self._remove([] if self.keep else gone)
                self.store.unskip(unskipped)
                if ending:
                    self.store.note(UPDATE, FINISHED)
        self.changes.skipped.sort()
        return self.changes

    # -- encoding ---------------------------------------------------------------------------------------------------

    def _work(self, entries: list[Entry]) -> None:
        """Encode and commit."""
        done, waiting = 0, 0
        began = time.monotonic()
        ready: list[list[Entry]] = []
        groups = self.pipeline.run(entries) if self.encoded is None else self._take_encoded(entries, self.encoded)
        for group in groups:
            ready.append(group)
            waiting += len(group)
            if time.monotonic() - began >= COMMIT_SECONDS:
                self._commit(ready)
                done, waiting, ready = done + waiting, 0, []
                began = time.monotonic()
            if self.progress:
                self.progress(done + waiting, len(entries))
        self._commit(ready)

    def _take_encoded(self, entries: list[Entry], encoded: Blocks) -> Iterator[list[Entry]]:
        """Groups of entries with the codes that other processes have computed."""
        names, text = self.pipeline.code_names, self.pipeline.text
        for start in range(0, len(entries), pipeline.ENTRIES):
            group = entries[start : start + pipeline.ENTRIES]
            results = [encoded[entry.row] for entry in group]
            read = [(each.content if each.error is None else ImageError(each.error), each.taken) for each in results]
            self.pipeline.settle(group, read)
            for entry, result in zip(group, results, strict=True):
                if entry.encode and entry.content is not None:
                    entry.content.codes.update(_only(result.codes, names))
                    entry.content.fine.update(_only(result.fine, names))
                if text is not None and entry.item != entry.before:
                    entry.text_code, entry.text_fine = result.codes.get(text), result.fine.get(text)
            yield group

    def _known(self, contents: set[bytes]) -> dict[bytes, Content]:
        """The codes and fine vectors of contents that the index has, in one request for each modality."""
        items = self.store.with_contents(contents)
        ids = [item.id for item in items.values()]
        names = self.pipeline.code_names if ids else []
        codes = {name: self.store.codes_of(name, ids) for name in names}
        fine = {name: self.store.fine_of(name, ids) for name in names}
        return {
            content: Content(
                {name: by_id[item.id] for name, by_id in codes.items() if item.id in by_id},
                {name: by_id[item.id] for name, by_id in fine.items() if item.id in by_id},
            )
            for content, item in items.items()
        }

    def _find_moved(self, entry: Entry) -> None:
        """A new item with the content of a gone one was only moved, and keeps its id."""
        same = self.compared.gone.get(entry.item.content or b"")
        if same:
            before = same.pop(0)
            entry.before = None if self.recode else before
            entry.item = replace(entry.item, id=before.id)

    # -- writing ----------------------------------------------------------------------------------------------------

    def _commit(self, groups: list[list[Entry]]) -> None:
        """Write whole groups; all of them, or none."""
        entries = []
        for entry in (entry for group in groups for entry in group):
            if entry.item == entry.before:
                self.changes.unchanged += 1
            else:
                entries.append(entry)
        if not entries:
            return
        with self.store.writing():
            if not self.partial:
                self.store.note(UPDATE, UNFINISHED)
            if self._new_columns:
                self.store.note(COLUMNS, json.dumps(self._new_columns, ensure_ascii=False))
                self._new_columns = []
            for entry in entries:
                self._write(entry)

    def _write(self, entry: Entry) -> None:
        item, before, content = entry.item, entry.before, entry.content
        if (reason := entry.reason) is not None:
            self._skip(entry, reason)
            return
        if item.name in self.compared.failed:
            self._unskipped.add(item.name)
        number = self.store.put(item)
        self.touched.add(number)
        if content and (before is None or before.content != item.content):
            for name in self.pipeline.code_names:
                self.store.set_code(number, name, content.codes.get(name))
                self.store.set_fine(number, name, content.fine.get(name))
        if content is None and before is not None and before.content is not None:
            for name in self.pipeline.code_names:
                self.store.set_code(number, name, None)
                self.store.set_fine(number, name, None)
        text = self.pipeline.text
        if text is not None and (before is None or before.text != item.text):
            self.store.set_code(number, text, entry.text_code)
            self.store.set_fine(number, text, entry.text_fine)
        self._count(item, before)

    def _skip(self, entry: Entry, reason: str) -> None:
        self.store.skip(entry.item.name, Skipped(reason, entry.item.size, entry.item.mtime_ns))
        self._unskipped.discard(entry.item.name)
        self.changes.skipped.append((entry.item.name, reason))
        if entry.item.id:  # its codes are those of what it was
            self._remove([entry.item.id])
            self.changes.gone += 1

    def _remove(self, ids: list[int]) -> None:
        self.store.remove(ids)
        self.touched.update(ids)

    def _count(self, item: Item, before: Item | None) -> None:
        if before is None and item.id:
            self.changes.recoded += 1
        elif before is None:
            self.changes.new += 1
        elif _compared(item) != _compared(before):
            self.changes.changed += 1
        elif item.name != before.name:
            self.changes.moved += 1
        else:
            self.changes.unchanged += 1


def _only(values: Mapping[str, bytes], names: Sequence[str]) -> dict[str, bytes]:
    return {name: values[name] for name in names if name in values}


def _compared(item: Item) -> tuple[object, ...]:
    return item.content, item.text, item.labels, item.extra
