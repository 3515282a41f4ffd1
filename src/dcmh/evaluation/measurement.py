"""Evaluation of a model on a split: every modality as query against every other one as database, and against joint codes.

Relevance is defined by labels; or, without labels, by the pairing: the one relevant item of a query is the query's own in the
other modality.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dcmh import codes
from dcmh.data.dataset import JOINT, Dataset
from dcmh.data.splits import Split
from dcmh.errors import DataError
from dcmh.evaluation.metrics import TIES, Counts, Ties, rank_counts, stable_average_precision
from dcmh.evaluation.metrics.packed import paired_counts, paired_stable
from dcmh.evaluation.metrics.ties import check_k
from dcmh.evaluation.report import DirectionReport, Relevance, Report

KS = (1, 5, 10, 50, 100)  # ranks of precision_at and recall_at


class Model(Protocol):
    """The part of a hashing method that evaluation uses."""

    @property
    def bits(self) -> int:
        """The length of the codes."""
        ...

    @property
    def modalities(self) -> tuple[str, ...]:
        """The names of its modalities."""
        ...

    def encode(self, **columns: Any) -> NDArray[np.int8]:
        """Codes of +1 and -1, shape (items, bits)."""
        ...


@dataclass(frozen=True)
class Side:
    """Packed codes, (n, bytes), of the queries or of the database in one modality, and what defines relevance.

    `labels`, (n, labels): items that share a label are relevant. `items`, (n,), if relevance is by pairing: the query item
    that each code is of, -1 for a code that is of none.
    """

    packed: NDArray[np.uint8]
    labels: NDArray[Any] | None = None
    items: NDArray[np.intp] | None = None


def evaluate(
    model: Model, split: Split, *, k: int | None = None, joint: bool = False, relevance: Relevance = "labels"
) -> Report:
    """Evaluate a model on a split's queries and database, in every direction between its modalities.

    Queries that are in the training set or in the database are an error.

    Parameters
    ----------
    k
        Only the first k ranks count in MAP.
    joint
        Also against the joint codes of the database, from all modalities of each item: "image_to_joint" and so on.
    relevance
        "labels": items that share a label are relevant. "pairing", for data without labels: the queries' own items join
        the database, and the only relevant one is the query's own in the other modality. MAP is then the mean of
        1 / rank. Joint codes are not evaluated this way, since they would contain the query itself.
    """
    _check(model, split, relevance)
    if k is not None:
        check_k(k)
    query, database = encode_sides(model, split.query, split.database, relevance)
    if relevance == "labels":
        size = len(split.database)
        if joint:
            database[JOINT] = _by_labels(model, split.database, model.modalities, "database")
        pairs = _count_labels(split.query, split.database)
        chance, without_relevant = pairs.chance, pairs.without_relevant
    else:
        size = len(split.query) + len(split.database)
        chance, without_relevant = 1 / size, 0
    return Report(
        bits=model.bits,
        queries=len(split.query),
        database=size,
        train=len(split.train),
        chance=chance,
        without_relevant=without_relevant,
        k=k,
        directions={f"{a}_to_{b}": _measure(query[a], database[b], model.bits, k) for a, b in _pairs(query, database)},
        relevance=relevance,
    )


def average_precision_by_direction(
    query: Mapping[str, Side], database: Mapping[str, Side], bits: int
) -> dict[str, NDArray[np.float64]]:
    """Average precision of each query (ties: expected) in every direction, such as "image_to_text"."""
    return {
        f"{a}_to_{b}": _rank(query[a], database[b], bits).average_precision(ties="expected")
        for a, b in _pairs(query, database)
    }


def encode_sides(
    model: Model, query: Dataset, database: Dataset, relevance: Relevance
) -> tuple[dict[str, Side], dict[str, Side]]:
    """The queries and the database in each modality, each with the items observed in it."""
    if relevance == "labels":
        return (
            {name: _by_labels(model, query, [name], "query") for name in model.modalities},
            {name: _by_labels(model, database, [name], "database") for name in model.modalities},
        )
    rows = {name: _rows_with(query, [name], "query") for name in model.modalities}
    for a, b in permutations(rows, 2):
        if not len(np.intersect1d(rows[a], rows[b])):
            raise DataError(
                f"No query has both {a!r} and {b!r}, so none has its own item to find. Take a split that has some."
            )
    queries, pools = {}, {}
    for name, items in rows.items():
        others = np.flatnonzero(database.observed(name))
        own = _packed(model, query, [name], items)
        packed = [_packed(model, database, [name], others), own] if len(others) else [own]
        queries[name] = Side(own, items=items)
        pools[name] = Side(np.concatenate(packed), items=np.concatenate([np.full(len(others), -1, np.intp), items]))
    return queries, pools


def _pairs(query: Iterable[str], database: Iterable[str]) -> list[tuple[str, str]]:
    """Each modality against every other one, then against what only the database has."""
    names = list(query)
    return [*permutations(names, 2), *((a, b) for b in database if b not in names for a in names)]


def _check(model: Model, split: Split, relevance: Relevance) -> None:
    if len(model.modalities) < 2:
        raise DataError(f"Evaluation needs two or more modalities, the model has only {', '.join(model.modalities)}.")
    for name, part in (("queries", split.query), ("database", split.database)):
        if part.labels is None and relevance == "labels":
            raise DataError(
                f"The {name} have no labels, so relevance is undefined. "
                'Evaluate on data with labels, or by the pairing: relevance="pairing".'
            )
    queries = set(split.query.ids)
    for part, what in ((split.train, "were trained on"), (split.database, "are in the database as well")):
        both = sorted(queries.intersection(part.ids))
        if both:
            raise DataError(
                f"{len(both):,} of {len(queries):,} queries {what}, {both[0]!r} for one, so the result is meaningless. "
                "Take a split whose queries are held out, such as Dataset.split gives."
            )


def _by_labels(model: Model, part: Dataset, modalities: Sequence[str], name: str) -> Side:
    """The items that have one of these modalities, encoded from all of these that they have."""
    rows = _rows_with(part, modalities, name)
    return Side(_packed(model, part, modalities, rows), labels=np.asarray(part.labels)[rows])


def _rows_with(part: Dataset, modalities: Sequence[str], name: str) -> NDArray[np.intp]:
    rows = np.flatnonzero(np.any([part.observed(modality) for modality in modalities], axis=0))
    if not len(rows):
        names = " or ".join(map(repr, modalities))
        raise DataError(f"No item of the {name} part has the modality {names}. Take a split that has some.")
    return rows


def _packed(model: Model, part: Dataset, modalities: Sequence[str], rows: NDArray[np.intp]) -> NDArray[np.uint8]:
    columns = {name: part[name] if len(rows) == len(part) else part[name].take(rows) for name in modalities}
    return codes.pack(model.encode(**columns))


def _count_labels(query: Dataset, database: Dataset) -> Counts:
    # With codes that are all equal the whole database is one tie, which leaves the counts of relevant pairs.
    a, b = (np.zeros((len(part), 1), np.uint8) for part in (query, database))
    return rank_counts(a, b, np.asarray(query.labels), np.asarray(database.labels), 1)


def _rank(query: Side, database: Side, bits: int) -> Counts:
    if query.labels is not None and database.labels is not None:
        return rank_counts(query.packed, database.packed, query.labels, database.labels, bits)
    return paired_counts(*_pairing(query, database), bits)


def _pairing(query: Side, database: Side) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.intp]]:
    """The queries whose own item is in the database; the database; and the position of each query's own item in it."""
    assert query.items is not None
    assert database.items is not None
    own = np.flatnonzero(database.items >= 0)
    known = np.isin(query.items, database.items[own])
    return query.packed[known], database.packed, own[np.searchsorted(database.items[own], query.items[known])]


def _measure(query: Side, database: Side, bits: int, k: int | None) -> DirectionReport:
    counts = _rank(query, database, bits)
    if query.labels is not None and database.labels is not None:
        sides = query.packed, database.packed, query.labels, database.labels, bits
        stable = stable_average_precision(*sides, k=k, counts=counts)
    else:
        stable = paired_stable(*_pairing(query, database), k=k)
    average: dict[Ties, float] = {
        ties: float(stable.mean()) if ties == "stable" else counts.mean_average_precision(ties=ties, k=k)
        for ties in TIES
    }
    return DirectionReport(
        queries=counts.queries,
        database=counts.database,
        chance=counts.chance,
        without_relevant=counts.without_relevant,
        map=average,
        precision_at=dict(zip(KS, counts.precision_at(KS).tolist(), strict=True)),
        recall_at=dict(zip(KS, counts.recall_at(KS).tolist(), strict=True)),
        lookup=counts.lookup(),
        points=counts.points.sum(axis=0, dtype=np.int64),
        relevant=counts.relevant.sum(axis=0, dtype=np.int64),
    )
