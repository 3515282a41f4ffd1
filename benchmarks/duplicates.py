"""How well near copies are found among photos, and how fast among many items.

    python benchmarks/duplicates.py coco12k                        # quality, and speed at 1 million items
    python benchmarks/duplicates.py coco12k --items 1000000 10000000 --features

Of 1,000 photos there is a copy of each kind; the other photos are distractors. A pair is right if both pictures come from
the same photo: real copies within the collection count as errors. With --features the image network's features are
compared as well, which takes a few minutes. For speed, made-up signatures are mixtures of two real ones with noise. Prints
Markdown and writes results/duplicates.json and results/duplicates.md beside this file (--out for another folder).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dcmh.data.columns import Images
from dcmh.index import join
from dcmh.inputs import decoding, signatures
from dcmh.search.duplicates import RADIUS, SIMILARITY

KINDS = {
    "resized": "resized to 60 %",
    "recompressed": "recompressed, JPEG quality 40",
    "cropped": "cropped to 95 % of each side, anywhere",
    "cropped10": "cropped by 5 % on all four sides",
    "grey": "grey",
    "mirrored": "mirrored",
}
GOALS = ("resized", "recompressed", "cropped")
COPIED = 1000


def make_copies(photos: list[Path], folder: Path) -> tuple[list[str], list[int], list[str]]:
    """The paths of the copies, the photo of each, and its kind."""
    generator = np.random.default_rng(0)
    chosen = sorted(generator.permutation(len(photos))[:COPIED].tolist())
    files, originals, kinds = [], [], []
    for number in chosen:
        with Image.open(photos[number]) as opened:
            photo = opened.convert("RGB")
        width, height = photo.size
        kept = round(0.95 * width), round(0.95 * height)
        left, top = (int(generator.integers(a - b + 1)) for a, b in zip(photo.size, kept, strict=True))
        rim = round(0.05 * width), round(0.05 * height)
        small = round(0.6 * width), round(0.6 * height)
        copies = {
            "resized": (photo.resize(small, Image.Resampling.LANCZOS), 90),
            "recompressed": (photo, 40),
            "cropped": (photo.crop((left, top, left + kept[0], top + kept[1])), 90),
            "cropped10": (photo.crop((*rim, width - rim[0], height - rim[1])), 90),
            "grey": (photo.convert("L"), 90),
            "mirrored": (photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT), 90),
        }
        for kind, (copy, quality) in copies.items():
            files.append(str(folder / f"{number}-{kind}.jpg"))
            copy.save(files[-1], quality=quality)
            originals.append(number)
            kinds.append(kind)
    return files, originals, kinds


def signatures_of(column: Images) -> NDArray[np.int8]:
    found = [signatures.compute(pixels) for _, pixels in decoding.decoded_batches(column, range(len(column)))]
    return np.concatenate(found)


def near_pairs(values: NDArray[np.int8]) -> NDArray[np.int64]:
    """As `SearchIndex.duplicates` finds them."""
    codes = signatures.codes(values)
    straight = join.pairs(codes, values, RADIUS, SIMILARITY)
    mask = int(signatures.MIRROR_MASK)
    mirrored = join.pairs(codes, values, RADIUS, SIMILARITY, mask=mask, signs=signatures.MIRRORED)
    return np.unique(np.concatenate([straight, mirrored]), axis=0)


def score(pairs: NDArray[np.int64], original: NDArray[np.int64], kind: NDArray[Any], photos: int) -> dict[str, Any]:
    """Recall of each kind: its copies that were found to be copies of their photo. Precision: of all pairs."""
    a, b = pairs[:, 0], pairs[:, 1]
    right = original[a] == original[b]
    to_photo = right & (a == original[b])
    recall = {name: len(np.unique(b[to_photo & (kind[b] == name)])) / COPIED for name in KINDS}
    counted = np.isin(kind, ["", *GOALS])
    few = counted[a] & counted[b]
    return {
        "recall": recall,
        "pairs": len(pairs),
        "wrong": int((~right).sum()),
        "wrong among the photos": int((~right & (b < photos)).sum()),
        "precision": float(right.mean()),
        "precision with the first three kinds only": float(right[few].mean()),
    }


def feature_pairs(column: Images, photos: int, original: NDArray[np.int64], kind: NDArray[Any]) -> dict[str, Any]:
    """The image network's features, centred: wrong pairs among the photos at the cosine that finds 95 % of each goal."""
    from dcmh.inputs import features

    values = features.extract(column, device="cpu")
    values -= values[:photos].mean(axis=0)
    values /= np.sqrt((values**2).sum(axis=1, keepdims=True))
    least = min(
        float(np.quantile((values[rows] * values[original[rows]]).sum(axis=1), 0.05))
        for rows in (np.flatnonzero(kind == name) for name in GOALS)
    )
    wrong = 0
    for start in range(0, photos, 2000):
        products = values[start : start + 2000] @ values[:photos].T
        wrong += int((products >= least).sum())
    return {"cosine": least, "wrong among the photos": (wrong - photos) // 2}


def made_up(real: NDArray[np.int8], items: int) -> NDArray[np.int8]:
    """Signatures with the statistics of real ones."""
    generator = np.random.default_rng(0)
    values = np.empty((items, real.shape[1]), np.int8)
    for start in range(0, items, 100_000):
        count = min(100_000, items - start)
        block = generator.standard_normal((count, real.shape[1]), np.float32) * 8
        for _ in range(2):
            sign = generator.choice(np.array([-1, 1], np.float32), (count, 1))
            block += real[generator.integers(0, len(real), count)] * sign
        values[start : start + count] = np.clip(np.rint(block / np.sqrt(2)), -127, 127)
    return values


def speed(real: NDArray[np.int8], items: int) -> dict[str, Any]:
    """The whole self-join, for straight and for mirrored copies."""
    values = made_up(real, items)
    near_pairs(values[:5000])  # compiles
    began, used = time.perf_counter(), time.process_time()
    pairs = near_pairs(values)
    return {
        "items": items,
        "pairs": len(pairs),
        "seconds": time.perf_counter() - began,
        "processor seconds": time.process_time() - used,
        "peak gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "substrings": join.make_plan(items, RADIUS).lengths,
    }


def page(record: dict[str, Any]) -> str:
    quality = record["quality"]
    rows = [
        f"| {KINDS[name]} | {share:.3f} | {'0.95' if name in GOALS else ''} |"
        for name, share in quality["recall"].items()
    ]
    lines = [
        "# Near copies",
        "",
        f"{record['machine']}; load {record['load'][0]:.1f} before and {record['load'][1]:.1f} after (the machine is shared). "
        "Written by `benchmarks/duplicates.py`.",
        "",
        f"{COPIED:,} of {record['photos']:,} photos with copies of six kinds. Pairs within {RADIUS} of 64 bits whose signatures "
        f"have a cosine of at least {SIMILARITY}.",
        "",
        "| copies | recall | goal |",
        "|---|--:|--:|",
        *rows,
        "",
        f"Precision: {quality['precision']:.4f} of {quality['pairs']:,} pairs; with copies of the first three kinds only "
        f"{quality['precision with the first three kinds only']:.4f} (goal: 0.99). {quality['wrong among the photos']} of the "
        f"{quality['wrong']} wrong pairs are of two photos of the collection, where real copies have not been sorted out.",
        "",
    ]
    if features := record.get("features"):
        lines += [
            "With the cosine of the image network's features instead, at the threshold that finds 95 % of each of the first "
            f"three kinds ({features['cosine']:.2f}), {features['wrong among the photos']:,} pairs of two photos would be wrong.",
            "",
        ]
    lines += [
        "## Speed",
        "",
        "Made-up signatures; straight and mirrored copies together, exact within the radius, two threads.",
        "",
        "| items | seconds | processor seconds | peak memory | pairs | substrings |",
        "|--:|--:|--:|--:|--:|---|",
        *(
            f"| {fast['items']:,} | {fast['seconds']:.0f} | {fast['processor seconds']:.0f} | {fast['peak gigabytes']:.1f} GB | "
            f"{fast['pairs']:,} | {', '.join(map(str, fast['substrings']))} bits |"
            for fast in record["speed"]
        ),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="a folder of photos")
    parser.add_argument("--items", type=int, nargs="+", default=[1_000_000], help="items of each speed test")
    parser.add_argument("--features", action="store_true", help="compare with the image network's features")
    parser.add_argument("--speed", action="store_true", help="measure only the speed; the rest stays as recorded")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    photos = sorted(options.photos.rglob("*.jpg"))
    record: dict[str, Any]
    if options.speed:
        record = json.loads((options.out / "duplicates.json").read_text())
        values = signatures_of(Images([*map(str, photos)]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            files, originals, kinds = make_copies(photos, Path(folder))
            column = Images([*map(str, photos), *files])
            original = np.array([*range(len(photos)), *originals])
            kind = np.array([""] * len(photos) + kinds)
            values = signatures_of(column)
            record = {
                "photos": len(photos),
                "quality": score(near_pairs(values), original, kind, len(photos)),
            }
            if options.features:
                record["features"] = feature_pairs(column, len(photos), original, kind)
    record["speed"] = []
    for items in sorted(options.items):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # whose memory is that of the join alone
            record["speed"].append(pool.submit(speed, values[: len(photos)], items).result())
    record["machine"] = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    record["load"] = load, os.getloadavg()[0]
    text = page(record)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "duplicates.md").write_text(text)
    (options.out / "duplicates.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
