"""MODEL.checkpoint: the folder beside MODEL that holds an unfinished training, and no longer than that."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from dcmh.cli import console
from dcmh.errors import BusyError
from dcmh.util.locks import locked

STATE = "state.safetensors"


class Workspace:
    """Open while a training runs. One training at a time; drafts that a killed one left vanish with the folder."""

    def __init__(self, model: Path) -> None:
        self.folder = model.with_name(f"{model.name}.checkpoint")
        self.state = self.folder / STATE
        self._lock = contextlib.ExitStack()

    def open(self, *, resume: bool) -> None:
        """Make the folder. With `resume` an unfinished training in it goes on, else it is dropped; both are said."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._lock.enter_context(locked(self.folder / "lock")):
            raise BusyError(f"Another dcmh train is writing {self.folder}. Wait for it, or choose another --out.")
        if resume and not self.state.is_file():
            console.say(f"Nothing to resume in {self.folder}, starting anew.")
        elif resume:
            console.say(f"Going on from {self.folder}.")
        elif self.state.is_file():
            console.say(f"{self.folder} holds an unfinished training; starting anew (--resume would have gone on).")
            self.state.unlink()

    def close(self, *, finished: bool) -> None:
        """Remove the folder, unless it holds the state of a training that is not finished."""
        if finished or not self.state.is_file():
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


@contextlib.contextmanager
def gentle_stop() -> Iterator[Callable[[], bool]]:
    """Within the block the first Ctrl-C (or SIGTERM) is a wish, told by the function given; the second stops now."""
    asked = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt("Stopped at once. What was saved before is kept: go on with --resume.")
        asked = True
        console.say_from_signal("Finishing this iteration, then saving. Ctrl-C again stops at once.")

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
