"""SePH-linear: semantics-preserving hashing with linear hash functions (Lin, Ding, Hu & Wang, CVPR 2015).

SePH (see `dcmh.methods.seph`) with stage 2 replaced by ridge regression of the codes H on the features and a constant:

    w_k = (X'X + mu_k I)^-1 X'h_k,   mu_k from 10^-3 .. 10^3 by cross-validation on the squared error, for each bit

The same as SePH(linear=True). Uses labels. Features are centred first, which the constant makes nearly immaterial.
"""

from __future__ import annotations

from dcmh.methods.seph import SePH


class SePHLinear(SePH):
    """SePH with ridge regression in place of kernel logistic regression.

    Parameters
    ----------
    folds
        Of the cross-validation that picks the strength of the ridge.
    alpha
        Weight of the pull of relaxed codes to -1 and +1.
    iterations
        Of stage 1.
    """

    def __init__(
        self, bits: int = 64, *, folds: int = 5, alpha: float = 0.01, iterations: int = 100, seed: int = 0
    ) -> None:
        super().__init__(bits, linear=True, folds=folds, alpha=alpha, iterations=iterations, seed=seed)
