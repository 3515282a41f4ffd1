"""Help pages: paragraphs fill the terminal, whatever its width and wherever the docstring breaks its lines."""

from __future__ import annotations

import importlib
import inspect
import io
import itertools
import textwrap
from dataclasses import dataclass
from typing import Annotated

import pytest
from cyclopts import App, Parameter
from rich.console import Console

from dcmh import cli as commands
from dcmh.cli.help import HelpPage, flowing


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


LONG = "This is said in words that go on and on, so that any terminal has to break the line somewhere in between."


@Parameter(name="*")
@dataclass
class Settings:
    """Settings."""

    size: int | None = None
    """So many, and what is said
    of it goes on."""


def sample(*, settings: Settings | None = None, way: Annotated[str, Parameter(show_default=False)] = "a"):
    """Do this
    or that.

    This is said in words that go on and on,
    so that any terminal has to break
    the line somewhere in between.

    - the first item, which
      has two lines
    - the second
    1. a number
    What follows the list
    flows.

        dcmh train photos/
        dcmh evaluate photos.model

    $ dcmh index photos/
    $ dcmh serve photos.dcmh
    Example: dcmh demo
    Example: dcmh info demo

    Parameters
    ----------
    way
        One of these, as
        you like:

        - a: the usual
          way
        - b
    """


@pytest.mark.parametrize("width", [100, 60])
def test_lists_and_commands_keep_their_lines(width):
    app = App(name="sample", help_format="plaintext", help_formatter=HelpPage())
    app.default(sample)
    shown = page(app, width)
    above = shown.partition("\n\n")[2].partition("╭")[0]
    assert [line.rstrip() for line in above.rstrip().splitlines()] == [
        "Do this or that.",
        "",
        *textwrap.wrap(LONG, width),
        "",
        "- the first item, which has two lines",
        "- the second",
        "1. a number",
        "What follows the list flows.",
        "",
        "    dcmh train photos/",
        "    dcmh evaluate photos.model",
        "",
        "$ dcmh index photos/",
        "$ dcmh serve photos.dcmh",
        "Example: dcmh demo",
        "Example: dcmh info demo",
    ]
    rows = [line[2:-2].rstrip() for line in shown.splitlines() if line.startswith("│")]
    assert [
        row.partition("  ")[2].strip() for row in rows if not row.startswith("--help") and "--version" not in row
    ] == [
        "So many, and what is said of it goes on.",
        "One of these, as you like:",
        "",
        "- a: the usual way",
        "- b",
    ]


def test_what_flows_stays_as_it_is():
    once = flowing(inspect.getdoc(sample))
    assert flowing(once) == once
    assert flowing("One line.") == "One line."
    assert flowing("") == ""
