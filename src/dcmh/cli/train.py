"""dcmh train: data in, a model folder out, measured on queries it has not seen."""

from __future__ import annotations

import inspect
import itertools
import json as json_lines
import platform
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from dcmh import __version__
from dcmh.cli import console, measures, options, source
from dcmh.cli.options import DataOptions, DCMHOptions, MethodOptions, Switch
from dcmh.cli.workspace import Workspace, gentle_stop
from dcmh.errors import DeviceError, ParameterError, TrainingStopped

if TYPE_CHECKING:
    from dcmh.data import Dataset, Split
    from dcmh.evaluation import Report
    from dcmh.methods.base import Hasher

RUN, SKIPPED = "run.json", "skipped.tsv"


@Parameter(name="*", group="Run")
@dataclass
class RunOptions:
    """Where the model goes, and how the run behaves."""

    out: Path | None = None
    """The model folder. Default: NAME.model here, after the data's name."""
    config: Path | None = None
    """A TOML file with any of these settings; flags win over it."""
    resume: Switch = False
    """Go on with a training that was interrupted."""
    strict: Switch = False
    """Stop with exit code 3, before training, if any picture is missing or cannot be read."""
    json: Switch = False
    """Print the result as JSON."""


def train(
    data: str,
    /,
    *,
    items: DataOptions | None = None,
    method: MethodOptions | None = None,
    dcmh: DCMHOptions | None = None,
    run: RunOptions | None = None,
) -> int:
    """Learn codes from pictures with words, or from any data in two modalities.

    Example: dcmh train photos/ --bits 64 --out photos.model

    Parameters
    ----------
    data
        A folder of photos with text, a folder or file pairs.jsonl, .csv or .tsv, a .mat file, or a name of dcmh data.
    """
    run = run or RunOptions()
    items, method, dcmh = _settled(run.config, items, method, dcmh)
    model = options.build(method, dcmh)
    device = _device(method.device)
    where = source.Source(data, items.text, bool(items.keep_partial), items.min_tag_count)
    whole = where.labelled()
    out = run.out or Path(f"{whole.name or 'data'}.model")
    _check_out(out)
    seed = method.seed or 0
    divide(whole, items.queries, items.train_size, seed, say=False)  # what cannot work should not cost an hour first
    began = time.monotonic()
    found = source.readable(whole, model._view("image"), device)
    source.say_skipped(found.skipped, "" if run.strict else f", listed in {out / SKIPPED}")
    if run.strict and found.skipped:
        console.error("Stopped because of --strict: nothing was trained or written. Repair or remove those files.")
        return 3
    split = divide(found.data, items.queries, items.train_size, seed)
    console.say(_intention(model, found.data, split, device))
    record = {
        "data": where.record(),
        "device": device,
        "command": console.command(),
        "seconds": {"features": round(time.monotonic() - began, 2)},
        "skipped": found.skipped,
    }
    report = _learn(model, split, out, resume=run.resume, record=record)
    if run.json:
        said = {"model": str(out), "method": model.name, "data": whole.name, "skipped": len(found.skipped)}
        console.result_json(said | {"seconds": record["seconds"], "report": report.to_json()})
    else:
        console.say(measures.summary(report))
        console.result(measures.table(report))
    console.say(f"Wrote {out}. Next: dcmh evaluate {shlex.quote(str(out))}")
    return 0


def divide(data: Dataset, queries: int | None, train_size: int | None, seed: int, *, say: bool = True) -> Split:
    """The split the data came with, unless queries are asked for; otherwise one drawn with the seed."""
    from dcmh.data import split_given

    if data.parts is not None and queries is None:
        if train_size is not None:
            raise ParameterError(
                "The data comes with its own split. Give --queries beside --train-size to draw another."
            )
        if say:
            console.say("Using the split that the data came with; --queries draws another.")
        return split_given(data)
    if queries is None:
        queries = default_queries(len(data))
    return data.split(queries, train_size, seed)


