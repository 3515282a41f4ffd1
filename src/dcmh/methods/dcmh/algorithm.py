"""Algorithm 1 of Deep Cross-Modal Hashing (Jiang & Li, 2016): networks and codes are learned alternately.

    Require: image set X, text set Y, similarity matrix S
    Ensure:  network parameters theta_x and theta_y, binary codes B
    Initialise theta_x and theta_y, mini-batch size N = 128, iteration number t = n / N            `initialise`
    repeat                                                                                         `train`
        for iter = 1, 2, ..., t_x
            Randomly sample N_x points from X to construct a mini-batch.                           `mini_batches`
            For each sampled point x_i calculate F_i = f(x_i; theta_x) by forward propagation.     `gradient_step`
            Calculate the derivative of J.                                                         `Paper.loss`, backward
            Update the parameter theta_x by back-propagation.
        the same for Y: G_j = g(y_j; theta_y)
        Optimise B = sign(gamma (F + G)).                                                          `update_codes`
    until a fixed number of iterations

In code (rows are points; the terms of J are in `objective`, the two ways to weigh them in `recipes`):

    theta_x, theta_y   parameters of the networks      `side.network`, one for each modality
    F, G               outputs of the networks         `side.outputs`, (n, bits): those of each point's last visit
    B                  binary codes                    `run.B`, (n, bits)
    S                  similarity                      `run.similarity`, made for a batch x some points at a time, never n x n
    gamma, eta         weights of quantisation and balance, in the recipe

More than two modalities, and points that lack one, are treated alike: the likelihood runs over all ordered pairs of
different modalities, and a point counts in the terms of the modalities that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dcmh.data.columns import Images
from dcmh.errors import DataError
from dcmh.methods.dcmh import objective
from dcmh.methods.dcmh.finetuning import tune_by_labels
from dcmh.methods.dcmh.gpu import Pixels, StepRecorder, set_rate
from dcmh.methods.dcmh.likelihood import share_of_similar
from dcmh.methods.dcmh.recipes import Recipe
from dcmh.methods.dcmh.similarity import SharedLabels, Similarity
from dcmh.methods.dcmh.state import Run, Side
from dcmh.networks import distributed
from dcmh.networks.hashing import PixelNetwork


def train(run: Run, recipe: Recipe, *, after_epoch: Callable[[Run], None] = lambda run: None) -> None:
    """The loop of Algorithm 1, from `run.epoch` on; `after_epoch` records, writes checkpoints, and may raise to stop."""
    frozen = recipe.frozen_epochs(run.epochs)
    while run.epoch < run.epochs:
        if run.epoch >= frozen:
            run.unfreeze(restart=run.epoch == frozen)
        for side in run.sides:  # theta_x with theta_y and B fixed; then theta_y
            step = side.recorder.recorded(partial(gradient_step, run, recipe, side))  # on a GPU: a CUDA graph of it
            for inputs, batch in mini_batches(run, recipe, side):
                step(inputs, batch)
        update_codes(run)
        run.epoch += 1
        after_epoch(run)


def mini_batches(run: Run, recipe: Recipe, side: Side) -> Iterator[tuple[Tensor, Tensor]]:
    """The network's inputs and the points of each mini-batch, in random order; sets the learning rate of each step."""
    seed_everything(run.seed, run.epoch, run.sides.index(side))
    side.network.train()
    side.total.copy_(side.outputs.sum(0))
    side.losses.zero_()
    run.gamma_share.fill_(recipe.gamma_share(run.epoch, run.epochs))
    order = torch.randperm(len(side.rows))[: side.steps * side.batch_size]
    batches = side.rows[order.to(side.rows.device)].split(side.batch_size)
    for i, (batch, inputs) in enumerate(zip(batches, side.stream(batches), strict=True)):
        set_rate(side.optimiser, recipe.rate(run.epoch * side.steps + i, side.steps, run.epochs))
        yield inputs, batch


