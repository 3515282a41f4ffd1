"""CRH: co-regularized hashing (Zhen & Yeung, NIPS 2012).

Boosting over labelled pairs: each bit is a projection in either modality with a large margin around its threshold, near
each other on similar pairs and apart on dissimilar ones. Uses labels.

Notation. N pairs (a_n, b_n), s_n = 1 or 0, weights omega_n, sum 1; d_n = wx'x_a - wy'y_b; I items. For each bit:

    min  1/I sum [1 - |wx'x|]_+ + 1/I sum [1 - |wy'y|]_+ + g sum omega_n l_n + ridge/2 (|wx|^2 + |wy|^2)
    l_n = s_n d_n^2 + (1 - s_n) tau(d_n),  tau = tau1 - tau2 falls from a lam^2/2 at 0 to 0 at |d| = a lam
    tau1' = 0 | (a d - sgn(d) a lam)/(a - 1) | d    for |d| <= lam | <= a lam | above;      tau2' = d

wx and wy in turn, by the concave-convex procedure: |z| and tau2 are replaced by their tangents at the last iterate, and
the convex rest is descended with the inverse of a bound on its Hessian. (The paper descends by stochastic
sub-gradients.) Then e = sum of omega over pairs it gets wrong, and omega of the others is multiplied by e/(1 - e).
When e passes 0.45 a bit is hardly better than a guess: the pairs are used up, and new ones are drawn (this is ours).

The objective depends on the views only through inner products, so each is first rotated to its leading principal
directions and scaled to mean squared length 1. A bit starts at the leading singular vectors of the weighted pairs'
sum omega (2 s - 1) x y'. Provisional: formulas and values are from memory of the paper; no released code was at hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcmh.methods._two_views import LinearHasher, Matrix, Names, sample_pairs, sign
from dcmh.methods.base import Labels
from dcmh.util.checks import number, whole_number

A, LAM = 3.7, 1 / 3.7  # of tau
TURNS, STEPS = 10, 5  # alternations between wx and wy, descent steps in each
USED_UP = 0.45  # chosen on validation items: benchmarks/baseline_settings.py


class CRH(LinearHasher):
    """Boosted large-margin projections.

    Parameters
    ----------
    pairs
        How many pairs to draw from the training items, half of them similar.
    g
        Weight of the pairs against the margins.
    ridge
        Weight of the squared norms.
    dimensions
        How many principal directions of each modality to keep.
    """

    def __init__(
        self,
        bits: int = 64,
        *,
        pairs: int = 20_000,
        g: float = 1000.0,
        ridge: float = 0.01,
        dimensions: int = 256,
        seed: int = 0,
    ) -> None:
        super().__init__(bits, seed=seed)
        self.pairs = whole_number("pairs", pairs, 2)
        self.g = number("g", g)
        self.ridge = number("ridge", ridge)
        self.dimensions = whole_number("dimensions", dimensions, 1)

    def _directions(self, names: Names, X: Matrix, Y: Matrix, labels: Labels | None) -> tuple[Matrix, Matrix]:
        assert labels is not None
        Tx, Ty = (principal(view, self.dimensions) for view in (X, Y))
        X, Y = X @ Tx, Y @ Ty
        generator = np.random.default_rng(self.seed)
        Wx, Wy = np.empty((X.shape[1], self.bits)), np.empty((Y.shape[1], self.bits))
        error = 1.0  # no pairs yet
        for bit in range(self.bits):
            if error > USED_UP:
                a, b, similar = sample_pairs(labels, self.pairs, generator)
                s, omega = similar.astype(np.float64), np.full(len(a), 1 / len(a))
            first, second = _Side(X, a, s, omega, self), _Side(Y, b, s, omega, self)
            wx, wy = start(X[a], Y[b], omega * (2 * s - 1))
            wx, wy = (w / max(np.abs(view @ w).mean(), 1e-12) for w, view in ((wx, X), (wy, Y)))
            for _ in range(TURNS):
                wx = first.improve(wx, (Y @ wy)[b])
                wy = second.improve(wy, (X @ wx)[a])
            Wx[:, bit], Wy[:, bit] = wx, wy
            wrong = (sign(X @ wx)[a] == sign(Y @ wy)[b]) != similar
            error = float(np.clip(omega @ wrong, 1e-6, 1 - 1e-6))
            omega = np.where(wrong, omega, omega * error / (1 - error))
            omega /= omega.sum()
            self._record(iteration=bit + 1, error=error, objective=self._objective(first, second, wx, wy))
        return Tx @ Wx, Ty @ Wy

    def _objective(self, first: _Side, second: _Side, wx: Matrix, wy: Matrix) -> float:
        d = (first.view @ wx)[first.rows] - (second.view @ wy)[second.rows]
        loss = first.s * d**2 + (1 - first.s) * tau(d)
        margins = sum(np.maximum(1 - np.abs(side.view @ w), 0).mean() for side, w in ((first, wx), (second, wy)))
        return float(margins + self.g * first.omega @ loss + self.ridge / 2 * (wx @ wx + wy @ wy))


@dataclass
class _Side:
    """One modality for one bit: its view, the row of each pair in it, and what is known of the pairs."""

    view: Matrix
    rows: NDArray[np.intp]
    s: Matrix
    omega: Matrix
    settings: CRH

    def __post_init__(self) -> None:
        # |second derivative| is at most 2 for similar pairs, a/(a - 1) for dissimilar ones.
        bound = np.bincount(self.rows, self.omega * np.where(self.s > 0, 2, A / (A - 1)), len(self.view))
        hessian = self.settings.g * self.view.T @ (bound[:, None] * self.view)
        self.inverse = np.linalg.inv(hessian + self.settings.ridge * np.eye(len(hessian)))

    def improve(self, w: Matrix, other: Matrix) -> Matrix:
        """One concave-convex step for w, with the other modality's outputs on the pairs (pairs,) fixed."""
        z = self.view @ w
        tangent, d_before = sign(z), z[self.rows] - other
        for _ in range(STEPS):
            z = self.view @ w
            d = z[self.rows] - other
            pull = self.settings.g * self.omega * np.where(self.s > 0, 2 * d, tau1_slope(d) - d_before)
            push = (np.where(np.abs(z) > 1, sign(z), 0) - tangent) / len(z)
            slope = self.view.T @ (np.bincount(self.rows, pull, len(z)) + push) + self.settings.ridge * w
            w = w - self.inverse @ slope
        return w


