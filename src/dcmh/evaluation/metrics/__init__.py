"""Measures of Hamming rankings: MAP with named tie rules, precision and recall at k, hash lookup.

There are two interfaces to one set of formulas. `mean_average_precision`, `precision_at`, `lookup` and others take a
matrix of distances and one of relevance. `rank_counts` takes packed codes and labels and never builds those matrices;
the `Counts` that it returns have the same measures as methods.
"""

from dcmh.evaluation.metrics.counts import Counts, Curve, Lookup, count, precision_by_distance
from dcmh.evaluation.metrics.dense import (
    average_precision,
    chance,
    lookup,
    mean_average_precision,
    precision_at,
    recall_at,
    without_relevant,
)
from dcmh.evaluation.metrics.packed import rank_counts, stable_average_precision
from dcmh.evaluation.metrics.ties import TIES, Ties

__all__ = [
    "TIES",
    "Counts",
    "Curve",
    "Lookup",
    "Ties",
    "average_precision",
    "chance",
    "count",
    "lookup",
    "mean_average_precision",
    "precision_at",
    "precision_by_distance",
    "rank_counts",
    "recall_at",
    "stable_average_precision",
    "without_relevant",
]
