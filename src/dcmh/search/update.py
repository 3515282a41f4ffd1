"""Bringing an index up to date with data: new, changed, moved and gone items. Only what is needed is encoded.

Items are encoded in the data's order and committed in whole groups; a run that was killed continues after the last commit.
On a CPU a picture's code does not depend on its group, so the result is the same to the bit as that of an uninterrupted
run; on a GPU features differ in the last digits from group to group.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dcmh import codes
from dcmh.data.columns import Images, Texts
from dcmh.data.dataset import JOINT, Dataset
from dcmh.errors import ImageError
from dcmh.inputs.images import content_hash, date_taken
from dcmh.search.changes import HASH, Changes, Comparison, Content, EncodedItem, Entry
from dcmh.search.encode import BATCH, Encoded, Encoders, Prepared, encode_texts, fine_texts, text_outputs
from dcmh.stores.base import COLUMNS, FINISHED, UNFINISHED, UPDATE, Item, Skipped, Store
from dcmh.util.blas import one_blas_thread

PICTURES = BATCH  # in a group at least
ENTRIES = 1024  # in a group at most, whatever they need
HASHED_AHEAD = 256
HASHED_AT_ONCE = 16  # by one thread: one future for each item would cost as much as the hash of a small file
COMMIT_SECONDS = 1.0

Progress = Callable[[int, int], None]  # items done, items to do


class EncodedItems(Protocol):
    """Items that other processes have encoded."""

    def __getitem__(self, row: int) -> EncodedItem: ...


class Update:
    """One run over some data.

    Items that are not in the data are gone, and removed at the end, unless `keep`. With `partial` the data is not all that is
    indexed, so nothing is gone. `touched` are the ids of all items that the run has written or removed.

    With `encoded`, which may also be set before `run`, other processes have encoded the items: by row of the data. With
    `rest`, worker threads and processes end with the run.
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
        stop_workers: bool = True,
        progress: Progress | None = None,
    ) -> None:
        self.store = store
        self.stop_workers = stop_workers
        self.encoded: EncodedItems | None = None
        self.encoders = encoders
        self.data = data
        self.keep = keep
        self.partial = partial
        self.progress = progress
        self.modalities = encoders.check(data)
        self.joint = store.about("codes") == JOINT
        shown = encoders.text if encoders.text in data.modalities else None
        self.text = None if self.joint else shown  # has a code of its own: a new text does not change the picture's
        self.sources = [name for name in self.modalities if name != self.text]  # what an item's content is made of
        self.code_names = [JOINT] if self.joint else self.sources
        self.recode = recode
        self.compared = Comparison(
            store,
            data,
            self.sources,
            shown,
            root,
            partial=partial,
            uploaded=uploaded,
            recode=recode,
            stored=stored,
        )
        self.changes = self.compared.changes
        self.touched: set[int] = set()
        self._ahead = 1  # groups that are prepared in advance; more where pictures are encoded
        self._seen: dict[bytes, Content] = {}
        self._new_columns = self._columns()
        self._lapsed: set[str] = set()  # entries of the table `skipped` that no longer hold

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
        lapsed = self._lapsed | {name for name in self.compared.failed if name not in names and not self.partial}
        ending = not self.partial and self.store.about(UPDATE) != FINISHED
        if (gone and not self.keep) or lapsed or ending:
            with self.store.writing():
                self._remove([] if self.keep else gone)
                self.store.unskip(lapsed)
                if ending:
                    self.store.note(UPDATE, FINISHED)
        self.changes.skipped.sort()
        return self.changes

    # -- the work ---------------------------------------------------------------------------------------------------

    def _work(self, entries: list[Entry]) -> None:
        """Hash, decode, encode and commit, each step ahead of the next one."""
        done, waiting = 0, 0
        began = time.monotonic()
        ready: list[list[Entry]] = []
        for group in self._encoded(entries):
            ready.append(group)
            waiting += len(group)
            if time.monotonic() - began >= COMMIT_SECONDS:
                self._commit(ready)
                done, waiting, ready = done + waiting, 0, []
                began = time.monotonic()
            if self.progress:
                self.progress(done + waiting, len(entries))
        self._commit(ready)

    def _encoded(self, entries: list[Entry]) -> Iterator[list[Entry]]:
        """Groups whose contents have their codes; the next ones are being decoded and encoded meanwhile."""
        ahead: deque[tuple[list[Entry], dict[str, Prepared]]] = deque()
        try:
            for group in self._groups(entries):
                ahead.append((group, self._prepare(group)))
                if len(ahead) > self._ahead:
                    self._encode_texts(ahead[0][0])
                    yield self._finish(*ahead.popleft())
            for group, _ in ahead:
                self._encode_texts(group)  # while the last pictures are in the network
            while ahead:
                yield self._finish(*ahead.popleft())
        finally:
            for _, prepared in ahead:
                for pictures in prepared.values():
                    pictures.cancel()
            if self.stop_workers:
                self.encoders.stop_workers()

    def _groups(self, entries: list[Entry]) -> Iterator[list[Entry]]:
        group: list[Entry] = []
        pictures = 0
        for entry in self._hashed(entries):
            group.append(entry)
            pictures += entry.encode
            if len(group) == ENTRIES or (pictures >= PICTURES and pictures >= self._at_once):
                yield group
                group, pictures = [], 0
        if group:
            yield group

    @cached_property
    def _picture_modalities(self) -> list[str]:
        """The modalities with pictures."""
        names = [name for name in self.sources if isinstance(self.data[name], Images)]
        return [name for name in names if self.data.observed(name).any()]

    @cached_property
    def _at_once(self) -> int:
        """Pictures in a group. Computed when there are some, as it loads the network."""
        return PICTURES * max(
            (self.encoders.pictures(name).group // BATCH for name in self._picture_modalities), default=1
        )

    def _hashed(self, entries: list[Entry]) -> Iterator[Entry]:
        """Entries with the hash of their content, and with the content, which entries of the same hash share."""
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "dcmh-hash") as pool:
            for start in range(0, len(entries), HASHED_AHEAD):
                block = entries[start : start + HASHED_AHEAD]
                if self.encoded is not None:
                    for entry in block:
                        entry.encoded = self.encoded[entry.row]
                parts = [block[first : first + HASHED_AT_ONCE] for first in range(0, len(block), HASHED_AT_ONCE)]
                read = list(itertools.chain.from_iterable(pool.map(self._read, parts)))
                stored = self._stored({content for content, _ in read if isinstance(content, bytes)})
                for entry, (content, taken) in zip(block, read, strict=True):
                    self._settle(entry, content, taken, stored)
                    yield entry

    def _read(self, entries: list[Entry]) -> list[tuple[bytes | ImageError | None, datetime | None]]:
        """The hash and the date of each."""
        return [(self._hash(entry), self._date(entry)) for entry in entries]

    def _stored(self, contents: set[bytes]) -> dict[bytes, Content]:
        """The codes and fine vectors of contents that the index has, in one request for each modality."""
        items = self.store.with_contents(contents - self._seen.keys())
        ids = [item.id for item in items.values()]
        codes = {name: self.store.codes_of(name, ids) for name in self.code_names} if ids else {}
        fine = {name: self.store.fine_of(name, ids) for name in self.code_names} if ids else {}
        return {
            content: Content(
                {name: by_id[item.id] for name, by_id in codes.items() if item.id in by_id},
                {name: by_id[item.id] for name, by_id in fine.items() if item.id in by_id},
            )
            for content, item in items.items()
        }

    def _hash(self, entry: Entry) -> bytes | ImageError | None:
        """16 bytes for its pictures, 16 for the rest of what its codes are made of; None where it has nothing."""
        if entry.encoded is not None:
            return entry.encoded.content if entry.encoded.error is None else ImageError(entry.encoded.error)
        if entry.item.content is not None:
            return entry.item.content
        hashes: list[bytes] = []
        observed = False
        for name in self.sources:
            column = self.data[name]
            if not column.observed[entry.row]:
                continue
            observed = True
            try:
                if isinstance(column, Images):
                    source = column.source(entry.row)
                    hashes.append(content_hash(source) if source is not None else b"")
            except ImageError as error:
                return error
        if not observed:
            return None
        pictures = b"".join(hashes) if len(hashes) < 2 else hashlib.blake2b(b"".join(hashes), digest_size=HASH).digest()
        return pictures + self.compared.other_content(entry.row)

    def _date(self, entry: Entry) -> datetime | None:
        """When the picture of an item was taken."""
        if entry.encoded is not None:
            return entry.encoded.taken
        if entry.item.taken is not None:
            return entry.item.taken
        paths = (column.path(entry.row) for name in self.sources if isinstance(column := self.data[name], Images))
        return next((date_taken(path) for path in paths if path is not None), None)

    def _settle(
        self,
        entry: Entry,
        content: bytes | ImageError | None,
        taken: datetime | None,
        stored: dict[bytes, Content],
    ) -> None:
        if isinstance(content, ImageError):
            entry.item = replace(entry.item, taken=taken)
            entry.content = Content(reason=str(content))
            return
        entry.item = replace(entry.item, content=content, taken=taken)
        if content is None:
            return
        if not entry.item.id:
            self._recognise(entry, content)
        known = self._seen.get(content)
        if known is None:
            known = stored.get(content) or Content()
            entry.encode = not known.codes
            self._seen[content] = known
        entry.content = known

    def _recognise(self, entry: Entry, content: bytes) -> None:
        """A new item with the content of a gone one was only moved, and keeps its id."""
        same = self.compared.gone.get(content)
        if same:
            before = same.pop(0)
            entry.before = None if self.recode else before
            entry.item = replace(entry.item, id=before.id)

    def _prepare(self, group: list[Entry]) -> dict[str, Prepared]:
        prepared: dict[str, Prepared] = {}
        for name in self.sources if self.encoded is None else ():
            column = self.data[name]
            if isinstance(column, Images):
                chosen = [entry for entry in group if entry.encode and column.observed[entry.row]]
                contents = [self._picture_hash(column, entry) for entry in chosen]
                rows = [entry.row for entry in chosen]
                if rows:
                    encoder = self.encoders.pictures(name)
                    prepared[name] = encoder.prepare(column, rows, contents)
                    self._ahead = max(self._ahead, encoder.ahead)
        return prepared

    def _picture_hash(self, column: Images, entry: Entry) -> bytes:
        if entry.item.content is not None and sum(isinstance(self.data[name], Images) for name in self.sources) == 1:
            return entry.item.content[:HASH]
        source = column.source(entry.row)
        assert source is not None
        return content_hash(source)

    def _finish(self, group: list[Entry], prepared: dict[str, Prepared]) -> list[Entry]:
        if self.encoded is not None:
            for entry in group:
                if entry.encode and entry.content is not None and entry.encoded is not None:
                    entry.content.codes.update(_only(entry.encoded.codes, self.code_names))
                    entry.content.fine.update(_only(entry.encoded.fine, self.code_names))
            return group
        total: dict[int, Encoded] = {}  # by row: the outputs and fine vectors of an item, summed
        for name in self.sources:
            column = self.data[name]
            chosen = [entry for entry in group if entry.encode and column.observed[entry.row]]
            encoded: dict[int, Encoded] = {}  # by row
            for entry, result in zip(chosen, self._encode(name, chosen, prepared) if chosen else (), strict=True):
                assert entry.content is not None
                if isinstance(result, ImageError):
                    entry.content.reason = str(result)
                elif result is not None:
                    encoded[entry.row] = result
            if self.joint:
                for row, result in encoded.items():
                    total[row] = _sum(total.get(row), result)
            else:
                self._keep(name, encoded, group)
        self._keep(JOINT, total, group)
        return group

    def _keep(self, name: str, encoded: dict[int, Encoded], group: list[Entry]) -> None:
        """Set the codes, which are the signs of the outputs, and the fine vectors of contents."""
        if not encoded:
            return
        outputs = np.stack([item.outputs for item in encoded.values()])
        packed = dict(zip(encoded, codes.pack(codes.sign(outputs)), strict=True))
        for entry in group:
            if entry.content is not None and entry.row in packed:
                entry.content.codes[name] = packed[entry.row].tobytes()
                fine = encoded[entry.row].fine
                if fine is not None and self.encoders.fine is not None:
                    entry.content.fine[name] = self._quantised(fine)

    def _quantised(self, fine: NDArray[np.float32]) -> bytes:
        assert self.encoders.fine is not None
        length = float(np.sqrt(fine @ fine))  # of a joint vector, not 1
        return self.encoders.fine.quantise(fine / max(length, 1e-9)).tobytes()

    def _encode(self, name: str, chosen: list[Entry], prepared: dict[str, Prepared]) -> Sequence[Any]:
        """Encode one modality of some items; None for a text without a known word."""
        column = self.data[name]
        if isinstance(column, Images):
            return self.encoders.pictures(name).outputs(prepared[name])
        if isinstance(column, Texts):
            texts = [column.values[entry.row] for entry in chosen]
            pairs = zip(
                text_outputs(self.encoders.words_of(name), texts), fine_texts(self.encoders.fine, texts), strict=True
            )
            return [None if outputs is None else Encoded(outputs, fine) for outputs, fine in pairs]
        rows = np.array([entry.row for entry in chosen])
        outputs, vectors = self.encoders.vectors(name, column.take(rows))
        return [Encoded(row, None if vectors is None else vectors[i]) for i, row in enumerate(outputs)]

    def _encode_texts(self, group: list[Entry]) -> None:
        """Codes and fine vectors of the texts that have their own, where anything has changed."""
        if self.text is None:
            return
        changed = [entry for entry in group if entry.item != entry.before]
        if self.encoded is not None:
            for entry in changed:
                if entry.encoded is not None:
                    entry.text_code = entry.encoded.codes.get(self.text)
                    entry.text_fine = entry.encoded.fine.get(self.text)
            return
        words = self.encoders.words
        assert words is not None
        texts = [entry.item.text for entry in changed]
        vectors = fine_texts(self.encoders.fine, texts)
        for entry, code, vector in zip(changed, encode_texts(words, texts), vectors, strict=True):
            entry.text_code = code
            entry.text_fine = None if vector is None else self._quantised(vector)

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
        reason = content.reason if content else None
        if reason is None and entry.text_code is None and not (content and content.codes):
            reason = "no picture, and no word that the model knows"
        if reason is not None:
            self._skip(entry, reason)
            return
        if item.name in self.compared.failed:
            self._lapsed.add(item.name)
        number = self.store.put(item)
        self.touched.add(number)
        if content and (before is None or before.content != item.content):
            for name in self.code_names:
                self.store.set_code(number, name, content.codes.get(name))
                self.store.set_fine(number, name, content.fine.get(name))
        if content is None and before is not None and before.content is not None:
            for name in self.code_names:
                self.store.set_code(number, name, None)
                self.store.set_fine(number, name, None)
        if self.text is not None and (before is None or before.text != item.text):
            self.store.set_code(number, self.text, entry.text_code)
            self.store.set_fine(number, self.text, entry.text_fine)
        self._count(item, before)

    def _skip(self, entry: Entry, reason: str) -> None:
        self.store.skip(entry.item.name, Skipped(reason, entry.item.size, entry.item.mtime_ns))
        self._lapsed.discard(entry.item.name)
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


def _sum(total: Encoded | None, more: Encoded) -> Encoded:
    """The sum over the modalities of an item."""
    if total is None:
        return Encoded(np.asarray(more.outputs, np.float64), more.fine)
    fine = [vector for vector in (total.fine, more.fine) if vector is not None]
    return Encoded(total.outputs + np.asarray(more.outputs, np.float64), sum(fine[1:], fine[0]) if fine else None)
