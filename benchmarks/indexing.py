"""Speed of `dcmh index` and `dcmh search` on real photos and at a million items.

    python benchmarks/indexing.py coco12k               # a few minutes
    python benchmarks/indexing.py coco12k --count 256 --items 100000

Indexing and the bare image network take turns on the same photos, so that a disturbance affects both. Prints Markdown and
writes results/indexing.json and results/indexing.md beside this file (--out for another folder).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dcmh
from dcmh.data.columns import PICTURE_SIZE
from dcmh.inputs import decoding, features, images
from dcmh.search import Filter, SearchIndex
from dcmh.search.changes import Comparison
from dcmh.stores.base import COLUMNS, Item
from dcmh.stores.local import layout
from dcmh.stores.local.store import LocalStore

QUERY = "dog beach"
FILTERS = {
    "none": None,
    "label": Filter(labels=["kind7"]),
    "folder": Filter(folder="07"),
    "date": Filter(since="2020-01-08", until="2020-01-08"),
    "column": Filter(where=["rating = 7"]),
}
Row = tuple[str, str, str]  # what, measured, goal


def train(data: dcmh.Dataset, folder: Path) -> Path:
    """A model of the usual size; how good it is does not matter here."""
    model = dcmh.DCMH(bits=64, epochs=1, device="cpu").fit(data.with_labels_from_text().take(np.arange(128)))
    model.views_["text"] = model.views_["text"].fit(data.text)  # the whole vocabulary
    words = model.views_["text"].width
    network = model.networks_["text"]
    generator = torch.Generator().manual_seed(0)
    network.weights[0] = torch.nn.Parameter(torch.randn(words, 4096, generator=generator), requires_grad=False)
    model.save(folder)
    return folder


def index_against_network(data: dcmh.Dataset, model: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """Pictures a second, by turns: the bare network on decoded arrays, and the whole of indexing."""
    target = torch.device("cpu")
    network = features.frozen("efficientnet-lite0", None, target)
    parts = np.array_split(np.arange(len(data)), rounds)
    first = SearchIndex.build(model, data.take(parts[0][:32]), folder, device="cpu")
    found: dict[str, list[float]] = {"network": [], "indexing": []}
    for part in parts:
        rows = part[32:] if part[0] == 0 else part
        pixels = np.stack([images.decode(data.image.source(int(row)), PICTURE_SIZE) for row in rows])
        began = time.perf_counter()
        for start in range(0, len(pixels), decoding.BATCH):
            features.run(network, pixels[start : start + decoding.BATCH], target)
        found["network"].append(len(rows) / (time.perf_counter() - began))
        began = time.perf_counter()
        assert first.update(data.take(rows), keep_gone=True).new == len(rows)
        found["indexing"].append(len(rows) / (time.perf_counter() - began))
    first.close()
    ratios = [ours / bare for ours, bare in zip(found["indexing"], found["network"], strict=True)]
    return {**found, "ratio": statistics.median(ratios), "ratios": ratios}


def fill(store: LocalStore, items: list[Item], bits: int) -> None:
    """Items with made-up codes and fine vectors."""
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 256, (len(items), 2, bits // 8), np.uint8)
    fine = generator.integers(-40, 41, (1000, 2, 128), np.int8)
    for start in range(0, len(items), 50_000):
        with store.writing():
            for row in range(start, min(start + 50_000, len(items))):
                number = store.put(items[row])
                for modality, code in zip(("image", "text"), codes[row], strict=True):
                    store.set_code(number, modality, code.tobytes())
                for modality, vector in zip(("image", "text"), fine[row % len(fine)], strict=True):
                    store.set_fine(number, modality, vector.tobytes())


def add_ten(data: dcmh.Dataset, source: Path, model: Path, folder: Path) -> dict[str, float]:
    """The whole process of `dcmh index` when all but ten photos are indexed."""
    with layout.writer(folder):
        layout.begin(folder, model)
        store = LocalStore(folder)
        described = Comparison(store, data, ["image"], "text", source, partial=False)
        items = [entry.item for entry in described.entries[:-10]]
        fill(store, [replace(item, content=os.urandom(16), taken=datetime(2020, 1, 1)) for item in items], 64)
        store.close()
    whole, torch_alone = [], []
    for _ in range(5):
        os.environ["DCMH_HOME"] = str(folder.with_suffix(f".home{len(whole)}"))  # no features from the time before
        began = time.perf_counter()
        said = command("index", source, "--out", folder, "--device", "cpu")
        whole.append(time.perf_counter() - began)
        assert said.startswith("10 new, 0 changed, 0 gone"), said
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        torch_alone.append(time.perf_counter() - began)
        with SearchIndex.open(folder) as index:
            newest = max(item.id for item in index.store.items())
            index.remove(range(newest - 9, newest + 1))
            index.save()
    with SearchIndex.open(folder) as index:
        _ = index.encoders.model
        began = time.perf_counter()
        assert index.update(dcmh.load_dataset(source, keep_partial=True)).new == 10
        inside = time.perf_counter() - began
    return {
        "items": len(items),
        "seconds": min(whole),
        "import torch": min(torch_alone),
        "in a running process": inside,
    }


def described(row: int, text: str) -> Item:
    """One of many items; each filter of FILTERS passes 1 of 100."""
    name, day = f"{row % 100:02}/{row:07}.jpg", datetime(2020, 1, 1) + timedelta(days=row % 100)
    return Item(name, name, text, (f"kind{row % 100}",), taken=day, extra={"rating": row % 100})


def filtered(index: SearchIndex, texts: Sequence[str]) -> dict[str, float]:
    """Median seconds of word queries without a filter and with each, in turns."""
    times: dict[str, list[float]] = {name: [] for name in FILTERS}
    for text in texts:
        for name, chosen in FILTERS.items():
            began = time.perf_counter()
            hits = index.search(text=" ".join(text.split()[:4]), filter=chosen)
            times[name].append(time.perf_counter() - began)
            assert len(hits) == 10
    return {name: statistics.median(found) for name, found in times.items()}


def search_many(model: Path, folder: Path, items: int, texts: Sequence[str]) -> dict[str, Any]:
    """The whole process of a word query."""
    with layout.writer(folder):
        layout.begin(folder, model)
        store = LocalStore(folder)
        fill(store, [described(row, texts[row % len(texts)]) for row in range(items)], 64)
        with store.writing():
            store.note(COLUMNS, '["rating"]')
        store.close()
    began = time.perf_counter()
    SearchIndex.open(folder).close()  # makes the codes from the store, and saves them
    made = time.perf_counter() - began
    began = time.perf_counter()
    SearchIndex.open(folder).close()
    opened = time.perf_counter() - began
    with SearchIndex.open(folder) as index:
        inside = []
        for text in texts[:200]:
            began = time.perf_counter()
            index.search(text=" ".join(text.split()[:4]))
            inside.append(time.perf_counter() - began)
        filters = filtered(index, texts[:100])
    timed: dict[str, list[float]] = {"search": [], "import numpy": []}
    for _ in range(15):
        for name in timed:
            began = time.perf_counter()
            if name == "search":
                assert command("search", folder, QUERY, "--paths").count("\n") == 10
            else:
                subprocess.run([sys.executable, "-c", "import numpy"], check=True)
            timed[name].append(time.perf_counter() - began)
    whole = {name: {"median": statistics.median(times), "best": min(times)} for name, times in timed.items()}
    return {
        "items": items,
        "codes from store": made,
        "open": opened,
        "in process": statistics.median(inside),
        "filters": filters,
        **whole,
    }


def command(*arguments: object) -> str:
    said = subprocess.run(
        [sys.executable, "-m", "dcmh", *map(str, arguments)], check=True, capture_output=True, text=True
    )
    return said.stdout


def table(rows: list[Row]) -> str:
    lines = ["| what | measured | goal |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="a folder of photos with text, 12,000 of them")
    parser.add_argument("--count", type=int, default=1024, help="photos to encode")
    parser.add_argument("--items", type=int, default=1_000_000, help="items of the large index")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    whole = dcmh.load_dataset(options.photos, keep_partial=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        os.environ["DCMH_HOME"] = str(work / "home of training")
        model = train(whole, work / "model")
        os.environ["DCMH_HOME"] = str(work / "home of indexing")
        speed = index_against_network(whole.take(np.arange(options.count)), model, work / "speed.dcmh", rounds=4)
        ten = add_ten(whole, options.photos, model, work / "ten.dcmh")
        many = search_many(model, work / "many.dcmh", options.items, whole.text.values)
    rates = {name: statistics.median(speed[name]) for name in ("network", "indexing")}
    rows: list[Row] = [
        (
            f"indexing {options.count:,} photos, of the bare network's images/s",
            f"{100 * speed['ratio']:.0f} % ({rates['indexing']:.1f} of {rates['network']:.1f})",
            "at least 80 %",
        ),
        (
            f"`dcmh index`, 10 new beside {ten['items']:,}, whole process, best of 5",
            f"{ten['seconds']:.2f} s",
            "under 3 s",
        ),
        ("of it, a process that only imports torch, best of 5", f"{ten['import torch']:.2f} s", ""),
        ("the same from Python, torch and model loaded", f"{ten['in a running process']:.2f} s", ""),
        (
            f"`dcmh search` by words, {many['items']:,} items, whole process",
            f"{many['search']['median']:.2f} s (best {many['search']['best']:.2f})",
            "under 0.6 s",
        ),
        ("the same in a running process, four words of a caption, median", f"{1000 * many['in process']:.0f} ms", ""),
        *(
            (f"the same with a filter that passes 1 %: {name}", f"{1000 * seconds:.0f} ms", "not slower than without")
            for name, seconds in many["filters"].items()
        ),
        ("of it, a process that only imports NumPy", f"{many['import numpy']['median']:.2f} s", ""),
        (f"opening an index of {many['items']:,} items", f"{1000 * many['open']:.0f} ms", ""),
        ("making its codes from the store, after a kill", f"{many['codes from store']:.1f} s", ""),
    ]
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
    page = f"# Indexing and searching\n\n{machine}; load {os.getloadavg()[0]:.1f} at the end.\n\n{table(rows)}\n"
    print(page)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "indexing.md").write_text(page)
    record = {"machine": machine, "speed": speed, "ten": ten, "many": many}
    (options.out / "indexing.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
