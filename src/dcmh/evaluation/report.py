"""The result of an evaluation, per direction, and its JSON form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import DataError
from dcmh.evaluation.metrics import TIES, Curve, Lookup, Ties
from dcmh.util.formats import UNREADABLE, reason
from dcmh.util.tables import data_frame, html_table, text_table

Relevance = Literal["labels", "pairing"]
Interval = tuple[float, float]
AtRank = dict[int, dict[Ties, float]]  # a measure over the first k ranks, by k and rule for ties

# Beyond these limits a caution is given.
MIN_QUERIES, MIN_RELEVANT, MIN_LABELS, MIN_UNSEEN = 50, 5, 5, 50
MAX_INTERVAL = 0.2  # the width
MAX_CHANCE = 0.5
_COUNTS = ("queries", "database", "without_relevant")
_RECORDED = ("bits", "queries", "database", "train", "chance", "without_relevant", "k", "relevance", "seen", "labels")


@dataclass(frozen=True, eq=False)
class DirectionReport:
    """The measures of one direction: one modality searched with another.

    `queries` and `database` count the items observed in the two modalities, which all measures are over.
    `points` and `relevant`, (bits + 1,), count the pairs at each distance, over all queries.
    `interval` is where the MAP of another draw of as many queries would lie, with 95 % probability. `map_at` is MAP over the
    first ranks only, `ndcg_at` grades relevance by the number of shared labels, and `own_recall_at` is the share of queries
    that find their own item in the other modality, among the database and the items of all queries. These are empty where
    they are not defined, and in reports of older versions.
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
    interval: dict[Ties, Interval] = field(default_factory=dict)
    map_at: AtRank = field(default_factory=dict)
    ndcg_at: AtRank = field(default_factory=dict)
    own_recall_at: AtRank = field(default_factory=dict)

    @property
    def ramap(self) -> float:
        """Radius-aware MAP (Jiang, Li and Li, 2019), without its penalty for time: precision within each radius, averaged.

        It depends on buckets only, not on the order of ties; a radius within which a query finds nothing counts as 0.
        """
        return float(self.lookup.per_query.precision.mean())

    def to_json(self) -> dict[str, Any]:
        """Numbers, lists and dictionaries; null if a measure is undefined."""
        return {
            **{name: getattr(self, name) for name in ("queries", "database", "chance", "without_relevant")},
            "map": dict(self.map),
            "interval": {ties: list(map(_number, bounds)) for ties, bounds in self.interval.items()},
            "map_at": _at_json(self.map_at),
            "ndcg_at": _at_json(self.ndcg_at),
            "own_recall_at": _at_json(self.own_recall_at),
            "ramap": _number(self.ramap),
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
            **{name: int(record[name]) for name in _COUNTS},
            chance=_real(record["chance"]),
            map={ties: _real(record["map"][ties]) for ties in TIES},
            precision_at={int(k): _real(value) for k, value in record["precision_at"].items()},
            recall_at={int(k): _real(value) for k, value in record["recall_at"].items()},
            lookup=Lookup(*_columns(record["lookup"]), per_query=per_query),
            points=np.array([row["points"] for row in record["by_distance"]], np.int64),
            relevant=np.array([row["relevant"] for row in record["by_distance"]], np.int64),
            interval={
                ties: (_real(bounds[0]), _real(bounds[1]))
                for ties in TIES
                if (bounds := record.get("interval", {}).get(ties))
            },
            map_at=_at(record.get("map_at", {})),
            ndcg_at=_at(record.get("ndcg_at", {})),
            own_recall_at=_at(record.get("own_recall_at", {})),
        )


