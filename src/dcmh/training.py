"""The parts of a training run: batches, rates, pixels, and checkpoints from which a killed run goes on as if unbroken."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dcmh.data.columns import Images
from dcmh.errors import DataError
from dcmh.features import SIZE, decoded_batches, to_batch
from dcmh.files import whole_file

PIXELS_IN_MEMORY = 4 << 30  # bytes of decoded training pictures kept; beyond that each batch is decoded anew


def seed_everything(*numbers: int) -> None:
    """Seed torch from several numbers, such as seed, iteration and modality: a run can then start anew at any iteration."""
    torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1)))


def batches(rows: Tensor, size: int) -> list[Tensor]:
    """The rows in random order, in batches of one size; the few that are left over wait for the next iteration."""
    size = min(size, len(rows))
    order = torch.randperm(len(rows))
    return [rows[part.to(rows.device)] for part in order[: len(rows) // size * size].split(size)]


def cosine(step: int, steps: int, *, warm_up: float = 0.05) -> float:
    """Share of the learning rate at a step: a short rise, then half a cosine down to 0."""
    return min(1.0, (step + 1) / max(1.0, warm_up * steps)) * (0.5 + 0.5 * math.cos(math.pi * step / steps))


def log_spaced(step: int, steps: int, *, first: float = 10**-1.5, last: float = 10**-3) -> float:
    """The authors' learning rate: from first to last, evenly in its logarithm."""
    return float(first * (last / first) ** (step / max(1, steps - 1)))


class Pixels:
    """Decoded training pictures: kept in memory as bytes when they fit, decoded batch by batch when not."""

    def __init__(self, column: Images, device: torch.device) -> None:
        self.column = column
        self.device = device
        self.kept: Tensor | None = None
        if len(column) * SIZE * SIZE * 3 <= PIXELS_IN_MEMORY:
            self.kept = torch.zeros(len(column), SIZE, SIZE, 3, dtype=torch.uint8)
            for rows, pixels in decoded_batches(column, np.flatnonzero(column.observed).tolist()):
                self.kept[rows] = torch.from_numpy(pixels)
            self.kept = self.kept.to(device)

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Pixels (n, 3, 224, 224), 0..255, of some rows."""
        if self.kept is not None:
            return to_batch(self.kept[rows.to(self.kept.device)], self.device)
        (_, pixels), *_ = decoded_batches(self.column, rows.tolist(), batch=len(rows))
        return to_batch(pixels, self.device)


@dataclass
class Side:
    """One modality during training."""

    name: str
    network: nn.Module
    optimiser: torch.optim.Optimizer
    inputs: Tensor | Pixels  # (n, width)
    rows: Tensor  # the training points that have this modality
    outputs: Tensor  # the paper's F or G, (n, bits): of each point's last visit; zero where the modality is missing

    @torch.no_grad()
    def at_rest(self, rows: Tensor) -> Tensor:
        """The network's outputs without dropout, (rows, bits)."""
        self.network.eval()
        return torch.cat([self.network(self.inputs[part]) for part in rows.split(256)])


@dataclass
class Run:
    """The state of the alternating algorithm."""

    sides: list[Side]
    labels: Tensor  # (n, labels)
    B: Tensor  # (n, bits)
    held_out: NDArray[np.intp]  # training points that are only looked at
    epoch: int = 0

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

        self.B = tensors["B"].to(self.B.device)
        for side in self.sides:
            side.outputs.copy_(tensors[f"{side.name}/outputs"])
            side.network.load_state_dict(of(f"{side.name}/network/"))
            _remember(side.optimiser, of(f"{side.name}/optimiser/"))


class Checkpoint:
    """One file with networks, optimisers, buffers and codes after a whole iteration.

    `identity` names the run (its settings and data): the checkpoint of another run is refused.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path = Path(path)
        self.identity = identity

    def write(self, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        from safetensors.torch import save_file

        said = {"identity": self.identity, "record": json.dumps(record)}
        with whole_file(self.path) as draft:
            save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, draft, said)

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and record, or None where there is no checkpoint yet."""
        from safetensors import SafetensorError, safe_open

        if not self.path.is_file():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                said = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (OSError, SafetensorError) as error:
            raise DataError(f"The checkpoint {self.path} is damaged ({error}). Delete it to start anew.") from error
        if said.get("identity") != self.identity:
            raise DataError(
                f"The checkpoint {self.path} is of another run (other settings, data or version). "
                "Repeat the command that was interrupted, or leave --resume out to start anew."
            )
        return tensors, json.loads(said["record"])

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


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
    """Undo `_memory`."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        i, key = name.split(".", 1)
        state.setdefault(int(i), {})[key] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate; a group with a `share` takes that share of it."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group.get("share", 1.0)
