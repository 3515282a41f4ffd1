"""An evaluation report as a table: MAP of each direction, compared with chance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dcmh.cli import console

if TYPE_CHECKING:
    from dcmh.evaluation import DirectionReport, Report
    from dcmh.evaluation.metrics import Ties


def table(report: Report, ties: Sequence[Ties] = ("stable", "expected")) -> str:
    """A row per direction for the whole database, and one for the items that were not trained on.

    With MAP for each rule about ties, the interval for the first of them, and recall where only one item is relevant.
    """
    at = f"@{report.k}" if report.k is not None else ""
    paired = report.relevance == "pairing"
    first, *others = ties
    header = ["direction", "searched", f"MAP{at} {first}", "95 % interval", *(f"MAP{at} {rule}" for rule in others)]
    rows = [
        [
            name.replace("_to_", " → "),
            searched,
            direction.map[first],
            _interval(direction, first),
            *(direction.map[rule] for rule in others),
            (direction.recall_at if paired else direction.precision_at)[10],
            10 / direction.database if paired else direction.chance,
        ]
        for name, searched, direction in _rows(report)
    ]
    return console.table([*header, "R@10" if paired else "P@10", "chance"], rows)


def more(report: Report, ties: Ties = "expected") -> str:
    """The measures that other papers print: MAP over the first ranks, NDCG, RAMAP, and how many queries find their own item."""
    ranked = next(iter(report.directions.values()))
    measures = [("MAP", "map_at", k) for k in ranked.map_at] + [("NDCG", "ndcg_at", k) for k in ranked.ndcg_at]
    measures += [("own item R", "own_recall_at", k) for k in ranked.own_recall_at]
    rows = []
    for name, searched, direction in _rows(report):
        values = [getattr(direction, field).get(k, {}).get(ties) for _, field, k in measures]
        rows.append(
            [name.replace("_to_", " → "), searched, *("–" if value is None else f"{value:.3f}" for value in values)]
        )
        rows[-1].append(f"{direction.ramap:.3f}")
    return console.table(["direction", "searched", *(f"{title}@{k}" for title, _, k in measures), "RAMAP"], rows)


def _rows(report: Report) -> Iterator[tuple[str, str, DirectionReport]]:
    """Each direction, over the whole database and over the items that were not trained on."""
    for name, direction in report.directions.items():
        yield name, f"{direction.database:,} items", direction
        if report.unseen is not None and name in report.unseen.directions:
            apart = report.unseen[name]
            yield name, f"{apart.database:,} unseen", apart


def _interval(direction: DirectionReport, ties: Ties) -> str:
    low, high = direction.interval.get(ties, (math.nan, math.nan))
    return "–" if math.isnan(low) else f"{low:.3f}–{high:.3f}"


def summary(report: Report) -> str:
    """What was measured, in one line."""
    text = (
        f"{report.queries:,} held-out queries, {report.database:,} in the database, {report.train:,} learned from; "
        f"{report.bits} bits."
    )
    if report.unseen is not None:
        text += " Unseen items were not trained on: they show how well new items will be found."
    elif report.seen:
        text += " Everything searched was trained on, so that new items will be found less well than these numbers say."
    if report.relevance == "pairing":
        text += " Only a query's own item in the other modality is relevant; chance is that of R@10."
    if report.without_relevant:
        text += f" {report.without_relevant:,} queries have nothing relevant and count as 0."
    return text


def say_cautions(report: Report, *, label_words: bool) -> None:
    """Say why the numbers may mean little. `label_words`: words of the texts serve as labels."""
    if label_words and report.relevance == "labels":
        console.say(
            "Caution: words of the texts serve as labels, so a text query contains its own labels. "
            "MAP from text is high by construction; MAP from pictures says more."
        )
    for caution in report.cautions():
        console.say(f"Caution: {caution}")
