"""Trials of a search: one training with some settings, measured on validation items, recorded as a JSON file.

The training items are divided into some to learn from and to search in, some to select by, and some to confirm by.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.data.dataset import Dataset
from dcmh.errors import DataError
from dcmh.evaluation import average_precision_by_direction, encode_sides
from dcmh.methods.dcmh import DCMH
from dcmh.methods.dcmh.recipes import Recipe
from dcmh.util.atomic import write_text
from dcmh.util.formats import read_object

FORMAT = 2
Changes = tuple[tuple[str, float], ...]  # what differs from the defaults; () for the defaults
_QUERIES = ("select", "confirm")  # the parts that serve as queries
MIN_QUERIES = 20  # in each of these two parts


@dataclass(frozen=True)
class Parts:
    """The training items, divided. `database` is what the queries of `select` and `confirm` search."""

    learn: Dataset
    database: Dataset
    select: Dataset
    confirm: Dataset


def divide(train: Dataset, trained_share: float, seed: int) -> Parts:
    """A tenth of the items to select by, a tenth to confirm by, the others to learn from and to search in.

    `trained_share` is the share of training items in the real database. Below 1, some items are excluded from learning,
    so that the database here has the same composition.
    """
    queries = max(MIN_QUERIES, min(1000, len(train) // 10))
    outer = train.split(2 * queries, None, seed)
    order = np.random.default_rng(seed).permutation(len(outer.query))
    others = outer.database
    learn = database = others
    if trained_share < 0.99:
        mixed = np.random.default_rng(seed + 1).permutation(len(others))
        unseen = mixed[: round(0.15 * len(train))]
        learned = mixed[len(unseen) :]
        trained = learned[: round(len(unseen) * trained_share / (1 - trained_share))]
        learn, database = others.take(np.sort(learned)), others.take(np.sort(np.concatenate([unseen, trained])))
    if len(learn) < 2 * MIN_QUERIES:
        raise DataError(f"{len(train):,} training items are too few to choose settings by. Train with the defaults.")
    return Parts(
        learn, database, outer.query.take(np.sort(order[:queries])), outer.query.take(np.sort(order[queries:]))
    )


@dataclass(frozen=True)
class Trial:
    """One training with some settings. `stage` is the share of the full length."""

    changes: Changes
    stage: float
    seed: int = 0

    @property
    def name(self) -> str:
        """The name of its file, without suffix."""
        settings = ",".join(f"{name}={value:g}" for name, value in self.changes) or "defaults"
        return f"{settings}-{self.stage:.3g}-{self.seed}"


@dataclass
class Result:
    """The result of a trial: the average precision of each query in the two parts, averaged over directions."""

    trial: Trial
    epochs: int
    select: NDArray[np.float64]
    confirm: NDArray[np.float64]
    directions: dict[str, float]  # MAP on `select`
    seconds: float

    @property
    def score(self) -> float:
        """MAP on `select`, by which candidates are ranked."""
        return float(self.select.mean())

    @property
    def confirmed(self) -> float:
        """MAP on `confirm`, which is not used for ranking."""
        return float(self.confirm.mean())


class Trials:
    """Trials of one method, each a file in a folder. Files with another `identity` are ignored."""

    def __init__(self, method: DCMH, parts: Parts, folder: Path, identity: str) -> None:
        self.method = method
        self.parts = parts
        self.folder = folder
        self.identity = identity

    def epochs(self, trial: Trial) -> int:
        """The number of iterations of a trial."""
        length = dict(trial.changes).get("length", 1.0)
        return max(1, round(iterations(self.method, self.parts.learn) * length * trial.stage))

    def record(self, trial: Trial) -> dict[str, Any]:
        """The record of a trial, from its file if there is one."""
        return self.read(trial) or self.perform(trial)

    def perform(self, trial: Trial) -> dict[str, Any]:
        """Train, measure, and write the file."""
        changed = {name: value for name, value in trial.changes if name != "length"}
        settings = self.method.parameters | changed
        settings |= {"epochs": self.epochs(trial), "seed": self.method.seed + trial.seed, "validation": 0.0}
        began = time.perf_counter()
        model = DCMH(**settings).fit(self.parts.learn, fine=0)
        trained = time.perf_counter()
        precision = {
            name: _average_precision(model, getattr(self.parts, name), self.parts.database) for name in _QUERIES
        }
        record = {
            "format": FORMAT,
            "identity": self.identity,
            "changes": dict(trial.changes),
            "stage": trial.stage,
            "seed": trial.seed,
            "epochs": settings["epochs"],
            "iteration": _median(model.history_, resting=False),
            "resting": _median(model.history_, resting=True),  # while the image network is frozen; None: it never is
            "training": round(trained - began, 3),
            "measuring": round(time.perf_counter() - trained, 3),
            "directions": {name: round(float(values.mean()), 5) for name, values in precision["select"].items()},
        }
        for name, values in precision.items():
            record[name] = np.mean(list(values.values()), axis=0).round(5).tolist()
        write_text(self.file(trial), json.dumps(record) + "\n")
        return record

    def file(self, trial: Trial) -> Path:
        """The file of a trial."""
        return self.folder / "trials" / f"{trial.name}.json"

    def read(self, trial: Trial) -> dict[str, Any] | None:
        """The record of a finished trial of this search; None if there is none."""
        try:
            record = read_object(self.file(trial))
        except (OSError, ValueError):
            return None
        return record if (record.get("format"), record.get("identity")) == (FORMAT, self.identity) else None


def describe(changes: Changes) -> str:
    """The changes for people, such as: gamma 0.3, length x2."""
    words = [f"length x{value:g}" if name == "length" else f"{name} {value:g}" for name, value in changes]
    return ", ".join(words) or "defaults"


def iterations(method: DCMH, train: Dataset) -> int:
    """The number of iterations that the method would take on these items."""
    if method.epochs is not None:
        return method.epochs
    points = min(int(train.observed(name).sum()) for name in train.modalities)
    return recipe_of(method, train).epochs(points // min(method.points_per_step(len(train)), points))


def recipe_of(method: DCMH, train: Dataset) -> Recipe:
    """The recipe by which the method would learn from these items; it differs if pictures are fine-tuned."""
    return method._recipe({name: method._view(column.kind) for name, column in train.columns.items()})


def _median(history: list[dict[str, Any]], *, resting: bool) -> float | None:
    """Median seconds per iteration; None if there is none."""
    seconds = [row["seconds"] for row in history if row["resting"] == resting]
    return float(np.median(seconds)) if seconds else None


def _average_precision(model: DCMH, query: Dataset, database: Dataset) -> Mapping[str, NDArray[np.float64]]:
    """Average precision of each query in each direction; without labels, 1 / rank of its own item."""
    labelled = query.labels is not None and database.labels is not None
    sides = encode_sides(model, query, database, "labels" if labelled else "pairing")
    return average_precision_by_direction(*sides, model.bits)