def default_queries(items: int) -> int:
    """5 % of the items, at least 50 and at most 2,000, but never more than a fifth of them."""
    return max(1, min(max(50, round(0.05 * items)), 2000, items // 5))


def _settled(
    file: Path | None, items: DataOptions | None, method: MethodOptions | None, dcmh: DCMHOptions | None
) -> tuple[DataOptions, MethodOptions, DCMHOptions]:
    """Flag, then file, then nothing."""
    given = items or DataOptions(), method or MethodOptions(), dcmh or DCMHOptions()
    if file is None:
        return given
    read = options.read_config(file)
    return options.merged(given[0], read[0]), options.merged(given[1], read[1]), options.merged(given[2], read[2])


def _device(name: str | None) -> str:
    from dcmh import device as devices

    return str(devices.resolve(name or "auto"))


def _check_out(out: Path) -> None:
    from dcmh.methods import folder

    folder.check_target(out)
    if folder.is_model(out):
        console.say(f"{out} is a model already; it is replaced when the new one is finished.")
    above = out.resolve().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir():
        raise ParameterError(f"--out {out}: {above} is a file, so no folder can be made in it. Choose another --out.")


def _intention(model: Hasher, data: Dataset, split: Split, device: str) -> str:
    """One line on what is about to happen."""
    from dcmh.data import Texts
    from dcmh.text import BagOfWords

    words = [
        f"{len(BagOfWords().fit(column.values)):,} words"
        for column in split.train.columns.values()
        if isinstance(column, Texts)
    ]
    labels = [] if data.labels is None else [f"{data.labels.shape[1]:,} labels"]
    what = ", ".join([*data.modalities, *words, *labels])
    return (
        f"Learning {model.bits}-bit codes with {model.name} on {device} from {len(split.train):,} of {len(data):,} "
        f"items of {data.name or 'the data'} ({what}); {len(split.query):,} held out as queries, "
        f"{len(split.database):,} in the database."
    )


def _learn(model: Hasher, split: Split, out: Path, *, resume: bool, record: Mapping[str, Any]) -> Report:
    """Fit, measure, save: the model folder appears whole, at the end; until then the state lies in MODEL.checkpoint."""
    work = Workspace(out)
    work.open(resume=resume)
    finished = False
    try:
        began = time.monotonic()
        _fit(model, split.train, work)
        record["seconds"]["training"] = round(time.monotonic() - began, 2)
        report = measure_and_save(model, split, out, record)
        finished = True
    finally:
        work.close(finished=finished)
    return report


def measure_and_save(model: Hasher, split: Split, out: Path, record: Mapping[str, Any]) -> Report:
    """Measure on the held-out queries; write the model with its split, report, skipped files and run, or nothing."""
    from dcmh import evaluate
    from dcmh.methods import folder

    began = time.monotonic()
    report = evaluate(model, split)
    record["seconds"]["evaluation"] = round(time.monotonic() - began, 2)
    skipped = record["skipped"]
    run = {"format": 1, **record, "skipped": len(skipped), **_circumstances()}
    extra = {
        folder.SPLIT: split.to_text() + "\n",
        folder.REPORT: json_lines.dumps(report.to_json(), indent=1) + "\n",
        RUN: json_lines.dumps(run, indent=1, ensure_ascii=False) + "\n",
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


def _fit(model: Hasher, train: Dataset, work: Workspace) -> None:
    import torch

    can_resume = "checkpoint" in inspect.signature(model.fit).parameters
    again = console.command("--resume")
    try:
        with console.progress(model.name) as bar:
            if not can_resume:
                model.fit(train, progress=shown(bar))
                return
            with gentle_stop() as stop:
                model.fit(train, progress=shown(bar), checkpoint=work.state, stop=stop)  # type: ignore[call-arg]
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
        size = getattr(model, "batch_size", 128)
        raise DeviceError(
            f"CUDA ran out of memory at batch size {size}. Try --batch-size {max(1, size // 2)}: the result is "
            "comparable, not identical; or --device cpu."
        ) from error


def shown(bar: console.Bar) -> Callable[[Mapping[str, Any]], None]:
    """A progress record on the bar: the terms of the loss, and the MAP of held-out training items."""

    calls = itertools.count(1)

    def show(record: Mapping[str, Any]) -> None:
        names = [name for name, value in record.items() if isinstance(value, float) and name != "seconds"]
        detail = [f"{name} {record[name]:.3f}" for name in names]
        directions = record.get("map") or {}
        if directions:
            detail.append(
                "MAP* " + " ".join(f"{measures.short(name)} {value:.3f}" for name, value in directions.items())
            )
        done = int(record.get("epoch", next(calls)))
        bar.update(done, int(record.get("epochs", done)), " ".join(detail))

    return show
