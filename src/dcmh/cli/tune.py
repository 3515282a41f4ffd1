"""dcmh tune: choose settings on part of the training items, for dcmh train --config."""

from __future__ import annotations

import dataclasses
import json as json_lines
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from dcmh.cli import console, data_source, options
from dcmh.cli.options import DataOptions, DCMHOptions, JsonSwitch, MethodOptions
from dcmh.cli.train import device_of, leaves_unseen, source_of, split_of, with_config
from dcmh.errors import DataError, MissingExtra, ParameterError

if TYPE_CHECKING:
    from dcmh.data import Split
    from dcmh.experiments.tuning import Outcome, Parts, Result, Search
    from dcmh.methods.dcmh import DCMH

CONFIG, TABLE = "tuned.toml", "table.md"
_UNITS = {"s": 1, "m": 60, "h": 3600, "": 1}


@Parameter(name="*", group="Run")
@dataclass
class TuneOptions:
    """How long to search, and where to write the results."""

    budget: str = "10m"
    """Time for the trials, such as 90s, 10m or 2h. Image features are computed beforehand and do not count."""
    out: Path | None = None
    """The folder for trials, table, curves and tuned.toml. Default: NAME.tune, named after the data."""
    config: Path | None = None
    """A TOML file with any of these settings; flags override it."""
    json: JsonSwitch = False


def tune(
    data: str,
    /,
    *,
    items: DataOptions | None = None,
    method: MethodOptions | None = None,
    dcmh: DCMHOptions | None = None,
    run: TuneOptions | None = None,
) -> None:
    """Choose gamma, eta, learning rate, training length and dropout on part of the training items, in limited time.

    Settings that are given stay fixed, and the queries are not used. The defaults are kept unless other settings are
    better by more than noise. Can be stopped at any time; the same command resumes.

    Parameters
    ----------
    data
        As for dcmh train.
    """
    from dcmh.experiments.tuning import Search

    run = run or TuneOptions()
    budget = seconds(run.budget)
    items, method, dcmh = with_config(run.config, items, method, dcmh)
    model = _model(method, dcmh)
    device = device_of(method.device)
    whole, _ = source_of(data, items, dcmh).labelled()
    out = run.out or Path(f"{whole.name or 'data'}.tune")
    if out.exists() and not (out / "trials").is_dir() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(
            f"{out} exists but is not a folder of dcmh tune, so nothing is written there.", hint="Choose another --out."
        )
    loaded = data_source.without_unreadable(whole, model._view("image"), device)
    data_source.say_skipped(loaded.skipped)
    split = split_of(loaded.data, items.queries, items.train_size, model.seed, leave_unseen=leaves_unseen(model))
    fixed = {field.name for field in dataclasses.fields(dcmh) if getattr(dcmh, field.name) is not None}
    share = len(split.train) / len(split.database)
    search = Search(model, split.train, out, budget=budget, trained_share=share, fixed=fixed)
    console.say(_intention(model, split, search.parts, budget, device))
    outcome = _run(search)
    if not any(result.trial.changes for result in outcome.results):
        if run.json:
            console.result_json(_record(outcome, out, []))
        console.say(f"Nothing was tuned, and no settings are written. {outcome.verdict} Give a larger --budget.")
        return
    files = _write(out, outcome, _config(items, method, dcmh, outcome, model), model)
    if run.json:
        console.result_json(_record(outcome, out, files))
    else:
        console.result(console.table(*_rows(outcome.results)))
    console.say(_measured_on(outcome.sizes))
    console.say(outcome.verdict)
    console.say(f"Wrote {out}. Next: dcmh train {shlex.quote(data)} --config {shlex.quote(str(out / CONFIG))}")


