"""Latency of a scan that is sharded over machines, by simulation: queues, stragglers, replicas.

    python benchmarks/scan_queue.py                       # a billion codes, a minute
    python benchmarks/scan_queue.py --codes 10e9 --rate 20

A query goes to every shard and ends with the slowest one. A shard has one or more replicas, machines that each scan one query
at a time, first come first served. A scan takes the shard's codes divided by the speed of a machine (GB/s); in one case of
--stragglers it takes ten times as long (a page fault, a neighbour, a pause). Queries arrive at random (Poisson). Policies:

    one       each shard asks the replica with the shortest queue
    hedged    and a second one if there is no answer after the 95th percentile of an undisturbed scan; the first answer counts,
              and the other scan is not cancelled

The network adds --network ms per query. The simulation is exact for these assumptions, with --queries queries after a tenth of
them as warm-up. `check` compares a single queue with the formula of Pollaczek and Khinchine before anything is printed.
Prints Markdown and writes results/scan_queue.md beside this file (--out for another folder).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

SLOWER = 10.0  # times as long, for a straggler
BYTES = 8  # of a code
SPREAD = 0.05  # of the time of an ordinary scan, as a standard deviation


def scan_times(rng: np.random.Generator, mean: float, stragglers: float, size: tuple[int, ...]) -> np.ndarray:
    """Seconds that scans take."""
    ordinary = mean * np.maximum(0.5, 1 + SPREAD * rng.standard_normal(size))
    return np.where(rng.random(size) < stragglers, SLOWER * mean, ordinary)


def simulate(
    rng: np.random.Generator,
    *,
    shards: int,
    replicas: int,
    mean: float,
    rate: float,
    stragglers: float,
    hedged: bool,
    queries: int,
) -> np.ndarray:
    """The latency of each query in seconds, without the network."""
    arrivals = np.cumsum(rng.exponential(1 / rate, queries))
    times = scan_times(rng, mean, stragglers, (queries, shards, 2))
    free = np.zeros((shards, replicas))  # when each machine will have done what it has been given
    everyone = np.arange(shards)
    patience = mean * (1 + 1.645 * SPREAD)
    latency = np.empty(queries)
    for query, now in enumerate(arrivals):
        first = free.argmin(axis=1)
        begins = np.maximum(now, free[everyone, first])
        ends = begins + times[query, :, 0]
        free[everyone, first] = ends
        if hedged and replicas > 1:
            late = np.flatnonzero(ends > now + patience)
            others = free[late].copy()
            others[np.arange(len(late)), first[late]] = np.inf
            second = others.argmin(axis=1)
            again = np.maximum(now + patience, free[late, second]) + times[query, late, 1]
            free[late, second] = again
            ends[late] = np.minimum(ends[late], again)
        latency[query] = ends.max() - now
    return latency[queries // 10 :]


def check(rng: np.random.Generator) -> float:
    """One machine against the formula for the mean time in an M/G/1 queue; returns the relative difference."""
    mean, rate, stragglers = 0.01, 50.0, 0.01
    sample = scan_times(rng, mean, stragglers, (1_000_000,))
    load = rate * sample.mean()
    expected = sample.mean() + rate * (sample**2).mean() / (2 * (1 - load))
    found = simulate(
        rng, shards=1, replicas=1, mean=mean, rate=rate, stragglers=stragglers, hedged=False, queries=400_000
    ).mean()
    return abs(found - expected) / expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codes", type=float, default=1e9)
    parser.add_argument("--speed", type=float, default=20.0, help="GB/s that one machine scans")
    parser.add_argument("--rate", type=float, default=10.0, help="queries per second")
    parser.add_argument("--stragglers", type=float, default=0.01, help="share of scans that take ten times as long")
    parser.add_argument("--network", type=float, default=1.0, help="ms per query")
    parser.add_argument("--shards", type=int, nargs="+", default=[4, 8, 16, 32, 64, 128])
    parser.add_argument("--queries", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    off = check(rng)
    assert off < 0.05, off
    lines = [
        f"{options.codes:.3g} codes of {BYTES} bytes, {options.speed:g} GB/s per machine, {options.rate:g} queries/s, "
        f"{100 * options.stragglers:g} % of scans ten times slower, {options.network:g} ms of network; latency in ms. "
        f"One queue differs from the formula of Pollaczek and Khinchine by {100 * off:.1f} %.",
        "",
        "| shards | one scan | busy | 1 replica: p50 | p99 | 2 replicas: p50 | p99 | 2, hedged: p50 | p99 |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for shards in options.shards:
        mean = BYTES * options.codes / shards / (options.speed * 1e9)
        busy = options.rate * mean * (1 + (SLOWER - 1) * options.stragglers)
        cells = [f"{shards}", f"{1000 * mean:.1f}", f"{100 * busy:.0f} %"]
        for replicas, hedged in ((1, False), (2, False), (2, True)):
            if busy / replicas >= 0.95:
                cells += ["–", "–"]  # the queue grows without end
                continue
            took = simulate(
                rng,
                shards=shards,
                replicas=replicas,
                mean=mean,
                rate=options.rate,
                stragglers=options.stragglers,
                hedged=hedged,
                queries=options.queries,
            )
            if took[-len(took) // 4 :].mean() > 4 * took[: len(took) // 4].mean():
                cells += ["–", "–"]  # second scans have made it so
                continue
            cells += [f"{1000 * value + options.network:.0f}" for value in np.quantile(took, (0.5, 0.99))]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    (options.out / "scan_queue.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
