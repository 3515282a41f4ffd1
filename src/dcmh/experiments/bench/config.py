"""The configuration of a bench, a TOML file: which methods run on which data, with which code lengths and seeds.

data = "../photos"              a name of `dcmh data`, or a path: from this file's folder, else from the current one
name = "photos"                 the folder under results/; default: after the data
features = ["cnn", "sift"]      see FEATURES
weights = "imagenet-vgg-f.mat"  for cnn-f; a path like that of the data
bits = [16, 32, 64]
seeds = [0, 1, 2]               of the methods
ties = "stable"                 the rule that `dcmh report` shows first
k = 50                          only the first k ranks count in MAP; default: all

[split]                         default: the split that the data came with
queries = 2000
train = 5000                    default: all except the queries
seed = 0                        without it every run draws its own split, with its own seed

[methods.cca]                   one table per method; settings as in `dcmh methods cca`
ridge = 1e-3
[methods.dcmh-fine]             any other name, with the method in it
method = "dcmh"
features = ["pixels"]           instead of the list above
[methods.dcmh-fine.grid]        one run per value, with the other settings as above
gamma = [0.5, 1, 2]
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from dcmh import methods
from dcmh.data import named
from dcmh.errors import ParameterError
from dcmh.evaluation.metrics import TIES
from dcmh.methods.base import Hasher
from dcmh.util.checks import whole_number
from dcmh.util.formats import read_toml

FEATURES = {
    "pixels": "the pictures themselves: the method sees them in its own way",
    "cnn": "the penultimate layer of EfficientNet-Lite0",
    "cnn-f": "the penultimate layer of CNN-F, the paper's; needs weights",
    "sift": "bags of 500 visual words; sift-512 for another number of words",
    "given": "vectors that came with the data",
}
_SIFT = re.compile(r"sift(-\d{1,5})?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_KEYS = ("data", "name", "features", "weights", "bits", "seeds", "ties", "k", "split", "methods")


@dataclass(frozen=True)
class SplitPlan:
    """How items are divided; without a number of queries, by the split of the data."""

    queries: int | None = None
    train: int | None = None
    seed: int | None = None

    @property
    def folder(self) -> str:
        """The name of the folder of results with this split."""
        if self.queries is None:
            return "given"
        parts = [f"queries{self.queries}", f"train{'all' if self.train is None else self.train}"]
        return "-".join(parts if self.seed is None else [*parts, f"seed{self.seed}"])


@dataclass(frozen=True)
class Entry:
    """One method of the bench: a label, the method behind it, and its settings."""

    label: str
    method: str
    features: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Config:
    """The content of the file, checked and with resolved paths."""

    file: Path
    data: str
    name: str
    bits: tuple[int, ...]
    seeds: tuple[int, ...]
    ties: str
    k: int | None
    weights: Path | None
    split: SplitPlan
    methods: tuple[Entry, ...]


def read(file: Path | str) -> Config:
    """Read and check a bench file. Whether its data can be read is checked when it runs."""
    file = Path(file)
    try:
        record = read_toml(file)
    except OSError as error:
        raise ParameterError(f"Cannot read the bench {file}: {error.strerror}. Give a TOML file.") from error
    except ValueError as error:
        raise ParameterError(f"{file} is not TOML: {error}. docs/bench.md has an example.") from error
    try:
        return _config(file, record)
    except ParameterError as error:
        raise ParameterError(f"{file}: {error}") from error


def _config(file: Path, record: dict[str, Any]) -> Config:
    _check_keys(record, _KEYS, "the bench")
    data = record.get("data")
    if not isinstance(data, str) or not data:
        raise ParameterError("data is missing. Give a name of dcmh data, or a path.")
    built_in = named(data)
    source = str(_resolved(data, file))
    if built_in is not None:
        source = data if built_in[1] is None else f"{built_in[0]}:{_resolved(str(built_in[1]), file)}"
    methods = record.get("methods")
    if not isinstance(methods, dict) or not methods:
        raise ParameterError("it names no methods. Write a table for each, such as [methods.dcmh].")
    features = _features(record.get("features", ["cnn"]))
    ties = record.get("ties", "stable")
    if ties not in TIES:
        raise ParameterError(f"ties must be one of {', '.join(TIES)}, not {ties!r}.")
    weights = record.get("weights")
    return Config(
        file=file,
        data=source,
        name=_folder_name(record.get("name", Path(source).stem if built_in is None else built_in[0])),
        bits=_numbers(record, "bits", 1),
        seeds=_numbers(record, "seeds", 0),
        ties=ties,
        k=None if "k" not in record else whole_number("k", record["k"], 1),
        weights=None if weights is None else _resolved(weights, file),
        split=_split(record.get("split", {})),
        methods=tuple(_entry(label, table, features, file) for label, table in methods.items()),
    )


def _split(record: Any) -> SplitPlan:
    _check_keys(record, ("queries", "train", "seed"), "[split]")
    if record and "queries" not in record:
        raise ParameterError("[split] needs queries, such as queries = 2000. Without [split] the data's own is used.")
    least = {"queries": 1, "train": 1, "seed": 0}
    return SplitPlan(**{name: whole_number(f"[split] {name}", value, least[name]) for name, value in record.items()})


def _entry(label: str, table: Any, features: tuple[str, ...], file: Path) -> Entry:
    if not isinstance(table, dict):
        raise ParameterError(f"[methods.{label}] must be a table of settings.")
    settings = dict(table)
    method = settings.pop("method", label)
    defaults = {name: value for name, value in parameters_of(method).items() if name not in ("bits", "seed", "device")}
    features = _features(settings.pop("features", list(features)))
    grid = settings.pop("grid", {})
    _check_keys(grid, defaults, f"[methods.{label}.grid]")
    _check_keys(settings, defaults, f"[methods.{label}]", "method", "features", "grid")
    if settings.get("weights") is not None:
        settings["weights"] = str(_resolved(settings["weights"], file))
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ParameterError(f"[methods.{label}.grid] {name} must be a list of values, such as [0.5, 1, 2].")
    entry = Entry(
        label=_folder_name(label),
        method=method,
        features=features,
        settings={name: _like(defaults[name], value) for name, value in settings.items()},
        grid={name: tuple(_like(defaults[name], value) for value in values) for name, values in grid.items()},
    )
    for point in grid_points(entry):
        class_of(method)(**{**entry.settings, **point})  # invalid values are refused now, not after an hour
    return entry


@cache
def class_of(method: str) -> type[Hasher]:
    """The class of a method, cached, since a bench looks it up repeatedly."""
    return methods.get(method)


@cache
def parameters_of(method: str) -> Mapping[str, Any]:
    """The settings of a method with their default values."""
    return {name: value.default for name, value in inspect.signature(class_of(method)).parameters.items()}


def grid_points(entry: Entry) -> list[dict[str, Any]]:
    """The settings that each point of the grid changes; the first changes nothing."""
    return [{}, *({name: value} for name, values in entry.grid.items() for value in values)]


def _like(default: Any, value: Any) -> Any:
    """1 as 1.0 if the default is a float, so that both are the same run."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_whole and isinstance(default, float) else value


