"""SePH: semantics-preserving hashing (Lin, Ding, Hu & Wang, CVPR 2015).

First finds codes of the training items whose Hamming distances follow the similarity of labels, then learns for each
modality and bit a kernel logistic regression that predicts the bit. Uses labels.

Stage 1. L~ labels with rows of length 1, c bits, H (n, c) relaxed codes:

    P_ij = L~_i . L~_j, 0 for i = j, scaled to sum 1       q_ij = 1 / (1 + |h_i - h_j|^2 / 4)       Q = q / sum(q)
    min  KL(P || Q) + a | |H| - 1 |^2,  a = alpha / (c n)
    dKL/dh_i = sum_j (P_ij - Q_ij) q_ij (h_i - h_j)        the regulariser's: 2 a (|H| - 1) sgn(H)

by the reference's gradient descent in the manner of t-SNE: momentum 0.5, step 500, a gain for each entry; P and Q are
never formed, only blocks of their rows.

Stage 2. k(x, z) = exp(-|x - z|^2 / s), s the mean squared distance of training items; K (n, bases), K0 (bases, bases):

    w_k = argmin sum_i log(1 + exp(-h_ik K_i w)) + 0.01 w'K0 w

or, with linear=True, ridge regression of the codes on the features and a constant, its strength from 10^-3 .. 10^3 by
cross-validation for each bit. Code of a new item: the sign. The outputs of the kernel form are log-odds, so the joint
code of several modalities, the sign of their sum, is the paper's product rule without the prior of each bit.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ParameterError
from dcmh.methods._solvers import logistic_weights, ridge_weights
from dcmh.methods._two_views import Matrix, Names, TwoViewHasher, blocks, sign, unit_rows
from dcmh.methods.base import Arrays, Labels
from dcmh.util.checks import whole_number

RIDGE = 0.01  # of the logistic regressions
STRENGTHS = 10.0 ** np.arange(-3, 4)  # of the ridge regressions


class SePH(TwoViewHasher):
    """Codes that preserve the similarity of labels, and predictors of them.

    Parameters
    ----------
    bases
        Points of the kernel: "random" training items, or "kmeans" centres of them.
    base_count
        How many; no more than there are training items.
    linear
        Ridge regression instead of the kernel; also the method seph-linear.
    folds
        Of the cross-validation of the ridge regression.
    alpha
        Weight of the pull of relaxed codes to -1 and +1.
    iterations
        Of stage 1.
    """

    def __init__(
        self,
        bits: int = 64,
        *,
        bases: Literal["random", "kmeans"] = "random",
        base_count: int = 500,
        linear: bool = False,
        folds: int = 5,
        alpha: float = 0.01,
        iterations: int = 100,
        seed: int = 0,
    ) -> None:
        super().__init__(bits, seed=seed)
        if bases not in ("random", "kmeans"):
            raise ParameterError(f"bases must be 'random' or 'kmeans', not {bases!r}.")
        self.bases = bases
        self.base_count = whole_number("base_count", base_count, 1)
        self.linear = linear
        self.folds = whole_number("folds", folds, 2)
        self.alpha = alpha
        self.iterations = whole_number("iterations", iterations, 1)

    def _learn(self, names: Names, X: Matrix, Y: Matrix, labels: Labels | None) -> None:
        assert labels is not None
        generator = np.random.default_rng(self.seed)
        codes = self._codes(unit_rows(labels).astype(np.float32), generator)
        fit_view = self._fit_linear if self.linear else self._fit_kernel
        self.predictors_: dict[str, Arrays] = {
            name: fit_view(view, codes, generator) for name, view in zip(names, (X, Y), strict=True)
        }

    def _codes(self, L: NDArray[np.float32], generator: np.random.Generator) -> Matrix:
        """Stage 1: codes (n, bits) of -1 and +1; the best iterate counts."""
        H = generator.normal(scale=1e-4, size=(len(L), self.bits)).astype(np.float32)
        increment, gains = np.zeros_like(H), np.ones_like(H)
        a = self.alpha / H.size
        best, lowest = H, np.inf
        for iteration in range(1, self.iterations + 1):
            cost, gradient = divergence(H, L)
            cost += a * float(((np.abs(H) - 1) ** 2).sum())
            self._record(iteration=iteration, objective=cost)
            if cost < lowest:
                best, lowest = H.copy(), cost
            gradient += 2 * a * (np.abs(H) - 1) * np.sign(H)
            turned = np.sign(gradient) != np.sign(increment)
            gains = np.maximum(np.where(turned, gains + 0.2, gains * 0.8), 0.01).astype(np.float32)
            increment = 0.5 * increment - 500 * gains * gradient
            H = H + increment
            H -= H.mean(axis=0)
        return sign(best)

    def _fit_kernel(self, view: Matrix, codes: Matrix, generator: np.random.Generator) -> Arrays:
        count = min(self.base_count, len(view))
        bases = view[np.sort(generator.choice(len(view), count, replace=False))]
        if self.bases == "kmeans":
            bases = centres(view, bases)
        spread = 2 * view.var(axis=0).sum()  # the mean squared distance of all pairs
        arrays: Arrays = {"bases": bases, "scale": np.array(spread if spread > 0 else 1.0)}
        # With T T' = K0^-1 and w = T a, the penalty w'K0 w becomes |a|^2.
        values, vectors = np.linalg.eigh(kernel(bases, arrays))
        T = vectors / np.sqrt(np.maximum(values, 0) + 1e-10 * values[-1])
        return arrays | {"weights": T @ logistic_weights(kernel(view, arrays) @ T, codes, RIDGE)}

    def _fit_linear(self, view: Matrix, codes: Matrix, generator: np.random.Generator) -> Arrays:
        mean = view.mean(axis=0)
        folds = generator.permutation(np.arange(len(view)) % min(self.folds, len(view)))
        weights, _ = ridge_weights(np.column_stack([view - mean, np.ones(len(view))]), codes, STRENGTHS, folds)
        return {"mean": mean, "weights": weights[:-1], "offset": weights[-1]}

    def _outputs(self, modality: str, values: Any) -> Matrix:
        arrays = self.predictors_[modality]
        outputs = np.empty((len(values), self.bits))
        for rows in blocks(len(values)):
            block = np.asarray(values[rows], np.float64)
            if "mean" in arrays:
                outputs[rows] = (block - arrays["mean"]) @ arrays["weights"] + arrays["offset"]
            else:
                outputs[rows] = kernel(block, arrays) @ arrays["weights"]
        return outputs

    def _state(self) -> Arrays:
        return {f"{name}.{key}": value for name, arrays in self.predictors_.items() for key, value in arrays.items()}

    def _restore(self, state: Arrays) -> None:
        self.predictors_ = {name: {} for name in self.views_}
        for name, value in state.items():
            modality, _, key = name.rpartition(".")
            self.predictors_[modality][key] = value


def divergence(H: NDArray[Any], L: NDArray[Any]) -> tuple[float, NDArray[Any]]:
    """KL(P || Q) up to a constant, the negative entropy of P, and its gradient (n, c); in the precision of H."""
    n = len(H)
    total = float((L.sum(axis=0, dtype=np.float64) ** 2).sum() - (L.astype(np.float64) ** 2).sum())
    quarter = (H * H).sum(axis=1) / 4
    cost, mass = 0.0, 0.0
    pull, push = np.empty_like(H), np.empty_like(H)
    for rows in blocks(n, 512):
        own = np.arange(rows.stop - rows.start), np.arange(rows.start, rows.stop)
        P = L[rows] @ L.T
        P[own] = 0
        q = H[rows] @ H.T
        q *= -0.5
        q += quarter[rows, None]
        q += quarter
        np.maximum(q, 0, out=q)
        cost += float(np.vdot(P, np.log1p(q)))
        q += 1
        np.reciprocal(q, out=q)
        q[own] = 0
        mass += float(q.sum(dtype=np.float64))
        P *= q
        pull[rows] = P.sum(axis=1, keepdims=True) * H[rows] - P @ H
        q *= q
        push[rows] = q.sum(axis=1, keepdims=True) * H[rows] - q @ H
    total = total if total > 0 else 1.0
    return cost / total + float(np.log(mass)), pull / H.dtype.type(total) - push / H.dtype.type(mass)


def kernel(values: Matrix, arrays: Arrays) -> Matrix:
    """exp(-|x - z|^2 / s) between values (n, d) and the bases, shape (n, bases)."""
    bases = arrays["bases"]
    squares = (values * values).sum(axis=1)[:, None] + (bases * bases).sum(axis=1) - 2 * values @ bases.T
    return np.asarray(np.exp(-np.maximum(squares, 0) / arrays["scale"]))


def centres(view: Matrix, start: Matrix, iterations: int = 100) -> Matrix:
    """k-means centres of a view by Lloyd's iteration from given ones; a centre that loses all its items stays."""
    nearest = np.full(len(view), -1)
    for _ in range(iterations):
        new = np.argmin((start * start).sum(axis=1) - 2 * view @ start.T, axis=1)
        if (new == nearest).all():
            break
        nearest = new
        order = np.argsort(nearest, kind="stable")
        clusters, first = np.unique(nearest[order], return_index=True)
        sums = np.add.reduceat(view[order], first, axis=0)
        start = start.copy()
        start[clusters] = sums / np.bincount(nearest)[clusters, None]
    return start
