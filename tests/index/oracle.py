"""The obvious answer to every search, and a choice of engine."""

from __future__ import annotations

import numpy as np
import pytest

from dcmh import codes
from dcmh.index import scan


def use(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search with "numpy" or "numba" from now on, whatever it costs."""
    fresh = scan._Engines()
    fresh.missing = engine == "numpy"
    fresh.compared = scan.WORDS_BEFORE_NUMBA + 1
    monkeypatch.setattr(scan, "engines", fresh)


def random_codes(rng, n: int, bits: int, *, centres: int = 4, flip: float = 0.1) -> np.ndarray:
    """Packed codes around a few centres: near ones, far ones, equal ones."""
    middle = rng.random((centres, bits)) < 0.5
    ones = middle[rng.integers(0, centres, n)] ^ (rng.random((n, bits)) < flip)
    return np.packbits(ones, axis=1, bitorder="little")


def expected(queries, items, ids, *, k: int | None = None, radius: int | None = None) -> list[list[tuple[int, int]]]:
    """(id, distance) by brute force, stable in the order of the items."""
    answers = []
    for row in codes.hamming(queries, items).astype(int) if len(items) else np.zeros((len(queries), 0), int):
        order = np.argsort(row, kind="stable")
        if radius is not None:
            order = order[row[order] <= radius]
        answers.append([(int(ids[i]), int(row[i])) for i in order[:k]])
    return answers


def listed(results) -> list[list[tuple[int, int]]]:
    return [list(hits) for hits in results]
