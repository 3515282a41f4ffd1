"""How good a model is on a split: `evaluate` measures it, a `Report` says it."""

from __future__ import annotations

from dcmh.evaluation.measurement import evaluate
from dcmh.evaluation.report import DirectionReport, Relevance, Report, short

__all__ = ["DirectionReport", "Relevance", "Report", "evaluate", "short"]
