"""Codes of `dcmh compress` beside sign, ITQ, product quantisation and RaBitQ, at the same number of bytes per vector.

    python benchmarks/compress.py coco12k --vectors use minilm efficientnet --out benchmarks/results/compress.json
    python benchmarks/compress.py wiki --vectors image --queries 500 --out benchmarks/results/compress.json
    python benchmarks/compress.py --table benchmarks/results/compress.json > benchmarks/results/compress.md
    python benchmarks/compress.py coco12k --vectors use --bytes 8 --validation      settings were chosen with this

Queries are drawn first and only measured with: every method learns from the other vectors, which are the database. With
--validation, the queries are drawn from those others instead, and the real ones are left out.

recall: the share of the ten nearest vectors by cosine among the first ten hits; rescored: among the first 200, which a second
stage with the exact vectors would rank. nDCG@10 counts shared labels; MAP: a hit that shares a label is relevant. Hits at equal
distance are in database order. Bytes are those that an index stores per vector: a code of RaBitQ has 8 bytes besides its bits,
so that it starts at 16. Existing rows of --out are kept, and not measured again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dcmh
from dcmh import codes
from dcmh.inputs import encoders, sentences
from dcmh.inputs.features import extract
from dcmh.methods._solvers import itq, principal_axes
from dcmh.search.compress import compress
from dcmh.util.arrays import unit
from dcmh.util.atomic import write_text

BYTES = (8, 16, 32, 64, 128)
MEASURES = ("recall", "rescored", "ndcg", "map")
METHODS = ("sign", "ITQ", "PQ", "RaBitQ", "neighbours", "labels")
SLOW, FEWER = 16, 4000  # from more bytes than this on, DCMH learns from this many vectors, to save time

Ranked = Callable[[np.ndarray], np.ndarray]  # queries to scores (queries, items), the highest first


def vectors_of(data: dcmh.Dataset, name: str) -> np.ndarray:
    """The vectors of captions (use, minilm), of photos (efficientnet), or of a modality that has some."""
    if name == "efficientnet":
        return extract(data["image"])
    if name in data.modalities:
        return np.asarray(data[name].values, np.float32)
    encoder = encoders.text_encoder({"use": "use-multilingual"}.get(name, name))
    return sentences.encode(encoder, [text or "" for text in data["text"].values])


def signs(project: Callable[[np.ndarray], np.ndarray], items: np.ndarray) -> Ranked:
    """Ranking by Hamming distance between signs of projections."""
    packed = codes.pack(codes.sign(project(items)))
    return lambda queries: -codes.hamming(codes.pack(codes.sign(project(queries))), packed).astype(np.float32)


def sign(items: np.ndarray, labels: np.ndarray, size: int) -> Ranked:
    mean, random = items.mean(0), np.random.default_rng(0).standard_normal((items.shape[1], 8 * size))
    if 8 * size <= items.shape[1]:
        random = np.linalg.qr(random)[0]
    return signs(lambda x: (x - mean) @ random, items)


def rotated(items: np.ndarray, labels: np.ndarray, size: int) -> Ranked | None:
    if 8 * size > items.shape[1]:
        return None
    mean = items.mean(0)
    axes = principal_axes(items - mean, 8 * size)
    turned = axes @ itq((items - mean) @ axes, 8 * size, 0)
    return signs(lambda x: (x - mean) @ turned, items)


def quantised(index: Any, items: np.ndarray, project: Callable[[np.ndarray], np.ndarray] = lambda x: x) -> Ranked:
    """Ranking by an index of faiss."""
    index.train(project(items))
    index.add(project(items))

    def scores(queries: np.ndarray) -> np.ndarray:
        distance, found = index.search(project(queries), len(items))
        rank = np.empty((len(queries), len(items)), np.float32)
        np.put_along_axis(rank, found, distance, axis=1)
        return rank

    return scores


def product(items: np.ndarray, labels: np.ndarray, size: int) -> Ranked | None:
    import faiss

    if items.shape[1] % size:
        return None
    return quantised(faiss.IndexPQ(items.shape[1], size, 8, faiss.METRIC_INNER_PRODUCT), items)


def rabitq(items: np.ndarray, labels: np.ndarray, size: int) -> Ranked | None:
    import faiss

    width = min(8 * (size - 8), items.shape[1])
    if width < 8:
        return None
    mean = items.mean(0)
    axes = principal_axes(items - mean, width)
    random = np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))[0]
    turned = (axes @ random).astype(np.float32)
    index = faiss.IndexRaBitQ(width, faiss.METRIC_INNER_PRODUCT)
    assert index.code_size <= size
    return quantised(index, items, lambda x: np.ascontiguousarray((x - mean) @ turned, np.float32))


def learned(similarity: str, **settings: Any) -> Callable[[np.ndarray, np.ndarray, int], Ranked]:
    def learn(items: np.ndarray, labels: np.ndarray, size: int) -> Ranked:
        data = dcmh.Dataset.from_arrays(vectors=items, labels=labels)
        train = FEWER if size > SLOW else len(items)
        model = compress(data, 8 * size, similarity=similarity, train_size=train, fine=0, **settings).model
        return signs(lambda x: model.outputs(vectors=x), items)

    return learn


def measure(ranked: Ranked, queries: np.ndarray, items: np.ndarray, shared: np.ndarray) -> dict[str, float]:
    """Every measure; `shared` (queries, items): the number of shared labels."""
    order = np.argsort(-ranked(queries), axis=1, kind="stable")
    nearest = np.argsort(-(queries @ items.T), axis=1, kind="stable")[:, :10]
    recall, rescored = (
        np.mean([np.isin(nearest[row], order[row, :k]).mean() for row in range(len(queries))]) for k in (10, 200)
    )
    grades = np.take_along_axis(shared, order, axis=1)
    discount = 1 / np.log2(np.arange(2, 12))
    ideal = (-np.sort(-shared, axis=1)[:, :10] * discount).sum(1)
    known = ideal > 0
    ndcg = ((grades[:, :10] * discount).sum(1)[known] / ideal[known]).mean()
    relevant = grades > 0
    precision = np.cumsum(relevant, axis=1) / np.arange(1, len(items) + 1)
    average = (precision * relevant).sum(1)[known] / relevant.sum(1)[known]
    return dict(zip(MEASURES, (float(value) for value in (recall, rescored, ndcg, average.mean())), strict=True))


def run(given: argparse.Namespace) -> None:
    data = dcmh.load_dataset(given.data)
    rows = json.loads(given.out.read_text()) if given.out and given.out.is_file() else []
    made: dict[str, Any] = {"sign": sign, "ITQ": rotated, "PQ": product, "RaBitQ": rabitq}
    extra = {key: json.loads(value) for key, value in (pair.split("=") for pair in given.set)}
    made |= {name: learned(name, **extra) for name in ("neighbours", "labels")}
    matrices = {name: unit(vectors_of(data, name)) for name in given.vectors}
    order = np.random.default_rng(given.draw).permutation(len(data))
    queries, items = order[: given.queries], order[given.queries :]
    if given.validation:
        queries, items = items[: given.queries], items[given.queries :]
    shared = data.labels[queries].astype(np.float32) @ data.labels[items].T.astype(np.float32)
    for size in given.bytes:
        for name, x in matrices.items():
            for method in given.methods:
                key = {"vectors": name, "data": data.name, "bytes": size, "method": method}
                if any(key.items() <= row.items() for row in rows):
                    continue
                began = time.perf_counter()
                ranked = made[method](x[items], data.labels[items], size)
                if ranked is None:
                    continue
                seconds = round(time.perf_counter() - began, 1)
                row = key | {k: round(v, 4) for k, v in measure(ranked, x[queries], x[items], shared).items()}
                rows.append(row | {"seconds": seconds, "queries": len(queries), "items": len(items)})
                print(json.dumps(rows[-1]), flush=True)
                if given.out:
                    write_text(given.out, json.dumps(rows, indent=1) + "\n")


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: for each kind of vectors and each measure, methods by bytes; the best of a column is bold."""
    titles = {
        "recall": "recall@10",
        "rescored": "recall@10, 200 candidates rescored",
        "ndcg": "nDCG@10",
        "map": "label MAP",
    }
    parts = []
    for name in dict.fromkeys(row["vectors"] for row in rows):
        own = [row for row in rows if row["vectors"] == name]
        sizes = sorted({row["bytes"] for row in own})
        about = f"{own[0]['items']:,} vectors of {own[0]['data']}, {own[0]['queries']:,} queries"
        parts.append(f"## {name}: {about}")
        for measure, title in titles.items():
            lines = [f"| {title} | {' | '.join(f'{size} bytes' for size in sizes)} |", "|---" * (len(sizes) + 1) + "|"]
            best = {size: max(row[measure] for row in own if row["bytes"] == size) for size in sizes}
            for method in METHODS:
                cells = []
                for size in sizes:
                    found = [row[measure] for row in own if row["bytes"] == size and row["method"] == method]
                    mark = "**" if found and found[0] == best[size] else ""
                    cells.append(f"{mark}{found[0]:.3f}{mark}" if found else "–")
                shown = f"DCMH, {method}" if method in ("neighbours", "labels") else method
                lines.append(f"| {shown} | {' | '.join(cells)} |")
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?")
    parser.add_argument("--vectors", nargs="+", default=["use", "minilm", "efficientnet"])
    parser.add_argument("--bytes", type=int, nargs="+", default=list(BYTES))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--draw", type=int, default=0, help="seed by which the queries are drawn")
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of DCMH")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(given.table.read_text())))
    else:
        run(given)


if __name__ == "__main__":
    main()
