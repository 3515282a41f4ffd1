"""CCA: canonical correlation analysis (Hotelling, Biometrika 1936).

Finds directions along which the two modalities correlate most; a bit is the sign of the projection.
Unsupervised: labels are not used.

Notation. X (n, d1), Y (n, d2) centred views; Cxx = X'X + ridge I, Cyy = Y'Y + ridge I, Cxy = X'Y; rho the correlations.

    (Cxy Cyy^-1 Cxy') w = rho^2 Cxx w,   w'Cxx w = 1     Wx = [w_1 .. w_bits], largest rho first
    Wy = Cyy^-1 Cxy' Wx diag(1 / rho)

Solved as the singular value decomposition of Cxx^-1/2 Cxy Cyy^-1/2, which is the same and symmetric in the two views.
"""

from __future__ import annotations

from typing import ClassVar

from dcmh.methods._solvers import canonical_pairs, check_rank, whitener
from dcmh.methods._two_views import LinearHasher, Matrix, Names
from dcmh.methods.base import Labels
from dcmh.util.checks import number


class CCA(LinearHasher):
    """Directions of largest correlation. Labels are not used.

    Parameters
    ----------
    ridge
        Added to the diagonal of the scatter matrices X'X and Y'Y, which grow with the number of items. Raise it where
        there are about as many features as training items: correlations of the training items are then mostly chance.
    """

    uses_labels: ClassVar[bool] = False

    def __init__(self, bits: int = 64, *, ridge: float = 1e-6, seed: int = 0) -> None:
        super().__init__(bits, seed=seed)
        self.ridge = number("ridge", ridge, least=0)

    def _directions(self, names: Names, X: Matrix, Y: Matrix, labels: Labels | None) -> tuple[Matrix, Matrix]:
        Tx, Ty = whitener(X, self.ridge), whitener(Y, self.ridge)
        check_rank("CCA", self.bits, names, (Tx.shape[1], Ty.shape[1]))
        Wx, Wy, self.correlations_ = canonical_pairs(X, Y, Tx, Ty)
        return Wx[:, : self.bits], Wy[:, : self.bits]
