"""The numbers printed in the paper: one TOML file per table in the folder dcmh/paper."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Printed:
    """One printed table. `source` is its label in the paper; `values` is by direction and method."""

    source: str
    caption: str
    data: str
    title: str
    features: str
    described: str
    measure: str
    queries: int
    train: int
    bits: tuple[int, ...]
    radius: tuple[int, ...]
    values: Mapping[str, Mapping[str, Any]]

    def map(self, direction: str, method: str, bits: int) -> float | None:
        """The printed MAP; None if there is none."""
        values = self.values.get(direction, {}).get(method)
        return None if values is None or bits not in self.bits else float(values[self.bits.index(bits)])

    def lookup(self, direction: str, method: str, measure: str, radius: int) -> float | None:
        """The printed precision, recall or f (`measure`) of hash lookup; None if there is none."""
        values = self.values.get(direction, {}).get(method)
        if values is None or radius not in self.radius:
            return None
        return float(values[measure][self.radius.index(radius)])

    def has(self, method: str) -> bool:
        """Whether the table has this method."""
        return any(method in by_method for by_method in self.values.values())


@cache
def printed() -> tuple[Printed, ...]:
    """All printed tables."""
    files = sorted((resources.files("dcmh") / "paper").iterdir(), key=lambda file: file.name)
    return tuple(_read(file.read_text(encoding="utf-8")) for file in files if file.name.endswith(".toml"))


def find(data: str, features: str, measure: str) -> Printed | None:
    """The printed table for a data set, a feature set and a measure, if there is one."""
    family = features.partition("-")[0]
    for table in printed():
        if (table.data, table.features, table.measure) == (_plain(data), family, measure):
            return table
    return None


def is_the_papers(data: str) -> bool:
    """Whether the paper has any number for a data set of this name."""
    return _plain(data) in {table.data for table in printed()}


def data_sets() -> list[str]:
    """The paper's data sets, as it writes them."""
    return list(dict.fromkeys(table.title for table in printed()))


def _read(text: str) -> Printed:
    record = tomllib.loads(text)
    values = {name: record.pop(name) for name in list(record) if "_to_" in name}
    radius = tuple(record.pop("radius", ()))
    return Printed(bits=tuple(record.pop("bits")), radius=radius, values=values, **record)


def _plain(data: str) -> str:
    """MIRFLICKR-25K as mirflickr25k."""
    return re.sub(r"[^a-z0-9]", "", data.lower())
