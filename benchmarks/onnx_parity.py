"""Whether the codes of exported ONNX files equal those of the model, on real items.

    python benchmarks/onnx_parity.py MODEL DATA                 # 10,000 items
    python benchmarks/onnx_parity.py MODEL DATA --items 1000

MODEL is a DCMH model of the pictures and texts of DATA. Prints Markdown and writes results/onnx_parity.md beside this file.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime

import dcmh
from dcmh.inputs.decoding import decoded_batches
from dcmh.methods.export import NEAR_ZERO, write_onnx


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data")
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    model = dcmh.load(given.model)
    data = dcmh.load_dataset(given.data)
    data = data.take(slice(0, given.items))
    lines = [
        "| modality | items | bits that differ | of them borderline | largest difference of an output |",
        "|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as place:
        for modality in model.modalities:
            file = Path(place) / f"{modality}.onnx"
            write_onnx(model, modality, file)
            session = onnxruntime.InferenceSession(file)
            expected = model.outputs(**{modality: data[modality]})
            began = time.monotonic()
            if data[modality].kind == "image":
                outputs = np.empty_like(expected)
                for rows, pixels in decoded_batches(data[modality], list(range(len(data)))):
                    outputs[rows] = session.run(["outputs"], {"pixels": pixels})[0]
                    if rows[0] % 1024 == 0:
                        print(f"{rows[0]:,} pictures, {time.monotonic() - began:.0f} s", flush=True)
            else:
                outputs = session.run(["outputs"], {modality: model.views_[modality](data[modality])})[0]
            wrong = (outputs >= 0) != (expected >= 0)
            near = np.abs(expected) < NEAR_ZERO * np.abs(expected).max(axis=1, keepdims=True)
            cells = [modality, f"{len(data):,}", f"{wrong.sum():,} of {wrong.size:,}", f"{(wrong & near).sum():,}"]
            lines.append(f"| {' | '.join(cells)} | {np.abs(outputs - expected).max():.1e} |")
    text = (
        f"# ONNX Runtime against the model\n\n    python benchmarks/onnx_parity.py MODEL DATA --items {len(data)}\n\n"
        f"{data.name}, {model.bits} bits, onnxruntime {onnxruntime.__version__}. "
        f"Borderline: an output below {NEAR_ZERO:g} of the item's largest one.\n\n" + "\n".join(lines) + "\n"
    )
    print(text)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "onnx_parity.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
