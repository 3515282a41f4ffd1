"""MAP over trained items and over items that were not trained on; what keeping some apart costs; how stable the number is.

    python benchmarks/unseen.py effect openmoji --queries 300 --apart 300 --seeds 0 1 2
    python benchmarks/unseen.py effect coco12k --queries 2000 --train 5000 --models coco0.model coco1.model
    python benchmarks/unseen.py cost coco12k --items 2000 --apart 100 --hidden 1024 --seeds 0 1 2
    python benchmarks/unseen.py cost coco12k --items 2000 --apart 100 --method ridge --seeds 0 1 2 3 4 5 6 7 8 9
    python benchmarks/unseen.py spread coco12k --model coco0.model

`effect`: the whole database, its trained items and the others, for one model per seed, or for models that dcmh train wrote.
`cost`: a collection of some items is learned from whole, less its queries, and less as many items more. Both models are then
measured on the same other items, which neither saw. `spread`: the trained model's MAP over few unseen items and few queries,
drawn many times. Ties: expected.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import dcmh
from dcmh.data import Dataset, Split, split_given
from dcmh.evaluation import Side, average_precision_by_direction, encode_sides
from dcmh.methods import get


def means(query: dict[str, Side], database: dict[str, Side], bits: int) -> dict[str, float]:
    """MAP in each direction."""
    return {name: float(ap.mean()) for name, ap in average_precision_by_direction(query, database, bits).items()}


def some(sides: dict[str, Side], rows: Any) -> dict[str, Side]:
    """A part of the items on each side; every item has every modality."""
    return {name: Side(side.packed[rows], labels=np.asarray(side.labels)[rows]) for name, side in sides.items()}


def fitted(train: Dataset, given: argparse.Namespace, seed: int) -> Any:
    own = {"hidden": given.hidden} if given.method == "dcmh" else {}
    return get(given.method)(bits=given.bits, seed=seed, **own).fit(train, fine=0)


def load(given: argparse.Namespace) -> Dataset:
    data = dcmh.load_dataset(given.data)
    return data if data.labels is not None else data.with_labels_from_text()


def effect(given: argparse.Namespace) -> list[dict[str, Any]]:
    """MAP over the whole database, over its trained items and over the others."""
    data, rows = load(given), []
    for seed, folder in zip(given.seeds, given.models or [None] * len(given.seeds), strict=False):
        if folder is not None:
            model, split = dcmh.load(folder), Split.load(Path(folder) / "split.json", data)
        else:
            split = _split(data, given, seed)
            model = fitted(split.train, given, seed)
        query, database = encode_sides(model, split.query, split.database, "labels")
        trained = np.isin(split.database_rows, split.train_rows)
        parts = {"whole": np.ones(len(trained), bool), "trained": trained, "unseen": ~trained}
        for name, mask in parts.items():
            maps = means(query, some(database, mask), model.bits)
            rows.append({"seed": seed, "database": name, "items": int(mask.sum()), **maps})
            _show(rows)
    return rows


def _split(data: Dataset, given: argparse.Namespace, seed: int) -> Split:
    if data.parts is None or given.queries is not None:
        return data.split(given.queries, given.train or len(data) - given.queries - given.apart, seed)
    split = split_given(data)  # of its training items, some are kept apart
    kept = np.random.default_rng(seed).permutation(split.train_rows)[given.apart :]
    data = Dataset(
        data.columns,
        labels=data.labels,
        label_names=data.label_names,
        ids=data.ids,
        parts=[
            "query" if row in set(split.query_rows) else "train" if row in set(kept) else "database"
            for row in range(len(data))
        ],
    )
    return split_given(data)


def cost(given: argparse.Namespace) -> list[dict[str, Any]]:
    """MAP on other items of a model that learned from all but the queries, and of one that learned from fewer."""
    data, rows = load(given), []
    for seed in given.seeds:
        drawn = np.random.default_rng(seed).permutation(len(data))
        own, others = data.take(np.sort(drawn[: given.items])), data.take(np.sort(drawn[given.items :]))
        reference = others.split(1000, 1, seed)
        for apart in (0, given.apart):
            split = own.split(given.queries, given.items - given.queries - apart, seed)
            model = fitted(split.train, given, seed)
            sides = encode_sides(model, reference.query, reference.database, "labels")
            rows.append({"seed": seed, "apart": apart, "trained": len(split.train), **means(*sides, model.bits)})
            _show(rows)
    return rows


def spread(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Mean and standard deviation of MAP over draws of few unseen items, with 5 % as many or as many queries."""
    data = load(given)
    model, split = dcmh.load(given.model), Split.load(Path(given.model) / "split.json", data)
    query, database = encode_sides(model, split.query, split.database, "labels")
    trained = np.isin(split.database_rows, split.train_rows)
    rows: list[dict[str, Any]] = []
    random = np.random.default_rng(0)
    for items in (25, 50, 100, 200, 500, 1000, 2000, 5000):
        for what, rows_of in (("unseen", np.flatnonzero(~trained)), ("trained", np.flatnonzero(trained))):
            values = []
            for _ in range(given.draws):
                few = random.permutation(len(split.query))[: min(items, 1000)]
                part = random.permutation(rows_of)[:items]
                values.append(list(means(some(query, few), some(database, part), model.bits).values()))
            mean, sd = np.mean(values, axis=0), np.std(values, axis=0, ddof=1)
            rows.append({"items": items, "database": what, "queries": min(items, 1000)})
            for name, m, s in zip(("image_to_text", "text_to_image"), mean, sd, strict=True):
                rows[-1] |= {name: float(m), f"{name}_sd": float(s)}
            _show(rows)
    return rows


def _show(rows: list[dict[str, Any]]) -> None:
    row = rows[-1]
    if len(rows) == 1:
        print("| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|")
    values = [f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values()]
    print("| " + " | ".join(values) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["effect", "cost", "spread"])
    parser.add_argument("data")
    parser.add_argument("--queries", type=int)
    parser.add_argument("--train", type=int)
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--apart", type=int, default=100)
    parser.add_argument("--method", default="dcmh")
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--model")
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.what == "cost" and given.queries is None:
        given.queries = 100
    rows = {"effect": effect, "cost": cost, "spread": spread}[given.what](given)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps({"data": given.data, "what": given.what, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
