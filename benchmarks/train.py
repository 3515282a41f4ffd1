"""Time and memory of an outer iteration of DCMH and its parts, compared with two lower bounds set by the hardware.

    python benchmarks/train.py --network cnn-f --points 5000 10000 50000 200000      the paper's networks, on pixels
    python benchmarks/train.py --network frozen --points 5000                        the default, on cached features

Pictures and words are random: speed does not depend on what they show. Weights of CNN-F are random as well.
For cached features the last column is the time of the iteration's matrix products alone, run one after the other in the same
shapes.
The arithmetic floor is the operations of an iteration's matrix products and convolutions at the rate that one large product
reaches here in the same precision; the floor of bytes is its inputs, weights, gradients and outputs read or written once.
"""

import argparse
import platform
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

from dcmh import networks
from dcmh.data.columns import Images
from dcmh.inputs.views import PixelView, VectorView, WordView
from dcmh.methods.dcmh import DCMH, algorithm, gpu
from dcmh.methods.dcmh.recipes import Recipe
from dcmh.methods.dcmh.state import Run, Side
from dcmh.networks import cnnf
from dcmh.util import device as devices

BITS, BATCH, WORDS, LABELS, FEATURES = 64, 128, 1386, 24, 1280
POOL = 1000  # different random pictures
# Multiply-adds of CNN-F for one picture, layer by layer, as its table says.
CNNF_PRODUCTS = (
    54 * 54 * 64 * 11 * 11 * 3
    + 27 * 27 * 256 * 5 * 5 * 64
    + 3 * 13 * 13 * 256 * 3 * 3 * 256
    + 4096 * 6 * 6 * 256
    + 4096 * 4096
    + 4096 * BITS
)
CNNF_WEIGHTS = 11 * 11 * 3 * 64 + 5 * 5 * 64 * 256 + 3 * 9 * 256 * 256 + 36 * 256 * 4096 + 4096 * 4096 + 4096 * BITS
TEXT_WEIGHTS = WORDS * WORDS + WORDS * 4096 + 4096 * BITS
# Values that CNN-F's layers write for one picture: what a step has to move at the least, forwards and backwards.
CNNF_VALUES = 2 * 54 * 54 * 64 + 27 * 27 * 64 + 2 * 27 * 27 * 256 + 4 * 13 * 13 * 256 + 6 * 6 * 256 + 2 * 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=["cnn-f", "efficientnet-lite0", "frozen"], default="cnn-f")
    parser.add_argument("--points", type=int, nargs="+", default=[5000])
    parser.add_argument("--precision", choices=devices.PRECISIONS, nargs="+", default=["auto"])
    parser.add_argument("--iterations", type=int, default=5, help="timed, after one that is not")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    target = devices.resolve(chosen.device)
    lines = [f"{_machine(target)}, torch {torch.__version__}. {chosen.network}, {BITS} bits, batch {BATCH}.", ""]
    lines += [
        "| n | precision | iteration, s | image step, ms | text step, ms | new B, ms | µs a point | peak, GB "
        "| arithmetic floor, s | floor of bytes, s | products alone, s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for points in chosen.points:
        for precision in chosen.precision:
            lines.append(measure(chosen, target, points, devices.precision(precision, target)))
            print(lines[-1], flush=True)
    if chosen.out:
        chosen.out.write_text("\n".join(lines) + "\n")


def measure(chosen: argparse.Namespace, target: torch.device, points: int, precision: str) -> str:
    """One row of the table."""
    run, recipe = start(chosen.network, points, target, precision)
    with devices.arithmetic(precision, target):
        if target.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        parts = []
        for _ in range(chosen.iterations + 1):
            row = []
            for side in run.sides:
                row.append(timed(target, lambda side=side: learn(run, recipe, side)))
            row.append(timed(target, lambda: algorithm.update_codes(run)))
            run.epoch += 1
            parts.append(row)
        image, text, code = np.median(parts[1:], axis=0)
        peak = torch.cuda.max_memory_allocated() / 1e9 if target.type == "cuda" else _peak_memory() / 1e9
        arithmetic, moved = floors(chosen.network, points, target, precision)
        alone = products(points, target) if chosen.network == "frozen" else float("nan")
    steps = points // BATCH
    whole = image + text + code
    cells = [f"{points:,}", precision, f"**{whole:.3f}**", f"{1e3 * image / steps:.2f}", f"{1e3 * text / steps:.2f}"]
    cells += [f"{1e3 * code:.2f}", f"{1e6 * whole / points:.1f}", f"{peak:.2f}", f"{arithmetic:.3f}", f"{moved:.3f}"]
    cells.append(f"{alone:.3f}")
    return "| " + " | ".join(cells) + " |"


def start(network: str, points: int, target: torch.device, precision: str):
    """The state of a training on random data, and its recipe."""
    random = np.random.default_rng(0)
    words = (random.random((points, WORDS), np.float32) < 0.005).astype(np.float32)
    labels = (random.random((points, LABELS)) < 0.1).astype(np.uint8)
    labels[:, 0] |= labels.sum(1) == 0
    frozen = network == "frozen"
    if frozen:
        image = random.standard_normal((points, FEATURES), np.float32)
    else:
        pool = random.integers(0, 256, (min(points, POOL), 224, 224, 3), np.uint8)
        image = Images([pool[i % len(pool)] for i in range(points)])
    recipe = "stable" if frozen else "paper"
    kind = "efficientnet-lite0" if frozen else network
    model = DCMH(
        BITS, recipe=recipe, network=kind, finetune=not frozen, device=str(target), precision=precision, epochs=500
    )
    if network == "cnn-f":
        networks.backbone = lambda name, weights=None: (random_cnnf(), cnnf.FEATURES)
    model.views_ = {"image": VectorView(FEATURES) if frozen else PixelView(), "text": Words(range(WORDS))}
    model.validation = 0.0
    rule = model._recipe(model.views_)
    observed = {name: np.ones(points, bool) for name in ("image", "text")}
    gpu.decoded_batches = undecoded
    with devices.arithmetic(precision, target):
        run = model._start(rule, {"image": image, "text": words}, labels, observed, target)
    return run, rule


def learn(run: Run, recipe: Recipe, side: Side) -> None:
    """One modality's part of an outer iteration."""
    step = side.recorder.recorded(partial(algorithm.gradient_step, run, recipe, side))
    for inputs, batch in algorithm.mini_batches(run, recipe, side):
        step(inputs, batch)


def undecoded(column: Images, rows: list[int], *, batch: int = 256) -> Iterator[tuple[list[int], np.ndarray]]:
    """In place of `decoded_batches`: pictures that are pixels already, as they are."""
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        yield part, np.stack([column.source(row) for row in part])


def random_cnnf() -> cnnf.CNNF:
    """CNN-F with random weights, N(0, 0.01^2): with larger ones the paper's rate ends in infinite outputs."""
    network = cnnf.CNNF()
    for layer in network.children():
        torch.nn.init.normal_(layer.weight, std=0.01)
        torch.nn.init.zeros_(layer.bias)
    network.mean.fill_(120.0)
    return network


class Words(WordView):
    """A bag of words of which only the length is known."""

    width = WORDS


def products(points: int, target: torch.device) -> float:
    """Seconds of the matrix products of an iteration on cached features, and of nothing else."""

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=target)

    layers = [(made(BATCH, width), made(width, 4096), made(BATCH, 4096)) for width in (FEATURES, WORDS)]
    last, f, g = made(4096, BITS), made(BATCH, BITS), made(points, BITS)
    labels, error = made(points, LABELS), made(BATCH, points)

    def step(x: torch.Tensor, weight: torch.Tensor, hidden: torch.Tensor) -> None:
        _ = x @ weight, hidden @ last  # forwards
        _ = hidden.T @ f, f @ last.T, x.T @ hidden  # backwards
        for _ in range(2):  # against the other modality, and its own
            _ = labels[:BATCH] @ labels.T, f @ g.T, error @ g

    def work() -> None:
        for _ in range(points // BATCH):
            for layer in layers:
                step(*layer)

    work()
    return min(timed(target, work) for _ in range(3))


def timed(target: torch.device, work) -> float:
    if target.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if target.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def floors(network: str, points: int, target: torch.device, precision: str) -> tuple[float, float]:
    """Seconds that an iteration takes at the least: by its operations, and by the bytes it must move."""
    if network == "efficientnet-lite0":
        return float("nan"), float("nan")
    steps = points // BATCH
    if network == "cnn-f":
        image, weights, text = CNNF_PRODUCTS, CNNF_WEIGHTS, TEXT_WEIGHTS
        width = 2 if precision == "bfloat16" else 4
        image_bytes = BATCH * (3 * 224 * 224 + 2 * width * CNNF_VALUES) + 16 * weights
    else:
        image = weights = FEATURES * 4096 + 4096 * BITS
        text = WORDS * 4096 + 4096 * BITS
        image_bytes = BATCH * 4 * (FEATURES + 3 * 4096) + 28 * weights  # AdamW reads and writes two moments
    pairs = 2 * points * BITS  # Theta and its gradient, for one point
    operations = 2 * steps * BATCH * (3 * (image + text) + 2 * pairs)
    text_bytes = BATCH * 4 * (WORDS + 3 * 4096) + (16 if network == "cnn-f" else 28) * text
    moved = steps * (image_bytes + text_bytes + 2 * 4 * points * BITS)
    rate, bandwidth = _rates(target, precision)
    return operations / rate, moved / bandwidth


def _rates(target: torch.device, precision: str) -> tuple[float, float]:
    """Operations a second of a large matrix product, and bytes a second of a large copy, measured here."""
    size = 8192 if target.type == "cuda" else 2048
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    a = torch.randn(size, size, device=target, dtype=dtype)
    b = torch.randn(size, size, device=target, dtype=dtype)
    source = torch.empty(1 << (30 if target.type == "cuda" else 27), dtype=torch.uint8, device=target)
    copy = torch.empty_like(source)
    product = min(timed(target, lambda: a @ b) for _ in range(6))
    moved = min(timed(target, lambda: copy.copy_(source)) for _ in range(6))
    return 2 * size**3 / product, 2 * len(source) / moved


def _machine(target: torch.device) -> str:
    if target.type == "cuda":
        return torch.cuda.get_device_name(target)
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def _peak_memory() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
