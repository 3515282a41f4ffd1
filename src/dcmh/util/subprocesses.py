"""Programs of dcmh in Python processes of their own: for work that may crash, or that needs cores of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def can_start() -> bool:
    """Whether this Python can start another one; it cannot if it is frozen into a program."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def command(program: str, *arguments: str) -> list[str]:
    """The command that runs a program, given as source code. It does not import modules from the current folder."""
    return [sys.executable, "-P", "-c", program, *arguments]


def environment(**variables: str) -> dict[str, str]:
    """The environment of such a process: it finds the same modules as this one, and BLAS takes one thread."""
    paths = [str(Path(__file__).parents[2]), *(path for path in sys.path if isinstance(path, str) and path)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"} | variables
