"""Two recipes for the same objective: `Paper` is literal, `Stable` works on any data without tuning.

Each gives `dcmh.methods.dcmh.algorithm` the networks, the first outputs, the optimiser and its learning rate, and the loss of
a mini-batch.

Why a stable form is needed, in short (docs/recipe.md has more): the paper sums its terms over all points, so that their
weights shift with n and bits; its balance term, read from the outputs of earlier visits, is a delayed feedback loop that
drives the outputs to zero; and near zero the likelihood has no gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dcmh import networks
from dcmh.methods._solvers import itq, principal_axes
from dcmh.methods.dcmh import objective
from dcmh.methods.dcmh.gpu import Pixels, rate_on_gpu
from dcmh.methods.dcmh.likelihood import PAPER, Form, batch_likelihood
from dcmh.methods.dcmh.ranking import average_precision
from dcmh.methods.dcmh.state import Run, Side
from dcmh.networks.efficientnet import EfficientNetLite
from dcmh.networks.hashing import PixelNetwork
from dcmh.networks.mlp import HashMLP, TextNetwork

Kind = Literal["words", "vectors", "features"]


class Terms(NamedTuple):
    """The objective's terms for one batch, each as a mean (per pair, per output, per bit of the mean output): the history."""

    likelihood: Tensor
    quantisation: Tensor
    balance: Tensor


