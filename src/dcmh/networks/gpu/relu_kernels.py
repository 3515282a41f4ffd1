"""`bias_relu` as two Triton kernels for channels-last maps on a GPU.

Backwards, a program goes over many tiles and adds up the bias's gradient on its way: the same sum each time, unlike one
of atomic additions.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

ELEMENTS, WARPS = 2048, 8  # of a tile: pixels x channels
PROGRAMS = 1056  # backwards: eight for each of an H200's processors


def bias_relu(x: Tensor, bias: Tensor) -> Tensor:
    """x is (n, channels, height, width) in channels-last order, its channels a power of two."""
    return _BiasReLU.apply(x, bias)  # type: ignore[no-any-return]


class _BiasReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        y = torch.empty_like(x)
        pixels, channels = x.numel() // x.shape[1], x.shape[1]
        tile = max(1, ELEMENTS // channels)
        _forward[(triton.cdiv(pixels, tile),)](x, bias, y, pixels, channels, tile, num_warps=WARPS)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (y,) = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(y)
        pixels, channels = y.numel() // y.shape[1], y.shape[1]
        tile = max(1, ELEMENTS // channels)
        programs = min(PROGRAMS, triton.cdiv(pixels, tile))
        sums = torch.empty(programs, channels, device=y.device)
        _backward[(programs,)](y, gradient, dx, sums, pixels, channels, tile, num_warps=WARPS)
        return dx, sums.sum(0)


@triton.jit
def relu(x):
    """A network that has become NaN is seen as such."""
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _forward(x, bias, y, pixels, CHANNELS: tl.constexpr, TILE: tl.constexpr):
    pixel = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)[:, None]
    channel = tl.arange(0, CHANNELS)[None, :]
    place = pixel * CHANNELS + channel
    value = tl.load(x + place, mask=pixel < pixels, other=0.0).to(tl.float32) + tl.load(bias + channel)
    tl.store(y + place, relu(value).to(y.dtype.element_ty), mask=pixel < pixels)


@triton.jit
def _backward(y, dy, dx, sums, pixels, CHANNELS: tl.constexpr, TILE: tl.constexpr):
    channel = tl.arange(0, CHANNELS)
    total = tl.zeros((TILE, CHANNELS), tl.float32)
    for start in range(tl.program_id(0) * TILE, pixels, tl.num_programs(0) * TILE):
        pixel = (start + tl.arange(0, TILE)).to(tl.int64)[:, None]
        place = pixel * CHANNELS + channel[None, :]
        passed = tl.load(y + place, mask=pixel < pixels, other=0.0) > 0
        out = tl.where(passed, tl.load(dy + place, mask=pixel < pixels, other=0.0).to(tl.float32), 0.0)
        tl.store(dx + place, out.to(dx.dtype.element_ty), mask=pixel < pixels)
        total += out
    tl.store(sums + tl.program_id(0) * CHANNELS + channel, tl.sum(total, 0))
