"""Tables for people: aligned text, and HTML for notebooks."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dcmh.errors import needs

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # a file name may hold them: they would break a table, or a terminal


def text_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table of aligned columns: numbers to the right, words to the left."""
    cells = [[formatted(value) for value in row] for row in rows]
    right = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(header))]
    width = [max(len(row[i]) for row in [list(header), *cells]) for i in range(len(header))]
    lines = []
    for row in [list(header), *cells]:
        parts = [cell.rjust(width[i]) if right[i] else cell.ljust(width[i]) for i, cell in enumerate(row)]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def csv_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as CSV, without a line break at its end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue().removesuffix("\n")


class Markup(str):
    """A cell that is HTML already."""


def html_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table for a notebook; everything is escaped, except `Markup`."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in rows)
    return (
        f"<table><caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _html_cell(cell: object) -> str:
    return f"<td>{cell if isinstance(cell, Markup) else html.escape(formatted(cell))}</td>"


def formatted(value: object) -> str:
    """A cell: fractions with three digits, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return printable(str(value))


def printable(text: str) -> str:
    """The text with control characters escaped, which could change a terminal: a new line as \\n."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def data_frame(
    rows: Sequence[Mapping[str, Any]], *, index: Sequence[object] | None = None, name: str | None = None
) -> Any:
    """Records as a pandas DataFrame, under these names of the rows and of their column."""
    with needs("to_frame needs pandas", "pandas"):
        import pandas
    return pandas.DataFrame(list(rows), index=None if index is None else pandas.Index(index, name=name))
