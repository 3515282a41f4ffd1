"""Eigenproblems and regressions that several methods share. Rows are items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ParameterError

Matrix = NDArray[np.floating[Any]]

# Directions along which the data spreads less than 1e-5 of the largest spread are rounding of float32 features.
_TINY = 1e-10
ITQ_ITERATIONS = 50


def whitener(X: Matrix, ridge: float) -> Matrix:
    """T (d, rank) with T'(X'X + ridge I)T = I, over the directions in which X varies at all."""
    values, vectors = np.linalg.eigh(X.T @ X)
    varies = (values > max(values[-1], 0) * _TINY) & (values[-1] > 0)
    return np.asarray(vectors[:, varies] / np.sqrt(values[varies] + ridge))


def canonical_pairs(X: Matrix, Y: Matrix, Tx: Matrix, Ty: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Canonical directions of two centred views, most correlated first, given the whiteners of both.

    Wx (d1, k), Wy (d2, k) and the correlations rho (k,), k the smaller rank; Wx'(X'X + ridge I)Wx = I, and so for Wy.
    """
    u, rho, vt = np.linalg.svd((X @ Tx).T @ (Y @ Ty), full_matrices=False)
    return Tx @ u, Ty @ vt.T, rho


def check_rank(method: str, bits: int, names: tuple[str, str], ranks: tuple[int, int]) -> None:
    """Refuse more bits than there are pairs of directions."""
    if bits > min(ranks):
        raise ParameterError(
            f"{method} gives one bit for each pair of independent directions: {names[0]} has {ranks[0]}, "
            f"{names[1]} has {ranks[1]}, so {bits} bits are too many. "
            f"Ask for at most {min(ranks)} bits, or take a method without this limit, such as scm, cmfh or seph."
        )


def logistic_weights(F: Matrix, signs: Matrix, ridge: float, *, steps: int = 30, tolerance: float = 1e-5) -> Matrix:
    """Minimise, for every column h of signs, sum log(1 + exp(-h F a)) + ridge |a|^2. Gives a as columns (features, c).

    Newton's method for all columns at once; each step is solved by conjugate gradients, in the coordinates in which
    F'F is diagonal. The problem is strictly convex, so this is the minimiser that any other solver finds.
    """
    values, vectors = np.linalg.eigh(F.T @ F)
    F = F @ vectors
    scale = 1 / (np.maximum(values, 0) / 4 + 2 * ridge)[:, None]  # the inverse Hessian at a = 0
    a = np.zeros((F.shape[1], signs.shape[1]))

    def losses(a: Matrix) -> Matrix:
        return np.asarray(np.logaddexp(0, -signs * (F @ a)).sum(axis=0) + ridge * (a * a).sum(axis=0))

    loss = losses(a)
    for _ in range(steps):
        miss = 1 / (1 + np.exp(np.minimum(signs * (F @ a), 500)))
        gradient = 2 * ridge * a - F.T @ (signs * miss)
        step = _newton_step(F, miss * (1 - miss), ridge, gradient, scale)
        size = np.ones(signs.shape[1])
        new = losses(a - step)
        for _ in range(20):
            worse = new > loss
            if not worse.any():
                break
            size[worse] /= 2
            new = losses(a - size * step)
        size[new > loss] = 0
        a -= size * step
        fall, loss = loss - np.minimum(new, loss), np.minimum(new, loss)
        if (fall <= tolerance * loss).all():
            break
    return vectors @ a


def _newton_step(F: Matrix, curvature: Matrix, ridge: float, gradient: Matrix, scale: Matrix) -> Matrix:
    """Solve (F' diag(curvature) F + 2 ridge I) step = gradient for every column, roughly."""
    step = np.zeros_like(gradient)
    residual = gradient.copy()
    direction = scale * residual
    energy = (residual * direction).sum(axis=0)
    first = energy.copy()
    for _ in range(50):
        product = F.T @ (curvature * (F @ direction)) + 2 * ridge * direction
        length = energy / np.maximum((direction * product).sum(axis=0), 1e-300)
        step += length * direction
        residual -= length * product
        if ((residual * scale * residual).sum(axis=0) <= 1e-4 * first).all():
            break
        new = (residual * scale * residual).sum(axis=0)
        direction = scale * residual + new / np.maximum(energy, 1e-300) * direction
        energy = new
    return step


def ridge_weights(X: Matrix, targets: Matrix, strengths: Matrix, folds: NDArray[np.intp]) -> tuple[Matrix, Matrix]:
    """Ridge regression with the strength chosen for each target by cross-validation on the squared error.

    `folds` numbers the fold of each row. Strengths that tie: the middle one. Gives weights (d, c) and strengths (c,).
    """
    errors = np.zeros((len(strengths), targets.shape[1]))
    for fold in range(folds.max() + 1):
        out = folds == fold
        for i, weights in enumerate(_ridge_path(X[~out], targets[~out], strengths)):
            errors[i] += ((X[out] @ weights - targets[out]) ** 2).sum(axis=0)
    tied = errors <= errors.min(axis=0)
    chosen = np.array([np.flatnonzero(column)[column.sum() // 2] for column in tied.T])
    weights = np.empty((X.shape[1], targets.shape[1]))
    for i in np.unique(chosen):
        columns = chosen == i
        weights[:, columns] = next(_ridge_path(X, targets[:, columns], strengths[i : i + 1]))
    return weights, strengths[chosen]


def _ridge_path(X: Matrix, targets: Matrix, strengths: Matrix) -> Iterator[Matrix]:
    scatter, right = X.T @ X, X.T @ targets
    for strength in strengths:
        yield np.linalg.solve(scatter + strength * np.eye(len(scatter)), right)


def itq(z: NDArray[Any], bits: int, seed: int) -> NDArray[np.float32]:
    """Directions (width, bits) whose signs lose little of z: iterative quantisation (Gong & Lazebnik, CVPR 2011).

    B = sign(Z R);   R = U V' for the singular value decomposition Z'B = U s V';   repeated from a random rotation. Where
    there are fewer dimensions than bits, the directions stay random.
    """
    random = np.random.default_rng(seed).standard_normal((max(z.shape[1], bits), bits))
    rotation = np.linalg.qr(random)[0][: z.shape[1]]
    for _ in range(ITQ_ITERATIONS if z.shape[1] >= bits else 0):
        left, _, right = np.linalg.svd(z.T @ np.sign(z @ rotation), full_matrices=False)
        rotation = left @ right
    return np.asarray(rotation, np.float32)


def principal_axes(x: NDArray[Any], count: int) -> NDArray[np.float32]:
    """The first principal axes (width, count) of centred items x; all of them if there are fewer."""
    values, axes = np.linalg.eigh((x.T @ x).astype(np.float64))
    return np.asarray(axes[:, np.argsort(-values)[:count]], np.float32)
