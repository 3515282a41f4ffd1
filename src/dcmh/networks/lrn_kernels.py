"""`relu_lrn` as two Triton kernels for channels-last maps on a GPU. The formulas are in `dcmh.networks.lrn`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dcmh.networks.lrn import ALPHA, BETA, K

try:
    import triton
    import triton.language as tl

    AVAILABLE = True
except ImportError:  # PyTorch for CPUs, and for some systems, comes without it
    AVAILABLE = False

ELEMENTS, WARPS = 1024, 8  # of a tile: pixels x channels


def relu_lrn(x: Tensor) -> Tensor:
    """x is (n, channels, height, width) in channels-last order, its channels a power of two."""
    return _ReluLRN.apply(x)  # type: ignore[no-any-return]


class _ReluLRN(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        pixels, channels = x.numel() // x.shape[1], x.shape[1]
        tile = max(1, ELEMENTS // channels)
        grid = (triton.cdiv(pixels, tile),)
        _forward[grid](x, y, pixels, channels, tile, K, ALPHA, num_warps=WARPS)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        out = torch.empty_like(x)
        pixels, channels = x.numel() // x.shape[1], x.shape[1]
        tile = max(1, ELEMENTS // channels)
        grid = (triton.cdiv(pixels, tile),)
        _backward[grid](x, gradient, out, pixels, channels, tile, K, ALPHA, 2 * ALPHA * BETA, num_warps=WARPS)
        return out


if AVAILABLE:

    @triton.jit
    def _at(start, pixel, channel, pixels, CHANNELS: tl.constexpr):
        """A tile of the map, shifted along the channels; 0 outside."""
        inside = (pixel < pixels) & (channel >= 0) & (channel < CHANNELS)
        return tl.load(start + pixel * CHANNELS + channel, mask=inside, other=0.0).to(tl.float32)

    @triton.jit
    def _power(scale):
        """scale^-0.75"""
        root = tl.rsqrt(scale)
        return root * tl.sqrt(root)

    @triton.jit
    def _forward(x, y, pixels, CHANNELS: tl.constexpr, TILE: tl.constexpr, k, alpha):
        pixel = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)[:, None]
        channel = tl.arange(0, CHANNELS)[None, :]
        here = tl.maximum(_at(x, pixel, channel, pixels, CHANNELS), 0.0)
        total = here * here
        for shift in tl.static_range(1, 3):
            before = tl.maximum(_at(x, pixel, channel - shift, pixels, CHANNELS), 0.0)
            after = tl.maximum(_at(x, pixel, channel + shift, pixels, CHANNELS), 0.0)
            total += before * before + after * after
        out = here * _power(k + alpha * total)
        tl.store(y + pixel * CHANNELS + channel, out.to(y.dtype.element_ty), mask=pixel < pixels)

    @triton.jit
    def _term(dy, x, squares, k, alpha):
        """T = dy x s^(-beta-1)"""
        scale = k + alpha * squares
        return dy * x * _power(scale) / scale

    @triton.jit
    def _backward(x, dy, dx, pixels, CHANNELS: tl.constexpr, TILE: tl.constexpr, k, alpha, factor):
        pixel = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)[:, None]
        channel = tl.arange(0, CHANNELS)[None, :]
        # x' of the nine channels around, and the squares' sums of the five whose scale is needed
        x0 = tl.maximum(_at(x, pixel, channel - 4, pixels, CHANNELS), 0.0)
        x1 = tl.maximum(_at(x, pixel, channel - 3, pixels, CHANNELS), 0.0)
        x2 = tl.maximum(_at(x, pixel, channel - 2, pixels, CHANNELS), 0.0)
        x3 = tl.maximum(_at(x, pixel, channel - 1, pixels, CHANNELS), 0.0)
        x4 = tl.maximum(_at(x, pixel, channel, pixels, CHANNELS), 0.0)
        x5 = tl.maximum(_at(x, pixel, channel + 1, pixels, CHANNELS), 0.0)
        x6 = tl.maximum(_at(x, pixel, channel + 2, pixels, CHANNELS), 0.0)
        x7 = tl.maximum(_at(x, pixel, channel + 3, pixels, CHANNELS), 0.0)
        x8 = tl.maximum(_at(x, pixel, channel + 4, pixels, CHANNELS), 0.0)
        inner = x2 * x2 + x3 * x3 + x4 * x4
        s2 = x0 * x0 + x1 * x1 + inner
        s3 = x1 * x1 + inner + x5 * x5
        s4 = inner + x5 * x5 + x6 * x6
        s5 = x3 * x3 + x4 * x4 + x5 * x5 + x6 * x6 + x7 * x7
        s6 = x4 * x4 + x5 * x5 + x6 * x6 + x7 * x7 + x8 * x8
        here = _at(dy, pixel, channel, pixels, CHANNELS)
        around = _term(_at(dy, pixel, channel - 2, pixels, CHANNELS), x2, s2, k, alpha)
        around += _term(_at(dy, pixel, channel - 1, pixels, CHANNELS), x3, s3, k, alpha)
        around += _term(here, x4, s4, k, alpha)
        around += _term(_at(dy, pixel, channel + 1, pixels, CHANNELS), x5, s5, k, alpha)
        around += _term(_at(dy, pixel, channel + 2, pixels, CHANNELS), x6, s6, k, alpha)
        out = here * _power(k + alpha * s4) - factor * x4 * around
        out = tl.where(x4 > 0, out, 0.0)
        tl.store(dx + pixel * CHANNELS + channel, out.to(dx.dtype.element_ty), mask=pixel < pixels)
