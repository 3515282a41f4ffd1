"""Methods × feature sets × code lengths × seeds on one data set, one JSON file per run: `dcmh bench`."""

from __future__ import annotations

from dcmh.experiments.bench.config import FEATURES, Config, Entry, SplitPlan, read
from dcmh.experiments.bench.plan import Task, done, plan, summary
from dcmh.experiments.bench.preparation import Workbench
from dcmh.experiments.bench.work import Pace, perform, run

__all__ = [
    "FEATURES",
    "Config",
    "Entry",
    "Pace",
    "SplitPlan",
    "Task",
    "Workbench",
    "done",
    "perform",
    "plan",
    "read",
    "run",
    "summary",
]
