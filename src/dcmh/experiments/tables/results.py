"""The results that `dcmh bench` wrote: read, checked, and grouped by table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dcmh.errors import DataError
from dcmh.evaluation import Report
from dcmh.util.formats import check_format, check_types, read_object, readable

FORMAT = 1
PIXELS = "pixels"  # the method sees the pictures themselves, so it belongs in the table of every feature set
# The order of the paper, then the methods that are not in it.
_ORDER = ("dcmh", "seph", "seph-linear", "stmh", "scm", "cmfh", "cca", "cvh", "cmssh", "crh", "mlbe", "ridge")


@dataclass(frozen=True, eq=False)
class Run:
    """One result. `report` is None if the method failed; `error` is then its message."""

    data: str
    fingerprint: str
    split: str
    features: str
    label: str
    title: str
    method: str
    varied: dict[str, Any]
    parameters: dict[str, Any]
    bits: int
    seed: int
    ties: str
    report: Report | None
    error: str | None
    sizes: tuple[int, int, int]  # queries, database, train

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Run:
        """The run of a result file."""
        check_types(record, features=str, label=str, title=str, method=str, ties=str)
        check_types(record, varied=dict, parameters=dict, bits=int, seed=int)
        split = record["split"]
        check_types(split, folder=str, queries=int, database=int, train=int)
        check_types(record["data"], name=str, fingerprint=str)
        report = Report.from_json(record["report"]) if "report" in record else None
        if report is not None and any(len(report[d].lookup.precision) <= record["bits"] for d in report.directions):
            raise ValueError(f"its curves are shorter than {record['bits']} bits")
        return cls(
            data=record["data"]["name"],
            fingerprint=record["data"]["fingerprint"],
            split=split["folder"],
            report=report,
            error=record.get("error"),
            sizes=(split["queries"], split["database"], split["train"]),
            **{name: record[name] for name in ("features", "label", "title", "method", "varied")},
            **{name: record[name] for name in ("parameters", "bits", "seed", "ties")},
        )

    @property
    def settings(self) -> str:
        """What distinguishes runs of the same label, apart from code length and seed."""
        return json.dumps({k: v for k, v in self.parameters.items() if k not in ("bits", "seed")}, sort_keys=True)


@dataclass(frozen=True, eq=False)
class Line:
    """Runs of one method with the same settings: one line of a table."""

    title: str
    method: str
    features: str
    runs: tuple[Run, ...]

    def at(self, bits: int) -> list[Run]:
        """The runs with this code length."""
        return [run for run in self.runs if run.bits == bits]

    def unseen(self) -> Line:
        """The runs that also measured the items that were not trained on, with those measures."""
        runs = [(run, run.report.unseen) for run in self.runs if run.report is not None]
        return replace(self, runs=tuple(replace(run, report=report) for run, report in runs if report is not None))


@dataclass(frozen=True, eq=False)
class Group:
    """Runs on the same data with the same split."""

    data: str
    split: str
    runs: tuple[Run, ...]

    @property
    def features(self) -> list[str]:
        """The feature sets, each with its own tables; pixels only if there is no other."""
        names = sorted({run.features for run in self.runs})
        return [name for name in names if name != PIXELS] or names

    def lines(self, features: str) -> list[Line]:
        """The methods of one feature set's tables, in the paper's order; without the points of grids."""
        chosen = [run for run in self.runs if run.features in (features, PIXELS) and not run.varied]
        return lines(chosen)


def lines(runs: Iterable[Run]) -> list[Line]:
    """Runs by label and settings. If a label has several settings, titles say how they differ."""
    grouped: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        grouped.setdefault((run.label, run.features, run.settings), []).append(run)
    labels = [label for label, _, _ in grouped]
    made = []
    for (label, features, _), members in grouped.items():
        title = members[0].title
        if labels.count(label) > 1:
            others = [runs[0] for (name, _, _), runs in grouped.items() if name == label and runs is not members]
            title += f" ({_differences(members[0], others)})"
        made.append(Line(title, members[0].method, features, tuple(members)))
    return sorted(made, key=lambda line: (_position(line.method), line.title))


def read(folder: Path | str) -> list[Run]:
    """All results in a folder and in the folders below."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}. Make results first: dcmh bench CONFIG.toml")
    runs = []
    for file in sorted(folder.rglob("*.json")):
        hint = "Remove it, and run the bench again."
        with readable(file, what="{path} is not a result of dcmh bench ({reason}).", hint=hint):
            record = read_object(file)
            check_format(record["format"], FORMAT, file, DataError)
            runs.append(Run.from_json(record))
    if not runs:
        raise DataError(f"No results in {folder}. Make some: dcmh bench CONFIG.toml --out {folder}")
    return runs


def groups(runs: Sequence[Run]) -> list[Group]:
    """Runs by data and split."""
    keys = sorted({(run.data, run.split) for run in runs})
    return [Group(*key, tuple(run for run in runs if (run.data, run.split) == key)) for key in keys]


def mean_and_spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation (n - 1) of the values that are not NaN; None if there are too few."""
    known = np.array([value for value in values if not np.isnan(value)])
    if not len(known):
        return None, None
    return float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else None


def number_text(value: float | None) -> str:
    """A number as CSV files have it, with six digits; nothing for None or NaN."""
    return "" if value is None or np.isnan(value) else repr(round(value, 6))


def _differences(run: Run, others: Sequence[Run]) -> str:
    differing = [
        name
        for name, value in run.parameters.items()
        if name not in ("bits", "seed") and any(other.parameters.get(name) != value for other in others)
    ]
    words = [f"{name} {run.parameters[name]}" for name in differing]
    if any(other.features != run.features for other in others):
        words.insert(0, run.features)
    return ", ".join(words)


def _position(method: str) -> int:
    return _ORDER.index(method) if method in _ORDER else len(_ORDER)
