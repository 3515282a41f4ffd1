"""An interrupted training goes on where it was: the whole state in one file, after a whole iteration."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dcmh.errors import DataError
from dcmh.methods.dcmh.state import Run
from dcmh.util.atomic import whole_file

SECONDS = 15.0  # between two of them


class Checkpoint:
    """One file with networks, optimisers, buffers and codes after a whole iteration.

    `identity` names the run (its settings and data): the checkpoint of another run is refused.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path = Path(path)
        self.identity = identity
        self.written = time.monotonic()

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self.written > SECONDS

    def keep(self, run: Run, history: list[dict[str, Any]]) -> None:
        """Write the state of a run."""
        self.write(run.tensors(), {"epoch": run.epoch, "history": history})
        self.written = time.monotonic()

    def resume(self, run: Run) -> list[dict[str, Any]]:
        """Give a run the state that is there, if there is one; returns its history."""
        self.written = time.monotonic()
        found = self.read()
        if found is None:
            return []
        tensors, record = found
        run.restore(tensors)
        run.epoch = record["epoch"]
        history: list[dict[str, Any]] = record["history"]
        return history

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
                f"The checkpoint {self.path} is of another run ({difference(said.get('identity', ''), self.identity)}). "
                "Repeat the command that was interrupted, or leave --resume out to start anew."
            )
        return tensors, json.loads(said["record"])

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def difference(theirs: str, mine: str) -> str:
    """What two runs differ in, by their identities: version, fingerprint of the data, settings (see `DCMH.identity`)."""
    try:
        (old, old_data, was), (new, new_data, now) = json.loads(theirs), json.loads(mine)
    except ValueError:
        return "other settings, data or version"
    said = [f"dcmh {old}, this is {new}"] if old != new else []
    names = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    said += [f"{name} {was.get(name)}, here {now.get(name)}" for name in names if name != "pairs"]
    said += ["other pairs"] if "pairs" in names else []
    said += ["other data"] if old_data != new_data else []
    return "; ".join(said) or "other settings, data or version"
