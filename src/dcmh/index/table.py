"""The rows of an index: codes as 64-bit words, ids, and which rows are live; and how ids are found among them.

A table is immutable to its readers. Adding and removing make a new table that shares the arrays; rows are written only
past the end of every older table, so that a search in an older one is not affected.

The live row of an id is found without a dictionary, in at most 4 bytes per item, and none if ids ascend: rows sorted by
id form runs. New rows are a new run, and a run that is not much smaller than the next is merged into it, so that there
are few runs and adding items in small batches stays cheap. A run whose ids ascend with its rows is a `range`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dcmh.codes import bytes_of
from dcmh.errors import DataError, ModelMismatch

Words = NDArray[np.uint64]
Ids = NDArray[np.int64]
Run = range | NDArray[np.uint32]  # rows sorted by id

MAX_ROWS = 2**32 - 1  # a row number takes 32 bits of a key
ALL_LIVE: Words = np.empty(0, np.uint64)


def words_of(packed: NDArray[np.uint8], bits: int) -> Words:
    """Packed codes, shape (n, ceil(bits / 8)), as words, shape (n, ceil(bits / 64)); bits past the code are 0."""
    width = -(-bits // 64)
    octets = np.zeros((len(packed), 8 * width), np.uint8)
    octets[:, : packed.shape[1]] = packed
    words = octets.view("<u8").astype(np.uint64, copy=False)
    if bits % 64:
        words[:, -1] &= np.uint64(2 ** (bits % 64) - 1)
    return words


def as_words(codes: NDArray[np.uint8], bits: int, what: str) -> NDArray[np.uint64]:
    """Packed codes as words, shape (n, ceil(bits / 64)), after checking dtype and shape."""
    codes = np.asarray(codes)
    if codes.dtype != np.uint8 or codes.ndim != 2:
        raise DataError(
            f"{what} must be a uint8 array of shape (n, {bytes_of(bits)}), not {codes.dtype} of shape {codes.shape}. "
            "Use dcmh.codes.pack."
        )
    if codes.shape[1] != bytes_of(bits):
        raise ModelMismatch(
            f"{what} have {codes.shape[1]} bytes each, but the index has {bits} bits ({bytes_of(bits)} bytes). "
            "Encode both with the same model."
        )
    return words_of(codes, bits)


def packed_of(words: Words, bits: int) -> NDArray[np.uint8]:
    """Undo `words_of`."""
    octets = np.ascontiguousarray(words, "<u8").view(np.uint8)
    return np.ascontiguousarray(octets.reshape(len(words), 8 * words.shape[1])[:, : bytes_of(bits)])


def bitmap(rows: NDArray[np.bool_]) -> Words:
    """One bit per row, 64 rows per word."""
    octets = np.zeros(-(-len(rows) // 64) * 8, np.uint8)
    octets[: -(-len(rows) // 8)] = np.packbits(rows, bitorder="little")
    return octets.view("<u8").astype(np.uint64, copy=False)


def is_set(bits: Words, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the bits of these rows are set in a bitmap."""
    return np.asarray(bits[rows >> 6] >> (rows & 63).astype(np.uint64) & np.uint64(1), bool)


