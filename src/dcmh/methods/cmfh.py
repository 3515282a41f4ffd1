"""CMFH: collective matrix factorization hashing (Ding, Guo & Zhou, CVPR 2014).

Factorises both modalities with one shared latent representation, and learns linear maps from each modality to it; a bit
is the sign of the mapped value. Unsupervised: labels are not used.

Notation. X (n, d1), Y (n, d2) centred views; V (n, c) latent; U1 (c, d1), U2 (c, d2) bases; P1 (d1, c), P2 (d2, c)
maps; lambda is `balance`.

    min  lambda |X - V U1|^2 + (1 - lambda) |Y - V U2|^2 + mu (|V - X P1|^2 + |V - Y P2|^2)
         + gamma (|U1|^2 + |U2|^2 + |P1|^2 + |P2|^2 + |V|^2)

Each step is the exact minimiser over its variable, so the objective never rises:

    U1 = (V'V + gamma/lambda I)^-1 V'X          U2 = (V'V + gamma/(1 - lambda) I)^-1 V'Y
    V  = (lambda X U1' + (1 - lambda) Y U2' + mu (X P1 + Y P2))
         (lambda U1 U1' + (1 - lambda) U2 U2' + (2 mu + gamma) I)^-1
    P1 = (X'X + gamma/mu I)^-1 X'V              P2 = (Y'Y + gamma/mu I)^-1 Y'V

From its first update on, V = Z A for Z = [X Y] and some A (d1 + d2, c). So V is never formed: Z'V = Z'Z A and
V'V = A'Z'Z A are all that the steps need, and their cost does not grow with n. Released versions differ: one has gamma in
place of gamma/lambda and gamma/mu, another divides P by mu once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dcmh.methods._two_views import LinearHasher, Matrix, Names
from dcmh.methods.base import Labels
from dcmh.util.checks import number, whole_number


class CMFH(LinearHasher):
    """One latent representation for both modalities. Labels are not used.

    Parameters
    ----------
    balance
        lambda, the weight of the first modality against the second, between 0 and 1.
    mu
        Weight of the maps from the modalities to the latent representation.
    gamma
        Weight of the squared norms.
    iterations, tolerance
        Maximum number of iterations; training stops earlier once the objective falls by less than this share of itself. The
        released code stops after 25 iterations, far from the minimum.
    """

    uses_labels: ClassVar[bool] = False

    def __init__(
        self,
        bits: int = 64,
        *,
        balance: float = 0.5,
        mu: float = 100.0,
        gamma: float = 0.01,
        iterations: int = 200,
        tolerance: float = 1e-5,
        seed: int = 0,
    ) -> None:
        super().__init__(bits, seed=seed)
        self.balance = number("balance", balance, below=1)
        self.mu = number("mu", mu)
        self.gamma = number("gamma", gamma)
        self.iterations = whole_number("iterations", iterations, 1)
        self.tolerance = tolerance

    def _directions(self, names: Names, X: Matrix, Y: Matrix, labels: Labels | None) -> tuple[Matrix, Matrix]:
        generator = np.random.default_rng(self.seed)
        Z = np.hstack([X, Y])
        C = Z.T @ Z
        split = X.shape[1]
        sides = [
            _Side(C[:split, :split], self.balance, generator.random((split, self.bits)), self.gamma / self.mu),
            _Side(C[split:, split:], 1 - self.balance, generator.random((Y.shape[1], self.bits)), self.gamma / self.mu),
        ]
        V = generator.random((len(X), self.bits))
        ZV, VV = Z.T @ V, V.T @ V
        before = np.inf
        for iteration in range(1, self.iterations + 1):
            for side, XV in zip(sides, np.split(ZV, [split]), strict=True):
                side.update_basis(XV, VV, self.gamma)
            A = update_latent(sides, self.mu, self.gamma)
            ZV = C @ A
            VV = A.T @ ZV
            for side, XV in zip(sides, np.split(ZV, [split]), strict=True):
                side.update_map(XV)
            value = objective(sides, np.split(ZV, [split]), VV, self.mu, self.gamma)
            self._record(iteration=iteration, objective=value)
            if before - value < self.tolerance * value:
                break
            before = value
        return sides[0].P, sides[1].P


@dataclass
class _Side:
    """One modality: its scatter X'X, its weight (lambda or 1 - lambda), its map P and its basis U."""

    scatter: Matrix
    weight: float
    P: Matrix
    ridge: float  # gamma / mu

    def __post_init__(self) -> None:
        self.inverse = np.linalg.inv(self.scatter + self.ridge * np.eye(len(self.scatter)))
        self.U: Matrix = np.zeros(self.P.T.shape)

    def update_basis(self, XV: Matrix, VV: Matrix, gamma: float) -> None:
        self.U = np.linalg.solve(VV + gamma / self.weight * np.eye(len(VV)), XV.T)

    def update_map(self, XV: Matrix) -> None:
        self.P = self.inverse @ XV


def update_latent(sides: list[_Side], mu: float, gamma: float) -> Matrix:
    """The A whose V = Z A minimises the objective, all else fixed."""
    right = np.vstack([side.weight * side.U.T + mu * side.P for side in sides])
    left = (len(sides) * mu + gamma) * np.eye(right.shape[1])
    for side in sides:
        left += side.weight * side.U @ side.U.T
    return np.asarray(np.linalg.solve(left, right.T).T)


def objective(sides: list[_Side], XVs: list[Matrix], VV: Matrix, mu: float, gamma: float) -> float:
    """The objective, from the products X'V of each modality (d, c) and V'V."""
    value = gamma * float(np.trace(VV))
    for side, XV in zip(sides, XVs, strict=True):
        fit = np.trace(side.scatter) - 2 * np.sum(XV * side.U.T) + np.sum((side.U @ side.U.T) * VV)
        reach = np.trace(VV) - 2 * np.sum(XV * side.P) + np.sum((side.scatter @ side.P) * side.P)
        value += float(side.weight * fit + mu * reach + gamma * (np.sum(side.U**2) + np.sum(side.P**2)))
    return value