def seconds(text: str) -> float:
    """Seconds of a duration such as 10m."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if match is None or float(match[1]) == 0:
        raise ParameterError(f"--budget {text}: expected a time, such as 90s, 10m or 2h.")
    return float(match[1]) * _UNITS[match[2]]


def _model(method: MethodOptions, dcmh: DCMHOptions) -> DCMH:
    from dcmh.methods.dcmh import DCMH

    model = options.build(method, dcmh)
    if not isinstance(model, DCMH):
        raise ParameterError(f"--method {model.name}: dcmh tune works only for the method dcmh.")
    return model


def _intention(model: DCMH, split: Split, parts: Parts, budget: float, device: str) -> str:
    return (
        f"Choosing settings for {model.bits}-bit codes on {device} within {console.span(budget)}: of "
        f"{len(split.train):,} training items {len(parts.learn):,} are learned from, {len(parts.select):,} rank the settings and "
        f"{len(parts.confirm):,} confirm the choice; the {len(split.query):,} queries are not used."
    )


def _run(search: Search) -> Outcome:
    whole = int(search.budget)
    try:
        with console.progress("tune") as bar:
            return search.run(
                lambda spent, what: bar.update(min(int(spent), whole), whole, what, left=search.budget - spent)
            )
    except KeyboardInterrupt:
        kept = f"{len(search.results):,} trials are done and kept in {search.folder}"
        raise KeyboardInterrupt(f"Interrupted. {kept}. Continue: {console.command()}") from None


def _rows(results: list[Result]) -> tuple[list[str], list[list[object]]]:
    """The table: each trial compared with the defaults of its stage, on the selecting and on the confirming items."""
    from dcmh.experiments.tuning import describe

    base = {(result.trial.stage, result.trial.seed): result for result in results if not result.trial.changes}
    header = ["length", "seed", "settings", "iterations", "MAP select", "to defaults"]
    header += ["MAP confirm", "to defaults", "seconds"]
    rows: list[list[object]] = []
    for result in results:
        trial, default = result.trial, base[result.trial.stage, result.trial.seed]
        row: list[object] = [f"{trial.stage:.2g}", trial.seed, describe(trial.changes), result.epochs]
        for score, baseline in ((result.score, default.score), (result.confirmed, default.confirmed)):
            row += [score, f"{score - baseline:+.4f}" if trial.changes else ""]
        rows.append([*row, round(result.seconds)])
    return header, rows


def _measured_on(sizes: dict[str, int]) -> str:
    """Which items the two MAPs of a trial are measured on."""
    return (
        f"MAP select: on {sizes['select']:,} training items, which rank the settings. "
        f"MAP confirm: on {sizes['confirm']:,} others, which only confirm the choice at the end."
    )


def _config(
    items: DataOptions, method: MethodOptions, dcmh: DCMHOptions, outcome: Outcome, model: DCMH
) -> dict[str, Any]:
    """The settings for dcmh train: the flags, and what was chosen."""
    settings: dict[str, Any] = {}
    for group in (items, method, dcmh):
        settings |= {field.name: getattr(group, field.name) for field in dataclasses.fields(group)}
    settings |= {"method": model.name, "bits": model.bits, "seed": model.seed, "device": None}  # the device may differ
    chosen = dict(outcome.chosen)
    if "length" in chosen:
        settings["epochs"] = outcome.epochs
    settings |= {name: value for name, value in chosen.items() if name != "length"}
    return {name: value for name, value in settings.items() if value is not None}


def _write(out: Path, outcome: Outcome, config: dict[str, Any], model: DCMH) -> list[Path]:
    from dcmh.util.atomic import write_text

    lines = [f"# By dcmh tune: {outcome.verdict}"]
    lines += [f"{name.replace('_', '-')} = {_toml(value)}" for name, value in config.items()]
    write_text(out / CONFIG, "\n".join(lines) + "\n")
    header, rows = _rows(outcome.results)
    cells = [[f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    table = ["| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *cells]]
    write_text(out / TABLE, "\n".join(table) + f"\n\n{_measured_on(outcome.sizes)}\n\n{outcome.verdict}\n")
    return [out / CONFIG, out / TABLE, *_draw(out, outcome, model)]


def _draw(out: Path, outcome: Outcome, model: DCMH) -> list[Path]:
    """The curves over gamma and over eta, from the first stage."""
    from dcmh.experiments.tables.figures import draw, over_setting

    files: list[Path] = []
    first = [result for result in outcome.results if result.trial.stage == outcome.results[0].trial.stage]
    for setting in ("gamma", "eta"):
        points = [
            (float(dict(result.trial.changes).get(setting, getattr(model, setting))), result.directions)
            for result in first
            if not result.trial.changes or [name for name, _ in result.trial.changes] == [setting]
        ]
        if len(points) < 2:
            continue
        figure = over_setting(
            setting, sorted(points, key=lambda point: point[0]), f"{model.bits} bits", "MAP (validation)"
        )
        try:
            files += draw(figure, out)
        except MissingExtra as error:
            console.say(str(error))
            break
    return files


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json_lines.dumps(str(value), ensure_ascii=False) if isinstance(value, str | Path) else repr(value)


def _record(outcome: Outcome, out: Path, files: list[Path]) -> dict[str, Any]:
    trials = [
        {
            "settings": dict(result.trial.changes),
            "length": result.trial.stage,
            "seed": result.trial.seed,
            "iterations": result.epochs,
            "select": {"map": round(result.score, 5), "directions": result.directions},
            "confirm": {"map": round(result.confirmed, 5)},
            "seconds": round(result.seconds, 2),
        }
        for result in outcome.results
    ]
    return {
        "tuned": str(out),
        "chosen": dict(outcome.chosen),
        "verdict": outcome.verdict,
        "gain": outcome.gain,
        "standard_error": outcome.error,
        "items": outcome.sizes,
        "seconds": round(outcome.spent, 1),
        "trials": trials,
        "files": [str(file) for file in files],
    }
