"""Fully connected hash networks: what is folded equals what was trained."""

import pytest
import torch
from torch import nn

from dcmh.networks.mlp import Dropout, FoldedMLP, HashMLP, TextNetwork, WordLinear


def bags(n=40, words=30):
    return (torch.rand(n, words, generator=torch.Generator().manual_seed(0)) < 0.15).float()


def trained(network, x, steps=5):
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        network.train()(x).square().mean().backward()
        optimiser.step()
    return network.eval()


@pytest.mark.parametrize("hidden", [0, 16])
@pytest.mark.parametrize("words", [False, True])
def test_folded_network_gives_the_same_outputs(hidden, words):
    torch.manual_seed(0)
    x = bags() if words else torch.randn(40, 30) * 50 + 7
    network = HashMLP(30, 8, hidden=hidden, dropout=0.5, words=30 if words and hidden else 0)
    if not network.words:
        network.standardise(x)
    network.start_at(x, 0.5)
    trained(network, x)
    with torch.no_grad():
        assert torch.allclose(FoldedMLP(network.layers())(x), network(x), atol=1e-4)


def test_folded_text_network_gives_the_same_outputs():
    network = TextNetwork(30, 8, hidden=20).eval()
    x = bags()
    with torch.no_grad():
        assert torch.allclose(FoldedMLP(network.layers())(x), network(x), atol=1e-6)


def test_text_network_is_the_papers_table():
    network = TextNetwork(1386, 16)
    shapes = [(layer.in_features, layer.out_features) for layer in (network.full1, network.full2, network.full3)]
    assert shapes == [(1386, 1386), (1386, 4096), (4096, 16)]
    assert abs(network.full2.weight.std().item() - 0.01) < 1e-3


def test_word_layer_equals_a_dense_one():
    torch.manual_seed(0)
    x = bags() * torch.randint(1, 4, (40, 30))
    sparse, dense = WordLinear(30, 12).double(), nn.Linear(30, 12).double()
    x = x.double()
    with torch.no_grad():
        dense.weight.copy_(sparse.weight.T)
        dense.bias.copy_(sparse.bias)
    pull = torch.randn(40, 12, dtype=torch.float64)
    (sparse(x) * pull).sum().backward()
    (dense(x) * pull).sum().backward()
    assert torch.allclose(sparse(x), dense(x), atol=1e-12)
    assert torch.allclose(sparse.weight.grad, dense.weight.grad.T, atol=1e-12)
    assert torch.allclose(sparse.bias.grad, dense.bias.grad, atol=1e-12)


def test_network_gradient_equals_finite_differences():
    torch.manual_seed(0)
    network = HashMLP(6, 3, hidden=5, dropout=0.0).double().train()
    x = torch.randn(7, 6, dtype=torch.float64)
    parameters = list(network.parameters())

    def outputs(*values):
        return torch.func.functional_call(network, dict(zip(dict(network.named_parameters()), values, strict=True)), x)

    assert torch.autograd.gradcheck(outputs, tuple(p.detach().requires_grad_() for p in parameters), atol=1e-6)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_outputs_start_at_the_same_size_for_any_scale_of_the_input(scale):
    torch.manual_seed(0)
    x = torch.randn(200, 30) * scale + 3 * scale
    network = HashMLP(30, 16, hidden=64, dropout=0.0)
    network.standardise(x)
    network.start_at(x, 0.5)
    assert abs(network.train()(x).std().item() - 0.5) < 0.02


def test_constant_features_do_no_harm():
    x = torch.randn(50, 4)
    x[:, 1] = 7
    network = HashMLP(4, 2, hidden=3, dropout=0.0)
    network.standardise(x)
    assert torch.isfinite(network.eval()(x)).all()


def test_dropout_drops_its_share_and_keeps_the_mean():
    torch.manual_seed(0)
    layer = Dropout(0.3).train()
    out = layer(torch.ones(1000, 1003))
    assert abs((out == 0).float().mean().item() - 0.3) < 0.01
    assert abs(out.mean().item() - 1) < 0.01
    assert torch.equal(layer.eval()(torch.ones(3, 3)), torch.ones(3, 3))
