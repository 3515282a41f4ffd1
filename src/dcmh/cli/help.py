"""Help pages: docstrings as paragraphs that fill the terminal, whatever its width."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

_ITEM = re.compile(r"\s*([-*]|\d+[.)])\s")
_COMMAND = re.compile(r"\s*(\$|>>>|Example:)\s")


class HelpPage:
    """A help formatter for cyclopts, which by itself keeps every line break of a docstring."""

    def __init__(self, command: str | None = None) -> None:
        self.command = command

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Render a panel of parameters or commands."""
        from cyclopts.help import DefaultFormatter

        panel.description = _flowing(panel.description)
        panel.entries = [entry.copy(description=_flowing(entry.description)) for entry in panel.entries]
        DefaultFormatter()(console, options, panel)

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        """Render the usage line."""
        from cyclopts.help import DefaultFormatter

        DefaultFormatter().render_usage(console, options, usage)

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        """Render the text above the panels: for a command the whole docstring, not only its line in the table."""
        from rich.text import Text

        text = description.primary_renderable.plain if self.command is None else _documented(self.command)
        console.print(Text(flowing(text)), end="\n\n")


def flowing(text: str) -> str:
    """Each paragraph and list item on one line. Commands stay as they are: lines that are indented, or after $ or Example:."""
    lines: list[str] = []
    open_ended, margin = False, 0  # whether the next line can continue this one, and its indentation in a list
    for line in inspect.cleandoc(text).splitlines():
        item, depth = _ITEM.match(line), len(line) - len(line.lstrip())
        continues = open_ended and not item and (depth >= margin if margin else depth == 0)
        separate = not line.strip() or _COMMAND.match(line) is not None or (depth > 0 and not item and not continues)
        if continues and not separate:
            lines[-1] += f" {line.lstrip()}"
        else:
            lines.append(line)
            open_ended, margin = not separate, item.end(1) if item else 0
    return "\n".join(lines)


def _flowing(description: Any) -> Any:
    """The same for a description that cyclopts has parsed."""
    from cyclopts.help import InlineText
    from rich.text import Text

    if isinstance(description, InlineText) and isinstance(description.primary_renderable, Text):
        description.primary_renderable = Text(flowing(description.primary_renderable.plain))
    return description


def _documented(command: str) -> str:
    """The docstring of a command without its parameters, which have panels."""
    function = getattr(importlib.import_module(f"dcmh.cli.{command}"), command)
    return (inspect.getdoc(function) or "").partition("\n\nParameters\n---")[0]
