"""Maxima over 3 x 3 pixels with stride 2 as two Triton kernels for channels-last maps on a GPU.

Forwards, each output also keeps which of its nine pixels was the largest, in a byte; backwards, each pixel collects the
gradients of the up to four outputs that chose it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

ELEMENTS = 2048  # of a tile: pixels x channels


def max_pool(x: Tensor, height: int, width: int) -> Tensor:
    """Maps (n, channels, h, w), channels last and a power of two, to (n, channels, height, width); outside there is nothing."""
    return _MaxPool.apply(x, height, width)  # type: ignore[no-any-return]


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, height: int, width: int) -> Tensor:
        n, channels, *size = x.shape
        settings: dict[str, Any] = {"device": x.device, "memory_format": torch.channels_last}
        y = torch.empty(n, channels, height, width, dtype=x.dtype, **settings)
        chosen = torch.empty(n, channels, height, width, dtype=torch.uint8, **settings)
        pixels, tile = n * height * width, max(1, ELEMENTS // channels)
        _forward[(triton.cdiv(pixels, tile),)](x, y, chosen, pixels, *size, height, width, channels, tile)
        ctx.save_for_backward(chosen)
        ctx.shape = x.shape
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (chosen,) = ctx.saved_tensors
        n, channels, *size = ctx.shape
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        dx = torch.empty(ctx.shape, dtype=gradient.dtype, device=gradient.device, memory_format=torch.channels_last)
        pixels, tile = n * size[0] * size[1], max(1, ELEMENTS // channels)
        height, width = gradient.shape[2:]
        _backward[(triton.cdiv(pixels, tile),)](gradient, chosen, dx, pixels, *size, height, width, channels, tile)
        return dx, None, None


@triton.jit
def _forward(x, y, chosen, pixels, h, w, height, width, CHANNELS: tl.constexpr, TILE: tl.constexpr):
    out = tl.program_id(0) * TILE + tl.arange(0, TILE)
    channel = tl.arange(0, CHANNELS)[None, :]
    picture = (out // (height * width)).to(tl.int64)
    row = 2 * ((out // width) % height)
    column = 2 * (out % width)
    here = out < pixels
    best = tl.full((TILE, CHANNELS), float("-inf"), tl.float32)
    which = tl.zeros((TILE, CHANNELS), tl.int32)
    for i in tl.static_range(9):
        r, c = row + i // 3, column + i % 3
        inside = here & (r < h) & (c < w)
        place = ((picture * h + r) * w + c)[:, None] * CHANNELS + channel
        value = tl.load(x + place, mask=inside[:, None], other=float("-inf")).to(tl.float32)
        larger = (value > best) | (value != value)  # NaN is passed on, as by PyTorch
        best = tl.where(larger, value, best)
        which = tl.where(larger, i, which)
    place = out.to(tl.int64)[:, None] * CHANNELS + channel
    tl.store(y + place, best.to(y.dtype.element_ty), mask=here[:, None])
    tl.store(chosen + place, which.to(tl.uint8), mask=here[:, None])


@triton.jit
def _backward(dy, chosen, dx, pixels, h, w, height, width, CHANNELS: tl.constexpr, TILE: tl.constexpr):
    pixel = tl.program_id(0) * TILE + tl.arange(0, TILE)
    channel = tl.arange(0, CHANNELS)[None, :]
    picture = (pixel // (h * w)).to(tl.int64)
    row = (pixel // w) % h
    column = pixel % w
    here = pixel < pixels
    total = tl.zeros((TILE, CHANNELS), tl.float32)
    for i in tl.static_range(4):  # outputs that may have chosen this pixel: one or two along each axis
        r, c = row // 2 - i // 2, column // 2 - i % 2
        down, right = row - 2 * r, column - 2 * c
        seen = here & (r >= 0) & (r < height) & (c >= 0) & (c < width) & (down < 3) & (right < 3)
        place = ((picture * height + r) * width + c)[:, None] * CHANNELS + channel
        which = tl.load(chosen + place, mask=seen[:, None], other=255).to(tl.int32)
        value = tl.load(dy + place, mask=seen[:, None], other=0.0).to(tl.float32)
        total += tl.where(which == (3 * down + right)[:, None], value, 0.0)
    place = pixel.to(tl.int64)[:, None] * CHANNELS + channel
    tl.store(dx + place, total.to(dx.dtype.element_ty), mask=here[:, None])