@dataclass(frozen=True, eq=False)
class Report:
    """The result of `evaluate`. `directions` maps names such as "image_to_text" to their measures.

    `chance` and `without_relevant` are over all queries and the whole database. `k`, if not None, is the number of ranks
    that count in MAP. `relevance` is what defines the relevant items. `seen` is the number of database items that were
    trained on, and `unseen` the same measures over the others alone; None where all or none were trained on. `labels` is the
    number of labels that the queries have. Reports of older versions lack these three.
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
    seen: int | None = None
    labels: int | None = None
    unseen: Report | None = None

    def __getitem__(self, direction: str) -> DirectionReport:
        return self.directions[direction]

    def to_json(self) -> dict[str, Any]:
        """Numbers, lists and dictionaries; null if a measure is undefined."""
        return {
            **{name: getattr(self, name) for name in _RECORDED},
            "cautions": self.cautions(),
            "unseen": None if self.unseen is None else self.unseen.to_json(),
            **{name: direction.to_json() for name, direction in self.directions.items()},
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Undo `to_json`."""
        try:
            return cls(
                **{name: int(record[name]) for name in ("bits", *_COUNTS, "train")},
                chance=_real(record["chance"]),
                k=_whole(record["k"]),
                relevance=record.get("relevance", "labels"),
                seen=_whole(record.get("seen")),
                labels=_whole(record.get("labels")),
                unseen=cls.from_json(record["unseen"]) if record.get("unseen") else None,
                directions={name: DirectionReport.from_json(value) for name, value in record.items() if "_to_" in name},
            )
        except UNREADABLE as error:
            raise DataError(
                f"This is not an evaluation report: {reason(error)}.", hint="Write one with Report.to_json."
            ) from error

    def cautions(self) -> list[str]:
        """Why these numbers may mean little: too few queries, labels or relevant items, or labels that most items share."""
        cautions = []
        widest = max(self.directions.items(), key=lambda pair: _width(pair[1]), default=None)
        if widest is not None and (_width(widest[1]) > MAX_INTERVAL or widest[1].queries < MIN_QUERIES):
            name, direction = widest
            low, high = direction.interval.get("stable", (math.nan, math.nan))
            bounds = (
                ""
                if math.isnan(low)
                else f": with others, MAP {arrow(name)} may lie anywhere from {low:.2f} to {high:.2f}"
            )
            cautions.append(f"{_number_of(direction.queries, 'query', 'queries')} cannot tell much{bounds}.")
        if self.relevance == "labels":
            cautions += self._about_labels()
        if self.unseen is not None and self.unseen.database < MIN_UNSEEN:
            items = _number_of(self.unseen.database, "item was", "items were")
            cautions.append(f"Only {items} not trained on, too few to say how new items are found.")
        return cautions

    def _about_labels(self) -> list[str]:
        cautions = []
        if self.labels is not None and self.labels < MIN_LABELS:
            cautions.append(
                f"The queries have only {_number_of(self.labels, 'label', 'labels')}, so finding the right ones is easy."
            )
        if self.chance > MAX_CHANCE:
            cautions.append(f"Most items share a label: a random order has a MAP of about {self.chance:.2f}.")
        relevant = self.chance * self.database
        if 0 < relevant < MIN_RELEVANT:
            cautions.append(
                f"A query has {relevant:.1f} relevant items on average, so that single items decide its MAP."
            )
        return cautions

    def rows(self) -> Iterator[tuple[str, str, DirectionReport]]:
        """Each direction as "image → text", what is searched, and the measures: of the whole database, and of unseen items."""
        for name, direction in self.directions.items():
            yield arrow(name), f"{direction.database:,} items", direction
            if self.unseen is not None and name in self.unseen.directions:
                yield arrow(name), f"{self.unseen[name].database:,} unseen", self.unseen[name]

    def table(self, ties: Sequence[Ties] = ("stable", "expected")) -> tuple[list[str], list[list[object]]]:
        """A header and rows: MAP for each rule about ties, with the interval for the first of them.

        Where only one item is relevant, recall takes the place of precision.
        """
        at = f"@{self.k}" if self.k is not None else ""
        paired = self.relevance == "pairing"
        first, *others = ties
        header = ["direction", "searched", f"MAP{at} {first}", "95 % interval", *(f"MAP{at} {rule}" for rule in others)]
        rows: list[list[object]] = []
        for name, searched, each in self.rows():
            low, high = each.interval.get(first, (math.nan, math.nan))
            interval = "–" if math.isnan(low) else f"{low:.3f}–{high:.3f}"
            row = [name, searched, each.map[first], interval, *(each.map[rule] for rule in others)]
            row.append((each.recall_at if paired else each.precision_at).get(10))
            rows.append([*row, 10 / each.database if paired else each.chance])
        return [*header, "R@10" if paired else "P@10", "chance"], rows

    def _caption(self) -> str:
        return f"{self.bits} bits, {self.queries:,} queries, {self.database:,} items in the database"

    def __repr__(self) -> str:
        return f"{self._caption()}\n{text_table(*self.table())}"

    def _repr_html_(self) -> str:
        return html_table(self._caption(), *self.table())

    def to_frame(self) -> Any:
        """The measures as a pandas DataFrame, one row per direction. Needs pandas."""
        rows = {
            name: {
                "queries": each.queries,
                "database": each.database,
                "chance": each.chance,
                **{f"map_{ties}": value for ties, value in each.map.items()},
                **{f"precision_at_{k}": value for k, value in each.precision_at.items()},
                **{f"recall_at_{k}": value for k, value in each.recall_at.items()},
            }
            for name, each in self.directions.items()
        }
        return data_frame(list(rows.values()), index=list(rows), name="direction")


def arrow(direction: str) -> str:
    """image_to_text as image → text."""
    return direction.replace("_to_", " → ")


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


def _at_json(measure: AtRank) -> dict[str, dict[Ties, float]]:
    return {str(k): dict(values) for k, values in measure.items()}


def _at(record: Mapping[str, Mapping[str, Any]]) -> AtRank:
    return {int(k): {ties: _real(values[ties]) for ties in TIES} for k, values in record.items()}


def _width(direction: DirectionReport) -> float:
    low, high = direction.interval.get("stable", (math.nan, math.nan))
    return 0.0 if math.isnan(low) else high - low


def _number_of(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


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
