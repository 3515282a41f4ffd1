"""What a search returns: hits, and what became of the query."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from dcmh.errors import ImageError
from dcmh.stores.base import Filter
from dcmh.util.tables import Markup, data_frame, html_table, text_table

UNMEASURED = "combined"  # a kind of query of which no precision was measured
SHOWN = 20  # hits in a notebook or at the prompt
THUMBNAIL = 96  # pixels


@dataclass(frozen=True)
class Hit:
    """An item, and why it is a hit.

    `modality` is that of the code at this distance: of the picture or of the text. Hits are ordered by `score`, the sum of the
    `fine` score and the weighted share of the query's words that occur in the item's text or labels (`words`). Both scores are
    None if the index has no fine vectors: then hits are ordered by distance. `precision` is the share of relevant items among
    hits with such scores, measured on held-out items with queries of the same kind; None if it was not measured.
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
        """A record for JSON."""
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
    """A query. `used` and `ignored` are its known and unknown words; `nearest` suggests known words for unknown ones.
    `corrected` are misspelt words with those that were searched for instead.

    `without` is what its words exclude; `like` and `unlike` are the ids of its examples; `filter` limits its hits.
    `key` is the code, followed by the quantised fine vector if there is one; `SearchIndex.near` takes both.
    """

    text: str | None = None
    image: str | None = None
    used: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    nearest: dict[str, tuple[str, ...]] = field(default_factory=dict)
    code: bytes = b""
    key: bytes = b""
    kind: str = "picture"  # or "word", "sentence", or UNMEASURED: queries of different kinds have different precision
    without: tuple[str, ...] = ()
    like: tuple[int, ...] = ()
    unlike: tuple[int, ...] = ()
    filter: Filter = field(default_factory=Filter)
    corrected: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A record for JSON."""
        return {
            "text": self.text,
            "image": self.image,
            "used": list(self.used),
            "ignored": list(self.ignored),
            "nearest": {word: list(known) for word, known in self.nearest.items()},
            "corrected": self.corrected,
            "code": self.code.hex(),
            "without": list(self.without),
            "like": list(self.like),
            "unlike": list(self.unlike),
            "filter": self.filter.to_json(),
        }


@dataclass(frozen=True)
class Hits:
    """The hits of one query, best first, at equal scores the older item first; a sequence of `Hit`.

    `nearest` is the nearest item, also if it is outside the radius. `candidates` is the number of items that the second stage
    scored; None if it scored all. `below` is the number of hits that were left out because of `at_least`. `unlikely`: probably
    nothing matches, as `dcmh.search.calibration.is_unlikely` judges.
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
    unlikely: bool = False

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
        """A record for JSON."""
        return {
            "query": self.query.to_json(),
            "searched": self.searched,
            "took_ms": round(self.took_ms, 2),
            "radius": self.radius,
            "candidates": self.candidates,
            "at_least": self.at_least,
            "unlikely": self.unlikely,
            "hits": [hit.to_json() for hit in self.hits],
        }

    def _title(self) -> str:
        query = repr(self.query.text) if self.query.text else self.query.image or f"a {self.query.kind}"
        return f"{len(self):,} hits for {query} among {self.searched:,} items ({self.took_ms:.1f} ms)"

    def __repr__(self) -> str:
        rows = [[hit.score, hit.distance, hit.name, shortened(hit.text or "")] for hit in self.hits[:SHOWN]]
        more = f"\n… {len(self) - SHOWN:,} more" if len(self) > SHOWN else ""
        return f"{self._title()}\n{text_table(['score', 'distance', 'name', 'text'], rows)}{more}"

    def _repr_html_(self) -> str:
        rows = [
            [_picture(hit), hit.score, hit.distance, hit.precision, hit.name, shortened(hit.text or "", 200)]
            for hit in self.hits[:SHOWN]
        ]
        return html_table(self._title(), ["", "score", "distance", "precision", "name", "text"], rows)

    def to_frame(self) -> Any:
        """The hits as a pandas DataFrame, best first. Needs pandas."""
        return data_frame([hit.to_json() for hit in self.hits])


def shortened(text: str, length: int = 60) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def _picture(hit: Hit) -> Markup:
    """A thumbnail for a notebook; nothing if there is no file, or it cannot be read."""
    if hit.path is None:
        return Markup("")
    from dcmh.inputs.images import thumbnail

    try:
        encoded = base64.b64encode(thumbnail(hit.path, THUMBNAIL)).decode()
    except ImageError:
        return Markup("")
    return Markup(f'<img src="data:image/jpeg;base64,{encoded}" alt="">')
