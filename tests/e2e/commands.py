"""What the tests of commands share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import dcmh

SRC = Path(dcmh.__file__).parents[1]
QUICK = ("--epochs", "2", "--hidden", "32", "--bits", "16", "--device", "cpu")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        return self.err.strip().splitlines()[-1]


def spawn(
    *arguments: object, cwd: Path, program: tuple[str, ...] = ("-m", "dcmh"), stderr: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Start a command in its own process, which hears Ctrl-C even where the tests run in the background of a shell."""
    environment = os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def finish(process: subprocess.Popen[str]) -> Answer:
    out, err = process.communicate(timeout=120)
    return Answer(process.returncode, out, err)


def left_behind(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())