def gradient_step(run: Run, recipe: Recipe, side: Side, inputs: Tensor, batch: Tensor) -> None:
    """One step of back-propagation on a mini-batch; the outputs of the other modalities, and B, are fixed."""
    outputs = side.forward(inputs)  # F_i = f(x_i; theta_x), (batch, bits)
    side.store(batch, outputs.detach())
    loss, terms = recipe.loss(run, side, outputs, batch)
    side.optimiser.zero_grad(set_to_none=True)
    loss.backward()
    side.optimiser.step()
    side.losses += torch.stack(terms).detach()


def update_codes(run: Run) -> None:
    """B = sign(gamma (F + G)); a modality that a point lacks adds nothing."""
    run.B.copy_(objective.codes([side.outputs for side in run.sides]))


@dataclass(frozen=True)
class TrainingSet:
    """What Algorithm 1 requires: X, Y and S, and which points have which modality."""

    inputs: Mapping[str, Any]  # of each modality: an array (n, width), or pictures
    observed: Mapping[str, NDArray[np.bool_]]  # (n,) for each modality
    similarity: Similarity
    labels: NDArray[np.uint8] | None  # (n, labels), to measure by
    held_out: NDArray[np.intp]  # points that only serve to measure


def initialise(
    recipe: Recipe,
    data: TrainingSet,
    new_network: Callable[[str], nn.Module],
    *,
    batch_size: int,
    epochs: int | None = None,
    seed: int = 0,
    device: torch.device,
    precision: str = "float32",
) -> Run:
    """New networks, the first F, G and B. `new_network` makes the network of a modality; epochs=None: the recipe's."""
    seed_everything(seed)
    dtype = torch.float64 if precision == "float64" else torch.float32
    trained = np.ones(len(next(iter(data.observed.values()))), bool)
    trained[data.held_out] = False
    sides = []
    for name, values in data.inputs.items():
        rows = torch.from_numpy(np.flatnonzero(data.observed[name] & trained)).to(device)
        if len(rows) < 2:
            raise DataError(f"Only {len(rows)} training item has the modality {name!r}. Give at least two.")
        if isinstance(values, Images):
            distributed.share(rows[:batch_size])  # fails now if batches do not divide among the processes
        network = new_network(name).to(device, dtype)
        inputs = _on_device(values, network, device, precision)
        features = None
        if isinstance(inputs, Pixels) and isinstance(network, PixelNetwork) and recipe.starts_frozen:
            if recipe.tune_by_labels:
                assert data.labels is not None
                tune_by_labels(network, inputs, rows, torch.from_numpy(data.labels).to(device, dtype))
            features = inputs.features(network)
        outputs = torch.zeros(len(values), recipe.bits, device=device, dtype=dtype)
        outputs[rows] = recipe.first_outputs(network, inputs if features is None else features, rows).to(dtype)
        sides.append(Side(name, network, recipe.optimiser(network), inputs, rows, outputs, batch_size, features))
    similarity = data.similarity.to(device, dtype)
    form = recipe.form(share_of_similar(similarity, len(trained), device))
    epochs = epochs or recipe.epochs(min(side.steps for side in sides))
    B = torch.empty_like(sides[0].outputs)
    run = Run(sides, similarity, data.labels, B, data.held_out, form, seed, epochs)
    update_codes(run)
    recorded = device.type == "cuda" and distributed.world() == 1 and isinstance(similarity, SharedLabels)
    for side in sides:
        side.recorder = StepRecorder(record=recorded)
        if distributed.world() > 1 and isinstance(side.network, PixelNetwork):
            side.network.distribute()
    return run


def _on_device(values: Any, network: nn.Module, device: torch.device, precision: str) -> Tensor | Pixels:
    """One modality's inputs, (n, width), or its pictures."""
    if not isinstance(values, Images):
        return torch.from_numpy(values).to(device, next(network.parameters()).dtype)
    assert isinstance(network, PixelNetwork)
    network.reduced = precision == "bfloat16"
    return Pixels(values, device, network.size)


def seed_everything(*numbers: int) -> None:
    """Seed torch from several numbers, such as seed, iteration and modality: a run can then resume at any iteration."""
    torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1)))
