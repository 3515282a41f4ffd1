"""Measures of Hamming rankings: MAP and NDCG with named tie rules, precision and recall at k, hash lookup.

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
from dcmh.evaluation.metrics.gain import ndcg_at
from dcmh.evaluation.metrics.interval import prediction_interval
from dcmh.evaluation.metrics.packed import rank_counts, rank_ndcg, stable_average_precision
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
    "ndcg_at",
    "precision_at",
    "precision_by_distance",
    "prediction_interval",
    "rank_counts",
    "rank_ndcg",
    "recall_at",
    "stable_average_precision",
    "without_relevant",
]
