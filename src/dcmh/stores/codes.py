"""What the indexes on servers share: arguments, results, and the recall of an approximate search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcmh.codes import bytes_of
from dcmh.errors import DataError
from dcmh.index.protocol import Results, as_ids, refuse_missing, refuse_repeated
from dcmh.index.table import as_words, packed_of

Packed = NDArray[np.uint8]
Found = list[tuple[int, int]]  # (id, distance), nearest first

ALONE = "alone"  # as `allowed`: items that have a code in no other modality


class Approximate(Protocol):
    def search(self, codes: Packed, k: int, *, method: Any) -> Results: ...


def as_packed(codes: Packed, bits: int, what: str) -> Packed:
    """Packed codes, checked; bits past the code are 0."""
    return packed_of(as_words(codes, bits, what), bits)


def new_items(ids: ArrayLike, codes: Packed, bits: int) -> tuple[NDArray[np.int64], Packed]:
    """Ids and packed codes of items to be added, checked: one id for each code, and none twice."""
    new, packed = as_ids(ids), as_packed(codes, bits, "Codes")
    if len(new) != len(packed):
        raise DataError(f"There are {len(new)} ids but {len(packed)} codes. Give one id for each code.")
    refuse_repeated(new)
    return new, packed


def in_order(found: Mapping[int, bytes], ids: ArrayLike, bits: int) -> Packed:
    """The packed codes found by id, in the order of these ids; one that was not found is refused."""
    wanted = as_ids(ids)
    refuse_missing(np.array([item for item in wanted.tolist() if item not in found], np.int64))
    joined = b"".join(found[item] for item in wanted.tolist())
    return np.frombuffer(joined, np.uint8).reshape(len(wanted), bytes_of(bits))


def chosen_ids(allowed: Any) -> NDArray[np.int64]:
    """The ids that `allowed` names, ascending."""
    chosen = np.asarray(allowed)
    if chosen.dtype == bool and chosen.ndim == 1:
        return np.flatnonzero(chosen).astype(np.int64)
    return np.unique(as_ids(chosen))


def results_of(found: Sequence[Found]) -> Results:
    flat = [hit for hits in found for hit in hits]
    ids = np.array([number for number, _ in flat], np.int64)
    distances = np.array([distance for _, distance in flat], np.uint16)
    return Results(ids, distances, np.cumsum([0, *(len(hits) for hits in found)]).astype(np.int64))


def measure_recall(index: Approximate, queries: Packed, k: int) -> float:
    """The share of the k nearest that an approximate search finds. Another item at the same distance is as good."""
    if not len(queries):
        return 1.0
    true, found = index.search(queries, k, method="exact"), index.search(queries, k, method="approximate")
    shares = []
    for exact, near in zip(true, found, strict=True):
        if len(exact):
            farthest = int(exact.distances[-1])
            shares.append(min(1.0, int(np.count_nonzero(near.distances <= farthest)) / len(exact)))
    return float(np.mean(shares)) if shares else 1.0
