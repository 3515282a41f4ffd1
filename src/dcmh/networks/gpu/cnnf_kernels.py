"""Triton kernels for CNN-F's layers on a GPU, for channels-last maps: `dcmh.networks.cnnf_layers` has the same in PyTorch.

Bias and ReLU, the same with local response normalisation, 3 x 3 maxima, and the first convolution's input. Backwards, a
program goes over many tiles and adds up the bias's gradient on its way: the same sum each time, unlike atomic additions.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

RELU_TILE, LRN_TILE, POOL_TILE = 2048, 1024, 2048  # elements of a tile: pixels x channels
PIXEL_TILE = 1024  # values
WARPS = 8
PROGRAMS = 1056  # backwards: eight for each of an H200's processors


# -- bias and ReLU -------------------------------------------------------------------------------------------------------


def bias_relu(x: Tensor, bias: Tensor) -> Tensor:
    """x is (n, channels, height, width) in channels-last order, its channels a power of two."""
    return _BiasReLU.apply(x, bias)  # type: ignore[no-any-return]


class _BiasReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        y = torch.empty_like(x)
        pixels, channels = x.numel() // x.shape[1], x.shape[1]
        tile = max(1, RELU_TILE // channels)
        _relu_forward[(triton.cdiv(pixels, tile),)](x, bias, y, pixels, channels, tile, num_warps=WARPS)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (y,) = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(y)
        pixels, channels = y.numel() // y.shape[1], y.shape[1]
        tile = max(1, RELU_TILE // channels)
        programs = min(PROGRAMS, triton.cdiv(pixels, tile))
        sums = torch.empty(programs, channels, device=y.device)
        _relu_backward[(programs,)](y, gradient, dx, sums, pixels, channels, tile, num_warps=WARPS)
        return dx, sums.sum(0)


@triton.jit
def relu(x):
    """NaN passes through, so that a network that has diverged is noticed."""
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _relu_forward(x, bias, y, pixels, CHANNELS: tl.constexpr, TILE: tl.constexpr):
    pixel = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)[:, None]
    channel = tl.arange(0, CHANNELS)[None, :]
    offset = pixel * CHANNELS + channel
    value = tl.load(x + offset, mask=pixel < pixels, other=0.0).to(tl.float32) + tl.load(bias + channel)
    tl.store(y + offset, relu(value).to(y.dtype.element_ty), mask=pixel < pixels)


@triton.jit
def _relu_backward(y, dy, dx, sums, pixels, CHANNELS: tl.constexpr, TILE: tl.constexpr):
    channel = tl.arange(0, CHANNELS)
    total = tl.zeros((TILE, CHANNELS), tl.float32)
    for start in range(tl.program_id(0) * TILE, pixels, tl.num_programs(0) * TILE):
        pixel = (start + tl.arange(0, TILE)).to(tl.int64)[:, None]
        offset = pixel * CHANNELS + channel[None, :]
        passed = tl.load(y + offset, mask=pixel < pixels, other=0.0) > 0
        out = tl.where(passed, tl.load(dy + offset, mask=pixel < pixels, other=0.0).to(tl.float32), 0.0)
        tl.store(dx + offset, out.to(dx.dtype.element_ty), mask=pixel < pixels)
        total += out
    tl.store(sums + tl.program_id(0) * CHANNELS + channel, tl.sum(total, 0))


# -- bias, ReLU and local response normalisation -------------------------------------------------------------------------


def relu_lrn(x: Tensor, bias: Tensor, k: float, alpha: float) -> Tensor:
    """`cnnf_layers.relu_lrn` for beta = 0.75; x is (n, channels, height, width), channels last, a power of two of them."""
    return _ReluLRN.apply(x, bias, k, alpha)  # type: ignore[no-any-return]


class _ReluLRN(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, k: float, alpha: float) -> Tensor:
        ctx.save_for_backward(x, bias)
        ctx.k, ctx.alpha = k, alpha
        y = torch.empty_like(x)
        pixels, channels = x.numel() // x.shape[1], x.shape[1]
        tile = max(1, LRN_TILE // channels)
        _lrn_forward[(triton.cdiv(pixels, tile),)](x, bias, y, pixels, channels, tile, k, alpha, num_warps=WARPS)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, bias = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(x)
        pixels, channels = x.numel() // x.shape[1], x.shape[1]
        tile = max(1, LRN_TILE // channels)
        programs = min(PROGRAMS, triton.cdiv(pixels, tile))
        sums = torch.empty(programs, channels, device=x.device)
        numbers = (pixels, channels, tile, ctx.k, ctx.alpha, 2 * ctx.alpha * 0.75)
        _lrn_backward[(programs,)](x, bias, gradient, dx, sums, *numbers, num_warps=WARPS)
        return dx, sums.sum(0), None, None


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
def _lrn_forward(x, bias, y, pixels, CHANNELS: tl.constexpr, TILE: tl.constexpr, k, alpha):
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
def _lrn_backward(x, bias, dy, dx, sums, pixels, CHANNELS: tl.constexpr, TILE: tl.constexpr, k, alpha, factor):
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


# -- 3 x 3 maxima with stride 2 ------------------------------------------------------------------------------------------


# Forwards, each output also keeps which of its nine pixels was the largest, in a byte; backwards, each pixel collects the
# gradients of the up to four outputs that chose it.


def max_pool(x: Tensor, height: int, width: int) -> Tensor:
    """Maps (n, channels, h, w), channels last and a power of two, to (n, channels, height, width); pixels outside are ignored."""
    return _MaxPool.apply(x, height, width)  # type: ignore[no-any-return]


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, height: int, width: int) -> Tensor:
        n, channels, *size = x.shape
        settings: dict[str, Any] = {"device": x.device, "memory_format": torch.channels_last}
        y = torch.empty(n, channels, height, width, dtype=x.dtype, **settings)
        chosen = torch.empty(n, channels, height, width, dtype=torch.uint8, **settings)
        pixels, tile = n * height * width, max(1, POOL_TILE // channels)
        _pool_forward[(triton.cdiv(pixels, tile),)](x, y, chosen, pixels, *size, height, width, channels, tile)
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
        pixels, tile = n * size[0] * size[1], max(1, POOL_TILE // channels)
        height, width = gradient.shape[2:]
        _pool_backward[(triton.cdiv(pixels, tile),)](gradient, chosen, dx, pixels, *size, height, width, channels, tile)
        return dx, None, None


@triton.jit
def _pool_forward(x, y, chosen, pixels, h, w, height, width, CHANNELS: tl.constexpr, TILE: tl.constexpr):
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
        offset = ((picture * h + r) * w + c)[:, None] * CHANNELS + channel
        value = tl.load(x + offset, mask=inside[:, None], other=float("-inf")).to(tl.float32)
        larger = (value > best) | (value != value)  # NaN is passed on, as by PyTorch
        best = tl.where(larger, value, best)
        which = tl.where(larger, i, which)
    offset = out.to(tl.int64)[:, None] * CHANNELS + channel
    tl.store(y + offset, best.to(y.dtype.element_ty), mask=here[:, None])
    tl.store(chosen + offset, which.to(tl.uint8), mask=here[:, None])


@triton.jit
def _pool_backward(dy, chosen, dx, pixels, h, w, height, width, CHANNELS: tl.constexpr, TILE: tl.constexpr):
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
        offset = ((picture * height + r) * width + c)[:, None] * CHANNELS + channel
        which = tl.load(chosen + offset, mask=seen[:, None], other=255).to(tl.int32)
        value = tl.load(dy + offset, mask=seen[:, None], other=0.0).to(tl.float32)
        total += tl.where(which == (3 * down + right)[:, None], value, 0.0)
    offset = pixel.to(tl.int64)[:, None] * CHANNELS + channel
    tl.store(dx + offset, total.to(dx.dtype.element_ty), mask=here[:, None])


# -- pixels less their mean, in blocks seen as channels ------------------------------------------------------------------


def centred_blocks(pixels: Tensor, mean: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """`blocks(pixels - mean, size)` of `dcmh.networks.cnnf_layers`, for pixels (n, 3, height, width), channels last."""
    n, channels, height, width = pixels.shape
    shape = (n, size * size * channels, height // size, width // size)
    out = torch.empty(shape, dtype=dtype, device=pixels.device, memory_format=torch.channels_last)
    numbers = (out.numel(), height, width, channels, size)
    _blocks[(triton.cdiv(out.numel(), PIXEL_TILE),)](pixels, mean, out, *numbers, PIXEL_TILE)
    return out


@triton.jit
def _blocks(
    pixels, mean, out, total, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, S: tl.constexpr, ELEMENTS: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * ELEMENTS
    element = tl.arange(0, ELEMENTS)
    inside = start + element < total
    # The block, and the pixel's place within it. Only the picture needs a division of long integers.
    picture = (start + element) // (H * W * C)
    rest = ((start + element) % (H * W * C)).to(tl.int32)
    block, within = rest // (S * S * C), rest % (S * S * C)
    row = block // (W // S) * S + within // (S * C)
    run = block % (W // S) * (S * C) + within % (S * C)  # along the row: column, then colour
    value = tl.load(pixels + picture * (H * W * C) + row * (W * C) + run, mask=inside, other=0).to(tl.float32)
    centre = tl.load(mean + (run % C) * (H * W) + row * W + run // C, mask=inside, other=0.0)
    tl.store(out + start + element, (value - centre).to(out.dtype.element_ty), mask=inside)
