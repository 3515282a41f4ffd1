"""One training run: fit with checkpoints, measure, write the model folder atomically."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import platform
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dcmh import __version__
from dcmh.cli import console
from dcmh.errors import BusyError, DeviceError, StorageError, TrainingStopped
from dcmh.util.locks import locked

if TYPE_CHECKING:
    from dcmh.data import Dataset, Split
    from dcmh.evaluation import Relevance, Report
    from dcmh.methods.base import Hasher


def learn(
    model: Hasher, split: Split, out: Path, *, resume: bool, record: Mapping[str, Any], fine: Mapping[str, Any]
) -> Report:
    """Fit, measure, save. The model folder appears at the end; until then the state is in MODEL.checkpoint."""
    work = CheckpointFolder(out)
    work.open(resume=resume)
    finished = False
    try:
        began = time.monotonic()
        before = _fit(model, split.train, work, fine)
        record["seconds"]["training"] = round(before + time.monotonic() - began, 2)
        report = measure_and_save(model, split, out, record)
        finished = True
    except StorageError as error:
        hint = f"{error.hint} {work.how_to_continue()}".strip()
        raise StorageError(error.what, state=error.state, which=error.which, hint=hint) from error
    finally:
        work.close(finished=finished)
    return report


def follow(model: Hasher, split: Split, out: Path, fine: Mapping[str, Any]) -> None:
    """Train as a torchrun process of rank 1 or more; rank 0 writes the model."""
    if "checkpoint" not in inspect.signature(model.fit).parameters:
        return
    with stop_after_iteration() as stop:
        model.fit(split.train, checkpoint=CheckpointFolder(out).state, stop=stop, **fine)  # type: ignore[call-arg]


def measure_and_save(model: Hasher, split: Split, out: Path, record: Mapping[str, Any]) -> Report:
    """Measure on the held-out queries; write the model with its split, report, skipped files and run, atomically."""
    from dcmh import evaluate
    from dcmh.methods import folder
    from dcmh.search import calibration

    began = time.monotonic()
    relevance: Relevance = "pairing" if split.query.labels is None else "labels"
    report = evaluate(model, split, joint=True, relevance=relevance)
    held_out = calibration.measure(model, split)
    record["seconds"]["evaluation"] = round(time.monotonic() - began, 2)
    skipped = record["skipped"]
    run = {"format": 1, **record, "skipped": len(skipped), **_environment()}
    extra = {
        folder.SPLIT: split.to_text() + "\n",
        folder.REPORT: json.dumps(report.to_json() | {calibration.HELD: held_out}, indent=1) + "\n",
        folder.RUN: json.dumps(run, indent=1, ensure_ascii=False) + "\n",
    }
    if skipped:
        extra[folder.SKIPPED] = folder.skipped_tsv(skipped)
    model.save(out, extra=extra)
    return report


def _environment() -> dict[str, Any]:
    import numpy
    import torch

    versions = {"dcmh": __version__, "python": platform.python_version(), "numpy": numpy.__version__}
    return {
        "versions": versions | {"torch": torch.__version__},
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _fit(model: Hasher, train: Dataset, work: CheckpointFolder, fine: Mapping[str, Any]) -> float:
    """Fit the model; returns the seconds of iterations before an interruption."""
    import torch

    can_resume = "checkpoint" in inspect.signature(model.fit).parameters
    again = console.command("--resume")
    try:
        with console.progress(model.name) as bar:
            if not can_resume:
                model.fit(train, progress=show_on(bar), **fine)
                return 0.0
            show, own_rows = show_on(bar), []  # rows: iterations of this process

            def progress(row: Mapping[str, Any]) -> None:
                own_rows.append(row)
                show(row)

            with stop_after_iteration() as stop:
                model.fit(train, progress=progress, checkpoint=work.state, stop=stop, **fine)  # type: ignore[call-arg]
            history: list[Mapping[str, Any]] = getattr(model, "history_", [])
            return float(sum(row["seconds"] for row in history[: len(history) - len(own_rows)]))
    except TrainingStopped as error:
        raise TrainingStopped(
            f"{error.what} The state is saved in {work.folder}.", hint=f"Continue: {again}"
        ) from error
    except KeyboardInterrupt:
        state = (
            f"The last saved state is in {work.folder}. Continue: {again}"
            if work.state.is_file()
            else "Nothing was written."
        )
        raise KeyboardInterrupt(f"Stopped at once. {state}") from None
    except torch.OutOfMemoryError as error:
        size = getattr(model, "batch_size", None) or 128
        raise DeviceError(
            f"CUDA ran out of memory at batch size {size}.",
            hint=f"Try --batch-size {max(2, size // 2)}, with comparable but not identical results, or --device cpu.",
        ) from error


def show_on(bar: console.Bar) -> Callable[[Mapping[str, Any]], None]:
    """A callback that shows progress: the terms of the loss, the MAP of held-out training items, the time left.

    With a frozen image network iterations are many times faster than with a trained one: no time left is shown then.
    """
    from dcmh.evaluation import short

    calls = itertools.count(1)
    was_frozen = False

    def show(record: Mapping[str, Any]) -> None:
        nonlocal was_frozen
        frozen = bool(record.get("resting"))
        if was_frozen and not frozen:
            bar.reset_pace()
        was_frozen = frozen
        names = [name for name, value in record.items() if isinstance(value, float) and name != "seconds"]
        detail = [f"{name} {record[name]:.3f}" for name in names]
        directions = record.get("map") or {}
        if directions:
            detail.append(
                "MAP* " + " ".join(f"{short(name, directions)} {value:.3f}" for name, value in directions.items())
            )
        done = int(record.get("epoch", next(calls)))
        later = "(slower once the image network is trained)" if frozen else None
        bar.update(done, int(record.get("epochs", done)), " ".join(detail), left=later)

    return show


class CheckpointFolder:
    """MODEL.checkpoint beside MODEL: the state of an unfinished training. One training at a time."""

    def __init__(self, model: Path) -> None:
        from dcmh.methods import folder

        self.folder = model.with_name(f"{model.name}.checkpoint")
        self.state = self.folder / folder.STATE
        self._lock = contextlib.ExitStack()

    def open(self, *, resume: bool) -> None:
        """Make the folder. With `resume` an unfinished training continues, else it is dropped; a message says so."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._lock.enter_context(locked(self.folder / "lock")):
            raise BusyError(
                f"Another dcmh train is writing {self.folder}.", hint="Wait for it, or choose another --out."
            )
        if resume and not self.state.is_file():
            console.say(f"Nothing to resume in {self.folder}; starting from the beginning.")
        elif resume:
            console.say(f"Resuming from {self.folder}.")
        elif self.state.is_file():
            console.say(
                f"{self.folder} holds an unfinished training, which is dropped (--resume would have continued it)."
            )
            self.state.unlink()

    def how_to_continue(self) -> str:
        """What to do after the disk was full, or failed."""
        if not self.state.is_file():
            return ""
        return (
            f"The training is kept in {self.folder}. Continue: {console.command('--resume')} "
            f"(with another --out NAME, first move that folder to NAME.checkpoint)"
        )

    def close(self, *, finished: bool) -> None:
        """Remove the folder, unless it holds the state of an unfinished training."""
        if finished or not self.state.is_file():
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


@contextlib.contextmanager
def stop_after_iteration() -> Iterator[Callable[[], bool]]:
    """Within the block the first Ctrl-C (or SIGTERM) only sets a flag, which the yielded function returns; the second stops."""
    requested = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        if requested:
            raise KeyboardInterrupt("Stopped at once. The last saved state is kept: continue with --resume.")
        requested = True
        console.say_from_signal("Finishing this iteration, then saving. Ctrl-C again stops at once.")

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
