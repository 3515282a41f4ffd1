"""Could pictures be encoded without torch? EfficientNet-Lite0 in ONNX Runtime beside our torch encoder: speed, and equal bits.

    pip install onnx onnxscript onnxruntime        # only this script needs the first two
    python benchmarks/light_install.py coco12k --count 256

One thread each, by turns on the same decoded photos; features of both go through the starter model, and the bits of codes that
differ are counted. CONTRIBUTING.md has the decision. Prints Markdown and writes results/light_install.md beside this file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
import torch

import dcmh
from dcmh.inputs import decoding, features, images
from dcmh.methods import starter
from dcmh.networks import efficientnet

BATCH = 8


def session(folder: str) -> onnxruntime.InferenceSession:
    """The network with fused normalisation, as ONNX Runtime runs it with one thread."""
    network = efficientnet.fuse(efficientnet.load_imagenet(efficientnet.EfficientNetLite0())).eval()
    path = f"{folder}/network.onnx"
    example = torch.zeros(BATCH, 3, decoding.SIZE, decoding.SIZE)
    torch.onnx.export(network, (example,), path, input_names=["pixels"], dynamo=True, external_data=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    column = dcmh.load_dataset(options.photos, keep_partial=True).image
    count = options.count // BATCH * BATCH
    pixels = np.stack([images.decode(column.source(row), decoding.SIZE) for row in range(count)])
    ours = features.frozen("efficientnet-lite0", None, cpu)
    with tempfile.TemporaryDirectory() as folder:
        theirs = session(folder)
    seconds: dict[str, list[float]] = {"torch": [], "ONNX Runtime": []}
    found: dict[str, list[np.ndarray]] = {"torch": [], "ONNX Runtime": []}
    for start in range(0, count, BATCH):
        block = pixels[start : start + BATCH]
        began = time.perf_counter()
        found["torch"].append(features.run(ours, block, cpu))
        seconds["torch"].append(time.perf_counter() - began)
        began = time.perf_counter()
        batch = np.ascontiguousarray(features.to_batch(block, cpu).numpy())
        found["ONNX Runtime"].append(theirs.run(None, {"pixels": batch})[0])
        seconds["ONNX Runtime"].append(time.perf_counter() - began)
    one, other = (np.concatenate(found[name]) for name in ("torch", "ONNX Runtime"))
    model = dcmh.load(starter.folder())
    codes = [dcmh.codes.sign(model._outputs("image", values)) for values in (one, other)]
    differ = int((codes[0] != codes[1]).sum())
    lines = [
        "# Pictures without torch",
        "",
        f"EfficientNet-Lite0, {count} photos, batches of {BATCH}, one thread, by turns; torch {torch.__version__}, "
        f"ONNX Runtime {onnxruntime.__version__}, load {os.getloadavg()[0]:.1f} at the end.",
        "",
        "| | photos per second, median |",
        "|---|---:|",
        *(f"| {name} | {BATCH / statistics.median(values[1:]):.1f} |" for name, values in seconds.items()),
        "",
        f"Bit-identical features: {np.mean(one == other):.1%}; largest difference {np.abs(one - other).max():.2g} "
        f"(features go up to {np.abs(one).max():.2g}). Bits of codes that differ: {differ} of {codes[0].size:,}.",
    ]
    print("\n".join(lines))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "light_install.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
