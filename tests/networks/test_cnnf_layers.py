"""ReLU and local response normalisation: against PyTorch's own, and its gradient against finite differences."""

import pytest
import torch
from torch.nn import functional

from dcmh.networks.cnnf_layers import relu_lrn


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_it_is_pytorchs_normalisation_after_a_relu(layout):
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(2, 16, 3, 5, generator=generator) * 50).to(memory_format=layout).requires_grad_()
    bias = (torch.randn(16, generator=generator) * 20).requires_grad_()
    ours = relu_lrn(x, bias)
    shifted = functional.relu(x + bias[:, None, None])
    theirs = functional.local_response_norm(shifted, 5, alpha=5e-4, beta=0.75, k=2.0)
    assert torch.allclose(ours, theirs, rtol=1e-5)
    upstream = torch.randn(ours.shape, generator=generator)
    for mine, stock in zip(*(torch.autograd.grad(y, (x, bias), upstream) for y in (ours, theirs)), strict=True):
        assert torch.allclose(mine, stock, rtol=1e-4, atol=1e-6)


def test_gradient_is_the_finite_difference():
    x = torch.randn(1, 7, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 20
    x.requires_grad_()
    bias = torch.tensor([1.0, -2, 3, 0, 5, -6, 7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(relu_lrn, (x, bias))
