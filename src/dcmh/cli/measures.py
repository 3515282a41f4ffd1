"""A report as a table: each direction with its MAP beside chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dcmh.cli import console

if TYPE_CHECKING:
    from dcmh.evaluation import Report
    from dcmh.metrics import Ties


def table(report: Report, ties: Sequence[Ties] = ("stable", "expected")) -> str:
    """One row a direction. MAP once for each rule about equal distances."""
    at = f"@{report.k}" if report.k is not None else ""
    header = ["direction", *(f"MAP{at} {rule}" for rule in ties), "P@10", "chance"]
    rows = [
        [spelt(name), *(found.map[rule] for rule in ties), found.precision_at[10], found.chance]
        for name, found in report.directions.items()
    ]
    return console.table(header, rows)


def summary(report: Report) -> str:
    """What the table is about."""
    said = (
        f"{report.queries:,} held-out queries, {report.database:,} in the database, {report.train:,} learned from; "
        f"{report.bits} bits."
    )
    if report.without_relevant:
        said += f" {report.without_relevant:,} queries have nothing relevant and count as 0."
    return said


def spelt(direction: str) -> str:
    """image_to_text as image → text."""
    return direction.replace("_to_", " → ")


def short(direction: str) -> str:
    """image_to_text as I→T."""
    return "→".join(part[:1].upper() for part in direction.split("_to_"))
