"""Tuning: settings of DCMH chosen on a part of the training items, for `dcmh tune`."""

from __future__ import annotations

from dcmh.experiments.tuning.search import SEEDS, STAGES, Outcome, Search
from dcmh.experiments.tuning.trials import Changes, Parts, Result, Trial, Trials, describe, divide

__all__ = [
    "SEEDS",
    "STAGES",
    "Changes",
    "Outcome",
    "Parts",
    "Result",
    "Search",
    "Trial",
    "Trials",
    "describe",
    "divide",
]
