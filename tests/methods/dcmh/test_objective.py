"""The objective against the paper's formulas, in float64."""

from itertools import product

import numpy as np
import pytest
import torch

from dcmh import codes, data
from dcmh.methods.dcmh import objective

GAMMA, ETA = 0.7, 0.3


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(0)
    F, G = (torch.randn(9, 5, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(2))
    B = torch.where(torch.randn(9, 5, generator=generator) >= 0, 1.0, -1.0).double()
    S = (torch.rand(9, 9, generator=generator) < 0.4).double()
    return F, G, B, S


def test_gradients_are_the_papers_formulas(case):
    F, G, B, S = case
    objective.objective(F, G, B, S, gamma=GAMMA, eta=ETA).backward()
    by_hand_F, by_hand_G = torch.zeros_like(F), torch.zeros_like(G)
    with torch.no_grad():
        for i in range(9):  # the sums of the paper, written out
            for j in range(9):
                sigma = 1 / (1 + torch.exp(-F[i] @ G[j] / 2))
                by_hand_F[i] += (sigma * G[j] - S[i, j] * G[j]) / 2
                by_hand_G[j] += (sigma * F[i] - S[i, j] * F[i]) / 2
        by_hand_F += 2 * GAMMA * (F - B) + 2 * ETA * F.sum(0)
        by_hand_G += 2 * GAMMA * (G - B) + 2 * ETA * G.sum(0)
    assert (F.grad - by_hand_F).abs().max() < 1e-10
    assert (G.grad - by_hand_G).abs().max() < 1e-10
    formula_F = objective.gradient(F, G, B, S, gamma=GAMMA, eta=ETA)
    formula_G = objective.gradient(G, F, B, S.T, gamma=GAMMA, eta=ETA)
    assert (formula_F - by_hand_F).abs().max() < 1e-10
    assert (formula_G - by_hand_G).abs().max() < 1e-10


def test_objective_is_the_papers_sum(case):
    F, G, B, S = (value.detach() for value in case)
    total = 0.0
    for i, j in product(range(9), repeat=2):
        theta = F[i] @ G[j] / 2
        total -= S[i, j] * theta - torch.log(1 + torch.exp(theta))
    total += GAMMA * (torch.linalg.norm(B - F) ** 2 + torch.linalg.norm(B - G) ** 2)
    ones = torch.ones(9, dtype=torch.float64)
    total += ETA * (torch.linalg.norm(F.T @ ones) ** 2 + torch.linalg.norm(G.T @ ones) ** 2)
    assert torch.isclose(objective.objective(F, G, B, S, gamma=GAMMA, eta=ETA), total, rtol=1e-12)


def test_likelihood_does_not_overflow():
    Theta = torch.tensor([[500.0, -500.0]])
    assert torch.isfinite(objective.likelihood(Theta, torch.tensor([[1.0, 0.0]])))
    assert objective.likelihood(Theta, torch.tensor([[0.0, 0.0]])) == 500


def test_codes_minimise_the_objective_over_B():
    generator = torch.Generator().manual_seed(1)
    F, G = (torch.randn(3, 4, dtype=torch.float64, generator=generator) for _ in range(2))
    S = torch.eye(3, dtype=torch.float64)
    best = min(
        product([-1.0, 1.0], repeat=12),
        key=lambda bits: float(
            objective.objective(F, G, torch.tensor(bits, dtype=torch.float64).view(3, 4), S, gamma=1.0, eta=1.0)
        ),
    )
    assert torch.equal(objective.codes([F, G]), torch.tensor(best, dtype=torch.float64).view(3, 4))


def test_codes_are_the_sign_of_the_package():
    V = torch.tensor([[0.0, -0.0, 1e-30, -1e-30, 3.0, -3.0, float("nan"), float("inf")]])
    expected = codes.sign(V.numpy())
    assert expected[0, :2].tolist() == [1, 1]  # sign(0) = +1
    assert np.array_equal(objective.codes([V]).numpy(), expected)
    assert np.array_equal(objective.codes([V / 2, V / 2]).numpy(), expected)


def test_similarity_is_that_of_data_sets():
    labels = (torch.rand(60, 9, generator=torch.Generator().manual_seed(2)) < 0.15).float()
    S = objective.similarity(labels[:20], labels)
    assert np.array_equal(S.numpy() > 0, data.similarity(labels[:20].numpy(), labels.numpy()))


def test_similarity_is_a_shared_label():
    a = torch.tensor([[1.0, 1, 0], [0, 0, 1], [0, 0, 0]])
    assert objective.similarity(a, a).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_balance_is_zero_for_balanced_bits():
    assert objective.balance(torch.tensor([[1.0, -1.0], [-1.0, 1.0]])) == 0
    assert objective.balance(torch.ones(3, 2)) == 18
