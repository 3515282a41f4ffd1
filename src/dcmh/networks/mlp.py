"""Fully connected hash networks: the paper's text network, and ours for feature vectors and words.

`HashMLP` is what the default recipe trains: standardise, hidden layer, batch normalisation, ReLU, dropout, linear.
In evaluation mode its parts are affine, so that `layers()` folds it into plain (weight, bias) pairs with ReLU between them;
that is what a model folder holds, and what a word query runs in NumPy.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

Layers = list[tuple[Tensor, Tensor]]  # weight (inputs, outputs), bias (outputs,): x @ weight + bias


class TextNetwork(nn.Module):
    """The paper's text network: three fully connected layers of (words), 4096 and (bits) nodes; ReLU, ReLU, identity."""

    def __init__(self, words: int, bits: int, *, hidden: int = 4096) -> None:
        super().__init__()
        self.full1 = nn.Linear(words, words)
        self.full2 = nn.Linear(words, hidden)
        self.full3 = nn.Linear(hidden, bits)
        for layer in (self.full1, self.full2, self.full3):  # as in the authors' code: N(0, 0.01^2), biases too
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.normal_(layer.bias, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        return self.full3(functional.relu(self.full2(functional.relu(self.full1(x)))))  # type: ignore[no-any-return]

    def layers(self) -> Layers:
        """The network as plain layers: ReLU after each but the last."""
        layers = (self.full1, self.full2, self.full3)
        return [(layer.weight.detach().T.contiguous(), layer.bias.detach()) for layer in layers]


class WordLinear(nn.Module):
    """A linear layer for bags of words: it reads and updates only the rows of the words that a batch holds.

    Its weight lies as (words, outputs), so that one word is one contiguous row. On a CPU this is about five times faster
    than the dense product at 128 captions x 1,800 words x 4,096 outputs.
    """

    def __init__(self, words: int, outputs: int) -> None:
        super().__init__()
        bound = words**-0.5  # what nn.Linear uses
        self.weight = nn.Parameter(torch.empty(words, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            return torch.addmm(self.bias, x, self.weight)
        return self.bias + _WordProduct.apply(x, self.weight)  # type: ignore[no-any-return, no-untyped-call]


class _WordProduct(torch.autograd.Function):
    """x @ weight for an x that is mostly zeros and needs no gradient itself."""

    @staticmethod
    def forward(ctx, x, weight):  # type: ignore[no-untyped-def]
        items, words = x.nonzero(as_tuple=True)
        counts = x[items, words][:, None]
        ctx.save_for_backward(items, words, counts)
        ctx.words = len(weight)
        return weight.new_zeros(len(x), weight.shape[1]).index_add_(0, items, weight[words] * counts)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        items, words, counts = ctx.saved_tensors
        rows = gradient.new_zeros(ctx.words, gradient.shape[1])
        return None, rows.index_add_(0, words, gradient[items] * counts)


class Dropout(nn.Module):
    """nn.Dropout whose CPU mask is drawn from one byte per element: eight times fewer random numbers, six times faster there."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.share == 0:
            return x
        if x.is_cuda:
            return functional.dropout(x, self.share)
        drawn = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
        bytes_ = drawn.view(torch.uint8)[: x.numel()].view_as(x)
        dropped = min(255, round(self.share * 256))  # of 256 byte values
        return x * ((bytes_ >= dropped).to(x.dtype) * (256 / (256 - dropped)))


class HashMLP(nn.Module):
    """Inputs (n, inputs) to outputs (n, bits) by one hidden layer.

    The first `words` inputs are a bag of words, taken as they are. The others are feature vectors, standardised with the
    training set's mean and deviation (`standardise`), so that their scale does not matter; beside a bag of words they are scaled
    down to BESIDE_WORDS of that. `hidden=0` leaves the hidden layer out.
    """

    BESIDE_WORDS = 0.3

    shift: Tensor
    scale: Tensor

    def __init__(self, inputs: int, bits: int, *, hidden: int, dropout: float, words: int = 0) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(inputs))
        self.words = words
        self.first: nn.Module = nn.Identity()
        self.norm: nn.Module = nn.Identity()
        self.beside: nn.Module = nn.Identity()
        if hidden:
            self.first = WordLinear(words, hidden) if words else nn.Linear(inputs, hidden)
            self.norm = nn.BatchNorm1d(hidden)
            if 0 < words < inputs:
                self.beside = nn.Linear(inputs - words, hidden, bias=False)
        self.feature_dropout = Dropout(0.0)
        self.dropout = Dropout(dropout)
        self.last = nn.Linear(hidden or inputs, bits)

    @torch.no_grad()
    def standardise(self, x: Tensor) -> None:
        """Learn each feature's mean and deviation from the training set (n, inputs); constant features become 0."""
        deviation, mean = torch.std_mean(x[:, self.words :], dim=0)
        weight = self.BESIDE_WORDS if self.words else 1.0
        self.shift[self.words :] = mean
        self.scale[self.words :] = torch.where(
            deviation > 1e-6 * (1 + mean.abs()), weight / deviation.clamp(min=1e-12), 0.0
        )

    @torch.no_grad()
    def start_at(self, x: Tensor, size: float) -> None:
        """Scale and shift the last layer so that each bit's first outputs have mean 0 and deviation `size`.

        Near 0 the likelihood's gradient vanishes, far out it saturates; the scale of the input must not decide which.
        """
        was_training = self.training
        outputs = self.train()(x)
        self.train(was_training)
        deviation, mean = torch.std_mean(outputs, dim=0)
        gain = size / deviation.clamp(min=1e-6)
        self.last.weight.mul_(gain[:, None])
        self.last.bias.sub_(mean).mul_(gain)

    @torch.no_grad()
    def turn_to(self, directions: Tensor) -> None:
        """Without a hidden layer: let the outputs be the projections of centred inputs on directions (inputs, bits)."""
        self.last.weight.copy_((directions / self.scale.clamp(min=1e-12)[:, None]).T)
        self.last.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        if self.words < x.shape[1]:
            x = self.feature_dropout((x - self.shift) * self.scale)
        if not isinstance(self.first, nn.Identity):
            hidden = self.first(x[:, : self.words] if self.words else x)
            if not isinstance(self.beside, nn.Identity):
                hidden = hidden + self.beside(x[:, self.words :])
            x = functional.relu(self.norm(hidden))
        return self.last(self.dropout(x))  # type: ignore[no-any-return]

    @torch.no_grad()
    def layers(self) -> Layers:
        """The network in evaluation mode as plain layers: ReLU after each but the last."""
        last = (self.last.weight.T.contiguous(), self.last.bias.clone())
        if isinstance(self.first, nn.Identity):
            return [_fold_input(*last, self.shift, self.scale)]
        assert isinstance(self.norm, nn.BatchNorm1d)
        assert isinstance(self.first, nn.Linear | WordLinear)
        assert self.norm.running_mean is not None
        assert self.norm.running_var is not None
        weight = self.first.weight if self.words else self.first.weight.T  # (inputs, hidden)
        if isinstance(self.beside, nn.Linear):
            weight = torch.cat([weight, self.beside.weight.T])
        gain = self.norm.weight / torch.sqrt(self.norm.running_var + self.norm.eps)  # (hidden,)
        bias = (self.first.bias - self.norm.running_mean) * gain + self.norm.bias
        weight = weight * gain
        if self.words < len(weight):
            weight, bias = _fold_input(weight, bias, self.shift, self.scale)
        return [(weight.contiguous(), bias), last]


def _fold_input(weight: Tensor, bias: Tensor, shift: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """((x - shift) * scale) @ weight + bias as one linear layer of x."""
    weight = weight * scale[:, None]
    return weight, bias - shift @ weight


class FoldedMLP(nn.Module):
    """Plain layers with ReLU between them: what `layers()` of the networks above gives, and what model folders keep."""

    def __init__(self, layers: Layers) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(weight, requires_grad=False) for weight, _ in layers])
        self.biases = nn.ParameterList([nn.Parameter(bias, requires_grad=False) for _, bias in layers])

    def forward(self, x: Tensor) -> Tensor:
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.addmm(bias, x if i == 0 else functional.relu(x), weight)
        return x
