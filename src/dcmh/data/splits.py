"""Splits into query, database and training items: drawn with a seed, saved by id."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import DataError
from dcmh.util.atomic import write_text
from dcmh.util.checks import whole_number
from dcmh.util.formats import check_format, check_types, read_object, readable

if TYPE_CHECKING:
    from dcmh.data.dataset import Dataset

FORMAT = 1
_CHANGED = (
    "The data has changed since the split {} was made: new items join the database, so results cannot be compared with "
    "those in the model's report."
)


@dataclass(frozen=True, eq=False)
class Split:
    """Three parts of a data set. Queries are never in the database; training items are part of it, as in the paper.

    `query_rows`, `database_rows` and `train_rows` are rows of the whole data set, ascending. `seed` is None for a split
    that came with the data. `fingerprint` is that of the whole data set when the split was made.
    """

    query: Dataset
    database: Dataset
    train: Dataset
    query_rows: NDArray[np.intp]
    database_rows: NDArray[np.intp]
    train_rows: NDArray[np.intp]
    seed: int | None
    fingerprint: str
    notes: tuple[str, ...] = ()

    def to_text(self) -> str:
        """The ids of query and training items as JSON; the database is the rest."""
        record = {
            "format": FORMAT,
            "seed": self.seed,
            "data": self.fingerprint,
            "query": self.query.ids,
            "train": self.train.ids,
        }
        return json.dumps(record, ensure_ascii=False, indent=1)

    def save(self, path: Path | str) -> None:
        """Write `to_text` to a file, atomically."""
        write_text(path, self.to_text())

    @classmethod
    def load(cls, path: Path | str, data: Dataset, *, without_gone: bool = False) -> Split:
        """Find the items of a saved split in the data. New items join the database.

        Items of the split that are no longer in the data are an error, unless `without_gone` is set: then they are left
        out, with a note.
        """
        path = Path(path)
        hint = "Save one with split.save(path)."
        if not path.exists():
            raise DataError(f"Split {path} does not exist.", which=path, hint=hint)
        with readable(path, what="{path} is not a split of dcmh ({reason}).", hint=hint):
            record = read_object(path)
            check_format(record["format"], FORMAT, path, DataError)
            seed, fingerprint = record["seed"], record["data"]
            check_types(record, query=list, train=list)
            query, train = ([str(name) for name in record[part]] for part in ("query", "train"))
        row_of = {name: row for row, name in enumerate(data.ids)}
        present = [[name for name in names if name in row_of] for names in (query, train)]
        gone = [name for name in [*query, *train] if name not in row_of]
        if gone and not (without_gone and all(present)):
            raise DataError(
                f"{len(set(gone)):,} items of the split {path} are not in the data, the first is {gone[0]!r}. "
                f"Use the data that the split was made from, or make a new split."
            )
        notes: tuple[str, ...] = () if fingerprint == data.fingerprint() else (_CHANGED.format(path),)
        if gone:
            notes += (
                f"{len(query) - len(present[0]):,} of its {len(query):,} queries and {len(train) - len(present[1]):,} of its "
                f"{len(train):,} training items are gone from the data, and left out.",
            )
        query_rows, train_rows = ([row_of[name] for name in names] for names in present)
        return _split(data, query_rows, train_rows, seed, notes)


def unseen_rows(database: Sequence[str], train: Iterable[str]) -> NDArray[np.intp]:
    """The rows of the database, given by ids, that are not among the training items."""
    trained = set(train)
    return np.array([row for row, name in enumerate(database) if name not in trained], np.intp)


def make_split(data: Dataset, queries: int, train: int | None, seed: int) -> Split:
    """Draw queries from the items that have every modality and, where there are labels, at least one label.

    The other items are the database; `train` of them, or all for None, are the training items. Items that lack a
    modality can therefore be in the database and the training set, but not among the queries. For the same seed a
    smaller training set is part of a larger one.
    """
    whole_number("queries", queries, 1)
    can_query = data.complete()
    if data.labels is not None:
        _check_dissimilar(data.labels)
        can_query &= data.labels.any(axis=1)
    if queries > can_query.sum():
        raise DataError(
            f"{queries:,} queries were requested, but only {can_query.sum():,} of {len(data):,} items can be one "
            f"(every modality{'' if data.labels is None else ', at least one label'}). Ask for fewer queries."
        )
    if train is not None:
        whole_number("train", train, 1)
    if len(data) - queries < (train or 1):
        raise DataError(
            f"{queries:,} queries and {train or 1:,} training items need {queries + (train or 1):,} items; "
            f"there are {len(data):,}. Ask for fewer."
        )
    generator = np.random.default_rng(seed)
    query_rows = generator.permutation(np.flatnonzero(can_query))[:queries]
    database_rows = np.setdiff1d(np.arange(len(data)), query_rows)
    train_rows = database_rows if train is None else generator.permutation(database_rows)[:train]
    return _split(data, query_rows, train_rows, seed)


def split_given(data: Dataset) -> Split:
    """The split that came with the data: a `split` column, or separate arrays in a .mat file.

    If no item is marked as train, the whole database is the training set.
    """
    if data.parts is None:
        raise DataError("The data comes without a split. Draw one: data.split(queries=…, train=…, seed=0).")
    parts = np.array(data.parts)
    query_rows = np.flatnonzero(parts == "query")
    train_rows = np.flatnonzero(parts == "train")
    if len(query_rows) in (0, len(data)):
        raise DataError(
            f"The split of the data marks {len(query_rows):,} of {len(data):,} items as query. "
            f"Mark some, not all, or draw a split: data.split(queries=…)."
        )
    if data.labels is not None:
        _check_dissimilar(data.labels)
    return _split(data, query_rows, train_rows if len(train_rows) else np.flatnonzero(parts != "query"), None)


def _split(
    data: Dataset,
    query: Sequence[int] | NDArray[np.intp],
    train: Sequence[int] | NDArray[np.intp],
    seed: int | None,
    notes: tuple[str, ...] = (),
) -> Split:
    query_rows = np.unique(np.asarray(query, np.intp))
    train_rows = np.unique(np.asarray(train, np.intp))
    if np.intersect1d(query_rows, train_rows).size:
        raise DataError("The split has items that are both query and train. Make a new split.")
    database_rows = np.setdiff1d(np.arange(len(data)), query_rows)
    return Split(
        query=data.take(query_rows),
        database=data.take(database_rows),
        train=data.take(train_rows),
        query_rows=query_rows,
        database_rows=database_rows,
        train_rows=train_rows,
        seed=seed,
        fingerprint=data.fingerprint(),
        notes=notes,
    )


def _check_dissimilar(labels: NDArray[np.uint8]) -> None:
    if labels.any(axis=0).sum() < 2 or labels.all(axis=0).any():
        raise DataError(
            "The labels do not distinguish items: only one is in use, or all items share one. "
            "Give labels that distinguish items, or none."
        )
