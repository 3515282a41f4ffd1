"""More than two modalities, items that lack one, and joint codes, on coco12k.

    python benchmarks/modalities.py coco12k --out benchmarks/results/modalities.json [--seeds 0 1 2]

    python benchmarks/modalities.py coco12k --table coco3/pairs.jsonl      only writes the data of `three`

Writes the JSON after each training, skips what it already has, and writes the tables beside it as Markdown.

full       5,000 training items with picture and caption
hidden     the same items: 30 % lack their picture, another 30 % their caption
complete   only those of them that have both
three      picture, caption, and the names of half of the 80 object categories; the other half are the labels, so that no
           label's name is in the third modality. Items without any of the labels are left out; items without any of the
           names lack the third modality.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import dcmh
from dcmh import codes
from dcmh.data import Dataset, Images, Split, Texts
from dcmh.evaluation import metrics
from dcmh.util.atomic import write_text

RUNS = ("full", "hidden", "complete", "three")


def hidden(train: Dataset, share: float = 0.3, seed: int = 0) -> Dataset:
    """The same items; a share of the pictures and as many captions are taken away, never both of one item."""
    order = np.random.default_rng(seed).permutation(len(train))
    count = int(share * len(train))
    pictures, texts = list(train["image"].values), list(train["text"].values)
    for row in order[:count]:
        pictures[row] = None
    for row in order[count : 2 * count]:
        texts[row] = None
    columns = {"image": Images(pictures, root=train["image"].root), "text": Texts(texts)}
    return Dataset(columns, labels=train.labels, label_names=train.label_names, ids=train.ids, name=train.name)


def three_modalities(data: Dataset) -> Dataset:
    """Every second category, alphabetically, names objects (person among them); the others stay labels."""
    names = np.array(data.label_names)
    order = np.argsort(names)
    shown, kept = order[1::2], np.sort(order[::2])
    objects = [" ".join(names[shown[row[shown] > 0]]) or None for row in data.labels]
    columns = {**data.columns, "objects": Texts(objects)}
    whole = Dataset(
        columns, labels=data.labels[:, kept], label_names=names[kept].tolist(), ids=data.ids, name="coco12k"
    )
    return whole.take(whole.labels.any(axis=1))


def write_table(data: Dataset, file: Path) -> None:
    """The three modalities as a table that `dcmh train --modalities image,text,objects` reads."""
    lines = []
    for row, name in enumerate(data.ids):
        named = [data.label_names[label] for label in np.flatnonzero(data.labels[row])]
        picture = os.path.relpath(data["image"].path(row), file.parent)
        cells = {"text": data["text"].values[row], "objects": data["objects"].values[row]}
        lines.append(json.dumps({"id": name, "image": picture, **cells, "labels": named}) + "\n")
    write_text(file, "".join(lines))


def within(model: Any, split: Split) -> dict[str, float]:
    """MAP of each modality's queries against the same modality of the database."""
    found = {}
    for name in model.modalities:
        there = split.database.observed(name)
        query = codes.pack(model.encode(**{name: split.query[name]}))
        database = codes.pack(model.encode(**{name: split.database[name].take(np.flatnonzero(there))}))
        sides = query, database, split.query.labels, split.database.labels[there], model.bits
        found[f"{name}_to_{name}"] = float(metrics.stable_average_precision(*sides).mean())
    return found


def measure(split: Split, train: Dataset, bits: int, seed: int) -> dict[str, Any]:
    began = time.perf_counter()
    model = dcmh.DCMH(bits=bits, seed=seed).fit(train)
    seconds = time.perf_counter() - began
    report = dcmh.evaluate(model, replace(split, train=train), joint=True)
    maps = {name: direction.map["stable"] for name, direction in report.directions.items()} | within(model, split)
    observed = {name: int(train.observed(name).sum()) for name in train.modalities}
    sizes = {"queries": len(split.query), "database": len(split.database), "train": len(train), "observed": observed}
    return {
        "bits": bits,
        "seed": seed,
        "seconds": round(seconds, 1),
        "chance": round(report.chance, 4),
        **sizes,
        "map": {name: round(value, 4) for name, value in maps.items()},
    }


