"""The pipeline that encodes items: contents are hashed, decoded and encoded ahead of the group that the caller writes.

Only unknown contents are encoded, each once.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh import codes
from dcmh.data.columns import Images, Texts
from dcmh.data.dataset import JOINT, Dataset
from dcmh.errors import ImageError
from dcmh.inputs.images import content_hash, date_taken
from dcmh.search.encode import BATCH, Encoded, Encoders, Prepared, encode_texts, fine_texts, text_outputs
from dcmh.stores.base import Item

PICTURES = BATCH  # minimum number of pictures in a group
ENTRIES = 1024  # maximum number of entries in a group
HASHED_AHEAD = 256  # entries
HASHED_AT_ONCE = 16  # by one thread: one future for each entry would cost as much as the hash of a small file
HASH = 16  # bytes of a picture's hash, with which a content begins


@dataclass
class Content:
    """The picture or vectors of an item, shared by items of the same content: its codes, or why there are none."""

    codes: dict[str, bytes] = field(default_factory=dict)
    fine: dict[str, bytes] = field(default_factory=dict)
    reason: str | None = None


@dataclass
class Entry:
    """An item to encode, at a row of the data."""

    row: int
    item: Item  # with the id of the item it replaces, if any
    before: Item | None = None  # None also if its codes are those of another model
    content: Content | None = None
    encode: bool = False  # the content is encoded for this entry, and shared by the others
    text_code: bytes | None = None  # of a text that has a code of its own
    text_fine: bytes | None = None

    @property
    def reason(self) -> str | None:
        """Why the item cannot be indexed; None if it can. Known once it is encoded."""
        if self.content is not None and self.content.reason is not None:
            return self.content.reason
        if self.text_code is None and not (self.content and self.content.codes):
            return "no picture, and no word that the model knows"
        return None


class Pipeline:
    """Encodes items of some data.

    Parameters
    ----------
    joint
        An item gets one code from all its modalities.
    known
        The codes and fine vectors of those of some contents that need not be encoded again. Default: none.
    on_new
        Called with each entry without an id when its content is known.
    stop_workers
        Threads and processes of the encoders end with each run.
    """

    def __init__(
        self,
        encoders: Encoders,
        data: Dataset,
        *,
        joint: bool,
        known: Callable[[set[bytes]], dict[bytes, Content]] | None = None,
        on_new: Callable[[Entry], None] | None = None,
        stop_workers: bool = True,
    ) -> None:
        self.encoders = encoders
        self.data = data
        self.joint = joint
        modalities = encoders.check(data)
        self.shown_text = encoders.text if encoders.text in data.modalities else None
        # A text with a code of its own: a new text does not change the picture's.
        self.text = None if joint else self.shown_text
        self.sources = [name for name in modalities if name != self.text]  # what an item's content is made of
        self.code_names = [JOINT] if joint else self.sources
        self._known = known
        self._on_new = on_new
        self._stop_workers = stop_workers
        self._ahead = 1  # groups that are prepared in advance; more where pictures are encoded
        self._seen: dict[bytes, Content] = {}

    def run(self, entries: Sequence[Entry]) -> Iterator[list[Entry]]:
        """Groups of encoded entries, in order; the next ones are being decoded and encoded meanwhile."""
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
            if self._stop_workers:
                self.encoders.stop_workers()

    def settle(
        self, entries: Sequence[Entry], read: Sequence[tuple[bytes | ImageError | None, datetime | None]]
    ) -> None:
        """Give entries their content, which those with the same hash share; `read` are the hash and date of each."""
        hashes = {content for content, _ in read if isinstance(content, bytes)} - self._seen.keys()
        known = self._known(hashes) if self._known else {}
        for entry, (content, taken) in zip(entries, read, strict=True):
            if isinstance(content, ImageError):
                entry.item = replace(entry.item, taken=taken)
                entry.content = Content(reason=str(content))
                continue
            entry.item = replace(entry.item, content=content, taken=taken)
            if content is None:
                continue
            if self._on_new and not entry.item.id:
                self._on_new(entry)
            if content not in self._seen:
                self._seen[content] = known.get(content) or Content()
                entry.encode = not self._seen[content].codes
            entry.content = self._seen[content]

    # -- hashing ----------------------------------------------------------------------------------------------------

    def _groups(self, entries: Sequence[Entry]) -> Iterator[list[Entry]]:
        group: list[Entry] = []
        pictures = 0
        for entry in self._hashed(entries):
            group.append(entry)
            pictures += entry.encode
            if len(group) == ENTRIES or (pictures >= PICTURES and pictures >= self._pictures_at_once):
                yield group
                group, pictures = [], 0
        if group:
            yield group

    @cached_property
    def _pictures_at_once(self) -> int:
        """Pictures in a group. Computed when there are some, as it loads the network."""
        images = [name for name in self.sources if isinstance(self.data[name], Images)]
        sizes = [self.encoders.pictures(name).group for name in images if self.data.observed(name).any()]
        return PICTURES * max((size // BATCH for size in sizes), default=1)

    def _hashed(self, entries: Sequence[Entry]) -> Iterator[Entry]:
        """Entries with their content."""
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "dcmh-hash") as pool:
            for start in range(0, len(entries), HASHED_AHEAD):
                block = entries[start : start + HASHED_AHEAD]
                parts = [block[first : first + HASHED_AT_ONCE] for first in range(0, len(block), HASHED_AT_ONCE)]
                self.settle(block, list(itertools.chain.from_iterable(pool.map(self._read, parts))))
                yield from block

    def _read(self, entries: Sequence[Entry]) -> list[tuple[bytes | ImageError | None, datetime | None]]:
        """The hash and the date of each."""
        return [(self._hash(entry), self._date(entry)) for entry in entries]

    def _hash(self, entry: Entry) -> bytes | ImageError | None:
        """16 bytes for its pictures, and 16 for the other modalities of its codes; None if it has none of them."""
        if entry.item.content is not None:
            return entry.item.content
        hashes: list[bytes] = []
        observed = [name for name in self.sources if self.data[name].observed[entry.row]]
        try:
            for name in observed:
                column = self.data[name]
                if isinstance(column, Images):
                    source = column.source(entry.row)
                    hashes.append(content_hash(source) if source is not None else b"")
        except ImageError as error:
            return error
        if not observed:
            return None
        pictures = b"".join(hashes) if len(hashes) < 2 else hashlib.blake2b(b"".join(hashes), digest_size=HASH).digest()
        return pictures + other_content(self.data, self.sources, entry.row)

    def _date(self, entry: Entry) -> datetime | None:
        """When the picture of an item was taken."""
        if entry.item.taken is not None:
            return entry.item.taken
        paths = (column.path(entry.row) for name in self.sources if isinstance(column := self.data[name], Images))
        return next((date_taken(path) for path in paths if path is not None), None)

    # -- encoding ---------------------------------------------------------------------------------------------------

    def _prepare(self, group: list[Entry]) -> dict[str, Prepared]:
        """Start to decode and encode the pictures of a group."""
        prepared: dict[str, Prepared] = {}
        for name in self.sources:
            column = self.data[name]
            chosen = self._to_encode(group, name)
            if chosen and isinstance(column, Images):
                encoder = self.encoders.pictures(name)
                contents = [self._picture_hash(column, entry) for entry in chosen]
                prepared[name] = encoder.prepare(column, [entry.row for entry in chosen], contents)
                self._ahead = max(self._ahead, encoder.ahead)
        return prepared

    def _to_encode(self, group: list[Entry], modality: str) -> list[Entry]:
        observed = self.data[modality].observed
        return [entry for entry in group if entry.encode and observed[entry.row]]

    def _picture_hash(self, column: Images, entry: Entry) -> bytes:
        if entry.item.content is not None and sum(isinstance(self.data[name], Images) for name in self.sources) == 1:
            return entry.item.content[:HASH]
        source = column.source(entry.row)
        assert source is not None
        return content_hash(source)

    def _finish(self, group: list[Entry], prepared: dict[str, Prepared]) -> list[Entry]:
        """Wait for the pictures of a group, encode the rest, and set the codes of its contents."""
        total: dict[int, Encoded] = {}  # by row: the outputs and fine vectors of an item, summed
        for name in self.sources:
            chosen = self._to_encode(group, name)
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
                self._set_codes(name, encoded, group)
        self._set_codes(JOINT, total, group)
        return group

    def _set_codes(self, name: str, encoded: dict[int, Encoded], group: list[Entry]) -> None:
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
        """Set the codes and fine vectors of texts that have their own, where anything has changed."""
        if self.text is None:
            return
        changed = [entry for entry in group if entry.item != entry.before]
        words, column = self.encoders.words, self.data[self.text]
        assert words is not None
        assert isinstance(column, Texts)
        texts = [column.values[entry.row] for entry in changed]
        vectors = fine_texts(self.encoders.fine, texts)
        for entry, code, vector in zip(changed, encode_texts(words, texts), vectors, strict=True):
            entry.text_code = code
            entry.text_fine = None if vector is None else self._quantised(vector)


def other_content(data: Dataset, sources: Sequence[str], row: int) -> bytes:
    """A hash of what an item's content holds besides pictures: vectors, and texts that are not the main one."""
    others = [name for name in sources if not isinstance(data[name], Images)]
    if not others:
        return b""
    digest = hashlib.blake2b(digest_size=HASH)
    for name in others:
        column = data[name]
        value = column.values[row] if column.observed[row] else None
        content = b""
        if value is not None:
            content = str(value).encode() if isinstance(column, Texts) else np.asarray(value).tobytes()
        digest.update(f"{name} {value is not None} {len(content)} ".encode() + content)
    return digest.digest()


def _sum(total: Encoded | None, more: Encoded) -> Encoded:
    """The sum over the modalities of an item."""
    if total is None:
        return Encoded(np.asarray(more.outputs, np.float64), more.fine)
    fine = [vector for vector in (total.fine, more.fine) if vector is not None]
    return Encoded(total.outputs + np.asarray(more.outputs, np.float64), sum(fine[1:], fine[0]) if fine else None)
