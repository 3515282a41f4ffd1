"""CNN-F (Chatfield et al., BMVC 2014), the paper's image network: five convolutions and three fully connected layers.

The paper's table says 265 filters in conv2 to conv5; CNN-F, whose first seven layers it takes, has 256.
Pixels come in as 0..255; the mean image of the weights file is subtracted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from dcmh.errors import ModelError, needs
from dcmh.networks.cnnf_layers import ConvWithoutBias, FirstConv, FullyConnected, bias_relu, max_pool, relu_lrn

SIZE = 224
FEATURES = 4096


class CNNF(nn.Module):
    """Pixels (n, 3, 224, 224), 0..255, to the 4,096 features of layer full7; the eighth layer is the hash layer.

    Pixels may be bytes or floats.
    """

    size = SIZE
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, SIZE, SIZE))
        self.conv1 = FirstConv(3, 64, 11, stride=4)
        self.conv2 = ConvWithoutBias(64, 256, 5, padding=2)
        self.conv3 = ConvWithoutBias(256, 256, 3, padding=1)
        self.conv4 = ConvWithoutBias(256, 256, 3, padding=1)
        self.conv5 = ConvWithoutBias(256, 256, 3, padding=1)
        self.full6 = FullyConnected(256, 4096, 6)
        self.full7 = FullyConnected(4096, FEATURES, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        x = max_pool(relu_lrn(self.conv1(pixels, self.mean), self.conv1.bias), after=1)  # (n, 64, 27, 27)
        x = max_pool(relu_lrn(self.conv2(x), self.conv2.bias))  # (n, 256, 13, 13)
        x = bias_relu(self.conv3(x), self.conv3.bias)
        x = bias_relu(self.conv4(x), self.conv4.bias)
        x = max_pool(bias_relu(self.conv5(x), self.conv5.bias))  # (n, 256, 6, 6)
        x = functional.relu(self.full6(x))
        return functional.relu(self.full7(x[:, :, None, None]))  # (n, 4096)


def load_matconvnet(network: CNNF, path: Path) -> CNNF:
    """Fill the network from MatConvNet's `imagenet-vgg-f.mat`, in its old or its new layout."""
    layers, mean = _read(path)
    for name in ("conv1", "conv2", "conv3", "conv4", "conv5", "full6", "full7"):
        module = getattr(network, name)
        stored = name.replace("full", "fc")
        if stored not in layers:
            raise ModelError(f"{path} has no layer {stored}. Give MatConvNet's imagenet-vgg-f.mat.")
        kernel, bias = layers[stored]
        weight = _as_weight(kernel)
        if weight.shape != module.weight.shape:
            raise ModelError(
                f"{path}: layer {stored} has kernels {tuple(weight.shape)}, CNN-F has {tuple(module.weight.shape)}. "
                "Is it another network's file? Give imagenet-vgg-f.mat."
            )
        if bias.size != len(weight):
            raise ModelError(
                f"{path}: layer {stored} has {bias.size} biases for {len(weight)} kernels. Download it again."
            )
        if not (torch.isfinite(weight).all() and np.isfinite(bias).all()):
            raise ModelError(f"{path}: layer {stored} holds NaN or infinity. Download it again.")
        with torch.no_grad():
            module.weight.copy_(weight)
            module.bias.copy_(torch.from_numpy(np.ascontiguousarray(bias.ravel(), np.float32)))
    with torch.no_grad():
        network.mean.copy_(_mean_image(mean, path))
    return network


def _as_weight(kernel: NDArray[Any]) -> Tensor:
    """MatConvNet's kernels, height x width x in x out, as torch has them, (out, in, height, width)."""
    if kernel.ndim == 2:  # a fully connected layer: SciPy drops its height and width of 1
        kernel = kernel[None, None]
    if kernel.ndim != 4:
        return torch.from_numpy(np.asarray(kernel, np.float32))
    return torch.from_numpy(np.ascontiguousarray(kernel.transpose(3, 2, 0, 1), np.float32))


def _mean_image(mean: NDArray[Any], path: Path) -> Tensor:
    """The mean image, (3, 224, 224), from height x width x 3; a file that keeps only the mean colour gives it everywhere."""
    mean = np.asarray(mean, np.float32)
    if mean.size == 3:
        mean = np.broadcast_to(mean.reshape(1, 1, 3), (SIZE, SIZE, 3))
    if mean.shape != (SIZE, SIZE, 3):
        raise ModelError(f"{path}: the mean image has shape {mean.shape}, not (224, 224, 3). Give imagenet-vgg-f.mat.")
    if not np.isfinite(mean).all() or mean.min() < 0 or mean.max() > 255:
        raise ModelError(f"{path}: the mean image is not within 0 to 255. Give imagenet-vgg-f.mat.")
    return torch.from_numpy(np.ascontiguousarray(mean.transpose(2, 0, 1)))


def _read(path: Path) -> tuple[dict[str, tuple[NDArray[Any], NDArray[Any]]], NDArray[Any]]:
    """Kernels and biases by layer name, and the mean image; both layouts of the file."""
    with needs("Reading CNN-F weights needs SciPy", "dcmh[bench]"):
        from scipy.io import loadmat
    if not Path(path).is_file():
        raise ModelError(f"There is no file {path}. Give MatConvNet's imagenet-vgg-f.mat with --weights.")
    try:
        content = loadmat(path, struct_as_record=False, squeeze_me=True)
        stored = np.atleast_1d(content["layers"])
        # Old layout: `normalization` beside `layers`; new layout: inside `meta`.
        normalization = content["normalization"] if "normalization" in content else content["meta"].normalization
        layers = {}
        for layer in stored:
            if hasattr(layer, "weights") and np.size(layer.weights):  # new: one cell with both
                layers[str(layer.name)] = (np.asarray(layer.weights[0]), np.asarray(layer.weights[1]))
            elif hasattr(layer, "filters"):  # old: two fields
                layers[str(layer.name)] = (np.asarray(layer.filters), np.asarray(layer.biases))
        return layers, np.asarray(normalization.averageImage)
    except Exception as error:  # SciPy raises almost anything on damaged files
        raise ModelError(
            f"{path} is not a MatConvNet file of CNN-F weights ({error}). Give imagenet-vgg-f.mat."
        ) from error
