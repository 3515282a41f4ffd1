"""CMSSH: cross-modality similarity-sensitive hashing (Bronstein, Bronstein, Michel & Paragios, CVPR 2010).

Boosting over labelled pairs of one item in each modality: each bit is a projection and a threshold in either modality
that agree on similar pairs and differ on dissimilar ones; pairs it gets wrong weigh more for the next. Uses labels.

Notation. Pairs (x_k, y_k), s_k = +1 or -1, weights w(k) of sum 1; xi(x) = sgn(p'x + a), eta(y) = sgn(q'y + b). A bit:

    C = sum_k w(k) s_k (x_k - m_x)(y_k - m_y)',  m the weighted means;  p, q its leading singular vectors
    a, b maximise r = sum_k w(k) s_k xi(x_k) eta(y_k), in turn, over all thresholds
    alpha = 1/2 log((1 + r)/(1 - r));  w(k) <- w(k) exp(-alpha s_k xi(x_k) eta(y_k)), rescaled to sum 1

Provisional: stated from memory of the paper, and no released code was at hand; the number of pairs is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcmh.methods._two_views import LinearHasher, Matrix, Names, sample_pairs, sign
from dcmh.methods.base import Labels
from dcmh.util.checks import whole_number

WIDTH, PASSES, ROUNDS = 8, 10, 3  # subspace and passes of the power iteration; rounds over the two thresholds


class CMSSH(LinearHasher):
    """Boosted projections and thresholds.

    Parameters
    ----------
    pairs
        How many pairs to draw from the training items, half of them similar.
    """

    def __init__(self, bits: int = 64, *, pairs: int = 100_000, seed: int = 0) -> None:
        super().__init__(bits, seed=seed)
        self.pairs = whole_number("pairs", pairs, 2)

    def _directions(self, names: Names, X: Matrix, Y: Matrix, labels: Labels | None) -> tuple[Matrix, Matrix]:
        assert labels is not None
        generator = np.random.default_rng(self.seed)
        a, b, similar = sample_pairs(labels, self.pairs, generator)
        pairs = _Pairs(a, b, np.where(similar, 1.0, -1.0), np.full(len(a), 1 / len(a)), len(X))
        Wx, Wy = np.empty((X.shape[1], self.bits)), np.empty((Y.shape[1], self.bits))
        for bit in range(self.bits):
            p, q = leading_vectors(X, Y, pairs, generator)
            x, y = X @ p, Y @ q
            threshold_x, threshold_y, r = thresholds(x, y, pairs)
            Wx[:, bit], Wy[:, bit] = p, q
            self.offsets_[names[0]][bit], self.offsets_[names[1]][bit] = threshold_x, threshold_y
            agrees = pairs.s * sign(x + threshold_x)[a] * sign(y + threshold_y)[b]
            r = float(np.clip(r, -1 + 1e-6, 1 - 1e-6))
            pairs.w *= np.exp(-0.5 * np.log((1 + r) / (1 - r)) * agrees)
            pairs.w /= pairs.w.sum()
            self._record(iteration=bit + 1, agreement=r)
        return Wx, Wy


@dataclass
class _Pairs:
    """Rows a in the first view and b in the second, s = +1 or -1, and weights w, all (pairs,); the numbers of items."""

    a: NDArray[np.intp]
    b: NDArray[np.intp]
    s: Matrix
    w: Matrix
    items: int

    def to_first(self, values: Matrix) -> Matrix:
        """For each item, the sum of w s values over its pairs; values (items, k) are of the second view."""
        return self._spread(self.a, values[self.b])

    def to_second(self, values: Matrix) -> Matrix:
        return self._spread(self.b, values[self.a])

    def _spread(self, rows: NDArray[np.intp], values: Matrix) -> Matrix:
        weight = self.w * self.s
        columns = [np.bincount(rows, weight * column, self.items) for column in values.T]
        return np.column_stack(columns)

    def means(self, X: Matrix, Y: Matrix) -> tuple[Matrix, Matrix]:
        return np.bincount(self.a, self.w, self.items) @ X, np.bincount(self.b, self.w, self.items) @ Y


def leading_vectors(X: Matrix, Y: Matrix, pairs: _Pairs, generator: np.random.Generator) -> tuple[Matrix, Matrix]:
    """Leading singular vectors of C by subspace iteration; C (d1, d2) is applied, never formed."""
    mx, my = pairs.means(X, Y)

    def apply(right: Matrix) -> Matrix:
        t = pairs.to_first(Y @ right - my @ right)
        return np.asarray(X.T @ t - np.outer(mx, t.sum(axis=0)))

    def apply_transposed(left: Matrix) -> Matrix:
        t = pairs.to_second(X @ left - mx @ left)
        return np.asarray(Y.T @ t - np.outer(my, t.sum(axis=0)))

    width = min(WIDTH, X.shape[1], Y.shape[1])
    right = np.linalg.qr(generator.normal(size=(Y.shape[1], width)))[0]
    for _ in range(PASSES):
        left = np.linalg.qr(apply(right))[0]
        u, s, vt = np.linalg.svd(apply_transposed(left), full_matrices=False)  # C' left = u s vt
        right = u
        if s[0] <= 0:
            break
    p, q = left @ vt[0], right[:, 0]
    return p, q


def thresholds(x: Matrix, y: Matrix, pairs: _Pairs) -> tuple[float, float, float]:
    """a, b and r for projections x, y (items,): each threshold by a sweep over all of them, in turn."""
    mx, my = pairs.means(x[:, None], y[:, None])
    a, b, r = -float(mx[0]), -float(my[0]), 0.0
    for _ in range(ROUNDS):
        a, _ = _sweep(x, pairs.to_first(sign(y + b)[:, None])[:, 0])
        b, r = _sweep(y, pairs.to_second(sign(x + a)[:, None])[:, 0])
    return a, b, r


def _sweep(projection: Matrix, gain: Matrix) -> tuple[float, float]:
    """The t that maximises sum gain sgn(projection + t), and the maximum. Equal projections stay together."""
    values, group = np.unique(projection, return_inverse=True)
    below = np.concatenate([[0.0], np.cumsum(np.bincount(group, gain))])  # gain of the items under each threshold
    total = below[-1] - 2 * below
    best = int(np.argmax(total))
    edges = np.concatenate([[values[0] - 1], (values[:-1] + values[1:]) / 2, [values[-1] + 1]])
    return -float(edges[best]), float(total[best])
