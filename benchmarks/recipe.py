"""What each part of the stable recipe buys, measured on validation items: no query of the split is looked at.

    python benchmarks/recipe.py ../shared/data/coco12k --queries 2000 --train-size 5000 [--bits 64] [--only default …]

Of the database items that are not trained on, a fifth are validation queries and the rest their database.
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
from dcmh.recipes import Stable

# name: (constants of the recipe, settings of the method)
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "quantisation x 1/3": ({"QUANTISATION": 0.1}, {}),
    "quantisation x 3": ({"QUANTISATION": 0.9}, {}),
    "no balance": ({"BALANCE": 0.0}, {}),
    "balance x 20": ({"BALANCE": 1.0}, {}),
    "S not softened": ({"SOFTENING": 0.0}, {}),
    "Theta not stretched": ({"_reach": 1.0}, {}),
    "hidden 1024": ({}, {"hidden": 1024}),
    "no dropout": ({}, {"dropout": 0.0}),
    "60 iterations": ({}, {"epochs": 60}),
    "paper recipe, 30 iterations": ({}, {"recipe": "paper", "epochs": 30}),
}


def validation(split: Split) -> Split:
    """The same training items, with queries and database drawn from the other database items."""
    free = np.setdiff1d(np.arange(len(split.database)), np.searchsorted(split.database_rows, split.train_rows))
    order = np.random.default_rng(0).permutation(free)
    fifth = len(order) // 5
    return replace(split, query=split.database.take(order[:fifth]), database=split.database.take(order[fifth:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--queries", type=int)
    parser.add_argument("--train-size", type=int)
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
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
            model = DCMH(bits=given.bits, seed=given.seed, **settings).fit(split.train)
            seconds = time.perf_counter() - began
        report = dcmh.evaluate(model, split)
        maps = {direction: round(value.map["stable"], 4) for direction, value in report.directions.items()}
        rows.append({"variant": name, "seconds": round(seconds, 1), "chance": round(report.chance, 4), **maps})
        print(f"| {name} | {' | '.join(f'{value:.4f}' for value in maps.values())} | {seconds:.0f} |", flush=True)
    if given.out:
        given.out.write_text(json.dumps({"data": given.data, "bits": given.bits, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
