"""Evaluation of a model on a split: every modality as query against every other one as database, and against joint codes.

Relevance is defined by labels; or, without labels, by the pairing: the only relevant item of a query is its own in the other
modality.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dcmh import codes
from dcmh.data.dataset import JOINT, Dataset
from dcmh.data.splits import Split, unseen_rows
from dcmh.errors import DataError, ParameterError
from dcmh.evaluation.metrics import (
    TIES,
    Counts,
    Ties,
    prediction_interval,
    rank_counts,
    rank_ndcg,
    stable_average_precision,
)
from dcmh.evaluation.metrics.packed import paired_counts, paired_ranks, paired_stable
from dcmh.evaluation.report import AtRank, DirectionReport, Relevance, Report
from dcmh.util.checks import whole_number

KS = (1, 5, 10, 50, 100)  # ranks of precision_at and recall_at
MAP_KS = (50, 5000)  # as papers print it
NDCG_KS = (10, 100, 1000)
OWN_KS = (1, 5, 10)  # ranks of own_recall_at


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
    that each code belongs to, -1 for none. `rows`, (n,): the row of each item among the queries or in the database, -1 for a
    query in the database.
    """

    packed: NDArray[np.uint8]
    labels: NDArray[Any] | None = None
    items: NDArray[np.intp] | None = None
    rows: NDArray[np.intp] | None = None

    def within(self, rows: NDArray[np.intp]) -> Side:
        """Only these rows of the database, and the queries in it."""
        assert self.rows is not None
        within = np.flatnonzero((self.rows < 0) | np.isin(self.rows, rows))
        values = (self.packed, self.labels, self.items, self.rows)
        return Side(*(None if value is None else value[within] for value in values))  # type: ignore[arg-type]


def evaluate(
    model: Model,
    split: Split,
    *,
    k: int | None = None,
    joint: bool = False,
    relevance: Relevance = "labels",
    trained: Collection[str] | None = None,
) -> Report:
    """Evaluate a model on a split's queries and database, in every direction between its modalities.

    The items of the database that were not trained on are also measured on their own, unless all or none of them were. Queries
    that are in the training set or in the database are an error.

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
    trained
        The ids of the items that the model was trained on. Default: the training items of the split.
    """
    if isinstance(split, Dataset) or not hasattr(split, "query"):
        raise ParameterError(
            f"evaluate takes a fitted model and a Split, not a {type(split).__name__}.",
            hint="Write data.split(queries=…), and fit the model on the split's .train.",
        )
    trained = split.train.ids if trained is None else trained
    _check(model, split, relevance, trained)
    if k is not None:
        whole_number("k", k, 1)
    query, database = encode_sides(model, split.query, split.database, relevance)
    if joint and relevance == "labels":
        database[JOINT] = _by_labels(model, split.database, model.modalities, "database")
    unseen = unseen_rows(split.database.ids, trained)
    seen = len(split.database) - len(unseen)
    report = _report(model, split.query, split.database, query, database, k)
    report = replace(report, train=len(trained), seen=seen)
    if not seen or not len(unseen):
        return report
    unseen_sides = {name: side.within(unseen) for name, side in database.items()}
    unseen_sides = {name: side for name, side in unseen_sides.items() if len(side.packed)}
    unseen_report = _report(model, split.query, split.database.take(unseen), query, unseen_sides, k)
    return replace(report, unseen=replace(unseen_report, train=len(trained), seen=0))


