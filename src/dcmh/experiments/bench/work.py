"""Running a bench, sequentially or in parallel: data, features, learning, evaluation, one file per run."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import platform
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import dcmh
from dcmh import __version__, evaluation, methods
from dcmh.errors import DataError, DCMHError, DeviceError, MissingExtra
from dcmh.experiments.bench.config import Config
from dcmh.experiments.bench.plan import Task, parameters
from dcmh.experiments.bench.preparation import Workbench
from dcmh.methods.base import Hasher
from dcmh.util import device as devices
from dcmh.util.atomic import write_text

FORMAT = 1
Progress = Callable[[int, int, str, float | None], None]  # runs done, runs in total, current run, seconds left
_FATAL = (MissingExtra, DeviceError)  # of the machine, not of the method: not a result for a table


def run(
    bench: Workbench,
    tasks: Sequence[Task],
    results: Path,
    *,
    jobs: int = 1,
    pace: Pace | None = None,
    progress: Progress | None = None,
) -> Iterator[dict[str, Any]]:
    """Run the tasks; yields the record of each run when its file has been written."""
    pace = pace or Pace()
    report = progress or (lambda done, total, detail, left: None)

    def prepare(task: Task) -> None:
        bench.progress = lambda at, of: report(done, len(tasks), f"features {task.features}: {at:,} of {of:,}", None)
        bench.split(task, task.build(bench.device))

    done = 0
    if jobs > 1 and len(tasks) > 1:
        for task in {(task.method, task.features): task for task in tasks}.values():
            prepare(task)  # fill the cache, so that the processes do not all compute the same features
        for record in _in_parallel(bench, tasks, results, jobs):
            done += 1
            pace.note(record)
            title = f"{record['label']} · {record['features']} · {record['bits']} bits · seed {record['seed']}"
            report(done, len(tasks), title, (pace.left(tasks, results) or 0) / jobs)
            yield record
        return
    for task in tasks:
        prepare(task)
        left = pace.left(tasks[done:], results)
        report(done, len(tasks), task.description, left)
        record = perform(bench, task, results, progress=_epochs(report, done, len(tasks), task, left))
        done += 1
        pace.note(record)
        yield record
    report(done, len(tasks), "", 0.0)


def _epochs(
    report: Progress, done: int, total: int, task: Task, left: float | None
) -> Callable[[Mapping[str, Any]], None]:
    """A callback that shows the progress of training."""

    def show(row: Mapping[str, Any]) -> None:
        if "epoch" in row and "epochs" in row:
            report(done, total, f"{task.description} · epoch {row['epoch']}/{row['epochs']}", left)

    return show


def perform(bench: Workbench, task: Task, results: Path, *, progress: Any = None) -> dict[str, Any]:
    """One run, written to one file. If the method raises an error, its message is the result."""
    model = task.build(bench.device)
    record = _about(bench.config, task, model, bench.device)
    split = bench.split(task, model)
    data = bench.data
    record["data"] |= {"items": len(data), "fingerprint": data.fingerprint()}
    record["split"] |= {"queries": len(split.query), "database": len(split.database), "train": len(split.train)}
    try:
        began = time.perf_counter()
        model.fit(split.train, progress=progress, fine=0)
        record["seconds"] = {"training": round(time.perf_counter() - began, 3)}
        timed = _Timed(model)
        measured = evaluation.evaluate(timed, split, k=bench.config.k)
        record["seconds"]["encoding"] = round(timed.seconds, 3)
        record["report"] = measured.to_json()
    except _FATAL:
        raise
    except (DCMHError, np.linalg.LinAlgError, FloatingPointError) as error:
        record["error"] = " ".join(str(error).split())
    record["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    write_text(results / task.path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return record


class Pace:
    """How long runs take, by method, to estimate the remaining time."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], list[float]] = defaultdict(list)

    def note(self, record: Mapping[str, Any]) -> None:
        """Record the time of a run."""
        if "error" in record:  # it failed early, which says nothing about runs that succeed
            return
        seconds = sum(record["seconds"].values())
        for key in ((record["label"], record["features"]), (record["label"], ""), ("", "")):
            self._seconds[key].append(seconds)

    def left(self, tasks: Sequence[Task], results: Path) -> float | None:
        """Estimated seconds for the runs without a result; None before the first is done."""
        if not self._seconds:
            return None
        return sum(self._guess(task) for task in tasks if not (results / task.path).exists())

    def _guess(self, task: Task) -> float:
        for key in ((task.label, task.features), (task.label, ""), ("", "")):
            if key in self._seconds:
                return sum(self._seconds[key]) / len(self._seconds[key])
        return 0.0


