"""The help pages: what a docstring says, in paragraphs that fill the terminal whatever its width."""

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
    """How cyclopts is to show a help page.

    By itself it wraps text to the terminal, but also keeps every line break of a docstring; here paragraphs lose theirs.
    """

    def __init__(self, command: str | None = None) -> None:
        self.command = command

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """One panel of parameters or commands."""
        from cyclopts.help import DefaultFormatter

        panel.description = _flowing(panel.description)
        panel.entries = [entry.copy(description=_flowing(entry.description)) for entry in panel.entries]
        DefaultFormatter()(console, options, panel)

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        """The line of the whole command."""
        from cyclopts.help import DefaultFormatter

        DefaultFormatter().render_usage(console, options, usage)

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        """What stands above the panels: of a command all that its docstring says, not only the line of the table."""
        from rich.text import Text

        said = description.primary_renderable.plain if self.command is None else _documented(self.command)
        console.print(Text(flowing(said)), end="\n\n")


def flowing(text: str) -> str:
    """Each paragraph and each item of a list on one line. Commands keep theirs: what is indented, or after $ or Example:."""
    lines: list[str] = []
    open_ended, margin = False, 0  # whether a line can belong to the one before, and how far in, for that of a list
    for line in inspect.cleandoc(text).splitlines():
        item, depth = _ITEM.match(line), len(line) - len(line.lstrip())
        belongs = open_ended and not item and (depth >= margin if margin else depth == 0)
        apart = not line.strip() or _COMMAND.match(line) is not None or (depth > 0 and not item and not belongs)
        if belongs and not apart:
            lines[-1] += f" {line.lstrip()}"
        else:
            lines.append(line)
            open_ended, margin = not apart, item.end(1) if item else 0
    return "\n".join(lines)


def _flowing(description: Any) -> Any:
    """The same for what cyclopts made of a docstring."""
    from cyclopts.help import InlineText
    from rich.text import Text

    if isinstance(description, InlineText) and isinstance(description.primary_renderable, Text):
        description.primary_renderable = Text(flowing(description.primary_renderable.plain))
    return description


def _documented(command: str) -> str:
    """The docstring of a command, up to its parameters, which have panels."""
    function = getattr(importlib.import_module(f"dcmh.cli.{command}"), command)
    return (inspect.getdoc(function) or "").partition("\n\nParameters\n---")[0]
