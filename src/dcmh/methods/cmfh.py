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

Released versions differ: one has gamma in the place of gamma/lambda and gamma/mu, one divides P by mu once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ParameterError
from dcmh.methods._two_views import LinearHasher, Matrix


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
        Stop after so many iterations, or when the objective falls by less than this share of itself. The released code
        stops after 25 iterations, far from the minimum.
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
        if not 0 < balance < 1:
            raise ParameterError(f"balance must lie between 0 and 1, not at {balance!r}. 0.5 weighs both alike.")
        if not (mu > 0 and gamma > 0):
            raise ParameterError(f"mu and gamma must be above 0, not {mu!r} and {gamma!r}.")
        if iterations < 1:
            raise ParameterError(f"iterations must be at least 1, not {iterations!r}.")
        self.balance = balance
        self.mu = mu
        self.gamma = gamma
        self.iterations = iterations
        self.tolerance = tolerance

    def _directions(
        self, names: tuple[str, str], X: Matrix, Y: Matrix, labels: NDArray[np.uint8] | None
    ) -> tuple[Matrix, Matrix]:
        generator = np.random.default_rng(self.seed)
        sides = [
            _Side(view, weight, generator.random((view.shape[1], self.bits)), self.gamma / self.mu)
            for view, weight in ((X, self.balance), (Y, 1 - self.balance))
        ]
        V: Matrix = generator.random((len(X), self.bits))
        for side in sides:
            side.XV = side.view.T @ V
        before = np.inf
        for iteration in range(1, self.iterations + 1):
            for side in sides:
                side.update_basis(V, self.gamma)
            V = update_latent(sides, self.mu, self.gamma)
            for side in sides:
                side.XV = side.view.T @ V
                side.update_map()
            value = objective(sides, V, self.mu, self.gamma)
            self._record(iteration=iteration, objective=value)
            if before - value < self.tolerance * value:
                break
            before = value
        return sides[0].P, sides[1].P


@dataclass
class _Side:
    """One modality: its view, its weight (lambda or 1 - lambda), its map P and basis U, and XV = view' V."""

    view: Matrix
    weight: float
    P: Matrix
    ridge: float  # gamma / mu

    def __post_init__(self) -> None:
        self.scatter: Matrix = self.view.T @ self.view
        self.inverse = np.linalg.inv(self.scatter + self.ridge * np.eye(len(self.scatter)))
        self.square = float(np.trace(self.scatter))
        self.U: Matrix = np.zeros(self.P.T.shape)
        self.XV: Matrix = np.zeros(self.P.shape)

    def update_basis(self, V: Matrix, gamma: float) -> None:
        self.U = np.linalg.solve(V.T @ V + gamma / self.weight * np.eye(V.shape[1]), self.XV.T)

    def update_map(self) -> None:
        self.P = self.inverse @ self.XV


def update_latent(sides: list[_Side], mu: float, gamma: float) -> Matrix:
    """The V that minimises the objective, all else fixed."""
    right = sum(side.view @ (side.weight * side.U.T + mu * side.P) for side in sides)
    left = sum(side.weight * side.U @ side.U.T for side in sides)
    left = left + (len(sides) * mu + gamma) * np.eye(len(sides[0].U))
    return np.asarray(np.linalg.solve(left, np.asarray(right).T).T)


def objective(sides: list[_Side], V: Matrix, mu: float, gamma: float) -> float:
    """The objective, from products of the thin factors: no (n, d) residual is formed."""
    value = gamma * float((V * V).sum())
    VV = V.T @ V
    for side in sides:
        fit = side.square - 2 * np.sum(side.XV * side.U.T) + np.sum((side.U @ side.U.T) * VV)
        reach = np.trace(VV) - 2 * np.sum(side.XV * side.P) + np.sum((side.scatter @ side.P) * side.P)
        value += float(side.weight * fit + mu * reach + gamma * (np.sum(side.U**2) + np.sum(side.P**2)))
    return value
