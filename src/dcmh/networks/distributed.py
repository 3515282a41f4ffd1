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
from torch import Tensor

from dcmh.errors import ParameterError


def world() -> int:
    """The number of processes that train together."""
    return torch.distributed.get_world_size() if _started() else 1


def rank() -> int:
    """The number of this process; 0 writes the model and the messages."""
    return torch.distributed.get_rank() if _started() else 0


def launched() -> bool:
    """Whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def join(device: str) -> torch.device:
    """Join the process group of torchrun; returns the device of this process: its own GPU, or the CPU."""
    cuda = device != "cpu" and torch.cuda.is_available()
    target = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(target)
    if not _started():
        torch.distributed.init_process_group("nccl" if cuda else "gloo")
    return target


def leave() -> None:
    """Leave the process group."""
    if _started():
        torch.distributed.destroy_process_group()


def wait() -> None:
    """Wait until all processes get here."""
    if _started():
        torch.distributed.barrier()


def any_of(flag: bool) -> bool:
    """Whether the flag is set in any process; all must call this."""
    if world() == 1:
        return flag
    votes = torch.tensor(float(flag), device="cuda" if torch.distributed.get_backend() == "nccl" else "cpu")
    torch.distributed.all_reduce(votes)
    return bool(votes > 0)


def share(batch: Tensor) -> Tensor:
    """This process's share of a batch, (batch / world,)."""
    if len(batch) % world():
        raise ParameterError(
            f"A batch of {len(batch)} does not divide among {world()} processes. Choose another --batch-size."
        )
    return batch.chunk(world())[rank()]


def gather(features: Tensor) -> Tensor:
    """The rows of all processes, in order; each row's gradient goes back to the process it came from."""
    return _Gather.apply(features)  # type: ignore[no-any-return, no-untyped-call]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        ctx.rows = len(own)
        rows = [torch.empty_like(own) for _ in range(world())]
        torch.distributed.all_gather(rows, own.contiguous())
        return torch.cat(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        # Every process holds the whole gradient. The factor undoes that DistributedDataParallel averages instead of summing.
        return gradient[rank() * ctx.rows : (rank() + 1) * ctx.rows] * world()


def _started() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
