"""STMH: semantic topic multimodal hashing (Wang, Gao, Wang & He, IJCAI 2015).

A bit says whether an item has a topic. Topics are clusters of the second modality's vectors (the texts), of which each
item has exactly half; the first modality (the pictures) is factorised robustly and mapped to the topics.
Unsupervised: labels are not used. The order of the modalities matters: first the picture's, then the text's.

Notation. X (n, d1), Y (n, d2) views as they are, not centred; F1 (d1, c) concepts, G1 (n, c) their real amounts in X;
F2 (d2, c) topic centres, G2 (n, c) in {0, 1} with m = round(c / 2) ones per row; R (c, c); D = diag(w), row weights.

    min r1 sum_i |x_i - F1 g1_i| + r2 sum_ij G2_ij |y_i - f2_j|^2 + nu |G2 - G1 R|^2
        + gamma (|F1|^2 + |F2|^2 + |G1|^2 + |R|^2)

with r1 = lambda (`balance`), r2 = 1 - lambda. One iteration:

    F1 = X'D G1 (G1'D G1 + gamma/r1 I)^-1       F2 = Y'G2 (G2'G2 + gamma/r1 I)^-1      R = (G1'G1 + gamma/nu I)^-1 G1'G2
    g1_i = (r1 w_i x_i'F1 + nu g2_i R') (r1 w_i F1'F1 + nu R R' + gamma I)^-1
    g2_i = ones at the m smallest of r2 |y_i - f2_j|^2 - 2 nu (g1_i R)_j               w_i = r1 / (2 |x_i - F1 g1_i|)

Text: ones at the m nearest centres. Picture: z = x'F1 (F1'F1 + gamma/r1 I)^-1 R, ones where z is above its own median.
F2 is the authors' code's regression on G2; their cluster centre, Y'G2 diag(1'G2)^-1, is there but switched off (and worse
on validation items).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dcmh.methods._two_views import Matrix, Names, TwoViewHasher, blocks
from dcmh.methods.base import Arrays, Labels
from dcmh.util.checks import number, whole_number


class STMH(TwoViewHasher):
    """Topics of texts as bits, and pictures mapped to them. Labels are not used.

    Parameters
    ----------
    balance
        lambda, the weight of the first modality against the second, between 0 and 1.
    nu
        Weight of the agreement between the two modalities.
    gamma
        Weight of the squared norms.
    iterations
        The authors' script stops after 5, with the values of nu and gamma here. 20 did better on validation items, and
        another release's values (nu 0.5, gamma 1e-4, 10 iterations) worse: benchmarks/baseline_settings.py.
    """

    uses_labels: ClassVar[bool] = False

    def __init__(
        self,
        bits: int = 64,
        *,
        balance: float = 0.5,
        nu: float = 1e-6,
        gamma: float = 1e-6,
        iterations: int = 20,
        seed: int = 0,
    ) -> None:
        super().__init__(bits, seed=seed)
        self.balance = number("balance", balance, below=1)
        self.nu = number("nu", nu)
        self.gamma = number("gamma", gamma)
        self.iterations = whole_number("iterations", iterations, 1)

    @property
    def topics(self) -> int:
        """m, the number of topics per item."""
        return max(round(self.bits / 2), 1)

    def _learn(self, names: Names, X: Matrix, Y: Matrix, labels: Labels | None) -> None:
        self.names_ = names
        r1, eye = self.balance, np.eye(self.bits)
        generator = np.random.default_rng(self.seed)
        G1: Matrix = generator.normal(size=(len(X), self.bits))
        G2 = hot(generator.random((len(X), self.bits)), self.topics)
        w = np.ones(len(X))
        for iteration in range(1, self.iterations + 1):
            DG = w[:, None] * G1
            F1 = np.linalg.solve(G1.T @ DG + self.gamma / r1 * eye, DG.T @ X).T
            F2 = self._topics(G2, Y)
            R = np.linalg.solve(G1.T @ G1 + self.gamma / self.nu * eye, G1.T @ G2)
            G1 = self._amounts(X @ F1, F1, G2, R, w)
            cost = (1 - r1) * squared_distances(Y, F2) - 2 * self.nu * G1 @ R
            G2 = hot(cost, self.topics)
            misfit = np.linalg.norm(X - G1 @ F1.T, axis=1)
            w = r1 / (2 * np.maximum(misfit, 1e-8))
            self._record(iteration=iteration, objective=self._objective(misfit, Y, F1, F2, G1, G2, R))
        self.centres_ = F2
        self.map_ = F1 @ np.linalg.solve(F1.T @ F1 + self.gamma / r1 * eye, R)

    def _topics(self, G2: Matrix, Y: Matrix) -> Matrix:
        """F2 (d2, c)."""
        return np.asarray(np.linalg.solve(G2.T @ G2 + self.gamma / self.balance * np.eye(self.bits), G2.T @ Y).T)

    def _amounts(self, XF: Matrix, F1: Matrix, G2: Matrix, R: Matrix, w: Matrix) -> Matrix:
        """G1. The matrices to invert differ in w_i only, so one joint diagonalisation serves all rows."""
        r1 = self.balance
        half = np.linalg.cholesky(self.nu * R @ R.T + self.gamma * np.eye(self.bits))
        scaled = np.linalg.solve(half, np.linalg.solve(half, F1.T @ F1).T)
        values, vectors = np.linalg.eigh((scaled + scaled.T) / 2)
        T = np.linalg.solve(half.T, vectors)  # T'(nu R R' + gamma I)T = I, T'F1'F1 T = diag(values)
        right = r1 * w[:, None] * XF + self.nu * G2 @ R.T
        return np.asarray((right @ T / (r1 * w[:, None] * values + 1)) @ T.T)

    def _objective(self, misfit: Matrix, Y: Matrix, F1: Matrix, F2: Matrix, G1: Matrix, G2: Matrix, R: Matrix) -> float:
        norms = sum(float(np.sum(M * M)) for M in (F1, F2, G1, R))
        fit = self.balance * misfit.sum() + (1 - self.balance) * np.sum(G2 * squared_distances(Y, F2))
        return float(fit + self.nu * np.sum((G2 - G1 @ R) ** 2) + self.gamma * norms)

    def _outputs(self, modality: str, values: Any) -> Matrix:
        outputs = np.empty((len(values), self.bits))
        for rows in blocks(len(values)):
            block = np.asarray(values[rows], np.float64)
            if modality == self.names_[0]:
                z = block @ self.map_
                outputs[rows] = z - np.median(z, axis=1, keepdims=True)
            else:
                outputs[rows] = 2 * hot(squared_distances(block, self.centres_), self.topics) - 1
        return outputs

    def _state(self) -> Arrays:
        return {"map": self.map_, "centres": self.centres_}

    def _restore(self, state: Arrays) -> None:
        first, second = self.views_
        self.names_ = (first, second)
        self.map_, self.centres_ = state["map"], state["centres"]


def hot(cost: Matrix, ones: int) -> Matrix:
    """1 at the given number of smallest values of each row (the first of equal ones), 0 elsewhere."""
    chosen = np.argsort(cost, axis=1, kind="stable")[:, :ones]
    result = np.zeros(cost.shape)
    np.put_along_axis(result, chosen, 1, axis=1)
    return result


def squared_distances(Y: Matrix, centres: Matrix) -> Matrix:
    """Squared Euclidean distances from rows of Y (n, d) to the columns of centres (d, c), shape (n, c)."""
    return np.asarray((Y * Y).sum(axis=1)[:, None] - 2 * Y @ centres + (centres * centres).sum(axis=0))
