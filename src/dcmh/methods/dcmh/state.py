"""The state of a training: each modality's network and outputs, the codes, and the checkpoint that a killed run resumes from."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dcmh import codes
from dcmh.errors import DamagedError, DataError
from dcmh.evaluation import metrics
from dcmh.methods.dcmh.gpu import Pixels, StepRecorder
from dcmh.methods.dcmh.likelihood import Form
from dcmh.methods.dcmh.similarity import Similarity
from dcmh.networks import distributed
from dcmh.util.atomic import whole_file
from dcmh.util.checksums import KEY, UNSEALED, check_sealed_file, seal_file
from dcmh.util.formats import check_types, parse_json, readable

CHECKPOINT_SECONDS = 15.0  # between two checkpoints
MIN_HELD_OUT = 10  # points: fewer say too little


@dataclass(eq=False)
class Side:
    """One modality during training: theta_x and F of the paper, or theta_y and G."""

    name: str
    network: nn.Module
    optimiser: torch.optim.Optimizer
    inputs: Tensor | Pixels  # (n, width)
    rows: Tensor  # the training points that have this modality
    outputs: Tensor  # F or G, (n, bits): of each point's last visit; zero where the modality is missing
    batch_size: int
    features: Tensor | None = None  # of the pixels, (n, width), while the image network is frozen
    recorder: StepRecorder = field(default_factory=StepRecorder)
    observed: Tensor | None = None  # which points have this modality, (n,); None: all
    total: Tensor = field(init=False)  # F 1, the sum of the outputs over all points, (bits,)
    losses: Tensor = field(init=False)  # the three terms, summed over an iteration's batches

    def __post_init__(self) -> None:
        self.batch_size = min(self.batch_size, len(self.rows))
        self.total = self.outputs.sum(0)
        self.losses = self.outputs.new_zeros(3)
        if len(self.rows) < len(self.outputs):
            self.observed = torch.zeros(len(self.outputs), dtype=torch.bool, device=self.rows.device)
            self.observed[self.rows] = True

    @property
    def steps(self) -> int:
        """Mini-batches per iteration: the paper's t = n / N. The few points left over wait for the next iteration."""
        return len(self.rows) // self.batch_size

    @property
    def current_inputs(self) -> Tensor | Pixels:
        """What the network learns from now: features while it is frozen, pixels later."""
        return self.inputs if self.features is None else self.features

    def unfreeze(self) -> None:
        """Let the image network learn too, from pixels."""
        if self.features is not None:
            self.features = None
            self.recorder.reset()  # the step was recorded with features

    def stream(self, batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """The network's inputs for each batch; of pixels, only the share of this process."""
        inputs = self.current_inputs
        if isinstance(inputs, Pixels):
            return inputs.stream([distributed.share(batch) for batch in batches])
        return (inputs[batch] for batch in batches)

    def forward(self, inputs: Tensor) -> Tensor:
        """The network's outputs for a batch of `stream`, (batch, bits)."""
        if isinstance(self.current_inputs, Pixels):
            inputs = inputs.permute(0, 3, 1, 2)
        return self.network(inputs)  # type: ignore[no-any-return]

    def store(self, batch: Tensor, outputs: Tensor) -> None:
        """Put a batch's new outputs into F, and into its sum."""
        self.total += (outputs - self.outputs[batch]).sum(0)
        self.outputs[batch] = outputs

    @torch.no_grad()
    def evaluate(self, rows: Tensor) -> Tensor:
        """The network's outputs without dropout, (rows, bits)."""
        self.network.eval()
        return torch.cat([self.network(self.current_inputs[block]) for block in rows.split(256)])


@dataclass(eq=False)
class Run:
    """The state of Algorithm 1."""

    sides: list[Side]
    similarity: Similarity  # S
    labels: NDArray[np.uint8] | None  # (n, labels)
    B: Tensor  # (n, bits)
    held_out: NDArray[np.intp]  # training points that only serve to measure
    form: Form  # of Theta and S
    seed: int
    epochs: int  # iterations of the outer loop
    epoch: int = 0  # those done
    gamma_share: Tensor = field(init=False)  # the share of gamma that counts now, on the device

    def __post_init__(self) -> None:
        self.gamma_share = self.B.new_ones(())

    def others(self, side: Side) -> list[Side]:
        """All modalities but this one; where it is the only one, itself."""
        return [other for other in self.sides if other is not side] or [side]

    @property
    def frozen(self) -> bool:
        """Whether an image network is frozen that will learn later."""
        return any(side.features is not None for side in self.sides)

    def unfreeze(self, *, restart: bool) -> None:
        """Let frozen image networks learn too. With `restart`, the state of the optimisers is cleared."""
        for side in self.sides:
            side.unfreeze()
            if restart:
                side.optimiser.state.clear()
                side.recorder.reset()

    def mean_losses(self) -> list[float]:
        """The three terms, averaged over the last iteration's batches and over the modalities."""
        values: list[float] = torch.stack([side.losses / side.steps for side in self.sides]).mean(0).tolist()
        return values

    def tensors(self) -> dict[str, Tensor]:
        """Everything that the next iteration depends on, by name."""
        tensors = {"B": self.B}
        for side in self.sides:
            tensors[f"{side.name}/outputs"] = side.outputs
            tensors |= {f"{side.name}/network/{key}": value for key, value in side.network.state_dict().items()}
            tensors |= {f"{side.name}/optimiser/{key}": value for key, value in _optimiser_state(side).items()}
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Undo `tensors`."""

        def under(prefix: str) -> dict[str, Tensor]:
            return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}

        self.B.copy_(tensors["B"])
        for side in self.sides:
            side.outputs.copy_(tensors[f"{side.name}/outputs"])
            side.network.load_state_dict(under(f"{side.name}/network/"))
            _restore_optimiser(side.optimiser, under(f"{side.name}/optimiser/"))


def _optimiser_state(side: Side) -> dict[str, Tensor]:
    """The optimiser's state as named tensors."""
    state = side.optimiser.state_dict()["state"]
    return {
        f"{i}.{key}": torch.as_tensor(value)
        for i, entry in state.items()
        for key, value in entry.items()
        if value is not None
    }


def _restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Undo `_optimiser_state`. State gets the memory layout of its parameter, which fused optimisers rely on."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        i, key = name.split(".", 1)
        if value.shape == parameters[int(i)].shape:
            value = torch.empty_like(parameters[int(i)], dtype=value.dtype).copy_(value)
        state.setdefault(int(i), {})[key] = value
    if len({frozenset(entry) for entry in state.values()}) > 1:
        raise ValueError("the state of the optimiser is incomplete")
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


# -- points held out, only to show the MAP on them while training ------------------------------------------------------


def choose_held_out(observed: Mapping[str, NDArray[np.bool_]], share: float, seed: int) -> NDArray[np.intp]:
    """A share of the points that have all modalities; none if that would be too few to measure with."""
    complete = np.flatnonzero(np.stack(list(observed.values())).all(axis=0))
    count = int(share * len(complete))
    return np.sort(np.random.default_rng(seed).permutation(complete)[: count if count >= MIN_HELD_OUT else 0])


def held_out_map(run: Run) -> dict[str, float]:
    """MAP of the held-out points as queries against the other training points, in every direction."""
    if not len(run.held_out) or run.labels is None:
        return {}
    rows = torch.from_numpy(run.held_out).to(run.B.device)
    labels, bits = run.labels, run.B.shape[1]
    query = {side.name: codes.pack(codes.sign(side.evaluate(rows).cpu().numpy())) for side in run.sides}
    measured = {}
    for a, b in permutations(run.sides, 2):
        trained = b.rows.cpu().numpy()
        database = codes.pack(codes.sign(b.outputs[b.rows].cpu().numpy()))
        counts = metrics.rank_counts(query[a.name], database, labels[run.held_out], labels[trained], bits)
        measured[f"{a.name}_to_{b.name}"] = round(counts.mean_average_precision(ties="expected"), 4)
    return measured


# -- checkpoints -------------------------------------------------------------------------------------------------------


class Checkpoint:
    """One file with networks, optimisers, outputs and codes after a whole iteration.

    `identity` names the run (its settings and data): the checkpoint of another run is refused.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path = Path(path)
        self.identity = identity
        self.written = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed since the last one."""
        return time.monotonic() - self.written > CHECKPOINT_SECONDS

    def save(self, run: Run, history: list[dict[str, Any]]) -> None:
        """Write the state of a run."""
        from safetensors.torch import save_file

        tensors = {name: value.detach().cpu().contiguous() for name, value in run.tensors().items()}
        record = json.dumps({"epoch": run.epoch, "history": history})
        with whole_file(self.path) as draft:
            save_file(tensors, draft, {"identity": self.identity, "record": record, KEY: UNSEALED})
            seal_file(draft)
        self.written = time.monotonic()

    def resume(self, run: Run) -> list[dict[str, Any]]:
        """Restore a run from the file, if there is one; returns its history."""
        from safetensors import SafetensorError, safe_open

        self.written = time.monotonic()
        if not self.path.is_file():
            return []
        what = "The checkpoint {path} is damaged ({reason})."
        with readable(self.path, what=what, hint="Start over: repeat the command without --resume."):
            try:
                check_sealed_file(self.path)
                with safe_open(self.path, framework="pt") as file:
                    metadata = file.metadata() or {}
                    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            except DamagedError as error:
                raise ValueError("it does not match its checksum") from error
            except SafetensorError as error:
                raise ValueError(str(error)) from error
            self._check_identity(metadata)
            record = parse_json(metadata["record"])
            check_types(record, epoch=int, history=list)
            if not 0 <= record["epoch"] <= run.epochs:
                raise ValueError(f"iteration {record['epoch']} of {run.epochs}")
            run.restore(tensors)
            run.epoch = record["epoch"]
        history: list[dict[str, Any]] = record["history"]
        return history

    def _check_identity(self, metadata: Mapping[str, str]) -> None:
        if metadata.get("identity") != self.identity:
            raise DataError(
                f"The checkpoint {self.path} is of another run ({_difference(metadata.get('identity', ''), self.identity)}). "
                "Repeat the command that was interrupted, or leave --resume out to start over."
            )


def _difference(theirs: str, mine: str) -> str:
    """What two runs differ in, by their identities: version, fingerprint of the data, settings (see `DCMH.identity`)."""
    try:
        (old, old_data, was), (new, new_data, now) = parse_json(theirs), parse_json(mine)
        names = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    except (ValueError, TypeError, AttributeError):
        return "other settings, data or version"
    differences = [f"dcmh {old}, this is {new}"] if old != new else []
    differences += [f"{name} {was.get(name)}, here {now.get(name)}" for name in names if name != "pairs"]
    differences += ["other pairs"] if "pairs" in names else []
    differences += ["other data"] if old_data != new_data else []
    return "; ".join(differences) or "other settings, data or version"
