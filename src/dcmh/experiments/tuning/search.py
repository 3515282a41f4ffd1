"""Settings of DCMH chosen on validation items: successive halving over gamma, eta, learning rate, length and dropout.

Only training items are used, never the queries. A tenth of them (`select`) ranks the candidates, another tenth (`confirm`)
makes the final decision, and the others are learned from. Three stages train for a quarter, half and all of the length:

1. the defaults, and candidates that change one setting; these also give the curves over gamma and over eta,
2. the defaults, the best of these, and the combination of the best value of each setting,
3. the defaults and the best, each with two seeds. The best is chosen if it is better than the defaults on `confirm` by
   twice the standard error of the paired difference over queries. Otherwise the defaults are kept.

The defaults are in every stage. Each trial is one JSON file, so that an interrupted search continues; its time counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcmh.data.dataset import Dataset
from dcmh.experiments.tuning.trials import Changes, Result, Trial, Trials, describe, divide, iterations, recipe_of
from dcmh.methods.dcmh import DCMH
from dcmh.methods.dcmh.recipes import Stable

STAGES = (0.25, 0.5, 1.0)  # shares of the full length
FINALISTS = 3  # candidates that stage 2 takes from stage 1
SEEDS = (0, 1)  # added to the method's seed in stage 3
MIN_GAIN = 2.0  # standard errors

# The values tried for each setting besides its default, the more important ones first. `length` multiplies the iterations.
_VALUES: list[tuple[str, float]] = [
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
_FACTORS = ("gamma", "eta", "learning_rate")  # values are multiples of their default

Progress = Callable[[float, str], None]  # seconds spent, current trial


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


class Pace(NamedTuple):
    """Seconds of an iteration with a frozen image network, of any other iteration, and of everything else in a trial."""

    frozen: float
    learning: float
    overhead: float


class Search:
    """A search over the settings of a method, with its own folder."""

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
        self.scale = 1.0  # of all lengths; smaller if the budget is short
        self._fixed = fixed
        identity = json.dumps([method.identity(train.fingerprint()), round(trained_share, 3)])
        self.trials = Trials(method, self.parts, folder, identity)
        self._pace = Pace(0.0, 0.0, 0.0)

    def run(self, progress: Progress | None = None) -> Outcome:
        """Search until done, or until the next trial does not fit into the budget."""
        self._progress = progress or (lambda seconds, trial: None)
        self._measure_pace()
        needed = self._cost(STAGES[0]) + self._reserve(2)
        if needed > self._left():
            least = math.ceil((self.spent + needed) / 10) * 10
            return self._outcome(
                (), f"The budget is too short to compare anything with the defaults; it takes at least {least} s."
            )
        first = self._stage_one()
        second = self._stage_two(first)
        best = max((result for result in second if result.trial.changes), key=lambda result: result.score, default=None)
        base = next(result for result in second if not result.trial.changes)
        if best is None:
            return self._outcome(
                (), "The budget ended before a candidate could be tried at half length; the defaults stay."
            )
        if best.score <= base.score:
            return self._outcome(
                (), "No candidate was better than the defaults on the items that select, so they stay."
            )
        return self._confirmed(best.trial.changes)

    # -- the stages -----------------------------------------------------------------------------------------------

    def _stage_one(self) -> list[Result]:
        results = [self._try(Trial((), STAGES[0] * self.scale))]
        for changes in self._candidates():
            if self._left() < self._cost(STAGES[0], changes) + self._reserve(2):
                break
            results.append(self._try(Trial(changes, STAGES[0] * self.scale)))
        return results

    def _stage_two(self, first: list[Result]) -> list[Result]:
        base = first[0]
        order = sorted(first[1:], key=lambda result: -result.score)
        candidates = [result.trial.changes for result in order[:FINALISTS]]
        combined = _combined(base, order)
        if len(combined) > 1:
            candidates.insert(0, combined)
        results = [self._try(Trial((), STAGES[1] * self.scale))]
        for changes in candidates:
            if self._left() >= self._cost(STAGES[1], changes) + self._reserve(3, changes):
                results.append(self._try(Trial(changes, STAGES[1] * self.scale)))
        return results

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
        evidence = f"{gain:+.4f} MAP, standard error {error:.4f}, on {count:,} items that took no part in choosing"
        if gain > MIN_GAIN * error and min(float(difference.mean()) for difference in differences) > 0:
            return self._outcome(changes, f"{describe(changes)}: {evidence}.", gain, error)
        return self._outcome(
            (), f"The defaults stay: the best candidate, {describe(changes)}, has {evidence}.", gain, error
        )

    def _outcome(self, chosen: Changes, verdict: str, gain: float | None = None, error: float | None = None) -> Outcome:
        length = dict(chosen).get("length", 1.0)
        epochs = round(iterations(self.method, self.train) * length)
        parts = {name: len(getattr(self.parts, name)) for name in ("learn", "database", "select", "confirm")}
        return Outcome(self.results, chosen, verdict, gain, error, self.spent, epochs, parts)

    def _candidates(self) -> Iterator[Changes]:
        for name, value in _VALUES:
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
        """Run short trials of the defaults to estimate the cost of the others, and whether all lengths must shrink."""
        for seed in SEEDS:  # the first one includes one-off costs such as loading
            trial = Trial((), 1 / 16, seed)
            self._try(trial, shown=False)
        record = self.trials.record(trial)
        learning = record["iteration"]
        frozen = learning if record["resting"] is None else record["resting"]
        frozen_epochs = self._frozen_epochs(record["epochs"])
        iterating = frozen * frozen_epochs + learning * (record["epochs"] - frozen_epochs)
        overhead = max(0.0, record["training"] - iterating) + record["measuring"]
        self._pace = Pace(frozen, learning, overhead)
        least = 5 * self._cost(STAGES[0]) + self._reserve(2)
        if least > self._left():
            self.scale = max(1 / 8, self._left() / least)

    def _cost(self, stage: float, changes: Changes = ()) -> float:
        epochs, pace = self.trials.epochs(Trial(changes, stage * self.scale)), self._pace
        frozen = self._frozen_epochs(epochs)
        return frozen * pace.frozen + (epochs - frozen) * pace.learning + pace.overhead

    def _frozen_epochs(self, epochs: int) -> int:
        """The number of iterations in which an image network is frozen that is trained in the others."""
        recipe = recipe_of(self.method, self.train)
        return recipe.frozen_epochs(epochs) if isinstance(recipe, Stable) and recipe.finetune else 0

    def _reserve(self, stage: int, changes: Changes = ()) -> float:
        """The minimum cost of the stages from this one on."""
        last = len(SEEDS) * (self._cost(STAGES[2]) + self._cost(STAGES[2], changes))
        return last if stage == 3 else last + (1 + FINALISTS) * self._cost(STAGES[1])

    def _left(self) -> float:
        return self.budget - self.spent

    def _try(self, trial: Trial, *, shown: bool = True) -> Result:
        """The result of a trial; its time counts, even if it is read from a file."""
        self._progress(self.spent, f"{describe(trial.changes)}, {self.trials.epochs(trial)} iterations")
        record = self.trials.record(trial)
        select, confirm = (np.array(record[name]) for name in ("select", "confirm"))
        seconds = record["training"] + record["measuring"]
        result = Result(trial, record["epochs"], select, confirm, record["directions"], seconds)
        self.spent += seconds
        if shown:
            self.results.append(result)
        return result


def _combined(base: Result, order: list[Result]) -> Changes:
    """The best value of each setting that is better than the default by more than the standard error."""
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
