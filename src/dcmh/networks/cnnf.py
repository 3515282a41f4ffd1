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

from dcmh.errors import MissingExtra, ModelError

SIZE = 224
FEATURES = 4096

# MatConvNet's LRN parameters [5, 2, 1e-4, 0.75] are size, k, alpha, beta; torch divides alpha by size, hence 5 * 1e-4.
LRN: dict[str, Any] = {"size": 5, "alpha": 5e-4, "beta": 0.75, "k": 2.0}


class CNNF(nn.Module):
    """Pixels (n, 3, 224, 224), 0..255, to the 4,096 features of layer full7; the eighth layer is the hash layer."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, SIZE, SIZE))
        self.conv1 = nn.Conv2d(3, 64, 11, stride=4)
        self.conv2 = nn.Conv2d(64, 256, 5, padding=2)
        self.conv3 = nn.Conv2d(256, 256, 3, padding=1)
        self.conv4 = nn.Conv2d(256, 256, 3, padding=1)
        self.conv5 = nn.Conv2d(256, 256, 3, padding=1)
        self.full6 = nn.Conv2d(256, 4096, 6)  # a fully connected layer over the 6 x 6 map
        self.full7 = nn.Conv2d(4096, FEATURES, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        x = pixels - self.mean
        x = _pool(functional.local_response_norm(functional.relu(self.conv1(x)), **LRN), ceil=(0, 1))  # (n, 64, 27, 27)
        x = _pool(functional.local_response_norm(functional.relu(self.conv2(x)), **LRN))  # (n, 256, 13, 13)
        x = functional.relu(self.conv3(x))
        x = functional.relu(self.conv4(x))
        x = _pool(functional.relu(self.conv5(x)))  # (n, 256, 6, 6)
        x = functional.relu(self.full6(x))
        return functional.relu(self.full7(x)).flatten(1)  # (n, 4096)


def _pool(x: Tensor, ceil: tuple[int, int] = (0, 0)) -> Tensor:
    """3 x 3 maxima with stride 2. MatConvNet pads conv1's map by one row and column after the image; ReLU maps may pad by 0."""
    if any(ceil):
        x = functional.pad(x, (ceil[0], ceil[1], ceil[0], ceil[1]))
    return functional.max_pool2d(x, 3, 2)


def load_matconvnet(network: CNNF, path: Path) -> CNNF:
    """Fill the network from MatConvNet's `imagenet-vgg-f.mat`, in its old or its new layout."""
    layers, mean = _read(path)
    for name in ("conv1", "conv2", "conv3", "conv4", "conv5", "full6", "full7"):
        module = getattr(network, name)
        stored = name.replace("full", "fc")
        if stored not in layers:
            raise ModelError(f"{path} has no layer {stored}. Give MatConvNet's imagenet-vgg-f.mat.")
        kernel, bias = layers[stored]  # kernel: height x width x in x out
        if kernel.ndim == 2:
            kernel = kernel[None, None]
        weight = torch.from_numpy(np.ascontiguousarray(kernel.transpose(3, 2, 0, 1), np.float32))
        if weight.shape != module.weight.shape:
            raise ModelError(
                f"{path}: layer {stored} has kernels {tuple(weight.shape)}, CNN-F has {tuple(module.weight.shape)}. "
                "Is it another network's file? Give imagenet-vgg-f.mat."
            )
        with torch.no_grad():
            module.weight.copy_(weight)
            module.bias.copy_(torch.from_numpy(np.ascontiguousarray(bias.ravel(), np.float32)))
    with torch.no_grad():
        network.mean.copy_(_mean_image(mean, path))
    return network


def _mean_image(mean: NDArray[Any], path: Path) -> Tensor:
    """The mean image, (3, 224, 224); a file that keeps only the mean colour gives the same colour everywhere."""
    mean = np.asarray(mean, np.float32)
    if mean.size == 3:
        mean = np.broadcast_to(mean.reshape(1, 1, 3), (SIZE, SIZE, 3))
    if mean.shape != (SIZE, SIZE, 3):
        raise ModelError(f"{path}: the mean image has shape {mean.shape}, not (224, 224, 3). Give imagenet-vgg-f.mat.")
    return torch.from_numpy(np.ascontiguousarray(mean.transpose(2, 0, 1)))


def _read(path: Path) -> tuple[dict[str, tuple[NDArray[Any], NDArray[Any]]], NDArray[Any]]:
    """Kernels and biases by layer name, and the mean image; both layouts of the file."""
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ImportError as error:
        raise MissingExtra('Reading CNN-F weights needs SciPy. Install: pip install "dcmh[bench]"') from error
    if not Path(path).is_file():
        raise ModelError(f"There is no file {path}. Give MatConvNet's imagenet-vgg-f.mat with --weights.")
    try:
        content = loadmat(path, struct_as_record=False, squeeze_me=True)
        stored = content["layers"]
        # Old layout: `normalization` beside `layers`; new layout: inside `meta`.
        normalization = content["normalization"] if "normalization" in content else content["meta"].normalization
        layers = {}
        for layer in stored:
            if hasattr(layer, "weights") and np.size(layer.weights):  # new: one cell with both
                layers[str(layer.name)] = (np.asarray(layer.weights[0]), np.asarray(layer.weights[1]))
            elif hasattr(layer, "filters"):  # old: two fields
                layers[str(layer.name)] = (np.asarray(layer.filters), np.asarray(layer.biases))
        return layers, np.asarray(normalization.averageImage)
    except (KeyError, AttributeError, ValueError, TypeError, NotImplementedError, OSError, MatReadError) as error:
        raise ModelError(
            f"{path} is not a MatConvNet file of CNN-F weights ({error}). Give imagenet-vgg-f.mat."
        ) from error
