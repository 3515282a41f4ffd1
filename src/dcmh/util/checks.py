"""Checks of parameters: each returns the value, or raises a ParameterError that names the parameter."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from dcmh.errors import ParameterError


def whole_number(name: str, value: Any, least: int) -> int:
    """The value as an int, if it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ParameterError(f"{name} must be a whole number of at least {least}, not {value!r}.", which=name)
    return int(value)


def number(name: str, value: Any, *, least: float | None = None, below: float = math.inf) -> Any:
    """The value, if it is a number of at least `least`, or above 0 without one, and less than `below`."""
    size = float(value) if isinstance(value, Real) else math.nan
    if not (size > 0 if least is None else size >= least) or not size < below:
        low = "above 0" if least is None else f"of at least {least:g}"
        high = "" if below == math.inf else f" and below {below:g}"
        raise ParameterError(f"{name} must be a number {low}{high}, not {value!r}.", which=name)
    return value
