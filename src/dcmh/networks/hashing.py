"""Whole hash networks: from pixels to outputs; folded for encoding, and as the arrays of a model folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dcmh.networks import distributed
from dcmh.networks.mlp import FoldedMLP, HashMLP, TextNetwork


class PixelNetwork(nn.Module):
    """An image network with its hash layers: pixels (n, 3, size, size), or features of them (n, width), to outputs (n, bits).

    Pixels are bytes, or floats from 0 to 255.

    With `fixed_statistics` its batch normalisation keeps the statistics of ImageNet: a few thousand pictures spoil them.
    With `reduced` the image network computes in bfloat16; its parameters and results stay in float32.
    When several processes train together, each passes its share of a batch's pixels and gets the outputs of the whole batch.
    """

    reduced = False

    def __init__(self, backbone: nn.Module, head: nn.Module, *, fixed_statistics: bool = False) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.fixed_statistics = fixed_statistics
        # In lists, which hides them from PyTorch, since they share the backbone's weights: the backbone wrapped for several
        # processes, and its fast form for encoding on a CPU, which `dcmh.inputs.features.outputs_of` makes on first use.
        self._parallel: list[nn.Module] = []
        self.encoder: list[nn.Module] = []

    @property
    def size(self) -> int:
        """The pixels that pictures have on each side."""
        return cast(int, self.backbone.size)

    def train(self, mode: bool = True) -> Self:
        """As in PyTorch; with `fixed_statistics` the image network stays in evaluation mode."""
        super().train(mode)
        if self.fixed_statistics:
            self.backbone.eval()
        return self

    def distribute(self) -> None:
        """While training, this process passes only its share of each batch; gradients are averaged over the processes."""
        self._parallel = [nn.parallel.DistributedDataParallel(self.backbone, gradient_as_bucket_view=True)]

    def features(self, pixels: Tensor) -> Tensor:
        """The image network's features, (n, width)."""
        shared = self.training and bool(self._parallel)
        backbone = self._parallel[0] if shared else self.backbone
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=self.reduced):
            features = backbone(pixels).to(next(self.head.parameters()).dtype)
        return distributed.gather(features) if shared else features

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x if x.ndim == 2 else self.features(x))  # type: ignore[no-any-return]


def fold(network: nn.Module) -> nn.Module:
    """A trained network for encoding: its hash layers are folded into plain ones."""
    if isinstance(network, PixelNetwork):
        return PixelNetwork(network.backbone, fold(network.head)).eval()
    assert isinstance(network, HashMLP | TextNetwork)
    return FoldedMLP(network.layers()).eval()


def shorten(network: nn.Module, bits: int) -> nn.Module:
    """A folded network with its first `bits` outputs alone."""
    if isinstance(network, PixelNetwork):
        return PixelNetwork(network.backbone, shorten(network.head, bits)).eval()
    assert isinstance(network, FoldedMLP)
    *layers, (weight, bias) = zip(network.weights, network.biases, strict=True)
    return FoldedMLP([*layers, (weight[:, :bits].contiguous(), bias[:bits])]).eval()


def to_arrays(network: nn.Module) -> dict[str, NDArray[Any]]:
    """A folded network as named arrays: 0.weight (inputs, outputs), 0.bias, 1.weight, …, and backbone.*"""
    head = network.head if isinstance(network, PixelNetwork) else network
    assert isinstance(head, FoldedMLP)
    arrays: dict[str, NDArray[Any]] = {}
    for i, (weight, bias) in enumerate(zip(head.weights, head.biases, strict=True)):
        arrays[f"{i}.weight"] = weight.detach().cpu().numpy()
        arrays[f"{i}.bias"] = bias.detach().cpu().numpy()
    if isinstance(network, PixelNetwork):
        state = network.backbone.state_dict()
        arrays |= {f"backbone.{key}": value.detach().cpu().numpy() for key, value in state.items()}
    return arrays


def from_arrays(arrays: Mapping[str, NDArray[Any]], backbone: nn.Module | None = None) -> nn.Module:
    """Undo `to_arrays`; `backbone` is the empty image network, for pixels."""
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
    layers: list[tuple[Tensor, Tensor]] = []
    while f"{len(layers)}.weight" in tensors:
        layers.append((tensors[f"{len(layers)}.weight"], tensors[f"{len(layers)}.bias"]))
    if not layers:
        raise KeyError("0.weight")
    network: nn.Module = FoldedMLP(layers)
    if backbone is not None:
        prefix = "backbone."
        backbone.load_state_dict({key.removeprefix(prefix): tensors[key] for key in tensors if key.startswith(prefix)})
        network = PixelNetwork(backbone, network)
    return network.eval()
