"""What CNN-F's first convolution takes on a GPU, from bytes in one pass: pixels less their mean, in blocks seen as channels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 1024


def centred_blocks(pixels: Tensor, mean: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """`blocks(pixels - mean, size)` of `dcmh.networks.cnnf`, for pixels (n, 3, height, width), channels last."""
    n, channels, height, width = pixels.shape
    shape = (n, size * size * channels, height // size, width // size)
    out = torch.empty(shape, dtype=dtype, device=pixels.device, memory_format=torch.channels_last)
    numbers = (out.numel(), height, width, channels, size)
    _blocks[(triton.cdiv(out.numel(), ELEMENTS),)](pixels, mean, out, *numbers, ELEMENTS)
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
