"""The layers of CNN-F: in plain PyTorch, and on a GPU by the Triton kernels of `dcmh.networks.gpu.cnnf_kernels`.

Local response normalisation comes with the bias and ReLU before it, in one pass over memory each way on a GPU:

    x' = max(x + bias, 0)     s_i = k + alpha * sum of x'_j^2 over the 5 channels around i     y_i = x'_i * s_i^-beta

PyTorch's own version goes through a three-dimensional pooling, which takes more than half of a CNN-F training step.
With T_j = dy_j x'_j s_j^(-beta-1), the gradient is, where x'_i > 0,

    dx_i = dy_i s_i^-beta - 2 alpha beta x'_i * (sum of T_j over the 5 channels around i)

and that of the bias is its sum over all pixels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from dcmh.util import device as devices

# MatConvNet's parameters [5, 2, 1e-4, 0.75]: size, k, alpha, beta. (PyTorch's function divides its alpha by the size.)
HALF, K, ALPHA, BETA = 2, 2.0, 1e-4, 0.75
FLOAT32_PRODUCT = hasattr(torch.ops.aten.mm, "dtype")  # products of bfloat16 given as float32: PyTorch 2.8 and later


class FirstConv(nn.Conv2d):
    """The first convolution, of pixels less their mean; on a GPU over blocks of stride x stride pixels seen as channels.

    Three channels leave a GPU's matrix units idle, 48 do not. The kernel is padded with zeros to whole blocks. Like
    `ConvWithoutBias`, it leaves its bias to the next operation.
    """

    bias: Tensor

    def forward(self, pixels: Tensor, mean: Tensor) -> Tensor:  # type: ignore[override]
        stride = self.stride[0]
        if not pixels.is_cuda:
            return functional.conv2d(pixels - mean, self.weight, None, stride)
        weight = functional.pad(self.weight, (0, -self.kernel_size[1] % stride, 0, -self.kernel_size[0] % stride))
        return functional.conv2d(self._centred_blocks(pixels, mean), blocks(weight, stride))

    def _centred_blocks(self, pixels: Tensor, mean: Tensor) -> Tensor:
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else mean.dtype
        plain = dtype == torch.float64 or pixels.requires_grad
        if not plain and pixels.is_contiguous(memory_format=torch.channels_last) and devices.has_triton():
            from dcmh.networks.gpu import cnnf_kernels

            return cnnf_kernels.centred_blocks(pixels, mean, self.stride[0], dtype)
        return blocks((pixels - mean).to(dtype), self.stride[0])


class ConvWithoutBias(nn.Conv2d):
    """A convolution without its bias, which the next operation adds."""

    bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.weight, None, self.stride, self.padding)


def blocks(x: Tensor, size: int) -> Tensor:
    """Maps (n, channels, height, width) as (n, size * size * channels, height / size, width / size), channels last."""
    n, channels, height, width = x.shape
    rows = x.permute(0, 2, 3, 1).reshape(n, height // size, size, width // size, size, channels)
    return rows.transpose(2, 3).reshape(n, height // size, width // size, size * size * channels).permute(0, 3, 1, 2)


class FullyConnected(nn.Conv2d):
    """A fully connected layer over a whole map, stored as a convolution: one product, (n, outputs), nothing copied if channels
    come last."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.permute(0, 2, 3, 1).flatten(1)
        x = x.permute(0, 2, 3, 1).flatten(1)
        if x.dtype == torch.bfloat16 and x.is_cuda and FLOAT32_PRODUCT:
            return _Product.apply(x, weight, self.bias)  # type: ignore[no-any-return, no-untyped-call]
        return functional.linear(x, weight, self.bias)


class _Product(torch.autograd.Function):
    """A linear layer in bfloat16 that computes the gradient of its weights, the largest tensor of a step, in float32 directly;
    autocast would write it in bfloat16 and copy it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        low = weight.to(x.dtype)
        ctx.save_for_backward(x, low)
        return torch.addmm(bias.to(x.dtype), x, low.T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, low = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            gradient @ low if for_x else None,
            torch.mm(gradient.T, x, out_dtype=torch.float32) if for_weight else None,
            gradient.sum(0, dtype=torch.float32) if for_bias else None,
        )


def bias_relu(x: Tensor, bias: Tensor) -> Tensor:
    """max(x + bias, 0); x is (n, channels, height, width)."""
    if has_kernels(x):
        from dcmh.networks.gpu import cnnf_kernels

        return cnnf_kernels.bias_relu(x, bias)
    return functional.relu(_add(x, bias))


def relu_lrn(x: Tensor, bias: Tensor) -> Tensor:
    """Bias, ReLU, then normalisation over neighbouring channels; x is (n, channels, height, width)."""
    if has_kernels(x):
        from dcmh.networks.gpu import cnnf_kernels

        return cnnf_kernels.relu_lrn(x, bias, K, ALPHA)
    return _ReluLRN.apply(_add(x, bias))  # type: ignore[no-any-return, no-untyped-call]


def max_pool(x: Tensor, after: int = 0) -> Tensor:
    """3 x 3 maxima with stride 2. MatConvNet pads conv1's map by one row and column after the image; ReLU maps may pad by 0."""
    if has_kernels(x):
        from dcmh.networks.gpu import cnnf_kernels

        return cnnf_kernels.max_pool(x, (x.shape[2] + after - 1) // 2, (x.shape[3] + after - 1) // 2)
    return functional.max_pool2d(functional.pad(x, (0, after, 0, after)) if after else x, 3, 2)


def has_kernels(x: Tensor) -> bool:
    """Whether our Triton kernels, which compute in float32, take these maps: on a GPU, channels last, a power of two of them."""
    is_power_of_two = x.shape[1] & (x.shape[1] - 1) == 0
    is_channels_last = x.is_contiguous(memory_format=torch.channels_last)
    return x.is_cuda and is_power_of_two and is_channels_last and x.dtype != torch.float64 and devices.has_triton()


def _add(x: Tensor, bias: Tensor) -> Tensor:
    return x + bias.to(x.dtype)[:, None, None]


class _ReluLRN(torch.autograd.Function):
    """ReLU and normalisation in plain PyTorch, for any device and memory layout."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        x = functional.relu(x)
        return x * _scale(x).pow_(-BETA)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        x = functional.relu(x)
        scale = _scale(x)
        power = scale.pow(-BETA)
        around = _around(gradient * x * power / scale)
        inner = gradient * power - 2 * ALPHA * BETA * x * around
        return torch.where(x > 0, inner, 0.0)


def _scale(x: Tensor) -> Tensor:
    return _around(x.square()).mul_(ALPHA).add_(K)


def _around(values: Tensor) -> Tensor:
    """Each channel's sum with its two neighbours on either side."""
    total = values.clone()
    for shift in range(1, HALF + 1):
        total[:, shift:] += values[:, :-shift]
        total[:, :-shift] += values[:, shift:]
    return total
