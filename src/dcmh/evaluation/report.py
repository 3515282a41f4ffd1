"""The result of an evaluation, per direction, and its JSON form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import DataError
from dcmh.evaluation.metrics import TIES, Curve, Lookup, Ties
from dcmh.util.formats import UNREADABLE, reason

Relevance = Literal["labels", "pairing"]


@dataclass(frozen=True, eq=False)
class DirectionReport:
    """The measures of one direction: one modality searched with another.

    `queries` and `database` count the items observed in the two modalities, which all measures are over.
    `points` and `relevant`, (bits + 1,), count the pairs at each distance, over all queries.
    """

    queries: int
    database: int
    chance: float
    without_relevant: int
    map: dict[Ties, float]
    precision_at: dict[int, float]
    recall_at: dict[int, float]
    lookup: Lookup
    points: NDArray[np.int64]
    relevant: NDArray[np.int64]

    def to_json(self) -> dict[str, Any]:
        """Numbers, lists and dictionaries; null if a measure is undefined."""
        return {
            "queries": self.queries,
            "database": self.database,
            "chance": self.chance,
            "without_relevant": self.without_relevant,
            "map": dict(self.map),
            "precision_at": {str(k): value for k, value in self.precision_at.items()},
            "recall_at": {str(k): value for k, value in self.recall_at.items()},
            "lookup": _rows(self.lookup),
            "lookup_per_query": _rows(self.lookup.per_query),
            "by_distance": [
                {"distance": distance, "points": int(points), "relevant": int(relevant)}
                for distance, (points, relevant) in enumerate(zip(self.points, self.relevant, strict=True))
            ],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Undo `to_json`."""
        per_query = Curve(*_columns(record["lookup_per_query"]))
        return cls(
            queries=int(record["queries"]),
            database=int(record["database"]),
            chance=_real(record["chance"]),
            without_relevant=int(record["without_relevant"]),
            map={ties: _real(record["map"][ties]) for ties in TIES},
            precision_at={int(k): _real(value) for k, value in record["precision_at"].items()},
            recall_at={int(k): _real(value) for k, value in record["recall_at"].items()},
            lookup=Lookup(*_columns(record["lookup"]), per_query=per_query),
            points=np.array([row["points"] for row in record["by_distance"]], np.int64),
            relevant=np.array([row["relevant"] for row in record["by_distance"]], np.int64),
        )


@dataclass(frozen=True, eq=False)
class Report:
    """The result of `evaluate`. `directions` maps names such as "image_to_text" to their measures.

    `chance` and `without_relevant` are over all queries and the whole database. `k`, if not None, is the number of ranks
    that count in MAP. `relevance` is what defines the relevant items.
    """

    bits: int
    queries: int
    database: int
    train: int
    chance: float
    without_relevant: int
    k: int | None
    directions: dict[str, DirectionReport]
    relevance: Relevance = "labels"

    def __getitem__(self, direction: str) -> DirectionReport:
        return self.directions[direction]

    def to_json(self) -> dict[str, Any]:
        """Numbers, lists and dictionaries; null if a measure is undefined."""
        return {
            "bits": self.bits,
            "queries": self.queries,
            "database": self.database,
            "train": self.train,
            "chance": self.chance,
            "without_relevant": self.without_relevant,
            "k": self.k,
            "relevance": self.relevance,
            **{name: direction.to_json() for name, direction in self.directions.items()},
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Undo `to_json`."""
        try:
            return cls(
                bits=int(record["bits"]),
                queries=int(record["queries"]),
                database=int(record["database"]),
                train=int(record["train"]),
                chance=_real(record["chance"]),
                without_relevant=int(record["without_relevant"]),
                k=None if record["k"] is None else int(record["k"]),
                relevance=record.get("relevance", "labels"),
                directions={name: DirectionReport.from_json(value) for name, value in record.items() if "_to_" in name},
            )
        except UNREADABLE as error:
            raise DataError(
                f"This is not an evaluation report: {reason(error)}.", hint="Write one with Report.to_json."
            ) from error


def short(direction: str, among: Iterable[str]) -> str:
    """image_to_text as I→T; with whole names if two modalities of these directions have the same initial."""
    names = {name for each in among for name in each.split("_to_")} | set(direction.split("_to_"))
    first = {name[:1].upper() for name in names}
    clear = len(first) == len(names)
    return "→".join(name[:1].upper() if clear else name for name in direction.split("_to_"))


def _rows(curve: Curve) -> list[dict[str, Any]]:
    measures = {"precision": curve.precision, "recall": curve.recall, "f": curve.f}
    return [
        {"radius": int(radius), **{name: _number(values[i]) for name, values in measures.items()}}
        for i, radius in enumerate(curve.radius)
    ]


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _real(value: Any) -> float:
    """A number, NaN for None; anything else, such as a text, is an error."""
    if value is not None and not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    return math.nan if value is None else float(value)


def _columns(rows: Sequence[Mapping[str, Any]]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    def measure(name: str) -> NDArray[np.float64]:
        return np.array([_real(row[name]) for row in rows], np.float64)

    return np.array([row["radius"] for row in rows], np.int64), measure("precision"), measure("recall"), measure("f")
