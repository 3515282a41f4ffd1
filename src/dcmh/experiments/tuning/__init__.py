"""Settings of DCMH chosen on a part of the training items: `dcmh tune`."""

from __future__ import annotations

from dcmh.experiments.tuning.parts import Parts, divide
from dcmh.experiments.tuning.search import SEEDS, STAGES, Outcome, Search
from dcmh.experiments.tuning.trials import Changes, Result, Trial, Trials, spelt

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
    "divide",
    "spelt",
]
