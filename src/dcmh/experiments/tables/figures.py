"""Figures, each with a CSV file of its data: precision and recall of hash lookup, MAP over a setting, training curves."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from dcmh.errors import DataError, needs
from dcmh.evaluation import short
from dcmh.evaluation.metrics import Ties
from dcmh.experiments.tables.results import Group, Run, mean_and_spread, number_text
from dcmh.util.atomic import whole_file, write_text

FIGURES = ("pr", "radius", "gamma", "eta")
SETTINGS = {"gamma": "γ", "eta": "η"}
_MARKERS = "osD^v<>pP*Xh"


@dataclass(frozen=True)
class Curve:
    """One curve of a panel; `spread` is None if there is only one seed. NaN leaves a gap."""

    title: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    spread: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes of a figure."""

    title: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Figure:
    """Panels in rows. `table` holds the data of the curves, its header first."""

    name: str
    caption: str
    x: str
    y: str
    logarithmic: bool
    panels: tuple[tuple[Panel, ...], ...]
    table: tuple[tuple[Any, ...], ...]


def figures(groups: Sequence[Group], kind: str, *, ties: Ties = "stable") -> list[Figure]:
    """All figures of a kind (pr, radius, gamma or eta) for which there are results."""
    made = []
    for group in groups:
        several = sum(other.data == group.data for other in groups) > 1
        tail = "-".join([group.data, *([group.split] if several else [])])
        if kind in ("pr", "radius"):
            made += [_lookup(group, features, kind, f"{kind}-{tail}-{features}") for features in group.features]
        else:
            made += _sensitivity(group, kind, ties, tail)
    if not made:
        raise DataError(
            f"No results vary {kind}. Give a method of the bench a grid, such as "
            f"[methods.dcmh.grid] {kind} = [0.5, 1, 2], and run it again."
        )
    return made


def draw(figure: Figure, folder: Path) -> list[Path]:
    """Write a figure as SVG, PNG and CSV; returns the files."""
    with needs("Figures need matplotlib", "dcmh[bench]"):
        import matplotlib
        from matplotlib.figure import Figure as Canvas
    rows, columns = len(figure.panels), max(len(row) for row in figure.panels)
    files = [folder / f"{figure.name}.{suffix}" for suffix in ("svg", "png", "csv")]
    # With a fixed salt and no date, the same results give the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "dcmh", "svg.fonttype": "none", "font.size": 9}):
        canvas = Canvas(figsize=(3.6 * columns, 3.0 * rows), layout="constrained")
        axes = canvas.subplots(rows, columns, squeeze=False)
        titles = list(
            dict.fromkeys(curve.title for across in figure.panels for panel in across for curve in panel.curves)
        )
        shown: dict[str, Any] = {}
        for row, column in product(range(rows), range(columns)):
            shown |= _panel(axes[row][column], figure, figure.panels[row][column], titles)
        canvas.legend([shown[title] for title in titles], titles, loc="outside lower center", ncols=min(6, len(titles)))
        for file in files[:2]:
            with whole_file(file) as draft:
                metadata = {"Date": None} if file.suffix == ".svg" else None
                canvas.savefig(draft, format=file.suffix[1:], dpi=150, metadata=metadata)
    page = io.StringIO()
    csv.writer(page, lineterminator="\n").writerows(figure.table)
    write_text(files[2], page.getvalue())
    return files


def _panel(axes: Any, figure: Figure, panel: Panel, titles: Sequence[str]) -> dict[str, Any]:
    """Draw the curves; a title has the same colour in every panel. Returns the entries of the legend."""
    shown = {}
    for curve in panel.curves:
        number = titles.index(curve.title)
        style = {
            "color": f"C{number % 10}",
            "marker": _MARKERS[number % len(_MARKERS)] if len(curve.x) <= 20 else None,
            "markersize": 3,
            "linewidth": 1,
        }
        shown[curve.title] = axes.errorbar(curve.x, curve.y, yerr=curve.spread, **style)
    axes.set(title=panel.title, xlabel=figure.x, ylabel=figure.y)
    axes.grid(alpha=0.3)
    if figure.logarithmic:
        values = sorted({x for curve in panel.curves for x in curve.x})
        axes.set_xscale("log" if values[0] > 0 else "symlog")
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.set_xticks([], minor=True)
    elif figure.x != "iteration":
        axes.set(ylim=(-0.02, 1.02))
    return shown


