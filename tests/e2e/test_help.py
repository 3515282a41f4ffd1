"""Help pages: paragraphs fill the terminal, whatever its width and wherever the docstring breaks its lines."""

from __future__ import annotations

import importlib
import inspect
import io
import itertools

import pytest
from rich.console import Console

from dcmh import cli as commands


def page(app, width, *tokens):
    said = io.StringIO()
    app.help_print(list(tokens), console=Console(file=said, width=width, no_color=True, force_terminal=False))
    return said.getvalue()


def paragraphs(shown, width):
    """The texts of a page as lists of lines, each with the width that it may fill: those above the panels, and those in them."""
    above, *panels = shown.split("╭")
    for block in filter(None, map(str.strip, above.split("\n\n"))):
        yield width, [line.rstrip() for line in block.splitlines()]
    for panel in panels:
        rows = [line[2:-2] for line in panel.splitlines() if line.startswith("│")]
        start = text_column(rows)
        texts: list[list[str]] = []
        for row in rows:
            if row[:start].strip() and not row.strip().startswith("--no-"):
                texts.append([])
            texts[-1].append(row[start:].rstrip())
        yield from ((len(rows[0]) - start, text) for text in texts)


def text_column(rows):
    """Where the texts of a panel begin: after the last two columns of spaces."""
    empty = [all(row[i] == " " for row in rows) for i in range(len(rows[0]))]
    return max(i for i in range(2, len(empty)) if empty[i - 2] and empty[i - 1] and not empty[i])


@pytest.mark.parametrize("width", [100, 60])
def test_no_line_within_a_paragraph_is_short(width):
    lines_checked = 0
    for name in commands.COMMANDS:
        for room, lines in paragraphs(page(commands.app, width, name), width):
            for line, below in itertools.pairwise(lines):
                assert len(line) + 1 + len(below.split()[0]) > room, f"{name}: more has room on {line!r}"
                lines_checked += 1
    assert lines_checked > 60


def test_a_command_shows_all_that_its_docstring_says():
    for name in commands.COMMANDS:
        function = getattr(importlib.import_module(f"dcmh.cli.{name}"), name)
        said = inspect.getdoc(function).partition("\n\nParameters\n")[0]
        shown = page(commands.app, 60, name).partition("╭")[0].partition("\n\n")[2]
        assert shown.split() == said.split()
        assert shown.strip().count("\n\n") == said.count("\n\n")
