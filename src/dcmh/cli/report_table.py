"""What commands print about an evaluation report in addition to its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcmh.cli import console

if TYPE_CHECKING:
    from dcmh.evaluation import Report
    from dcmh.evaluation.metrics import Ties


def more(report: Report, ties: Ties = "expected") -> str:
    """The measures that other papers print: MAP over the first ranks, NDCG, RAMAP, and how many queries find their own item."""
    ranked = next(iter(report.directions.values()))
    measures = [("MAP", "map_at", k) for k in ranked.map_at] + [("NDCG", "ndcg_at", k) for k in ranked.ndcg_at]
    measures += [("own item R", "own_recall_at", k) for k in ranked.own_recall_at]
    rows = []
    for name, searched, direction in report.rows():
        values = [getattr(direction, field).get(k, {}).get(ties) for _, field, k in measures]
        rows.append([name, searched, *("–" if value is None else f"{value:.3f}" for value in values)])
        rows[-1].append(f"{direction.ramap:.3f}")
    return console.table(["direction", "searched", *(f"{title}@{k}" for title, _, k in measures), "RAMAP"], rows)


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
