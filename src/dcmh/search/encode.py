"""From pictures, words and vectors to packed codes and fine vectors, for indexing and for queries."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dcmh.data.columns import PICTURE_SIZE, Column, Images
from dcmh.errors import ImageError, ModelMismatch
from dcmh.inputs.sentences import REMEMBERED
from dcmh.inputs.views import FeatureView, PixelView, recorded_framing
from dcmh.methods import fine_space
from dcmh.methods import folder as model_folder
from dcmh.methods.fine_space import FineSpace
from dcmh.search.words import TextEncoder, open_words, text_modality
from dcmh.util.arrays import map_arrays
from dcmh.util.cache import BackgroundWriter
from dcmh.util.checksums import BlockSums

if TYPE_CHECKING:
    from dcmh.data.dataset import Dataset
    from dcmh.inputs.decoding import PendingBatch
    from dcmh.inputs.images import Framing
    from dcmh.methods.base import Hasher

Packed = NDArray[np.uint8]
Words = tuple[bytes, NDArray[np.float32] | None]

BATCH = 32  # pictures in the network at once, on a CPU; that of `dcmh.inputs.decoding`, which would load Pillow
BATCHES = (
    4  # whose features go through the hash layers together, on a CPU: in as many rows these take a third less time
)


class Encoders:
    """A model folder's hash functions, each loaded when it is first needed. Words need no torch for a DCMH model.

    Without `cache`, features and signatures of pictures are not kept in the cache folder of this machine.
    """

    def __init__(
        self, folder: Path, model: Hasher | None = None, *, device: str | None = None, cache: bool = True
    ) -> None:
        self.folder = folder
        self._cache = cache
        self.record = model_folder.read_record(folder)
        self.bits = int(self.record["bits"])
        self.text = text_modality(self.record)
        self._device = device
        self._model = None if model is None else self._placed(model)
        self._words: dict[str, TextEncoder] = {}
        self._recent: dict[tuple[str, str], Words] = {}  # by modality and text; replaced, never changed
        self._pictures: dict[str, PictureEncoder] = {}
        self._fine: FineSpace | None = None
        self._fine_checked = False
        if self.record.get("fine") is not None:
            self._fine = fine_space.from_state(self.record, map_arrays(folder / model_folder.WEIGHTS))

    @property
    def fine(self) -> FineSpace | None:
        """The fine space of the model; None if it has none. Its arrays are checked when they are first needed."""
        if self._fine is not None and not self._fine_checked:
            blocks = BlockSums.of(self.folder / model_folder.WEIGHTS)
            if blocks is not None:
                map_arrays(self.folder / model_folder.WEIGHTS, blocks)
                for array in self._fine.arrays.values():
                    blocks.check(array)
            self._fine_checked = True
        return self._fine

    @property
    def modalities(self) -> tuple[str, ...]:
        """The modalities of the model."""
        return tuple(self.record["modalities"])

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each modality: image, text or vector."""
        return {name: self.kind(name) for name in self.modalities}

    def kind(self, modality: str) -> str:
        """The kind of a modality: image, text or vector."""
        return str(self.record["modalities"][modality]["kind"])

    @property
    def picture(self) -> str | None:
        """The modality that is queried with a picture."""
        names = [name for name in self.modalities if self.kind(name) == "image"]
        return "image" if "image" in names else names[0] if names else None

    @property
    def framing(self) -> Framing:
        """How a query picture becomes the pixels that enter the image network."""
        return recorded_framing({} if self.picture is None else self.record["modalities"][self.picture])

    @property
    def model(self) -> Hasher:
        """The whole model."""
        if self._model is None:
            from dcmh.methods import load

            self._model = self._placed(load(self.folder))
        return self._model

    def _placed(self, model: Hasher) -> Hasher:
        """The model, with the device to encode pictures on."""
        if self._device is not None:
            for thing in (model, *model.views_.values()):
                if hasattr(thing, "device"):
                    thing.device = self._device
        return model

    @property
    def words(self) -> TextEncoder | None:
        """The encoder of words; None if no modality of the model takes words."""
        return None if self.text is None else self.words_of(self.text)

    def words_of(self, modality: str) -> TextEncoder:
        """The encoder of one text modality."""
        if modality not in self._words:
            self._words[modality] = open_words(self.folder, self.record, modality)
        return self._words[modality]

    def of_words(self, modality: str, texts: Sequence[str]) -> list[Words]:
        """The packed code and the fine vector of each text, as a query. The last ones are remembered."""
        recent = self._recent
        known = {text: recent[modality, text] for text in texts if (modality, text) in recent}
        if missing := [text for text in dict.fromkeys(texts) if text not in known]:
            packed = self.words_of(modality).encode(missing)
            space = self.fine
            fine = [None] * len(missing) if space is None or space.encoder is None else space.of_texts(missing)
            known |= {text: (code.tobytes(), vector) for text, code, vector in zip(missing, packed, fine, strict=True)}
            room = recent if len(recent) + len(missing) <= REMEMBERED else {}
            self._recent = room | {(modality, text): known[text] for text in missing}
        return [known[text] for text in texts]

    def pictures(self, modality: str) -> PictureEncoder:
        """The encoder of one image modality."""
        if modality not in self._pictures:
            self._pictures[modality] = PictureEncoder(self.model, modality, self.fine, cache=self._cache)
        return self._pictures[modality]

    def stop_workers(self) -> None:
        """End the worker processes that decode pictures, until they are needed again."""
        for encoder in list(self._pictures.values()):
            encoder.stop_workers()

    def vectors(self, modality: str, column: Column) -> tuple[NDArray[np.float64], NDArray[np.float32] | None]:
        """Real-valued outputs (n, bits) of some vectors, and their fine vectors, if the model gives them any."""
        outputs = self.model.outputs(**{modality: column})
        if self.fine is None or modality not in self.fine.modalities:
            return outputs, None
        view = self.model.views_[modality]
        return outputs, self.fine.of_inputs(modality, view(column), view)

    def key(self, code: bytes, fine: NDArray[np.float32] | None) -> bytes:
        """A code and a fine vector in one, which `SearchIndex.near` takes to repeat a query."""
        return code if fine is None or self.fine is None else code + self.fine.quantise(fine).tobytes()

    def as_query(self, fine: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
        """A fine vector as the second stage takes it."""
        return None if fine is None or self.fine is None else self.fine.as_query(fine)

    def check(self, data: Dataset) -> list[str]:
        """The modalities that data and model share. See `shared_modalities`."""
        return shared_modalities({name: self.kind(name) for name in self.modalities}, data)


def shared_modalities(kinds: Mapping[str, str], data: Dataset) -> list[str]:
    """The modalities that data and model share; other kinds under the same name, or none shared, are an error."""
    shared = [name for name in kinds if name in data.modalities]
    if not shared:
        raise ModelMismatch(
            f"The data has {', '.join(data.modalities)}, the model knows {', '.join(kinds)}.",
            hint="Give data of the kind the model learned from.",
        )
    for name in shared:
        if data[name].kind != kinds[name]:
            raise ModelMismatch(
                f"The model's {name} holds {kinds[name]}s, the data's {data[name].kind}s.",
                hint="Give data of the kind the model learned from.",
            )
    return shared


class Prepared:
    """Pictures on their way through the network, in batches; the last batch that leaves it takes all to the hash layers."""

    def __init__(self, contents: Sequence[bytes], known: Mapping[bytes, NDArray[np.float32]]) -> None:
        self.contents = contents
        # By position in contents: features, or outputs where one network gives them, or why there are none.
        self.found: dict[int, Any] = {row: known[key] for row, key in enumerate(contents) if key in known}
        self.batches: list[tuple[PendingBatch | None, Future[None]]] = []  # None: all features are known
        self.left = 1
        self.encoded: Future[list[Encoded | ImageError]] = Future()

    def cancel(self) -> None:
        """Stop decoding and encoding."""
        for decoded, encoded in self.batches:
            encoded.cancel()
            if decoded is not None:
                decoded.cancel()


@dataclass(frozen=True)
class Encoded:
    """One item in one modality: real-valued outputs (bits,), whose signs are its code, and its fine vector, if any."""

    outputs: NDArray[Any]
    fine: NDArray[np.float32] | None = None


class PictureEncoder:
    """Pictures to outputs and fine vectors, in two steps: groups are decoded and encoded ahead of the caller.

    On a CPU each core has a batch of its own in the network, so that none waits for another at the end of a batch. Where the
    model takes features of a frozen network, they come from the feature cache and go into it, if `cache`.
    """

    def __init__(self, model: Hasher, modality: str, fine: FineSpace | None = None, *, cache: bool = True) -> None:
        from dcmh.inputs.decoding import Decoder
        from dcmh.inputs.features import FeatureStore
        from dcmh.inputs.signatures import SignatureStore

        self.model = model
        self.modality = modality
        self.fine = fine if fine is not None and modality in fine.modalities else None
        view = model.views_[modality]
        self._view = view if isinstance(view, FeatureView) else None
        self._fine_view = self._view or model.fine_view(modality)
        weights = view.weights if isinstance(view, FeatureView) else None  # verified now
        self._store = FeatureStore(view.network, weights) if isinstance(view, FeatureView) and cache else None
        self._signatures = SignatureStore() if cache else None
        self._caches = BackgroundWriter()
        self._backbone: Any = None
        self._decoder = Decoder(view.framing if isinstance(view, FeatureView | PixelView) else PICTURE_SIZE)
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    @property
    def batch(self) -> int:
        """Pictures that the network takes at once."""
        from dcmh.inputs import features
        from dcmh.util import device as devices

        return features.batch_on(devices.resolve(getattr(self._view or self.model, "device", "cpu")))

    @cached_property
    def threads(self) -> int:
        """Batches that are in the network at the same time: one per core for the fast encoder of a CPU."""
        import torch

        return torch.get_num_threads() if self._is_fast else 1

    @cached_property
    def _is_fast(self) -> bool:
        """Whether the network is the fast encoder of a CPU."""
        from dcmh.inputs import features
        from dcmh.util import device as devices

        view = self._view
        return view is not None and features.has_encoder(view.network, devices.resolve(view.device))

    @property
    def group(self) -> int:
        """Pictures to prepare at once."""
        return self.batch * (BATCHES if self._is_fast else 1)

    @property
    def ahead(self) -> int:
        """Groups to prepare in advance, so that neither the decoder nor the network waits."""
        return -(-(self.threads + 1) * self.batch // self.group)

    def prepare(self, column: Images, rows: Sequence[int], contents: Sequence[bytes]) -> Prepared:
        """Look up what is known, and begin to decode and encode the others."""
        prepared = Prepared(contents, {} if self._store is None else self._store.get(contents))
        if self._threads is None:
            self._threads = self._start()
        missing = [row for row in range(len(contents)) if row not in prepared.found]
        batches = [missing[start : start + self.batch] for start in range(0, len(missing), self.batch)] or [[]]
        prepared.left = len(batches)
        for batch in batches:
            decoded = self._decoder.submit(column, [rows[row] for row in batch]) if batch else None
            prepared.batches.append((decoded, self._threads.submit(self._finish, prepared, batch, decoded)))
        return prepared

    def _start(self) -> ThreadPoolExecutor:
        if self.threads == 1:
            return ThreadPoolExecutor(1, "dcmh-network")
        import torch

        from dcmh.util import device as devices

        before = torch.get_num_threads()
        pool = ThreadPoolExecutor(self.threads, "dcmh-network", initializer=devices.take_one_thread)
        started = threading.Barrier(self.threads)
        list(pool.map(lambda _: started.wait(), range(self.threads)))
        torch.set_num_threads(before)  # a thread's own setting also applies to threads started later
        return pool

    def stop_workers(self) -> None:
        """End the worker threads and processes, until they are needed again; the caches are written."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None
        self._decoder.stop_workers()
        self._caches.flush()

    def outputs(self, prepared: Prepared) -> list[Encoded | ImageError]:
        """For each picture its outputs and fine vector, or why it cannot be read."""
        return prepared.encoded.result()

    def _finish(self, prepared: Prepared, batch: Sequence[int], decoded: PendingBatch | None) -> None:
        """Encode a batch of what is prepared; with the last one all of it is."""
        try:
            if decoded is not None:
                pixels, reasons = decoded.result()
                wrong = {row: ImageError(why) for row, why in zip(batch, reasons, strict=True) if why is not None}
                prepared.found |= wrong
                if good := [row for row in batch if row not in wrong]:
                    readable = pixels[[reason is None for reason in reasons]] if wrong else pixels
                    seen = self._seen([prepared.contents[row] for row in good], readable)
                    prepared.found |= zip(good, seen, strict=True)
            with self._lock:
                prepared.left -= 1
                last = prepared.left == 0
            if last:
                found = [prepared.found[row] for row in range(len(prepared.contents))]
                prepared.encoded.set_result(self._hashed(found))
        except BaseException as error:
            if not prepared.encoded.done():  # by another batch
                prepared.encoded.set_exception(error)

    def encode(self, source: Any) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        """Outputs (bits,) and fine vector of one picture, without the feature cache."""
        from dcmh.inputs import images

        encoded = self._of_pixels(images.decode(source, self._decoder.framing)[None])[0]
        return encoded.outputs, encoded.fine

    def remember(self, content: bytes, pixels: NDArray[np.uint8]) -> None:
        """Put the features of a decoded picture into the cache, so that indexing it does not decode it again."""
        if self._store is not None and content not in self._store.get([content]):
            self._store.put([(content, self._run(pixels[None])[0])])

    def _seen(self, contents: Sequence[bytes], pixels: NDArray[np.uint8]) -> list[Any]:
        """Features of some pictures, or their outputs where one network gives them; and a signature, for `duplicates`."""
        from dcmh.inputs import signatures

        if self._signatures is not None and not self._decoder.framing.shorter:
            self._caches.put(self._signatures, list(zip(contents, signatures.compute(pixels), strict=True)))
        if self._view is None:
            return self._of_pixels(pixels)
        features = self._run(pixels)
        if self._store is not None:
            self._caches.put(self._store, list(zip(contents, features, strict=True)))
        return list(features)

    def _hashed(self, seen: Sequence[Any]) -> list[Encoded | ImageError]:
        """What `_seen` gave, and errors, as outputs and errors."""
        if self._view is None:
            return list(seen)
        good = [features for features in seen if not isinstance(features, ImageError)]
        encoded = iter(self._of_features(np.stack(good)) if good else ())
        return [features if isinstance(features, ImageError) else next(encoded) for features in seen]

    def _of_pixels(self, pixels: NDArray[np.uint8]) -> list[Encoded]:
        if self._view is not None:
            return self._of_features(self._run(pixels))
        outputs = self.model.outputs(**{self.modality: Images(list(pixels))})
        fine = None if self.fine is None else self.fine.of_inputs(self.modality, self._run(pixels), self._fine_view)
        return _rows(outputs, fine)

    def _of_features(self, features: NDArray[np.float32]) -> list[Encoded]:
        outputs = self.model._outputs(self.modality, features)
        fine = None if self.fine is None else self.fine.of_inputs(self.modality, features, self._fine_view)
        return _rows(outputs, fine)

    def _run(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        from dcmh.inputs import features
        from dcmh.util import device as devices

        view = self._fine_view
        assert isinstance(view, FeatureView)
        target = devices.resolve(view.device)
        with self._lock:
            if self._backbone is None:
                weights = view.weights  # verified now
                self._backbone = features.frozen(view.network, weights, target)
        return features.run(self._backbone, pixels, target)


def _rows(outputs: NDArray[Any], fine: NDArray[np.float32] | None) -> list[Encoded]:
    if fine is None:
        return [Encoded(row) for row in outputs]
    return [Encoded(row, vector) for row, vector in zip(outputs, fine, strict=True)]


def fine_texts(fine: FineSpace | None, texts: Sequence[str | None]) -> list[NDArray[np.float32] | None]:
    """The fine vector of each text; None if it is missing, or the encoder cannot read any of it."""
    encoder = None if fine is None else fine.encoder
    if fine is None or encoder is None:
        return [None] * len(texts)
    known = [text if text is not None and encoder.knows(text) else None for text in texts]
    spoken = [text for text in known if text is not None]
    vectors = iter(fine.of_texts(spoken) if spoken else ())
    return [None if text is None else next(vectors) for text in known]


def encode_texts(words: TextEncoder, texts: Iterable[str | None]) -> list[bytes | None]:
    """The packed code of each text; None if it is missing, or none of its words is known."""
    known = _known(words, texts)
    packed = iter(words.encode([text for text in known if text is not None]))
    return [None if text is None else next(packed).tobytes() for text in known]


def text_outputs(words: TextEncoder, texts: Iterable[str | None]) -> list[NDArray[Any] | None]:
    """The real-valued outputs (bits,) of each text; None as in `encode_texts`."""
    known = _known(words, texts)
    outputs = iter(words.outputs([text for text in known if text is not None]))
    return [None if text is None else next(outputs) for text in known]


def _known(words: TextEncoder, texts: Iterable[str | None]) -> list[str | None]:
    def is_known(text: str) -> bool:
        read = words.encoder is not None and words.encoder.knows(text)
        return read or bool(words.bag.used_and_ignored(text)[0])

    return [text if text is not None and is_known(text) else None for text in texts]
