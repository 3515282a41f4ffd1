"""How good a model is on a split: `evaluate` measures it and returns a `Report`."""

from __future__ import annotations

from dcmh.evaluation.measurement import Side, average_precision_by_direction, encode_sides, evaluate
from dcmh.evaluation.report import DirectionReport, Relevance, Report, arrow, short

__all__ = [
    "DirectionReport",
    "Relevance",
    "Report",
    "Side",
    "arrow",
    "average_precision_by_direction",
    "encode_sides",
    "evaluate",
    "short",
]
