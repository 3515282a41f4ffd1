"""Some mutated files for every reader; `python -m tests.fuzz` runs any number."""

from __future__ import annotations

import random

import pytest

from .mutate import mutate
from .readers import READERS
from .runner import Worker

CASES, FEW = 10, 3  # of each reader; of those that start a process for each file
FIRST = 1  # seed


@pytest.fixture(scope="module")
def worker():
    with Worker() as started:
        yield started


@pytest.mark.parametrize("reader", READERS)
def test_mutated_files_end_in_an_error_of_dcmh_or_a_load(reader, worker):
    count = FEW if reader.startswith("mat5") else CASES
    outcomes = [worker.run(reader, seed) for seed in range(FIRST, FIRST + count)]
    assert not [str(outcome) for outcome in outcomes if outcome.failed]


def test_a_seed_gives_the_same_bytes():
    content = b'{"format": 1, "count": 20, "names": ["a", "b"]}' * 3
    for seed in range(200):
        first, again = (mutate(content, random.Random(f"x {seed}"), name="a.json") for _ in range(2))
        assert first == again
