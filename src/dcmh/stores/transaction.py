"""The changes of one transaction on a server: collected first, then written as whole rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dcmh.stores.base import Item, Skipped


@dataclass
class CodeRows:
    """The rows of one modality that a change writes, complete, and the ids that it deletes."""

    ids: NDArray[np.int64]
    packed: NDArray[np.uint8]
    alone: NDArray[np.bool_]  # the item has no code in another modality
    deleted: NDArray[np.int64]


@dataclass
class FineRows:
    """The fine vectors of one modality that a change writes, by id, and the ids that it deletes."""

    vectors: dict[int, bytes]
    deleted: list[int]


@dataclass
class Transaction:
    """The changes of one `writing()` block."""

    first_new: int  # ids from here on are new
    about: dict[str, str]
    items: dict[int, Item] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    codes: dict[int, dict[str, bytes | None]] = field(default_factory=dict)  # id to modality to code
    fine: dict[int, dict[str, bytes | None]] = field(default_factory=dict)  # id to modality to vector
    skipped: dict[str, Skipped | None] = field(default_factory=dict)  # None: no longer skipped

    def remove(self, item: int) -> None:
        """Remove an item, even if it is new or changed."""
        self.removed.add(item)
        for written in (self.items, self.codes, self.fine):
            written.pop(item, None)

    def recoded(self) -> list[int]:
        """The known items whose codes change, ascending."""
        return sorted(number for number in self.codes if number < self.first_new)

    def code_rows(
        self, modalities: Sequence[str], stored: Mapping[str, Mapping[int, bytes]], width: int
    ) -> dict[str, CodeRows]:
        """The complete rows of codes: whether an item is alone depends on its other codes, `stored` ones included."""
        whole: dict[int, dict[str, bytes | None]] = {number: {} for number in self.codes}
        for modality, codes in stored.items():
            for number, code in codes.items():
                whole[number][modality] = code
        for number, changed in self.codes.items():
            whole[number].update(changed)
        rows = {}
        for modality in modalities:
            ids = [number for number in sorted(whole) if whole[number].get(modality) is not None]
            alone = [sum(code is not None for code in whole[number].values()) == 1 for number in ids]
            joined = b"".join(whole[number][modality] or b"" for number in ids)
            deleted = {number for number in self.recoded() if whole[number].get(modality) is None} | self.removed
            rows[modality] = CodeRows(
                np.array(ids, np.int64),
                np.frombuffer(joined, np.uint8).reshape(len(ids), width),
                np.array(alone, bool),
                np.array(sorted(deleted), np.int64),
            )
        return rows

    def fine_rows(self, modality: str) -> FineRows:
        """The fine vectors of a modality."""
        changed = {number: values[modality] for number, values in self.fine.items() if modality in values}
        vectors = {number: vector for number, vector in sorted(changed.items()) if vector is not None}
        deleted = {number for number in changed if number not in vectors and number < self.first_new}
        return FineRows(vectors, sorted(deleted | self.removed))
