"""Local response normalisation of CNN-F, with the bias and ReLU before it: one pass over memory each way on a GPU.

    x' = max(x + bias, 0)     s_i = k + alpha * sum of x'_j^2 over the 5 channels around i     y_i = x'_i * s_i^-beta

PyTorch's own version goes through a three-dimensional pooling, which takes more than half of a CNN-F training step.
With T_j = dy_j x'_j s_j^(-beta-1), the gradient is, where x'_i > 0,

    dx_i = dy_i s_i^-beta - 2 alpha beta x'_i * (sum of T_j over the 5 channels around i)

and that of the bias is its sum over all pixels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dcmh.networks.gpu import relu

# MatConvNet's parameters [5, 2, 1e-4, 0.75]: size, k, alpha, beta. (PyTorch's function divides its alpha by the size.)
HALF, K, ALPHA, BETA = 2, 2.0, 1e-4, 0.75


def relu_lrn(x: Tensor, bias: Tensor) -> Tensor:
    """Bias, ReLU, then normalisation over neighbouring channels; x is (n, channels, height, width)."""
    if relu.has_kernels(x):
        from dcmh.networks.gpu import lrn_kernels

        return lrn_kernels.relu_lrn(x, bias)
    return _ReluLRN.apply(relu.add(x, bias))  # type: ignore[no-any-return, no-untyped-call]


class _ReluLRN(torch.autograd.Function):
    """The same in plain PyTorch, for any device and memory layout."""

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
