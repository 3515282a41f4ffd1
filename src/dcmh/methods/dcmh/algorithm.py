"""DCMH: Deep Cross-Modal Hashing (Jiang & Li, 2016), and its stable form for any data.

Notation (rows are points; the terms are in `dcmh.methods.dcmh.objective`, the two recipes in `dcmh.methods.dcmh.recipes`):

    theta_x, theta_y   parameters of the networks      `side.network`, one for each modality
    F, G               outputs of the networks         `side.outputs`, (n, bits): those of each point's last visit
    B                  binary codes                    `run.B`, (n, bits)
    S                  similarity                      made from labels for a batch x n at a time, never n x n
    gamma, eta         weights of quantisation and balance

More than two modalities, and points that lack one, are treated alike: the likelihood runs over all ordered pairs of
different modalities, and a point counts in the terms of the modalities that it has.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dcmh import __version__, networks
from dcmh.data.columns import Images, Kind
from dcmh.data.dataset import Dataset
from dcmh.errors import DataError, ParameterError, TrainingStopped
from dcmh.inputs import sentences
from dcmh.inputs.features import outputs_of
from dcmh.inputs.views import FeatureView, PixelView, View, WordView
from dcmh.methods import fine as fine_space
from dcmh.methods.base import Arrays, Hasher, Progress
from dcmh.methods.dcmh import held_out, objective, state
from dcmh.methods.dcmh import similarity as similarities
from dcmh.methods.dcmh.checkpoint import Checkpoint
from dcmh.methods.dcmh.likelihood import Form, share_of_similar
from dcmh.methods.dcmh.recipes import Paper, Recipe, Stable, Terms, begin
from dcmh.methods.dcmh.state import Run, Side, Step
from dcmh.networks import distributed, hashing
from dcmh.util import device as devices

MANY_POINTS = 4000  # from here on, larger batches are better (docs/recipe.md)
MEASURED = 50  # times at most that the MAP of held-out points is measured in a run


class DCMH(Hasher):
    """Deep Cross-Modal Hashing.

    Parameters
    ----------
    recipe
        "stable" or "paper"; see the module's text.
    gamma, eta
        Weights of the quantisation and of the balance term.
    epochs
        Outer iterations. Default: 40 for "stable" (more where there are few points), half as many again where the image
        network is fine-tuned, which it is in the last third; 500 for "paper".
    batch_size
        Points in a step. Default: 128; from 4,000 points on 256, but for "paper".
    network
        For pictures: "efficientnet-lite0" or "cnn-f". With finetune=False its features are computed once and kept.
    weights
        MatConvNet's imagenet-vgg-f.mat, for "cnn-f".
    learning_rate, hidden, dropout
        Of the stable recipe, whose hash networks have one hidden layer; hidden=0 leaves it out. "paper" has its own.
    validation
        Share of the training points held out, only to show the MAP on them while training.
    precision
        "bfloat16" (in image networks; tf32 elsewhere), "tf32", "float32" or "float64". Default: the first on a GPU, float32
        on a CPU.
    similarity
        What makes two items similar: "labels", "folders", "tags", "labels+tags", "pairs:FILE" or "pairing"; see
        `dcmh.methods.dcmh.similarity`.
    text_encoder
        What texts are seen with, beside a bag of their words: "use-multilingual", "minilm", a folder with model.onnx and
        tokenizer.json, or "none". Default: the first; none for the paper's recipe.
    """

    _known: similarities.Known | None = None  # what `similarity` says about the training items; None: their labels
    needs_complete_items: ClassVar[bool] = False

    def __init__(
        self,
        bits: int = 64,
        *,
        seed: int = 0,
        recipe: str = "stable",
        gamma: float = 1.0,
        eta: float = 1.0,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float = 1e-3,
        hidden: int = 4096,
        dropout: float = 0.4,
        network: str = "efficientnet-lite0",
        finetune: bool = False,
        weights: Path | str | None = None,
        validation: float = 0.04,
        device: str = "auto",
        precision: str = "auto",
        similarity: str = "labels",
        text_encoder: str = "auto",
    ) -> None:
        super().__init__(bits, seed=seed)
        if recipe not in ("stable", "paper"):
            raise ParameterError(f"recipe must be 'stable' or 'paper', not {recipe!r}.")
        if network not in networks.BACKBONES:
            raise ParameterError(f"No image network {network!r}. Available: {', '.join(networks.BACKBONES)}.")
        if precision not in devices.PRECISIONS:
            raise ParameterError(f"precision must be one of {', '.join(devices.PRECISIONS)}, not {precision!r}.")
        for name, value in (("gamma", gamma), ("eta", eta), ("learning_rate", learning_rate)):
            if not isinstance(value, Real) or not 0 <= value < float("inf"):
                raise ParameterError(f"{name} must be a number of at least 0, not {value!r}.")
        whole = (
            ("epochs", 1 if epochs is None else epochs, 1),
            ("batch_size", 2 if batch_size is None else batch_size, 2),
            ("hidden", hidden, 0),
        )
        for name, count, low in whole:
            if isinstance(count, bool) or not isinstance(count, Integral) or count < low:
                raise ParameterError(f"{name} must be a whole number of at least {low}, not {count!r}.")
        for name, share in (("dropout", dropout), ("validation", validation)):
            if not isinstance(share, Real) or not 0 <= share < 1:
                raise ParameterError(f"{name} must be at least 0 and below 1, not {share!r}.")
        self.recipe = recipe
        self.gamma = float(gamma)
        self.eta = float(eta)
        self.epochs = None if epochs is None else int(epochs)
        self.batch_size = None if batch_size is None else int(batch_size)
        self.learning_rate = float(learning_rate)
        self.hidden = int(hidden)
        self.dropout = float(dropout)
        self.network = network
        self.finetune = finetune
        self.weights = weights
        self.validation = float(validation)
        self.device = device
        self.precision = precision
        self.similarity = similarities.check(similarity)
        self.text_encoder = text_encoder

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
        """Learn from training items, as `Hasher.fit` says; returns self.

        With `checkpoint`, the state is written there now and then, and an unfinished run found there goes on. When `stop`
        says so, the run writes its state after the current iteration and raises TrainingStopped.
        """
        train = self._check(train)
        self._stop = stop
        self._checkpoint = None if checkpoint is None else Checkpoint(checkpoint, self.identity(train))
        self._known = None if self.similarity == "labels" else similarities.learn_from(self.similarity, train)
        try:
            super().fit(train, progress=progress, fine=fine, text_encoder=text_encoder)
            self.trained_on_["similarity"] = self.similarity if self._known is None else self._known.said
        finally:
            self._stop = self._checkpoint = self._known = None  # of the training items nothing is kept
        return self

    def identity(self, train: Dataset) -> str:
        """Which run this is: version, data and settings. An unfinished run goes on only as itself."""
        said = {name: str(value) for name, value in self.parameters.items() if name != "device"}
        if listed := similarities.fingerprint(self.similarity):
            said["pairs"] = listed
        return json.dumps([__version__, train.fingerprint(), said], sort_keys=True)

    def points_per_step(self, points: int) -> int:
        """The batch size of a run over so many points."""
        large = self.recipe == "stable" and not self.finetune and points >= MANY_POINTS
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

    # -- Algorithm 1 ----------------------------------------------------------------------------------------------

    def _fit(
        self, inputs: dict[str, Any], labels: NDArray[np.uint8] | None, observed: dict[str, NDArray[np.bool_]]
    ) -> None:
        target = distributed.join(self.device) if distributed.launched() else devices.resolve(self.device)
        recipe = self._recipe(self.views_)
        forked = torch.random.fork_rng(devices=[target] if target.type == "cuda" else [])
        arithmetic = devices.arithmetic(self.precision, target, tried=self.network == "cnn-f")
        with forked, devices.current(target), arithmetic:
            run = self._start(recipe, inputs, labels, observed, target)
            steps = min(len(side.rows) // min(self._batch, len(side.rows)) for side in run.sides)
            epochs = self.epochs or recipe.epochs(steps)
            resting = recipe.resting(epochs)
            self.history_ = self._checkpoint.resume(run) if self._checkpoint else []
            while run.epoch < epochs:
                if run.epoch >= resting:
                    run.wake(anew=run.epoch == resting)
                began = time.monotonic()
                losses = [self._update_network(recipe, run, side, epochs) for side in run.sides]  # theta_x, theta_y
                self._update_codes(run)  # B
                run.epoch += 1
                self._record(run, losses, epochs, began)
                if run.epoch < epochs:
                    self._pause(run, epochs)
        self.networks_ = {side.name: hashing.at_rest(side.network.float()) for side in run.sides}

    def _update_network(self, recipe: Recipe, run: Run, side: Side, epochs: int) -> Tensor:
        """Learn one network by back-propagation; the outputs of the other modalities, and B, are fixed."""
        state.seed_everything(self.seed, run.epoch, run.sides.index(side))
        side.network.train()
        side.total.copy_(side.outputs.sum(0))
        side.losses.zero_()
        run.growth.fill_(recipe.growth(run.epoch, epochs))
        batches = state.batches(side.rows, self._batch)
        for i, (batch, inputs) in enumerate(zip(batches, side.stream(batches), strict=True)):
            state.set_rate(side.optimiser, recipe.rate(run.epoch * len(batches) + i, len(batches), epochs))
            side.step(inputs, batch)
        return side.losses / len(batches)

    def _step(self, recipe: Recipe, run: Run, side: Side, inputs: Tensor, batch: Tensor) -> None:
        """One step down the gradient of the batch's loss."""
        terms, loss = self._loss(recipe, run, side, inputs, batch)
        side.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        side.optimiser.step()
        side.losses += torch.stack(terms).detach()

    def _loss(self, recipe: Recipe, run: Run, side: Side, inputs: Tensor, batch: Tensor) -> tuple[Terms, Tensor]:
        """The objective's terms for the batch, against all points that have another modality; and their weighted sum."""
        outputs = side.output(inputs)  # (batch, bits)
        side.visit(batch, outputs.detach())
        likelihood, pairs = outputs.new_zeros(()), 0
        others = [other for other in run.sides if other is not side]
        for other in others:
            likelihood = likelihood + run.against(other, outputs, batch)
            pairs += len(batch) * len(other.rows)
        likelihood = likelihood / pairs
        if recipe.own and run.similarity.within:
            own = run.against(side, outputs, batch) / (len(batch) * len(side.rows))
            likelihood = likelihood + recipe.own * own
        quantisation = objective.quantisation(run.B[batch], outputs) / outputs.numel()
        terms = Terms(likelihood, quantisation, recipe.balance(side, outputs))
        points = pairs // (len(batch) * len(others))
        sizes = {"others": len(others), "points": points, "batch": len(batch)}
        return terms, recipe.loss(terms, growth=run.growth, **sizes)

    def _update_codes(self, run: Run) -> None:
        """B = sign(F + G); a modality that a point lacks adds nothing."""
        run.B.copy_(objective.codes([side.outputs for side in run.sides]))

    # -- before, between and after --------------------------------------------------------------------------------

    def _recipe(self, views: Mapping[str, View]) -> Recipe:
        if self.recipe == "paper":
            return Paper(self.bits, self.gamma, self.eta)
        tuned = any(isinstance(view, PixelView) for view in views.values())
        return Stable(self.bits, self.gamma, self.eta, self.learning_rate, self.hidden, self.dropout, tuned)

    def _start(
        self,
        recipe: Recipe,
        inputs: dict[str, Any],
        labels: NDArray[np.uint8] | None,
        observed: dict[str, NDArray[np.bool_]],
        target: torch.device,
    ) -> Run:
        state.seed_everything(self.seed)
        aside = held_out.choose(observed, self.validation, self.seed)
        kept = np.ones(len(next(iter(observed.values()))), bool)
        kept[aside] = False
        precision = devices.precision(self.precision, target)
        self._batch = self.points_per_step(len(kept))
        sides = []
        for name, values in inputs.items():
            rows = torch.from_numpy(np.flatnonzero(observed[name] & kept)).to(target)
            if len(rows) < 2:
                raise DataError(f"Only {len(rows)} training item has the modality {name!r}. Give at least two.")
            if isinstance(values, Images):
                distributed.share(rows[: self._batch])  # so that it is said now if batches do not divide
            network = self._network(recipe, self.views_[name])
            sides.append(begin(recipe, name, values, network, rows, precision))
        if (known := self._known) is None:
            assert labels is not None
            known = similarities.KnownLabels(labels)
        similarity = known.on(target, sides[0].outputs.dtype)
        shift = recipe.shift(share_of_similar(similarity, len(kept), target))
        form = Form(recipe.reach, shift, recipe.softening)
        run = Run(sides, similarity, labels, torch.empty_like(sides[0].outputs), aside, form)
        self._update_codes(run)
        recorded = target.type == "cuda" and distributed.world() == 1 and self._known is None  # and replayed
        for side in sides:
            if distributed.world() > 1 and isinstance(side.network, hashing.PixelNetwork):
                side.network.share_batches()
            side.step = Step(partial(self._step, recipe, run, side), record=recorded)
        return run

    def _network(self, recipe: Recipe, view: View) -> nn.Module:
        if isinstance(view, PixelView):
            backbone, width = networks.backbone(self.network, weights=self._weights)
            return state.channels_last(recipe.network(width, "features", backbone))
        if isinstance(view, WordView):
            return recipe.network(view.width, "words", None, words=len(view.bag))
        return recipe.network(view.width, "features" if isinstance(view, FeatureView) else "vectors", None)

    @property
    def _text_encoder(self) -> str | None:
        """The name of the sentence encoder that texts are seen with; None for the bag of words alone."""
        if self.text_encoder == "auto":
            return None if self.recipe == "paper" else sentences.DEFAULT
        return None if self.text_encoder == "none" else self.text_encoder

    @property
    def _weights(self) -> Path | None:
        return None if self.weights is None else Path(self.weights)

    def _view(self, kind: Kind) -> View:
        if kind == "text":
            return WordView(encoder=self._text_encoder)
        if kind != "image":
            return super()._view(kind)
        return PixelView() if self.finetune else FeatureView(self.network, weights=self._weights, device=self.device)

    def _pause(self, run: Run, epochs: int) -> None:
        """Between two iterations: write a checkpoint when it is time, and stop when asked to."""
        stopped = distributed.any_of(self._stop is not None and self._stop())
        if self._checkpoint and distributed.rank() == 0 and (stopped or self._checkpoint.is_due):
            self._checkpoint.keep(run, self.history_)
        if stopped:
            raise TrainingStopped(f"Stopped after iteration {run.epoch} of {epochs}.", hint="Continue with --resume.")

    def _record(self, run: Run, losses: list[Tensor], epochs: int, began: float) -> None:
        """Note the iteration; the MAP of held-out points now and then."""
        row: dict[str, Any] = {"epoch": run.epoch, "epochs": epochs}
        row |= dict(zip(Terms._fields, torch.stack(losses).mean(0).tolist(), strict=True))  # waits for the GPU
        row |= {"seconds": round(time.monotonic() - began, 3), "resting": run.resting}
        measured = run.epoch == epochs or run.epoch % -(-epochs // MEASURED) == 0
        row |= {"map": held_out.mean_average_precision(run) if measured else {}}
        self.history_.append(row)
        if self._progress:
            self._progress(row)

    # -- out of sample --------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _outputs(self, modality: str, values: Any) -> NDArray[Any]:
        """f(x; theta_x) or g(y; theta_y), (n, bits); their signs are the codes."""
        target = devices.resolve(self.device)
        network = self.networks_[modality].to(target)
        if isinstance(network, hashing.PixelNetwork):
            network.reduced = devices.precision(self.precision, target) == "bfloat16"
        with devices.current(target):
            return outputs_of(network, values, self.bits, target)

    def _state(self) -> Arrays:
        return {
            f"{name}.{key}": array
            for name, network in self.networks_.items()
            for key, array in hashing.to_arrays(network).items()
        }

    def _restore(self, state: Arrays) -> None:
        self.networks_ = {}
        for name, view in self.views_.items():
            mine = {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
            backbone = networks.architecture(self.network) if isinstance(view, PixelView) else None
            self.networks_[name] = hashing.from_arrays(mine, backbone)
