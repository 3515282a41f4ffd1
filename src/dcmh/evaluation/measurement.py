"""Measure a model on a split: every modality as query against every other one as database, and against joint codes.

What is relevant is said by labels; without any, by the pairing: the one relevant item is the query's own in another modality.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dcmh import codes
from dcmh.data.dataset import JOINT
from dcmh.errors import DataError
from dcmh.evaluation.metrics import TIES, Counts, Ties, rank_counts, stable_average_precision
from dcmh.evaluation.metrics.paired import paired_counts, paired_stable
from dcmh.evaluation.metrics.ties import check_k
from dcmh.evaluation.report import DirectionReport, Relevance, Report

KS = (1, 5, 10, 50, 100)


class Part(Protocol):
    """What evaluation needs of a `Dataset`."""

    @property
    def ids(self) -> Sequence[str]: ...

    @property
    def labels(self) -> Any: ...

    def __getitem__(self, name: str, /) -> Any: ...

    def __len__(self) -> int: ...

    def observed(self, name: str, /) -> NDArray[np.bool_]: ...


class Split(Protocol):
    """Three parts of a data set."""

    @property
    def query(self) -> Part: ...

    @property
    def database(self) -> Part: ...

    @property
    def train(self) -> Part: ...


class Model(Protocol):
    """What evaluation needs of a hashing method."""

    @property
    def bits(self) -> int: ...

    @property
    def modalities(self) -> tuple[str, ...]: ...

    def encode(self, **columns: Any) -> NDArray[np.int8]: ...


def evaluate(
    model: Model, split: Split, *, k: int | None = None, joint: bool = False, relevance: Relevance = "labels"
) -> Report:
    """Measure a model on a split's queries and database, in every direction between its modalities.

    Refuses queries that are in the training set or in the database.

    Parameters
    ----------
    k
        Only the first k ranks count in MAP.
    joint
        Also against the joint codes of the database, each from all that the item has: "image_to_joint" and the like.
    relevance
        "labels": what shares a label is relevant. "pairing", for data without labels: the queries' own items join the
        database, and each query wants its own in the other modality, among all. MAP is then the mean of 1 / rank. Joint
        codes are not measured so, as they would hold the query itself.
    """
    _check(model, split, relevance)
    if k is not None:
        check_k(k)
    if relevance == "pairing":
        return _by_pairing(model, split, k)
    query = {name: _encode(model, split.query, [name], "query") for name in model.modalities}
    database = {name: _encode(model, split.database, [name], "database") for name in model.modalities}
    pairs = list(permutations(model.modalities, 2))
    if joint:
        database[JOINT] = _encode(model, split.database, list(model.modalities), "database")
        pairs += [(name, JOINT) for name in model.modalities]
    everything = _count_labels(split.query.labels, split.database.labels)
    return Report(
        bits=model.bits,
        queries=len(split.query),
        database=len(split.database),
        train=len(split.train),
        chance=everything.chance,
        without_relevant=everything.without_relevant,
        k=k,
        directions={f"{a}_to_{b}": _direction(query[a], database[b], model.bits, k) for a, b in pairs},
    )


@dataclass(frozen=True)
class _Encoded:
    packed: NDArray[np.uint8]
    labels: NDArray[Any]


def _check(model: Model, split: Split, relevance: Relevance) -> None:
    if len(model.modalities) < 2:
        raise DataError(f"Evaluation needs two modalities or more, the model has only {', '.join(model.modalities)}.")
    for name, part in (("queries", split.query), ("database", split.database)):
        if part.labels is None and relevance == "labels":
            raise DataError(
                f"The {name} have no labels, so nothing says what is relevant. "
                'Evaluate on data with labels, or by the pairing: relevance="pairing".'
            )
    queries = set(split.query.ids)
    for part, what in ((split.train, "were trained on"), (split.database, "are in the database as well")):
        both = sorted(queries.intersection(part.ids))
        if both:
            raise DataError(
                f"{len(both):,} of {len(queries):,} queries {what}, {both[0]!r} for one, so the result means nothing. "
                "Take a split whose queries are held out, as Dataset.split gives."
            )


def _encode(model: Model, part: Part, modalities: Sequence[str], name: str) -> _Encoded:
    """The codes of the items that have one of these modalities, from all of these that they have."""
    rows = _rows_with(part, modalities, name)
    return _Encoded(_packed(model, part, modalities, rows), np.asarray(part.labels)[rows])


def _rows_with(part: Part, modalities: Sequence[str], name: str) -> NDArray[np.intp]:
    rows = np.flatnonzero(np.any([part.observed(modality) for modality in modalities], axis=0))
    if not len(rows):
        said = " or ".join(map(repr, modalities))
        raise DataError(f"No item of the {name} part has the modality {said}. Take a split that has some.")
    return rows


def _packed(model: Model, part: Part, modalities: Sequence[str], rows: NDArray[np.intp]) -> NDArray[np.uint8]:
    columns = {name: part[name] if len(rows) == len(part) else part[name].take(rows) for name in modalities}
    return codes.pack(model.encode(**columns))


def _count_labels(query_labels: NDArray[Any], database_labels: NDArray[Any]) -> Counts:
    # Codes that are all alike put the whole database into one heap, which leaves the counts of relevant pairs.
    query, database = (np.zeros((len(labels), 1), np.uint8) for labels in (query_labels, database_labels))
    return rank_counts(query, database, query_labels, database_labels, 1)


def _direction(query: _Encoded, database: _Encoded, bits: int, k: int | None) -> DirectionReport:
    sides = query.packed, database.packed, query.labels, database.labels, bits
    counts = rank_counts(*sides)
    precision: dict[Ties, float] = {}
    for ties in TIES:
        if ties == "stable":
            precision[ties] = float(stable_average_precision(*sides, k=k, counts=counts).mean())
        else:
            precision[ties] = counts.mean_average_precision(ties=ties, k=k)
    return _report(counts, precision)


def _report(counts: Counts, precision: dict[Ties, float]) -> DirectionReport:
    return DirectionReport(
        queries=counts.queries,
        database=counts.database,
        chance=counts.chance,
        without_relevant=counts.without_relevant,
        map=precision,
        precision_at=dict(zip(KS, counts.precision_at(KS).tolist(), strict=True)),
        recall_at=dict(zip(KS, counts.recall_at(KS).tolist(), strict=True)),
        lookup=counts.lookup(),
        points=counts.points.sum(axis=0, dtype=np.int64),
        relevant=counts.relevant.sum(axis=0, dtype=np.int64),
    )


def _by_pairing(model: Model, split: Split, k: int | None) -> Report:
    """Each query wants its own item; the database is what it was, with the queries' items after it."""
    encoded = {}
    for name in model.modalities:
        mine, others = _rows_with(split.query, [name], "query"), np.flatnonzero(split.database.observed(name))
        parts = [_packed(model, split.query, [name], mine)]
        if len(others):
            parts.append(_packed(model, split.database, [name], others))
        encoded[name] = mine, parts
    directions = {}
    for a, b in permutations(model.modalities, 2):
        (rows_a, (asked, *_)), (rows_b, (own, *others_)) = encoded[a], encoded[b]
        both = np.intersect1d(rows_a, rows_b)
        if not len(both):
            raise DataError(
                f"No query has both {a!r} and {b!r}, so none has its own to find. Take a split that has some."
            )
        pool = np.concatenate([*others_, own])
        wanted = len(pool) - len(own) + np.searchsorted(rows_b, both)
        directions[f"{a}_to_{b}"] = _paired(asked[np.searchsorted(rows_a, both)], pool, wanted, model.bits, k)
    pool_size = len(split.query) + len(split.database)
    return Report(
        bits=model.bits,
        queries=len(split.query),
        database=pool_size,
        train=len(split.train),
        chance=1 / pool_size,
        without_relevant=0,
        k=k,
        directions=directions,
        relevance="pairing",
    )


def _paired(
    query: NDArray[np.uint8], pool: NDArray[np.uint8], wanted: NDArray[np.intp], bits: int, k: int | None
) -> DirectionReport:
    counts = paired_counts(query, pool, wanted, bits)
    precision: dict[Ties, float] = {"stable": float(paired_stable(query, pool, wanted, k=k).mean())}
    precision |= {ties: counts.mean_average_precision(ties=ties, k=k) for ties in TIES if ties != "stable"}
    return _report(counts, precision)
