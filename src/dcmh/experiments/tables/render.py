"""Tables as Markdown, CSV, LaTeX and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

from dcmh.experiments.tables.results import number_text
from dcmh.experiments.tables.tables import Cell, Row, Table

_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "→": r"$\to$",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "·": r"$\cdot$",
    "–": "--",
}


def markdown(table: Table) -> str:
    """The caption, the table with aligned columns, and the notes."""
    header = [*table.names, *(column.title for column in table.columns)]
    body = [[*row.names, *(_md_cell(cell, row) for cell in row.cells)] for row in table.rows]
    width = [max(3, *(len(line[i]) for line in [header, *body])) for i in range(len(header))]
    rule = ["-" * width[i] if i < len(table.names) else "-" * (width[i] - 1) + ":" for i in range(len(header))]

    def line(cells: list[str]) -> str:
        padded = [
            cell.ljust(width[i]) if i < len(table.names) else cell.rjust(width[i]) for i, cell in enumerate(cells)
        ]
        return "| " + " | ".join(padded) + " |"

    footnotes = [f"{_superscript(number)} {text}" for number, text in enumerate(table.footnotes, 1)]
    parts = [table.caption, "\n".join(map(line, [header, rule, *body])), *footnotes, *table.notes]
    return "\n\n".join(parts) + "\n"


def as_csv(table: Table) -> str:
    """One line per row; each column is followed by its standard deviation and its interval. Full precision."""
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    intervals = any(cell.interval is not None for row in table.rows for cell in row.cells)
    extra = ("sd", "low", "high") if intervals else ("sd",)
    columns = [name for column in table.columns for name in (column.name, *(f"{column.name}_{end}" for end in extra))]
    writer.writerow([*table.names, "kind", *columns, "refused"])
    method: tuple[str, ...] = ()
    for row in table.rows:
        method = row.names if row.kind == "method" else method
        names = method if row.kind in ("unseen", "paper", "difference") else row.names
        values = [
            number_text(value)
            for cell in row.cells
            for value in (cell.value, cell.spread, *(cell.interval or (None, None)))[: 1 + len(extra)]
        ]
        marks = sorted({cell.mark for cell in row.cells if cell.mark is not None})
        writer.writerow([*names, row.kind, *values, " ".join(table.footnotes[mark - 1] for mark in marks)])
    return page.getvalue()


def tex(table: Table) -> str:
    """A LaTeX table environment that needs no package."""
    columns = "l" * len(table.names) + "r" * len(table.columns)
    header = " & ".join(_tex(name) for name in [*table.names, *(column.title for column in table.columns)])
    lines = [rf"\begin{{table}}[t]\centering\caption{{{_tex(table.caption)}}}\label{{table:{table.name}}}"]
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\hline", rf"{header} \\", r"\hline"]
    for row in table.rows:
        cells = [*map(_tex, row.names), *(_tex_cell(cell, row) for cell in row.cells)]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\hline", r"\end{tabular}"]
    footnotes = [f"$^{{{number}}}$ {_tex(text)}" for number, text in enumerate(table.footnotes, 1)]
    lines += [rf"\par\footnotesize {text}" for text in [*footnotes, *map(_tex, table.notes)]]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def to_json(table: Table) -> dict[str, Any]:
    """The table for programs."""
    rows = []
    for row in table.rows:
        cells = {
            column.name: {"value": cell.value, "sd": cell.spread, "interval": cell.interval}
            | ({"refused": table.footnotes[cell.mark - 1]} if cell.mark is not None else {})
            for column, cell in zip(table.columns, row.cells, strict=True)
        }
        rows.append({**dict(zip(table.names, row.names, strict=True)), "kind": row.kind, "cells": cells})
    return {"name": table.name, "caption": table.caption, "rows": rows, "notes": list(table.notes)}


FORMATS: dict[str, Callable[[Table], str]] = {"md": markdown, "csv": as_csv, "tex": tex}


def render(table: Table, form: str) -> str:
    """The text of a table in one of FORMATS."""
    return FORMATS[form](table)


def _md_cell(cell: Cell, row: Row) -> str:
    text = _text(cell)
    if cell.best:
        text = f"**{text}**"
    if cell.spread is not None:
        text += f" ±{cell.spread:.4f}"
    return text + (_superscript(cell.mark) if cell.mark is not None else "")


def _tex_cell(cell: Cell, row: Row) -> str:
    text = _tex(_text(cell))
    if cell.best:
        text = rf"\textbf{{{text}}}"
    if cell.spread is not None:
        text += rf" {{\scriptsize $\pm${cell.spread:.4f}}}"
    return text + (f"$^{{{cell.mark}}}$" if cell.mark is not None else "")


def _text(cell: Cell) -> str:
    if cell.value is None:
        return "–"
    return f"{cell.value:+.4f}".replace("-", "−") if cell.signed else f"{cell.value:.4f}"


def _superscript(number: int) -> str:
    return str(number).translate(_SUPERSCRIPT)


def _tex(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in text).replace("−", "$-$")