@dataclass(frozen=True)
class Paper:
    """The published algorithm with the rates of the authors' code: SGD, 10^-1.5 to 10^-3, weight decay 5e-4, 500 iterations.

    First outputs N(0, 1), new weights N(0, 0.01^2).
    """

    bits: int
    gamma: float
    eta: float

    starts_frozen: ClassVar[bool] = False  # everything learns from the first iteration on
    tune_by_labels: ClassVar[bool] = False

    def loss(self, run: Run, side: Side, outputs: Tensor, batch: Tensor) -> tuple[Tensor, Terms]:
        """The paper's J for one batch, over (batch x n) as in the authors' code; and its terms as means.

        J = -sum(S Theta - log(1 + exp(Theta))) + gamma ||B - F||^2 + eta ||F 1||^2, where the sum runs over the batch x all
        points that have another modality, and F 1 over all points, most of them with the outputs of earlier visits.
        """
        S, others = run.similarity, run.others(side)
        n = sum(len(other.rows) for other in others) / len(others)
        likelihood = outputs.new_zeros(())
        for other in others:  # the paper has one: G for F, F for G
            likelihood = likelihood + batch_likelihood(outputs, other.outputs, S, batch, observed=other.observed)
        quantisation = objective.quantisation(run.B[batch], outputs)
        F1 = side.total - outputs.detach().sum(0) + outputs.sum(0)  # only this batch's outputs have a gradient
        balance = objective.balance(F1[None])
        # Where points lack this modality, F 1 counts as if n points had it; otherwise this is eta itself.
        eta = self.eta * (n / len(side.rows)) ** 2
        J = likelihood + self.gamma * quantisation + eta * balance
        pairs, points = len(batch) * n * len(others), len(side.rows)
        terms = Terms(likelihood / pairs, quantisation / outputs.numel(), balance / (points**2 * self.bits))
        return J / (len(batch) * n), terms

    def form(self, share: float) -> Form:
        """Theta and S as the paper has them, regardless of the share of similar pairs."""
        return PAPER

    def gamma_share(self, epoch: int, epochs: int) -> float:
        """All of gamma counts in every iteration."""
        return 1.0

    def epochs(self, steps: int) -> int:
        """Outer iterations: the paper's 500."""
        return 500

    def frozen_epochs(self, epochs: int) -> int:
        """The number of iterations in which the image network is frozen: none."""
        return 0

    def network(self, width: int, kind: Kind, backbone: nn.Module | None, words: int = 0) -> nn.Module:
        """A new network for inputs of this width: the paper's text network, or the eighth layer of its image network."""
        if kind != "features":
            return TextNetwork(width, self.bits)
        last = HashMLP(width, self.bits, hidden=0, dropout=0.0)
        nn.init.normal_(last.last.weight, std=0.01)
        nn.init.normal_(last.last.bias, std=0.01)
        return last if backbone is None else PixelNetwork(backbone, last)

    def first_outputs(self, network: nn.Module, inputs: Tensor | Pixels, rows: Tensor) -> Tensor:
        """The first F, (rows, bits)."""
        return torch.randn(len(rows), self.bits).to(rows.device)

    def optimiser(self, network: nn.Module) -> torch.optim.Optimizer:
        """SGD over all parameters."""
        return rate_on_gpu(torch.optim.SGD(network.parameters(), lr=10**-1.5, weight_decay=5e-4, fused=True))

    def rate(self, step: int, steps: int, epochs: int) -> float:
        """The learning rate of a step, with `steps` per iteration: from 10^-1.5 to 10^-3, evenly in its logarithm."""
        first, last = 10**-1.5, 10**-3
        return float(first * (last / first) ** (step // steps / max(1, epochs - 1)))


@dataclass(frozen=True)
class Stable:
    """Each term as a mean, so that gamma = eta = 1 means the same for any n and any bits.

    - Theta is scaled to the range that it has at 64 bits, and starts at unit variance: neither flat nor saturated.
    - The balance is that of the current batch, which pulls the same way as that of all points; it cannot overshoot.
    - Theta is shifted by the log-odds of a similar pair. Otherwise outputs lean apart between modalities to say that most
      pairs are dissimilar, and then do not compare within a modality, nor add up to joint codes.
    - Pairs within a modality count a little (INTRA_MODAL), for the same reason.
    - gamma grows from 0 to its value over the run: the first codes are as random as the first weights, and outputs that are
      pulled to them stay there.
    - With `ranking`, the mean average precision of the batch, which codes are measured by, is a fourth term. The likelihood
      alone counts all pairs alike, and keeps outputs away from the codes, so the ranking needs more quantisation beside it.
    - With `prefixes`, a share of the loss (PREFIXES) is the mean of that of the first 16, 32, … bits.
    - S is smoothed to 0.98 and 0.02: labels can be wrong.
    - AdamW with a cosine rate; one wide hidden layer with batch normalisation and dropout.
    - Fine-tuning starts after the hash layers have learned from the features of the frozen network: for half as many further
      iterations, and from a lower rate, its later layers learn too. Gradients through untrained hash layers would only spoil
      them.

    The constants were chosen by MAP on validation items of coco12k (docs/recipe.md).
    """

    bits: int
    gamma: float
    eta: float
    learning_rate: float
    hidden: int
    dropout: float
    finetune: bool = False
    tune_by_labels: bool = False  # the image network, before the hash layers; then it stays frozen
    start_rotated: bool = False  # a network without a hidden layer starts at the solution of ITQ, for neighbours
    prefixes: tuple[int, ...] = ()  # lengths at which the first bits of a code are a code of their own
    ranking: float = 0.0  # weight of the average precision, for a similarity of 0 or 1

    RANKING: ClassVar[float] = 2.0
    RANKED_QUANTISATION: ClassVar[float] = 1.5  # in place of QUANTISATION, with the ranking
    FEATURE_DROPOUT: ClassVar[float] = 0.25  # of a picture's features, as a share of the dropout; with the ranking
    QUANTISATION: ClassVar[float] = 0.3
    BALANCE: ClassVar[float] = 0.05
    SMOOTHING: ClassVar[float] = 0.02
    SHIFT: ClassVar[float] = 1.0  # share of the log-odds
    PREFIXES: ClassVar[float] = 0.25  # share of the loss, for nested codes
    INTRA_MODAL: ClassVar[float] = 0.03  # weight of the likelihood of a modality with itself
    TUNING: ClassVar[float] = 0.3  # share of the learning rate at which fine-tuning starts
    BACKBONE: ClassVar[float] = 1.0  # share of that for the later layers of EfficientNet-Lite
    OTHER_BACKBONE: ClassVar[float] = 1 / 60  # and for other image networks, which were not measured

    starts_frozen: ClassVar[bool] = True

    def loss(self, run: Run, side: Side, outputs: Tensor, batch: Tensor) -> tuple[Tensor, Terms]:
        """The loss of the codes, and its terms as means; for nested codes, a share of the loss is that of their prefixes.

        Each prefix takes a share of the batch: batches are random, so that in time every point counts at every length, and
        all prefixes together cost no more than the whole codes.
        """
        loss, terms = self._loss(run, side, outputs, batch, self.bits)
        if not self.prefixes:
            return loss, terms
        count = len(self.prefixes)
        shares = zip(self.prefixes, outputs.tensor_split(count), batch.tensor_split(count), strict=True)
        nested = [self._loss(run, side, share, points, bits)[0] for bits, share, points in shares if len(points)]
        return (1 - self.PREFIXES) * loss + self.PREFIXES * torch.stack(nested).mean(), terms

    def _loss(self, run: Run, side: Side, outputs: Tensor, batch: Tensor, bits: int) -> tuple[Tensor, Terms]:
        """A weighted sum of the terms' means for the first `bits` bits; the likelihood counts once for each other modality."""
        S, others = run.similarity, run.others(side)
        form = run.form._replace(scale=run.form.scale * self.bits / bits)  # Theta has the same range at every length
        outputs = outputs[:, :bits]
        likelihood, pairs = outputs.new_zeros(()), 0
        for other in others:
            G, observed = other.outputs[:, :bits], other.observed
            likelihood = likelihood + batch_likelihood(outputs, G, S, batch, form=form, observed=observed)
            pairs += len(batch) * len(other.rows)
        likelihood = likelihood / pairs
        if self.INTRA_MODAL and S.within and bits == self.bits and side not in others:
            total = batch_likelihood(outputs, side.outputs, S, batch, form=form, observed=side.observed)
            likelihood = likelihood + self.INTRA_MODAL * (total / (len(batch) * len(side.rows)))
        quantisation = objective.quantisation(run.B[batch, :bits], outputs) / outputs.numel()
        balance = objective.balance(outputs) / (len(outputs) ** 2 * bits)
        loss = likelihood * len(others)
        for other in others if self.ranking else []:
            AP = average_precision(outputs, other.outputs[:, :bits], S, batch, observed=other.observed)
            loss = loss + self.ranking * self.RANKING * (1 - AP)
        weight = self.RANKED_QUANTISATION if self.ranking else self.QUANTISATION
        loss = loss + run.gamma_share * self.gamma * weight * quantisation
        loss = loss + self.eta * self.BALANCE * balance
        return loss, Terms(likelihood, quantisation, balance)

    @property
    def scale(self) -> float:
        """What Theta is multiplied by."""
        return 64 / self.bits

    def form(self, share: float) -> Form:
        """Theta scaled, shifted by the log-odds of a similar pair (the share of the pairs), and S smoothed."""
        share = min(max(share, 0.01), 0.99)
        return Form(self.scale, self.SHIFT * math.log(share / (1 - share)), self.SMOOTHING)

    def gamma_share(self, epoch: int, epochs: int) -> float:
        """The share of gamma that counts in an iteration."""
        return min(1.0, epoch / max(1, self.frozen_epochs(epochs)))

    def epochs(self, steps: int) -> int:
        """Outer iterations of this many steps each: 40; more where there are few steps, for 900 of them, but at most 150.

        Half as many again for fine-tuning.
        """
        frozen = max(40, min(150, -(-900 // steps)))
        return frozen * 3 // 2 if self.finetune else frozen

    def frozen_epochs(self, epochs: int) -> int:
        """The number of iterations, from the first, in which a pre-trained image network is frozen."""
        return epochs * 2 // 3 if self.finetune else epochs

    def network(self, width: int, kind: Kind, backbone: nn.Module | None, words: int = 0) -> nn.Module:
        """A new network for inputs of this width, the first `words` of them a bag of words."""
        head = HashMLP(width, self.bits, hidden=self.hidden, dropout=self.dropout, words=words)
        if self.ranking and kind == "features":
            head.feature_dropout.share = self.FEATURE_DROPOUT * self.dropout
        if backbone is None:
            return head
        backbone.requires_grad_(False)
        for layer in networks.late_layers(backbone):
            layer.requires_grad_(True)
        return PixelNetwork(backbone, head, fixed_statistics=True)

    @torch.no_grad()
    def first_outputs(self, network: nn.Module, inputs: Tensor | Pixels, rows: Tensor) -> Tensor:
        """The network's own outputs, (rows, bits), its last layer scaled so that Theta has variance 1.

        The inputs (n, width) of a network that takes pixels are its features.
        """
        head = network.head if isinstance(network, PixelNetwork) else network
        assert isinstance(head, HashMLP)
        assert isinstance(inputs, Tensor)
        features = inputs[rows]
        if head.words < features.shape[1]:
            head.standardise(features)
        if self.start_rotated and not self.hidden:
            x = (features - head.shift).cpu().numpy()
            axes = principal_axes(x, self.bits)
            head.turn_to(torch.from_numpy(axes @ itq(x @ axes, self.bits, 0)).to(features))
        head.start_at(features, (2 / (self.scale * self.bits**0.5)) ** 0.5)
        outputs: Tensor = head.train()(features)
        return outputs

    def optimiser(self, network: nn.Module) -> torch.optim.Optimizer:
        """AdamW; the later layers of an image network have a learning rate of their own."""
        groups: list[dict[str, Any]] = [{"params": network.parameters()}]
        if isinstance(network, PixelNetwork):
            measured = isinstance(network.backbone, EfficientNetLite)
            late = [layer for layer in network.backbone.parameters() if layer.requires_grad]
            tuned = {"params": late, "share": self.BACKBONE if measured else self.OTHER_BACKBONE}
            groups = [{"params": network.head.parameters()}, *([tuned] if late else [])]
        on_gpu = next(network.parameters()).is_cuda
        settings: dict[str, Any] = {"weight_decay": 0.01, "fused": True, "capturable": on_gpu}
        return rate_on_gpu(torch.optim.AdamW(groups, lr=self.learning_rate, **settings))

    def rate(self, step: int, steps: int, epochs: int) -> float:
        """The learning rate of a step, with `steps` per iteration: a cosine, and a lower one for fine-tuning."""
        first = self.frozen_epochs(epochs) * steps
        if step < first:
            return self.learning_rate * cosine(step, first)
        return self.TUNING * self.learning_rate * cosine(step - first, steps * epochs - first)


Recipe = Stable | Paper


def nested_lengths(bits: int) -> tuple[int, ...]:
    """The lengths below `bits` at which the first bits of a nested code are a code of their own."""
    return tuple(length for length in (16, 32, 64, 128, 256, 512) if length < bits)


def cosine(step: int, steps: int) -> float:
    """Share of the learning rate at a step: a warm-up over the first twentieth, then half a cosine down to 0."""
    return min(1.0, (step + 1) / max(1.0, 0.05 * steps)) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
