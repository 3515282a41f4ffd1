"""Results as tables: MAP of Hamming ranking, and hash lookup. `render` formats them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np

from dcmh.evaluation import DirectionReport, short
from dcmh.evaluation.metrics import Ties
from dcmh.experiments.tables import printed
from dcmh.experiments.tables.printed import Printed
from dcmh.experiments.tables.results import PIXELS, Group, Line, mean_and_spread

LOOKUP_BITS = 16  # as in the paper
RADII = (0, 1, 2)
_MEASURES = {"precision": "Precision", "recall": "Recall", "f": "F-measure"}
Ranked = Literal["map", "map@50", "map@5000", "ndcg@10", "ndcg@100", "ndcg@1000", "own@1", "own@10", "ramap"]


@dataclass(frozen=True)
class Cell:
    """A number, its standard deviation over seeds, and the number of the footnote if it is missing.

    `interval`: where the number would lie with another draw of as many queries, with 95 % probability.
    """

    value: float | None = None
    spread: float | None = None
    interval: tuple[float, float] | None = None
    best: bool = False
    signed: bool = False
    mark: int | None = None


@dataclass(frozen=True)
class Column:
    """A column: `name` for programs, `title` for people."""

    name: str
    title: str


@dataclass(frozen=True)
class Row:
    """A row. `kind` is method, unseen, paper, difference or chance."""

    names: tuple[str, ...]
    cells: tuple[Cell, ...]
    kind: str = "method"


@dataclass(frozen=True)
class Table:
    """A table. `name` is that of its files; cells refer to `footnotes` by number, from 1."""

    name: str
    caption: str
    names: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    footnotes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def tables(
    groups: Sequence[Group], *, ties: Ties | None = None, against_paper: bool = False, measure: Ranked = "map"
) -> list[Table]:
    """The MAP table and the lookup table of each data set, split and feature set; or that of another measure alone."""
    made = []
    for group in groups:
        several = sum(other.data == group.data for other in groups) > 1
        for features in group.features:
            tail = "-".join([group.data, *([group.split] if several else []), features])
            rule = ties or _ties(group)
            if measure != "map":
                name = f"{measure.replace('@', '')}-{tail}"
                made.append(_map_table(group, features, rule, name, measure=measure))
                continue
            made.append(_map_table(group, features, rule, f"map-{tail}", against_paper))
            made.append(_lookup_table(group, features, f"lookup-{tail}", against_paper))
    return made


def _map_table(
    group: Group, features: str, ties: Ties, name: str, against_paper: bool = False, measure: Ranked = "map"
) -> Table:
    """MAP or another measure of each method, over the whole database and over unseen items."""
    lines, is_map = group.lines(features), measure == "map"
    directions, lengths = _directions(lines), sorted({run.bits for line in lines for run in line.runs})
    columns, footnotes = list(product(directions, lengths)), _Footnotes()

    def row(line: Line, title: str, marks: _Footnotes, kind: str = "method") -> Row:
        cells = [
            replace(
                _cell(line, bits, direction, lambda report: _value(report, measure, ties), marks),
                interval=_interval(line, bits, direction, ties) if is_map else None,
            )
            for direction, bits in columns
        ]
        return Row((title,), tuple(cells), kind)

    rows = _best([row(line, line.title, footnotes) for line in lines])
    intervals = [cell.interval for each in rows for cell in each.cells]
    paper = printed.find(group.data, features, "map") if against_paper else None
    printed_rows: list[Sequence[float | None] | None] = [
        [paper.map(direction, line.method, bits) for direction, bits in columns]
        if paper is not None and paper.has(line.method)
        else None
        for line in lines
    ]
    unseen = [line.unseen() for line in lines]
    unseen_rows = [row(line, "· unseen", _Footnotes(), "unseen") if line.runs else None for line in unseen]
    rows = _with_comparisons(rows, printed_rows, unseen_rows)
    if is_map:
        all_runs = Line("chance", "", features, tuple(run for line in lines for run in line.runs))
        chance = [_cell(all_runs, bits, name, lambda report: report.chance, _Footnotes()) for name, bits in columns]
        rows.append(Row(("chance",), tuple(replace(cell, spread=None, mark=None) for cell in chance), "chance"))
    ranking = f"Hamming ranking, {_map_name(lines)}" if is_map else _title(measure)
    return Table(
        name=name,
        caption=f"{ranking} · {_about(group, features, lines)} · ties: {ties} · {_seeds(lines)}",
        names=("method",),
        columns=tuple(
            Column(f"{direction}_{bits}", f"{short(direction, directions)} {bits} bits") for direction, bits in columns
        ),
        rows=tuple(rows),
        footnotes=footnotes.sentences,
        notes=(
            *_about_unseen(lines),
            *_about_intervals(intervals),
            *(_other_ties(lines, ties) if is_map else ()),
            *_notes(group, features, lines, paper, against_paper),
        ),
    )


def _title(measure: Ranked) -> str:
    kind, _, rank = measure.partition("@")
    return f"Queries that find their own item, R@{rank}" if kind == "own" else measure.upper()


def _value(report: DirectionReport, measure: Ranked, ties: Ties) -> float:
    """The measure; NaN where there is none, as in results of older versions."""
    kind, _, rank = measure.partition("@")
    if not rank:
        return report.map[ties] if kind == "map" else report.ramap
    by_rank = {"map": report.map_at, "ndcg": report.ndcg_at, "own": report.own_recall_at}[kind]
    return by_rank.get(int(rank), {}).get(ties, np.nan)


def _lookup_table(group: Group, features: str, name: str, against_paper: bool) -> Table:
    lines = group.lines(features)
    lengths = sorted({run.bits for line in lines for run in line.runs})
    bits = LOOKUP_BITS if LOOKUP_BITS in lengths else lengths[0]
    directions = _directions(lines)
    columns = list(product(directions, [radius for radius in RADII if radius <= bits]))
    footnotes = _Footnotes()
    paper = printed.find(group.data, features, "lookup") if against_paper and bits == LOOKUP_BITS else None
    rows: list[Row] = []
    printed_rows: list[list[float | None] | None] = []
    for line, measure in product(lines, _MEASURES):
        cells = [
            _cell(line, bits, direction, lambda report, m=measure, r=radius: getattr(report.lookup, m)[r], footnotes)  # type: ignore[misc]
            for direction, radius in columns
        ]
        rows.append(Row((line.title, _MEASURES[measure]), tuple(cells)))
        printed_rows.append(
            [paper.lookup(direction, line.method, measure, radius) for direction, radius in columns]
            if paper is not None and paper.has(line.method)
            else None
        )
    rows = _best(rows, where=_MEASURES["f"])
    if paper is not None:
        rows = _with_comparisons(rows, printed_rows)
    undefined = any(cell.value is None and cell.mark is None for row in rows for cell in row.cells)
    about_gaps = ["– : nothing is returned at this radius, so precision is undefined; or there is no such run."]
    return Table(
        name=name,
        caption=f"Hash lookup, pooled over queries · {bits} bits · {_about(group, features, lines)} · {_seeds(lines, bits)}",
        names=("method", "measure"),
        columns=tuple(
            Column(f"{direction}_r{radius}", f"{short(direction, directions)} r={radius}")
            for direction, radius in columns
        ),
        rows=tuple(rows),
        footnotes=footnotes.sentences,
        notes=(*(about_gaps if undefined else []), *_notes(group, features, lines, paper, against_paper)),
    )


class _Footnotes:
    """The error messages of methods that failed, each once."""

    def __init__(self) -> None:
        self.sentences: tuple[str, ...] = ()

    def mark(self, sentence: str) -> int:
        """The number of the footnote with this sentence."""
        if sentence not in self.sentences:
            self.sentences = (*self.sentences, sentence)
        return self.sentences.index(sentence) + 1


def _cell(
    line: Line, bits: int, direction: str, value: Callable[[DirectionReport], float], footnotes: _Footnotes
) -> Cell:
    runs = line.at(bits)
    reports = [run.report for run in runs if run.report is not None and direction in run.report.directions]
    values = [float(value(report[direction])) for report in reports]
    failed = next((run for run in runs if run.error is not None), None)
    mark = None if failed is None else footnotes.mark(f"{line.title}, {bits} bits: {failed.error}")
    return Cell(*mean_and_spread(values), mark=mark)


def _interval(line: Line, bits: int, direction: str, ties: Ties) -> tuple[float, float] | None:
    """The interval over queries, averaged over the seeds; None if a run is of an older version, which had none."""
    reports = [run.report for run in line.at(bits) if run.report is not None and direction in run.report.directions]
    bounds = [report[direction].interval.get(ties) for report in reports]
    known = list(filter(None, bounds))
    if not known or len(known) < len(bounds):
        return None
    low, high = np.mean(known, axis=0)
    return float(low), float(high)


def _best(rows: list[Row], where: str | None = None) -> list[Row]:
    """Mark the largest value of each column, among the rows of one measure."""
    compared = [row for row in rows if where is None or where in row.names]
    tops = [
        max((cell.value for cell in column if cell.value is not None), default=None)
        for column in zip(*(row.cells for row in compared), strict=True)
    ]
    marked = []
    for row in rows:
        cells = row.cells
        if row in compared:
            cells = tuple(
                replace(cell, best=cell.value is not None and cell.value == top)
                for cell, top in zip(cells, tops, strict=True)
            )
        marked.append(replace(row, cells=cells))
    return marked


def _with_comparisons(
    rows: list[Row],
    printed_rows: Sequence[Sequence[float | None] | None],
    unseen_rows: Sequence[Row | None] | None = None,
) -> list[Row]:
    """Each row followed by that of unseen items, the printed numbers and the differences, if there are any."""
    made = []
    for row, values, unseen in zip(rows, printed_rows, unseen_rows or [None] * len(rows), strict=True):
        made.append(row)
        if unseen is not None:
            made.append(unseen)
        if values is None:
            continue
        made.append(Row(("· paper", *row.names[1:]), tuple(Cell(value) for value in values), "paper"))
        differences = [
            Cell(None if cell.value is None or value is None else cell.value - value, signed=True)
            for cell, value in zip(row.cells, values, strict=True)
        ]
        made.append(Row(("· Δ", *row.names[1:]), tuple(differences), "difference"))
    return made


def _directions(lines: Sequence[Line]) -> list[str]:
    reports = [run.report for line in lines for run in line.runs if run.report is not None]
    names = dict.fromkeys(direction for report in reports for direction in report.directions)
    return list(names) or ["image_to_text", "text_to_image"]


def _ties(group: Group) -> Ties:
    """The tie rule that the bench sets."""
    rules = {run.ties for run in group.runs}
    return rules.pop() if len(rules) == 1 else "stable"  # type: ignore[return-value]


def _map_name(lines: Sequence[Line]) -> str:
    report = next((run.report for line in lines for run in line.runs if run.report is not None), None)
    return f"MAP@{report.k}" if report is not None and report.k else "MAP"


def _about(group: Group, features: str, lines: Sequence[Line]) -> str:
    queries, database, train = (lines[0].runs[0] if lines else group.runs[0]).sizes
    return (
        f"{group.data} · features: {features} · {queries:,} queries, {database:,} in the database, "
        f"{train:,} for training"
    )


def _seeds(lines: Sequence[Line], bits: int | None = None) -> str:
    runs: dict[tuple[str, int], set[int]] = {}
    for line in lines:
        for run in line.runs:
            if bits in (None, run.bits):
                runs.setdefault((line.title, run.bits), set()).add(run.seed)
    counts = sorted({len(seeds) for seeds in runs.values()}) or [0]
    number = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{number} seed" if number == "1" else f"mean ± standard deviation over {number} seeds"


def _about_unseen(lines: Sequence[Line]) -> list[str]:
    """Whether the database was trained on; nothing for results of older versions, which do not say."""
    reports = [run.report for line in lines for run in line.runs if run.report is not None]
    if any(report.unseen is not None for report in reports):
        return ["Unseen: only the items of the database that were not trained on."]
    if any(report.seen == report.database for report in reports):
        return ["The whole database was trained on, so that these numbers do not hold for new items."]
    return []


def _about_intervals(intervals: Sequence[tuple[float, float] | None]) -> list[str]:
    widest = max(((high - low) / 2 for low, high in filter(None, intervals)), default=None)
    if widest is None:
        return []
    return [
        f"With another draw of as many queries these numbers would change by at most ±{widest:.4f} (95 % interval)."
    ]


def _other_ties(lines: Sequence[Line], ties: Ties) -> list[str]:
    other: Ties = "stable" if ties == "expected" else "expected"
    reports = [run.report for line in lines for run in line.runs if run.report is not None]
    gaps = [abs(each.map[ties] - each.map[other]) for report in reports for each in report.directions.values()]
    if not gaps:
        return []
    rule = "Database order among ties" if other == "stable" else "The exact mean over all orders of ties"
    return [f"{rule} differs from these runs by at most {max(gaps):.4f}."]


def _notes(group: Group, features: str, lines: Sequence[Line], paper: Printed | None, against_paper: bool) -> list[str]:
    notes = []
    from_pictures = [line.title for line in lines if line.features == PIXELS]
    if from_pictures and features != PIXELS:
        notes.append(f"{', '.join(from_pictures)}: learned from the pictures, not from {features} features.")
    if len({run.fingerprint for line in lines for run in line.runs}) > 1:
        notes.append(
            "The data changed between these runs, so they cannot be compared. Delete the old results and run again."
        )
    if against_paper:
        notes += _about_paper(group, features, lines, paper)
    return notes


def _about_paper(group: Group, features: str, lines: Sequence[Line], paper: Printed | None) -> list[str]:
    if not printed.is_the_papers(group.data):
        return [f"The paper has no numbers for {group.data}: it reports on {' and '.join(printed.data_sets())}."]
    if paper is None:
        return [f"The paper has no such table for {group.data} with {features} features."]
    notes = [f"Paper: {paper.source}, {paper.described} features."]
    queries, _, train = lines[0].runs[0].sizes
    if (queries, train) != (paper.queries, paper.train):
        notes.append(
            f"The paper has {paper.queries:,} queries and {paper.train:,} training items; "
            f"these runs have {queries:,} and {train:,}."
        )
    return notes
