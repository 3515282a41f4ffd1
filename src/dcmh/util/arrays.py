"""Arrays without torch: memory-mapped ones of safetensors files, vectors at unit length, and rows of ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ModelError
from dcmh.util.checksums import BlockSums
from dcmh.util.formats import parse_json, readable

_TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "U8": np.uint8, "I8": np.int8}


def map_arrays(path: Path, blocks: BlockSums | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file by name, memory-mapped: pages are read when they are used.

    With `blocks` the file's header is checked; callers check the arrays that they use with `blocks.check`.
    """
    what = "{path} is missing or damaged ({reason})."
    with readable(path, ModelError, what=what, hint="Train again, or copy the folder again."):
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > size - 8:
                raise ValueError("it is too short")
            if blocks is not None:
                blocks.check_bytes(0, 8 + length)
            header = parse_json(file.read(length))
        header.pop("__metadata__", None)
        arrays = {}
        for name, entry in header.items():
            start, stop = entry["data_offsets"]
            if entry["dtype"] not in _TYPES:
                continue
            if 8 + length + stop > size:
                raise ValueError("it is too short")
            if stop == start:
                continue
            dtype, shape = _TYPES[entry["dtype"]], tuple(entry["shape"])
            arrays[name] = np.asarray(np.memmap(path, dtype, "r", 8 + length + start, shape))
    return arrays


def unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Vectors (n, width) at unit length; zeros stay zeros."""
    lengths = np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
    return np.asarray(vectors / np.maximum(lengths, 1e-6), np.float32)


def rows_of(ids: NDArray[np.int64], wanted: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The rows of some ids in an ascending list, and which of them it holds; the row of a missing one is meaningless."""
    if len(ids) and int(ids[-1]) - int(ids[0]) == len(ids) - 1:  # none is missing, as in most collections
        rows = wanted - ids[0]
        return rows, (rows >= 0) & (rows < len(ids))
    rows = np.searchsorted(ids, wanted)
    is_present = rows < len(ids)
    is_present[is_present] = ids[rows[is_present]] == wanted[is_present]
    return rows, is_present
