"""What the user sees: results on stdout, everything else on stderr. The only module that prints."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from dcmh.stores.address import hide_secrets

EVERY = 10.0  # seconds between progress lines where stderr is no terminal


_typed: list[str] = []


def set_up(tokens: Sequence[str]) -> None:
    """Keep the command line. A terminal that cannot show a character shows a question mark, and stops nothing."""
    _typed[:] = ["dcmh", *tokens]
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def follows() -> bool:
    """Whether torchrun started this process as another than the first: that one measures, writes and talks."""
    return int(os.environ.get("RANK", "0")) > 0


def result(text: str) -> None:
    """The result, on stdout."""
    print(text)


def result_json(value: Any) -> None:
    """The result for programs, on stdout: one JSON document."""
    print(json.dumps(value, indent=1, ensure_ascii=False))


def say(text: str) -> None:
    """What the user should know, on stderr."""
    if not follows():
        print(text, file=sys.stderr, flush=True)


def say_from_signal(text: str) -> None:
    """The same from within a signal handler, where the streams may be in the middle of a write."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{text}\n".encode(errors="replace"))


def error(text: str) -> None:
    """Why it could not be done: one line on stderr."""
    print(text, file=sys.stderr, flush=True)


def command(*more: str) -> str:
    """The command as it was typed, ready to be typed again; with more words where it does not have them."""
    words = [*_typed, *(word for word in more if word not in _typed)]
    return shlex.join(map(hide_secrets, words)).encode(errors="replace").decode()


def typed() -> list[str]:
    """The words of the command line, for a process that is to run the same."""
    return _typed[1:]


def bug() -> None:
    """The traceback of what should not have happened, and where to report it."""
    from dcmh import __version__

    traceback.print_exc()
    error(
        f"This is a bug in dcmh {__version__}, not a mistake of yours. Please report it where you got dcmh from, "
        f"with the lines above and the command: {command()}"
    )


def flush() -> None:
    sys.stdout.flush()


def forget_output() -> None:
    """After the reader of a pipe has gone: what is still buffered goes nowhere, without a complaint at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns with spaces between; numbers stand right, words left."""
    cells = [[_spelt(value) for value in row] for row in rows]
    right = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(header))]
    width = [max(len(row[i]) for row in [list(header), *cells]) for i in range(len(header))]
    lines = []
    for row in [list(header), *cells]:
        parts = [cell.rjust(width[i]) if right[i] else cell.ljust(width[i]) for i, cell in enumerate(row)]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def fields(pairs: Sequence[tuple[str, object]]) -> str:
    """Names and values, one a line."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name.ljust(width)}  {_spelt(value)}" for name, value in pairs)


def span(seconds: float) -> str:
    """A length of time, such as 0:06:10."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _spelt(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


class Bar:
    """How far a long step is. Use `progress`."""

    def __init__(self, title: str, unit: str = "") -> None:
        self.title = title
        self.unit = unit
        self._first: tuple[float, int] | None = None
        self._said = time.monotonic()
        self._live: Any = None
        self._task: Any = None

    def start_anew(self) -> None:
        """The pace of what comes is another one."""
        self._first = None

    def update(self, done: int, total: int, detail: str = "", *, left: float | str | None = None) -> None:
        """How far it is. `left`: seconds, or what to say of them, where the caller knows better than a constant pace."""
        now = time.monotonic()
        if self._first is None:
            self._first = (now, done)
        if left is None:
            pace = self._pace(now, done, total)
        else:
            pace = "" if done >= total else left if isinstance(left, str) else f"{span(left)} left"
        detail = "  ".join(part for part in (detail, pace) if part)
        if sys.stderr.isatty():
            self._draw(done, total, detail)
        elif now - self._said >= EVERY:
            self._said = now
            say(f"{self.title}: {done:,} of {total:,}  {detail}".rstrip())

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _pace(self, now: float, done: int, total: int) -> str:
        """Speed and time left, once there are two points to measure between."""
        assert self._first is not None
        seconds, steps = now - self._first[0], done - self._first[1]
        if steps <= 0 or seconds <= 0:
            return ""
        left = f"{span((total - done) * seconds / steps)} left" if done < total else ""
        return "  ".join(part for part in (f"{steps / seconds:.0f} {self.unit}/s" if self.unit else "", left) if part)

    def _draw(self, done: int, total: int, detail: str) -> None:
        if self._live is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn
            from rich.table import Column

            one_line = Column(no_wrap=True, overflow="ellipsis")
            self._live = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TextColumn(
                    "{task.completed:,.0f}/{task.total:,.0f}  {task.fields[detail]}",
                    markup=False,
                    table_column=one_line,
                ),
                console=Console(stderr=True),
            )
            self._task = self._live.add_task(self.title, total=total, detail="")
            self._live.start()
        self._live.update(self._task, completed=done, total=total, detail=detail)


@contextlib.contextmanager
def progress(title: str, unit: str = "") -> Iterator[Bar]:
    """A bar on a terminal, otherwise a line every ten seconds; on stderr. Nothing before the first update."""
    bar = Bar(title, unit)
    try:
        yield bar
    finally:
        bar.close()
