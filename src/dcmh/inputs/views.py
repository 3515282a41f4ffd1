"""Views: how a method sees a column. Pictures become features or pixels, texts bags of words and sentence vectors.

A view is fitted on the training items and saved in the model folder, so that queries are treated like training items.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dcmh.data.columns import PICTURE_SIZE, Column, Images, Kind, Texts, Vectors
from dcmh.data.values import as_column as values_as_column
from dcmh.errors import DataError, ModelError, ModelMismatch
from dcmh.inputs import encoders, sentences
from dcmh.inputs.encoders import TextEncoder
from dcmh.util.cache import home
from dcmh.util.text import BagOfWords

if TYPE_CHECKING:
    from dcmh.inputs.images import Framing

Expected = TypeVar("Expected", Images, Texts, Vectors)

NETWORKS = {"fast": "efficientnet-lite0", "good": "efficientnet-lite2"}  # for frozen features, by quality


class WordView:
    """Texts as bags of words, followed by the vector of a sentence encoder if there is one.

    Shape (items, words + width of the encoder). A word that is not in the vocabulary still contributes to the sentence
    vector.
    """

    kind: ClassVar[Kind] = "text"

    def __init__(self, bag: BagOfWords | None = None, *, encoder: str | Mapping[str, Any] | None = None) -> None:
        self.bag = BagOfWords() if bag is None else bag
        self._encoder = encoder  # a name, or the record of a model folder

    @property
    def encoder(self) -> TextEncoder | None:
        """The sentence encoder, loaded when it is first needed."""
        if self._encoder is None:
            return None
        if isinstance(self._encoder, str):
            return encoders.text_encoder(self._encoder)
        return encoders.text_encoder_from(self._encoder)

    def fit(self, column: Column) -> Self:
        """Learn from the training items."""
        values = [value for value in _expect(column, Texts).values if value is not None]
        try:
            self.bag.fit(values)
        except DataError:
            if self._encoder is None:
                raise
            # Too few texts share words: the sentence vectors distinguish them.
            self.bag = BagOfWords(min_count=1).fit(values)
        return self

    def __call__(self, column: Column) -> NDArray[np.float32]:
        values = _expect(column, Texts).values
        bags = self.bag.transform(values)
        encoder = self.encoder
        return bags if encoder is None else np.concatenate([bags, sentence_vectors(encoder, values)], axis=1)

    @property
    def width(self) -> int:
        """The number of values per item."""
        encoder = self.encoder
        return len(self.bag) + (0 if encoder is None else encoder.width)

    def save(self, folder: Path, modality: str) -> dict[str, Any]:
        """Write its files to a model folder; returns the record for `load`."""
        file = folder / f"{modality}.vocabulary.txt"
        self.bag.save(file)
        record = {"kind": self.kind, "view": "words", "words": len(self.bag), "digest": _digest(file)}
        encoder = self.encoder
        return record if encoder is None else record | {"encoder": encoders.record(encoder)}

    @classmethod
    def load(cls, folder: Path, modality: str, record: dict[str, Any]) -> Self:
        """Undo `save`."""
        file = folder / f"{modality}.vocabulary.txt"
        bag = BagOfWords.load(file)
        if record.get("digest", _digest(file)) != _digest(file):
            raise ModelError(f"{file} is not the one the model learned with: it was changed. Copy the folder again.")
        return cls(bag, encoder=record.get("encoder"))


class SentenceView(WordView):
    """Texts as the vectors of a sentence encoder alone, without a vocabulary: shape (items, width of the encoder)."""

    def __init__(self, bag: BagOfWords | None = None, *, encoder: str | Mapping[str, Any] | None = None) -> None:
        super().__init__(BagOfWords.of([]) if bag is None else bag, encoder=encoder or encoders.DEFAULT)

    def fit(self, column: Column) -> Self:
        """Learn from the training items."""
        _expect(column, Texts)
        return self

    def save(self, folder: Path, modality: str) -> dict[str, Any]:
        """Write its files to a model folder; returns the record for `load`."""
        return super().save(folder, modality) | {"view": "sentences"}


def sentence_vectors(encoder: TextEncoder, texts: Sequence[str | None]) -> NDArray[np.float32]:
    """The vectors of texts (n, width); zeros for missing texts."""
    vectors = np.zeros((len(texts), encoder.width), np.float32)
    rows = [row for row, text in enumerate(texts) if text]
    if rows:
        vectors[rows] = sentences.encode(encoder, [texts[row] or "" for row in rows])
    return vectors


class VectorView:
    """Feature vectors unchanged, shape (items, features); queries must have as many features as the training items."""

    kind: ClassVar[Kind] = "vector"

    def __init__(self, width: int = 0) -> None:
        self.width = width

    def fit(self, column: Column) -> Self:
        """Learn from the training items."""
        self.width = _expect(column, Vectors).values.shape[1]
        return self

    def __call__(self, column: Column) -> NDArray[np.float32]:
        values = _expect(column, Vectors).values
        if values.shape[1] != self.width:
            raise ModelMismatch(
                f"These vectors have {values.shape[1]} features, the model learned from {self.width}. "
                "Compute them as for training."
            )
        return np.where(column.observed[:, None], values, 0).astype(np.float32)

    def save(self, folder: Path, modality: str) -> dict[str, Any]:
        """Write its files to a model folder; returns the record for `load`."""
        return {"kind": self.kind, "view": "vectors", "width": self.width}

    @classmethod
    def load(cls, folder: Path, modality: str, record: dict[str, Any]) -> Self:
        """Undo `save`."""
        return cls(int(record["width"]))


class FeatureView:
    """Pictures as features of a frozen image network or encoder, shape (items, features), which are cached.

    A model records the digest of the network's weights, not the weights; other weights are an error.
    """

    kind: ClassVar[Kind] = "image"

    def __init__(
        self,
        network: str = NETWORKS["fast"],
        *,
        weights: Path | None = None,
        device: str = "auto",
        digest: str | None = None,
        encoder: Mapping[str, Any] | None = None,
    ) -> None:
        self.network = network
        self._encoder = encoder  # the record of a model folder
        self.device = device
        self.digest = digest
        self._weights = weights
        self._verified = digest is None

    @property
    def weights(self) -> Path | None:
        """The file of the weights; of a loaded model, found and compared with its digest on first use."""
        if not self._verified and self._encoder is not None:
            self.network = encoders.from_record(self._encoder).name
        elif not self._verified:
            self._weights = _find_weights(self.network, self._weights, self.digest)
        self._verified = True
        return self._weights

    def fit(self, column: Column) -> Self:
        """Learn from the training items."""
        from dcmh import networks
        from dcmh.inputs import features

        self.digest = features.weights_digest(self.network, self.weights)
        if self.network not in networks.BACKBONES:
            self.network = encoders.open_encoder(self.network).name
        return self

    def __call__(self, column: Column) -> NDArray[np.float32]:
        from dcmh.inputs import features

        weights = self.weights  # of a loaded model: verified now
        return features.extract(_expect(column, Images), self.network, weights=weights, device=self.device)

    @property
    def width(self) -> int:
        """The number of values per item."""
        from dcmh.inputs import features

        return features.width_of(self.network)

    @property
    def framing(self) -> Framing:
        """How pictures become the pixels that enter the network."""
        from dcmh.inputs import features

        return features.framing_of(self.network)

    def classifier(self) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """The network's ImageNet classifier on these features, weight (features, classes) and bias; None if it has none."""
        from dcmh import networks
        from dcmh.networks import efficientnet

        version = networks.LITE.get(self.network)
        if version is None:
            return None
        weight, bias = efficientnet.imagenet_classifier(self.weights or efficientnet.imagenet_weights(version))
        return weight.numpy(), bias.numpy()

    def save(self, folder: Path, modality: str) -> dict[str, Any]:
        """Write its files to a model folder; returns the record for `load`."""
        from dcmh import networks

        weights = None if self._weights is None else str(Path(self._weights).resolve())
        record = {"kind": self.kind, "view": "features", "network": self.network, "weights": weights}
        record |= {"weights_digest": self.digest} | _framing_record(self.framing)
        if self.network in networks.BACKBONES:
            return record
        return record | {"encoder": encoders.record(encoders.open_encoder(self.network))}

    @classmethod
    def load(cls, folder: Path, modality: str, record: dict[str, Any]) -> Self:
        """Undo `save`."""
        weights = record.get("weights")
        path = None if weights is None else Path(weights)
        digest = record.get("weights_digest")
        return cls(record["network"], weights=path, digest=digest, encoder=record.get("encoder"))


