"""One training run: fit with a way to go on after an interruption, measure, write the model folder in one go."""

from __future__ import annotations

import inspect
import itertools
import json
import platform
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcmh import __version__
from dcmh.cli import console, source
from dcmh.cli.workspace import Workspace, gentle_stop
from dcmh.errors import DeviceError, TrainingStopped

if TYPE_CHECKING:
    from dcmh.data import Dataset, Split
    from dcmh.evaluation import Relevance, Report
    from dcmh.methods.base import Hasher

RUN, SKIPPED = "run.json", "skipped.tsv"


def learn(
    model: Hasher, split: Split, out: Path, *, resume: bool, record: Mapping[str, Any], fine: Mapping[str, Any]
) -> Report:
    """Fit, measure, save: the model folder appears whole, at the end; until then the state lies in MODEL.checkpoint."""
    work = Workspace(out)
    work.open(resume=resume)
    finished = False
    try:
        began = time.monotonic()
        before = _fit(model, split.train, work, fine)
        record["seconds"]["training"] = round(before + time.monotonic() - began, 2)
        report = measure_and_save(model, split, out, record)
        finished = True
    finally:
        work.close(finished=finished)
    return report


def follow(model: Hasher, split: Split, out: Path, fine: Mapping[str, Any]) -> None:
    """Train with the first process of torchrun, from the same state; it writes what comes of it."""
    if "checkpoint" not in inspect.signature(model.fit).parameters:
        return
    with gentle_stop() as stop:
        model.fit(split.train, checkpoint=Workspace(out).state, stop=stop, **fine)  # type: ignore[call-arg]


def measure_and_save(model: Hasher, split: Split, out: Path, record: Mapping[str, Any]) -> Report:
    """Measure on the held-out queries; write the model with its split, report, skipped files and run, or nothing."""
    from dcmh import evaluate
    from dcmh.methods import folder
    from dcmh.search import calibration

    began = time.monotonic()
    relevance: Relevance = "pairing" if split.query.labels is None else "labels"
    report = evaluate(model, split, joint=True, relevance=relevance)
    held_out = calibration.measure(model, split)
    record["seconds"]["evaluation"] = round(time.monotonic() - began, 2)
    skipped = record["skipped"]
    run = {"format": 1, **record, "skipped": len(skipped), **_circumstances()}
    extra = {
        folder.SPLIT: split.to_text() + "\n",
        folder.REPORT: json.dumps(report.to_json() | {calibration.HELD: held_out}, indent=1) + "\n",
        RUN: json.dumps(run, indent=1, ensure_ascii=False) + "\n",
    }
    if skipped:
        extra[SKIPPED] = source.as_table(skipped)
    model.save(out, extra=extra)
    return report


def _circumstances() -> dict[str, Any]:
    import numpy
    import torch

    versions = {"dcmh": __version__, "python": platform.python_version(), "numpy": numpy.__version__}
    return {
        "versions": versions | {"torch": torch.__version__},
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _fit(model: Hasher, train: Dataset, work: Workspace, fine: Mapping[str, Any]) -> float:
    """Learn; the seconds of iterations made before an interruption."""
    import torch

    can_resume = "checkpoint" in inspect.signature(model.fit).parameters
    again = console.command("--resume")
    try:
        with console.progress(model.name) as bar:
            if not can_resume:
                model.fit(train, progress=shown(bar), **fine)
                return 0.0
            show, now = shown(bar), []  # iterations of this process

            def progress(row: Mapping[str, Any]) -> None:
                now.append(row)
                show(row)

            with gentle_stop() as stop:
                model.fit(train, progress=progress, checkpoint=work.state, stop=stop, **fine)  # type: ignore[call-arg]
            history: list[Mapping[str, Any]] = getattr(model, "history_", [])
            return float(sum(row["seconds"] for row in history[: len(history) - len(now)]))
    except TrainingStopped as error:
        stopped = str(error).partition(". ")[0]
        raise TrainingStopped(f"{stopped}; the state is saved in {work.folder}. Go on: {again}") from error
    except KeyboardInterrupt:
        kept = (
            f"The state saved last is in {work.folder}. Go on: {again}"
            if work.state.is_file()
            else "Nothing was written."
        )
        raise KeyboardInterrupt(f"Stopped at once. {kept}") from None
    except torch.OutOfMemoryError as error:
        size = getattr(model, "batch_size", None) or 128
        raise DeviceError(
            f"CUDA ran out of memory at batch size {size}. Try --batch-size {max(2, size // 2)}: the result is "
            "comparable, not identical; or --device cpu."
        ) from error


def shown(bar: console.Bar) -> Callable[[Mapping[str, Any]], None]:
    """A progress record on the bar: the terms of the loss, the MAP of held-out training items, and the time left.

    While an image network rests, iterations are many times faster than when it learns: no time left is said then.
    """
    from dcmh.evaluation import short

    calls = itertools.count(1)
    rested = False

    def show(record: Mapping[str, Any]) -> None:
        nonlocal rested
        resting = bool(record.get("resting"))
        if rested and not resting:
            bar.start_anew()
        rested = resting
        names = [name for name, value in record.items() if isinstance(value, float) and name != "seconds"]
        detail = [f"{name} {record[name]:.3f}" for name in names]
        directions = record.get("map") or {}
        if directions:
            detail.append(
                "MAP* " + " ".join(f"{short(name, directions)} {value:.3f}" for name, value in directions.items())
            )
        done = int(record.get("epoch", next(calls)))
        later = "(slower when the image network learns)" if resting else None
        bar.update(done, int(record.get("epochs", done)), " ".join(detail), left=later)

    return show
