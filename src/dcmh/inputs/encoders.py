"""Encoders: what turns texts, pictures or both into vectors, found by name.

    use-multilingual       texts in 16 languages, NumPy only; installed with dcmh
    minilm                 English texts, a little better there; needs onnxruntime and tokenizers (the extra `minilm`)
    transformers:FOLDER    CLIP, SigLIP and others with two towers: pictures and texts in one space (the extra `clip`)
    onnx:FOLDER            ONNX files for texts, pictures or both, without torch (`dcmh.inputs.onnx`)
    FOLDER                 the same, for texts
    NAME, NAME:ARGUMENT    an encoder that `register` was given, or of another package (entry-point group `dcmh.encoders`)

transformers:hf://OWNER/NAME, or onnx:hf://…, downloads the folder from the Hugging Face hub; nothing else uses the network.

A model folder records which encoder it learned with, by name, version and SHA-256 of the weights and of the preprocessing;
another one is refused.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from dcmh.data.columns import PICTURE_SIZE
from dcmh.errors import EncoderError, MissingExtra, ModelMismatch, ParameterError
from dcmh.util import hub
from dcmh.util.arrays import unit
from dcmh.util.cache import home

if TYPE_CHECKING:
    from dcmh.inputs.images import Framing

DEFAULT = "use-multilingual"
NAMES = (DEFAULT, "minilm")
GROUP = "dcmh.encoders"  # of entry points

Vectors = NDArray[np.float32]

_lock = threading.Lock()
_registered: dict[str, Any] = {}


class Encoder(Protocol):
    """What every encoder has."""

    name: str
    width: int
    version: str
    sha256: str


class TextEncoder(Encoder, Protocol):
    """What turns a text into a vector."""

    batch: int

    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors (n, width) of at most `batch` texts; the vector of a text does not depend on the others."""
        ...

    def knows(self, text: str) -> bool:
        """Whether the encoder can read any part of the text."""
        ...


class ImageEncoder(Encoder, Protocol):
    """What turns a picture into a vector; in the same space as texts, if it encodes these as well."""

    framing: Framing

    def encode_images(self, pixels: NDArray[np.uint8]) -> Vectors:
        """Unit vectors (n, width) of pictures (n, size, size, 3) in RGB, framed as `framing` says."""
        ...


def register(name: str, encoder: Any) -> None:
    """Make an object an encoder of this process, under a name that methods, commands and model folders take.

    Parameters
    ----------
    encoder
        An object with the method `encode_texts(texts)`, or `encode_images(pixels)` for uint8 (n, size, size, 3), or both;
        each returns vectors (n, width), which are brought to unit length. Optional attributes: `size` in pixels (224), or a
        `Framing` under the name `framing`; `version` and `sha256`, by which a model folder knows the encoder again.
    """
    if name in NAMES or ":" in name:
        raise ParameterError(
            f"An encoder cannot be registered as {name!r}.", hint="Choose a unique name without a colon."
        )
    _registered[name] = Plugin(name, encoder)


def text_encoder(name: str) -> TextEncoder:
    """The encoder of texts of this name; loaded once per process."""
    opened = open_encoder(name)
    if not reads(opened):
        raise ParameterError(f"The encoder {name} takes pictures, not texts.", hint=f"For texts, choose {DEFAULT}.")
    return cast(TextEncoder, opened)


def image_encoder(name: str) -> ImageEncoder:
    """The encoder of pictures of this name; loaded once per process."""
    opened = open_encoder(name)
    if not sees(opened):
        raise ParameterError(
            f"The encoder {name} takes texts, not pictures.", hint="Give it as --text-encoder, or choose another one."
        )
    return cast(ImageEncoder, opened)


def reads(encoder: Encoder) -> bool:
    """Whether it encodes texts."""
    return hasattr(encoder, "encode_texts")


def sees(encoder: Encoder) -> bool:
    """Whether it encodes pictures."""
    return hasattr(encoder, "encode_images")


def open_encoder(name: str) -> Encoder:
    """The encoder of this name, of texts, of pictures or of both; loaded once per process."""
    with _lock:
        return cast(Encoder, _registered[name]) if name in _registered else _opened(_absolute(name))


def _absolute(name: str) -> str:
    """The name with the whole path of its folder, so that an encoder is loaded once, however it is named."""
    kind, colon, folder = name.rpartition(":")
    if kind not in ("", "transformers", "onnx") or not Path(folder).expanduser().is_dir():
        return name
    return f"{kind}{colon}{Path(folder).expanduser().resolve()}"


