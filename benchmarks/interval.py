"""How often the 95 % interval of one half of the queries holds the MAP of the other half.

    python benchmarks/interval.py coco12k coco.model [--halves 200] [--out benchmarks/results/interval.json]

The interval is the one that reports show: where the MAP of another draw of as many queries would lie. Beside it, the narrower
confidence interval of the mean, which says where the mean over all possible queries lies and is held less often. With all the
queries of the model, and with a few of them, drawn again for each pair of halves. MODEL is a folder that dcmh train wrote.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dcmh
from dcmh.data import Split
from dcmh.evaluation import average_precision_by_direction, encode_sides
from dcmh.evaluation.metrics import prediction_interval


def coverage(values: NDArray[np.float64], queries: int, halves: int, level: float) -> dict[str, float]:
    """The share of random halves whose interval holds the mean of the other half, and its mean width."""
    random = np.random.default_rng(0)
    held, narrow, width = 0, 0, 0.0
    for _ in range(halves):
        drawn = random.permutation(values)[:queries]
        one, other = drawn[: queries // 2], drawn[queries // 2 :].mean()
        low, high = prediction_interval(one, level=level)
        held += low <= other <= high
        narrow += abs(other - one.mean()) <= (high - low) / 2 / np.sqrt(2)
        width += (high - low) / 2 / halves
    return {"held": held / halves, "held_by_confidence_interval": narrow / halves, "half_width": width}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("model", type=Path)
    parser.add_argument("--halves", type=int, default=200)
    parser.add_argument("--level", type=float, default=0.95)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    data = dcmh.load_dataset(given.data)
    split, model = Split.load(given.model / "split.json", data), dcmh.load(given.model)
    sides = encode_sides(model, split.query, split.database, "labels")
    rows: list[dict[str, Any]] = []
    print("| direction | queries in each half | held | held by a confidence interval | ± |\n|---|---|---|---|---|")
    for name, values in average_precision_by_direction(*sides, model.bits).items():
        for queries in (24, 50, 100, 200, 500, 2 * (len(values) // 2)):
            if queries > len(values):
                continue
            row = {"direction": name, "half": queries // 2} | coverage(values, queries, given.halves, given.level)
            rows.append(row)
            print(
                "| {direction} | {half} | {held:.3f} | {held_by_confidence_interval:.3f} | {half_width:.4f} |".format(
                    **row
                )
            )
    if given.out:
        record = {"data": given.data, "halves": given.halves, "level": given.level, "rows": rows}
        given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
