"""Ridge: regression to the labels (Hoerl & Kennard, Technometrics 1970), then random projections (Charikar, STOC 2002).

The plainest supervised method there is, as a floor for the others: each modality predicts the labels linearly, and both
predictions are projected on the same random directions.

    W = (X'X + ridge n I)^-1 X' L     for each modality, X centred and scaled, L centred, P ~ N(0, 1), (labels, bits)
    code = sign(x W P)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.methods.base import Arrays, Hasher, Labels, Mask


class Ridge(Hasher):
    """Ridge regression to the labels, then random projections shared by the modalities."""

    def __init__(self, bits: int = 64, *, seed: int = 0, ridge: float = 0.1) -> None:
        super().__init__(bits, seed=seed)
        self.ridge = ridge

    def _fit(self, inputs: dict[str, Any], labels: Labels | None, observed: dict[str, Mask]) -> None:
        assert labels is not None
        targets = labels - labels.mean(0)
        projections = np.random.default_rng(self.seed).standard_normal((labels.shape[1], self.bits))
        self.means_, self.weights_ = {}, {}
        for name, values in inputs.items():
            x = values.astype(np.float64)
            self.means_[name] = x.mean(0)
            x -= self.means_[name]
            scale = np.sqrt((x**2).mean())  # so that `ridge` means the same for any unit
            gram = x.T @ x + self.ridge * len(x) * scale**2 * np.eye(x.shape[1])
            self.weights_[name] = np.linalg.solve(gram, x.T @ targets) @ projections  # (width, bits)

    def _outputs(self, modality: str, values: Any) -> NDArray[Any]:
        return np.asarray((values - self.means_[modality]) @ self.weights_[modality])

    def _state(self) -> Arrays:
        means = {f"{name}.mean": value for name, value in self.means_.items()}
        return means | {f"{name}.weights": value for name, value in self.weights_.items()}

    def _restore(self, state: Arrays) -> None:
        self.means_ = {name: state[f"{name}.mean"] for name in self.views_}
        self.weights_ = {name: state[f"{name}.weights"] for name in self.views_}
