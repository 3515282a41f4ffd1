"""What codes find after learning from labels, from words, from both, or from the pairing alone.

    python benchmarks/similarity.py openmoji --queries 300
    python benchmarks/similarity.py coco12k --queries 2000 --train-size 5000 --similarity labels labels+tags

MAP by labels says whether the hits are of the same kind. Words: the share of the first ten hits whose text has a word of the
query's text, for queries that have such items. Finding one's own item (the queries' own items join the database;
the mean of 1 / rank, its expected value over ties) says whether codes tell apart
what shares a label. Prints a Markdown table; --out FILE writes the rows as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import dcmh
from dcmh import DCMH, codes
from dcmh.data import Split
from dcmh.util.text import BagOfWords

DIRECTIONS = ("image_to_text", "text_to_image")


def words_in_first_ten(model: DCMH, split: Split) -> dict[str, float]:
    """By direction: of the first ten hits, those whose text shares a word with that of the query."""
    bag = BagOfWords().fit(split.database["text"].values)
    has = [bag.transform(part["text"].values) > 0 for part in (split.query, split.database)]
    shared = has[0].astype(np.float32) @ has[1].T > 0  # (queries, items)
    asked = shared.any(axis=1)
    found = {}
    for name in DIRECTIONS:
        here, there = name.split("_to_")
        query, database = (
            codes.pack(model.encode(**{side: part[side]}))
            for side, part in ((here, split.query), (there, split.database))
        )
        first = np.argsort(codes.hamming(query, database), axis=1, kind="stable")[:, :10]
        found[name] = float(np.take_along_axis(shared, first, axis=1)[asked].mean())
    return found


def measure(split: Split, similarity: str, bits: int, seed: int) -> dict[str, Any]:
    began = time.perf_counter()
    model = DCMH(bits, seed=seed, similarity=similarity).fit(split.train)
    seconds = round(time.perf_counter() - began, 1)
    kind, own = dcmh.evaluate(model, split), dcmh.evaluate(model, split, relevance="pairing")
    words = words_in_first_ten(model, split)
    row: dict[str, Any] = {"similarity": similarity, "bits": bits, "seed": seed, "seconds": seconds}
    for name in DIRECTIONS:
        row[f"map {name}"] = round(kind[name].map["stable"], 4)
        row[f"words {name}"] = round(words[name], 4)
        row[f"own {name}"] = round(own[name].map["expected"], 4)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--train-size", type=int)
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--similarity", nargs="+", default=["labels", "labels+tags", "tags", "pairing"])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    split = dcmh.load_dataset(given.data).split(given.queries, given.train_size, 0)
    columns = [f"{what} {short}" for what in ("MAP", "words", "own item") for short in ("I→T", "T→I")]
    print(f"| similarity | seed | {' | '.join(columns)} | seconds |\n{'|---' * 9}|")
    rows = []
    for similarity in given.similarity:
        for seed in given.seeds:
            rows.append(row := measure(split, similarity, given.bits, seed))
            cells = [f"{row[f'{what} {name}']:.4f}" for what in ("map", "words", "own") for name in DIRECTIONS]
            print(f"| {similarity} | {seed} | {' | '.join(cells)} | {row['seconds']} |", flush=True)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps({"data": given.data, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
