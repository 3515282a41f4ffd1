"""The average precision that the default recipe learns by."""

from __future__ import annotations

import pytest
import torch

from dcmh.methods.dcmh import DCMH, ranking
from dcmh.methods.dcmh.ranking import average_precision
from dcmh.methods.dcmh.recipes import Stable
from dcmh.methods.dcmh.similarity import SharedLabels


@pytest.fixture
def labels() -> SharedLabels:
    drawn = torch.rand(60, 4, generator=torch.Generator().manual_seed(1)) < 0.3
    return SharedLabels(drawn.to(torch.uint8), dtype=torch.float64)


def outputs(items: int, bits: int, seed: int) -> torch.Tensor:
    return torch.randn(items, bits, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 0.7


def by_hand(F: torch.Tensor, G: torch.Tensor, S: torch.Tensor) -> float:
    """Every similar point counts with the share of similar ones among the points that are at most as far."""
    values = []
    for f, similar in zip(F, S, strict=True):
        far = (f != G).sum(1)
        found = [similar[far <= far[j]].mean() for j in similar.nonzero()[:, 0]]
        values.append(float(torch.stack(found).mean()) if found else 0.0)
    return sum(values) / len(values)


def test_of_codes_it_is_the_average_precision_with_ties(labels: SharedLabels) -> None:
    batch = torch.arange(5, 25)
    F, G = outputs(20, ranking.BINS, 2).sign(), outputs(60, ranking.BINS, 3).sign()  # a bin for each distance
    S = labels.S(batch, 0, 60)
    assert float(average_precision(F, G, labels, batch)) == pytest.approx(by_hand(F, G, S), abs=1e-9)
    sorted_perfectly = torch.where(S[0] > 0, 1.0, -1.0).double()[:, None] * F[0]
    assert float(average_precision(F[:1], sorted_perfectly, labels, batch[:1])) == pytest.approx(1)


def test_the_gradient_is_that_of_the_value(labels: SharedLabels) -> None:
    batch, G = torch.arange(4), outputs(60, 8, 3)
    F = outputs(4, 8, 2).requires_grad_()
    average_precision(F, G, labels, batch).backward()
    measured, step = torch.zeros_like(F), 1e-5
    for at in range(F.numel()):
        nudge = torch.zeros(F.numel(), dtype=F.dtype)
        nudge[at] = step
        up, down = (average_precision(F.detach() + s * nudge.view_as(F), G, labels, batch) for s in (1, -1))
        measured.view(-1)[at] = (up - down) / (2 * step)
    assert F.grad is not None
    assert F.grad.abs().max() > 1e-3
    torch.testing.assert_close(F.grad, measured, rtol=1e-3, atol=1e-6)


def test_blocks_and_missing_points(labels: SharedLabels, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, G = torch.arange(10), outputs(60, 16, 3)
    F = outputs(10, 16, 2).requires_grad_()
    observed = torch.arange(60) % 3 > 0

    def value_and_gradient() -> tuple[torch.Tensor, torch.Tensor]:
        value = average_precision(F, G, labels, batch, observed=observed)
        return value.detach(), torch.autograd.grad(value, F)[0]

    whole = value_and_gradient()
    monkeypatch.setattr(ranking, "BLOCK", 70)  # seven points at a time
    torch.testing.assert_close(value_and_gradient(), whole)
    without = SharedLabels(labels.labels[torch.cat([batch, observed.nonzero()[:, 0]])], dtype=torch.float64)
    G_only = torch.cat([G.new_zeros(10, 16), G[observed]])
    counted = torch.arange(len(G_only)) >= 10
    alone = average_precision(F, G_only, without, batch, observed=counted)
    torch.testing.assert_close(alone.detach(), whole[0])


@pytest.mark.parametrize(
    ("similarity", "ranked"), [("labels", True), ("folders", True), ("tags", False), ("pairing", False)]
)
def test_only_shared_labels_are_ranked_by(similarity: str, ranked: bool) -> None:
    recipe = DCMH(similarity=similarity)._recipe({})
    assert isinstance(recipe, Stable)
    assert (recipe.ranking > 0) == ranked


def test_only_features_of_pictures_are_left_out() -> None:
    recipe = DCMH(hidden=8)._recipe({})
    shares = {
        kind: recipe.network(12, kind, None, words=words).feature_dropout.share
        for kind, words in (("features", 0), ("vectors", 0), ("words", 6))
    }
    assert shares == {"features": pytest.approx(0.1), "vectors": 0, "words": 0}
