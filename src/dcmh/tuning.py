"""Settings of DCMH chosen on validation items: successive halving over gamma, eta, learning rate, length and dropout.

Only training items are used, never the queries. A tenth of them (`select`) ranks the candidates, another tenth (`confirm`)
has the last word, and the others are learned from. Three stages train for a quarter, half and the whole length:

1. the defaults, and candidates that change one setting; these also give the curves over gamma and over eta,
2. the defaults, the best of these, and the one that takes from each setting the value that did best,
3. the defaults and the best, each with two seeds. The best is chosen if it is better than the defaults on `confirm` by
   twice the standard error of the difference, query by query. Otherwise the defaults stay.

The defaults are in every stage. Each trial is one JSON file, so that an interrupted search goes on; its time counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh import __version__, codes, metrics
from dcmh.data.dataset import Dataset
from dcmh.errors import DataError
from dcmh.files import write_text
from dcmh.methods.dcmh import DCMH
from dcmh.metrics.paired import paired_counts

FORMAT = 1
STAGES = (0.25, 0.5, 1.0)  # of the length
BEST = 3  # candidates that stage 2 takes from stage 1
SEEDS = (0, 1)  # added to the method's, in stage 3
FEWEST = 20  # queries in each of the two parts
SURE = 2.0  # standard errors

# What each setting is tried at, besides its default; those that matter more come first. `length` multiplies the iterations.
_TRIED: list[tuple[str, float]] = [
    ("gamma", 0.3),
    ("eta", 0.3),
    ("gamma", 3.0),
    ("eta", 3.0),
    ("length", 2.0),
    ("learning_rate", 0.3),
    ("dropout", 0.3),
    ("gamma", 0.1),
    ("eta", 0.1),
    ("gamma", 10.0),
    ("eta", 10.0),
    ("learning_rate", 3.0),
    ("dropout", 0.7),
    ("length", 0.5),
]
_FACTORS = ("gamma", "eta", "learning_rate")  # tried at so many times their default

Changes = tuple[tuple[str, float], ...]  # what differs from the defaults; () for the defaults
Progress = Callable[[float, str], None]  # seconds spent, what now


@dataclass(frozen=True)
class Parts:
    """The training items, divided. `database` is what the two sets of queries search."""

    learn: Dataset
    database: Dataset
    select: Dataset
    confirm: Dataset


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
        return float(self.select.mean())


@dataclass
class Outcome:
    """The trials in order, what was chosen, and why."""

    results: list[Result]
    chosen: Changes
    verdict: str
    gain: float | None = None  # on `confirm`, over the defaults
    error: float | None = None
    spent: float = 0.0
    epochs: int = 0  # of the chosen settings, on all training items
    sizes: dict[str, int] = field(default_factory=dict)


def divide(train: Dataset, trained_share: float, seed: int) -> Parts:
    """A tenth to select, a tenth to confirm, the others to learn from and to be found.

    `trained_share` is the share of training items in the real database. Below 1, some items are kept from learning, so
    that the database here is made up alike.
    """
    each = max(FEWEST, min(1000, len(train) // 10))
    outer = train.split(2 * each, None, seed)
    order = np.random.default_rng(seed).permutation(len(outer.query))
    rest = outer.database
    learn = database = rest
    if trained_share < 0.99:
        mixed = np.random.default_rng(seed + 1).permutation(len(rest))
        unseen = mixed[: round(0.15 * len(train))]
        learned = mixed[len(unseen) :]
        beside = learned[: round(len(unseen) * trained_share / (1 - trained_share))]
        learn, database = rest.take(np.sort(learned)), rest.take(np.sort(np.concatenate([unseen, beside])))
    if len(learn) < 2 * FEWEST:
        raise DataError(f"{len(train):,} training items are too few to choose settings by. Train with the defaults.")
    return Parts(learn, database, outer.query.take(np.sort(order[:each])), outer.query.take(np.sort(order[each:])))


class Search:
    """A search over the settings of a method, in a folder of its own."""

    def __init__(
        self, method: DCMH, train: Dataset, folder: Path, *, budget: float, trained_share: float = 1.0, fixed: set[str]
    ) -> None:
        self.method = method
        self.train = train
        self.parts = divide(train, trained_share, method.seed)
        self.folder = folder
        self.budget = budget
        self.results: list[Result] = []
        self.spent = 0.0
        self.scale = 1.0  # of all lengths, where the budget is short
        self._fixed = fixed
        said = {name: str(value) for name, value in method.parameters.items() if name != "device"}
        self._identity = json.dumps([__version__, train.fingerprint(), round(trained_share, 3), said], sort_keys=True)
        self._pace = (0.0, 0.0)  # seconds of an iteration, and of all else in a trial

    def run(self, progress: Progress | None = None) -> Outcome:
        """Search until done, or until the next trial would not fit into the budget."""
        self._progress = progress or (lambda seconds, what: None)
        self._measure_pace()
        if self._cost(STAGES[0]) + self._reserve(2) > self.budget:
            return self._outcome((), "The budget is too short to compare anything with the defaults, so they stay.")
        first = self._stage_one()
        second = self._stage_two(first)
        best = max((result for result in second if result.trial.changes), key=lambda result: result.score, default=None)
        base = next(result for result in second if not result.trial.changes)
        if best is None or best.score <= base.score:
            return self._outcome(
                (), "No candidate was better than the defaults on the items that select, so they stay."
            )
        return self._confirmed(best.trial.changes)

    # -- the stages -----------------------------------------------------------------------------------------------

    def _stage_one(self) -> list[Result]:
        found = [self._try(Trial((), STAGES[0] * self.scale))]
        for changes in self._candidates():
            if self._left() < self._cost(STAGES[0], changes) + self._reserve(2):
                break
            found.append(self._try(Trial(changes, STAGES[0] * self.scale)))
        return found

    def _stage_two(self, first: list[Result]) -> list[Result]:
        base = first[0]
        order = sorted(first[1:], key=lambda result: -result.score)
        candidates = [result.trial.changes for result in order[:BEST]]
        combined = _combined(base, order)
        if len(combined) > 1:
            candidates.insert(0, combined)
        found = [self._try(Trial((), STAGES[1] * self.scale))]
        for changes in candidates:
            if self._left() >= self._cost(STAGES[1], changes) + self._reserve(3, changes):
                found.append(self._try(Trial(changes, STAGES[1] * self.scale)))
        return found

    def _confirmed(self, changes: Changes) -> Outcome:
        differences: list[NDArray[np.float64]] = []
        for seed in SEEDS:
            if self._left() < self._cost(STAGES[2]) + self._cost(STAGES[2], changes):
                break
            base, best = (self._try(Trial(c, STAGES[2] * self.scale, seed)) for c in ((), changes))
            differences.append(best.confirm - base.confirm)
        if not differences:
            return self._outcome(
                (), "The budget ended before the best candidate could be confirmed; the defaults stay."
            )
        gain, error = _paired(np.mean(differences, axis=0))
        count = len(self.parts.confirm)
        told = f"{gain:+.4f} MAP, standard error {error:.4f}, on {count:,} items that took no part in choosing"
        if gain > SURE * error and min(float(each.mean()) for each in differences) > 0:
            return self._outcome(changes, f"{spelt(changes)}: {told}.", gain, error)
        return self._outcome((), f"The defaults stay: the best candidate, {spelt(changes)}, has {told}.", gain, error)

    def _outcome(self, chosen: Changes, verdict: str, gain: float | None = None, error: float | None = None) -> Outcome:
        length = dict(chosen).get("length", 1.0)
        whole = _iterations(self.method, self.train)
        parts = {name: len(getattr(self.parts, name)) for name in ("learn", "database", "select", "confirm")}
        return Outcome(self.results, chosen, verdict, gain, error, self.spent, round(whole * length), parts)

    def _candidates(self) -> Iterator[Changes]:
        for name, value in _TRIED:
            setting = "epochs" if name == "length" else name
            unused = self.method.recipe == "paper" and name in ("learning_rate", "dropout")
            if setting in self._fixed or unused:
                continue
            if name in _FACTORS:
                value *= getattr(self.method, name)
            if name == "length" or value != getattr(self.method, name):
                yield ((name, value),)

    # -- time -----------------------------------------------------------------------------------------------------

    def _measure_pace(self) -> None:
        """A short trial of the defaults tells what the others will cost, and whether all lengths must shrink."""
        for seed in SEEDS:  # the first one also waits for what is only loaded once
            record = self._read(self._try(Trial((), 1 / 16, seed), shown=False).trial)
        assert record is not None
        around = max(0.0, record["training"] - record["iteration"] * record["epochs"]) + record["measuring"]
        self._pace = record["iteration"], around
        least = 5 * self._cost(STAGES[0]) + self._reserve(2)
        if least > self.budget:
            self.scale = max(1 / 8, self.budget / least)

    def _cost(self, stage: float, changes: Changes = ()) -> float:
        iteration, around = self._pace
        return self._epochs(Trial(changes, stage * self.scale)) * iteration + around

    def _reserve(self, stage: int, changes: Changes = ()) -> float:
        """What the stages from this one on need at least."""
        last = len(SEEDS) * (self._cost(STAGES[2]) + self._cost(STAGES[2], changes))
        return last if stage == 3 else last + (1 + BEST) * self._cost(STAGES[1])

    def _left(self) -> float:
        return self.budget - self.spent

    # -- one trial ------------------------------------------------------------------------------------------------

    def _epochs(self, trial: Trial) -> int:
        length = dict(trial.changes).get("length", 1.0)
        return max(1, round(_iterations(self.method, self.parts.learn) * length * trial.stage))

    def _try(self, trial: Trial, *, shown: bool = True) -> Result:
        """The result of a trial, from its file where there is one."""
        self._progress(self.spent, f"{spelt(trial.changes)}, {self._epochs(trial)} iterations")
        record = self._read(trial) or self._perform(trial)
        select, confirm = (np.array(record[name]) for name in ("select", "confirm"))
        seconds = record["training"] + record["measuring"]
        result = Result(trial, record["epochs"], select, confirm, record["directions"], seconds)
        self.spent += seconds
        if shown:
            self.results.append(result)
        return result

    def _perform(self, trial: Trial) -> dict[str, Any]:
        changed = {name: value for name, value in trial.changes if name != "length"}
        settings = self.method.parameters | changed
        settings |= {"epochs": self._epochs(trial), "seed": self.method.seed + trial.seed, "validation": 0.0}
        began = time.perf_counter()
        model = DCMH(**settings).fit(self.parts.learn)
        trained = time.perf_counter()
        measured = {name: _per_query(model, getattr(self.parts, name), self.parts.database) for name in _PARTS}
        record = {
            "format": FORMAT,
            "identity": self._identity,
            "changes": dict(trial.changes),
            "stage": trial.stage,
            "seed": trial.seed,
            "epochs": settings["epochs"],
            "iteration": float(np.median([row["seconds"] for row in model.history_])),
            "training": round(trained - began, 3),
            "measuring": round(time.perf_counter() - trained, 3),
            "directions": {name: round(float(values.mean()), 5) for name, values in measured["select"].items()},
        }
        for name, values in measured.items():
            record[name] = np.mean(list(values.values()), axis=0).round(5).tolist()
        write_text(self._file(trial), json.dumps(record) + "\n")
        return record

    def _file(self, trial: Trial) -> Path:
        return self.folder / "trials" / f"{trial.name}.json"

    def _read(self, trial: Trial) -> dict[str, Any] | None:
        """What a finished trial of this very search wrote."""
        try:
            record = json.loads(self._file(trial).read_text(encoding="utf-8"))
            same = record["format"] == FORMAT and record["identity"] == self._identity
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return dict(record) if same else None


_PARTS = ("select", "confirm")


def spelt(changes: Changes) -> str:
    """Such as: gamma 0.3, length x2."""
    said = [f"length x{value:g}" if name == "length" else f"{name} {value:g}" for name, value in changes]
    return ", ".join(said) or "defaults"


def _combined(base: Result, order: list[Result]) -> Changes:
    """From each setting the value that did best, where that was better than the default by more than an error."""
    best: dict[str, float] = {}
    for result in order:  # best first
        ((name, value),) = result.trial.changes
        gain, error = _paired(result.select - base.select)
        if gain > error:
            best.setdefault(name, value)
    return tuple(best.items())


def _paired(difference: NDArray[np.float64]) -> tuple[float, float]:
    """The mean and its standard error."""
    return float(difference.mean()), float(difference.std(ddof=1) / len(difference) ** 0.5)


def _iterations(method: DCMH, train: Dataset) -> int:
    """How many iterations the method would take on these items."""
    if method.epochs is not None:
        return method.epochs
    fewest = min(int(train.observed(name).sum()) for name in train.modalities)
    return method._recipe().epochs(fewest // min(method.batch_size, fewest))


def _per_query(model: DCMH, query: Dataset, database: Dataset) -> Mapping[str, NDArray[np.float64]]:
    """Average precision of each query in each direction; 1 / rank of its own item where there are no labels."""
    found = {}
    for a, b in permutations(model.modalities, 2):
        there = np.flatnonzero(database.observed(b))
        asked, pool = (
            codes.pack(model.encode(**{a: query[a]})),
            codes.pack(model.encode(**{b: database[b].take(there)})),
        )
        if query.labels is not None and database.labels is not None:
            counts = metrics.rank_counts(asked, pool, query.labels, database.labels[there], model.bits)
        else:
            own = codes.pack(model.encode(**{b: query[b]}))
            wanted = len(pool) + np.arange(len(own))
            counts = paired_counts(asked, np.concatenate([pool, own]), wanted, model.bits)
        found[f"{a}_to_{b}"] = counts.average_precision(ties="expected")
    return found
