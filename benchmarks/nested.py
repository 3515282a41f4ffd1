"""Nested codes beside separate trainings for each length, and the qualities of `dcmh train --quality`: MAP and time.

    python benchmarks/nested.py coco12k --queries 2000 --train-size 5000 --seeds 0 1 2 3 4
    python benchmarks/nested.py coco12k --queries 2000 --train-size 5000 --only fast good best
    python benchmarks/nested.py coco12k --queries 2000 --train-size 5000 --only nested --validation --set PREFIXES=0.5
    python benchmarks/nested.py coco12k --queries 2000 --train-size 5000 --only best --validation --set RATE=3e-4 SIZE=256
    python benchmarks/nested.py coco12k --queries 2000 --train-size 5000 --cost         CPU time of nested and other codes
    python benchmarks/nested.py --speed                 milliseconds of one core per picture, for each image network

MAP is over the whole database, and over those of its items that were not trained on. Ties are stable, as in the paper. With
--validation, items of the database that were not trained on are the queries, to choose settings by; --set changes constants of
the recipe (dcmh.methods.dcmh.recipes.Stable) or of the fine-tuning of "best" (dcmh.methods.dcmh.finetuning). "best" is meant
for a GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accuracy import prepare
from recipe import validation

import dcmh
from dcmh import networks
from dcmh.data import Split
from dcmh.inputs import features
from dcmh.methods.dcmh import DCMH, finetuning
from dcmh.methods.dcmh.recipes import Stable

# name: settings of the method, and the lengths to measure
SETTINGS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "16 bits": ({"bits": 16}, (16,)),
    "32 bits": ({"bits": 32, "nested": False}, (32,)),
    "fast": ({"bits": 64, "nested": False}, (64,)),
    "good": ({"bits": 64, "quality": "good", "nested": False}, (64,)),
    "best": ({"bits": 64, "quality": "best", "nested": False}, (64,)),
    "nested": ({"bits": 64}, (16, 32, 64)),
    "nested, good": ({"bits": 64, "quality": "good", "nested": True}, (16, 32, 64)),
}


def unseen(split: Split) -> Split:
    """The same queries, against the items of the database that were not trained on."""
    trained = set(split.train.ids)
    return replace(
        split, database=split.database.take([i for i, x in enumerate(split.database.ids) if x not in trained])
    )


def measure(split: Split, name: str, seed: int) -> list[dict[str, Any]]:
    """Train once, and measure at each length."""
    settings, lengths = SETTINGS[name]
    began = time.perf_counter()
    model = DCMH(seed=seed, **settings).fit(split.train, fine=0)
    seconds = round(time.perf_counter() - began, 2)
    rows = []
    for bits in lengths:
        row: dict[str, Any] = {"setting": name, "bits": bits, "seed": seed, "seconds": seconds}
        for suffix, part in (("", split), ("_unseen", unseen(split))):
            report = dcmh.evaluate(model.shortened(bits), part)
            row |= {f"{way}{suffix}": round(found.map["stable"], 4) for way, found in report.directions.items()}
        rows.append(row)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """The mean over the seeds and its deviation, as lines of a Markdown table, one for each length."""
    for bits in sorted({row["bits"] for row in rows}):
        some = [row for row in rows if row["bits"] == bits]
        values = [np.array([row[way] for row in some]) for way in some[0] if "_to_" in way]
        cells = " | ".join(f"{v.mean():.4f} ±{v.std(ddof=1) if len(v) > 1 else 0:.4f}" for v in values)
        seconds = float(np.median([row["seconds"] for row in some]))
        print(f"| {some[0]['setting']} | {bits} | {cells} | {seconds:.1f} |", flush=True)


def speed() -> None:
    """The image networks take turns; the CPU time of the fastest of 25 batches of each is printed."""
    torch.set_num_threads(1)
    encoders = {name: features.frozen(name, None, torch.device("cpu")) for name in networks.LITE}
    fastest = dict.fromkeys(encoders, float("inf"))
    for _ in range(25):
        for name, encoder in encoders.items():
            size = networks.size_of(name)
            pixels = torch.full((4, 3, size, size), 100.0).contiguous(memory_format=torch.channels_last)
            began = time.process_time()
            encoder(pixels)
            fastest[name] = min(fastest[name], time.process_time() - began)
    for name, seconds in fastest.items():
        print(f"{name}: {1000 * seconds / 4:.1f} ms per picture")


def cost(split: Split) -> None:
    """The CPU time of six iterations for one length and of nested ones, by turns."""
    for _ in range(3):
        times = []
        for nested in (False, True):
            began = time.process_time()
            DCMH(epochs=6, nested=nested, device="cpu").fit(split.train, fine=0)
            times.append(time.process_time() - began)
        print(f"one length {times[0]:.1f} s, nested {times[1]:.1f} s: {times[1] / times[0]:.2f} times", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", default="coco12k")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--queries", type=int)
    parser.add_argument("--train-size", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--only", nargs="+", choices=list(SETTINGS), default=["16 bits", "32 bits", "fast", "nested", "good"]
    )
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()

    if given.speed:
        speed()
        return
    for name, value in (setting.split("=") for setting in given.set):
        owner = Stable if hasattr(Stable, name) else finetuning
        setattr(owner, name, type(getattr(owner, name))(value))
    split = prepare(given.data, given.queries, given.train_size, 0)
    if given.cost:
        cost(split)
        return
    split = validation(split) if given.validation else split
    print("| setting | bits | image → text | text → image | unseen, image → text | text → image | seconds |")
    print("|---" * 7 + "|")
    rows: list[dict[str, Any]] = []
    for name in given.only:
        own = [row for seed in given.seeds for row in measure(split, name, seed)]
        show(own)
        rows += own
        if given.out:
            given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
