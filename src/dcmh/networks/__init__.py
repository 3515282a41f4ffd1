"""Networks: from pictures, words and feature vectors to real-valued outputs, one per bit."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from dcmh.errors import ParameterError
from dcmh.networks import cnnf, efficientnet

BACKBONES = ("efficientnet-lite0", "efficientnet-lite2", "cnn-f")
LITE = {"efficientnet-lite0": 0, "efficientnet-lite2": 2}  # name to version


def backbone(name: str, *, weights: Path | None = None) -> tuple[nn.Module, int]:
    """An image network without its last layer, pre-trained on ImageNet, and the number of its features.

    `weights` is required for cnn-f (MatConvNet's imagenet-vgg-f.mat); the EfficientNets find their own.
    """
    if name in LITE:
        return efficientnet.load_imagenet(efficientnet.EfficientNetLite(LITE[name]), weights), efficientnet.FEATURES
    if name == "cnn-f":
        if weights is None:
            raise ParameterError(
                "cnn-f needs its ImageNet weights. Give MatConvNet's imagenet-vgg-f.mat with --weights."
            )
        return cnnf.load_matconvnet(cnnf.CNNF(), weights), cnnf.FEATURES
    raise ParameterError(f"No image network {name!r}. Available: {', '.join(BACKBONES)}.")


def features_of(name: str) -> int:
    """The number of features of an image network."""
    return efficientnet.FEATURES if name in LITE else cnnf.FEATURES


def size_of(name: str) -> int:
    """The pixels that pictures have on each side when they enter an image network."""
    return efficientnet.SIZES[LITE[name]] if name in LITE else cnnf.SIZE


def imagenet_weights(name: str) -> Path | None:
    """The installed file of an image network's ImageNet weights; None for cnn-f, which has none."""
    return efficientnet.imagenet_weights(LITE[name]) if name in LITE else None


def late_layers(network: nn.Module) -> list[nn.Parameter]:
    """The parameters that fine-tuning changes: for EfficientNet-Lite those from maps of 14 x 14 on, for others all.

    Earlier layers detect edges and textures, which are the same everywhere, and take most of the time and memory.
    """
    if isinstance(network, efficientnet.EfficientNetLite):
        return network.late_layers()
    return list(network.parameters())


def sized(network: nn.Module, size: int) -> nn.Module:
    """The same network, for pictures of another size if it is an EfficientNet."""
    if isinstance(network, efficientnet.EfficientNetLite):
        network.size = size
    return network


def architecture(name: str) -> nn.Module:
    """The same network without weights, to be filled from a model folder."""
    return efficientnet.EfficientNetLite(LITE[name]) if name in LITE else cnnf.CNNF()
