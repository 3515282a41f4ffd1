"""What a search gives back: hits, and what became of the query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload


@dataclass(frozen=True)
class Hit:
    """One item found, and why.

    `modality` is the code that was near: that of its picture or that of its words. `score` orders the hits: the `fine` score,
    and the share of the query's words that stand in the item's text or labels, `words`; both are None where the index has no
    fine vectors, and distances order the hits. `precision` is the share of relevant items among hits of such scores, measured
    on items that the model did not learn from, with queries of the same kind; None where it was not measured.
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
    score: float | None = None
    fine: float | None = None
    words: tuple[str, ...] = ()

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
            "score": None if self.score is None else round(self.score, 4),
            "fine": None if self.fine is None else round(self.fine, 4),
            "words": list(self.words),
        }


@dataclass(frozen=True)
class Query:
    """What was asked. `nearest` offers known words for those that are unknown.

    `key` is the code, followed by the quantised fine vector where there is one: `SearchIndex.near` takes either.
    """

    text: str | None = None
    image: str | None = None
    used: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    nearest: dict[str, tuple[str, ...]] = field(default_factory=dict)
    code: bytes = b""
    key: bytes = b""
    kind: str = "picture"  # or "word", or "sentence": queries of different kinds have different precision

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
    """The hits of one query, best first, older items first where they are equal; a sequence of `Hit`.

    `nearest` is the nearest item at all: that tells why nothing was found within a radius. `candidates` is how many items the
    second stage scored, where the first stage chose them; None where all were scored. `below` counts the hits that were left
    out because their precision is lower than was asked for.
    """

    hits: tuple[Hit, ...]
    query: Query
    searched: int
    took_ms: float
    radius: int | None = None
    nearest: Hit | None = None
    candidates: int | None = None
    at_least: float | None = None
    below: int = 0

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
            "candidates": self.candidates,
            "at_least": self.at_least,
            "hits": [hit.to_json() for hit in self.hits],
        }
