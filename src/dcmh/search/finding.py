"""From a code to items: which codes are searched, what is near, and how good a distance has been."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ModelError, ParameterError
from dcmh.index import HammingIndex, Index
from dcmh.index.remote import ALONE
from dcmh.methods import folder as model_folder

Codes = Mapping[str, Index]
Part = tuple[str, NDArray[np.int64] | str | None]  # a modality, and the ids that may be found in it (None: all)
Found = dict[int, tuple[int, str]]  # id to distance and modality
Measured = dict[tuple[str, str], dict[int, float]]  # (asked, found) to precision by distance

DEFAULT_K = 10
FEWEST = 20  # pairs of a query and an item at a distance: with fewer, its precision is not measured


@dataclass(frozen=True)
class Wanted:
    """Which hits: at most k, within a radius, in one modality; without the `offset` nearest, and without an item."""

    k: int | None = None
    radius: int | None = None
    in_: str | None = None
    offset: int = 0
    without: int = 0


@dataclass(frozen=True)
class Finding:
    """What was found. `order` holds ids, nearest first; where it is empty `beyond` holds the nearest past the radius."""

    order: list[int]
    beyond: list[int]
    found: Found
    searched: int  # items
    radius: int | None


def search(codes: Codes, code: bytes, asked: str, text: str | None, items: int, wanted: Wanted) -> Finding:
    """What is near a code that is asked in a modality. `text` and `items` are as in `parts`."""
    k, radius = limits(wanted.k, wanted.radius)
    offset = _whole("offset", wanted.offset, 0) or 0
    k = None if k is None else k + offset
    chosen = parts(codes, asked, text, wanted.in_, items)
    whole = len(chosen) != 1 or chosen[0][1] is not None
    searched = items if whole else len(codes[chosen[0][0]])
    more = 1 if wanted.without else 0
    found = find(codes, chosen, code, asked, None if k is None else k + more, radius)
    found.pop(wanted.without, None)
    order, beyond = nearest_first(found, k)[offset:], []
    if not found and radius is not None:
        found = find(codes, chosen, code, asked, 1 + more, None)
        found.pop(wanted.without, None)
        beyond = nearest_first(found, 1)
    return Finding(order, beyond, found, searched, radius)


def limits(k: int | None, radius: int | None) -> tuple[int | None, int | None]:
    """k and radius, checked: 10 hits where neither is given."""
    if k is None and radius is None:
        k = DEFAULT_K
    return _whole("k", k, 1), _whole("radius", radius, 0)


def parts(codes: Codes, asked: str, text: str | None, in_: str | None, items: int) -> list[Part]:
    """Which codes are searched.

    A choice wins. Otherwise words look at pictures, and at the words of items that have no picture; a picture looks at
    pictures and words alike.
    """
    if in_ is not None:
        if in_ not in codes:
            raise ParameterError(f"The index has no {in_!r} codes. It has: {', '.join(codes) or 'nothing'}.")
        return [(in_, None)]
    if asked != text:
        return [(name, None) for name in codes]
    others = [name for name in codes if name != asked]
    chosen: list[Part] = [(name, None) for name in others]
    if not others:
        return [(asked, None)] if asked in codes else []
    if asked in codes and max(len(codes[name]) for name in others) < items:
        only = _alone(codes, asked, others)
        if len(only):
            chosen.append((asked, only))
    return chosen


def _alone(codes: Codes, asked: str, others: list[str]) -> NDArray[np.int64] | str:
    """The items that have a code in no other modality: their ids, or the word for them that a server knows."""
    if not isinstance(codes[asked], HammingIndex):
        return ALONE
    seen = np.unique(np.concatenate([codes[name].ids for name in others]))
    return np.setdiff1d(codes[asked].ids, seen, assume_unique=True)


def find(codes: Codes, chosen: list[Part], code: bytes, asked: str, k: int | None, radius: int | None) -> Found:
    """Items with their smaller distance. Where two are equal, the one across modalities: its precision is measured."""
    found: Found = {}
    packed = np.frombuffer(code, np.uint8)[None]
    for name, allowed in sorted(chosen, key=lambda part: part[0] == asked):
        if k is None:
            results = codes[name].within(packed, radius or 0, allowed=allowed)
        else:
            results = codes[name].search(packed, k, allowed=allowed)
        for item, distance in results[0]:
            if (radius is None or distance <= radius) and (item not in found or distance < found[item][0]):
                found[item] = (distance, name)
    return found


def nearest_first(found: Found, k: int | None) -> list[int]:
    """Ids, nearest first; older items, which have smaller ids, first at equal distance."""
    return sorted(found, key=lambda item: (found[item][0], item))[:k]


def measured(model: Path) -> Measured:
    """Precision by distance for each direction that the model's report has; not where too few pairs were seen."""
    path = model / model_folder.REPORT
    if not path.is_file():
        return {}
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        found = {}
        for direction, record in report.items():
            if "_to_" in direction:
                asked, _, answered = direction.partition("_to_")
                rows = record["by_distance"]
                found[asked, answered] = {
                    row["distance"]: row["relevant"] / row["points"] for row in rows if row["points"] >= FEWEST
                }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is damaged ({error}). Copy the model again.") from error
    return found


def _whole(name: str, value: Any, least: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ParameterError(f"{name} must be a whole number of at least {least}, not {value!r}.")
    return int(value)
