"""DCMH: Deep Cross-Modal Hashing (Jiang & Li, 2016), and its stable form for any data.

Notation (rows are points; the terms are in `dcmh.objective`):

    theta_x, theta_y   parameters of the networks      `side.network`, one for each modality
    F, G               outputs of the networks         `side.outputs`, (n, bits): those of each point's last visit
    B                  binary codes                    `run.B`, (n, bits)
    S                  similarity                      made from labels for a batch x n at a time, never n x n
    gamma, eta         weights of quantisation and balance

Two recipes minimise the same objective. `paper` is literal: plain SGD at the authors' rates, sums over all points, the
balance term read from the buffers. `stable`, the default, takes each term as a mean, so that its weight depends neither on
n nor on bits; reads the balance from the current batch, where it cannot overshoot; keeps Theta's range the same for any
code length, and starts it at unit variance; and uses AdamW with a cosine rate. docs/recipe.md says what each bought.
More than two modalities, and items that lack one, are treated alike: the likelihood runs over all pairs of modalities.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dcmh import __version__, codes, metrics, networks, objective, training
from dcmh import device as devices
from dcmh.data.columns import Images, Kind
from dcmh.data.dataset import Dataset
from dcmh.errors import ParameterError, TrainingStopped
from dcmh.features import decoded_batches, to_batch
from dcmh.methods.base import Arrays, Hasher, Progress
from dcmh.networks.mlp import FoldedMLP, HashMLP, TextNetwork
from dcmh.training import Checkpoint, Pixels, PixelNetwork
from dcmh.views import FeatureView, PixelView, VectorView, View, WordView

# The stable recipe's weights of the mean terms at gamma = eta = 1, and the length at which its Theta is the paper's.
# Chosen on validation items of coco12k (docs/recipe.md); no query was looked at.
QUANTISATION = 0.3
BALANCE = 0.05
THETA_BITS = 64
SMOOTHING = 0.02  # the likelihood takes S as 0.98 and 0.02: labels are not beyond doubt
BACKBONE_SHARE = 0.005  # of the learning rate, for the layers that fine-tuning starts from
CHECKPOINT_SECONDS = 15.0


@dataclass
class Side:
    """One modality during training."""

    name: str
    network: nn.Module
    optimiser: torch.optim.Optimizer
    inputs: Tensor | Pixels  # (n, width)
    rows: Tensor  # the training points that have this modality
    outputs: Tensor  # F or G, (n, bits); zero where the modality is missing


@dataclass
class Run:
    """The state of the alternating algorithm."""

    sides: list[Side]
    labels: Tensor  # (n, labels)
    B: Tensor  # (n, bits)
    held_out: NDArray[np.intp]
    epoch: int = 0


class DCMH(Hasher):
    """Deep Cross-Modal Hashing.

    Parameters
    ----------
    recipe
        "stable" or "paper"; see the module's text.
    gamma, eta
        Weights of the quantisation and of the balance term.
    epochs
        Outer iterations. Default: 30 for "stable" (more where there are few points), 500 for "paper".
    network
        For pictures: "efficientnet-lite0" or "cnn-f". With finetune=False its features are computed once and kept.
    weights
        MatConvNet's imagenet-vgg-f.mat, for "cnn-f".
    hidden, dropout
        Of the hash networks ("stable").
    validation
        Share of the training points held out, only to show the MAP on them while training.
    """

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
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        hidden: int = 4096,
        dropout: float = 0.5,
        network: str = "efficientnet-lite0",
        finetune: bool = False,
        weights: Path | str | None = None,
        validation: float = 0.04,
        device: str = "auto",
    ) -> None:
        super().__init__(bits, seed=seed)
        if recipe not in ("stable", "paper"):
            raise ParameterError(f"recipe must be 'stable' or 'paper', not {recipe!r}.")
        if network not in networks.BACKBONES:
            raise ParameterError(f"No image network {network!r}. Available: {', '.join(networks.BACKBONES)}.")
        for name, value, low in (("gamma", gamma, 0.0), ("eta", eta, 0.0), ("learning_rate", learning_rate, 0.0)):
            if not low <= value < float("inf"):
                raise ParameterError(f"{name} must be a number of at least {low:g}, not {value!r}.")
        for name, count in (("epochs", 1 if epochs is None else epochs), ("batch_size", batch_size)):
            if count < 1:
                raise ParameterError(f"{name} must be at least 1, not {count!r}.")
        for name, share in (("dropout", dropout), ("validation", validation)):
            if not 0 <= share < 1:
                raise ParameterError(f"{name} must be at least 0 and below 1, not {share!r}.")
        self.recipe = recipe
        self.gamma = gamma
        self.eta = eta
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.hidden = hidden
        self.dropout = dropout
        self.network = network
        self.finetune = finetune
        self.weights = weights
        self.validation = validation
        self.device = device

    def fit(
        self,
        train: Dataset,
        *,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Self:
        """Learn from training items; returns self.

        With `checkpoint`, the state is written there now and then, and an unfinished run found there goes on. When `stop`
        says so, the run writes its state after the current iteration and raises TrainingStopped.
        """
        self._stop = stop
        self._checkpoint = None
        if checkpoint is not None:
            said = {name: str(value) for name, value in self.parameters.items() if name != "device"}
            identity = json.dumps([__version__, train.fingerprint(), said], sort_keys=True)
            self._checkpoint = Checkpoint(checkpoint, identity)
        return super().fit(train, progress=progress)

    # -- Algorithm 1 ----------------------------------------------------------------------------------------------

    def _fit(self, inputs: dict[str, Any], labels: NDArray[np.uint8] | None, observed: dict[str, NDArray[np.bool_]]) -> None:
        assert labels is not None
        target = devices.resolve(self.device)
        with torch.random.fork_rng(devices=[target] if target.type == "cuda" else []):
            run = self._start(inputs, labels, observed, target)
            epochs = self._epochs(run)
            self._resume(run)
            written = time.monotonic()
            while run.epoch < epochs:
                began = time.monotonic()
                losses = [self._update_network(run, i, epochs) for i in range(len(run.sides))]  # theta_x, then theta_y
                self._update_codes(run)  # B
                run.epoch += 1
                self._record(run, losses, epochs, time.monotonic() - began)
                stopped = self._stop is not None and self._stop()
                if self._checkpoint and run.epoch < epochs and (stopped or time.monotonic() - written > CHECKPOINT_SECONDS):
                    self._checkpoint.write(_tensors(run), {"epoch": run.epoch, "history": self.history_})
                    written = time.monotonic()
                if stopped and run.epoch < epochs:
                    raise TrainingStopped(f"Stopped after iteration {run.epoch} of {epochs}. Go on with --resume.")
        self.networks_ = {side.name: _at_rest(side.network) for side in run.sides}

    def _update_network(self, run: Run, which: int, epochs: int) -> Tensor:
        """Learn one network by back-propagation; the outputs of the other modalities, and B, are fixed."""
        side = run.sides[which]
        training.seed_everything(self.seed, run.epoch, which)
        side.network.train()
        parts = training.batches(side.rows, self.batch_size)
        losses = torch.zeros(3, device=run.B.device)
        for step, batch in enumerate(parts):
            training.set_rate(side.optimiser, self._rate(run.epoch * len(parts) + step, epochs * len(parts), len(parts)))
            terms, loss = self._loss(run, side, batch)
            side.optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            side.optimiser.step()
            losses += terms
        return losses / len(parts)

    def _loss(self, run: Run, side: Side, batch: Tensor) -> tuple[Tensor, Tensor]:
        """The batch's part of the objective; the terms' means, (3,), for show."""
        outputs = side.network(side.inputs[batch])  # (batch, bits)
        side.outputs[batch] = outputs.detach()
        literal = self.recipe == "paper"
        smoothing = 0.0 if literal else SMOOTHING
        likelihood = torch.zeros((), device=outputs.device, dtype=outputs.dtype)
        pairs = 0
        for other in run.sides:
            if other is side:
                continue
            everything = len(other.rows) == len(other.outputs)
            G = other.outputs if everything else other.outputs[other.rows]
            S = objective.similarity(run.labels[batch], run.labels if everything else run.labels[other.rows])
            Theta = objective.theta(outputs, G) * self._reach  # (batch, n)
            likelihood = likelihood + objective.likelihood(Theta, S * (1 - 2 * smoothing) + smoothing if smoothing else S)
            pairs += len(batch) * len(G)
        quantisation = objective.quantisation(run.B[batch], outputs)
        if literal:
            total = side.outputs.sum(0) - outputs.detach().sum(0) + outputs.sum(0)  # F 1, with this batch's own gradient
            balance = objective.balance(total[None])
            loss = (likelihood + self.gamma * quantisation + self.eta * balance) / pairs
            mean_balance = balance / (outputs.shape[1] * len(side.rows) ** 2)
        else:
            mean_balance = objective.balance(outputs) / (outputs.shape[1] * len(batch) ** 2)
            mean_likelihood = likelihood * (len(run.sides) - 1) / pairs
            mean_quantisation = quantisation / outputs.numel()
            loss = mean_likelihood + self.gamma * QUANTISATION * mean_quantisation + self.eta * BALANCE * mean_balance
        terms = torch.stack([likelihood / pairs, quantisation / outputs.numel(), mean_balance])
        return terms.detach(), loss

    def _update_codes(self, run: Run) -> None:
        """B = sign(F + G); a modality that an item lacks adds nothing."""
        run.B = objective.codes([side.outputs for side in run.sides])

    # -- before and after -----------------------------------------------------------------------------------------

    def _start(
        self, inputs: dict[str, Any], labels: NDArray[np.uint8], observed: dict[str, NDArray[np.bool_]], target: torch.device
    ) -> Run:
        training.seed_everything(self.seed)
        held_out = self._hold_out(observed)
        kept = np.ones(len(labels), bool)
        kept[held_out] = False
        sides = []
        for name, values in inputs.items():
            data = Pixels(values, target) if isinstance(values, Images) else torch.from_numpy(values).to(target)
            rows = torch.from_numpy(np.flatnonzero(observed[name] & kept)).to(target)
            network = self._network(self.views_[name]).to(target)
            outputs = torch.zeros(len(labels), self.bits, device=target)
            self._start_outputs(network, data, rows, outputs)
            sides.append(Side(name, network, self._optimiser(network), data, rows, outputs))
        run = Run(sides, torch.from_numpy(labels.astype(np.float32)).to(target), torch.empty(0), held_out)
        self._update_codes(run)
        return run

    def _start_outputs(self, network: nn.Module, data: Tensor | Pixels, rows: Tensor, outputs: Tensor) -> None:
        """First F or G. paper: N(0, 1). stable: the network's own, scaled so that Theta starts at unit variance."""
        if self.recipe == "paper":
            outputs[rows] = torch.randn(len(rows), outputs.shape[1]).to(outputs)
            return
        head = network.head if isinstance(network, PixelNetwork) else network
        assert isinstance(head, HashMLP)
        with torch.inference_mode():
            network.eval()
            parts = (data[part] for part in rows.split(256))
            features = torch.cat([network.features(part) if isinstance(network, PixelNetwork) else part for part in parts])
        features = features.clone()
        if not head.words:
            head.standardise(features)
        head.start_at(features, (2 / (self._reach * self.bits**0.5)) ** 0.5)
        with torch.no_grad():
            outputs[rows] = head.train()(features)

    def _network(self, view: View) -> nn.Module:
        if isinstance(view, PixelView):
            backbone, width = networks.backbone(self.network, weights=None if self.weights is None else Path(self.weights))
            network = PixelNetwork(backbone, self._head(width, "features"), fixed_statistics=self.recipe == "stable")
            return network.to(memory_format=torch.channels_last)
        kind = {WordView: "words", VectorView: "vectors", FeatureView: "features"}[type(view)]
        return self._head(view.width, kind)

    def _head(self, width: int, kind: str) -> nn.Module:
        if self.recipe == "stable":
            return HashMLP(width, self.bits, hidden=self.hidden, dropout=self.dropout, words=kind == "words")
        if kind == "features":  # the eighth layer of the paper's image network
            layer = HashMLP(width, self.bits, hidden=0, dropout=0.0)
            nn.init.normal_(layer.last.weight, std=0.01)
            nn.init.normal_(layer.last.bias, std=0.01)
            return layer
        return TextNetwork(width, self.bits)

    def _optimiser(self, network: nn.Module) -> torch.optim.Optimizer:
        if self.recipe == "paper":
            return torch.optim.SGD(network.parameters(), lr=0.1, weight_decay=5e-4)
        if isinstance(network, PixelNetwork):
            groups = [{"params": network.head.parameters()}, {"params": network.backbone.parameters(), "share": BACKBONE_SHARE}]
            return torch.optim.AdamW(groups, lr=self.learning_rate, weight_decay=0.01, fused=True)
        return torch.optim.AdamW(network.parameters(), lr=self.learning_rate, weight_decay=0.01, fused=True)

    def _rate(self, step: int, steps: int, steps_an_epoch: int) -> float:
        if self.recipe == "paper":
            return training.log_spaced(step // steps_an_epoch, steps // steps_an_epoch)
        return self.learning_rate * training.cosine(step, steps)

    @property
    def _reach(self) -> float:
        """What Theta is multiplied by: the stable recipe gives it the range that it has at 64 bits."""
        return 1.0 if self.recipe == "paper" else THETA_BITS / self.bits

    def _epochs(self, run: Run) -> int:
        if self.epochs is not None:
            return self.epochs
        if self.recipe == "paper":
            return 500
        steps = max(1, min(len(side.rows) // self.batch_size for side in run.sides))
        return max(30, -(-900 // steps))

    def _view(self, kind: Kind) -> View:
        if kind != "image":
            return super()._view(kind)
        if self.finetune:
            return PixelView()
        return FeatureView(self.network, weights=None if self.weights is None else Path(self.weights), device=self.device)

    def _hold_out(self, observed: dict[str, NDArray[np.bool_]]) -> NDArray[np.intp]:
        complete = np.flatnonzero(np.stack(list(observed.values())).all(axis=0))
        count = int(self.validation * len(complete))
        return np.sort(np.random.default_rng(self.seed).permutation(complete)[:count])

    def _resume(self, run: Run) -> None:
        found = self._checkpoint.read() if self._checkpoint else None
        if found:
            tensors, record = found
            _restore_tensors(run, tensors)
            run.epoch, self.history_ = record["epoch"], record["history"]

    def _record(self, run: Run, losses: list[Tensor], epochs: int, seconds: float) -> None:
        likelihood, quantisation, balance = torch.stack(losses).mean(0).tolist()
        row = {"epoch": run.epoch, "epochs": epochs, "likelihood": likelihood, "quantisation": quantisation, "balance": balance}
        row |= {"seconds": round(seconds, 3), "map": self._held_out_map(run)}
        self.history_.append(row)
        if self._progress:
            self._progress(row)

    def _held_out_map(self, run: Run) -> dict[str, float]:
        """MAP of the held-out training points as queries against the other training points, in every direction."""
        if len(run.held_out) < 10:
            return {}
        rows = torch.from_numpy(run.held_out).to(run.B.device)
        labels = run.labels.cpu().numpy().astype(np.uint8)
        query = {side.name: codes.pack(codes.sign(_apply(side, rows).cpu().numpy())) for side in run.sides}
        found = {}
        for a, b in permutations(run.sides, 2):
            database = codes.pack(codes.sign(b.outputs[b.rows].cpu().numpy()))
            counts = metrics.rank_counts(query[a.name], database, labels[run.held_out], labels[b.rows.cpu().numpy()], self.bits)
            found[f"{a.name}_to_{b.name}"] = round(counts.mean_average_precision(ties="expected"), 4)
        return found

    # -- out of sample --------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _outputs(self, modality: str, values: Any) -> NDArray[Any]:
        """f(x; theta_x) or g(y; theta_y), (n, bits); their signs are the codes."""
        target = devices.resolve(self.device)
        network = self.networks_[modality].to(target)
        outputs = np.zeros((len(values), self.bits), np.float32)
        if isinstance(values, Images):
            for rows, pixels in decoded_batches(values, np.flatnonzero(values.observed).tolist()):
                outputs[rows] = network(to_batch(pixels, target)).cpu().numpy()
        else:
            for start in range(0, len(values), 2048):
                part = torch.from_numpy(values[start : start + 2048]).to(target)
                outputs[start : start + 2048] = network(part).cpu().numpy()
        return outputs

    def _state(self) -> Arrays:
        state = {}
        for name, network in self.networks_.items():
            head = network.head if isinstance(network, PixelNetwork) else network
            assert isinstance(head, FoldedMLP)
            for i, (weight, bias) in enumerate(zip(head.weights, head.biases, strict=True)):
                state[f"{name}.{i}.weight"] = weight.detach().cpu().numpy()
                state[f"{name}.{i}.bias"] = bias.detach().cpu().numpy()
            if isinstance(network, PixelNetwork):
                for key, value in network.backbone.state_dict().items():
                    state[f"{name}.backbone.{key}"] = value.detach().cpu().numpy()
        return state

    def _restore(self, state: Arrays) -> None:
        self.networks_ = {}
        for name, view in self.views_.items():
            layers = []
            while f"{name}.{len(layers)}.weight" in state:
                key = f"{name}.{len(layers)}"
                layers.append((torch.from_numpy(state[f"{key}.weight"].copy()), torch.from_numpy(state[f"{key}.bias"].copy())))
            if not layers:
                raise KeyError(f"{name}.0.weight")
            network: nn.Module = FoldedMLP(layers)
            if isinstance(view, PixelView):
                backbone = networks.architecture(self.network)
                prefix = f"{name}.backbone."
                kept = {key.removeprefix(prefix): torch.from_numpy(value.copy()) for key, value in state.items() if key.startswith(prefix)}
                backbone.load_state_dict(kept)
                network = PixelNetwork(backbone, network)
            self.networks_[name] = network.eval()


@torch.inference_mode()
def _apply(side: Side, rows: Tensor) -> Tensor:
    side.network.eval()
    return torch.cat([side.network(side.inputs[part]) for part in rows.split(256)])


def _at_rest(network: nn.Module) -> nn.Module:
    if isinstance(network, PixelNetwork):
        assert isinstance(network.head, HashMLP)
        return PixelNetwork(network.backbone, FoldedMLP(network.head.layers())).eval()
    assert isinstance(network, HashMLP | TextNetwork)
    return FoldedMLP(network.layers()).eval()


def _tensors(run: Run) -> dict[str, Tensor]:
    tensors = {"B": run.B}
    for side in run.sides:
        tensors[f"{side.name}/outputs"] = side.outputs
        tensors |= {f"{side.name}/network/{key}": value for key, value in side.network.state_dict().items()}
        tensors |= {f"{side.name}/optimiser/{key}": value for key, value in training.optimiser_tensors(side.optimiser).items()}
    return tensors


def _restore_tensors(run: Run, tensors: dict[str, Tensor]) -> None:
    def of(prefix: str) -> dict[str, Tensor]:
        return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}

    run.B = tensors["B"].to(run.B.device)
    for side in run.sides:
        side.outputs.copy_(tensors[f"{side.name}/outputs"])
        side.network.load_state_dict(of(f"{side.name}/network/"))
        training.restore_optimiser(side.optimiser, of(f"{side.name}/optimiser/"))