def _find_weights(network: str, path: Path | None, digest: str | None) -> Path | None:
    """The weights with this digest: at their recorded path, or under the same name in the dcmh home folder."""
    from dcmh.inputs import features

    if path is None:
        if features.weights_digest(network, None) != digest:
            raise ModelMismatch(
                f"The model was trained with other weights of {network} than the installed ones ({digest}). "
                "Install the version it was trained with, or train again."
            )
        return None
    candidates = [file for file in (path, home() / path.name) if file.is_file()]
    if not candidates:
        raise ModelError(
            f"The {network} weights that the model was trained with, {path}, do not exist. "
            f"Put the file back, or into {home()}."
        )
    for file in candidates:
        if features.weights_digest(network, file) == digest:
            return file
    raise ModelMismatch(
        f"{candidates[0]} is not the file of {network} weights that the model was trained with (digest {digest}). "
        f"Put that one back, or into {home()}; or train again."
    )


class PixelView:
    """Pictures as size x size pixels: calling it returns the column, which training and encoding decode batch by batch."""

    kind: ClassVar[Kind] = "image"
    width = 0

    def __init__(self, size: int = PICTURE_SIZE) -> None:
        self.size = size

    @property
    def framing(self) -> Framing:
        """How pictures become the pixels that enter the network."""
        from dcmh.inputs.images import Framing

        return Framing(self.size)

    def fit(self, column: Column) -> Self:
        """Learn from the training items."""
        return self

    def __call__(self, column: Column) -> Images:
        return _expect(column, Images)

    def save(self, folder: Path, modality: str) -> dict[str, Any]:
        """Write its files to a model folder; returns the record for `load`."""
        return {"kind": self.kind, "view": "pixels"} | _framing_record(self.framing)

    @classmethod
    def load(cls, folder: Path, modality: str, record: dict[str, Any]) -> Self:
        """Undo `save`."""
        return cls(recorded_framing(record).size)


