"""A convolution's bias and ReLU: one pass over memory each way on a GPU, where PyTorch takes two forwards and two backwards."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from dcmh.util import device as devices


def bias_relu(x: Tensor, bias: Tensor) -> Tensor:
    """max(x + bias, 0); x is (n, channels, height, width)."""
    if has_kernels(x):
        from dcmh.networks.gpu import relu_kernels

        return relu_kernels.bias_relu(x, bias)
    return functional.relu(add(x, bias))


def add(x: Tensor, bias: Tensor) -> Tensor:
    return x + bias.to(x.dtype)[:, None, None]


def has_kernels(x: Tensor) -> bool:
    """Whether our Triton kernels, which compute in float32, take these maps: on a GPU, channels last, a power of two of them."""
    two = x.shape[1] & (x.shape[1] - 1) == 0
    last = x.is_contiguous(memory_format=torch.channels_last)
    return x.is_cuda and two and last and x.dtype != torch.float64 and devices.has_triton()
