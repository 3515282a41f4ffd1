"""The runs of a bench: one for each method, setting, feature set, code length and seed, with the path of its result."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dcmh.errors import ParameterError
from dcmh.experiments.bench.config import Config, Entry, class_of, grid_points, parameters_of
from dcmh.methods.base import Hasher
from dcmh.util.formats import read_object

NETWORKS = {"cnn": "efficientnet-lite0", "cnn-f": "cnn-f"}  # feature set to image network
_MAX_FOLDER_NAME = 80  # characters; longer ones become a hash


@dataclass(frozen=True)
class Task:
    """One run. `varied` holds the settings that a grid changed; empty for the runs of the tables."""

    label: str
    method: str
    features: str
    settings: dict[str, Any]
    varied: dict[str, Any]
    bits: int
    seed: int
    folder: Path

    @property
    def path(self) -> Path:
        """The file of the result, relative to the folder of all results."""
        parts = (
            self.features,
            self.label,
            _settings_name(self.method, self.settings),
            str(self.bits),
            f"{self.seed}.json",
        )
        return self.folder.joinpath(*parts)

    @property
    def description(self) -> str:
        """The run for people, such as: cca · cnn · 16 bits · seed 0."""
        varied = [f"{name} {value}" for name, value in self.varied.items()]
        return " · ".join([self.label, *varied, self.features, f"{self.bits} bits", f"seed {self.seed}"])

    def build(self, device: str = "auto") -> Hasher:
        """The method with its settings, not yet fitted."""
        settings = {"bits": self.bits, "seed": self.seed, **self.settings}
        if "device" in parameters_of(self.method):
            settings["device"] = device
        return class_of(self.method)(**settings)


def plan(
    config: Config,
    *,
    only: Sequence[str] = (),
    features: Sequence[str] = (),
    bits: Sequence[int] = (),
    seeds: int | None = None,
) -> list[Task]:
    """All runs, or those of some methods (by label or method), feature sets, code lengths, or the first few seeds."""
    named = {entry.label for entry in config.methods} | {entry.method for entry in config.methods}
    _check("--only", only, named, "methods")
    _check("--features", features, {name for entry in config.methods for name in entry.features}, "feature sets")
    _check("--bits", bits, config.bits, "lengths")
    if seeds is not None and seeds < 1:
        raise ParameterError(f"--seeds {seeds}: ask for at least one.")
    folder = Path(config.name, config.split.folder + (f"-k{config.k}" if config.k else ""))
    tasks: dict[Path, Task] = {}
    for entry in config.methods:
        if only and entry.label not in only and entry.method not in only:
            continue
        for feature_set in entry.features:
            if features and feature_set not in features:
                continue
            for point in grid_points(entry):
                settings = _network(entry, feature_set, config) | entry.settings | point
                first = Task(entry.label, entry.method, feature_set, settings, point, 0, 0, folder)
                for length in bits or config.bits:
                    for seed in config.seeds[:seeds]:
                        task = replace(first, bits=length, seed=seed)
                        tasks.setdefault(task.path, task)  # a point of the grid may equal the default
    return list(tasks.values())


def has_network(method: str) -> bool:
    """Whether a method has an image network of its own."""
    return "network" in parameters_of(method)


def _network(entry: Entry, features: str, config: Config) -> dict[str, Any]:
    """The settings by which a method with an image network of its own uses the one that the features are named after."""
    if features not in NETWORKS or not has_network(entry.method):
        return {}
    if features == "cnn" and "quality" not in entry.settings:
        return {}  # its default
    weights = {"weights": str(config.weights)} if features == "cnn-f" and config.weights else {}
    return {"network": NETWORKS[features], **weights}


def done(task: Task, results: Path) -> dict[str, Any] | None:
    """The result of a run with exactly these settings; None if it has not been done."""
    try:
        record = read_object(results / task.path)
        same = record["parameters"] == parameters(task.build())
    except (OSError, ValueError, KeyError):
        return None
    return record if same else None


def parameters(model: Hasher) -> dict[str, Any]:
    """All settings of a method as recorded in a result, except the device, which is recorded separately."""
    values = {name: value for name, value in model.parameters.items() if name != "device"}
    return {name: Path(value).name if name == "weights" and value else value for name, value in values.items()}


def summary(tasks: Sequence[Task], finished: int) -> str:
    """The runs for people, such as: 7 methods × 3 code lengths × 5 seeds = 105 runs; 12 done, 93 to do."""
    labels, features = {task.label for task in tasks}, {task.features for task in tasks}
    settings = {task.path.parents[1] for task in tasks}
    if len(settings) not in (len(labels), len(labels) * len(features)):
        factors = [f"{_count(len(settings), 'setting')} of {_count(len(labels), 'method')}"]
    else:
        factors = [_count(len(labels), "method")]
        factors += [_count(len(features), "feature set")] if len(settings) > len(labels) else []
    factors += [_count(len({task.bits for task in tasks}), "code length")]
    factors += [_count(len({task.seed for task in tasks}), "seed")]
    runs = _count(len(tasks), "run")
    return f"{' × '.join(factors)} = {runs}; {finished:,} done, {len(tasks) - finished:,} to do."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _settings_name(method: str, settings: dict[str, Any]) -> str:
    """The settings that differ from the defaults, as the name of a folder."""
    defaults = parameters_of(method)
    parts = []
    for name, value in sorted(settings.items()):
        if value != defaults[name]:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            parts.append(f"{name}={Path(text).name if name == 'weights' else text}")
    name = ",".join(parts).replace("/", "_") or "default"
    return name if len(name) <= _MAX_FOLDER_NAME else hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def _check(option: str, values: Sequence[object], known: Iterable[object], kind: str) -> None:
    names = [str(name) for name in known]
    for value in values:
        if str(value) not in names:
            raise ParameterError(f"{option} {value} is not in the bench. Its {kind}: {', '.join(sorted(names))}.")
