"""DCMH as a hashing method: its parameters, how it learns from a data set, and how it is saved and loaded.

The training itself is Algorithm 1, in `dcmh.methods.dcmh.algorithm`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dcmh import __version__, networks
from dcmh.data.columns import Kind
from dcmh.data.dataset import Dataset
from dcmh.errors import DataError, DivergedError, ParameterError, StorageError, TrainingStopped
from dcmh.inputs import encoders
from dcmh.inputs.features import outputs_of
from dcmh.inputs.views import NETWORKS, FeatureView, PixelView, View, WordView
from dcmh.methods import fine_space
from dcmh.methods.base import Arrays, Hasher, Labels, Mask, Progress
from dcmh.methods.dcmh import algorithm, finetuning, state
from dcmh.methods.dcmh import similarity as similarities
from dcmh.methods.dcmh.gpu import channels_last
from dcmh.methods.dcmh.recipes import Paper, Recipe, Stable, Terms, nested_lengths
from dcmh.methods.dcmh.similarity import Similarity
from dcmh.methods.dcmh.state import Checkpoint, Run
from dcmh.networks import distributed, hashing
from dcmh.util import device as devices
from dcmh.util.checks import number, whole_number

QUALITIES = NETWORKS | {"best": NETWORKS["good"]}
LARGE_SET = 4000  # training points from which larger batches are better (docs/recipe.md)
MAX_MEASURED = 50  # iterations, spread evenly, after which the MAP of held-out points is measured


class DCMH(Hasher):
    """Deep Cross-Modal Hashing.

    Parameters
    ----------
    recipe
        "stable" or "paper"; see `dcmh.methods.dcmh.recipes`.
    gamma, eta
        Weights of the quantisation and of the balance term.
    ranking
        Weight of the average precision of the codes, a further term of the stable recipe if items are similar by labels or
        folders; 0 leaves it out. The paper has no such term.
    epochs
        Outer iterations. Default: 40 for "stable" (more with few points; half as many again for fine-tuning the image network,
        which comes last); 500 for "paper".
    batch_size
        Points per step. Default: 128; 256 from 4,000 points on, except for "paper".
    quality
        For pictures: "fast" takes features of EfficientNet-Lite0, "good" those of EfficientNet-Lite2 at half the speed, and
        "best" fine-tunes the latter to the labels first, which is meant for a GPU; see docs/recipe.md.
    network
        For pictures: "efficientnet-lite0", "efficientnet-lite2" or "cnn-f". Default: that of the quality.
    finetune
        Also train the image network, after the hash layers. Otherwise its features are computed once and kept.
    weights
        MatConvNet's imagenet-vgg-f.mat, for "cnn-f".
    nested
        Train the first 16, 32, 64, … bits of a code to be codes as well, which `shortened` gives. Default: where items are
        similar by labels or folders; not with the qualities "good" and "best", which are for accuracy at one length. "paper"
        has no nested codes.
    learning_rate, hidden, dropout
        For the stable recipe, whose hash networks have one hidden layer; hidden=0 leaves it out. "paper" has its own.
    validation
        Share of the training points held out, only to show the MAP on them while training.
    precision
        "bfloat16" (in image networks; tf32 elsewhere), "tf32", "float32" or "float64". Default: the first on a GPU, float32
        on a CPU.
    similarity
        What makes two items similar: "labels", "folders", "tags", "labels+tags", "pairs:FILE", "pairing" or "neighbours";
        see `dcmh.methods.dcmh.similarity`. One modality is enough where it relates items within one.
    text_encoder
        The sentence encoder whose vectors join the bags of words: "use-multilingual", "minilm", a folder with model.onnx and
        tokenizer.json, or "none". Default: the first; none for the paper's recipe.
    encoder
        An encoder of `dcmh.inputs.encoders` for pictures, texts or both, in place of `network` and `text_encoder`:
        "transformers:FOLDER", "onnx:FOLDER", or the name of another one.
    """

    _similarity: tuple[str, Dataset, Similarity] | None = None  # setting, items and their S, until `fit` has used it
    needs_complete_items: ClassVar[bool] = False

    def __init__(
        self,
        bits: int = 64,
        *,
        seed: int = 0,
        recipe: str = "stable",
        gamma: float = 1.0,
        eta: float = 1.0,
        ranking: float = 1.0,
        epochs: int | None = None,
        batch_size: int | None = None,
        nested: bool | None = None,
        learning_rate: float = 1e-3,
        hidden: int = 4096,
        dropout: float = 0.4,
        quality: str = "fast",
        network: str = "auto",
        finetune: bool = False,
        weights: Path | str | None = None,
        validation: float = 0.04,
        device: str = "auto",
        precision: str = "auto",
        similarity: str = "labels",
        text_encoder: str = "auto",
        encoder: str | None = None,
    ) -> None:
        super().__init__(bits, seed=seed)
        if recipe not in ("stable", "paper"):
            raise ParameterError(f"recipe must be 'stable' or 'paper', not {recipe!r}.")
        if nested and recipe == "paper":
            raise ParameterError("The paper's recipe has no nested codes. Leave nested out, or use recipe='stable'.")
        if quality not in QUALITIES:
            raise ParameterError(f"quality must be one of {', '.join(QUALITIES)}, not {quality!r}.")
        if quality == "best" and (recipe == "paper" or finetune):
            raise ParameterError("quality='best' has its own fine-tuning. Leave out recipe='paper' and finetune.")
        if network != "auto" and network not in networks.BACKBONES:
            raise ParameterError(f"No image network {network!r}. Available: {', '.join(networks.BACKBONES)}.")
        if encoder is not None and (recipe == "paper" or finetune or quality == "best"):
            raise ParameterError("An encoder is not trained. Leave out recipe='paper', finetune and quality='best'.")
        if precision not in devices.PRECISIONS:
            raise ParameterError(f"precision must be one of {', '.join(devices.PRECISIONS)}, not {precision!r}.")
        self.recipe = recipe
        self.gamma = float(number("gamma", gamma, least=0))
        self.eta = float(number("eta", eta, least=0))
        self.ranking = float(number("ranking", ranking, least=0))
        self.epochs = None if epochs is None else whole_number("epochs", epochs, 1)
        self.batch_size = None if batch_size is None else whole_number("batch_size", batch_size, 2)
        self.nested = None if nested is None else bool(nested)
        self.learning_rate = float(number("learning_rate", learning_rate, least=0))
        self.hidden = whole_number("hidden", hidden, 0)
        self.dropout = float(number("dropout", dropout, least=0, below=1))
        self.quality = quality
        self.network = network
        self.finetune = finetune
        self.weights = weights
        self.validation = float(number("validation", validation, least=0, below=1))
        self.device = device
        self.precision = precision
        self.similarity = similarities.check(similarity)
        self.text_encoder = text_encoder
        self.encoder = encoder

    def fit(
        self,
        train: Dataset,
        *,
        progress: Progress | None = None,
        fine: int = fine_space.DEFAULT,
        text_encoder: str | None = None,
        checkpoint: Path | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Self:
        """Learn from training items, as in `Hasher.fit`; returns self.

        With `checkpoint`, the state is written to that file every few seconds, and an unfinished run found there is resumed.
        When `stop` returns true, the run writes its state after the current iteration and raises TrainingStopped.
        """
        train = self._check(train)
        if self.quality == "best" and train.labels is None:
            raise DataError("quality='best' learns from labels, but the data has none.", hint="Choose 'good'.")
        if self.quality == "best" and distributed.launched():
            raise ParameterError("quality='best' runs in one process.", hint="Start it without torchrun.")
        self._stop, self._checkpoint_file = stop, checkpoint
        try:
            similarity = self.similarity_of(train)
            super().fit(train, progress=progress, fine=fine, text_encoder=text_encoder)
            self.trained_on_["similarity"] = "labels" if self.similarity == "labels" else similarity.description
        finally:
            self._stop = self._checkpoint_file = self._similarity = None  # keeps no reference to the training items
        return self

    def similarity_of(self, train: Dataset) -> Similarity:
        """S of these training items under the setting `similarity`; built once, and then used by `fit`."""
        if self._similarity is None or self._similarity[0] != self.similarity or self._similarity[1] is not train:
            self._similarity = self.similarity, train, similarities.build(self.similarity, train)
        return self._similarity[2]

    def identity(self, fingerprint: str) -> str:
        """Which run this is: version, fingerprint of the data, settings. Only the same run resumes from a checkpoint."""
        settings = {name: str(value) for name, value in self.parameters.items() if name != "device"}
        if listed := similarities.fingerprint(self.similarity):
            settings["pairs"] = listed
        return json.dumps([__version__, fingerprint, settings], sort_keys=True)

    def points_per_step(self, points: int) -> int:
        """The batch size of a run over this many points."""
        large = self.recipe == "stable" and not self.finetune and points >= LARGE_SET
        return self.batch_size or (256 if large else 128)

    @property
    def device(self) -> str:
        """Where it learns and encodes: "auto", "cpu", "cuda", "cuda:1" or "mps"."""
        return self._device

    @device.setter
    def device(self, name: str) -> None:
        self._device = name
        for view in getattr(self, "views_", {}).values():
            if isinstance(view, FeatureView):
                view.device = name

    def _needs_labels(self) -> bool:
        return similarities.kind_of(self.similarity) in ("labels", "labels+tags")

    def _learns_alone(self) -> bool:
        return similarities.kind_of(self.similarity) not in ("pairs", "pairing")  # these only relate modalities

    # -- learning -------------------------------------------------------------------------------------------------

    def _fit(self, inputs: dict[str, Any], labels: Labels | None, observed: dict[str, Mask]) -> None:
        device = distributed.join(self.device) if distributed.launched() else devices.resolve(self.device)
        recipe = self._recipe(self.views_)
        checkpoint = None
        if self._checkpoint_file is not None:
            checkpoint = Checkpoint(self._checkpoint_file, self.identity(self.trained_on_["fingerprint"]))
        forked = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
        arithmetic = devices.arithmetic(self.precision, device, tried=self._image_network == "cnn-f")
        with forked, devices.current(device), arithmetic:
            run = self._start(recipe, inputs, labels, observed, device)
            self.history_ = checkpoint.resume(run) if checkpoint else []
            self._began = time.monotonic()
            algorithm.train(run, recipe, after_epoch=partial(self._after_epoch, checkpoint))
        self.networks_ = {side.name: hashing.fold(side.network.float()) for side in run.sides}

    def _start(
        self,
        recipe: Recipe,
        inputs: dict[str, Any],
        labels: Labels | None,
        observed: dict[str, Mask],
        device: torch.device,
    ) -> Run:
        """The state before the first iteration."""
        if self._similarity is None:
            assert labels is not None
            similarity: Similarity = similarities.SharedLabels.of(labels)
        else:
            similarity = self._similarity[2]
        held_out = state.choose_held_out(observed, self.validation, self.seed)
        return algorithm.initialise(
            recipe,
            algorithm.TrainingSet(inputs, observed, similarity, labels, held_out),
            lambda name: self._network(recipe, self.views_[name]),
            batch_size=self.points_per_step(len(next(iter(observed.values())))),
            epochs=self.epochs,
            seed=self.seed,
            device=device,
            precision=devices.precision(self.precision, device),
        )

    def _recipe(self, views: Mapping[str, View]) -> Recipe:
        if self.recipe == "paper":
            return Paper(self.bits, self.gamma, self.eta)
        pixels = any(isinstance(view, PixelView) for view in views.values())
        by_labels = self.quality == "best" and pixels
        kind = similarities.kind_of(self.similarity)
        return Stable(
            bits=self.bits,
            gamma=self.gamma,
            eta=self.eta,
            learning_rate=self.learning_rate,
            hidden=self.hidden,
            dropout=self.dropout,
            finetune=pixels and not by_labels,
            tune_by_labels=by_labels,
            start_rotated=kind == "neighbours",
            prefixes=self._prefixes,
            ranking=self.ranking if self._has_classes else 0.0,
        )

    def _network(self, recipe: Recipe, view: View) -> nn.Module:
        if isinstance(view, PixelView):
            backbone, width = networks.backbone(self._image_network, weights=self._weights)
            return channels_last(recipe.network(width, "features", networks.sized(backbone, view.size)))
        if isinstance(view, WordView):
            return recipe.network(view.width, "words", None, words=len(view.bag))
        return recipe.network(view.width, "features" if isinstance(view, FeatureView) else "vectors", None)

    def _after_epoch(self, checkpoint: Checkpoint | None, run: Run) -> None:
        """Record the iteration, write a checkpoint when it is due, and stop when asked to."""
        self._record(run)
        if run.epoch == run.epochs:
            if checkpoint and distributed.rank() == 0 and (checkpoint.is_due or checkpoint.path.is_file()):
                with contextlib.suppress(StorageError):  # the model may go to another disk
                    checkpoint.save(run, self.history_)  # kept until the model is written
            return
        stopped = distributed.any_of(self._stop is not None and self._stop())
        if checkpoint and distributed.rank() == 0 and (stopped or checkpoint.is_due):
            checkpoint.save(run, self.history_)
        if stopped:
            raise TrainingStopped(
                f"Stopped after iteration {run.epoch} of {run.epochs}.", hint="Continue with --resume."
            )
        self._began = time.monotonic()

    def _record(self, run: Run) -> None:
        """Add the iteration to the history; the MAP of held-out points for some iterations only."""
        row: dict[str, Any] = {"epoch": run.epoch, "epochs": run.epochs}
        row |= dict(zip(Terms._fields, run.mean_losses(), strict=True))  # waits for the GPU
        if not np.isfinite([row[name] for name in Terms._fields]).all():
            raise DivergedError(
                f"The loss is not finite after iteration {run.epoch} of {run.epochs}: the training diverged.",
                which="learning_rate",
                hint=self._after_divergence(),
            )
        frozen = run.frozen and self.quality != "best"
        row |= {"seconds": round(time.monotonic() - self._began, 3), "resting": frozen}  # its name in history files
        measured = run.epoch == run.epochs or run.epoch % -(-run.epochs // MAX_MEASURED) == 0
        row |= {"map": state.held_out_map(run) if measured else {}}
        self.history_.append(row)
        if self._progress:
            self._progress(row)

    def _after_divergence(self) -> str:
        """What to lower when the training diverges."""
        rate = "" if self.recipe == "paper" else f"learning_rate (now {self.learning_rate:g}), "
        return f"Lower {rate}gamma (now {self.gamma:g}) or eta (now {self.eta:g})."

    # -- views ----------------------------------------------------------------------------------------------------

    @property
    def _text_encoder(self) -> str | None:
        """The name of the sentence encoder of texts; None for the bag of words alone."""
        if self.encoder is not None and encoders.reads(encoders.open_encoder(self.encoder)):
            return self.encoder
        if self.text_encoder == "auto":
            return None if self.recipe == "paper" else encoders.DEFAULT
        return None if self.text_encoder == "none" else self.text_encoder

    @property
    def _has_classes(self) -> bool:
        """Whether items are similar by labels or folders."""
        return similarities.kind_of(self.similarity) in ("labels", "folders")

    @property
    def _prefixes(self) -> tuple[int, ...]:
        """The lengths below `bits` at which the first bits of a code are a code of their own."""
        usual = self._has_classes and self.quality == "fast" and self.recipe != "paper"
        return nested_lengths(self.bits) if (usual if self.nested is None else self.nested) else ()

    @property
    def _image_network(self) -> str:
        """The name of the image network."""
        if self.encoder is not None and encoders.sees(encoders.open_encoder(self.encoder)):
            return self.encoder
        return QUALITIES[self.quality] if self.network == "auto" else self.network

    @property
    def _weights(self) -> Path | None:
        return None if self.weights is None else Path(self.weights)

    def _view(self, kind: Kind) -> View:
        if kind == "text":
            return WordView(encoder=self._text_encoder)
        if kind != "image":
            return super()._view(kind)
        if self.quality == "best" and self._image_network in networks.LITE:
            return PixelView(finetuning.SIZE)
        if self.finetune or self.quality == "best":
            return PixelView(networks.size_of(self._image_network))
        return FeatureView(self._image_network, weights=self._weights, device=self.device)

    def fine_view(self, modality: str) -> View:
        """The view that the fine space takes of a modality: for pixels, the features of the network as it was before."""
        view = super().fine_view(modality)
        is_lite = isinstance(self.views_[modality], PixelView) and self._image_network in networks.LITE
        return FeatureView(self._image_network, device=self.device) if is_lite else view

    # -- out of sample --------------------------------------------------------------------------------------------

    @classmethod
    def from_folder(cls, folder: Path, record: Mapping[str, Any]) -> Self:
        """Rebuild a fitted method from an opened model folder. Models of version 0.1 know no nested codes."""
        return super().from_folder(folder, {**record, "parameters": {"nested": False} | record["parameters"]})

    def shortened(self, bits: int) -> Self:
        """A model whose codes are the first `bits` bits of those of this one, which must be nested."""
        lengths = (*self._prefixes, self.bits)
        if bits not in lengths:
            raise ParameterError(
                f"The model has codes of {', '.join(map(str, lengths))} bits, not of {bits}.",
                which="bits",
                hint="Choose one of these lengths." if self._prefixes else "Train it with --nested for shorter ones.",
            )
        views = self._fitted()
        model = type(self)(**self.parameters | {"bits": bits})
        model.views_, model.fine_ = views, self.fine_
        model.trained_on_, model.history_ = self.trained_on_, self.history_
        model.networks_ = {name: hashing.shorten(network, bits) for name, network in self.networks_.items()}
        return model

    @torch.inference_mode()
    def _outputs(self, modality: str, values: Any) -> NDArray[Any]:
        """f(x; theta_x) or g(y; theta_y), (n, bits); their signs are the codes."""
        device = devices.resolve(self.device)
        network = self.networks_[modality].to(device)
        if isinstance(network, hashing.PixelNetwork):
            network.reduced = devices.precision(self.precision, device) == "bfloat16"
        with devices.current(device):
            return outputs_of(network, values, self.bits, device)

    def _state(self) -> Arrays:
        return {
            f"{name}.{key}": array
            for name, network in self.networks_.items()
            for key, array in hashing.to_arrays(network).items()
        }

    def _restore(self, arrays: Arrays) -> None:
        self.networks_ = {}
        for name, view in self.views_.items():
            prefix = f"{name}."
            layers = {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}
            backbone = None
            if isinstance(view, PixelView):
                backbone = networks.sized(networks.architecture(self._image_network), view.size)
            self.networks_[name] = hashing.from_arrays(layers, backbone)
