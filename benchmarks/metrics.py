"""How long a whole evaluation takes: four MAP policies with an interval, NDCG and the lookup curve, from packed codes.

    python benchmarks/metrics.py [--queries 2000] [--database 100000] [--bits 64] [--labels 128] [--json]

The first call is timed separately: it compiles the kernels, into a new empty cache.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def timed(work: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    """The result, and the best time in seconds: other jobs on the machine only ever add."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return result, best


def measure(options: argparse.Namespace) -> dict[str, Any]:
    from dcmh.evaluation import metrics

    random = np.random.default_rng(0)

    def side(n: int) -> tuple[Any, Any]:
        packed = random.integers(0, 256, (n, -(-options.bits // 8)), np.uint8)
        packed[:, -1] &= 0xFF >> (-options.bits % 8)
        return packed, (random.random((n, options.labels)) < 4 / options.labels).astype(np.uint8)

    def arguments(n_queries: int, n_database: int) -> tuple[Any, ...]:
        (query, query_labels), (database, database_labels) = side(n_queries), side(n_database)
        return query, database, query_labels, database_labels, options.bits

    tiny, full = arguments(2, 10), arguments(options.queries, options.database)
    seconds: dict[str, float] = {}
    _, seconds["first call (import, compile)"] = timed(
        lambda: (metrics.rank_counts(*tiny), metrics.stable_average_precision(*tiny)), 1
    )
    counts, seconds["counts"] = timed(lambda: metrics.rank_counts(*full), options.repeats)
    stable, seconds["MAP stable"] = timed(
        lambda: metrics.stable_average_precision(*full, counts=counts), options.repeats
    )
    maps = {"stable": float(stable.mean())}
    for ties in ("expected", "best", "worst"):
        maps[ties], seconds[f"MAP {ties}"] = timed(
            lambda ties=ties: counts.mean_average_precision(ties=ties), options.repeats
        )
    _, seconds["precision at 1, 5, 10, 50, 100"] = timed(
        lambda: counts.precision_at((1, 5, 10, 50, 100)), options.repeats
    )
    _, seconds["lookup, every radius"] = timed(counts.lookup, options.repeats)
    _, seconds["interval of a MAP"] = timed(lambda: metrics.prediction_interval(stable), options.repeats)
    metrics.rank_ndcg(*tiny, (10, 100, 1000))
    _, seconds["NDCG at 10, 100, 1000"] = timed(lambda: metrics.rank_ndcg(*full, (10, 100, 1000)), options.repeats)
    total = sum(list(seconds.values())[1:])
    sizes = {name: getattr(options, name) for name in ("queries", "database", "bits", "labels")}
    return {**sizes, "cores": os.cpu_count(), "chance": counts.chance, "map": maps, "seconds": seconds, "total": total}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("queries", 2000), ("database", 100_000), ("bits", 64), ("labels", 128), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NUMBA_CACHE_DIR"] = folder  # read when numba is imported, which is later
        result = measure(options)
    if options.json:
        print(json.dumps(result))
        return
    print("{queries} queries x {database} points x {bits} bits, {labels} labels, {cores} cores".format(**result))
    for name, value in result["seconds"].items():
        print(f"  {name:<32}{value:8.3f} s")
    print(f"  {'total without the first call':<32}{result['total']:8.3f} s")


if __name__ == "__main__":
    main()
