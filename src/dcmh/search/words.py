"""Words to codes without torch: the text side of a model, from memory-mapped weights.

A word query needs a few rows of the first layer and all of the last: of 50 MB of weights it reads about one.
Index and query use the same encoder, row by row, so that the code of a text does not depend on the texts around it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dcmh import codes
from dcmh.errors import ModelError
from dcmh.inputs import encoders, sentences
from dcmh.inputs.views import WordView
from dcmh.methods import folder as model_folder
from dcmh.util.arrays import map_arrays
from dcmh.util.checksums import BlockSums
from dcmh.util.text import BagOfWords

if TYPE_CHECKING:
    from dcmh.methods.base import Hasher


class TextEncoder(Protocol):
    """What turns texts into packed codes, and the vocabulary it knows."""

    bag: BagOfWords
    encoder: encoders.TextEncoder | None

    def encode(self, texts: Sequence[str]) -> NDArray[np.uint8]: ...

    def outputs(self, texts: Sequence[str]) -> NDArray[Any]: ...


class WordEncoder:
    """The text network of a DCMH model folder in NumPy."""

    def __init__(self, folder: Path | str, modality: str = "text") -> None:
        folder = Path(folder)
        self.bag = BagOfWords.load(folder / f"{modality}.vocabulary.txt")
        kept = model_folder.read_record(folder)["modalities"][modality].get("encoder")
        self.encoder = None if kept is None else encoders.text_encoder_from(kept)
        width = len(self.bag) + (0 if self.encoder is None else self.encoder.width)
        self._blocks = BlockSums.of(folder / model_folder.WEIGHTS)
        arrays = map_arrays(folder / model_folder.WEIGHTS, self._blocks)
        self.layers: list[tuple[NDArray[Any], NDArray[Any]]] = []
        while (key := f"{modality}.{len(self.layers)}") + ".weight" in arrays:
            self.layers.append((arrays[f"{key}.weight"], arrays[f"{key}.bias"]))
        if not self.layers or len(self.layers[0][0]) != width:
            raise ModelError(
                f"{folder} is damaged: its weights do not fit its {len(self.bag):,} words.",
                hint="Copy the folder again.",
            )
        if self._blocks is not None:
            for array in (self.layers[0][1], *itertools.chain(*self.layers[1:])):
                self._blocks.check(array)
            if self.encoder is not None:
                self._blocks.check(self.layers[0][0], np.arange(len(self.bag), width))

    def outputs(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Real-valued outputs (texts, bits)."""
        bits = self.layers[-1][1].shape[0]
        outputs = np.empty((len(texts), bits), np.float32)
        for start in range(0, len(texts), 256):
            block = texts[start : start + 256]
            bags = self.bag.transform(block)
            if self._blocks is not None:
                self._blocks.check(self.layers[0][0], np.flatnonzero(bags.any(axis=0)))
            meanings = None if self.encoder is None else sentences.encode(self.encoder, block)
            for row, bag in enumerate(bags):
                outputs[start + row] = self._forward(bag, None if meanings is None else meanings[row])
        return outputs

    def encode(self, texts: Sequence[str]) -> NDArray[np.uint8]:
        """Packed codes (texts, ceil(bits / 8))."""
        return codes.pack(codes.sign(self.outputs(texts)))

    def _forward(self, bag: NDArray[np.float32], meaning: NDArray[np.float32] | None) -> NDArray[np.float32]:
        weight, bias = self.layers[0]
        known = np.flatnonzero(bag)
        x = bag[known] @ weight[known] + bias  # only the rows of these words are read
        if meaning is not None:
            x = x + meaning @ weight[len(bag) :]
        for weight, bias in self.layers[1:]:
            x = np.maximum(x, 0) @ weight + bias
        return np.asarray(x, np.float32)


class ModelWords:
    """The same for any method, through the method itself."""

    def __init__(self, model: Hasher, modality: str) -> None:
        self.model = model
        self.modality = modality
        view = model.views_[modality]
        assert isinstance(view, WordView)
        self.bag, self.encoder = view.bag, view.encoder

    def outputs(self, texts: Sequence[str]) -> NDArray[Any]:
        """Real-valued outputs (texts, bits)."""
        rows = [self.model.outputs(**{self.modality: [text]}) for text in texts]
        return np.concatenate(rows) if rows else np.empty((0, self.model.bits))

    def encode(self, texts: Sequence[str]) -> NDArray[np.uint8]:
        """Packed codes (texts, ceil(bits / 8))."""
        return codes.pack(codes.sign(self.outputs(texts)))


def text_modality(record: Mapping[str, Any]) -> str | None:
    """The modality of a model that is queried with words, from its model.json; None if there is none."""
    names = [name for name, view in record["modalities"].items() if view.get("view") in ("words", "sentences")]
    return "text" if "text" in names else names[0] if names else None


def open_words(folder: Path | str, record: Mapping[str, Any], modality: str) -> TextEncoder:
    """The text encoder of a model folder: without torch where the method allows it."""
    if record["method"] == "dcmh":
        return WordEncoder(folder, modality)
    from dcmh.methods import load

    return ModelWords(load(folder), modality)
