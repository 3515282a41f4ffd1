"""Lookups by multi-index hashing answer exactly as the scan does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import random_codes

from dcmh.index import HammingIndex
from dcmh.index.multihash import MultiHash, flip_patterns, make_plan

pytestmark = pytest.mark.usefixtures("numba_engine")


def same(index, queries, radius, **options) -> int:
    scanned = index.within(queries, radius, method="scan", **options)
    looked_up = index.within(queries, radius, method="lookup", **options)
    assert looked_up.ids.tolist() == scanned.ids.tolist()
    assert looked_up.distances.tolist() == scanned.distances.tolist()
    assert looked_up.offsets.tolist() == scanned.offsets.tolist()
    return len(scanned.ids)


@pytest.mark.parametrize(("bits", "radii"), [(7, 8), (16, 12), (64, 16), (100, 14), (200, 20), (1024, 12)])
def test_every_radius_equals_the_scan(bits, radii):
    rng = np.random.default_rng(bits)
    items = random_codes(rng, 3000, bits, centres=30, flip=4 / bits)
    index = HammingIndex(bits, threads=2)
    index.add(rng.permutation(3000), items)
    queries = np.concatenate([items[:100], random_codes(rng, 100, bits)])
    assert sum(same(index, queries, radius) for radius in range(radii)) > 1000


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(bits=st.integers(1, 64), n=st.integers(0, 400), radius=st.integers(0, 9), seed=st.integers(0, 999))
def test_with_removals_filters_and_later_additions(bits, n, radius, seed):
    rng = np.random.default_rng(seed)
    items, queries = random_codes(rng, n + 100, bits), random_codes(rng, 5, bits)
    index = HammingIndex(bits)
    index.add(np.arange(n), items[:n])
    same(index, queries, radius)
    index.add(np.arange(n, n + 100), items[n:])  # not in the tables: scanned
    same(index, queries, radius)
    index.remove(np.flatnonzero(rng.random(n + 100) < rng.choice([0.05, 0.5])))
    same(index, queries, radius)
    same(index, queries, radius, allowed=rng.random(n + 100) < 0.5)


@pytest.mark.parametrize("bits", [16, 64, 128, 1024])
@pytest.mark.parametrize("rows", [64, 10_000, 10_000_000])
def test_substrings_do_not_overlap_and_radii_leave_no_gap(bits, rows):
    plan = make_plan(bits, rows)
    ends = [start + length for start, length in zip(plan.starts, plan.lengths, strict=True)]
    assert all(end <= start for end, start in zip(ends, [*plan.starts[1:], bits], strict=True))
    for radius in range(30):
        # The least distance at which a code is in no bucket that is looked at; a full substring is always looked at.
        missed = [near + 1 for near, length in zip(plan.radii(radius), plan.lengths, strict=True) if near < length]
        assert sum(missed) > radius or len(missed) < len(plan.starts)


def test_flip_patterns():
    patterns = flip_patterns(10, 3)
    assert sorted(patterns.tolist()) == [word for word in range(1024) if word.bit_count() <= 3]
    assert len(flip_patterns(10, -1)) == 0


def test_a_crowded_query_is_scanned(monkeypatch):
    """Thousands of equal codes are one bucket: looking them up would cost more than a scan."""
    items = np.zeros((5000, 8), np.uint8)
    items[4000:] = random_codes(np.random.default_rng(0), 1000, 64, centres=1000)
    index = HammingIndex(64)
    index.add(np.arange(5000), items)
    asked = []
    original = MultiHash.near

    def watched(self, *arguments):
        keys, gave_up = original(self, *arguments)
        asked.append(gave_up.tolist())
        return keys, gave_up

    monkeypatch.setattr(MultiHash, "near", watched)
    same(index, items[[4500, 0, 4501]], 3)
    assert asked == [[False, True, False]]


@pytest.mark.slow
def test_tables_are_built_once_they_pay():
    index = HammingIndex(64)
    items = random_codes(np.random.default_rng(0), 20_000, 64, centres=300)
    index.add(np.arange(20_000), items)
    index.within(items[:1], 0)
    assert index._state.lookups is None  # one question: a scan
    index.within(items[:1000], 60)
    assert index._state.lookups is None  # a radius at which scans are faster
    results = index.within(items[:5000], 0)
    assert index._state.lookups is not None
    assert results.ids.tolist() == index.within(items[:5000], 0, method="scan").ids.tolist()
    built = index._state.lookups
    index.within(items[:1], 1)
    assert index._state.lookups is built
    assert built.nbytes < 12 * 20_000 * len(built.plan.starts)
