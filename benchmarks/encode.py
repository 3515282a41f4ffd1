"""Encoding photos on a CPU: variants of running EfficientNet-Lite0, their cost, and their effect on codes.

    python benchmarks/encode.py coco12k coco.model                # about 5 minutes on 2 quiet cores
    python benchmarks/encode.py coco12k coco.model --count 12000  # MAP on all of them, half an hour
    python benchmarks/encode.py coco12k coco.model --count 256

The model is one that `dcmh train` wrote, on features of efficientnet-lite0. All variants take turns on every batch of 32 photos,
so that a disturbance affects them all; the best batch of each counts. Codes and MAP come from the same features: MAP is that of
the photos used here, a fifth of them queries. ONNX Runtime and OpenVINO are included if installed.
Prints Markdown and writes results/encode.json and results/encode.md beside this file (--out for another folder).
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import multiprocessing
import os
import platform
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import dcmh
from dcmh import codes
from dcmh.data.columns import PICTURE_SIZE
from dcmh.evaluation import metrics
from dcmh.inputs import features, images
from dcmh.inputs.decoding import BATCH, decoded_batches
from dcmh.methods import load
from dcmh.networks import efficientnet
from dcmh.search import SearchIndex

CPU = torch.device("cpu")
PLAIN, BEFORE, OURS = "eager float32, batches of 32", "folded float32, channels last, batches of 32", "dcmh, float32"
LATER = 2  # blocks that stay float32 in the mixed way
Pixels = NDArray[np.uint8]
Way = Callable[[Pixels], NDArray[np.float32]]


def in_parts(way: Callable[[Pixels], Any], size: int) -> Way:
    @torch.inference_mode()
    def run(pixels: Pixels) -> NDArray[np.float32]:
        parts = [way(pixels[start : start + size]) for start in range(0, len(pixels), size)]
        return np.concatenate([np.asarray(part, np.float32) for part in parts])

    return run


def torch_ways() -> dict[str, Callable[[], Way]]:
    """What makes each way; made only when needed, as memory is measured in a process of its own."""

    def network() -> efficientnet.EfficientNetLite:
        return efficientnet.load_imagenet(efficientnet.EfficientNetLite()).eval()

    def plain(size: int) -> Way:
        eager = network()
        return in_parts(lambda pixels: eager(torch.from_numpy(pixels).permute(0, 3, 1, 2).float().contiguous()), size)

    def before() -> Way:
        fused = efficientnet.fuse(network()).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return in_parts(lambda pixels: fused(features.to_batch(pixels, CPU)), BATCH)

    def ours() -> Way:
        encoder = features.frozen("efficientnet-lite0", None, CPU)
        return lambda pixels: features.run(encoder, pixels, CPU)

    def reduced(first: int) -> Way:
        """bfloat16 from the block `first` on; -1: all of it."""
        fused = efficientnet.fuse(network()).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        late = [fused._conv_head, *list(fused._blocks)[max(first, 0) :], *([fused._conv_stem] if first < 0 else [])]
        for module in late:
            module.bfloat16()

        def forward(pixels: Pixels) -> Any:
            x = (features.to_batch(pixels, CPU) - 127) / 128
            x = torch.nn.functional.relu6(fused._conv_stem(x.to(fused._conv_stem.weight.dtype)))
            for block in fused._blocks:
                x = block(x.to(block._project_conv.weight.dtype))
            return torch.nn.functional.relu6(fused._conv_head(x)).float().mean(dim=(2, 3))

        return in_parts(forward, 8)

    return {
        PLAIN: partial(plain, BATCH),
        "eager float32, batches of 4": partial(plain, 4),
        BEFORE: before,
        OURS: ours,
        "folded bfloat16, batches of 8": partial(reduced, -1),
        f"folded bfloat16 after block {LATER}, batches of 8": partial(reduced, LATER),
    }


def other_ways(folder: Path) -> dict[str, Callable[[], Way]]:
    """Other runtimes, where they are installed, with as many threads as torch."""
    path = folder / "network.onnx"
    threads = torch.get_num_threads()

    def export() -> None:
        if not path.exists():
            network = efficientnet.fuse(efficientnet.load_imagenet(efficientnet.EfficientNetLite()))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.onnx.export(
                    network, (torch.zeros(4, 3, 224, 224),), str(path), dynamo=False, input_names=["pixels"]
                )

    def planes(pixels: Pixels) -> NDArray[np.float32]:
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).astype(np.float32)

    def onnxruntime() -> Way:
        import onnxruntime

        export()
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
        return in_parts(lambda pixels: session.run(None, {"pixels": planes(pixels)})[0], 4)

    def openvino(precision: str) -> Way:
        import openvino

        export()
        settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision}
        compiled = openvino.Core().compile_model(str(path), "CPU", settings)
        return in_parts(lambda pixels: compiled(planes(pixels))[0].copy(), 4)

    found: dict[str, Callable[[], Way]] = {}
    exports = importlib.util.find_spec("onnx") is not None
    if exports and importlib.util.find_spec("onnxruntime"):
        found["ONNX Runtime float32, batches of 4"] = onnxruntime
    if exports and importlib.util.find_spec("openvino"):
        found["OpenVINO float32, batches of 4"] = partial(openvino, "f32")
        found["OpenVINO bfloat16, batches of 4"] = partial(openvino, "bf16")
    return found


def peak_memory(name: str, folder: Path, pixels: Pixels) -> float:
    """MB that a way adds to a process of its own, its weights included."""
    make = {**torch_ways(), **other_ways(folder)}[name]
    before = _high_water()
    way = make()
    for _ in range(3):
        way(pixels)
    return _high_water() - before


def _high_water() -> float:
    """MB of this program at most so far (Linux; getrusage would count the process that started it, too)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def by_turns(ways: dict[str, Way], column: Any) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """Seconds and seconds of CPU for each batch and way, and the features."""
    found: dict[str, Any] = {name: {"wall": [], "cpu": []} for name in ways}
    values: dict[str, list[NDArray[np.float32]]] = {name: [] for name in ways}
    for rows, pixels in decoded_batches(column, range(len(column))):
        for name, way in ways.items():
            if rows[0] == 0:
                way(pixels)  # warm
            wall, cpu = time.perf_counter(), time.process_time()
            values[name].append(way(pixels))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if len(pixels) == BATCH:
                found[name]["wall"].append(wall / BATCH)
                found[name]["cpu"].append(cpu / BATCH)
    return found, {name: np.concatenate(parts) for name, parts in values.items()}


