"""An evaluation report as a table: MAP of each direction, compared with chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dcmh.cli import console

if TYPE_CHECKING:
    from dcmh.evaluation import Report
    from dcmh.evaluation.metrics import Ties


def table(report: Report, ties: Sequence[Ties] = ("stable", "expected")) -> str:
    """One row per direction, with MAP for each rule about ties; recall where only one item is relevant."""
    at = f"@{report.k}" if report.k is not None else ""
    paired = report.relevance == "pairing"
    header = ["direction", *(f"MAP{at} {rule}" for rule in ties), "R@10" if paired else "P@10", "chance"]
    rows = [
        [
            arrow(name),
            *(direction.map[rule] for rule in ties),
            (direction.recall_at if paired else direction.precision_at)[10],
            10 / direction.database if paired else direction.chance,
        ]
        for name, direction in report.directions.items()
    ]
    return console.table(header, rows)


def summary(report: Report) -> str:
    """What was measured, in one line."""
    text = (
        f"{report.queries:,} held-out queries, {report.database:,} in the database, {report.train:,} learned from; "
        f"{report.bits} bits."
    )
    if report.relevance == "pairing":
        text += " Only a query's own item in the other modality is relevant; chance is that of R@10."
    if report.without_relevant:
        text += f" {report.without_relevant:,} queries have nothing relevant and count as 0."
    return text


def arrow(direction: str) -> str:
    """image_to_text as image → text."""
    return direction.replace("_to_", " → ")
