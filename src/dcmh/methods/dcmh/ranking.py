"""Average precision of a batch's codes against all points, in a form that can be differentiated.

Codes are measured by MAP, which the likelihood follows only loosely: it counts every pair alike, wherever it ranks.
Here each point of the batch is a query, and all points are ranked by the share of bits in which they differ from it, (1 - F G' /
bits) / 2 for outputs between -1 and 1. A pair falls between two of the BINS + 1 equidistant bins and counts in both, the more the
nearer. With p the similar pairs of a bin, and P and A the similar and all pairs up to it, AP = sum(p P / A) / sum(p): points at
the same distance are a tie, in which each has the precision after all of them. After Cakir et al., Deep Metric Learning to Rank,
CVPR 2019.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dcmh.methods.dcmh.likelihood import with_gradient
from dcmh.methods.dcmh.similarity import Similarity

BINS = 32
UNIT = 1 << 36  # a pair's share of a bin in fixed point
BLOCK = 1 << 21  # elements of batch x points at a time


def average_precision(
    outputs: Tensor, others: Tensor, similarity: Similarity, batch: Tensor, *, observed: Tensor | None = None
) -> Tensor:
    """The mean average precision of a batch; it can be differentiated for `outputs`. S must be 0 or 1.

    The gradient is computed with the value: autograd gives that of the histograms, which is looked up for each pair. The
    parameters are those of `dcmh.methods.dcmh.likelihood.batch_likelihood`.
    """
    known = outputs.detach()
    F, bits = known.clamp(-1, 1), known.shape[1]
    step = max(1, BLOCK // len(F))
    rows = torch.arange(len(F), device=F.device)[:, None] * (2 * (BINS + 1))

    def blocks() -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
        """Some points' G, the bin below each pair, the share that falls into the next one, and which points count."""
        for start in range(0, len(others), step):
            G = others[start : start + step].clamp(-1, 1)
            distance = (F @ G.T).mul_(-BINS / (2 * bits)).add_(BINS / 2)
            distance.nan_to_num_(0.0).clamp_(0, BINS - 1e-3)  # NaN has no bin; the likelihood reports it
            below = distance.to(torch.int64)
            share = distance.sub_(below)
            similar = similarity.S(batch, start, start + len(G)).to(torch.int64)
            counts = None if observed is None else observed[start : start + step]
            yield G, below.add_(similar.mul_(BINS + 1)).add_(rows), share, counts

    cached = list(blocks()) if len(others) <= step else None  # otherwise made twice, to save memory
    histogram = torch.zeros(len(F) * 2 * (BINS + 1), dtype=torch.int64, device=F.device)
    for _, below, share, counts in cached or blocks():  # whole numbers: their sum does not depend on the order
        upper = share.mul_(UNIT).to(torch.int64)
        lower = UNIT - upper
        if counts is not None:
            lower, upper = lower * counts, upper * counts
        histogram.scatter_add_(0, below.view(-1), lower.view(-1))
        histogram.scatter_add_(0, below.view(-1) + 1, upper.view(-1))
    histogram = histogram.to(F.dtype).div_(UNIT)  # of each query's dissimilar and similar pairs
    value, slopes = _of_histograms(histogram.view(len(F), 2, BINS + 1))
    slope = torch.nn.functional.pad(slopes.diff(), (0, 1)).view(-1)  # by the distance, within each bin
    gradient = torch.zeros_like(F)
    for G, below, _, counts in cached or blocks():
        slopes = slope[below]
        gradient.addmm_(slopes if counts is None else slopes.mul_(counts), G, alpha=-BINS / (2 * bits))
    return with_gradient(outputs, value, gradient.mul_(known.abs() <= 1))


def _of_histograms(histograms: Tensor) -> tuple[Tensor, Tensor]:
    """The mean average precision of histograms (queries, 2, bins), of dissimilar and of similar pairs; and its gradient."""
    with torch.enable_grad():
        histograms = histograms.detach().requires_grad_()
        similar = histograms[:, 1]
        precision = similar.cumsum(1) / histograms.sum(1).cumsum(1).clamp(min=1e-6)
        value = ((similar * precision).sum(1) / similar.sum(1).clamp(min=1)).mean()
        (slopes,) = torch.autograd.grad(value, histograms)
    return value.detach(), slopes
