"""Methods × feature sets × lengths × seeds on one data set, one JSON file a run: `dcmh bench`."""

from __future__ import annotations

from dcmh.bench.config import FEATURES, Config, Entry, SplitPlan, read
from dcmh.bench.plan import Task, done, plan, summary
from dcmh.bench.preparation import Workbench
from dcmh.bench.work import Pace, perform, run

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
