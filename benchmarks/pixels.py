"""Learning from pixels end to end, from decoding the pictures to the last MAP: time and accuracy.

    python benchmarks/pixels.py coco12k --network efficientnet-lite0            fine-tuned, the default recipe
    python benchmarks/pixels.py coco12k --network cnn-f --recipe paper --precision bfloat16 float32

Meant for a GPU. Two parts are timed: decoding and training; encoding queries and database, and evaluation. Ties are stable.

CNN-F without --weights starts from random weights, from which the paper's recipe learns next to nothing. If the ImageNet weights
are not available, the stable recipe can train some on the training pictures, enough to compare numerical precisions:

    python benchmarks/pixels.py coco12k --network cnn-f --backbone 1 --keep start.mat
    python benchmarks/pixels.py coco12k --network cnn-f --weights start.mat --recipe paper \\
        --precision bfloat16 float32
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recipe import validation
from scipy.io import savemat
from train import random_cnnf

import dcmh
from dcmh import networks
from dcmh.methods.dcmh import DCMH
from dcmh.methods.dcmh.recipes import Stable
from dcmh.networks import cnnf
from dcmh.util import device as devices

LAYERS = ("conv1", "conv2", "conv3", "conv4", "conv5", "full6", "full7")


class Clock:
    """Seconds of each part, and of all."""

    def __init__(self, target: torch.device) -> None:
        self.target = target
        self.parts: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        if self.target.type == "cuda":
            torch.cuda.synchronize(self.target)
        self.parts[name] = round(time.perf_counter() - began, 2)


def measure(split: Any, precision: str, seed: int, chosen: argparse.Namespace) -> dict[str, Any]:
    target = devices.resolve(chosen.device)
    clock = Clock(target)
    settings = {"recipe": chosen.recipe, "network": chosen.network, "weights": chosen.weights, "epochs": chosen.epochs}
    model = DCMH(chosen.bits, seed=seed, finetune=True, device=str(target), precision=precision, **settings)
    if target.type == "cuda":
        torch.cuda.reset_peak_memory_stats(target)
    with clock.part("decoding and training"):
        model.fit(split.train)
    with clock.part("encoding and evaluation"):
        report = dcmh.evaluate(model, split)
    if chosen.keep:
        keep(model.networks_["image"].backbone, chosen.keep)
    row = {"network": chosen.network, "recipe": chosen.recipe, "precision": devices.precision(precision, target)}
    row |= {"bits": chosen.bits, "seed": seed, "epochs": len(model.history_), "chance": round(report.chance, 4)}
    row |= {name: round(direction.map["stable"], 4) for name, direction in report.directions.items()}
    peak = torch.cuda.max_memory_allocated(target) / 1e9 if target.type == "cuda" else None
    whole = round(sum(clock.parts.values()), 2)
    return row | {"seconds": clock.parts | {"all": whole}, "peak_gb": None if peak is None else round(peak, 2)}


def keep(network: cnnf.CNNF, path: Path) -> None:
    """CNN-F as a file in MatConvNet's layout."""
    layers = np.empty(len(LAYERS), object)
    for i, name in enumerate(LAYERS):
        layer = getattr(network, name)
        both = np.empty(2, object)
        both[0] = layer.weight.detach().cpu().numpy().transpose(2, 3, 1, 0)
        both[1] = layer.bias.detach().cpu().numpy()
        layers[i] = {"name": name.replace("full", "fc"), "weights": both}
    mean = network.mean.cpu().numpy().transpose(1, 2, 0)
    savemat(path, {"layers": layers, "meta": {"normalization": {"averageImage": mean}}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--train-size", type=int, default=5000)
    parser.add_argument("--network", choices=["efficientnet-lite0", "cnn-f"], default="efficientnet-lite0")
    parser.add_argument("--weights", type=Path, help="imagenet-vgg-f.mat, for cnn-f")
    parser.add_argument("--recipe", choices=["stable", "paper"], default="stable")
    parser.add_argument(
        "--backbone", type=float, help="share of the hash layers' rate at which the image network learns"
    )
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--precision", choices=devices.PRECISIONS, nargs="+", default=["auto"])
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--validation", action="store_true", help="items of the database as queries, to choose settings by"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--keep", type=Path, help="write the trained CNN-F to this file, for --weights")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    if chosen.keep and chosen.network != "cnn-f":
        parser.error("--keep writes CNN-F: give --network cnn-f")
    split = dcmh.load_dataset(chosen.data).split(chosen.queries, chosen.train_size, seed=0)
    if chosen.validation:
        split = validation(split)
    if chosen.network == "cnn-f" and chosen.weights is None:
        networks.backbone = lambda name, weights=None: (random_cnnf(), cnnf.FEATURES)
    if chosen.backbone is not None:
        Stable.BACKBONE = Stable.UNMEASURED = chosen.backbone
    rows = []
    for precision in chosen.precision:
        for seed in chosen.seeds:
            rows.append(measure(split, precision, seed, chosen))
            print(json.dumps(rows[-1]), flush=True)
    if chosen.out:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
