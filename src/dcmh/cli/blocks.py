"""What `dcmh encode` and `dcmh index` have in common when other processes encode: progress, metrics and the plan."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import Parameter

from dcmh.cli import console
from dcmh.cli.options import Device, Switch
from dcmh.util.atomic import write_text

if TYPE_CHECKING:
    from dcmh.search.blocks import Blocks, Pool, State


@Parameter(name="*")
@dataclass
class WorkOptions:
    """Who encodes, and how it is reported."""

    workers: int = 1
    """Number of processes on this machine that encode. Default: this one, which uses all cores."""
    ray: str | None = None
    """Encode on a Ray cluster: auto for the one that this machine belongs to, an address, or local to start one here."""
    dry_run: Switch = False
    """Print the plan, with the time and storage expected from a measured sample, and do nothing else."""
    metrics: Path | None = None
    """Write the progress to this file, in Prometheus' text format; dcmh index does so with --workers or --ray."""
    strict: Switch = False
    """Exit code 3 if anything was skipped."""
    device: Device = "auto"


@contextlib.contextmanager
def opened_pool(workers: int, ray: str | None) -> Iterator[Pool]:
    """The workers that --workers and --ray choose. Ray prints messages on stdout, which go to stderr."""
    from dcmh.search.pools import open_pool

    with contextlib.redirect_stdout(sys.stdout if ray is None else sys.stderr):
        pool = open_pool(workers=workers, ray=ray)
        try:
            yield pool
        finally:
            pool.close()


def reporter(bar: console.Bar, metrics: Path | None) -> Callable[[State], None]:
    """A function that shows the state of a run, and writes it to a file of metrics."""

    def report(state: State) -> None:
        detail = f"{state.failed:,} failed  {size(state.written)} written"
        bar.update(state.done, state.total, detail if state.encoded else "")
        if metrics is not None:
            write_text(metrics, state.exposition())

    return report


def dry_run_result(blocks: Blocks, workers: int, ray: str | None, *, json: bool) -> int:
    """Measure a sample and print the plan."""
    from dcmh.search.plan import measure

    console.say("Measuring a sample …")
    with opened_pool(workers, ray) as pool:
        plan = measure(blocks, pool)
    if json:
        console.result_json(plan.to_json())
        return 0
    cluster = f"{plan.workers:,} on {plan.nodes:,} node{'s' * (plan.nodes != 1)}"
    rows: list[tuple[str, object]] = [
        ("items", f"{plan.items:,}, of which {plan.left:,} are still to be encoded"),
        ("blocks", f"{plan.blocks:,}, of which {plan.blocks_left:,} are still to be encoded"),
        ("workers", f"{cluster}, {plan.cpus} core{'s' * (plan.cpus != 1)} each{', 1 GPU each' if plan.gpus else ''}"),
        ("memory", f"{size(plan.worker_bytes)} per worker, {size(plan.workers * plan.worker_bytes)} in all"),
        ("rate", f"{plan.rate:,.0f} items/s, measured with {plan.sampled:,} items"),
        ("failed", f"{plan.failed:,} of the sample"),
        ("time", f"{console.span(plan.seconds)} ({plan.seconds / 3600:,.1f} hours)"),
        ("blocks on disk", f"{size(plan.block_bytes)}, until the end of the run"),
        ("codes", size(plan.code_bytes)),
        ("fine vectors", size(plan.fine_bytes)),
    ]
    console.result(console.fields(rows))
    return 0


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "bytes" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
