"""dcmh bench: a grid of runs from one TOML file, each written when it is done, none done twice."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dcmh.cli import console
from dcmh.cli.options import Switch
from dcmh.errors import ParameterError

if TYPE_CHECKING:
    from dcmh.experiments.bench import Pace, Task, Workbench


def bench(
    config: Path,
    /,
    *,
    only: Annotated[list[str] | None, Parameter(negative="")] = None,
    features: Annotated[list[str] | None, Parameter(negative="")] = None,
    bits: Annotated[list[int] | None, Parameter(negative="")] = None,
    seeds: int | None = None,
    jobs: int = 1,
    dry_run: Switch = False,
    out: Path = Path("results"),
    device: str = "auto",
    json: Switch = False,
) -> None:
    """Run methods on feature sets at several lengths with several seeds, as a TOML file says.

    Each run is a JSON file, its path made of the settings. A run that has its file is not done again, so an interrupted
    bench goes on with the same command; delete a file to run it anew.

    Parameters
    ----------
    config
        The TOML file: data, split, features, methods, bits, seeds.
    only
        Only these methods; may be repeated.
    features
        Only these feature sets; may be repeated.
    bits
        Only these lengths; may be repeated.
    seeds
        Only the first so many seeds.
    jobs
        Runs at the same time, each in a process of its own.
    dry_run
        Say what is done and what is to do, and stop.
    out
        The folder of all results.
    device
        auto, cpu, cuda, cuda:1 or mps.
    json
        Print the result as JSON.
    """
    from dcmh.experiments import bench

    if jobs < 1:
        raise ParameterError(f"--jobs {jobs}: at least one run at a time.")
    settled = bench.read(config)
    tasks = bench.plan(settled, only=only or (), features=features or (), bits=bits or (), seeds=seeds)
    todo, pace, failed = _to_do(tasks, out)
    said = bench.summary(tasks, len(tasks) - len(todo))
    about: dict[str, Any] = {"data": settled.name, "results": str(out / settled.name), "runs": len(tasks)}
    about |= {"done": len(tasks) - len(todo)}
    if dry_run:
        console.result_json(about | {"to_do": [str(task.path) for task in todo]}) if json else console.result(said)
        return
    console.say(said)
    if todo:
        failed += _run(bench.Workbench(settled, device), todo, out, jobs, pace)
    if json:
        console.result_json(about | {"done": len(tasks), "ran": len(todo), "refused": failed})
    else:
        done = f"Nothing to do, all {len(tasks):,} are done"
        if todo:
            done = f"Runs: {len(todo):,} done now, {len(tasks):,} in all"
        refused = f"; {failed:,} refused by the method, the report says why" if failed else ""
        console.result(f"{done}{refused}.")
    console.say(f"Results are in {out / settled.name}. Next: dcmh report {shlex.quote(str(out / settled.name))}")


def _to_do(tasks: list[Task], out: Path) -> tuple[list[Task], Pace, int]:
    """The runs without a result; how long the others took, and how many of those their method refused."""
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
    """Run what is to do; how many runs their method refused."""
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
            f"Interrupted. {done:,} of {len(todo):,} runs were done and are kept. Go on: {console.command()}"
        ) from None
    return failed
