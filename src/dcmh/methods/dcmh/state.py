"""The parts of a training run: batches, rates, recorded steps, and all that a killed run needs to go on as if unbroken."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dcmh.methods.dcmh.gpu import Pixels
from dcmh.methods.dcmh.likelihood import Form, Similarity, against_all
from dcmh.networks import distributed


def seed_everything(*numbers: int) -> None:
    """Seed torch from several numbers, such as seed, iteration and modality: a run can then start anew at any iteration."""
    torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1)))


def batches(rows: Tensor, size: int) -> list[Tensor]:
    """The rows in random order, in batches of one size; the few that are left over wait for the next iteration."""
    size = min(size, len(rows))
    order = torch.randperm(len(rows))[: len(rows) // size * size]
    return list(rows[order.to(rows.device)].split(size))


def cosine(step: int, steps: int, *, warm_up: float = 0.05) -> float:
    """Share of the learning rate at a step: a short rise, then half a cosine down to 0."""
    return min(1.0, (step + 1) / max(1.0, warm_up * steps)) * (0.5 + 0.5 * math.cos(math.pi * step / steps))


def log_spaced(step: int, steps: int, *, first: float = 10**-1.5, last: float = 10**-3) -> float:
    """The authors' learning rate: from first to last, evenly in its logarithm."""
    return float(first * (last / first) ** (step / max(1, steps - 1)))


class Step:
    """One gradient step, taken many times. On a GPU it is recorded once and then replayed as a whole (a CUDA graph), which
    saves launching its hundreds of small kernels one by one."""

    WARM_UP = 3  # steps before the recording, in which libraries choose their kernels

    def __init__(self, work: Callable[[Tensor, Tensor], None], *, record: bool) -> None:
        self.work = work
        self.record = record
        self.taken = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, inputs: Tensor, batch: Tensor) -> None:
        if not self.record:
            self.work(inputs, batch)
        elif self.taken < self.WARM_UP:
            self._aside(inputs, batch)
        else:
            if self.graph is None:
                self.inputs, self.batch = inputs.clone(), batch.clone()
                self.graph = torch.cuda.CUDAGraph()
                # What other threads do meanwhile, such as sending the next batches, is no part of it and no mistake.
                with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                    self.work(self.inputs, self.batch)
            else:
                self.inputs.copy_(inputs)
                self.batch.copy_(batch)
            self.graph.replay()
        self.taken += 1

    def forget(self) -> None:
        """The recording, when the work has changed."""
        self.graph, self.taken = None, 0

    def _aside(self, inputs: Tensor, batch: Tensor) -> None:
        """On a stream of its own, as a recording asks for."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.work(inputs, batch)
        torch.cuda.current_stream().wait_stream(side)


@dataclass
class Side:
    """One modality during training."""

    name: str
    network: nn.Module
    optimiser: torch.optim.Optimizer
    inputs: Tensor | Pixels  # (n, width)
    rows: Tensor  # the training points that have this modality
    outputs: Tensor  # the paper's F or G, (n, bits): of each point's last visit; zero where the modality is missing
    features: Tensor | None = None  # of pixels by the image network while it rests, (n, width)
    step: Step = field(init=False)
    there: Tensor | None = None  # which points have this modality, (n,); None: all
    total: Tensor = field(init=False)  # the sum of the outputs over all points, (bits,)
    losses: Tensor = field(init=False)  # the three terms, summed over an iteration's batches

    def __post_init__(self) -> None:
        self.total = self.outputs.sum(0)
        self.losses = self.outputs.new_zeros(3)
        if len(self.rows) < len(self.outputs):
            self.there = torch.zeros(len(self.outputs), dtype=torch.bool, device=self.rows.device)
            self.there[self.rows] = True

    def wake(self) -> None:
        """From now on the image network learns, from pixels."""
        if self.features is not None:
            self.features = None
            self.step.forget()  # it was recorded with features

    @property
    def seen(self) -> Tensor | Pixels:
        """What the network learns from now."""
        return self.inputs if self.features is None else self.features

    def stream(self, batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """The network's inputs for each batch; of pixels, only the share of this process."""
        seen = self.seen
        if isinstance(seen, Pixels):
            return seen.stream([distributed.share(batch) for batch in batches])
        return (seen[batch] for batch in batches)

    def output(self, inputs: Tensor) -> Tensor:
        """What the network makes of a batch of `stream`, (batch, bits)."""
        if isinstance(self.seen, Pixels):
            inputs = inputs.permute(0, 3, 1, 2)
        return self.network(inputs)  # type: ignore[no-any-return]

    def visit(self, batch: Tensor, outputs: Tensor) -> None:
        """Put a batch's new outputs in place of the old ones."""
        self.total += (outputs - self.outputs[batch]).sum(0)
        self.outputs[batch] = outputs

    @torch.no_grad()
    def at_rest(self, rows: Tensor) -> Tensor:
        """The network's outputs without dropout, (rows, bits)."""
        self.network.eval()
        return torch.cat([self.network(self.seen[part]) for part in rows.split(256)])