def maps(model: Any, outputs: NDArray[Any], data: dcmh.Dataset, queries: int) -> dict[str, float]:
    """MAP in both directions, expected over ties: the first items are queries, the others the database."""
    image = codes.sign(outputs)
    text = model.encode(text=data.text)
    labels = np.asarray(data.labels, np.int32)
    relevant = labels[:queries] @ labels[queries:].T > 0
    found = {}
    for name, asked, kept in (("image to text", image, text), ("text to image", text, image)):
        distances = (model.bits - asked[:queries].astype(np.int32) @ kept[queries:].T.astype(np.int32)) // 2
        found[name] = float(metrics.mean_average_precision(distances, relevant, ties="expected"))
    return found


def decode(executor: Executor, sources: list[bytes]) -> float:
    """Pictures a second, with as many workers as the executor has; best of 3."""
    best = np.inf
    list(executor.map(_decoded, sources))
    for _ in range(3):
        began = time.perf_counter()
        list(executor.map(_decoded, sources))
        best = min(best, time.perf_counter() - began)
    return len(sources) / best


def _decoded(source: bytes) -> Pixels:
    return images.decode(source, PICTURE_SIZE)


def _file(data: dcmh.Dataset, row: int) -> bytes:
    return Path(str(data.image.source(row))).read_bytes()  # type: ignore[union-attr]


def decoding(data: dcmh.Dataset, context: Any) -> list[list[str]]:
    """Threads against processes, for photos as they are, and as large as a camera's."""
    small = [_file(data, row) for row in range(min(len(data), 128))]
    large = []
    for source in small[:16]:
        with io.BytesIO() as file:
            Image.open(io.BytesIO(source)).convert("RGB").resize((4000, 3000)).save(file, "JPEG", quality=90)
            large.append(file.getvalue())
    cores = os.cpu_count() or 1
    rows = []
    for what, sources in (("as they are", small), ("4000 x 3000", large)):
        said = [what]
        for executor in (
            ThreadPoolExecutor(1),
            ThreadPoolExecutor(cores),
            ProcessPoolExecutor(cores, mp_context=context),
        ):
            with executor:
                said.append(f"{decode(executor, sources):,.0f}")
        rows.append(said)
    return rows


