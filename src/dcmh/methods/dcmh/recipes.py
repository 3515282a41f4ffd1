"""Two recipes for the same objective: `Paper` is literal, `Stable` works on any data without tuning.

Both answer the same questions of `dcmh.methods.dcmh`: which networks, which first outputs, which optimiser and rate, and how
the three terms of the objective are weighed for one batch.

Why a stable form is needed, in short (docs/recipe.md has more): the paper sums its terms over all points, so
that their weights shift with n and bits; its balance term, read from the outputs of earlier visits, is a delayed feedback
loop that drives the outputs to zero; and near zero the likelihood has no gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dcmh import networks
from dcmh.data.columns import Images
from dcmh.methods.dcmh import objective, state
from dcmh.methods.dcmh.gpu import Pixels
from dcmh.methods.dcmh.state import Side
from dcmh.networks.efficientnet import EfficientNetLite0
from dcmh.networks.hashing import PixelNetwork
from dcmh.networks.mlp import HashMLP, TextNetwork

Kind = Literal["words", "vectors", "features"]


class Terms(NamedTuple):
    """The objective's terms for one batch, each as a mean: a pair's, an output's, and a bit's (of the mean output)."""

    likelihood: Tensor
    quantisation: Tensor
    balance: Tensor


@dataclass(frozen=True)
class Stable:
    """Each term as a mean, so that gamma = eta = 1 means the same for any n and any bits.

    - Theta is stretched to the range that it has at 64 bits, and starts at unit variance: neither flat nor saturated.
    - The balance is that of the current batch, which pulls the same way as that of all points; it cannot overshoot.
    - Theta is shifted by the log-odds of a similar pair. Otherwise outputs lean apart between modalities to say that most
      pairs are dissimilar, and then do not compare within a modality, nor add up to joint codes.
    - Pairs within a modality count a little (OWN), for the same reason.
    - gamma grows from 0 to its value in the course of the run: the first codes are as random as the first weights, and outputs
      that are pulled to them stay there.
    - S is softened to 0.98 and 0.02: labels are not beyond doubt.
    - AdamW with a cosine rate; one wide hidden layer with batch normalisation and dropout.
    - Fine-tuning comes after the hash layers: they learn from the features of the pre-trained network as if it were frozen
      (`resting`), and only then, for half as many iterations and from a lower rate, its later layers learn too. Gradients
      through hash layers that know nothing yet would only spoil it.

    The constants were chosen by MAP on validation items of coco12k (docs/recipe.md).
    """

    bits: int
    gamma: float
    eta: float
    learning_rate: float
    hidden: int
    dropout: float
    finetune: bool = False

    QUANTISATION: ClassVar[float] = 0.3
    BALANCE: ClassVar[float] = 0.05
    SOFTENING: ClassVar[float] = 0.02
    SHIFT: ClassVar[float] = 1.0  # share of the log-odds
    OWN: ClassVar[float] = 0.03
    TUNING: ClassVar[float] = 0.3  # share of the learning rate from which the image network's learning starts
    BACKBONE: ClassVar[float] = 1.0  # share of that, for the later layers of EfficientNet-Lite0
    UNMEASURED: ClassVar[float] = 1 / 60  # and for other image networks: carefully

    rests: ClassVar[bool] = True

    def epochs(self, steps: int) -> int:
        """Outer iterations of this many steps each: 40; more where there are few steps, for 900 of them, but at most 150.

        Half as many again for fine-tuning.
        """
        frozen = max(40, min(150, -(-900 // steps)))
        return frozen * 3 // 2 if self.finetune else frozen

    def resting(self, epochs: int) -> int:
        """In how many of the iterations, the first ones, a pre-trained image network rests."""
        return epochs * 2 // 3 if self.finetune else epochs

    def network(self, width: int, kind: Kind, backbone: nn.Module | None, words: int = 0) -> nn.Module:
        head = HashMLP(width, self.bits, hidden=self.hidden, dropout=self.dropout, words=words)
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
        head.start_at(features, (2 / (self.reach * self.bits**0.5)) ** 0.5)
        outputs: Tensor = head.train()(features)
        return outputs

    def optimiser(self, network: nn.Module) -> torch.optim.Optimizer:
        groups: list[dict[str, Any]] = [{"params": network.parameters()}]
        if isinstance(network, PixelNetwork):
            measured = isinstance(network.backbone, EfficientNetLite0)
            late = [layer for layer in network.backbone.parameters() if layer.requires_grad]
            tuned = {"params": late, "share": self.BACKBONE if measured else self.UNMEASURED}
            groups = [{"params": network.head.parameters()}, tuned]
        settings: dict[str, Any] = {"weight_decay": 0.01, "fused": True, "capturable": state.on_gpu(network)}
        return state.recordable(torch.optim.AdamW(groups, lr=self.learning_rate, **settings))

    def rate(self, step: int, steps: int, epochs: int) -> float:
        first = self.resting(epochs) * steps
        if step < first:
            return self.learning_rate * state.cosine(step, first)
        return self.TUNING * self.learning_rate * state.cosine(step - first, steps * epochs - first)

    @property
    def reach(self) -> float:
        """What Theta is multiplied by."""
        return 64 / self.bits

    @property
    def softening(self) -> float:
        """S runs from this number to 1 minus this number."""
        return self.SOFTENING

    @property
    def own(self) -> float:
        """Weight of the likelihood of a modality with itself, beside that with another one."""
        return self.OWN

    def shift(self, share: float) -> float:
        """What is added to Theta, where this share of the pairs is similar."""
        share = min(max(share, 0.01), 0.99)
        return self.SHIFT * math.log(share / (1 - share))

    def growth(self, epoch: int, epochs: int) -> float:
        """The share of gamma that counts in an iteration."""
        return min(1.0, epoch / max(1, self.resting(epochs)))

    def balance(self, side: Side, outputs: Tensor) -> Tensor:
        """The batch's balance as a mean over points and bits."""
        return objective.balance(outputs) / (len(outputs) ** 2 * self.bits)

    def loss(self, terms: Terms, *, growth: Tensor, others: int, points: int, batch: int) -> Tensor:
        """A weighted sum of means; the likelihood counts once for each other modality."""
        quantisation = growth * self.gamma * self.QUANTISATION * terms.quantisation
        return terms.likelihood * others + quantisation + self.eta * self.BALANCE * terms.balance


