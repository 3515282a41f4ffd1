"""The likelihood of a batch against all points, with its gradient, without keeping anything of size batch x n.

The terms are those of `objective`, computed for one block of points at a time. The gradient with respect to the batch's
outputs, (sigma(Theta) - S) G / 2, is summed along the way, so autograd need not keep any matrices. On a GPU one kernel does all
of this (`dcmh.networks.gpu.likelihood_kernel`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dcmh.methods.dcmh import objective
from dcmh.methods.dcmh.similarity import SharedLabels, Similarity
from dcmh.util import device as devices

BLOCK = 1 << 20  # elements of batch x points at a time
MAX_KERNEL_BITS = 256  # that the GPU's kernel takes


class Form(NamedTuple):
    """Theta = scale F G' / 2 + shift, and S from `smoothing` to 1 - `smoothing`; the paper's own by default."""

    scale: float = 1.0
    shift: float = 0.0
    smoothing: float = 0.0


PAPER = Form()


def batch_likelihood(
    outputs: Tensor,
    others: Tensor,
    similarity: Similarity,
    batch: Tensor,
    *,
    form: Form = PAPER,
    observed: Tensor | None = None,
) -> Tensor:
    """Negative log-likelihood, summed over the batch x all points; it can be differentiated for `outputs`.

    Parameters
    ----------
    outputs, batch
        F of the batch, (batch, bits), and which points these are.
    others
        G of all points, (n, bits).
    observed
        Which points have the other modality, (n,); the others do not count. Default: all.
    """
    F = outputs.detach()
    if isinstance(similarity, SharedLabels) and similarity.words is not None and _fits_kernel(F):
        from dcmh.networks.gpu.likelihood_kernel import likelihood_and_gradient

        total, gradient = likelihood_and_gradient(F, others, batch, similarity.words, *form, observed)
        return with_gradient(outputs, total, gradient)
    total, gradient = F.new_zeros(()), torch.zeros_like(F)
    block = max(1, BLOCK // len(F))
    for start in range(0, len(others), block):
        G = others[start : start + block]  # (points, bits)
        S = similarity.S(batch, start, start + len(G))  # (batch, points)
        W = similarity.W(S, batch, start, start + len(G))
        if observed is not None:
            counts = observed[start : start + block].to(S.dtype)  # (points,)
            W = counts if W is None else W * counts
        if form.smoothing:
            S = S.mul_(1 - 2 * form.smoothing).add_(form.smoothing)
        Theta = objective.theta(F, G).mul_(form.scale).add_(form.shift)
        total += objective.likelihood(Theta, S, W)
        error = Theta.sigmoid_().sub_(S)
        gradient.addmm_(error if W is None else error.mul_(W), G, alpha=form.scale / 2)
    return with_gradient(outputs, total, gradient)


def with_gradient(outputs: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
    """A value whose gradient with respect to `outputs` is known already."""
    return _WithGradient.apply(outputs, value, gradient)  # type: ignore[no-any-return, no-untyped-call]


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return upstream * gradient, None, None


def share_of_similar(similarity: Similarity, points: int, device: torch.device) -> float:
    """The share of similar pairs by weight, estimated from 256 evenly spaced points against all."""
    rows = torch.arange(0, points, max(1, points // 256), device=device)
    similar = total = 0.0
    block = max(1, BLOCK // len(rows))
    for start in range(0, points, block):
        S = similarity.S(rows, start, min(start + block, points))
        W = similarity.W(S, rows, start, min(start + block, points))
        similar += float(S.sum() if W is None else (S * W).sum())
        total += float(S.numel() if W is None else W.sum())
    return similar / max(total, 1e-12)


def _fits_kernel(outputs: Tensor) -> bool:
    """Whether the GPU's kernel takes these outputs."""
    return outputs.dtype == torch.float32 and outputs.shape[1] <= MAX_KERNEL_BITS and devices.has_triton()
