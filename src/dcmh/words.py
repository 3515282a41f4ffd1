"""Words to codes without torch: the text side of a model, from memory-mapped weights.

A word query needs a few rows of the first layer and all of the last: of 50 MB of weights it reads about one.
The same encoder serves index and query, row by row, so that a text's code does not depend on what it is encoded with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dcmh import codes
from dcmh.errors import ModelError
from dcmh.methods import folder as model_folder
from dcmh.text import BagOfWords

if TYPE_CHECKING:
    from dcmh.methods.base import Hasher

_TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


class TextEncoder(Protocol):
    """What turns texts into packed codes, and the vocabulary it knows."""

    bag: BagOfWords

    def encode(self, texts: Sequence[str]) -> NDArray[np.uint8]: ...

    def outputs(self, texts: Sequence[str]) -> NDArray[Any]: ...


class WordEncoder:
    """The text network of a DCMH model folder in NumPy."""

    def __init__(self, folder: Path | str, modality: str = "text") -> None:
        folder = Path(folder)
        self.bag = BagOfWords.load(folder / f"{modality}.vocabulary.txt")
        arrays = map_arrays(folder / model_folder.WEIGHTS)
        self.layers: list[tuple[NDArray[Any], NDArray[Any]]] = []
        while (key := f"{modality}.{len(self.layers)}") + ".weight" in arrays:
            self.layers.append((arrays[f"{key}.weight"], arrays[f"{key}.bias"]))
        if not self.layers or len(self.layers[0][0]) != len(self.bag):
            raise ModelError(
                f"{folder} is damaged: its weights do not fit its {len(self.bag):,} words. Copy the folder again."
            )

    def outputs(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Real-valued outputs (texts, bits)."""
        bits = self.layers[-1][1].shape[0]
        outputs = np.empty((len(texts), bits), np.float32)
        for start in range(0, len(texts), 256):
            vectors = self.bag.transform(texts[start : start + 256])
            for row, vector in enumerate(vectors, start):
                outputs[row] = self._forward(vector)
        return outputs

    def encode(self, texts: Sequence[str]) -> NDArray[np.uint8]:
        """Packed codes (texts, ceil(bits / 8))."""
        return codes.pack(codes.sign(self.outputs(texts)))

    def _forward(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        weight, bias = self.layers[0]
        known = np.flatnonzero(vector)
        x = vector[known] @ weight[known] + bias  # only the rows of these words are read
        for weight, bias in self.layers[1:]:
            x = np.maximum(x, 0) @ weight + bias
        return np.asarray(x, np.float32)


class ModelWords:
    """The same for any method, through the method itself."""

    def __init__(self, model: Hasher, modality: str) -> None:
        self.model = model
        self.modality = modality
        self.bag: BagOfWords = model.views_[modality].bag  # type: ignore[union-attr]

    def outputs(self, texts: Sequence[str]) -> NDArray[Any]:
        """Real-valued outputs (texts, bits)."""
        rows = [self.model.outputs(**{self.modality: [text]}) for text in texts]
        return np.concatenate(rows) if rows else np.empty((0, self.model.bits))

    def encode(self, texts: Sequence[str]) -> NDArray[np.uint8]:
        """Packed codes (texts, ceil(bits / 8))."""
        return codes.pack(codes.sign(self.outputs(texts)))


def text_modality(record: Mapping[str, Any]) -> str | None:
    """The modality of a model that is queried with words, by its model.json; None where there is none."""
    found = [name for name, view in record["modalities"].items() if view.get("view") == "words"]
    return "text" if "text" in found else found[0] if found else None


def open_words(folder: Path | str, record: Mapping[str, Any], modality: str) -> TextEncoder:
    """The text encoder of a model folder: without torch where the method allows it."""
    if record["method"] == "dcmh":
        return WordEncoder(folder, modality)
    from dcmh.methods import load

    return ModelWords(load(folder), modality)


def map_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file, memory-mapped: pages are read when they are used."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > size - 8:
                raise ValueError("it is too short")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        arrays = {}
        for name, entry in header.items():
            start, stop = entry["data_offsets"]
            if entry["dtype"] not in _TYPES:
                continue
            if 8 + length + stop > size:
                raise ValueError("it is too short")
            if stop == start:
                continue
            dtype, shape = _TYPES[entry["dtype"]], tuple(entry["shape"])
            arrays[name] = np.asarray(np.memmap(path, dtype, "r", 8 + length + start, shape))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is missing or damaged ({error}). Train again, or copy the folder again.") from error
    return arrays
