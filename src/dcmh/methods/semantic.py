"""Semantic: regression to a sentence space, then ITQ (Gong & Lazebnik, CVPR 2011).

The space of `dcmh.methods.fine_space` already holds both sides, pictures by regression and texts by their sentence vectors. Its
vectors z are rotated so that their signs lose as little as possible, over the training pictures (`_solvers.itq`).

It needs no labels, no vocabulary and no training of networks; the starter model is made with it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dcmh.data.columns import Kind
from dcmh.errors import DataError, ParameterError
from dcmh.inputs import encoders
from dcmh.inputs.views import NETWORKS, FeatureView, SentenceView, View, WordView
from dcmh.methods import fine_space
from dcmh.methods._solvers import itq
from dcmh.methods.base import Arrays, Hasher, Labels, Mask


class Semantic(Hasher):
    """Signs of rotated fine vectors.

    Parameters
    ----------
    text_encoder
        "use-multilingual", "minilm", or a folder with model.onnx and tokenizer.json.
    encoder
        An encoder of `dcmh.inputs.encoders` for pictures, texts or both instead, such as "transformers:FOLDER". If it takes
        both, only the rotation is learned.
    quality
        For pictures: "fast" takes features of EfficientNet-Lite0, "good" those of EfficientNet-Lite2 at half the speed.
    general
        Learn for collections other than the training set: rely less on it, and more on the image network's own classes.
    """

    uses_labels: ClassVar[bool] = False
    needs_complete_items: ClassVar[bool] = False
    needs_fine: ClassVar[bool] = True

    def __init__(
        self,
        bits: int = 64,
        *,
        text_encoder: str = encoders.DEFAULT,
        encoder: str | None = None,
        quality: str = "fast",
        general: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(bits, seed=seed)
        self.text_encoder = text_encoder
        if quality not in NETWORKS:
            raise ParameterError(f"quality must be {' or '.join(NETWORKS)}, not {quality!r}.")
        self.encoder = encoder
        self.quality = quality
        self.general = general

    @property
    def _text_encoder(self) -> str:
        reads = self.encoder is not None and encoders.reads(encoders.open_encoder(self.encoder))
        return self.encoder if reads and self.encoder is not None else self.text_encoder

    @property
    def _fine_settings(self) -> fine_space.Settings:
        return fine_space.GENERAL if self.general else fine_space.OWN

    def _view(self, kind: Kind) -> View:
        if kind == "text":
            return SentenceView(encoder=self._text_encoder)
        if kind == "image" and self.encoder is not None and encoders.sees(encoders.open_encoder(self.encoder)):
            return FeatureView(self.encoder)
        return FeatureView(NETWORKS[self.quality]) if kind == "image" else super()._view(kind)

    def _fit(self, inputs: dict[str, Any], labels: Labels | None, observed: dict[str, Mask]) -> None:
        if self.fine_ is None:
            raise DataError(
                "The method semantic learns from texts, or from labels with names, but the data has neither."
            )
        names = [name for name in inputs if name in self.fine_.modalities]
        names = [name for name in names if not isinstance(self.views_[name], WordView)] or names
        z = np.concatenate([self._fine(name, inputs[name][observed[name]]) for name in names])
        self.rotation_ = itq(z, self.bits, self.seed)

    def _fine(self, modality: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        assert self.fine_ is not None
        view = self.views_[modality]
        if isinstance(view, WordView):
            return self.fine_.of_sentences(values)
        return self.fine_.of_inputs(modality, values, view)

    def _outputs(self, modality: str, values: Any) -> NDArray[Any]:
        return np.asarray(self._fine(modality, values) @ self.rotation_)

    def _state(self) -> Arrays:
        return {"rotation": self.rotation_}

    def _restore(self, state: Arrays) -> None:
        self.rotation_ = state["rotation"]