def _framing_record(framing: Framing) -> dict[str, Any]:
    """The entries of the record for pictures that do not have the usual size or framing."""
    record: dict[str, Any] = {} if framing.size == PICTURE_SIZE else {"size": framing.size}
    return record | {"framing": list(map(int, framing[1:]))} if framing.shorter else record


def recorded_framing(record: Mapping[str, Any]) -> Framing:
    """How the view of a record takes pictures."""
    from dcmh.inputs.images import Framing

    return Framing(int(record.get("size", PICTURE_SIZE)), *record.get("framing", ()))


View = WordView | VectorView | FeatureView | PixelView
_VIEWS: dict[str, type[View]] = {
    "words": WordView,
    "sentences": SentenceView,
    "vectors": VectorView,
    "features": FeatureView,
    "pixels": PixelView,
}


def load_view(folder: Path, modality: str, record: dict[str, Any]) -> View:
    """The view that `save` recorded in a model folder."""
    name = record.get("view")
    if name not in _VIEWS:
        raise ModelError(
            f"{folder}: the view {name!r} of {modality!r} is unknown to this version. Upgrade: pip install -U dcmh"
        )
    return _VIEWS[name].load(folder, modality, record)


def as_column(values: Any, kind: Kind, modality: str) -> Column:
    """What a user passes to `encode`, as a column; values of any library (`dcmh.data.values`)."""
    column = values_as_column(values, kind)
    if column.kind != kind:
        raise ModelMismatch(
            f"The model's {modality} holds {kind}s, not {column.kind}s. Give the modality it was trained on."
        )
    return column


def _digest(file: Path) -> str:
    return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()


def _expect(column: Column, kind: type[Expected]) -> Expected:
    """The column, if it is of this kind."""
    if not isinstance(column, kind):
        raise DataError(f"Expected {kind.__name__.lower()}, got {column.kind}s.")
    return column
