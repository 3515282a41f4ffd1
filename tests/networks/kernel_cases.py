"""Each Triton kernel against plain PyTorch on a CPU: run by test_kernels.py in a process of its own, on a GPU or interpreted."""

import os

import torch
from torch.nn import functional

from dcmh.methods.dcmh.likelihood import Form, batch_likelihood
from dcmh.methods.dcmh.similarity import SharedLabels, label_bits
from dcmh.networks import cnnf_layers
from dcmh.networks.cnnf_layers import ALPHA, K
from dcmh.networks.gpu import cnnf_kernels, likelihood_kernel

torch.manual_seed(0)
last = torch.channels_last
place = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"  # where the kernels run


def maps(*shape, scale=30.0):
    return (torch.randn(*shape) * scale).to(memory_format=last)


def compare(ours, theirs, *inputs, tolerance=1e-5):
    """Two functions of the same inputs: their values, and their gradients for one gradient of the values."""
    results = []
    for function, where in ((ours, place), (theirs, "cpu")):
        given = [value.detach().to(where, copy=True).requires_grad_() for value in inputs]
        value = function(*given)
        torch.manual_seed(1)
        results.append([value, *torch.autograd.grad(value, given, torch.randn(value.shape).to(where))])
    for mine, stock in zip(*results, strict=True):
        torch.testing.assert_close(mine.cpu(), stock, rtol=tolerance, atol=tolerance * stock.abs().max().item())


def bias_relu():
    cnnf_kernels.PROGRAMS = 3  # so that each goes over several tiles
    cnnf_kernels.RELU_TILE = 64
    for shape in ((2, 16, 3, 5), (1, 128, 4, 4)):
        x, bias = maps(*shape), torch.randn(shape[1]) * 20
        compare(cnnf_kernels.bias_relu, lambda x, b: functional.relu(x + b[:, None, None]), x, bias)


def relu_lrn():
    cnnf_kernels.PROGRAMS = 3
    cnnf_kernels.LRN_TILE = 64
    for shape in ((2, 16, 3, 5), (1, 64, 5, 2)):
        x, bias = maps(*shape), torch.randn(shape[1]) * 20
        compare(lambda x, b: cnnf_kernels.relu_lrn(x, b, K, ALPHA), cnnf_layers.relu_lrn, x, bias)


def max_pool():
    for height, width, after in ((12, 12, 1), (9, 9, 0), (7, 10, 0)):
        x = functional.relu(maps(2, 16, height, width)) + 0.01 * torch.rand(2, 16, height, width)  # no two are equal

        def stock(x, after=after):
            return functional.max_pool2d(functional.pad(x, (0, after, 0, after)), 3, 2)

        size = stock(x).shape[2:]
        compare(lambda x, size=size: cnnf_kernels.max_pool(x, *size), stock, x.to(memory_format=last))


def centred_blocks():
    mean = torch.rand(3, 8, 12) * 255
    for pixels in (torch.randint(0, 256, (3, 8, 12, 3), dtype=torch.uint8), torch.rand(1, 8, 12, 3) * 255):
        pixels = pixels.permute(0, 3, 1, 2)
        for dtype in (torch.float32, torch.bfloat16):
            ours = cnnf_kernels.centred_blocks(pixels.to(place), mean.to(place), 4, dtype)
            assert ours.is_contiguous(memory_format=last)
            near = 0 if dtype == torch.float32 else 2**-7  # the interpreter cuts the last bit off, a GPU rounds
            torch.testing.assert_close(ours.cpu(), cnnf_layers.blocks(pixels - mean, 4).to(dtype), rtol=near, atol=0)


def likelihood_of_a_batch():
    rows, points, bits = 20, 150, 24
    outputs, others = torch.randn(rows, bits), torch.randn(points, bits)
    labels = (torch.rand(points, 40) < 0.05).to(torch.uint8)
    batch = torch.randperm(points)[:rows]
    similarity, words = SharedLabels(labels), label_bits(labels)
    for observed in (None, torch.rand(points) < 0.7):
        form = Form(1.5, -0.7, 0.02)
        given = [value.to(place) for value in (outputs, others, batch, words)]
        ours = likelihood_kernel.likelihood_and_gradient(
            *given, *form, None if observed is None else observed.to(place)
        )
        F = outputs.clone().requires_grad_()
        plain = batch_likelihood(F, others, similarity, batch, form=form, observed=observed)
        theirs = plain.detach(), *torch.autograd.grad(plain, F)
        for mine, stock in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine.cpu(), stock, rtol=1e-4, atol=1e-4 * stock.abs().max().item())


def not_a_number():
    """What has gone wrong is passed on, not turned into 0; sums of squares beyond float32 give 0, as in PyTorch."""
    x, bias = maps(1, 16, 4, 4), torch.zeros(16)
    x[0, 3, 1, 1] = float("nan")
    given = x.to(place), bias.to(place)
    assert cnnf_kernels.bias_relu(*given)[0, 3, 1, 1].isnan()
    assert cnnf_kernels.relu_lrn(*given, K, ALPHA)[0, 1:6, 1, 1].isnan().all()
    assert cnnf_kernels.max_pool(given[0], 1, 1)[0, 3].isnan().all()
    x[0, 3, 1, 1] = 1e20
    given = x.to(place), bias.to(place)
    assert cnnf_kernels.relu_lrn(*given, K, ALPHA)[0, 3, 1, 1] == cnnf_layers.relu_lrn(x, bias)[0, 3, 1, 1] == 0


if __name__ == "__main__":
    for case in (bias_relu, relu_lrn, max_pool, centred_blocks, likelihood_of_a_batch, not_a_number):
        case()
