"""CVH: cross-view hashing (Kumar & Udupa, IJCAI 2011).

Projections that place paired, or similar, items close together in either modality; a bit is the sign of the projection.
With only the pairing known (the default) this is CCA, and labels are not used; similarity="labels" uses them.

Notation. X (n, d1), Y (n, d2) centred views; W (n, n) affinity of items, D = diag(W 1), L = D - W, M = 2 L + D. The
bits are the directions a, b of the smallest mu in

    [ X'M X   -X'W Y ] [a]      [X'X + ridge I               ] [a]
    [-Y'W X    Y'M Y ] [b] = mu [               Y'Y + ridge I] [b]

With W = I it follows that M = I and mu = 1 - rho: CCA. With labels W_ij = 1 where items i and j share a label;
W is never formed, only blocks of its rows. The general form is provisional: it is stated from memory of the paper.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from dcmh.data.dataset import Dataset, similarity
from dcmh.errors import DataError, ParameterError
from dcmh.methods._solvers import canonical_pairs, check_rank, whitener
from dcmh.methods._two_views import LinearHasher, Matrix, Names, blocks
from dcmh.methods.base import Labels
from dcmh.util.checks import number


class CVH(LinearHasher):
    """Projections that keep paired, or similar, items near.

    Parameters
    ----------
    similarity
        "pairs": an item is similar to itself alone, labels are not used. "labels": items that share one are similar.
    ridge
        Added to the diagonal of the scatter matrices X'X and Y'Y.
    """

    uses_labels: ClassVar[bool] = False  # of the default; similarity="labels" checks for them itself

    def __init__(
        self,
        bits: int = 64,
        *,
        similarity: Literal["pairs", "labels"] = "pairs",
        ridge: float = 1e-4,
        seed: int = 0,
    ) -> None:
        super().__init__(bits, seed=seed)
        if similarity not in ("pairs", "labels"):
            raise ParameterError(f"similarity must be 'pairs' or 'labels', not {similarity!r}.")
        self.similarity = similarity
        self.ridge = number("ridge", ridge, least=0)

    def _check(self, train: Dataset) -> Dataset:
        if self.similarity == "labels" and train.labels is None:
            raise DataError(
                "CVH with similarity='labels' needs labels, and the data has none. Take similarity='pairs'."
            )
        return super()._check(train)

    def _directions(self, names: Names, X: Matrix, Y: Matrix, labels: Labels | None) -> tuple[Matrix, Matrix]:
        Tx, Ty = whitener(X, self.ridge), whitener(Y, self.ridge)
        check_rank("CVH", self.bits, names, (Tx.shape[1], Ty.shape[1]))
        if self.similarity == "pairs" or labels is None:
            Wx, Wy, _ = canonical_pairs(X, Y, Tx, Ty)
            return Wx[:, : self.bits], Wy[:, : self.bits]
        Xw, Yw = X @ Tx, Y @ Ty
        degree, near = neighbours(labels, np.hstack([Xw, Yw]))
        near_x, near_y = np.split(near, [Xw.shape[1]], axis=1)
        a, b, _ = joint_directions(Xw, Yw, near_x, near_y, degree)
        return Tx @ a[:, : self.bits], Ty @ b[:, : self.bits]


def neighbours(labels: Labels, values: Matrix) -> tuple[Matrix, Matrix]:
    """W 1 (n,) and W values (n, d), where W_ij says whether items i and j share a label."""
    degree, near = np.empty(len(labels)), np.empty_like(values)
    for rows in blocks(len(labels), 1024):
        W = similarity(labels[rows], labels).astype(np.float64)
        degree[rows] = W.sum(axis=1)
        near[rows] = W @ values
    return degree, near


def joint_directions(X: Matrix, Y: Matrix, WX: Matrix, WY: Matrix, degree: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """a, b and mu, smallest mu first, for whitened views (the right-hand side is I); WX = W X, WY = W Y."""
    left = np.block(
        [
            [3 * X.T @ (degree[:, None] * X) - 2 * X.T @ WX, -X.T @ WY],
            [-Y.T @ WX, 3 * Y.T @ (degree[:, None] * Y) - 2 * Y.T @ WY],
        ]
    )
    mu, vectors = np.linalg.eigh((left + left.T) / 2)
    a, b = np.split(vectors, [X.shape[1]])
    return a, b, mu
