"""MAP of DCMH's defaults beside ridge regression and chance, on one data set, in one run.

    python benchmarks/accuracy.py coco12k --queries 2000 --train-size 5000 --bits 64 32 16
    python benchmarks/accuracy.py coco12k --queries 2000 --train-size 5000 --sensitivity
    python benchmarks/accuracy.py openmoji --queries 300
    python benchmarks/accuracy.py wiki/wikiData.mat

Prints a Markdown table and, with --out FILE, writes the same as JSON. Ties are stable, as in the paper.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import dcmh
from dcmh.data import Split, split_given
from dcmh.methods import get


def measure(split: Split, method: str, **settings: Any) -> dict[str, Any]:
    """Fit, evaluate, and say how long the fit took. Features are computed before, so that only learning is timed."""
    began = time.perf_counter()
    model = get(method)(**settings).fit(split.train)
    seconds = time.perf_counter() - began
    report = dcmh.evaluate(model, split)
    row = {"method": method, "settings": settings, "seconds": round(seconds, 1), "chance": round(report.chance, 4)}
    return row | {name: round(direction.map["stable"], 4) for name, direction in report.directions.items()}


def prepare(source: str, queries: int | None, train: int | None, seed: int) -> Split:
    data = dcmh.load_dataset(source)
    if data.labels is None:
        data = data.with_labels_from_text()
    split = split_given(data) if data.parts is not None and queries is None else data.split(queries or 500, train, seed)
    if data["image"].kind == "image":
        from dcmh.inputs.features import extract

        extract(data["image"])  # into the cache
    return split


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--queries", type=int)
    parser.add_argument("--train-size", type=int)
    parser.add_argument("--bits", type=int, nargs="+", default=[64])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--sensitivity", action="store_true", help="gamma and eta each over 0.5, 1, 2")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()

    split = prepare(given.data, given.queries, given.train_size, 0)
    print(f"{given.data}: {len(split.query)} queries, {len(split.database)} database, {len(split.train)} training\n")
    grid: list[tuple[str, dict[str, Any]]] = []
    for bits in given.bits:
        for seed in given.seeds:
            if given.sensitivity:
                grid += [("dcmh", {"gamma": gamma}) for gamma in (0.5, 1.0, 2.0)]
                grid += [("dcmh", {"eta": eta}) for eta in (0.5, 2.0)]
                grid = [(method, {"bits": bits, "seed": seed, **settings}) for method, settings in grid]
            else:
                grid += [(method, {"bits": bits, "seed": seed}) for method in ("ridge", "dcmh")]
    rows = []
    for method, settings in grid:
        row = measure(split, method, **settings)
        if not rows:
            directions = [name for name in row if "_to_" in name]
            print("| method | settings | " + " | ".join(directions) + " | chance | seconds |")
            print("|---" * (len(directions) + 4) + "|")
        rows.append(row)
        said = ", ".join(f"{name}={value}" for name, value in settings.items())
        values = " | ".join(f"{row[name]:.4f}" for name in directions)
        print(f"| {method} | {said} | {values} | {row['chance']:.3f} | {row['seconds']} |", flush=True)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps({"data": given.data, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
