"""From pictures, words and vectors to packed codes, for whoever indexes or asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dcmh import codes
from dcmh.data.columns import Column, Images
from dcmh.errors import ImageError, ModelMismatch
from dcmh.methods import folder as model_folder
from dcmh.words import TextEncoder, open_words, text_modality

if TYPE_CHECKING:
    from dcmh.data.dataset import Dataset
    from dcmh.decoding import Begun
    from dcmh.methods.base import Hasher

Packed = NDArray[np.uint8]

BATCH = 32  # pictures in the network at once, on a CPU; that of `dcmh.decoding`, which would load Pillow


class Encoders:
    """A model folder's hash functions, each loaded when it is first needed. Words need no torch for a DCMH model."""

    def __init__(self, folder: Path, model: Hasher | None = None, *, device: str | None = None) -> None:
        self.folder = folder
        self.record = model_folder.read_record(folder)
        self.bits = int(self.record["bits"])
        self.text = text_modality(self.record)
        self._device = device
        self._model = None if model is None else self._placed(model)
        self._words: dict[str, TextEncoder] = {}
        self._pictures: dict[str, PictureEncoder] = {}

    @property
    def modalities(self) -> tuple[str, ...]:
        return tuple(self.record["modalities"])

    def kind(self, modality: str) -> str:
        return str(self.record["modalities"][modality]["kind"])

    @property
    def picture(self) -> str | None:
        """The modality that is queried with a picture."""
        found = [name for name in self.modalities if self.kind(name) == "image"]
        return "image" if "image" in found else found[0] if found else None

    @property
    def model(self) -> Hasher:
        """The whole model."""
        if self._model is None:
            from dcmh.methods import load

            self._model = self._placed(load(self.folder))
        return self._model

    def _placed(self, model: Hasher) -> Hasher:
        """The model, told where to encode pictures."""
        if self._device is not None:
            for thing in (model, *model.views_.values()):
                if hasattr(thing, "device"):
                    thing.device = self._device
        return model

    @property
    def words(self) -> TextEncoder | None:
        """The encoder of words; None where no modality of the model takes words."""
        return None if self.text is None else self.words_of(self.text)

    def words_of(self, modality: str) -> TextEncoder:
        """The encoder of one text modality."""
        if modality not in self._words:
            self._words[modality] = open_words(self.folder, self.record, modality)
        return self._words[modality]

    def pictures(self, modality: str) -> PictureEncoder:
        if modality not in self._pictures:
            self._pictures[modality] = PictureEncoder(self.model, modality)
        return self._pictures[modality]

    def rest(self) -> None:
        """For now nothing more is to be encoded: processes that were started for it end."""
        for encoder in list(self._pictures.values()):
            encoder.rest()

    def vectors(self, modality: str, column: Column) -> Packed:
        return codes.pack(self.model.encode(**{modality: column}))

    def check(self, data: Dataset) -> list[str]:
        """The modalities that data and model share. See `shared_modalities`."""
        return shared_modalities({name: self.kind(name) for name in self.modalities}, data)


def shared_modalities(kinds: Mapping[str, str], data: Dataset) -> list[str]:
    """The modalities that data and model share; other kinds under the same name, or none shared, are an error."""
    shared = [name for name in kinds if name in data.modalities]
    if not shared:
        raise ModelMismatch(
            f"The data has {', '.join(data.modalities)}, the model knows {', '.join(kinds)}. "
            "Give data of the kind the model learned from."
        )
    for name in shared:
        if data[name].kind != kinds[name]:
            raise ModelMismatch(
                f"The model's {name} holds {kinds[name]}s, the data's {data[name].kind}s. "
                "Give data of the kind the model learned from."
            )
    return shared


class Prepared:
    """Pictures on their way to the network: features that are known already, and pixels still being decoded."""

    def __init__(self, contents: Sequence[bytes]) -> None:
        self.contents = contents
        self.known: dict[bytes, NDArray[np.float32]] = {}
        self.missing: list[int] = []  # places in contents of the pictures that are decoded
        self.begun: Begun | None = None

    def decoded(self) -> tuple[NDArray[np.uint8], dict[int, str]]:
        """The pixels of the missing ones that can be read, in their order; why others cannot, by place."""
        if self.begun is None:
            return np.empty((0, 0, 0, 3), np.uint8), {}
        pixels, reasons = self.begun.result()
        wrong = {place: reason for place, reason in zip(self.missing, reasons, strict=True) if reason is not None}
        return pixels[[reason is None for reason in reasons]] if wrong else pixels, wrong

    def cancel(self) -> None:
        if self.begun is not None:
            self.begun.cancel()


