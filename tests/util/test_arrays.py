"""Rows of ids in ascending lists."""

from __future__ import annotations

import numpy as np
import pytest

from dcmh.util.arrays import rows_of

LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    "ids",
    [[], [7], [1, 2, 3, 4], [3, 4, 9], [-2, -1, 0], [-LARGEST - 1, LARGEST], [LARGEST - 1, LARGEST]],
    ids=["none", "one", "no gap", "a gap", "negative", "far apart", "the largest"],
)
def test_rows_are_those_of_brute_force(ids):
    wanted = np.array([5, 1, 4, 7, -1, 3, LARGEST, -LARGEST - 1, 4], np.int64)
    rows, held = rows_of(np.array(ids, np.int64), wanted)
    assert held.tolist() == [item in ids for item in wanted.tolist()]
    assert rows[held].tolist() == [ids.index(item) for item in wanted.tolist() if item in ids]