def mean(rows: list[dict[str, Any]], direction: str) -> float:
    return float(np.mean([row["map"][direction] for row in rows]))


def tables(runs: dict[str, dict[str, Any]]) -> str:
    """The Markdown page, from what has been run."""
    by = {name: [row for key, row in runs.items() if key.startswith(f"{name}/")] for name in RUNS}
    page = ["# More than two modalities, partly observed items, joint codes: coco12k", ""]
    page += ["Made by `benchmarks/modalities.py`; stable ties; means over the seeds that were run.", ""]
    if by["full"] and by["hidden"] and by["complete"]:
        row = by["full"][0]
        page += [
            f"## Partly observed training items ({row['bits']} bits, {len(by['full'])} seed(s), chance {row['chance']})",
            "",
        ]
        page += ["| training items | image → text | text → image | drop | drop |", "|---|---|---|---|---|"]
        for name in ("full", "hidden", "complete"):
            a, b = (mean(by[name], direction) for direction in ("image_to_text", "text_to_image"))
            lost = [f"{mean(by['full'], d) - mean(by[name], d):.4f}" for d in ("image_to_text", "text_to_image")]
            seen = by[name][0]["observed"]
            page.append(
                f"| {name}: {by[name][0]['train']:,}, of which {seen['image']:,} with picture, {seen['text']:,} with caption "
                f"| {a:.4f} | {b:.4f} | {' | '.join(lost if name != 'full' else ['', ''])} |"
            )
        page.append("")
    if by["full"]:
        page += ["## Joint codes of the database, from picture and caption", ""]
        page += [
            "| queries | picture codes | caption codes | joint codes | joint to the better |",
            "|---|---|---|---|---|",
        ]
        for name in ("image", "text"):
            single = [mean(by["full"], f"{name}_to_{other}") for other in ("image", "text")]
            joint = mean(by["full"], f"{name}_to_joint")
            page.append(f"| {name} | {single[0]:.4f} | {single[1]:.4f} | {joint:.4f} | {joint - max(single):+.4f} |")
        page.append("")
    if by["three"]:
        row = by["three"][0]
        page += [
            f"## Three modalities ({row['queries']:,} queries, {row['database']:,} in the database, chance {row['chance']})",
            "",
        ]
        names = list(row["observed"])
        page += [f"| query ↓ database → | {' | '.join([*names, 'joint'])} |", "|---" * (len(names) + 2) + "|"]
        for a in names:
            cells = [f"{mean(by['three'], f'{a}_to_{b}'):.4f}" for b in [*names, "joint"]]
            page.append(f"| {a} | {' | '.join(cells)} |")
        page += [
            "",
            f"Training items with each modality: {', '.join(f'{n} {c:,}' for n, c in row['observed'].items())}.",
            "",
        ]
    return "\n".join(page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--train-size", type=int, default=5000)
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/modalities.json"))
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()

    if given.table:
        write_table(three_modalities(dcmh.load_dataset(given.data)), given.table)
        return
    runs: dict[str, dict[str, Any]] = json.loads(given.out.read_text())["runs"] if given.out.is_file() else {}
    data = dcmh.load_dataset(given.data)
    pairs = data.split(given.queries, given.train_size, 0)
    third = three_modalities(data).split(given.queries, given.train_size, 0) if "three" in given.only else None
    for seed in given.seeds:
        for name in given.only:
            key = f"{name}/{given.bits}/{seed}"
            if key in runs:
                continue
            split = third if name == "three" and third is not None else pairs
            train = split.train if name in ("full", "three") else hidden(pairs.train)
            if name == "complete":
                train = train.take(train.complete())
            runs[key] = measure(split, train, given.bits, seed)
            print(key, json.dumps(runs[key]), flush=True)
            write_text(given.out, json.dumps({"data": "coco12k", "runs": runs}, indent=1) + "\n")
    write_text(given.out.with_suffix(".md"), tables(runs))
    print(tables(runs))


if __name__ == "__main__":
    main()
