"""Settings of STMH, and when CRH draws new pairs, compared on validation items, without using any query of the split.

    python benchmarks/baseline_settings.py coco12k --queries 2000 --train-size 5000
    python benchmarks/baseline_settings.py wiki/wikiData.mat
    python benchmarks/baseline_settings.py openmoji --queries 300
    python benchmarks/baseline_settings.py --verdict          # combines the files that these wrote

If some database items are not trained on, validation queries are drawn from them, as in recipe.py. If all of the database
is trained on, a fifth of it is held out as queries, and the others are trained on and searched. The score is MAP, averaged
over directions, code lengths and seeds. Gains are relative to the method's first row, the default when this was written,
per seed; +- is the standard error over seeds. Eighteen settings are tried, so one is clearly better only if it gains more
than three times that, on every data set or on average. Prints Markdown and writes JSON to --out; --verdict writes one page
for all.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from accuracy import prepare
from numpy.typing import NDArray
from recipe import validation

import dcmh
from dcmh.data import Dataset, Split, Vectors
from dcmh.inputs.features import extract
from dcmh.methods import crh, get, stmh

HELD_OUT = 0.2
SURE = 3.0  # standard errors
NAME = "baseline_settings"


def cluster_centres(model: stmh.STMH, G2: NDArray[Any], Y: NDArray[Any]) -> NDArray[Any]:  # noqa: N803
    """The other F2: means of the texts that have a topic."""
    return np.asarray(Y.T @ G2 / np.maximum(G2.sum(axis=0), 1))


AUTHORS: dict[str, Any] = {"balance": 0.5, "nu": 1e-6, "gamma": 1e-6, "iterations": 5}  # of STMH's script
RELEASE: dict[str, Any] = {"balance": 0.5, "nu": 0.5, "gamma": 1e-4, "iterations": 10}  # of another
CENTRES = stmh.STMH, "_topics", cluster_centres
# method: name: (settings of the method, what is replaced in it)
VARIANTS: dict[str, dict[str, tuple[dict[str, Any], Any]]] = {
    "stmh": {
        "lambda 0.5, nu 1e-6, gamma 1e-6, 5 iterations (the authors' script)": (AUTHORS, None),
        "nu 0.5, gamma 1e-4, 10 iterations (another release)": (RELEASE, None),
        "nu 1e-3": (AUTHORS | {"nu": 1e-3}, None),
        "nu 0.5": (AUTHORS | {"nu": 0.5}, None),
        "gamma 1e-4": (AUTHORS | {"gamma": 1e-4}, None),
        "gamma 1e-2": (AUTHORS | {"gamma": 1e-2}, None),
        "nu and gamma 1e-4": (AUTHORS | {"nu": 1e-4, "gamma": 1e-4}, None),
        "lambda 0.3": (AUTHORS | {"balance": 0.3}, None),
        "lambda 0.7": (AUTHORS | {"balance": 0.7}, None),
        "10 iterations": (AUTHORS | {"iterations": 10}, None),
        "20 iterations": (AUTHORS | {"iterations": 20}, None),
        "50 iterations": (AUTHORS | {"iterations": 50}, None),
        "F2 as cluster centres": (AUTHORS, CENTRES),
        "F2 as cluster centres, values of the other release": (RELEASE, CENTRES),
    },
    "crh": {
        "new pairs once e passes 0.49": ({}, (crh, "USED_UP", 0.49)),
        "never new pairs": ({}, (crh, "USED_UP", 1.0 - 1e-6)),
        "new pairs once e passes 0.47": ({}, (crh, "USED_UP", 0.47)),
        "new pairs once e passes 0.45": ({}, (crh, "USED_UP", 0.45)),
        "new pairs once e passes 0.4": ({}, (crh, "USED_UP", 0.4)),
        "new pairs for each bit": ({}, (crh, "USED_UP", 0.0)),
    },
}
FIRST = {method: next(iter(variants)) for method, variants in VARIANTS.items()}


def held_out(split: Split) -> Split:
    """Validation items of a split. Its queries are gone."""
    if len(split.train) < len(split.database):
        return validation(split)
    order = np.random.default_rng(0).permutation(len(split.train))
    count = round(len(order) * HELD_OUT)
    rest = split.train.take(np.sort(order[count:]))
    return replace(split, query=split.train.take(np.sort(order[:count])), database=rest, train=rest)


def with_vectors(part: Dataset) -> Dataset:
    """Pictures as their CNN features, computed once for all runs; vectors stay."""
    if part["image"].kind != "image":
        return part
    columns = {**part.columns, "image": Vectors(extract(part["image"]))}
    return Dataset(columns, labels=part.labels, label_names=part.label_names, ids=part.ids, name=part.name)


def measure(split: Split, method: str, variant: str, bits: list[int], seeds: list[int]) -> dict[str, Any]:
    """Validation MAP of each code length, a list over seeds for each direction."""
    settings, replaced = VARIANTS[method][variant]
    maps: dict[str, dict[str, list[float]]] = {}
    began = time.perf_counter()
    for length in bits:
        for seed in seeds:
            with mock.patch.object(*replaced) if replaced else nullcontext():
                model = get(method)(bits=length, seed=seed, **settings).fit(split.train)
            for direction, found in dcmh.evaluate(model, split).directions.items():
                maps.setdefault(str(length), {}).setdefault(direction, []).append(round(found.map["stable"], 4))
    return {"method": method, "variant": variant, "seconds": round(time.perf_counter() - began, 1), "map": maps}


def by_seed(row: dict[str, Any]) -> NDArray[np.float64]:
    """MAP, the mean over directions, of shape (lengths, seeds)."""
    return np.array([np.mean(list(each.values()), axis=0) for each in row["map"].values()])


def gains(rows: list[dict[str, Any]], method: str) -> dict[str, tuple[float, float]]:
    """Of each setting of a method: its gain over the first, and the standard error of that."""
    runs = {row["variant"]: by_seed(row) for row in rows if row["method"] == method}
    found: dict[str, tuple[float, float]] = {}
    for name, run in runs.items():
        gain = run - runs[FIRST[method]]
        lengths, seeds = gain.shape
        found[name] = float(gain.mean()), float(np.sqrt(gain.var(axis=1, ddof=1).sum() / seeds) / lengths)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """The settings of each method: MAP by length and direction, and the gain."""
    lengths, directions = list(rows[0]["map"]), list(next(iter(rows[0]["map"].values())))
    said = [f"{direction.replace('_to_', ' → ')}, {length}" for direction in directions for length in lengths]
    lines = [f"| method | setting | {' | '.join(said)} | gain | +- |", "|---" * (len(said) + 4) + "|"]
    for row in rows:
        maps = [f"{np.mean(row['map'][length][direction]):.4f}" for direction in directions for length in lengths]
        gain, error = gains(rows, row["method"])[row["variant"]]
        end = " | " if row["variant"] == FIRST[row["method"]] else f"{gain:+.4f} | {error:.4f}"
        lines.append(f"| {row['method']} | {row['variant']} | {' | '.join(maps)} | {end} |")
    return "\n".join(lines)


def verdict(files: list[dict[str, Any]]) -> str:
    """Gains on all data sets beside each other, and which settings beat the first by the rule above."""
    lines = [f"| method | setting | {' | '.join(file['data'] for file in files)} | mean | +- | clearly better |"]
    lines.append("|---" * (len(files) + 5) + "|")
    for method, variants in VARIANTS.items():
        each = [gains(file["rows"], method) for file in files]
        for variant in variants:
            if variant == FIRST[method] or not all(variant in found for found in each):
                continue
            gained, errors = (np.array([found[variant][part] for found in each]) for part in (0, 1))
            mean, error = gained.mean(), np.sqrt((errors**2).sum()) / len(each)
            clear = bool((gained > SURE * errors).all() or mean > SURE * error)
            numbers = " | ".join(f"{gain:+.4f}" for gain in [*gained, mean])
            lines.append(f"| {method} | {variant} | {numbers} | {error:.4f} | {'yes' if clear else 'no'} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?")
    parser.add_argument("--queries", type=int, help="of the split; they are left out")
    parser.add_argument("--train-size", type=int)
    parser.add_argument("--bits", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", choices=list(VARIANTS), help="this method; what --out has of the other stays")
    parser.add_argument("--settings", nargs="+", metavar="NAME", help="these beside the method's first row")
    parser.add_argument("--verdict", action="store_true", help="compare the files in --out")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="a folder")
    given = parser.parse_args()
    if given.verdict == bool(given.data):
        parser.error("give either data or --verdict")
    if len(given.seeds) < 2:
        parser.error("--seeds needs two or more, or nothing is known of how they scatter")

    if given.verdict:
        files = [json.loads(file.read_text()) for file in sorted(given.out.glob(f"{NAME}-*.json"))]
        page = [f"{file['said']}\n\n{table(file['rows'])}\n" for file in files]
        text = "\n".join(["# Settings of two baselines, on validation items\n", *page, verdict(files), ""])
        (given.out / f"{NAME}.md").write_text(text, encoding="utf-8")
        print(text)
        return
    split = held_out(prepare(given.data, given.queries, given.train_size, 0))
    query, database, train = map(with_vectors, (split.query, split.database, split.train))
    split = replace(split, query=query, database=database, train=train)
    name = Path(given.data).stem.removesuffix("Data")
    sizes = (
        f"{len(split.query):,} validation queries, {len(split.database):,} searched, {len(split.train):,} trained on"
    )
    said = f"{name}: {sizes}; seeds {', '.join(map(str, given.seeds))}."
    print(said)
    rows = []
    for method in [given.only] if given.only else VARIANTS:
        for variant in VARIANTS[method]:
            if given.settings and variant not in (FIRST[method], *given.settings):
                continue
            rows.append(measure(split, method, variant, given.bits, given.seeds))
            print(method, variant, rows[-1]["map"], rows[-1]["seconds"], "s", flush=True)
    print("\n" + table(rows))
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / f"{NAME}-{name}.json"
    if given.only and file.is_file():
        rows += [row for row in json.loads(file.read_text())["rows"] if row["method"] != given.only]
    rows.sort(key=lambda row: list(VARIANTS).index(row["method"]))
    file.write_text(json.dumps({"data": name, "said": said, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
