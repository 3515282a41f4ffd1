"""Memory that was freed, given back to the machine: glibc keeps what large pictures took, in every thread that saw one."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def give_back() -> None:
    """Give back what is free. Takes some milliseconds."""
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim; None where there is another library."""
    try:
        return ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):
        return None
