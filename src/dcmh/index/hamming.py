"""HammingIndex: exact search by Hamming distance over packed codes, in memory or memory-mapped."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcmh.codes import check_bits
from dcmh.errors import DataError, MissingExtra, ParameterError
from dcmh.index import multihash, scan, storage
from dcmh.index.multihash import MultiHash
from dcmh.index.protocol import (
    Ids,
    Results,
    as_ids,
    ascending,
    at_least,
    is_id,
    refuse_known,
    refuse_missing,
    refuse_repeated,
)
from dcmh.index.table import ALL_LIVE, Finder, Table, Words, as_words, bitmap, packed_of

QUERIES_AT_ONCE = 1 << 16  # a key has 21 bits for the query
COPY_SHARE = 16  # if fewer than 1 of 16 rows are allowed, copy those and scan the copy


@dataclass(frozen=True)
class _State:
    """What a search needs. Each change replaces it as a whole, so that searches need no lock."""

    table: Table
    lookups: MultiHash | None = None  # over the first rows of the table
    generation: int = 0  # row numbers are valid within a generation


@dataclass(frozen=True)
class _View:
    """The rows that a search may find."""

    words: Words
    live: Words
    count: int  # number of rows that may be found
    rows: NDArray[np.int64] | None  # if `words` is a copy of some rows: the row of the table for each


class HammingIndex:
    """Packed codes of `bits` bits under integer ids: exact search for the nearest items and for those within a radius.

    Hits are sorted by distance; at equal distance the item that was added first comes first. Threads may search while
    others add and remove: a search sees the index as it was when it began, and changes are serialized.

    Parameters
    ----------
    bits : 1 to 1024
    threads
        Number of threads that a search may use; None: one per core. Can be changed at any time.
    """

    def __init__(self, bits: int, *, threads: int | None = None) -> None:
        self.bits = check_bits(bits)
        self.threads = threads
        self._state = _State(Table.empty(self.bits))
        self._finder: Finder | None = None
        self._lock = threading.RLock()
        self._scanned = 0.0  # words that lookups would have saved so far
        self._files: list[storage.Stored] = []  # that it was loaded from and that are not checked yet

    def __len__(self) -> int:
        return self._state.table.live_count

    def __repr__(self) -> str:
        return f"HammingIndex(bits={self.bits}, count={self.count})"

    def __contains__(self, item: object) -> bool:
        return is_id(item) and bool(self._rows(np.array([item], np.int64))[1][0] >= 0)

    @property
    def count(self) -> int:
        """The number of items."""
        return len(self)

    @property
    def ids(self) -> Ids:
        """The ids in the order in which the items were added, shape (count,); read-only."""
        table = self._state.table
        ids = table.ids[table.live_rows()] if len(table.live) else table.ids.view()
        ids.flags.writeable = False
        return ids

    def codes(self, ids: ArrayLike) -> NDArray[np.uint8]:
        """The packed codes of these items, shape (len(ids), ceil(bits / 8)), in that order."""
        wanted = as_ids(ids)
        state, rows = self._rows(wanted)
        refuse_missing(wanted[rows < 0])
        return packed_of(state.table.words[rows], self.bits)

    def codes_by_id(self, ids: ArrayLike) -> dict[int, bytes]:
        """Id to packed code for those of the items that are in the index."""
        wanted = as_ids(ids)
        state, rows = self._rows(wanted)
        packed = packed_of(state.table.words[rows[rows >= 0]], self.bits)
        return {item: code.tobytes() for item, code in zip(wanted[rows >= 0].tolist(), packed, strict=True)}

    def add(self, ids: ArrayLike, codes: NDArray[np.uint8]) -> None:
        """Add items: new ids, shape (n,), and packed codes, shape (n, ceil(bits / 8)). Adds all of them or none."""
        new = as_ids(ids)
        words = as_words(codes, self.bits, "Codes")
        if len(new) != len(words):
            raise DataError(f"There are {len(new)} ids but {len(words)} codes. Give one id for each code.")
        if not len(new):
            return
        refuse_repeated(new)
        with self._lock:
            state, rows = self._rows(new)
            refuse_known(new[rows >= 0])
            table = state.table.with_rows(new, words)
            if self._finder:
                self._finder.grow(table)
            self._state = replace(state, table=table)

    def remove(self, ids: ArrayLike, *, missing_ok: bool = False) -> int:
        """Remove items and return their number. If an id is unknown, none is removed, unless missing_ok."""
        wanted = np.unique(as_ids(ids))
        with self._lock:
            state, rows = self._rows(wanted)
            if not missing_ok:
                refuse_missing(wanted[rows < 0])
            rows = rows[rows >= 0]
            if len(rows):
                table = state.table.without(rows)
                if 4 * table.live_count < 3 * table.count:
                    self._state, self._finder = _State(table.compact(), None, state.generation + 1), None
                else:
                    self._state = replace(state, table=table)
        return len(rows)

    def search(self, codes: NDArray[np.uint8], k: int, *, allowed: ArrayLike | None = None) -> Results:
        """The k nearest items of each query, or all items if there are fewer.

        Parameters
        ----------
        codes : (queries, ceil(bits / 8)) uint8
        allowed
            Which items may be found: their ids (unknown ones are ignored), or booleans indexed by id.
        """
        queries = as_words(codes, self.bits, "Query codes")
        k = at_least(k, 1, "k")
        state, view = self._view(allowed)
        k = min(k, view.count)
        keys = np.empty((len(queries), 0), np.uint64)
        if k and len(queries):
            keys = scan.nearest(view.words, view.live, queries, k, scan.threads_of(self.threads))
        offsets = np.arange(len(queries) + 1, dtype=np.int64) * k
        return _results(state.table, view, keys.reshape(-1), offsets)

    def within(
        self,
        codes: NDArray[np.uint8],
        radius: int,
        *,
        allowed: ArrayLike | None = None,
        method: Literal["auto", "scan", "lookup"] = "auto",
    ) -> Results:
        """All items at most `radius` bits away from each query.

        Parameters
        ----------
        codes : (queries, ceil(bits / 8)) uint8
        allowed
            As in `search`.
        method
            "scan" compares every item; "lookup" uses hash tables, built on first use, which take 4 bytes per item and
            table in addition to the index; "auto" takes the faster one, and builds tables once that pays. All give the
            same results.
        """
        queries = as_words(codes, self.bits, "Query codes")
        radius = min(at_least(radius, 0, "radius"), self.bits)
        if method not in ("auto", "scan", "lookup"):
            raise ParameterError(f"method must be 'auto', 'scan' or 'lookup', not {method!r}.")
        state, view = self._view(allowed)
        lookups = None
        if method != "scan" and view.rows is None and view.count:
            lookups = self._lookups(state, radius, len(queries), forced=method == "lookup")
        parts, counts = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for start in range(0, len(queries) if view.count else 0, QUERIES_AT_ONCE):
            some = queries[start : start + QUERIES_AT_ONCE]
            keys = multihash.near(view.words, view.live, some, radius, scan.threads_of(self.threads), lookups)
            counts.append(np.diff(np.searchsorted(keys, np.arange(len(some) + 1, dtype=np.uint64) << np.uint64(43))))
            parts.append(keys)
        per_query = np.concatenate(counts) if view.count else np.zeros(len(queries), np.int64)
        offsets = np.concatenate([[0], np.cumsum(per_query)]).astype(np.int64)
        return _results(state.table, view, np.concatenate(parts), offsets)

    def save(self, folder: str | Path) -> None:
        """Write the index to a folder, atomically: readers see either the older index or this one."""
        self.check()
        storage.save(self._state.table, self.bits, folder)

    @classmethod
    def load(cls, folder: str | Path, *, mmap: bool = True, threads: int | None = None) -> HammingIndex:
        """Open a saved index. With mmap, pages are read when a search needs them, and the first `add` copies them."""
        table, bits, files = storage.load(folder, mmap=mmap)
        index = cls(bits, threads=threads)
        index._state = _State(table)
        index._files = files
        if not mmap:
            index.check()
        return index

    def check(self) -> None:
        """Compare the files that this index was loaded from with their checksums, once: DamagedError if one differs.

        Searching, adding and saving do it first.
        """
        if self._files:
            for file in self._files:
                file.check()
            self._files = []

    def _rows(self, ids: Ids) -> tuple[_State, NDArray[np.int64]]:
        """The current state, and the live row of each id in it, -1 if there is none."""
        self.check()
        with self._lock:
            state = self._state
            if self._finder is None:
                self._finder = Finder(state.table)
            return state, self._finder.find(state.table, ids)

    def _view(self, allowed: ArrayLike | None) -> tuple[_State, _View]:
        """The current state, and the rows that may be found."""
        self.check()
        state = self._state
        table = state.table
        if allowed is None:
            return state, _View(table.words, table.live, table.live_count, None)
        chosen = np.asarray(allowed)
        if chosen.dtype == bool and chosen.ndim == 1:
            mask = table.live_rows() & (table.ids >= 0) & (table.ids < len(chosen))
            mask[mask] = chosen[table.ids[mask]]
        else:
            state, rows = self._rows(ascending(as_ids(chosen)))
            table, rows = state.table, np.sort(rows[rows >= 0])
            if COPY_SHARE * len(rows) < table.count:
                return state, _View(table.words[rows], ALL_LIVE, len(rows), rows)
            mask = np.zeros(table.count, bool)
            mask[rows] = True
        count = int(np.count_nonzero(mask))
        if COPY_SHARE * count < table.count:
            rows = np.flatnonzero(mask)
            return state, _View(table.words[rows], ALL_LIVE, count, rows)
        return state, _View(table.words, bitmap(mask), count, None)

    def _lookups(self, state: _State, radius: int, queries: int, *, forced: bool) -> MultiHash | None:
        """Hash tables if lookups are faster than scans; built once scans have cost as much as building does."""
        table, lookups = state.table, state.lookups
        usable = multihash.covers_most(lookups, table.count)
        plan = lookups.plan if usable and lookups else multihash.plan_for(self.bits, table.count)
        saved = multihash.words_saved(plan, radius, table.words.shape[1], queries)
        if usable and (forced or saved > 0):
            return lookups
        self._scanned += max(0.0, saved) * queries
        if not forced and (saved <= 0 or self._scanned < plan.build_cost):
            return None
        if not scan.engines.load():
            if forced:
                raise MissingExtra("method='lookup' needs numba. Install it: pip install numba")
            return None
        lookups = MultiHash(table.words, plan, scan.threads_of(self.threads))
        self._scanned = 0.0
        with self._lock:
            if self._state.generation == state.generation:
                self._state = replace(self._state, lookups=lookups)
        return lookups


def _results(table: Table, view: _View, keys: Words, offsets: NDArray[np.int64]) -> Results:
    rows = (keys & np.uint64(2**32 - 1)).astype(np.int64)
    distances = (keys >> np.uint64(32) & np.uint64(2**11 - 1)).astype(np.uint16)
    return Results(table.ids[rows if view.rows is None else view.rows[rows]], distances, offsets)
