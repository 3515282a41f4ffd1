"""The self-join against all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from dcmh.index import join


def all_pairs(codes, vectors, radius, least, mask, signs):
    a, b = np.triu_indices(len(codes), 1)
    near = np.bitwise_count(codes[a] ^ codes[b] ^ np.uint64(mask)) <= radius
    a, b = a[near], b[near]
    x, y = vectors[a].astype(np.float64) * signs, vectors[b].astype(np.float64)
    cosine = (x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1))
    return np.stack([a, b], axis=1)[cosine >= least]


@pytest.fixture(scope="module")
def made():
    """Codes of 300 vectors, each with a few similar ones, some of them with mirrored signs."""
    generator = np.random.default_rng(0)
    signs = np.where(np.arange(96) % 2, -1, 1).astype(np.int8)
    base = np.repeat(generator.normal(0, 30, (300, 96)), 3, axis=0)
    base[2::3] *= signs
    vectors = np.clip(base + generator.normal(0, 6, base.shape), -127, 127).astype(np.int8)
    codes = np.packbits(vectors[:, :64] >= 0, axis=1, bitorder="little").view("<u8").reshape(-1)
    mask = int(np.packbits(signs[:64] < 0, bitorder="little").view("<u8")[0])
    return codes, vectors, mask, signs


@pytest.mark.parametrize("radius", [0, 3, 14, 20])
@pytest.mark.parametrize("small", [0, 10**9])
def test_pairs_are_those_of_brute_force(made, monkeypatch, radius, small):
    monkeypatch.setattr(join, "SMALL", small)
    codes, vectors, mask, signs = made
    for flipped, by in ((0, np.ones_like(signs)), (mask, signs)):
        found = join.pairs(codes, vectors, radius, 0.9, mask=flipped, signs=by)
        assert found.tolist() == all_pairs(codes, vectors, radius, 0.9, flipped, by).tolist()
    assert radius < 14 or len(found) > 100


def test_the_vectors_decide_among_near_codes(made):
    codes, vectors, _, _ = made
    assert len(join.pairs(codes, vectors, 64, 0.9)) < len(join.pairs(codes, vectors, 64, 0.1))


def test_nothing_to_join():
    assert join.pairs(np.empty(0, np.uint64), np.empty((0, 96), np.int8), 14, 0.9).shape == (0, 2)


def test_longer_substrings_for_more_codes():
    few, many = join.make_plan(10_000, 14), join.make_plan(10_000_000, 14)
    assert max(many.lengths) > max(few.lengths)
    assert sum(few.lengths) == sum(many.lengths) == 64
