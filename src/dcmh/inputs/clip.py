"""Encoders of the transformers library with a tower for pictures and one for texts: CLIP, SigLIP and others (extra `clip`)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import EncoderError, needs
from dcmh.inputs.preprocessing import Preprocessing
from dcmh.util.arrays import unit
from dcmh.util.checksums import sha256_of

Vectors = NDArray[np.float32]

HASHED = (".safetensors", ".json", ".txt", ".model")  # files that determine the vectors


class TransformersEncoder:
    """A folder that `save_pretrained` wrote: weights in safetensors, tokenizer and preprocessing. Downloads nothing."""

    batch = 1  # padding to the longest text of a batch, and other sums, would make a vector depend on its batch

    def __init__(self, folder: Path, name: str) -> None:
        with needs(f"The encoder {name} needs transformers", "dcmh[clip]"):
            import torch
            import transformers
        self.preprocessing = Preprocessing.read(folder)
        self.framing = self.preprocessing.framing
        options: dict[str, Any] = {"local_files_only": True}
        try:
            with _quiet():
                model = transformers.AutoModel.from_pretrained(
                    folder, use_safetensors=True, dtype=torch.float32, **options
                )
                self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
        except Exception as error:  # the library raises almost anything
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise EncoderError(
                f"The encoder {name} cannot be loaded: {reason}",
                which=folder,
                hint="Give a folder with config.json, weights in safetensors, and the files of the tokenizer.",
            ) from error
        if not (hasattr(model, "get_image_features") and hasattr(model, "get_text_features")):
            raise EncoderError(
                f"{folder} holds a {type(model).__name__}, which has no towers for pictures and texts.",
                which=folder,
                hint="Give the folder of a CLIP, a SigLIP, or another model with get_image_features and get_text_features.",
            )
        self._model = model.eval()
        self._lock = threading.Lock()  # tokenizers of this library must not be used by two threads at once
        self._longest = int(model.config.text_config.max_position_embeddings)
        # A text tower without a mask sees the padding: it learned with texts of one length.
        self._padding: bool | str = False if "attention_mask" in self._tokenizer.model_input_names else "max_length"
        self.name, self.version = name, f"transformers {transformers.__version__}"
        self.sha256 = sha256_of(file for file in folder.iterdir() if file.suffix in HASHED)
        self.width = self.encode_texts(["width"]).shape[1]

    def to(self, device: Any) -> None:
        """Bring the model to a device."""
        self._model = self._model.to(device)

    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors (n, width) of some texts."""
        return np.concatenate([self._one(text) for text in texts])

    def _one(self, text: str) -> Vectors:
        with self._lock:
            tokens = self._tokenizer(
                [text], padding=self._padding, truncation=True, max_length=self._longest, return_tensors="pt"
            )
        return self._run(self._model.get_text_features, **tokens)

    def encode_images(self, pixels: NDArray[np.uint8]) -> Vectors:
        """Unit vectors (n, width) of framed pictures (n, size, size, 3)."""
        import torch

        return self._run(self._model.get_image_features, pixel_values=torch.from_numpy(self.preprocessing(pixels)))

    def _run(self, tower: Any, **inputs: Any) -> Vectors:
        import torch

        with torch.inference_mode():
            outputs = tower(**{key: value.to(self._model.device) for key, value in inputs.items()})
        outputs = getattr(outputs, "pooler_output", outputs)  # a tensor before transformers 5
        return unit(outputs.float().cpu().numpy())

    def knows(self, text: str) -> bool:
        """Whether there is anything to read in the text: these tokenizers fall back to bytes or letters."""
        return bool(text.strip())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides the progress bars and advice that the library shows while it loads."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
