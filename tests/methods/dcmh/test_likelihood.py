"""The likelihood against all points: the same sum and gradient as the objective's plain formula, in any block size."""

import pytest
import torch

from dcmh.methods.dcmh import likelihood, objective
from dcmh.methods.dcmh.likelihood import Form, batch_likelihood
from dcmh.methods.dcmh.similarity import SharedLabels, label_bits


def case(bits=12, labels=70, points=90, missing=8, dtype=torch.float64):
    generator = torch.Generator().manual_seed(bits + labels)
    F = torch.randn(10, bits, generator=generator, dtype=dtype).requires_grad_()
    G = torch.randn(points, bits, generator=generator, dtype=dtype)
    observed = torch.ones(points, dtype=torch.bool)
    observed[torch.randperm(points, generator=generator)[:missing]] = False
    G[~observed] = 0
    L = (torch.rand(points, labels, generator=generator) < 0.05).to(torch.uint8)
    batch = torch.randperm(points, generator=generator)[:10]
    return F, G, L, batch, observed


@pytest.mark.parametrize("block", [1, 130, 1 << 20])
@pytest.mark.parametrize(("scale", "shift", "smoothing"), [(1.0, 0.0, 0.0), (4.0, -1.5, 0.02)])
def test_sum_and_gradient_are_those_of_the_plain_formula(block, scale, shift, smoothing, monkeypatch):
    monkeypatch.setattr(likelihood, "BLOCK", block)
    F, G, L, batch, observed = case()
    S = objective.similarity(L[batch].double(), L.double())[:, observed]
    Theta = objective.theta(F, G[observed]) * scale + shift
    plain = objective.likelihood(Theta, S * (1 - 2 * smoothing) + smoothing)
    (expected,) = torch.autograd.grad(plain, F)
    similarity = SharedLabels(L, dtype=torch.float64)
    ours = batch_likelihood(F, G, similarity, batch, form=Form(scale, shift, smoothing), observed=observed)
    (found,) = torch.autograd.grad(ours, F)
    assert torch.allclose(ours, plain, rtol=1e-12)
    assert torch.allclose(found, expected, rtol=1e-7, atol=1e-9)  # softplus is a straight line beyond 20 in PyTorch


def test_nothing_of_the_size_of_batch_times_points_is_kept():
    F, G, L, batch, _ = case()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        batch_likelihood(F, G, SharedLabels(L, dtype=torch.float64), batch)
    assert kept
    assert max(kept) <= F.numel()


@pytest.mark.parametrize("labels", [1, 31, 32, 80])
def test_labels_as_bits_share_what_labels_share(labels):
    L = (torch.rand(40, labels, generator=torch.Generator().manual_seed(labels)) < 0.1).to(torch.uint8)
    words = label_bits(L)
    shared = (words[:, None] & words[None]).ne(0).any(-1)
    assert torch.equal(shared, objective.similarity(L.double(), L.double()) > 0)