def whole(model: Path, data: dcmh.Dataset, folder: Path) -> float:
    """Photos a second of indexing files, nothing cached, the network loaded."""
    os.environ["DCMH_HOME"] = str(folder / "home")
    rows = np.arange(len(data))
    with SearchIndex.build(model, data.take(rows[:BATCH]), folder / "index.dcmh", device="cpu") as index:
        best = 0.0
        for part in np.array_split(rows[BATCH:], 3):
            began = time.perf_counter()
            index.update(data.take(part), keep_gone=True)
            best = max(best, len(part) / (time.perf_counter() - began))
    return best


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def chosen(data: dcmh.Dataset, model: Path, count: int) -> tuple[dcmh.Dataset, int]:
    """Photos the model did not learn from where its split is known: queries first, a fifth of all."""
    queries = count // 5
    row_of = {name: row for row, name in enumerate(data.ids)}
    path = model / "split.json"
    split = json.loads(path.read_text()) if path.exists() else {}
    asked = [row_of[name] for name in split.get("query", data.ids[:queries]) if name in row_of][:queries]
    taken = set(asked) | {row_of[name] for name in split.get("train", []) if name in row_of}
    rest = [row for row in range(len(data)) if row not in taken]
    rest += [row for row in range(len(data)) if row in taken - set(asked)]  # only when the others are too few
    return data.take(np.array(asked + rest[: count - len(asked)])), len(asked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="a folder of photos with text and labels")
    parser.add_argument("model", type=Path, help="a folder that `dcmh train` wrote")
    parser.add_argument("--count", type=int, default=2048, help="photos to encode")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    everything = dcmh.load_dataset(options.photos)
    data, queries = chosen(everything, options.model, options.count)
    model = load(options.model)
    model.device = "cpu"  # type: ignore[attr-defined]
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        makers = {**torch_ways(), **other_ways(work)}
        found, values = by_turns({name: make() for name, make in makers.items()}, data.image)
        pixels = np.stack([_decoded(_file(data, row)) for row in range(BATCH)])
        for name in makers:
            with ProcessPoolExecutor(1, mp_context=context) as alone:
                found[name]["memory"] = alone.submit(peak_memory, name, work, pixels).result()
        decoded = decoding(data, context)
        speed = whole(options.model, data.take(np.arange(min(len(data), 32 + 3 * 256))), work)
    outputs = {name: np.asarray(model._outputs("image", value)) for name, value in values.items()}
    truth = outputs[PLAIN] > 0
    reference = maps(model, outputs[PLAIN], data, queries)
    rows = []
    for name, record in found.items():
        record["bits"] = float(((outputs[name] > 0) == truth).mean())
        record["map"] = maps(model, outputs[name], data, queries)
        record["difference"] = max(abs(record["map"][way] - reference[way]) for way in reference)
        wall, cpu = min(record["wall"]), min(record["cpu"])
        faster = min(found[PLAIN]["wall"]) / wall
        rows.append(
            [
                f"**{name}**" if name == OURS else name,
                f"{1 / wall:.0f}",
                f"{faster:.1f}×",
                f"{1000 * wall:.1f}",
                f"{1000 * cpu:.1f}",
                f"{record['memory']:.0f}",
                f"{100 * record['bits']:.3f} %",
                f"{record['difference']:.4f}",
            ]
        )
    head = ["way", "photos/s", "", "ms a photo", "ms of CPU", "peak MB", "bits equal", "MAP differs by"]
    bare = 1 / min(found[OURS]["wall"])
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
    page = (
        f"# Encoding on a CPU\n\n{machine}, {torch.get_num_threads()} threads; load {os.getloadavg()[0]:.1f} at the end. "
        f"{len(data):,} photos, {queries:,} of them queries; {model.bits} bits.\n\n{table(head, rows)}\n\n"
        f"MAP of the first row: {', '.join(f'{name} {value:.4f}' for name, value in reference.items())}.\n\n"
        f"Indexing files, decoding and the catalogue included: {speed:.0f} photos/s, {100 * speed / bare:.0f} % of the "
        f"network alone.\n\nDecoding, photos/s:\n\n"
        f"{table(['JPEG', '1 thread', f'{os.cpu_count()} threads', f'{os.cpu_count()} processes'], decoded)}\n"
    )
    print(page)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "encode.md").write_text(page)
    record = {"machine": machine, "photos": len(data), "ways": found, "indexing": speed, "decoding": decoded}
    (options.out / "encode.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
