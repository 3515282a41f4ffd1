"""Semantic: regression to a sentence space, then ITQ (Gong & Lazebnik, CVPR 2011).

The fine space of `dcmh.methods.fine` already holds both sides, pictures by regression and texts by their sentence vectors. Its
vectors z are rotated so that their signs lose as little as possible, over the training pictures:

    B = sign(Z R);   R = U V' for the singular value decomposition Z'B = U s V';   repeated from a random rotation

It needs no labels, no vocabulary and no training of networks; the starter model is made with it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dcmh.data.columns import Kind
from dcmh.errors import DataError
from dcmh.inputs import sentences
from dcmh.inputs.views import SentenceView, View, WordView
from dcmh.methods import fine as fine_space
from dcmh.methods.base import Arrays, Hasher

ITERATIONS = 50


class Semantic(Hasher):
    """Signs of rotated fine vectors.

    Parameters
    ----------
    text_encoder
        "use-multilingual", "minilm", or a folder with model.onnx and tokenizer.json.
    general
        Learn for collections other than the training set: rely less on it, and more on the image network's own classes.
    """

    uses_labels: ClassVar[bool] = False
    needs_complete_items: ClassVar[bool] = False
    needs_fine: ClassVar[bool] = True

    def __init__(
        self, bits: int = 64, *, text_encoder: str = sentences.DEFAULT, general: bool = False, seed: int = 0
    ) -> None:
        super().__init__(bits, seed=seed)
        self.text_encoder = text_encoder
        self.general = general

    @property
    def _text_encoder(self) -> str:
        return self.text_encoder

    @property
    def _fine_settings(self) -> fine_space.Settings:
        return fine_space.GENERAL if self.general else fine_space.OWN

    def _view(self, kind: Kind) -> View:
        return SentenceView(encoder=self.text_encoder) if kind == "text" else super()._view(kind)

    def _fit(
        self, inputs: dict[str, Any], labels: NDArray[np.uint8] | None, observed: dict[str, NDArray[np.bool_]]
    ) -> None:
        if self.fine_ is None:
            raise DataError(
                "The method semantic learns from texts, or from labels with names, but the data has neither."
            )
        names = [name for name in inputs if name in self.fine_.modalities]
        others = [name for name in names if not isinstance(self.views_[name], WordView)] or names
        z = np.concatenate([self._fine(name, inputs[name][observed[name]]) for name in others])
        random = np.random.default_rng(self.seed).standard_normal((max(z.shape[1], self.bits), self.bits))
        rotation = np.linalg.qr(random)[0][: z.shape[1]]
        for _ in range(ITERATIONS if z.shape[1] >= self.bits else 0):  # fewer dimensions than bits: random directions
            left, _, right = np.linalg.svd(z.T @ np.sign(z @ rotation), full_matrices=False)
            rotation = left @ right
        self.rotation_ = rotation.astype(np.float32)

    def _fine(self, modality: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        assert self.fine_ is not None
        view = self.views_[modality]
        return (
            self.fine_.of_sentences(values)
            if isinstance(view, WordView)
            else self.fine_.of_inputs(modality, values, view)
        )

    def _outputs(self, modality: str, values: Any) -> NDArray[Any]:
        return np.asarray(self._fine(modality, values) @ self.rotation_)

    def _state(self) -> Arrays:
        return {"rotation": self.rotation_}

    def _restore(self, state: Arrays) -> None:
        self.rotation_ = state["rotation"]