class PictureEncoder:
    """Pictures to packed codes, in two steps, so that one batch is decoded while the one before is in the network.

    Where the model takes features of a frozen network, they come from the feature cache and go into it.
    """

    def __init__(self, model: Hasher, modality: str) -> None:
        from dcmh.decoding import Decoder
        from dcmh.features import FeatureStore
        from dcmh.views import FeatureView

        self.model = model
        self.modality = modality
        view = model.views_[modality]
        self._view = view if isinstance(view, FeatureView) else None
        self._store = FeatureStore(view.network, view.weights) if isinstance(view, FeatureView) else None
        self._backbone: Any = None
        self._decoder = Decoder()

    @property
    def batch(self) -> int:
        """Pictures that the network takes at once."""
        from dcmh import device as devices
        from dcmh import features

        return features.batch_on(devices.resolve(getattr(self._view or self.model, "device", "cpu")))

    def prepare(self, column: Images, rows: Sequence[int], contents: Sequence[bytes]) -> Prepared:
        """Look up what is known, and begin to decode the others."""
        prepared = Prepared(contents)
        if self._store is not None:
            prepared.known = self._store.get(contents)
        prepared.missing = [place for place, content in enumerate(contents) if content not in prepared.known]
        if prepared.missing:
            prepared.begun = self._decoder.begin(column, [rows[place] for place in prepared.missing])
        return prepared

    def rest(self) -> None:
        """For now no more pictures will come."""
        self._decoder.rest()

    def finish(self, prepared: Prepared) -> list[bytes | ImageError]:
        """For each picture its packed code, or why it cannot be read."""
        found = self.outputs(prepared)
        good = [one for one in found if not isinstance(one, ImageError)]
        packed = iter(codes.pack(codes.sign(np.stack(good))) if good else ())
        return [one if isinstance(one, ImageError) else next(packed).tobytes() for one in found]

    def outputs(self, prepared: Prepared) -> list[NDArray[Any] | ImageError]:
        """For each picture its real-valued outputs (bits,), or why it cannot be read."""
        pixels, wrong = prepared.decoded()
        places = range(len(prepared.contents))
        found = iter(self._outputs(prepared, pixels, [place for place in places if place not in wrong]))
        return [ImageError(wrong[place]) if place in wrong else next(found) for place in places]

    def one(self, source: Any) -> Packed:
        """The packed code (1, bytes) of one picture, which leaves no trace in the cache."""
        from dcmh import decoding, images

        pixels = images.decode(source, decoding.SIZE)[None]
        if self._view is None:
            return codes.pack(self.model.encode(**{self.modality: Images(list(pixels))}))
        return codes.pack(codes.sign(self.model._outputs(self.modality, self._run(pixels))))

    def _outputs(self, prepared: Prepared, pixels: NDArray[np.uint8], good: list[int]) -> NDArray[Any]:
        """Of the pictures at the good places."""
        if not good:
            return np.empty((0, self.model.bits))
        if self._store is None:
            return self.model.outputs(**{self.modality: Images(list(pixels))})
        contents = [prepared.contents[place] for place in good]
        features = dict(prepared.known)
        if len(pixels):
            fresh = [content for content in contents if content not in prepared.known]
            entries = list(zip(fresh, self._run(pixels), strict=True))
            self._store.put(entries)
            features.update(entries)
        return self.model._outputs(self.modality, np.stack([features[content] for content in contents]))

    def _run(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        from dcmh import device as devices
        from dcmh import features

        assert self._view is not None
        target = devices.resolve(self._view.device)
        if self._backbone is None:
            self._backbone = features.frozen(self._view.network, self._view.weights, target)
        return features.run(self._backbone, pixels, target)


def encode_texts(words: TextEncoder, texts: Iterable[str | None]) -> list[bytes | None]:
    """The packed code of each text; None where there is no text, or none of its words is known."""
    said = _known(words, texts)
    packed = iter(words.encode([text for text in said if text is not None]))
    return [None if text is None else next(packed).tobytes() for text in said]


def text_outputs(words: TextEncoder, texts: Iterable[str | None]) -> list[NDArray[Any] | None]:
    """The real-valued outputs (bits,) of each text; None as in `encode_texts`."""
    said = _known(words, texts)
    outputs = iter(words.outputs([text for text in said if text is not None]))
    return [None if text is None else next(outputs) for text in said]


def _known(words: TextEncoder, texts: Iterable[str | None]) -> list[str | None]:
    return [text if text is not None and words.bag.used_and_ignored(text)[0] else None for text in texts]