@functools.lru_cache(maxsize=4)
def _opened(name: str) -> Encoder:
    if name == DEFAULT:
        from dcmh.inputs.use import UseMultilingual

        return UseMultilingual()
    kind, colon, argument = name.partition(":")
    if kind == "transformers" and colon:
        from dcmh.inputs.clip import TransformersEncoder

        return TransformersEncoder(*_locate(kind, argument))
    if name == "minilm" or (kind == "onnx" and colon) or (not colon and Path(name).expanduser().is_dir()):
        from dcmh.inputs import onnx

        if name == "minilm":
            return onnx.minilm()
        return onnx.open_folder(*(_locate(kind, argument) if colon else _locate("", name)))
    for point in entry_points(group=GROUP):
        if point.name == kind:
            return cast(Encoder, Plugin(name, cast(Callable[[str], Any], point.load())(argument)))
    others = sorted({point.name for point in entry_points(group=GROUP)} | set(_registered))
    available = ", ".join([*NAMES, "transformers:FOLDER", "onnx:FOLDER", *others])
    raise ParameterError(
        f"No encoder {name!r}. Available: {available}, or a folder with model.onnx and tokenizer.json."
    )


def _locate(kind: str, argument: str) -> tuple[Path, str]:
    """The folder of an encoder and the name to record; if it does not exist, the one of that name in the cache folder."""
    if argument.startswith(hub.PREFIX):
        return hub.download(argument), f"{kind}:{argument}"
    named = Path(argument).expanduser()
    folder = next((path for path in (named, home() / "encoders" / named.name) if argument and path.is_dir()), None)
    if folder is None:
        raise ParameterError(
            f"The encoder {kind}:{argument} has no folder: {named} does not exist.",
            which=named,
            hint=f"Give the folder of its files, put it into {home() / 'encoders'}, or name one of the hub: "
            f"{kind}:{hub.PREFIX}OWNER/NAME",
        )
    return folder, f"{kind}:{folder.resolve()}" if kind else str(folder.resolve())


class Plugin:
    """A user's object as an encoder: adds the attributes that it lacks, and checks and normalises its vectors."""

    batch = 32

    def __init__(self, name: str, plugin: Any) -> None:
        from dcmh.inputs.images import Framing

        self.name = name
        self.version = str(getattr(plugin, "version", ""))
        sha256 = str(getattr(plugin, "sha256", ""))
        self.sha256 = sha256 or hashlib.sha256(f"{name} {self.version}".encode()).hexdigest()
        self.framing = Framing.of(getattr(plugin, "framing", getattr(plugin, "size", PICTURE_SIZE)))
        black = np.zeros((1, self.framing.size, self.framing.size, 3), np.uint8)
        widths = {}
        if reads(plugin):
            self.encode_texts = functools.partial(self._call, plugin.encode_texts)
            widths["texts"] = self.encode_texts(["width"]).shape[1]
        if sees(plugin):
            self.encode_images = functools.partial(self._call, plugin.encode_images)
            widths["pictures"] = self.encode_images(black).shape[1]
        if len(set(widths.values())) != 1:
            what = " and ".join(f"{width} for {kind}" for kind, width in widths.items())
            raise EncoderError(
                f"The encoder {name} gives vectors of different width: {what}."
                if widths
                else f"The encoder {name} has neither encode_texts nor encode_images.",
                hint="See dcmh.inputs.encoders.register.",
            )
        self.width: int = next(iter(widths.values()))

    def knows(self, text: str) -> bool:
        """Whether there is anything to read in the text."""
        return bool(text.strip())

    def _call(self, method: Callable[[Any], Any], items: Any) -> Vectors:
        vectors, count = np.asarray(method(items), np.float32), len(items)
        if vectors.ndim != 2 or len(vectors) != count or not np.isfinite(vectors).all():
            raise EncoderError(
                f"The encoder {self.name} gave an array of shape {vectors.shape} for {count} items, or one that is not finite.",
                hint="It must return one vector per item, (items, width), without NaN or infinity.",
            )
        return unit(vectors)


# -- in a model folder ------------------------------------------------------------------------------------------------


def record(encoder: Encoder) -> dict[str, Any]:
    """What a model folder keeps about its encoder."""
    entry = {"name": encoder.name, "version": encoder.version, "sha256": encoder.sha256, "width": encoder.width}
    preprocessing = getattr(encoder, "preprocessing", None)
    return entry if preprocessing is None else entry | {"preprocessing": preprocessing.record()}


def from_record(entry: Mapping[str, Any]) -> Encoder:
    """The encoder that a model learned with; one that is missing or differs is an error."""
    try:
        encoder = open_encoder(str(entry["name"]))
    except (ParameterError, MissingExtra) as error:
        raise type(error)(
            f"The model needs the encoder {entry['name']} it learned with. {error.what}",
            which=error.which,
            hint=error.hint,
        ) from error
    if encoder.sha256 != entry["sha256"]:
        raise ModelMismatch(
            f"The model learned with other weights of the encoder {entry['name']} (version {entry['version']}, SHA-256 "
            f"{str(entry['sha256'])[:12]}) than the installed ones (version {encoder.version}, {encoder.sha256[:12]}).",
            which=encoder.name,
            hint=f"Install version {entry['version']}, or train again.",
        )
    return encoder


def text_encoder_from(entry: Mapping[str, Any]) -> TextEncoder:
    """The encoder of texts that a model learned with."""
    return cast(TextEncoder, from_record(entry))