def principal(view: Matrix, dimensions: int) -> Matrix:
    """Leading principal directions (d, k) of a centred view, scaled so that items have mean squared length 1."""
    values, vectors = np.linalg.eigh(view.T @ view / len(view))
    leading = np.flatnonzero(values > max(values[-1], 0) * 1e-10)[-dimensions:]
    if not len(leading):
        return np.asarray(vectors[:, -1:])
    return np.asarray(vectors[:, leading] / np.sqrt(values[leading].sum()))


def start(X: Matrix, Y: Matrix, weights: Matrix) -> tuple[Matrix, Matrix]:
    """Leading singular vectors of sum weights x y' over pairs (pairs, d1), (pairs, d2)."""
    u, _, vt = np.linalg.svd(X.T @ (weights[:, None] * Y))
    return u[:, 0], vt[0]


def tau(d: Matrix) -> Matrix:
    """The smoothly clipped inverted squared deviation: large where a dissimilar pair is near."""
    size = np.abs(d)
    middle = (d**2 - 2 * A * LAM * size + (A * LAM) ** 2) / (2 * (A - 1))
    return np.where(size <= LAM, A * LAM**2 / 2 - d**2 / 2, np.where(size <= A * LAM, middle, 0))


def tau1_slope(d: Matrix) -> Matrix:
    """Derivative of the convex part tau1 = tau + d^2/2 - a lam^2/2."""
    size = np.abs(d)
    return np.where(size <= LAM, 0, np.where(size <= A * LAM, (A * d - np.sign(d) * A * LAM) / (A - 1), d))
