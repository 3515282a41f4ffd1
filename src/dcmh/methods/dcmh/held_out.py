"""Some training points are held out, only to show the MAP on them while training; they choose nothing."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import torch
from numpy.typing import NDArray

from dcmh import codes
from dcmh.evaluation import metrics
from dcmh.methods.dcmh.state import Run

FEWEST = 10


def choose(observed: dict[str, NDArray[np.bool_]], share: float, seed: int) -> NDArray[np.intp]:
    """Which points: a share of those that have all modalities."""
    complete = np.flatnonzero(np.stack(list(observed.values())).all(axis=0))
    count = int(share * len(complete))
    count = count if count >= FEWEST else 0  # too few to measure: learn from them
    return np.sort(np.random.default_rng(seed).permutation(complete)[:count])


def mean_average_precision(run: Run) -> dict[str, float]:
    """MAP of the held-out points as queries against the other training points, in every direction."""
    if not len(run.held_out) or run.labels is None:
        return {}
    rows = torch.from_numpy(run.held_out).to(run.B.device)
    labels, bits = run.labels, run.B.shape[1]
    query = {side.name: codes.pack(codes.sign(side.at_rest(rows).cpu().numpy())) for side in run.sides}
    found = {}
    for a, b in permutations(run.sides, 2):
        there = b.rows.cpu().numpy()
        database = codes.pack(codes.sign(b.outputs[b.rows].cpu().numpy()))
        counts = metrics.rank_counts(query[a.name], database, labels[run.held_out], labels[there], bits)
        found[f"{a.name}_to_{b.name}"] = round(counts.mean_average_precision(ties="expected"), 4)
    return found
