"""docs/cli.md: every command's help text. Write it anew with `python -m dcmh.cli.handbook docs/cli.md`."""

from __future__ import annotations

import io
import sys

from dcmh.cli import COMMANDS, app
from dcmh.util.atomic import write_text

WIDTH = 100


def handbook() -> str:
    """The whole page."""
    parts = [
        "# Commands\n\nMade from the program by `python -m dcmh.cli.handbook docs/cli.md`; a test keeps it current.\n"
    ]
    parts.append(
        "Results go to stdout, everything else to stderr; `--json` gives results to programs. Exit codes: 0 done, "
        "1 could not do it (one line says why), 2 wrong usage, 3 inputs were skipped and `--strict` was given, "
        "130 interrupted. Environment: `DCMH_HOME` (cache), `DCMH_DEVICE`, `NO_COLOR`.\n"
    )
    for tokens in ([], *([name] for name in COMMANDS)):
        title = " ".join(["dcmh", *tokens])
        parts.append(f"## {title}\n\n```text\n{_help(tokens)}\n```\n")
    return "\n".join(parts)


def _help(tokens: list[str]) -> str:
    from rich.console import Console

    page = io.StringIO()
    app.help_print(tokens, console=Console(file=page, width=WIDTH, no_color=True, force_terminal=False))
    return "\n".join(line.rstrip() for line in page.getvalue().strip().splitlines())


if __name__ == "__main__":
    write_text(sys.argv[1], handbook())
