"""Help pages: above the panels of a command stands its whole docstring, not only its line in the table of commands."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions


class HelpPage:
    """A help formatter for cyclopts, which is given the lines of the table so that it need not import every command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Render a panel of parameters."""
        from cyclopts.help import DefaultFormatter

        DefaultFormatter()(console, options, panel)

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        """Render the usage line."""
        from cyclopts.help import DefaultFormatter

        DefaultFormatter().render_usage(console, options, usage)

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        """Render the docstring without its parameters, which have panels."""
        from cyclopts.help import DefaultFormatter, InlineText

        function = getattr(importlib.import_module(f"dcmh.cli.{self.command}"), self.command)
        text = (inspect.getdoc(function) or "").partition("\n\nParameters\n---")[0]
        DefaultFormatter().render_description(console, options, InlineText.from_format(text, "markdown"))
        console.print()
