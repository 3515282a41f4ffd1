"""Output: results on stdout, everything else on stderr. The only module that prints."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from dcmh.util.tables import formatted, text_table

PROGRESS_SECONDS = 10.0  # between progress lines where stderr is not a terminal

_typed: list[str] = []


def set_up(tokens: Sequence[str]) -> None:
    """Remember the command line; show characters that the terminal does not have as question marks."""
    _typed[:] = ["dcmh", *tokens]
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def follows() -> bool:
    """Whether torchrun started this process with a rank above 0. Rank 0 measures, writes and prints."""
    return int(os.environ.get("RANK", "0")) > 0


def result(text: str, *, end: str = "\n") -> None:
    """Print a result on stdout."""
    print(text, end=end)


def result_json(value: Any) -> None:
    """Print a result for programs on stdout: one JSON document."""
    print(json.dumps(value, indent=1, ensure_ascii=False))


def say(text: str) -> None:
    """Print a message on stderr."""
    if not follows():
        print(text, file=sys.stderr, flush=True)


def say_from_signal(text: str) -> None:
    """Print a message from a signal handler, where the streams may be in the middle of a write."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{text}\n".encode(errors="replace"))


def error(text: str) -> None:
    """Print why the command failed, in one line on stderr."""
    print(text, file=sys.stderr, flush=True)


def command(*more: str) -> str:
    """The command line to type again, with these words added if they are missing."""
    from dcmh.stores.address import hide_secrets

    words = [*_typed, *(word for word in more if word not in _typed)]
    return shlex.join(map(hide_secrets, words)).encode(errors="replace").decode()


def bug() -> None:
    """Print the traceback of an unexpected exception, and where to report it."""
    from dcmh import __version__

    traceback.print_exc()
    error(
        f"This is a bug in dcmh {__version__}, not something you did. Please report it where you got dcmh from, "
        f"with the lines above and the command: {command()}"
    )


def flush() -> None:
    """Write out stdout."""
    sys.stdout.flush()


def discard_output() -> None:
    """After a broken pipe: drop the buffered output, so that the exit raises no error."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


table = text_table


def fields(pairs: Sequence[tuple[str, object]]) -> str:
    """Names and values, one per line."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name.ljust(width)}  {formatted(value)}" for name, value in pairs)


def span(seconds: float) -> str:
    """A duration, such as 0:06:10."""
    return str(timedelta(seconds=round(seconds)))


class Bar:
    """The progress of a long step. Use `progress`."""

    def __init__(self, title: str, unit: str = "") -> None:
        self.title = title
        self.unit = unit
        self._first: tuple[float, int] | None = None
        self._printed = time.monotonic()
        self._live: Any = None
        self._task: Any = None

    def reset_pace(self) -> None:
        """Measure the speed anew: the next steps are faster or slower."""
        self._first = None

    def update(self, done: int, total: int, detail: str = "", *, left: float | str | None = None) -> None:
        """Show progress. `left`: the remaining seconds, or a text, where the caller knows better than an extrapolation."""
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
        elif now - self._printed >= PROGRESS_SECONDS:
            self._printed = now
            say(f"{self.title}: {done:,} of {total:,}  {detail}".rstrip())

    def close(self) -> None:
        """Remove the bar."""
        if self._live is not None:
            self._live.stop()

    def _pace(self, now: float, done: int, total: int) -> str:
        """Speed and time left, once there are two points in time to measure between."""
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
    """A progress bar on a terminal, otherwise a line every ten seconds; on stderr, from the first update on."""
    bar = Bar(title, unit)
    try:
        yield bar
    finally:
        bar.close()
