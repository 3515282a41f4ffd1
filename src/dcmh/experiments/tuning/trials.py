"""One training with some settings, measured on validation items; what came of it is a JSON file."""

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
from dcmh.evaluation import average_precision_by_direction, encode_sides
from dcmh.experiments.tuning.parts import Parts
from dcmh.methods.dcmh import DCMH
from dcmh.methods.dcmh.recipes import Recipe
from dcmh.util.atomic import write_text

FORMAT = 2
Changes = tuple[tuple[str, float], ...]  # what differs from the defaults; () for the defaults
_QUERIES = ("select", "confirm")  # the parts that search the database


@dataclass(frozen=True)
class Trial:
    """One training with some settings. `stage` is the share of the length."""

    changes: Changes
    stage: float
    seed: int = 0

    @property
    def name(self) -> str:
        said = ",".join(f"{name}={value:g}" for name, value in self.changes) or "defaults"
        return f"{said}-{self.stage:.3g}-{self.seed}"


@dataclass
class Result:
    """What a trial gave: for each query of the two parts the mean over directions of its average precision."""

    trial: Trial
    epochs: int
    select: NDArray[np.float64]
    confirm: NDArray[np.float64]
    directions: dict[str, float]  # MAP on `select`
    seconds: float

    @property
    def score(self) -> float:
        """What candidates are ranked by: MAP on the items that select."""
        return float(self.select.mean())

    @property
    def confirmed(self) -> float:
        """MAP on the items that confirm, which rank nothing."""
        return float(self.confirm.mean())


class Trials:
    """Trials of one method, each a file in a folder. Files of another `identity` are not taken for one's own."""

    def __init__(self, method: DCMH, parts: Parts, folder: Path, identity: str) -> None:
        self.method = method
        self.parts = parts
        self.folder = folder
        self.identity = identity

    def epochs(self, trial: Trial) -> int:
        length = dict(trial.changes).get("length", 1.0)
        return max(1, round(iterations(self.method, self.parts.learn) * length * trial.stage))

    def record(self, trial: Trial) -> dict[str, Any]:
        """What a trial gave, from its file where there is one."""
        return self.read(trial) or self.perform(trial)

    def perform(self, trial: Trial) -> dict[str, Any]:
        """Train, measure, write the file."""
        changed = {name: value for name, value in trial.changes if name != "length"}
        settings = self.method.parameters | changed
        settings |= {"epochs": self.epochs(trial), "seed": self.method.seed + trial.seed, "validation": 0.0}
        began = time.perf_counter()
        model = DCMH(**settings).fit(self.parts.learn, fine=0)
        trained = time.perf_counter()
        measured = {name: _per_query(model, getattr(self.parts, name), self.parts.database) for name in _QUERIES}
        record = {
            "format": FORMAT,
            "identity": self.identity,
            "changes": dict(trial.changes),
            "stage": trial.stage,
            "seed": trial.seed,
            "epochs": settings["epochs"],
            "iteration": _median(model.history_, resting=False),
            "resting": _median(model.history_, resting=True),  # the same while an image network rests; None: none does
            "training": round(trained - began, 3),
            "measuring": round(time.perf_counter() - trained, 3),
            "directions": {name: round(float(values.mean()), 5) for name, values in measured["select"].items()},
        }
        for name, values in measured.items():
            record[name] = np.mean(list(values.values()), axis=0).round(5).tolist()
        write_text(self.file(trial), json.dumps(record) + "\n")
        return record

    def file(self, trial: Trial) -> Path:
        return self.folder / "trials" / f"{trial.name}.json"

    def read(self, trial: Trial) -> dict[str, Any] | None:
        """What a finished trial of this very search wrote."""
        try:
            record = json.loads(self.file(trial).read_text(encoding="utf-8"))
            same = record["format"] == FORMAT and record["identity"] == self.identity
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return dict(record) if same else None


def spelt(changes: Changes) -> str:
    """Such as: gamma 0.3, length x2."""
    said = [f"length x{value:g}" if name == "length" else f"{name} {value:g}" for name, value in changes]
    return ", ".join(said) or "defaults"


def iterations(method: DCMH, train: Dataset) -> int:
    """How many iterations the method would take on these items."""
    if method.epochs is not None:
        return method.epochs
    fewest = min(int(train.observed(name).sum()) for name in train.modalities)
    return recipe_of(method, train).epochs(fewest // min(method.points_per_step(len(train)), fewest))


def recipe_of(method: DCMH, train: Dataset) -> Recipe:
    """The recipe by which the method would learn from these items: another one where pictures are fine-tuned."""
    return method._recipe({name: method._view(column.kind) for name, column in train.columns.items()})


def _median(history: list[dict[str, Any]], *, resting: bool) -> float | None:
    """Seconds of an iteration."""
    found = [row["seconds"] for row in history if row["resting"] == resting]
    return float(np.median(found)) if found else None


def _per_query(model: DCMH, query: Dataset, database: Dataset) -> Mapping[str, NDArray[np.float64]]:
    """Average precision of each query in each direction; without labels, 1 / rank of its own item."""
    labelled = query.labels is not None and database.labels is not None
    sides = encode_sides(model, query, database, "labels" if labelled else "pairing")
    return average_precision_by_direction(*sides, model.bits)
