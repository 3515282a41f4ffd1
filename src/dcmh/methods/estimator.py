"""HashTransformer: any hashing method as a scikit-learn transformer of vectors, for pipelines and searches of parameters.

scikit-learn must be installed; nothing else of dcmh needs it.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dcmh.data.dataset import Dataset
from dcmh.errors import needs
from dcmh.methods.base import Hasher
from dcmh.methods.dcmh import DCMH

with needs("HashTransformer needs scikit-learn 1.6 or later", "scikit-learn"):
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data


class HashTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Vectors to codes of +1 and -1, learned by a hashing method.

    Methods learn from two modalities; here both are the same vectors, so that codes of similar items are near each other.

    >>> make_pipeline(StandardScaler(), HashTransformer(DCMH(bits=32)), KNeighborsClassifier(metric="hamming"))

    Parameters
    ----------
    hasher
        The method with its settings, which also are parameters of this transformer: `hasher__bits`. It is copied before it
        learns; the copy is `hasher_`. Default: `DCMH()`.
    """

    def __init__(self, hasher: Hasher | None = None) -> None:
        self.hasher = hasher

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from vectors (items, features) and, for methods that use labels, classes (items,) or 0/1 (items, labels)."""
        hasher = DCMH() if self.hasher is None else clone(self.hasher)
        if y is None:
            X = validate_data(self, X, dtype=np.float32, ensure_min_samples=2)
            if hasher._needs_labels():
                raise ValueError(
                    f"{type(hasher).__name__} learns from labels: requires y to be passed, but the target y is None."
                )
            labels = None
        else:
            X, y = validate_data(self, X, y, dtype=np.float32, ensure_min_samples=2, multi_output=True)
            check_classification_targets(y)
            labels = np.unique(y, return_inverse=True)[1] if y.ndim == 1 else y
        data = Dataset.from_arrays(x=X, y=X, labels=labels)
        self.hasher_ = hasher.fit(data, fine=0)
        return self

    def transform(self, X: Any) -> NDArray[np.int8]:
        """Codes (items, bits) of +1 and -1. `dcmh.codes.pack` packs eight bits into a byte."""
        check_is_fitted(self)
        return self.hasher_.encode(x=validate_data(self, X, dtype=np.float32, reset=False))

    @property
    def _n_features_out(self) -> int:
        return self.hasher_.bits

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # codes are int8
        tags.target_tags.required = self.hasher is None or self.hasher._needs_labels()
        tags.target_tags.two_d_labels = True
        return tags
