"""Copies in a collection: items with the same content, and pictures that are nearly the same, with the one to keep.

Near copies are found by the signatures of `dcmh.inputs.signatures`: pairs whose codes differ in at most RADIUS bits and whose
signatures have a cosine of at least SIMILARITY. Mirrored copies count. Both numbers were chosen on photos and their copies
(benchmarks/duplicates.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ImageError, ParameterError
from dcmh.search.pipeline import HASH
from dcmh.stores.base import Item

if TYPE_CHECKING:
    from dcmh.search.index import SearchIndex

Kind = Literal["exact", "near"]
Progress = Callable[[int, int], None]  # pictures done, pictures to do

RADIUS = 14  # bits of 64
SIMILARITY = 0.77
BLOCK = 10_000  # items at a time


@dataclass(frozen=True)
class Copy:
    """An item of a group. `distance`: bits in which its signature differs from that of the one to keep."""

    item: Item
    path: Path | None
    width: int | None
    height: int | None
    distance: int

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.item.id,
            "name": self.item.name,
            "path": None if self.path is None else str(self.path),
            "width": self.width,
            "height": self.height,
            "size": self.item.size,
            "distance": self.distance,
        }


@dataclass(frozen=True)
class Group:
    """Copies of each other, the one to keep first. Each of the others is a copy of that one."""

    kind: Kind
    reason: str  # why the first one is the one to keep
    copies: tuple[Copy, ...]

    @property
    def keep(self) -> int:
        """The id of the item to keep."""
        return self.copies[0].item.id

    def to_json(self) -> dict[str, Any]:
        copies = [copy.to_json() for copy in self.copies]
        return {"kind": self.kind, "keep": self.keep, "reason": self.reason, "items": copies}


@dataclass
class Duplicates:
    """All groups, exact ones first. An item that is kept of an exact group may be in a near one as well."""

    groups: list[Group]
    items: int  # compared by content
    pictures: int  # compared by signature; copies count once
    missing: list[tuple[str, str]] = field(default_factory=list)  # pictures without a signature: (name, reason)
    took: float = 0.0  # seconds

    def to_json(self) -> dict[str, Any]:
        return {
            "items": self.items,
            "pictures": self.pictures,
            "missing": len(self.missing),
            "radius": RADIUS,
            "groups": [group.to_json() for group in self.groups],
        }


def find(
    index: SearchIndex,
    *,
    kind: Kind | None = None,
    similarity: float = SIMILARITY,
    compute: bool = True,
    progress: Progress | None = None,
) -> Duplicates:
    """The groups of copies; see `SearchIndex.duplicates`."""
    if kind not in (None, "exact", "near"):
        raise ParameterError(f"kind must be 'exact' or 'near', not {kind!r}.")
    if isinstance(similarity, bool) or not isinstance(similarity, int | float) or not 0 < similarity <= 1:
        raise ParameterError(f"similarity must be a number above 0 and at most 1, not {similarity!r}.")
    began = time.perf_counter()
    contents = _Contents(index)
    groups, keep = [], {}  # keep: of the oldest item of a content, the one that stands for all
    for ids in contents.repeated():
        copies = sorted(_copies(index, ids), key=_preference, reverse=True)
        if copies:
            keep[ids[0]] = copies[0].item.id
        if len(copies) > 1:  # fewer: the others were removed meanwhile
            groups.append(_group("exact", copies))
    result = Duplicates(groups if kind != "near" else [], contents.items, 0)
    pictures = [name for name in index.encoders.modalities if index.encoders.kind(name) == "image"]
    if kind != "exact" and len(pictures) == 1:  # the content of an item with several pictures does not identify one
        known = _Signatures(contents)
        del contents  # of 10 million items, its arrays take half a gigabyte
        if compute:
            result.missing = known.compute(index, progress)
        else:
            result.missing = [(str(number), "no signature yet") for number in known.lacking()]
        result.pictures = int(known.known.sum())
        result.groups += known.groups(index, keep, similarity)
    result.took = time.perf_counter() - began
    return result


class _Contents:
    """The different contents of a collection: hash, oldest item, and the items of those that occur several times."""

    def __init__(self, index: SearchIndex) -> None:
        ids, keys, pictures = [], [], []
        items = index.store.items()
        while block := list(islice(items, BLOCK)):
            coded = [item for item in block if item.content]
            ids.append(np.array([item.id for item in coded], np.int64))
            keys.append(np.frombuffer(b"".join((item.content or b"")[:HASH] for item in coded), "<u8").reshape(-1, 2))
            pictures.append(np.array([item.path is not None for item in coded], bool))
        self.all_ids = np.concatenate(ids or [np.empty(0, np.int64)])
        all_keys = np.concatenate(keys or [np.empty((0, 2), np.uint64)])
        order = np.lexsort((self.all_ids, all_keys[:, 1], all_keys[:, 0]))
        self.all_ids, all_keys = self.all_ids[order], all_keys[order]
        is_first = np.ones(len(order), bool)
        is_first[1:] = (all_keys[1:] != all_keys[:-1]).any(axis=1)
        self.starts = np.flatnonzero(is_first)
        self.items = len(order)
        self.ids = self.all_ids[self.starts]
        self.keys = all_keys[self.starts]
        self.has_picture = np.concatenate(pictures or [np.empty(0, bool)])[order][self.starts]

    def repeated(self) -> Iterator[list[int]]:
        """The ids of each content that several items have, ascending; the contents in the order of their oldest items."""
        ends = np.append(self.starts[1:], self.items)
        several = np.flatnonzero(ends - self.starts > 1)
        for row in several[np.argsort(self.ids[several])]:
            yield self.all_ids[self.starts[row] : ends[row]].tolist()


class _Signatures:
    """The known signatures of contents, in the order of the oldest items."""

    def __init__(self, contents: _Contents) -> None:
        from dcmh.inputs import signatures

        order = np.argsort(contents.ids)
        self.ids, self.has_picture = contents.ids[order], contents.has_picture[order]
        self.keys = contents.keys[order]
        self.store = signatures.SignatureStore()
        self.values = np.zeros((len(order), signatures.LENGTH), np.int8)
        self.known = np.zeros(len(order), bool)
        self._read(np.arange(len(order)))

    def _read(self, rows: NDArray[np.intp]) -> None:
        for start in range(0, len(rows), BLOCK):
            by_key: dict[bytes, int] = {self.keys[row].tobytes(): row for row in rows[start : start + BLOCK].tolist()}
            for key, value in self.store.get(list(by_key)).items():
                self.values[by_key[key]] = value
                self.known[by_key[key]] = True

    def lacking(self) -> list[int]:
        """The ids of pictures without a signature."""
        return self.ids[self.has_picture & ~self.known].tolist()  # type: ignore[no-any-return]

    def compute(self, index: SearchIndex, progress: Progress | None) -> list[tuple[str, str]]:
        """Compute the signatures that are lacking from the picture files; returns those that cannot be, with reasons."""
        from dcmh.data.columns import Images
        from dcmh.inputs import decoding, signatures

        failed: list[tuple[str, str]] = []
        lacking = np.flatnonzero(self.has_picture & ~self.known)
        for start in range(0, len(lacking), BLOCK):
            rows = lacking[start : start + BLOCK]
            items = index.store.get(self.ids[rows].tolist())
            readable: list[tuple[int, Item, Path]] = []
            for row in rows.tolist():
                item = items.get(int(self.ids[row]))
                path = None if item is None else index.path_of(item)
                if item is None or path is None:
                    continue
                reason = _changed(item, path)
                if reason is None:
                    readable.append((row, item, path))
                else:
                    failed.append((item.name, reason))
            column = Images([str(path) for _, _, path in readable])

            def on_error(position: int, reason: str, readable: list[tuple[int, Item, Path]] = readable) -> None:
                failed.append((readable[position][1].name, reason))

            for positions, pixels in decoding.decoded_batches(column, range(len(readable)), on_error=on_error):
                rows_of = [readable[position][0] for position in positions]
                if rows_of:
                    values = signatures.compute(pixels)
                    self.store.put([(self.keys[row].tobytes(), v) for row, v in zip(rows_of, values, strict=True)])
                    self.values[rows_of], self.known[rows_of] = values, True
                if progress:
                    progress(start + (positions[-1] + 1 if positions else 0), len(lacking))
        return failed

    def groups(self, index: SearchIndex, keep: dict[int, int], similarity: float) -> list[Group]:
        """Groups of near copies: the best item with all that are similar to it, then the best of the others, and so on."""
        from dcmh.index import join
        from dcmh.inputs import signatures

        rows = np.flatnonzero(self.known & self.values.any(axis=1))
        self.ids, self.keys = self.ids[rows], self.keys[:0]
        for start in range(0, len(rows), BLOCK):  # in place: they are the largest array
            block = rows[start : start + BLOCK]
            self.values[start : start + len(block)] = self.values[block]
        values = self.values[: len(rows)]
        codes = signatures.codes(values)
        straight = join.pairs(codes, values, RADIUS, similarity)
        mask = int(signatures.MIRROR_MASK)
        mirrored = join.pairs(codes, values, RADIUS, similarity, mask=mask, signs=signatures.MIRRORED)
        distance: dict[tuple[int, int], int] = {}
        for pairs, flipped in ((straight, 0), (mirrored, mask)):
            bits = np.bitwise_count(codes[pairs[:, 0]] ^ codes[pairs[:, 1]] ^ np.uint64(flipped))
            for a, b, d in zip(*self.ids[pairs].T.tolist(), bits.tolist(), strict=True):
                a, b = keep.get(a, a), keep.get(b, b)
                distance[a, b] = distance[b, a] = min(d, distance.get((a, b), d))
        neighbours: dict[int, list[int]] = {}
        for a, b in distance:
            neighbours.setdefault(a, []).append(b)
        copies = {copy.item.id: copy for copy in _copies(index, neighbours)}
        groups, taken = [], set()
        for best in sorted(copies, key=lambda number: _preference(copies[number]), reverse=True):
            if best in taken:
                continue
            others = [number for number in neighbours[best] if number not in taken and number in copies]
            taken.update([best, *others])
            if others:
                ranked = sorted(others, key=lambda number: (distance[best, number], number))
                near = [replace(copies[number], distance=distance[best, number]) for number in ranked]
                groups.append(_group("near", [copies[best], *near]))
        return sorted(groups, key=lambda group: group.keep)


def _changed(item: Item, path: Path) -> str | None:
    """Why the file of an item cannot stand for the content that was indexed."""
    try:
        status = os.stat(path)
    except OSError:
        return "the file is missing"
    if item.size is not None and (status.st_size, status.st_mtime_ns) != (item.size, item.mtime_ns):
        return "the file has changed since it was indexed"
    return None


def _copies(index: SearchIndex, ids: Iterable[int]) -> Iterator[Copy]:
    """Items with the sizes of their pictures."""
    from dcmh.inputs import images

    wanted = sorted(ids)
    for start in range(0, len(wanted), BLOCK):
        for item in index.store.get(wanted[start : start + BLOCK]).values():
            path = index.path_of(item)
            width = height = None
            if path is not None:
                try:
                    width, height = images.dimensions(path)
                except ImageError:
                    path = path if path.exists() else None
            yield Copy(item, path, width, height, 0)


# What makes a copy the one to keep, most important first: the reason, and a value that is larger for the better copy.
_REASONS: tuple[tuple[str, Callable[[Copy], int]], ...] = (
    ("largest resolution", lambda copy: (copy.width or 0) * (copy.height or 0)),
    ("has text", lambda copy: bool(copy.item.text) + bool(copy.item.labels)),
    ("largest file", lambda copy: copy.item.size or 0),
    ("oldest file", lambda copy: -(copy.item.mtime_ns or 2**63)),
    ("indexed first", lambda copy: -copy.item.id),
)


def _preference(copy: Copy) -> tuple[int, ...]:
    return tuple(value(copy) for _, value in _REASONS)


def _group(kind: Kind, copies: list[Copy]) -> Group:
    """A group whose first copy is the one to keep, and why it is better than the second best."""
    best, *others = copies
    second = max(others, key=_preference)
    why = next(why for why, value in _REASONS if value(best) > value(second))
    return Group(kind, why, tuple(copies))