def _lookup(group: Group, features: str, kind: str, name: str) -> Figure:
    """One panel per code length and direction: precision at every radius, over recall or radius; pooled over queries."""
    methods = group.lines(features)
    lengths = sorted({run.bits for line in methods for run in line.runs if run.report is not None})
    if not lengths:
        raise DataError(
            f"No method has a result on {group.data} with {features} features, so there is nothing to draw."
        )
    rows: list[tuple[Any, ...]] = [("direction", "bits", "method", "radius", "precision", "recall")]
    panels = []
    for bits in lengths:
        across = []
        directions = _directions(group.runs)
        for direction in directions:
            curves = []
            for line in methods:
                reports = [run.report for run in line.at(bits) if run.report is not None]
                lookups = [report[direction].lookup for report in reports if direction in report.directions]
                if not lookups:
                    continue
                precision = [_mean([lookup.precision[r] for lookup in lookups]) for r in range(bits + 1)]
                recall = [_mean([lookup.recall[r] for lookup in lookups]) for r in range(bits + 1)]
                curves.append(Curve(line.title, tuple(recall if kind == "pr" else range(bits + 1)), tuple(precision)))
                rows += [
                    (direction, bits, line.title, r, number_text(precision[r]), number_text(recall[r]))
                    for r in range(bits + 1)
                ]
            across.append(Panel(f"{short(direction, directions)}, {bits} bits", tuple(curves)))
        panels.append(tuple(across))
    x = {"pr": "recall", "radius": "Hamming radius"}[kind]
    caption = f"Precision over {x}, {group.data}, {features} features"
    return Figure(name, caption, x, "precision", False, tuple(panels), tuple(rows))


def _sensitivity(group: Group, setting: str, ties: Ties, tail: str) -> list[Figure]:
    """MAP over one setting, for every method and feature set with several values of it."""
    made = []
    for features, label in sorted({(run.features, run.label) for run in group.runs if setting in run.varied}):
        runs = [
            run
            for run in group.runs
            if (run.features, run.label) == (features, label)
            and set(run.varied) <= {setting}
            and setting in run.parameters
            and run.report is not None
        ]
        if runs:
            name = f"{setting}-{tail}-{features}-{label}"
            made.append(_over(runs, setting, ties, name, f"{label}, {group.data}, {features} features"))
    return made


def _over(runs: list[Run], setting: str, ties: Ties, name: str, about: str) -> Figure:
    rows: list[tuple[Any, ...]] = [("direction", "bits", setting, "map", "sd", "seeds")]
    panels = []
    directions = _directions(runs)
    for direction in directions:
        curves = []
        for bits in sorted({run.bits for run in runs}):
            points = []
            for value in sorted({float(run.parameters[setting]) for run in runs}):
                same = [run for run in runs if run.bits == bits and float(run.parameters[setting]) == value]
                reports = [run.report for run in same if run.report is not None]
                maps = [report[direction].map[ties] for report in reports if direction in report.directions]
                mean, spread = mean_and_spread(maps)
                if mean is not None:
                    points.append((value, mean, spread))
                    rows.append((direction, bits, value, number_text(mean), number_text(spread), len(maps)))
            spreads = tuple(spread or 0.0 for _, _, spread in points)
            curves.append(
                Curve(
                    f"{bits} bits",
                    tuple(value for value, _, _ in points),
                    tuple(mean for _, mean, _ in points),
                    spreads if any(spreads) else None,
                )
            )
        panels.append(Panel(short(direction, directions), tuple(curves)))
    return Figure(
        name, f"MAP over {setting}, {about}", SETTINGS[setting], f"MAP ({ties})", True, (tuple(panels),), tuple(rows)
    )


def over_setting(setting: str, points: Sequence[tuple[float, dict[str, float]]], title: str, y: str) -> Figure:
    """MAP over one setting, one panel per direction, from (value, MAP by direction) in ascending order."""
    directions = list(points[0][1])
    rows: list[tuple[Any, ...]] = [("direction", setting, "map")]
    panels = []
    for direction in directions:
        x, maps = tuple(value for value, _ in points), tuple(by_direction[direction] for _, by_direction in points)
        panels.append(Panel(short(direction, directions), (Curve(title, x, maps),)))
        rows += [(direction, value, number_text(mean)) for value, mean in zip(x, maps, strict=True)]
    return Figure(setting, f"MAP over {setting}", SETTINGS[setting], y, True, (tuple(panels),), tuple(rows))


def training(history: Sequence[dict[str, Any]]) -> Figure:
    """What a model minimised over its iterations, and the MAP of held-out items where it was measured."""
    rows: list[tuple[Any, ...]] = [("curve", "iteration", "value")]

    def panel(title: str, values: dict[str, list[tuple[int, float]]]) -> Panel:
        rows.extend((name, step, number_text(value)) for name, points in values.items() for step, value in points)
        return Panel(title, tuple(Curve(name, *zip(*points, strict=True)) for name, points in values.items()))

    steps = [row.get("epoch", number) for number, row in enumerate(history, 1)]
    names = [name for name, value in history[0].items() if isinstance(value, float) and name != "seconds"]
    terms = {name: [(step, row[name]) for step, row in zip(steps, history, strict=True)] for name in names}
    measured = [(step, row["map"]) for step, row in zip(steps, history, strict=True) if row.get("map")]
    directions = list(measured[0][1]) if measured else []
    maps = {
        short(name, directions): [(step, by_direction[name]) for step, by_direction in measured] for name in directions
    }
    panels = [panel("terms of the objective", terms)]
    panels += [panel("MAP of held-out items", maps)] if maps else []
    return Figure("training", "Training", "iteration", "", False, (tuple(panels),), tuple(rows))


def _directions(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(name for run in runs if run.report is not None for name in run.report.directions))


def _mean(values: Sequence[float]) -> float:
    mean, _ = mean_and_spread([float(value) for value in values])
    return float("nan") if mean is None else mean