@dataclass(frozen=True)
class Paper:
    """The published algorithm with the rates of the authors' code: SGD, 10^-1.5 to 10^-3, weight decay 5e-4, 500 iterations.

    The objective is the paper's sum, divided by (batch x n) as the authors do; the balance is that of all points' outputs,
    those of earlier visits included. First outputs N(0, 1), new weights N(0, 0.01^2).
    """

    bits: int
    gamma: float
    eta: float

    reach: ClassVar[float] = 1.0  # Theta and S are the paper's own
    softening: ClassVar[float] = 0.0
    own: ClassVar[float] = 0.0
    rests: ClassVar[bool] = False  # everything learns from the first iteration on

    def shift(self, share: float) -> float:
        return 0.0

    def growth(self, epoch: int, epochs: int) -> float:
        return 1.0

    def epochs(self, steps: int) -> int:
        return 500

    def resting(self, epochs: int) -> int:
        return 0

    def network(self, width: int, kind: Kind, backbone: nn.Module | None, words: int = 0) -> nn.Module:
        if kind != "features":
            return TextNetwork(width, self.bits)
        last = HashMLP(width, self.bits, hidden=0, dropout=0.0)  # the eighth layer of the paper's image network
        nn.init.normal_(last.last.weight, std=0.01)
        nn.init.normal_(last.last.bias, std=0.01)
        return last if backbone is None else PixelNetwork(backbone, last)

    def first_outputs(self, network: nn.Module, inputs: Tensor | Pixels, rows: Tensor) -> Tensor:
        return torch.randn(len(rows), self.bits).to(rows.device)

    def optimiser(self, network: nn.Module) -> torch.optim.Optimizer:
        return state.recordable(torch.optim.SGD(network.parameters(), lr=10**-1.5, weight_decay=5e-4, fused=True))

    def rate(self, step: int, steps: int, epochs: int) -> float:
        return state.log_spaced(step // steps, epochs)

    def balance(self, side: Side, outputs: Tensor) -> Tensor:
        """||F 1||^2 with this batch's outputs in place, as a mean over pairs of points and bits."""
        total = side.total - outputs.detach().sum(0) + outputs.sum(0)
        return objective.balance(total[None]) / (len(side.rows) ** 2 * self.bits)

    def loss(self, terms: Terms, *, growth: Tensor, others: int, points: int, batch: int) -> Tensor:
        """The sums of the paper over (batch x points), written with the means of the terms."""
        quantisation = self.gamma * terms.quantisation * self.bits / points
        balance = self.eta * terms.balance * self.bits * points / batch
        return terms.likelihood * others + quantisation + balance


Recipe = Stable | Paper


def begin(
    recipe: Recipe, name: str, values: Images | NDArray[Any], network: nn.Module, rows: Tensor, precision: str
) -> Side:
    """One modality as a run begins: its inputs and network on the device of the rows, first outputs, and optimiser."""
    target, dtype = rows.device, torch.float64 if precision == "float64" else torch.float32
    network = network.to(target, dtype)
    inputs: Tensor | Pixels
    features = None
    if isinstance(values, Images):
        assert isinstance(network, PixelNetwork)
        network.reduced = precision == "bfloat16"
        inputs = Pixels(values, target)
        features = inputs.features(network) if recipe.rests else None
    else:
        inputs = torch.from_numpy(values).to(target, dtype)
    outputs = torch.zeros(len(values), recipe.bits, device=target, dtype=dtype)
    outputs[rows] = recipe.first_outputs(network, inputs if features is None else features, rows).to(dtype)
    return Side(name, network, recipe.optimiser(network), inputs, rows, outputs, features)
