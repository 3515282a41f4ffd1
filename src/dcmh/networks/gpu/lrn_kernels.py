"""`relu_lrn` as two Triton kernels for channels-last maps on a GPU. The formulas are in `dcmh.networks.gpu.lrn`.

Backwards, a program goes over many tiles and adds up the bias's gradient on its way, as in `dcmh.networks.gpu.relu_kernels`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from dcmh.networks.gpu.lrn import ALPHA, BETA, K
from dcmh.networks.gpu.relu_kernels import PROGRAMS, relu

ELEMENTS, WARPS = 1024, 8  # of a tile: pixels x channels


def relu_lrn(x: Tensor, bias: Tensor) -> Tensor:
    """x is (n, channels, height, width) in channels-last order, its channels a power of two."""
    return _ReluLRN.apply(x, bias)  # type: ignore[no-any-return]


class _ReluLRN(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, bias)
        y = torch.empty_like(x)
        pixels, channels = x.numel() // x.shape[1], x.shape[1]
        tile = max(1, ELEMENTS // channels)
        _forward[(triton.cdiv(pixels, tile),)](x, bias, y, pixels, channels, tile, K, ALPHA, num_warps=WARPS)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, bias = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(x)
        pixels, channels = x.numel() // x.shape[1], x.shape[1]
        tile = max(1, ELEMENTS // channels)
        programs = min(PROGRAMS, triton.cdiv(pixels, tile))
        sums = torch.empty(programs, channels, device=x.device)
        numbers = (pixels, channels, tile, K, ALPHA, 2 * ALPHA * BETA)
        _backward[(programs,)](x, bias, gradient, dx, sums, *numbers, num_warps=WARPS)
        return dx, sums.sum(0)


@triton.jit
def _at(start, pixel, channel, pixels, CHANNELS: tl.constexpr):
    """A tile of the map, shifted along the channels; 0 outside."""
    inside = (pixel < pixels) & (channel >= 0) & (channel < CHANNELS)
    return tl.load(start + pixel * CHANNELS + channel, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _biases(bias, channel, CHANNELS: tl.constexpr):
    """Those of some channels; outside so low that x' is 0."""
    inside = (channel >= 0) & (channel < CHANNELS)
    return tl.load(bias + channel, mask=inside, other=-1.0).to(tl.float32)


@triton.jit
def _powers(scale):
    """scale^-0.75 and scale^-1.75, by two square roots and no division: these functions are what takes time here."""
    root = tl.rsqrt(scale)
    power = root * tl.sqrt(root)
    return power, power * root * root


@triton.jit
def _forward(x, bias, y, pixels, CHANNELS: tl.constexpr, TILE: tl.constexpr, k, alpha):
    pixel = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)[:, None]
    channel = tl.arange(0, CHANNELS)[None, :]
    here = relu(_at(x, pixel, channel, pixels, CHANNELS) + _biases(bias, channel, CHANNELS))
    total = here * here
    for shift in tl.static_range(1, 3):
        low, high = channel - shift, channel + shift
        before = relu(_at(x, pixel, low, pixels, CHANNELS) + _biases(bias, low, CHANNELS))
        after = relu(_at(x, pixel, high, pixels, CHANNELS) + _biases(bias, high, CHANNELS))
        total += before * before + after * after
    power, _ = _powers(k + alpha * total)
    out = here * power
    tl.store(y + pixel * CHANNELS + channel, out.to(y.dtype.element_ty), mask=pixel < pixels)


@triton.jit
def _term(dy, x, squares, k, alpha):
    """T = dy x' s^(-beta-1)"""
    _, power = _powers(k + alpha * squares)
    return dy * x * power


@triton.jit
def _backward(x, bias, dy, dx, sums, pixels, CHANNELS: tl.constexpr, TILE: tl.constexpr, k, alpha, factor):
    channel = tl.arange(0, CHANNELS)[None, :]
    b0 = _biases(bias, channel - 4, CHANNELS)
    b1 = _biases(bias, channel - 3, CHANNELS)
    b2 = _biases(bias, channel - 2, CHANNELS)
    b3 = _biases(bias, channel - 1, CHANNELS)
    b4 = _biases(bias, channel, CHANNELS)
    b5 = _biases(bias, channel + 1, CHANNELS)
    b6 = _biases(bias, channel + 2, CHANNELS)
    b7 = _biases(bias, channel + 3, CHANNELS)
    b8 = _biases(bias, channel + 4, CHANNELS)
    total = tl.zeros((TILE, CHANNELS), tl.float32)
    for start in range(tl.program_id(0) * TILE, pixels, tl.num_programs(0) * TILE):
        pixel = (start + tl.arange(0, TILE)).to(tl.int64)[:, None]
        # x' of the nine channels around, and the squares' sums of the five whose scale is needed
        x0 = relu(_at(x, pixel, channel - 4, pixels, CHANNELS) + b0)
        x1 = relu(_at(x, pixel, channel - 3, pixels, CHANNELS) + b1)
        x2 = relu(_at(x, pixel, channel - 2, pixels, CHANNELS) + b2)
        x3 = relu(_at(x, pixel, channel - 1, pixels, CHANNELS) + b3)
        x4 = relu(_at(x, pixel, channel, pixels, CHANNELS) + b4)
        x5 = relu(_at(x, pixel, channel + 1, pixels, CHANNELS) + b5)
        x6 = relu(_at(x, pixel, channel + 2, pixels, CHANNELS) + b6)
        x7 = relu(_at(x, pixel, channel + 3, pixels, CHANNELS) + b7)
        x8 = relu(_at(x, pixel, channel + 4, pixels, CHANNELS) + b8)
        inner = x2 * x2 + x3 * x3 + x4 * x4
        s2 = x0 * x0 + x1 * x1 + inner
        s3 = x1 * x1 + inner + x5 * x5
        s4 = inner + x5 * x5 + x6 * x6
        s5 = x3 * x3 + x4 * x4 + x5 * x5 + x6 * x6 + x7 * x7
        s6 = x4 * x4 + x5 * x5 + x6 * x6 + x7 * x7 + x8 * x8
        here = _at(dy, pixel, channel, pixels, CHANNELS)
        around = _term(_at(dy, pixel, channel - 2, pixels, CHANNELS), x2, s2, k, alpha)
        around += _term(_at(dy, pixel, channel - 1, pixels, CHANNELS), x3, s3, k, alpha)
        power, higher = _powers(k + alpha * s4)
        around += here * x4 * higher
        around += _term(_at(dy, pixel, channel + 1, pixels, CHANNELS), x5, s5, k, alpha)
        around += _term(_at(dy, pixel, channel + 2, pixels, CHANNELS), x6, s6, k, alpha)
        out = here * power - factor * x4 * around
        out = tl.where((x4 > 0) & (pixel < pixels), out, 0.0)
        tl.store(dx + pixel * CHANNELS + channel, out.to(dx.dtype.element_ty), mask=pixel < pixels)
        total += out
    tl.store(sums + tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS), tl.sum(total, 0))
