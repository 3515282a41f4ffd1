"""Speed of exact Hamming search, side by side in one run: dcmh, faiss, NumPy, usearch.

    python benchmarks/search.py             # about 3 minutes, 4 GB
    python benchmarks/search.py --quick     # small sizes, half a minute

Engines take turns, so that a disturbance affects all of them; each figure is the best of several turns. Prints Markdown
and writes results/search.json and results/search.md beside this file (--out for another folder).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numba
import numpy as np
import usearch.index

from dcmh.index import HammingIndex, multihash, scan

RADIUS_COLUMNS = ["radius", "hits", "lookup", "scan", "ratio", "faiss MultiHash"]
RADIUS_COLUMNS += ["lookup, alone", "scan, alone", "ratio", "auto: batch / alone"]
Rates = dict[str, float]  # queries a second, by engine


def clustered(rng: np.random.Generator, n: int, bits: int, centres: int = 2000) -> np.ndarray:
    """Packed codes around random centres; each bit differs from its centre's with probability 1/8."""
    words = bits // 64
    middle = rng.integers(0, 2**64, (centres, words), dtype=np.uint64)
    flips = rng.integers(0, 2**64, (n, words), dtype=np.uint64)
    for _ in range(2):
        flips &= rng.integers(0, 2**64, (n, words), dtype=np.uint64)
    return (middle[rng.integers(0, centres, n)] ^ flips).view(np.uint8)


def seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_turns(engines: dict[str, tuple[Callable[[int], Any], int, int]], turns: int) -> Rates:
    """Best queries a second of each engine: name → (call(i), queries in a call, calls in a turn)."""
    best = dict.fromkeys(engines, 0.0)
    for turn in range(turns + 1):  # the first one warms up
        for name, (call, queries, calls) in engines.items():
            rate = queries * calls / seconds(lambda call=call, calls=calls: [call(i) for i in range(calls)])
            if turn:
                best[name] = max(best[name], rate)
    return best


@numba.njit
def read_streams(words: np.ndarray, streams: int) -> int:
    """Add up all words, read as several streams side by side, each in order."""
    length, total = len(words) // 4, np.uint64(0)
    if streams == 1:
        for i in range(len(words)):
            total += words[i]
    else:
        a, b, c, d = words[:length], words[length : 2 * length], words[2 * length : 3 * length], words[3 * length :]
        for i in range(length):
            total += a[i] + b[i] + c[i] + d[i]
    return total


def numpy_search(items: np.ndarray, query: np.ndarray, k: int) -> np.ndarray:
    """What one writes without a library; the order of ties is left open."""
    words, code = items.view(np.uint64), query.view(np.uint64)
    distances = np.bitwise_count(words ^ code).sum(axis=1, dtype=np.uint16) if words.shape[1] > 1 else None
    if distances is None:
        distances = np.bitwise_count(words[:, 0] ^ code[0])
    rows = np.argpartition(distances, k)[:k]
    return rows[np.argsort(distances[rows])]