def _report(
    model: Model,
    queries: Dataset,
    items: Dataset,
    query: Mapping[str, Side],
    database: Mapping[str, Side],
    k: int | None,
) -> Report:
    """The measures of every direction between these sides."""
    labels: int | None = None
    relevance: Relevance = "pairing"
    size = len(queries) + len(items)
    chance, without_relevant = 1 / size, 0
    if next(iter(query.values())).labels is not None:
        relevance, size = "labels", len(items)
        pairs = _count_labels(queries, items)
        chance, without_relevant = pairs.chance, pairs.without_relevant
        labels = int(np.asarray(queries.labels).any(axis=0).sum())
    return Report(
        bits=model.bits,
        queries=len(queries),
        database=size,
        train=0,
        chance=chance,
        without_relevant=without_relevant,
        k=k,
        directions={
            f"{a}_to_{b}": _measure(query[a], database[b], query.get(b), model.bits, k)
            for a, b in _pairs(query, database)
            if b in database
        },
        relevance=relevance,
        labels=labels,
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
        stored = np.flatnonzero(database.observed(name))
        own = _packed(model, query, [name], items)
        packed = [_packed(model, database, [name], stored), own] if len(stored) else [own]
        queries[name] = Side(own, items=items, rows=items)
        pools[name] = Side(
            np.concatenate(packed),
            items=np.concatenate([np.full(len(stored), -1, np.intp), items]),
            rows=np.concatenate([stored, np.full(len(items), -1, np.intp)]),
        )
    return queries, pools


def _pairs(query: Iterable[str], database: Iterable[str]) -> list[tuple[str, str]]:
    """Each modality against every other one, then against what only the database has."""
    names = list(query)
    return [*permutations(names, 2), *((a, b) for b in database if b not in names for a in names)]


def _check(model: Model, split: Split, relevance: Relevance, trained: Collection[str]) -> None:
    if len(model.modalities) < 2:
        raise DataError(f"Evaluation needs two or more modalities, the model has only {', '.join(model.modalities)}.")
    for name, part in (("queries", split.query), ("database", split.database)):
        if part.labels is None and relevance == "labels":
            raise DataError(
                f"The {name} have no labels, so relevance is undefined. "
                'Evaluate on data with labels, or by the pairing: relevance="pairing".'
            )
    queries = set(split.query.ids)
    for ids, what in ((trained, "were trained on"), (split.database.ids, "are in the database as well")):
        shared = sorted(queries.intersection(ids))
        if shared:
            raise DataError(
                f"{len(shared):,} of {len(queries):,} queries {what}, such as {shared[0]!r}, so the result is meaningless. "
                "Take a split whose queries are held out, such as Dataset.split gives."
            )


def _by_labels(model: Model, part: Dataset, modalities: Sequence[str], name: str) -> Side:
    """The items that have one of these modalities, encoded from all of these that they have."""
    rows = _rows_with(part, modalities, name)
    return Side(_packed(model, part, modalities, rows), labels=np.asarray(part.labels)[rows], rows=rows)


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


def _measure(query: Side, database: Side, own: Side | None, bits: int, k: int | None) -> DirectionReport:
    """All measures of one direction; `own` is the queries in the modality of the database, if they have it."""
    counts = _rank(query, database, bits)
    precision = {ties: _average_precision(query, database, counts, bits, ties, k) for ties in TIES}
    bounds = prediction_interval(np.stack(list(precision.values()), axis=1)).T
    map_at: AtRank = {}
    for rank in MAP_KS if k is None else ():
        is_whole = rank >= counts.database  # the whole ranking
        map_at[rank] = {
            ties: _mean(precision[ties] if is_whole else _average_precision(query, database, counts, bits, ties, rank))
            for ties in TIES
        }
    ndcg_at: AtRank = {}
    if query.labels is not None and database.labels is not None:
        ndcg = rank_ndcg(query.packed, database.packed, query.labels, database.labels, bits, NDCG_KS)
        ndcg_at = {rank: {ties: _mean(ndcg[ties][:, i]) for ties in TIES} for i, rank in enumerate(NDCG_KS)}
    return DirectionReport(
        queries=counts.queries,
        database=counts.database,
        chance=counts.chance,
        without_relevant=counts.without_relevant,
        map={ties: _mean(values) for ties, values in precision.items()},
        precision_at=dict(zip(KS, counts.precision_at(KS).tolist(), strict=True)),
        recall_at=dict(zip(KS, counts.recall_at(KS).tolist(), strict=True)),
        lookup=counts.lookup(),
        points=counts.points.sum(axis=0, dtype=np.int64),
        relevant=counts.relevant.sum(axis=0, dtype=np.int64),
        interval={ties: (float(low), float(high)) for ties, (low, high) in zip(TIES, bounds, strict=True)},
        map_at=map_at,
        ndcg_at=ndcg_at,
        own_recall_at=_own_recall(query, database, own, bits),
    )


def _average_precision(
    query: Side, database: Side, counts: Counts, bits: int, ties: Ties, k: int | None
) -> NDArray[np.float64]:
    """Average precision of each query over the first k ranks."""
    if ties != "stable":
        return counts.average_precision(ties=ties, k=k)
    if query.labels is not None and database.labels is not None:
        sides = query.packed, database.packed, query.labels, database.labels, bits
        return stable_average_precision(*sides, k=k, counts=counts)
    return paired_stable(*_pairing(query, database), k=k)


def _own_recall(query: Side, database: Side, own: Side | None, bits: int) -> AtRank:
    """The share of queries whose own item in the other modality is among the first k, under each rule for ties."""
    if own is None or query.rows is None or own.rows is None:
        return {}
    if database.items is not None:
        pairing = _pairing(query, database)
    else:
        known = np.isin(query.rows, own.rows)
        if not known.any():
            return {}
        position = len(database.packed) + np.searchsorted(own.rows, query.rows[known])
        pairing = query.packed[known], np.concatenate([database.packed, own.packed]), position
    counts, ranks = paired_counts(*pairing, bits), paired_ranks(*pairing)
    return {
        k: {
            ties: _mean(ranks <= k) if ties == "stable" else float(counts.recall_at([k], ties=ties)[0]) for ties in TIES
        }
        for k in OWN_KS
    }


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean())
