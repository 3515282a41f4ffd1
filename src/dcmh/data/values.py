"""Columns from the values of other libraries: lists, NumPy, torch, pandas, polars, Arrow, PIL.

None of these libraries is imported: objects are recognised by their methods.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dcmh.data.columns import IMAGE_SUFFIXES, Column, Images, Kind, Stored, Texts, Vectors, is_pil_image
from dcmh.errors import DataError


class InMemory:
    """The store of pictures whose files are already in memory: the key of a picture is its bytes."""

    def read(self, key: bytes) -> bytes:
        """The bytes of one image file."""
        return key


def plain(values: Any) -> Any:
    """Values of torch, pandas, polars, Arrow or SciPy as a NumPy array or a list."""
    if isinstance(values, np.ndarray | list | tuple | str | bytes | Path):
        return values
    if hasattr(values, "detach"):  # torch
        return values.detach().cpu().numpy()
    if hasattr(values, "toarray"):  # a sparse matrix
        return values.toarray()
    if hasattr(values, "combine_chunks") and hasattr(values, "chunks"):  # pyarrow.ChunkedArray
        return plain(values.combine_chunks())
    if hasattr(values, "column_names") and hasattr(values, "to_pydict"):  # pyarrow.Table, of numbers
        return np.column_stack([plain(column) for column in values.columns])
    if hasattr(values, "as_py"):  # pyarrow.Scalar
        return values.as_py()
    if hasattr(values, "to_pylist"):  # pyarrow.Array
        return _from_arrow(values)
    if hasattr(values, "to_numpy") and hasattr(values, "columns"):  # a DataFrame of numbers
        return values.to_numpy()
    if hasattr(values, "to_list"):  # a Series; polars also has columns of arrays
        array = values.to_numpy()
        return array if array.dtype.kind in "fiub" else values.to_list()
    return list(values) if isinstance(values, Iterable) and not is_pil_image(values) else values


def _from_arrow(array: Any) -> Any:
    """An Arrow array; lists of numbers that all have the same length without making Python numbers of them."""
    if array.null_count == 0 and hasattr(array, "flatten") and hasattr(array.type, "value_type"):
        flat = array.flatten()
        if len(array) and len(flat) and len(flat) % len(array) == 0 and flat.null_count == 0:
            width = len(flat) // len(array)
            same = hasattr(array.type, "list_size") or bool((np.diff(array.offsets.to_numpy()) == width).all())
            values = flat.to_numpy(zero_copy_only=False)
            if same and values.dtype.kind in "fiub":
                return values.reshape(len(array), width)
    if array.null_count == 0 and str(array.type) in _ARROW_NUMBERS:
        return array.to_numpy(zero_copy_only=False)
    return array.to_pylist()


_ARROW_NUMBERS = {"bool", "halffloat", "float", "double"} | {
    f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)
}


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: None, NaN, or the mark of pandas."""
    return (
        value is None or (isinstance(value, float) and value != value) or type(value).__name__ in ("NAType", "NaTType")
    )


def as_picture(value: Any) -> Any:
    """A cell of a table as `Images` takes it: bytes become a stored picture, also those of Hugging Face's image records."""
    if isinstance(value, Mapping) and value.keys() <= {"bytes", "path"}:
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes | bytearray | memoryview):
        return Stored(InMemory(), bytes(value))
    return None if is_missing(value) else value


def is_picture(value: Any) -> bool:
    """Whether a value is certainly a picture: decoded, or the bytes of a file."""
    decoded = isinstance(value, np.ndarray) and value.ndim == 3
    return decoded or isinstance(value, Stored | Path | bytes) or is_pil_image(value)


def are_picture_files(values: Sequence[Any]) -> bool:
    """Whether strings are paths of pictures: each exists as a file, or ends like the name of one."""
    paths = [value for value in values if not is_missing(value)]
    return bool(paths) and all(path.lower().endswith(IMAGE_SUFFIXES) or os.path.isfile(path) for path in paths)


def as_column(values: Any, kind: Kind | None = None) -> Column:
    """Values of any library as a column of this kind, or of the kind that they look like.

    Strings are texts, unless all of them are paths of pictures. Numbers are vectors, one row per item.
    """
    if isinstance(values, Images | Texts | Vectors):
        return values
    single = isinstance(values, str | bytes | Path) or is_pil_image(values)
    values = plain(values)
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        if kind != "image" and not (kind is None and values.ndim == 4):
            return Vectors(np.atleast_2d(values) if kind == "vector" else values)
        if values.ndim > 2 and values.shape[-3] == 3 and values.shape[-1] not in (3, 4):
            values = np.moveaxis(values, -3, -1)  # torch has the channels first
        kind, single = "image", values.ndim == 3
    if not single and not isinstance(values, Iterable):
        raise DataError(
            f"Values of type {type(values).__name__} are not items.", hint="Give a list, one value per item."
        )
    rows = [values] if single else list(values)
    if kind is None:
        kind = _kind_of(rows)
    if kind == "text":
        return Texts([None if is_missing(value) else value for value in rows])
    if kind == "image":
        return Images([as_picture(value) for value in rows])
    return _stacked(rows)


def _kind_of(rows: Sequence[Any]) -> Kind:
    values = [value for value in rows if not is_missing(value)]
    if all(isinstance(value, str) for value in values):
        return "image" if are_picture_files(values) else "text"
    if all(isinstance(value, str) or is_picture(as_picture(value)) for value in values):
        return "image"
    if isinstance(first := plain(values[0]), list | tuple | np.ndarray | int | float):
        return "vector"
    raise DataError(
        f"Values of type {type(first).__name__} are neither vectors of numbers, strings nor pictures.",
        hint="Give an array (items, features), texts, or pictures as paths, arrays or PIL images.",
    )


def _stacked(rows: Sequence[Any]) -> Vectors:
    """Vectors from one list or array per item, None where it is missing; or from the numbers of a single item."""
    cells = [None if is_missing(value) else np.asarray(plain(value)) for value in rows]
    first = next((cell for cell in cells if cell is not None), None)
    if first is None:
        raise DataError("No item has a vector. Give an array (items, features).")
    if first.ndim == 0:
        return Vectors(np.atleast_2d(np.asarray(cells)))
    wrong = next((row for row, cell in enumerate(cells) if cell is not None and cell.shape != first.shape), None)
    if wrong is not None or first.ndim != 1 or first.dtype.kind not in "fiub":
        raise DataError(
            f"Item {wrong or 0} is not a vector of numbers like the first one.",
            hint="Give vectors of the same length, strings, or pictures.",
        )
    matrix = np.stack([np.zeros_like(first) if cell is None else cell for cell in cells])
    return Vectors(matrix, observed=np.array([cell is not None for cell in cells], bool))
