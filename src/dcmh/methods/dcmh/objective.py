"""The DCMH objective, one function for each of its terms (Jiang & Li, Deep Cross-Modal Hashing).

Notation. The paper stores one point per column; here every matrix has one point per row.

    F    image outputs   (n, bits)         S      similarity, 1 or 0    (n, m)
    G    text outputs    (m, bits)         Theta  half inner products   (n, m)
    B    binary codes    (n, bits), +1/-1  gamma, eta  weights of the last two terms

Where the paper writes F and G for two modalities, `outputs` below is either of them, or those of a third modality.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus


def similarity(labels_a: Tensor, labels_b: Tensor) -> Tensor:
    """S: 1 where two items share a label, else 0. Labels (n, l) and (m, l), S (n, m)."""
    return ((labels_a @ labels_b.T) > 0).to(labels_a.dtype)


def theta(F: Tensor, G: Tensor) -> Tensor:
    """Theta = F G' / 2, shape (n, m)."""
    return F @ G.T / 2


def likelihood(Theta: Tensor, S: Tensor, W: Tensor | None = None) -> Tensor:
    """Negative log-likelihood of the similarities, -sum(S Theta - log(1 + exp(Theta))): similar pairs want a large Theta.

    softplus(t) is log(1 + exp(t)) without its overflow. Its derivative gives the paper's gradient: sigma(Theta) - S.
    In the paper all pairs count the same; W weighs them.
    """
    each = softplus(Theta) - S * Theta
    return (each if W is None else each * W).sum()


def quantisation(B: Tensor, outputs: Tensor) -> Tensor:
    """||B - F||^2: how far the outputs are from the codes they will be rounded to."""
    return (B - outputs).square().sum()


def balance(outputs: Tensor) -> Tensor:
    """||F 1||^2: zero when every bit is +1 for half of the points and -1 for the other half."""
    return outputs.sum(dim=0).square().sum()


def objective(F: Tensor, G: Tensor, B: Tensor, S: Tensor, *, gamma: float, eta: float) -> Tensor:
    """The paper's whole objective J for two modalities."""
    return (
        likelihood(theta(F, G), S) + gamma * (quantisation(B, F) + quantisation(B, G)) + eta * (balance(F) + balance(G))
    )


def gradient(F: Tensor, G: Tensor, B: Tensor, S: Tensor, *, gamma: float, eta: float) -> Tensor:
    """dJ/dF as the paper writes it; dJ/dG is the same with F and G, and the axes of S, exchanged.

    Training differentiates the terms above; this formula is here to be read, and for tests to compare with them.
    """
    return (torch.sigmoid(theta(F, G)) - S) @ G / 2 + 2 * gamma * (F - B) + 2 * eta * F.sum(dim=0)


def codes(outputs: list[Tensor]) -> Tensor:
    """B = sign(gamma (F + G)), the exact minimiser of the objective over B; gamma > 0 does not change it.

    The sign is that of `dcmh.codes.sign`, on tensors: sign(0) = +1.
    """
    return torch.where(sum(outputs[1:], outputs[0]) >= 0, 1.0, -1.0).to(outputs[0].dtype)
