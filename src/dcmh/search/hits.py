"""What a search gives back: hits, and what became of the query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload


@dataclass(frozen=True)
class Hit:
    """One item found. `modality` is the code that was near: that of its picture or that of its words.

    `precision` is the share of relevant items at this distance among the model's held-out queries; None where it was
    not measured.
    """

    id: int
    distance: int
    bits: int
    precision: float | None
    text: str | None
    path: Path | None
    labels: tuple[str, ...]
    modality: str
    name: str  # the item's id in the data, such as its path in the folder

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "distance": self.distance,
            "bits": self.bits,
            "precision": None if self.precision is None else round(self.precision, 4),
            "text": self.text,
            "path": None if self.path is None else str(self.path),
            "name": self.name,
            "labels": list(self.labels),
            "modality": self.modality,
        }


@dataclass(frozen=True)
class Query:
    """What was asked. `nearest` offers known words for those that are unknown."""

    text: str | None = None
    image: str | None = None
    used: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    nearest: dict[str, tuple[str, ...]] = field(default_factory=dict)
    code: bytes = b""

    def to_json(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "image": self.image,
            "used": list(self.used),
            "ignored": list(self.ignored),
            "nearest": {word: list(known) for word, known in self.nearest.items()},
            "code": self.code.hex(),
        }


@dataclass(frozen=True)
class Hits:
    """The hits of one query, nearest first, older items first at equal distance; a sequence of `Hit`.

    `nearest` is the nearest item at all: that tells why nothing was found within a radius.
    """

    hits: tuple[Hit, ...]
    query: Query
    searched: int
    took_ms: float
    radius: int | None = None
    nearest: Hit | None = None

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    @overload
    def __getitem__(self, which: int) -> Hit: ...
    @overload
    def __getitem__(self, which: slice) -> tuple[Hit, ...]: ...
    def __getitem__(self, which: int | slice) -> Hit | tuple[Hit, ...]:
        return self.hits[which]

    def to_json(self) -> dict[str, Any]:
        return {
            "query": self.query.to_json(),
            "searched": self.searched,
            "took_ms": round(self.took_ms, 2),
            "radius": self.radius,
            "hits": [hit.to_json() for hit in self.hits],
        }