class _Timed:
    """A fitted method that measures the time it takes to encode."""

    def __init__(self, model: Hasher) -> None:
        self.bits, self.modalities = model.bits, model.modalities
        self.seconds = 0.0
        self._model = model

    def encode(self, **columns: Any) -> NDArray[np.int8]:
        """See `Hasher.encode`."""
        began = time.perf_counter()
        codes = self._model.encode(**columns)
        self.seconds += time.perf_counter() - began
        return codes


# -- several at once --------------------------------------------------------------------------------------------------

_bench: Workbench | None = None  # of a worker process


def _in_parallel(bench: Workbench, tasks: Sequence[Task], results: Path, jobs: int) -> Iterator[dict[str, Any]]:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with _environment(OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads)):
        pool = ProcessPoolExecutor(
            min(jobs, len(tasks)),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(bench.config, bench.device, threads),
        )
        waiting: set[Future[dict[str, Any]]] = {pool.submit(_perform_in_worker, task, results) for task in tasks}
        try:
            while waiting:
                ready, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ready:
                    yield future.result()
        except BrokenProcessPool as error:
            raise DataError(
                "A process of the bench was killed, perhaps for lack of memory. Finished runs are kept: "
                "repeat the command with fewer --jobs."
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _start_worker(config: Config, device: str, threads: int) -> None:
    global _bench
    torch.set_num_threads(threads)
    _bench = Workbench(config, device)


def _perform_in_worker(task: Task, results: Path) -> dict[str, Any]:
    assert _bench is not None
    return perform(_bench, task, results)


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set variables that are not set yet, for processes started within the block."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


# -- the record of a run -----------------------------------------------------------------------------------------------


def _about(config: Config, task: Task, model: Hasher, device: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "data": {"name": config.name, "source": config.data},
        "split": {"folder": task.folder.name, "seed": config.split.seed},
        "features": task.features,
        "label": task.label,
        "title": _title(task.method) if task.label == task.method else task.label,
        "method": task.method,
        "varied": task.varied,
        "parameters": parameters(model),
        "bits": task.bits,
        "seed": task.seed,
        "ties": config.ties,
        "config": config.file.name,
        "device": _device_name(device),
        "versions": {
            "dcmh": __version__,
            "python": platform.python_version(),
            "numpy": str(np.__version__),
            "torch": str(torch.__version__),
        },
        "commit": _commit(),
    }


@cache
def _title(method: str) -> str:
    """The method's name as in the literature: the part before the colon in the first line of its docstring."""
    return methods.available()[method].partition(":")[0]


def _device_name(device: str) -> str:
    target = devices.resolve(device)
    return torch.cuda.get_device_name(target) if target.type == "cuda" else str(target)


@cache
def _commit() -> str | None:
    """The commit of the package's source, with + if files were changed since; None if it is not a checkout."""
    package = Path(dcmh.__file__).parent

    def git(*words: str) -> str:
        command = ["git", "-C", str(package), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        commit = git("log", "-1", "--format=%H", "--", ".")  # empty if the folder is not part of the repository
        return f"{commit}{'+' if git('status', '--porcelain', '--', '.') else ''}" if commit else None
    except (OSError, subprocess.SubprocessError):
        return None
