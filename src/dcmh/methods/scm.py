"""SCM: semantic correlation maximization (Zhang & Li, AAAI 2014).

Linear hash functions whose products reproduce the similarity of labels, learned one bit after the other (or, as an
option, all at once as orthogonal directions). Uses labels. There is nothing to tune.

Notation. X (n, d1), Y (n, d2) centred views; L~ labels with rows of length 1; c bits.

    S = 2 L~ L~' - 1 1'     never formed: X'S Y = 2 (X'L~)(Y'L~)', as the views are centred
    R_1 = c X'S Y;  (wx, wy, e_t) = leading pair of CCA's eigenproblem with R_t in place of X'Y
    R_t+1 = R_t - (X'hx)(Y'hy)',  hx = sgn(X wx), hy = sgn(Y wy)

As in the authors' code, once the eigenvalue e_t rises the residual is used up: bit i of those left takes CCA direction
c + 1 - i (again from the first where there are fewer). R_t has rank at most l + t, and is kept as two thin factors.
"""

from __future__ import annotations

import numpy as np

from dcmh.methods._solvers import canonical_pairs, check_rank, whitener
from dcmh.methods._two_views import LinearHasher, Matrix, Names, sign, unit_rows
from dcmh.methods.base import Labels

RIDGE = 1e-6  # on the scatter matrices, as in the authors' code


class SCM(LinearHasher):
    """Projections whose signs agree as far as labels do.

    Parameters
    ----------
    orthogonal
        Take the leading directions all at once (SCM-orth) instead of one after the other (SCM-seq, the better one).
        Then there can be no more bits than independent directions in a view.
    """

    def __init__(self, bits: int = 64, *, orthogonal: bool = False, seed: int = 0) -> None:
        super().__init__(bits, seed=seed)
        self.orthogonal = orthogonal

    def _directions(self, names: Names, X: Matrix, Y: Matrix, labels: Labels | None) -> tuple[Matrix, Matrix]:
        assert labels is not None
        Tx, Ty = whitener(X, RIDGE), whitener(Y, RIDGE)
        Xw, Yw = X @ Tx, Y @ Ty
        L = unit_rows(labels)
        A, B = 2 * self.bits * Xw.T @ L, Yw.T @ L  # A B' = R_1 in whitened coordinates
        if self.orthogonal:
            check_rank("SCM with orthogonal=True", self.bits, names, (Tx.shape[1], Ty.shape[1]))
            u, s, vt = np.linalg.svd(A @ B.T, full_matrices=False)
            self.eigenvalues_ = s[: self.bits] ** 2
            return Tx @ u[:, : self.bits], Ty @ vt[: self.bits].T
        P, Q, self.eigenvalues_ = sequential_directions(Xw, Yw, A, B, self.bits)
        Wx, Wy = Tx @ P, Ty @ Q
        left = np.arange(P.shape[1], self.bits)
        if len(left):
            Cx, Cy, rho = canonical_pairs(X, Y, Tx, Ty)
            order = (self.bits - 1 - left) % len(rho)
            Wx, Wy = np.hstack([Wx, Cx[:, order]]), np.hstack([Wy, Cy[:, order]])
        return Wx, Wy


def sequential_directions(Xw: Matrix, Yw: Matrix, A: Matrix, B: Matrix, bits: int) -> tuple[Matrix, Matrix, Matrix]:
    """Directions P (d1, t), Q (d2, t) and eigenvalues (t,) of R_1 = A B', t <= bits, in whitened coordinates."""
    P, Q, eigenvalues = [], [], [np.inf]
    left, right = Span(A), Span(B)
    core = left.coordinates(A) @ right.coordinates(B).T  # the residual is left.basis @ core @ right.basis'
    for _ in range(bits):
        u, s, vt = np.linalg.svd(core)
        if s[0] ** 2 > eigenvalues[-1]:
            break
        eigenvalues.append(s[0] ** 2)
        P.append(left.basis @ u[:, 0])
        Q.append(right.basis @ vt[0])
        a, b = Xw.T @ sign(Xw @ P[-1]), Yw.T @ sign(Yw @ Q[-1])
        grown = np.zeros((left.add(a), right.add(b)))
        grown[: core.shape[0], : core.shape[1]] = core
        core = grown - np.outer(left.coordinates(a), right.coordinates(b))
    return np.column_stack(P), np.column_stack(Q), np.array(eigenvalues[1:])


class Span:
    """An orthonormal basis (d, k) that grows by the vectors added to it."""

    def __init__(self, vectors: Matrix) -> None:
        self.basis = np.linalg.qr(vectors)[0]

    def coordinates(self, vectors: Matrix) -> Matrix:
        """Of vectors (d, m) in the basis, (k, m)."""
        return np.asarray(self.basis.T @ vectors)

    def add(self, vector: Matrix) -> int:
        """Add the component of a vector outside the basis, if there is one; returns the size of the basis."""
        rest = vector - self.basis @ self.coordinates(vector)
        rest -= self.basis @ self.coordinates(rest)  # twice, against rounding
        if np.linalg.norm(rest) > 1e-10 * np.linalg.norm(vector):
            self.basis = np.column_stack([self.basis, rest / np.linalg.norm(rest)])
        return int(self.basis.shape[1])
