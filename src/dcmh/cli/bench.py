"""dcmh bench: a grid of runs from one TOML file. Each is written when it is done, and none is repeated."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dcmh.cli import console
from dcmh.cli.options import Device, JsonSwitch, Repeatable, Switch
from dcmh.errors import ParameterError

if TYPE_CHECKING:
    from dcmh.experiments.bench import Pace, Task, Workbench


def bench(
    config: Path,
    /,
    *,
    only: Repeatable = None,
    features: Repeatable = None,
    bits: Annotated[list[int] | None, Parameter(negative="")] = None,
    seeds: int | None = None,
    jobs: int = 1,
    dry_run: Switch = False,
    out: Path = Path("results"),
    device: Device = "auto",
    json: JsonSwitch = False,
) -> None:
    """Run methods on feature sets, with several code lengths and seeds, as specified in a TOML file.

    Each run is a JSON file, with a path made of its settings. A run with a file is not repeated, so the same command
    continues an interrupted bench; delete a file to repeat its run.

    Parameters
    ----------
    config
        The TOML file: data, split, features, methods, bits, seeds.
    only
        Only these methods; may be repeated.
    features
        Only these feature sets; may be repeated.
    bits
        Only these code lengths; may be repeated.
    seeds
        Number of seeds to use, from the first.
    jobs
        Number of runs at the same time, each in its own process.
    dry_run
        Show which runs are done and which are to do, and stop.
    out
        The folder of all results.
    """
    from dcmh.experiments import bench

    if jobs < 1:
        raise ParameterError(f"--jobs must be at least 1, not {jobs}.")
    plan = bench.read(config)
    tasks = bench.plan(plan, only=only or (), features=features or (), bits=bits or (), seeds=seeds)
    todo, pace, failed = _to_do(tasks, out)
    summary = bench.summary(tasks, len(tasks) - len(todo))
    about: dict[str, Any] = {"data": plan.name, "results": str(out / plan.name), "runs": len(tasks)}
    about |= {"done": len(tasks) - len(todo)}
    if dry_run:
        console.result_json(about | {"to_do": [str(task.path) for task in todo]}) if json else console.result(summary)
        return
    console.say(summary)
    if todo:
        failed += _run(bench.Workbench(plan, device), todo, out, jobs, pace)
    if json:
        console.result_json(about | {"done": len(tasks), "ran": len(todo), "refused": failed})
    else:
        done = f"Nothing to do: all {len(tasks):,} runs are done"
        if todo:
            done = f"Runs: {len(todo):,} done now, {len(tasks):,} in all"
        refused = f"; {failed:,} were refused by the method, the report says why" if failed else ""
        console.result(f"{done}{refused}.")
    console.say(f"Results are in {out / plan.name}. Next: dcmh report {shlex.quote(str(out / plan.name))}")


def _to_do(tasks: list[Task], out: Path) -> tuple[list[Task], Pace, int]:
    """The runs without a result; the time of the others, and how many of them their method refused."""
    from dcmh.experiments import bench

    todo, pace, failed = [], bench.Pace(), 0
    for task in tasks:
        record = bench.done(task, out)
        if record is None:
            todo.append(task)
        else:
            pace.note(record)
            failed += "error" in record
    return todo, pace, failed


def _run(workbench: Workbench, todo: list[Task], out: Path, jobs: int, pace: Pace) -> int:
    """Run the tasks; returns how many their method refused."""
    from dcmh.experiments import bench

    for note in workbench.notes(todo):
        console.say(note)
    done = failed = 0
    try:
        with console.progress("bench") as bar:
            runs = bench.run(
                workbench,
                todo,
                out,
                jobs=jobs,
                pace=pace,
                progress=lambda at, of, detail, left: bar.update(at, of, detail, left=left),
            )
            for record in runs:
                done += 1
                if "error" in record:
                    failed += 1
                    console.say(f"{record['label']}, {record['bits']} bits, refused: {record['error']}")
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"Interrupted. {done:,} of {len(todo):,} runs are done and kept. Continue: {console.command()}"
        ) from None
    return failed
