"""The likelihood of a batch against all points and its gradient as one Triton kernel: batch x n never reaches memory.

Each program walks over blocks of points: Theta of a block by a matrix product, S by comparing label bits, then the block's
part of the sum and of the gradient. The programs' parts are added up at the end, so that the result does not depend on
which of them finishes first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 132  # one for each multiprocessor of a large GPU


def likelihood_and_gradient(
    outputs: Tensor,
    others: Tensor,
    batch: Tensor,
    words: Tensor,
    scale: float,
    shift: float,
    smoothing: float,
    observed: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The sum of softplus(Theta) - S Theta, a scalar, and its gradient (batch, bits); Theta = scale F G' / 2 + shift.

    `words` are the labels as bits, (n, words) of int32; `observed` says which points count, (n,).
    """
    rows, bits = outputs.shape
    padded = max(16, triton.next_power_of_2(bits))
    tile = 64 if padded <= 64 else 32  # rows of the batch that a program holds
    block = 64 if padded <= 128 else 32  # points at a time
    programs = min(PROGRAMS, triton.cdiv(len(others), block))
    sums = torch.empty(programs, rows, device=outputs.device)
    gradients = torch.empty(programs, rows, bits, device=outputs.device)
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    _kernel[(programs, triton.cdiv(rows, tile))](
        outputs.contiguous(),
        others.contiguous(),
        words[batch],
        words,
        sums,
        gradients,
        words if observed is None else observed,
        rows,
        len(others),
        scale / 2,
        shift,
        smoothing,
        1 - 2 * smoothing,
        bits,
        padded,
        words.shape[1],
        tile,
        block,
        observed is not None,
        precision,
        num_warps=4,
    )
    return sums.sum(), gradients.sum(0)


@triton.jit
def _kernel(
    outputs,
    others,
    batch_words,
    words,
    sums,
    gradients,
    observed,
    rows,
    points,
    half_scale,
    shift,
    low,
    span,
    BITS: tl.constexpr,
    PADDED: tl.constexpr,
    WORDS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    SOME: tl.constexpr,
    PRECISION: tl.constexpr,
):
    program = tl.program_id(0)
    row = tl.program_id(1) * TILE + tl.arange(0, TILE)
    bit = tl.arange(0, PADDED)
    here = (row < rows)[:, None] & (bit < BITS)[None, :]
    F = tl.load(outputs + row[:, None] * BITS + bit[None, :], mask=here, other=0.0)
    gradient = tl.zeros((TILE, PADDED), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    for start in range(program * BLOCK, points, tl.num_programs(0) * BLOCK):
        point = start + tl.arange(0, BLOCK)
        inside = point < points
        offset = point.to(tl.int64)[:, None] * BITS + bit[None, :]
        G = tl.load(others + offset, mask=inside[:, None] & (bit < BITS)[None, :], other=0.0)
        Theta = tl.dot(F, tl.trans(G), input_precision=PRECISION) * half_scale + shift
        shared = tl.zeros((TILE, BLOCK), tl.int32)
        for word in tl.static_range(WORDS):
            mine = tl.load(batch_words + row * WORDS + word, mask=row < rows, other=0)
            theirs = tl.load(words + point.to(tl.int64) * WORDS + word, mask=inside, other=0)
            shared |= mine[:, None] & theirs[None, :]
        if SOME:
            inside = inside & (tl.load(observed + point, mask=inside, other=0) != 0)
        S = tl.where(shared != 0, low + span, low)
        softplus = tl.maximum(Theta, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(Theta)))
        total += tl.sum(tl.where(inside[None, :], softplus - S * Theta, 0.0), 1)
        error = tl.where(inside[None, :], 1.0 / (1.0 + tl.exp(-Theta)) - S, 0.0)
        gradient += tl.dot(error, G, input_precision=PRECISION)
    tl.store(sums + program * rows + row, total, mask=row < rows)
    offset = (program * rows + row)[:, None] * BITS + bit[None, :]
    tl.store(gradients + offset, gradient * half_scale, mask=here)
