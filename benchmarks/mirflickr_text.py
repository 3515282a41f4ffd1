"""Text to text on MIRFLICKR-25K: the text network alone, on the benchmark's real tags and labels, with the paper's split.

    python benchmarks/mirflickr_text.py mirflickr25k
    python benchmarks/mirflickr_text.py mirflickr25k --bits 64 --recipes paper --device cuda

The data are the public YAll and LAll: 20,015 points, 1,386 words, 24 labels; 2,000 queries, 18,015 in the database, 5,000 of
them for training. There are no pictures. The objective needs two modalities, so the same bag of words is given twice, to two
text networks that learn together; the codes of queries and of the database are those of the first network alone. Ties are
stable, as in the paper. Beside it: chance, and ridge regression to the labels with random projections on the same bags.

Prints Markdown and writes results/mirflickr_text.json and .md beside this file (--out for another folder).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import dcmh
from dcmh import codes
from dcmh.data import Dataset, Split, Texts, Vectors
from dcmh.evaluation import metrics
from dcmh.methods import get

QUERIES, TRAIN = 2000, 5000


def twice(data: Dataset, *, words: bool) -> Dataset:
    """The bag as two modalities: as texts of made-up words, so that the networks are those for words; or as vectors."""
    column: Texts | Vectors = data["text"]  # type: ignore[assignment]
    if words:
        names = np.array([f"word{place:04}" for place in range(column.values.shape[1])])
        column = Texts([" ".join(names[np.flatnonzero(row)]) for row in column.values])
    return Dataset({"text": column, "copy": column}, labels=data.labels, ids=data.ids, name=data.name)


def measure(split: Split, method: str, **settings: Any) -> dict[str, Any]:
    """Fit, encode queries and database with the first network, and rank."""
    began = time.perf_counter()
    model = get(method)(**settings).fit(split.train)
    seconds = time.perf_counter() - began
    packed = [codes.pack(model.encode(text=part["text"])) for part in (split.query, split.database)]
    assert split.query.labels is not None
    assert split.database.labels is not None
    counts = metrics.rank_counts(*packed, split.query.labels, split.database.labels, model.bits)
    stable = metrics.stable_average_precision(*packed, split.query.labels, split.database.labels, model.bits).mean()
    return {
        "method": method,
        **{name: value for name, value in settings.items() if name != "device"},
        "text_to_text": round(float(stable), 4),
        "expected_ties": round(counts.mean_average_precision(ties="expected"), 4),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="the folder of mirflickr25k-yall.mat and mirflickr25k-lall.mat")
    parser.add_argument("--bits", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--recipes", nargs="+", default=["stable"], choices=["stable", "paper"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vectors", action="store_true", help="the bag as standardised vectors, in place of words")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()

    data = dcmh.load_dataset(given.data)
    assert data.labels is not None
    shape = len(data), data["text"].values.shape[1], data.labels.shape[1]  # type: ignore[union-attr]
    print(
        f"{shape[0]:,} points, {shape[1]:,} words, {shape[2]} labels; {QUERIES:,} queries, {TRAIN:,} training points\n"
    )
    split = twice(data, words=not given.vectors).split(QUERIES, TRAIN, given.seed)
    relevant = dcmh.data.similarity(split.query.labels, split.database.labels)  # type: ignore[arg-type]
    rows: list[dict[str, Any]] = []
    for bits in given.bits:
        rows.append(measure(split, "ridge", bits=bits, seed=given.seed))
        for recipe in given.recipes:
            rows.append(measure(split, "dcmh", bits=bits, seed=given.seed, recipe=recipe, device=given.device))
        print(rows[-2:], flush=True)
    record = {
        "points": shape[0],
        "words": shape[1],
        "labels": shape[2],
        "queries": QUERIES,
        "database": len(split.database),
        "train": TRAIN,
        "bag": "vectors" if given.vectors else "words",
        "chance": round(float(relevant.mean()), 4),
        "rows": rows,
    }
    lines = [
        "| method | recipe | bits | text → text | expected over ties | seconds to train |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['method']} | {row.get('recipe', '')} | {row['bits']} | {row['text_to_text']:.4f} | "
        f"{row['expected_ties']:.4f} | {row['seconds']} |"
        for row in rows
    ]
    table = "\n".join([*lines, f"| chance | | | {record['chance']:.4f} | | |"])
    print(table)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "mirflickr_text.json").write_text(json.dumps(record, indent=1) + "\n")
    (given.out / "mirflickr_text.md").write_text(table + "\n")


if __name__ == "__main__":
    main()