@dataclass
class Run:
    """The state of the alternating algorithm."""

    sides: list[Side]
    similarity: Similarity  # S
    labels: NDArray[np.uint8] | None  # (n, labels)
    B: Tensor  # (n, bits)
    held_out: NDArray[np.intp]  # training points that are only looked at
    form: Form  # of Theta and S
    epoch: int = 0
    growth: Tensor = field(init=False)  # the share of gamma that counts now

    def __post_init__(self) -> None:
        self.growth = self.B.new_ones(())

    def against(self, side: Side, outputs: Tensor, batch: Tensor) -> Tensor:
        """The likelihood of a batch's outputs against all points of a modality, summed."""
        return against_all(outputs, side.outputs, self.similarity, batch, **self.form._asdict(), there=side.there)

    @property
    def resting(self) -> bool:
        """Whether an image network rests that will learn later."""
        return any(side.features is not None for side in self.sides)

    def wake(self, *, anew: bool) -> None:
        """Image networks that rested learn from now on. With `anew` this part of the run begins: optimisers forget."""
        for side in self.sides:
            side.wake()
            if anew:
                side.optimiser.state.clear()
                side.step.forget()

    def tensors(self) -> dict[str, Tensor]:
        """Everything that the next iteration depends on, by name."""
        tensors = {"B": self.B}
        for side in self.sides:
            tensors[f"{side.name}/outputs"] = side.outputs
            tensors |= {f"{side.name}/network/{key}": value for key, value in side.network.state_dict().items()}
            tensors |= {f"{side.name}/optimiser/{key}": value for key, value in _memory(side.optimiser).items()}
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Undo `tensors`."""

        def of(prefix: str) -> dict[str, Tensor]:
            return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}

        self.B.copy_(tensors["B"])
        for side in self.sides:
            side.outputs.copy_(tensors[f"{side.name}/outputs"])
            side.network.load_state_dict(of(f"{side.name}/network/"))
            _remember(side.optimiser, of(f"{side.name}/optimiser/"))


def _memory(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's memory as named tensors."""
    state = optimiser.state_dict()["state"]
    return {
        f"{i}.{key}": torch.as_tensor(value)
        for i, entry in state.items()
        for key, value in entry.items()
        if value is not None
    }


def _remember(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Undo `_memory`. What belongs to a parameter lies in memory as the parameter does: fused optimisers rely on it."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        i, key = name.split(".", 1)
        if value.shape == parameters[int(i)].shape:
            value = torch.empty_like(parameters[int(i)], dtype=value.dtype).copy_(value)
        state.setdefault(int(i), {})[key] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate; a group with a `share` takes that share of it."""
    for group in optimiser.param_groups:
        value = rate * group.get("share", 1.0)
        if isinstance(group["lr"], Tensor):  # on a GPU, where a recorded step reads it
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def channels_last(network: nn.Module) -> nn.Module:
    """The network with its convolutions' weights in the order in which pixels come."""
    return network.to(memory_format=torch.channels_last)  # type: ignore[no-any-return, call-overload]


def on_gpu(network: nn.Module) -> bool:
    return next(network.parameters()).is_cuda


def recordable(optimiser: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Keep the learning rate on the GPU, if the parameters are there: a recorded step then reads the rate of the moment."""
    for group in optimiser.param_groups:
        if group["params"][0].is_cuda:
            group["lr"] = torch.tensor(float(group["lr"]), device=group["params"][0].device)
    return optimiser
