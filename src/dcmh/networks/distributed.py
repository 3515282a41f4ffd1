"""Several processes that train one model, started by torchrun: each runs the image network on its share of every batch.

All processes hold the same data, buffers and codes, and draw the same random numbers. An image network is wrapped in
DistributedDataParallel and sees 1/world of the batch; the features are gathered, so that the hash layers, the objective, F, G
and B are the same everywhere, and the same as one process gives. Hash layers on cached features are small: each process
computes them whole.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from dcmh.errors import ParameterError


def world() -> int:
    """How many processes train together."""
    return torch.distributed.get_world_size() if _started() else 1


def rank() -> int:
    """Which of them this is; 0 writes the model and talks."""
    return torch.distributed.get_rank() if _started() else 0


def launched() -> bool:
    """Whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def join(device: str) -> torch.device:
    """Meet the other processes of torchrun; the device of this one: its own GPU, or the CPU."""
    cuda = device != "cpu" and torch.cuda.is_available()
    target = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(target)
    if not _started():
        torch.distributed.init_process_group("nccl" if cuda else "gloo")
    return target


def leave() -> None:
    """Part from the other processes."""
    if _started():
        torch.distributed.destroy_process_group()


def wait() -> None:
    """Until all processes are here."""
    if _started():
        torch.distributed.barrier()


def any_of(said: bool) -> bool:
    """Whether any process says so; all must ask."""
    if world() == 1:
        return said
    votes = torch.tensor(float(said), device="cuda" if torch.distributed.get_backend() == "nccl" else "cpu")
    torch.distributed.all_reduce(votes)
    return bool(votes > 0)


def share(batch: Tensor) -> Tensor:
    """This process's part of a batch: (batch / world,)"""
    if len(batch) % world():
        raise ParameterError(
            f"A batch of {len(batch)} does not divide among {world()} processes. Choose another --batch-size."
        )
    return batch.chunk(world())[rank()]


def parallel(backbone: nn.Module) -> nn.Module:
    """The image network with its gradients averaged over the processes."""
    return nn.parallel.DistributedDataParallel(backbone, gradient_as_bucket_view=True)


def gather(features: Tensor) -> Tensor:
    """All processes' rows, in order; each row's gradient goes back to the process that made it."""
    return _Gather.apply(features)  # type: ignore[no-any-return, no-untyped-call]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mine: Tensor) -> Tensor:
        ctx.rows = len(mine)
        parts = [torch.empty_like(mine) for _ in range(world())]
        torch.distributed.all_gather(parts, mine.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        # Every process holds the whole gradient. DistributedDataParallel averages, and the sum is wanted: hence the factor.
        return gradient[rank() * ctx.rows : (rank() + 1) * ctx.rows] * world()


def _started() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
