"""NUS-WIDE with its 21 most frequent concepts: a later variant of `dcmh.data.benchmarks.nuswide`, from the same files."""

from __future__ import annotations

from pathlib import Path

from dcmh.data.benchmarks import nuswide
from dcmh.data.dataset import Dataset


def load(folder: Path | None = None, *, text: str = "bag") -> Dataset:
    """The points of the 21 concepts. See `dcmh.data.benchmarks.nuswide.of`."""
    return nuswide.of("nuswide21", folder, text)
