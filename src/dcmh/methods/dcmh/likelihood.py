"""The likelihood of a batch against all points, with its gradient, without keeping anything of size batch x n.

The terms are those of `objective`; here they are computed a block of points at a time, and the gradient with respect to
the batch's outputs, (sigma(Theta) - S) G / 2, is summed up on the way instead of being derived from kept matrices.
On a GPU one kernel does it all (`dcmh.networks.gpu.likelihood_kernel`).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from dcmh.methods.dcmh import objective
from dcmh.util import device as devices

BLOCK = 1 << 20  # elements of batch x points at a time
MOST_BITS = 256  # that the GPU's kernel takes


class Similarity(Protocol):
    """Where S comes from. `within`: whether it also tells of pairs within one modality."""

    within: bool

    def S(self, batch: Tensor, start: int, stop: int) -> Tensor:
        """S of the batch's points against points start to stop, (batch, stop - start), from 0 to 1."""
        ...

    def W(self, S: Tensor, batch: Tensor, start: int, stop: int) -> Tensor | None:
        """How much each of these pairs counts, the mean over all pairs being 1; None where all count alike."""
        ...


class SharedLabels:
    """S = 1 where two points share a label. Labels are (n, labels) of 0 and 1, kept as bytes, or as bits for a GPU's kernel."""

    within = True

    def __init__(self, labels: Tensor, dtype: torch.dtype = torch.float32) -> None:
        self.labels = labels.to(torch.uint8)
        self.dtype = dtype
        self.words = _words(self.labels) if labels.is_cuda else self.labels  # (n, words), int32

    def S(self, batch: Tensor, start: int, stop: int) -> Tensor:
        return objective.similarity(self.labels[batch].to(self.dtype), self.labels[start:stop].to(self.dtype))

    def W(self, S: Tensor, batch: Tensor, start: int, stop: int) -> Tensor | None:
        return None


def share_of_similar(similarity: Similarity, points: int, device: torch.device, *, sample: int = 256) -> float:
    """Of the pairs, by their weight; those of some points, evenly spaced, with all."""
    rows = torch.arange(0, points, max(1, points // sample), device=device)
    similar = everything = 0.0
    block = max(1, BLOCK // len(rows))
    for start in range(0, points, block):
        S = similarity.S(rows, start, min(start + block, points))
        W = similarity.W(S, rows, start, min(start + block, points))
        similar += float(S.sum() if W is None else (S * W).sum())
        everything += float(S.numel() if W is None else W.sum())
    return similar / max(everything, 1e-12)


def against_all(
    outputs: Tensor,
    others: Tensor,
    similarity: Similarity,
    batch: Tensor,
    *,
    reach: float = 1.0,
    shift: float = 0.0,
    softening: float = 0.0,
    there: Tensor | None = None,
) -> Tensor:
    """Negative log-likelihood, summed over the batch x all points; it can be differentiated for `outputs`.

    Parameters
    ----------
    outputs, batch
        F of the batch, (batch, bits), and which points these are.
    others
        G of all points, (n, bits).
    reach, shift
        Theta is multiplied by the first, then the second is added.
    softening
        S runs from `softening` to 1 - `softening`.
    there
        Which points have the other modality, (n,); the others do not count. Default: all.
    """
    form = Form(reach, shift, softening)
    return _AgainstAll.apply(outputs, others, similarity, batch, form, there)  # type: ignore[no-any-return, no-untyped-call]


class Form(NamedTuple):
    """Theta = reach F G' / 2 + shift; S from `softening` to 1 - `softening`."""

    reach: float
    shift: float
    softening: float


class _AgainstAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        outputs: Tensor,
        others: Tensor,
        similarity: Similarity,
        batch: Tensor,
        form: Form,
        there: Tensor | None,
    ) -> Tensor:
        outputs = outputs.detach()
        if isinstance(similarity, SharedLabels) and _fits_the_kernel(outputs):
            from dcmh.networks.gpu.likelihood_kernel import likelihood_and_gradient

            total, gradient = likelihood_and_gradient(outputs, others, batch, similarity.words, *form, there)
        else:
            total, gradient = _blockwise(outputs, others, similarity, batch, form, there)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return upstream * gradient, None, None, None, None, None


def _blockwise(
    outputs: Tensor, others: Tensor, similarity: Similarity, batch: Tensor, form: Form, there: Tensor | None
) -> tuple[Tensor, Tensor]:
    total = outputs.new_zeros(())
    gradient = torch.zeros_like(outputs)
    block = max(1, BLOCK // len(outputs))
    for start in range(0, len(others), block):
        part = others[start : start + block]  # (points, bits)
        S = similarity.S(batch, start, start + len(part))  # (batch, points)
        W = similarity.W(S, batch, start, start + len(part))
        if there is not None:
            known = there[start : start + block].to(S.dtype)  # (points,)
            W = known if W is None else W * known
        if form.softening:
            S = S.mul_(1 - 2 * form.softening).add_(form.softening)
        Theta = objective.theta(outputs, part).mul_(form.reach).add_(form.shift)
        total += objective.likelihood(Theta, S, W)
        error = Theta.sigmoid_().sub_(S)
        gradient.addmm_(error if W is None else error.mul_(W), part, alpha=form.reach / 2)
    return total, gradient


def _fits_the_kernel(outputs: Tensor) -> bool:
    """Whether the GPU's kernel can do the work."""
    small = outputs.shape[1] <= MOST_BITS
    return outputs.is_cuda and outputs.dtype == torch.float32 and small and devices.has_triton()


def _words(labels: Tensor) -> Tensor:
    """Labels (n, l) of 0 and 1 as bits of int32, (n, ceil(l / 31)): 31 to a word, the sign is left alone."""
    padded = torch.nn.functional.pad(labels, (0, -labels.shape[1] % 31)).view(len(labels), -1, 31)
    weights = 2 ** torch.arange(31, device=labels.device)
    return (padded.to(torch.int64) * weights).sum(-1).to(torch.int32)
