"""The rows of an index: codes as 64-bit words, ids, and which rows are still live.

A table never changes under a reader. Adding and removing make a new table that shares the arrays; rows are written
only past the end of every older table, so whoever still searches an older one sees what it held.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dcmh.codes import bytes_of
from dcmh.errors import DataError

Words = NDArray[np.uint64]

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


def packed_of(words: Words, bits: int) -> NDArray[np.uint8]:
    """Undo `words_of`."""
    octets = np.ascontiguousarray(words, "<u8").view(np.uint8)
    return np.ascontiguousarray(octets.reshape(len(words), 8 * words.shape[1])[:, : bytes_of(bits)])


def bitmap(rows: NDArray[np.bool_]) -> Words:
    """One bit a row, 64 rows a word."""
    octets = np.zeros(-(-len(rows) // 64) * 8, np.uint8)
    octets[: -(-len(rows) // 8)] = np.packbits(rows, bitorder="little")
    return octets.view("<u8").astype(np.uint64, copy=False)


def is_set(bits: Words, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the rows' bits are set in a bitmap."""
    found: NDArray[np.bool_] = (bits[rows >> 6] >> (rows & 63).astype(np.uint64) & np.uint64(1)).astype(bool)
    return found


@dataclass(frozen=True, eq=False)
class Table:
    """Rows in the order they were added; the arrays may have room for more."""

    words_room: Words  # (room, width)
    ids_room: NDArray[np.int64]  # (room,)
    count: int  # rows in use, removed ones included
    live: Words  # bitmap of the rows that are not removed; ALL_LIVE when none is
    live_count: int

    @classmethod
    def empty(cls, bits: int) -> Table:
        return cls(np.empty((0, -(-bits // 64)), np.uint64), np.empty(0, np.int64), 0, ALL_LIVE, 0)

    @property
    def words(self) -> Words:
        return self.words_room[: self.count]

    @property
    def ids(self) -> NDArray[np.int64]:
        return self.ids_room[: self.count]

    def live_rows(self) -> NDArray[np.bool_]:
        """Whether each row is live, shape (count,)."""
        if not len(self.live):
            return np.ones(self.count, bool)
        return np.unpackbits(self.live.view(np.uint8), bitorder="little", count=self.count).view(bool)

    def alive(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        return is_set(self.live, rows) if len(self.live) else np.ones(len(rows), bool)

    def with_rows(self, ids: NDArray[np.int64], words: Words) -> Table:
        """This table and new rows at its end. Only the newest table may grow."""
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
        """This table with live rows marked as removed; `rows` names each once."""
        live = self.live.copy() if len(self.live) else bitmap(np.ones(self.count, bool))
        np.bitwise_and.at(live, rows >> 6, ~(np.uint64(1) << (rows & 63).astype(np.uint64)))
        return replace(self, live=live, live_count=self.live_count - len(rows))

    def compact(self) -> Table:
        """The live rows alone, in their order."""
        if not len(self.live):
            return self
        kept = self.live_rows()
        return Table(self.words[kept], self.ids[kept], self.live_count, ALL_LIVE, self.live_count)
