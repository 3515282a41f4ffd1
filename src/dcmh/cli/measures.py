"""A report as a table: each direction with its MAP beside chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dcmh.cli import console

if TYPE_CHECKING:
    from dcmh.evaluation import Report
    from dcmh.evaluation.metrics import Ties


def table(report: Report, ties: Sequence[Ties] = ("stable", "expected")) -> str:
    """One row a direction. MAP once for each rule about equal distances; recall where one item is relevant."""
    at = f"@{report.k}" if report.k is not None else ""
    paired = report.relevance == "pairing"
    header = ["direction", *(f"MAP{at} {rule}" for rule in ties), "R@10" if paired else "P@10", "chance"]
    rows = [
        [
            spelt(name),
            *(found.map[rule] for rule in ties),
            (found.recall_at if paired else found.precision_at)[10],
            10 / found.database if paired else found.chance,
        ]
        for name, found in report.directions.items()
    ]
    return console.table(header, rows)


def summary(report: Report) -> str:
    """What the table is about."""
    said = (
        f"{report.queries:,} held-out queries, {report.database:,} in the database, {report.train:,} learned from; "
        f"{report.bits} bits."
    )
    if report.relevance == "pairing":
        said += " Relevant is only a query's own item in the other modality; chance is that of R@10."
    if report.without_relevant:
        said += f" {report.without_relevant:,} queries have nothing relevant and count as 0."
    return said


def spelt(direction: str) -> str:
    """image_to_text as image → text."""
    return direction.replace("_to_", " → ")
