"""Three measures that papers call MAP@k, on the same codes.

    python benchmarks/map_at_k.py coco12k coco.model

ours: the first k ranks count, divided by min(k, relevant points). found: the same sum, divided by the relevant points among
the first k ranks. first: the mean precision at the first min(k, relevant) relevant points, however far down they rank. All three
are MAP if k is the size of the database. Ties in database order. MODEL is a folder that dcmh train wrote.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import dcmh
from dcmh import codes
from dcmh.data import Split
from dcmh.evaluation import encode_sides


def variants(hits: np.ndarray, k: int) -> tuple[float, float, float]:
    """The three measures of one ranked list of booleans."""
    ranks = np.flatnonzero(hits) + 1
    precision = np.arange(1, len(ranks) + 1) / ranks
    if not len(ranks):
        return 0.0, 0.0, 0.0
    within = int((ranks <= k).sum())
    total = precision[:within].sum()
    return total / min(k, len(ranks)), total / max(within, 1), precision[: min(k, len(ranks))].mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("model", type=Path)
    given = parser.parse_args()
    data = dcmh.load_dataset(given.data)
    split, model = Split.load(given.model / "split.json", data), dcmh.load(given.model)
    query, database = encode_sides(model, split.query, split.database, "labels")
    print("| direction | k | ours | found | first |\n|---|---|---|---|---|")
    for a, b in (("image", "text"), ("text", "image")):
        for k in (50, 1000, 5000, len(split.database)):
            values = []
            for packed, labels in zip(query[a].packed, np.asarray(query[a].labels), strict=True):
                order = np.argsort(codes.hamming(packed[None], database[b].packed)[0], kind="stable")
                values.append(variants((np.asarray(database[b].labels) @ labels > 0)[order], k))
            means = " | ".join(f"{mean:.3f}" for mean in np.mean(values, axis=0))
            print(f"| {a} → {b} | {k:,} | {means} |", flush=True)


if __name__ == "__main__":
    main()