def flat(items: np.ndarray, queries: np.ndarray, batch: int, k: int, turns: int, slow: bool) -> Rates:
    """Top-k, one thread: one query at a time (batch 1) or all at once."""
    bits = 8 * items.shape[1]
    index = HammingIndex(bits, threads=1)
    index.add(np.arange(len(items)), items)
    reference = faiss.IndexBinaryFlat(bits)
    reference.add(items)
    some = queries[:batch]
    if not (index.search(some, k).distances.reshape(len(some), k) == reference.search(some, k)[0]).all():
        raise SystemExit("dcmh and faiss disagree")
    calls = max(1, 100_000_000 // len(items)) if batch == 1 else 1

    def part(i: int) -> np.ndarray:
        return queries[i : i + 1] if batch == 1 else some

    few = queries[: min(batch, 100)]
    engines: dict[str, tuple[Callable[[int], Any], int, int]] = {
        "dcmh": (lambda i: index.search(part(i), k), batch, calls),
        "faiss": (lambda i: reference.search(part(i) if batch == 1 else few, k), len(few), max(1, calls // 4)),
    }
    if slow:
        engines["numpy"] = (lambda i: numpy_search(items, queries[i], k), 1, 2)
        kind = {"metric": usearch.index.MetricKind.Hamming, "exact": True, "threads": 1}
        words = items.view(np.uint64).reshape(-1)
        for streams in (1, 4):
            engines[f"read {streams}"] = (lambda i, n=streams: read_streams(words, n), 1, calls)
        engines["usearch"] = (lambda i: usearch.index.search(items, queries[i : i + 1], k, **kind), 1, 1)
    return in_turns(engines, turns)


def threads(items: np.ndarray, queries: np.ndarray, k: int, turns: int) -> Rates:
    index = HammingIndex(8 * items.shape[1])
    index.add(np.arange(len(items)), items)

    def search(count: int) -> Callable[[int], Any]:
        def call(_: int) -> None:
            index.threads = count
            index.search(queries, k)

        return call

    return in_turns({f"{count} threads": (search(count), len(queries), 1) for count in (1, 2)}, turns)


def lookups(items: np.ndarray, queries: np.ndarray, radii: list[int], turns: int, other: bool) -> list[dict[str, Any]]:
    """Radius search by lookup, by scan and by faiss's multi-index hashing; one thread; every answer compared."""
    index = HammingIndex(64, threads=1)
    index.add(np.arange(len(items)), items)
    index.within(queries[:1], 0, method="lookup")
    theirs = faiss.IndexBinaryMultiHash(64, 3, 21)
    if other:
        theirs.add(items)
    rows = []
    for r in radii:
        many = queries if r <= 8 else queries[:100]
        ours = index.within(many, r, method="lookup")
        scanned = index.within(many[:200], r, method="scan")
        end = int(ours.offsets[len(scanned)])
        if not (ours.ids[:end] == scanned.ids).all() or not (ours.distances[:end] == scanned.distances).all():
            raise SystemExit(f"lookup and scan disagree at radius {r}")
        engines: dict[str, tuple[Callable[[int], Any], int, int]] = {
            "lookup": (lambda i, r=r, many=many: index.within(many, r, method="lookup"), len(many), 1),
            "scan": (lambda i, r=r: index.within(queries[:64], r, method="scan"), 64, 1),
            "lookup alone": (lambda i, r=r: index.within(queries[i : i + 1], r, method="lookup"), 1, 20),
            "scan alone": (lambda i, r=r: index.within(queries[i : i + 1], r, method="scan"), 1, 5),
        }
        if other:
            theirs.nflip = r // 3
            asked = queries[: 200 if r <= 4 else 20]
            limits = theirs.range_search(asked, r + 1)[0]
            if not (limits == ours.offsets[: len(limits)]).all():
                raise SystemExit(f"faiss's multi-index hashing finds other hits at radius {r}")
            engines["faiss"] = (lambda i, r=r, asked=asked: theirs.range_search(asked, r + 1), len(asked), 1)
        plan = multihash.plan_for(64, len(items))
        chosen = {name: multihash.words_saved(plan, r, 1, n) > 0 for name, n in (("batch", 64), ("alone", 1))}
        rows.append({"radius": r, "hits": len(ours.ids) / len(many), "auto": chosen, **in_turns(engines, turns)})
    tables = index._state.lookups
    rows.append({"tables_bytes": tables.nbytes / len(items), "tables": len(tables.plan.starts)})
    return rows


def storage(items: np.ndarray) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        index = HammingIndex(64)
        index.add(np.arange(len(items)), items)
        saving = seconds(lambda: index.save(folder))
        size = {p.name.split("-")[0]: p.stat().st_size / len(items) for p in Path(folder).glob("*.npy")}
        opening = min(seconds(lambda: HammingIndex.load(folder)) for _ in range(5))
        opened = HammingIndex.load(folder)
        first = seconds(lambda: opened.search(items[:1], 10))
    return {
        "save_s": saving,
        "open_s": opening,
        "first_search_s": first,
        "code_bytes": size["codes"],
        "id_bytes": size["ids"],
    }


def measure(quick: bool) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    small, large, turns = (100_000, 1_000_000, 3) if quick else (1_000_000, 10_000_000, 8)
    scan.engines.load()
    faiss.omp_set_num_threads(1)
    queries = clustered(rng, 1000, 64)
    result: dict[str, Any] = {"small": small, "large": large, "top": []}

    def top(name: str, items: np.ndarray, asked: np.ndarray, batch: int, k: int, slow: bool = False) -> None:
        rates = flat(items, asked, batch, k, turns, slow)
        result["top"].append({"name": name, **rates})

    both = clustered(np.random.default_rng(1), small + 1000, 64)
    items, queries = both[:small].copy(), both[small:].copy()
    top(f"{small:,} × 64, k 10, one at a time", items, queries, 1, 10, slow=True)
    top(f"{small:,} × 64, k 10, batch of 1000", items, queries, 1000, 10)
    top(f"{small:,} × 64, k 100, batch of 1000", items, queries, 1000, 100)
    result["threads"] = [{"name": f"{small:,} × 64, k 10, batch of 1000", **threads(items, queries, 10, turns)}]
    result["crossover"] = {str(small // 10): lookups(items[: small // 10], queries, list(range(15)), 3, False)}
    result["crossover"][str(small)] = lookups(items, queries, list(range(15)), 3, False)
    wide = clustered(np.random.default_rng(2), small + 1000, 128)
    top(f"{small:,} × 128, k 10, one at a time", wide[:small], wide[small:], 1, 10, slow=True)
    top(f"{small:,} × 128, k 10, batch of 1000", wide[:small], wide[small:], 1000, 10)

    both = clustered(np.random.default_rng(3), large + 1000, 64)
    items, queries = both[:large].copy(), both[large:].copy()
    top(f"{large:,} × 64, k 10, one at a time", items, queries, 1, 10, slow=True)
    alone = result["top"][-1]
    read, searched = (rate * large * 8 / 1e9 for rate in (max(alone["read 1"], alone["read 4"]), alone["dcmh"]))
    result["bandwidth"] = {"read_gb_s": read, "search_gb_s": searched, "share": searched / read}
    top(f"{large:,} × 64, k 10, batch of 100", items, queries, 100, 10)
    for asked, name in ((1, "one query"), (100, "batch of 100")):
        rates = threads(items, queries[:asked], 10, 2 * turns)
        result["threads"].append({"name": f"{large:,} × 64, k 10, {name}", **rates})
    result["crossover"][str(large)] = lookups(items, queries, [0, 1, 2, 3, 4, 6, 8, 9, 10, 11, 12, 13], 3, True)
    result["storage"] = storage(items)
    return result


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def rate(row: dict[str, Any], engine: str) -> str:
    return f"{row[engine]:,.0f}" if row.get(engine) else "–"


def markdown(result: dict[str, Any]) -> str:
    machine = result["machine"]
    text = [
        "# Exact Hamming search, measured\n",
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_before']} before and {machine['load_after']} "
        f"after (the machine is shared); {machine['versions']}. Queries a second, one thread unless said, engines in "
        "turns, best of several. Written by `benchmarks/search.py`.\n",
        "## Nearest items\n",
        table(
            ["codes", "dcmh", "faiss flat", "NumPy", "usearch exact", "dcmh / faiss"],
            [
                [
                    r["name"],
                    *(rate(r, e) for e in ("dcmh", "faiss", "numpy", "usearch")),
                    f"{r['dcmh'] / r['faiss']:.1f}",
                ]
                for r in result["top"]
            ],
        ),
        "One query over {:,} codes reads {search_gb_s:.1f} GB/s; one thread of this machine reads {read_gb_s:.1f} GB/s "
        "when it only adds words up (in turn with the searches; better of one and four streams): {share:.0%}.\n".format(
            result["large"], **result["bandwidth"]
        ),
        "## Two threads\n",
        table(
            ["codes", "1 thread", "2 threads", "ratio"],
            [
                [r["name"], rate(r, "1 threads"), rate(r, "2 threads"), f"{r['2 threads'] / r['1 threads']:.2f}"]
                for r in result["threads"]
            ],
        ),
    ]
    for size, rows in result["crossover"].items():
        note = rows[-1]
        text += [
            f"## Within a radius, {int(size):,} × 64\n",
            f"{note['tables']} tables, {note['tables_bytes']:.1f} bytes per item. Answers of up to 200 queries per radius "
            "compared with the scan's: equal.\n",
            table(
                RADIUS_COLUMNS,
                [
                    [
                        str(r["radius"]),
                        f"{r['hits']:.1f}",
                        rate(r, "lookup"),
                        rate(r, "scan"),
                        f"{r['lookup'] / r['scan']:.1f}",
                        rate(r, "faiss"),
                        rate(r, "lookup alone"),
                        rate(r, "scan alone"),
                        f"{r['lookup alone'] / r['scan alone']:.1f}",
                        " / ".join("lookup" if r["auto"][how] else "scan" for how in ("batch", "alone")),
                    ]
                    for r in rows[:-1]
                ],
            ),
        ]
    text += [
        "## On disk\n",
        "{:,} codes: {code_bytes:.2f} bytes per code and {id_bytes:.2f} bytes per id; saved in {save_s:.2f} s, opened "
        "(memory-mapped) in {open_s:.4f} s, first search {first_search_s:.4f} s.\n".format(
            result["large"], **result["storage"]
        ),
    ]
    return "\n".join(text)


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="sizes ten times smaller; writes nothing unless --out is given"
    )
    parser.add_argument("--out", type=Path, help="folder for search.json and search.md")
    options = parser.parse_args()
    load = f"{os.getloadavg()[0]:.1f}"
    result = measure(options.quick)
    versions = (
        f"numpy {np.__version__}, numba {numba.__version__}, faiss {faiss.__version__}, usearch {usearch.__version__}"
    )
    result["machine"] = {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load_before": load,
        "load_after": f"{os.getloadavg()[0]:.1f}",
        "versions": versions,
    }
    text = markdown(result)
    print(text)
    out = options.out or (None if options.quick else Path(__file__).parent / "results")
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / "search.json").write_text(json.dumps(result, indent=1) + "\n")
        (out / "search.md").write_text(text)


if __name__ == "__main__":
    main()