@dataclass(frozen=True, eq=False)
class Table:
    """Rows in the order in which they were added; the arrays may have room for more."""

    words_room: Words  # (room, width)
    ids_room: NDArray[np.int64]  # (room,)
    count: int  # rows in use, including removed ones
    live: Words  # bitmap of the rows that are not removed; ALL_LIVE if none is
    live_count: int

    @classmethod
    def empty(cls, bits: int) -> Table:
        """A table without rows for codes of this many bits."""
        return cls(np.empty((0, -(-bits // 64)), np.uint64), np.empty(0, np.int64), 0, ALL_LIVE, 0)

    @property
    def words(self) -> Words:
        """The codes, shape (count, width)."""
        return self.words_room[: self.count]

    @property
    def ids(self) -> NDArray[np.int64]:
        """The ids, shape (count,)."""
        return self.ids_room[: self.count]

    def live_rows(self) -> NDArray[np.bool_]:
        """Whether each row is live, shape (count,)."""
        if not len(self.live):
            return np.ones(self.count, bool)
        return np.unpackbits(self.live.view(np.uint8), bitorder="little", count=self.count).view(bool)

    def alive(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether these rows are live."""
        return is_set(self.live, rows) if len(self.live) else np.ones(len(rows), bool)

    def with_rows(self, ids: NDArray[np.int64], words: Words) -> Table:
        """This table with new rows at its end. Only the newest table may grow."""
        count = self.count + len(ids)
        if count > MAX_ROWS:
            raise DataError(
                f"An index holds at most {MAX_ROWS:,} items, not {count:,}. Spread them over several indexes."
            )
        words_room, ids_room = self.words_room, self.ids_room
        if count > len(ids_room):
            room = count if self.count == 0 else max(count, self.count + self.count // 2)
            words_room, ids_room = np.empty((room, words_room.shape[1]), np.uint64), np.empty(room, np.int64)
            words_room[: self.count], ids_room[: self.count] = self.words, self.ids
        words_room[self.count : count], ids_room[self.count : count] = words, ids
        live = bitmap(np.append(self.live_rows(), np.ones(len(ids), bool))) if len(self.live) else ALL_LIVE
        return Table(words_room, ids_room, count, live, self.live_count + len(ids))

    def without(self, rows: NDArray[np.int64]) -> Table:
        """This table with these live rows, each given once, marked as removed."""
        live = self.live.copy() if len(self.live) else bitmap(np.ones(self.count, bool))
        np.bitwise_and.at(live, rows >> 6, ~(np.uint64(1) << (rows & 63).astype(np.uint64)))
        return replace(self, live=live, live_count=self.live_count - len(rows))

    def compact(self) -> Table:
        """A table of the live rows only, in the same order."""
        if not len(self.live):
            return self
        kept = self.live_rows()
        return Table(self.words[kept], self.ids[kept], self.live_count, ALL_LIVE, self.live_count)


# -- from ids to rows -------------------------------------------------------------------------------------------


def _run(ids: Ids, start: int, stop: int) -> Run:
    """The rows start to stop, sorted by id."""
    block = ids[start:stop]
    if bool(np.all(block[1:] > block[:-1])):
        return range(start, stop)
    return (np.argsort(block, kind="stable") + start).astype(np.uint32)


def _rows(run: Run) -> NDArray[np.uint32]:
    return np.arange(run.start, run.stop, dtype=np.uint32) if isinstance(run, range) else run


def _joined(table: Table, a: Run, b: Run) -> Run:
    """The two runs merged, without removed rows, so that no id occurs twice."""
    if isinstance(a, range) and isinstance(b, range) and table.ids[a.stop - 1] < table.ids[b.start]:
        return range(a.start, b.stop)
    rows = np.concatenate([_rows(a), _rows(b)])
    rows = rows[table.alive(rows.astype(np.int64))]
    return rows[np.argsort(table.ids[rows], kind="stable")]  # two sorted halves: a merge


def _search(ids: Ids, run: Run, wanted: Ids) -> NDArray[np.int64]:
    """For each wanted id the first row of the run whose id is not smaller; the last row if there is none."""
    if isinstance(run, range):
        if int(ids[run.stop - 1]) - int(ids[run.start]) == len(run) - 1:  # none is missing
            return np.asarray(np.clip(wanted - ids[run.start], 0, len(run) - 1) + run.start)
        return np.minimum(run.start + np.searchsorted(ids[run.start : run.stop], wanted), run.stop - 1)
    position = np.zeros(len(wanted), np.int64)
    step = 1 << (len(run).bit_length() - 1)
    while step:
        ahead = np.minimum(position + step, len(run))
        position = np.where(ids[run[ahead - 1]] < wanted, ahead, position)
        step >>= 1
    return run[np.minimum(position, len(run) - 1)].astype(np.int64)


class Finder:
    """Finds the live rows of ids in a table, and is updated as it grows."""

    def __init__(self, table: Table) -> None:
        self.count = table.count
        self.runs: list[Run] = [_run(table.ids, 0, table.count)] if table.count else []

    def grow(self, table: Table) -> None:
        """Add the rows that the table has gained."""
        if table.count > self.count:
            self.runs.append(_run(table.ids, self.count, table.count))
            self.count = table.count
        while len(self.runs) > 1 and (self._follows(table) or 2 * len(self.runs[-1]) >= len(self.runs[-2])):
            b, a = self.runs.pop(), self.runs.pop()
            self.runs.append(_joined(table, a, b))

    def _follows(self, table: Table) -> bool:
        """Whether the last two runs are ranges that can be one."""
        a, b = self.runs[-2:]
        return isinstance(a, range) and isinstance(b, range) and bool(table.ids[a.stop - 1] < table.ids[b.start])

    def find(self, table: Table, wanted: Ids) -> NDArray[np.int64]:
        """The live row of each wanted id, -1 if there is none."""
        live = np.full(len(wanted), -1, np.int64)
        for run in self.runs:
            if len(run):
                rows = _search(table.ids, run, wanted)
                live = np.where((table.ids[rows] == wanted) & table.alive(rows), rows, live)
        return live
