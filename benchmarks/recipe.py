"""What each part of the stable recipe contributes, measured on validation items, without using any query of the split.

    python benchmarks/recipe.py coco12k --queries 2000 --train-size 5000 [--bits 64] [--seeds 3] [--only default …]

Three in ten of the database items that are not trained on are validation queries; all other database items, including those
trained on, are searched, as in the protocol.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from accuracy import prepare

import dcmh
from dcmh.data import Split
from dcmh.methods.dcmh import DCMH
from dcmh.methods.dcmh.recipes import Stable

# name: (constants of the recipe, settings of the method)
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "not ranked": ({"RANKING": 0.0, "RANKED_QUANTISATION": 0.3, "FEATURE_DROPOUT": 0.0}, {}),  # the recipe before
    "ranking x 1/2": ({"RANKING": 1.0}, {}),
    "ranking x 2": ({"RANKING": 4.0}, {}),
    "no features left out": ({"FEATURE_DROPOUT": 0.0}, {}),
    "quantisation x 1/3": ({"RANKED_QUANTISATION": 0.5}, {}),
    "quantisation x 3": ({"RANKED_QUANTISATION": 4.5}, {}),
    "no balance": ({"BALANCE": 0.0}, {}),
    "balance x 20": ({"BALANCE": 1.0}, {}),
    "S not softened": ({"SMOOTHING": 0.0}, {}),
    "Theta not stretched": ({"scale": 1.0}, {}),
    "Theta not shifted": ({"SHIFT": 0.0}, {}),
    "no pairs within a modality": ({"INTRA_MODAL": 0.0}, {}),
    "pairs within a modality x 3": ({"INTRA_MODAL": 0.1}, {}),
    "gamma from the start": ({"gamma_share": lambda recipe, epoch, epochs: 1.0}, {}),
    "all four as before": (
        {"SHIFT": 0.0, "INTRA_MODAL": 0.0, "gamma_share": lambda recipe, epoch, epochs: 1.0},
        {"dropout": 0.5},
    ),
    "dropout 0.5": ({}, {"dropout": 0.5}),
    "hidden 1024": ({}, {"hidden": 1024}),
    "no dropout": ({}, {"dropout": 0.0}),
    "60 iterations": ({}, {"epochs": 60}),
    "paper recipe, 30 iterations": ({}, {"recipe": "paper", "epochs": 30}),
}


def validation(split: Split) -> Split:
    """The same training items, with queries drawn from the other database items, and the rest to search in."""
    everything = np.arange(len(split.database))
    free = np.setdiff1d(everything, np.searchsorted(split.database_rows, split.train_rows))
    queries = np.random.default_rng(0).permutation(free)[: len(free) * 3 // 10]
    rest = np.setdiff1d(everything, queries)
    return replace(split, query=split.database.take(queries), database=split.database.take(rest))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--queries", type=int)
    parser.add_argument("--train-size", type=int)
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()

    split = validation(prepare(given.data, given.queries, given.train_size, 0))
    print(f"{len(split.query)} validation queries, {len(split.database)} in their database, {given.bits} bits\n")
    print("| variant | image → text | text → image | seconds |\n|---|---|---|---|")
    rows = []
    for name in given.only or VARIANTS:
        constants, settings = VARIANTS[name]
        with mock.patch.multiple(Stable, **constants) if constants else mock.patch.object(Stable, "__doc__", ""):
            began = time.perf_counter()
            models = [DCMH(bits=given.bits, seed=seed, **settings).fit(split.train) for seed in range(given.seeds)]
            seconds = (time.perf_counter() - began) / given.seeds
        reports = [dcmh.evaluate(model, split) for model in models]
        each = {
            direction: [round(report.directions[direction].map["stable"], 4) for report in reports]
            for direction in reports[0].directions
            if "joint" not in direction
        }
        maps = {direction: float(np.mean(values)) for direction, values in each.items()}
        rows.append({"variant": name, "seconds": round(seconds, 1), "chance": round(reports[0].chance, 4), **each})
        print(f"| {name} | {' | '.join(f'{value:.4f}' for value in maps.values())} | {seconds:.0f} |", flush=True)
    if given.out:
        given.out.write_text(json.dumps({"data": given.data, "bits": given.bits, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