def _features(value: Any) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [value]
    for name in names:
        if not isinstance(name, str) or not (name in FEATURES or _SIFT.fullmatch(name)):
            raise ParameterError(
                f"no features {name!r}. There are: {', '.join(FEATURES)}, and sift-512 or another number."
            )
    if not names:
        raise ParameterError('features is an empty list. Name some, such as features = ["cnn"].')
    return tuple(dict.fromkeys(names))


def _resolved(path: Any, file: Path) -> Path:
    """A path relative to the folder of the bench; if it does not exist there, to the current folder."""
    if not isinstance(path, str) or not path:
        raise ParameterError(f"expected a path, not {path!r}.")
    from_file = file.resolve().parent / Path(path).expanduser()
    return from_file.resolve() if from_file.exists() else Path(path).expanduser()


def _folder_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ParameterError(
            f"{name!r} cannot name a folder of results. Use letters, digits, dots and dashes; set name."
        )
    return name


def _numbers(record: Mapping[str, Any], name: str, least: int) -> tuple[int, ...]:
    value = record.get(name, [])
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ParameterError(f"{name} is missing. Give a list of whole numbers, such as {name} = [16, 32, 64].")
    return tuple(dict.fromkeys(whole_number(name, number, least) for number in values))


def _check_keys(record: Any, known: Any, where: str, *also: str) -> None:
    if not isinstance(record, dict):
        raise ParameterError(f"{where} must be a table.")
    for key in record:
        if key not in (names := [*known, *also]):
            close = difflib.get_close_matches(key, names, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ParameterError(f"{where} has no setting {key!r}.{hint} It has: {', '.join(names)}.")
