"""The cells of a table: text, the path of a picture, or a vector, written out or in a .npy file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.data.columns import IMAGE_SUFFIXES, Kind
from dcmh.data.values import is_picture
from dcmh.errors import DataError
from dcmh.util.formats import parse_json, read_npy
from dcmh.util.text import sanitized


def kind_of(cells: Iterable[Any]) -> Kind:
    """What a column holds, judged by its first cell that is not blank: a vector or .npy file, an image file, or text."""
    first = next((cell for cell in cells if isinstance(cell, np.ndarray) or is_picture(cell) or text_in(cell)), None)
    if is_picture(first):
        return "image"
    if are_numbers(first):
        return "vector"
    text = str(first)
    if text.partition("#")[0].lower().endswith(".npy") or _numbers_in(text) is not None:
        return "vector"
    return "image" if text.lower().endswith(IMAGE_SUFFIXES) else "text"


def text_in(cell: Any) -> str | None:
    """The cell as a stripped string; None for a blank cell. A list of tags becomes one string."""
    if isinstance(cell, list):
        cell = " ".join(str(tag) for tag in cell if tag is not None)
    return None if cell is None else sanitized(str(cell)).strip() or None


def path_in(cell: Any) -> str | None:
    """The cell as a normalized path: ./a.jpg is a.jpg."""
    text = text_in(cell)
    return text and PurePosixPath(text).as_posix()


class VectorReader:
    """Cells to vectors: [0.1, 0.2], the file one.npy with one vector, or row 17 of a matrix, all.npy#17."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._matrices: dict[str, NDArray[Any]] = {}

    def __call__(self, cell: Any) -> NDArray[np.float32] | None:
        """The vector, or None for a blank cell. If it cannot be read, a DataError gives the reason in a few words."""
        if not isinstance(cell, np.ndarray):
            text = text_in(cell)
            if text is None:
                return None
            numbers = cell if are_numbers(cell) else _numbers_in(text)
            cell = np.asarray(numbers) if numbers is not None else self._from_file(text)
        values: NDArray[Any] = cell
        if values.ndim != 1 or values.dtype.kind not in "fiub" or not values.size:
            raise DataError(f"not a vector of numbers but shape {values.shape}, {values.dtype}")
        if not np.isfinite(values).all():
            raise DataError("holds NaN or infinity")
        return values.astype(np.float32, copy=False)

    def _from_file(self, text: str) -> NDArray[Any]:
        name, mark, row = text.partition("#")
        if name not in self._matrices:
            try:
                matrix = read_npy(self.root / name, mmap="r")
            except FileNotFoundError:
                raise DataError("does not exist") from None
            except (OSError, ValueError) as error:
                raise DataError("is neither a .npy file nor a list of numbers") from error
            if not mark:
                return np.asarray(matrix).reshape(-1) if matrix.ndim == 2 and len(matrix) == 1 else np.asarray(matrix)
            self._matrices[name] = matrix
        matrix = self._matrices[name]
        if not row.isdecimal() or matrix.ndim != 2 or int(row) >= len(matrix):
            raise DataError(f"has no such row: {name} has shape {matrix.shape}")
        return np.asarray(matrix[int(row)])


def are_numbers(cell: Any) -> bool:
    """Whether the cell is a vector: a list of numbers, or an array of one axis."""
    if isinstance(cell, np.ndarray):
        return cell.ndim == 1 and cell.dtype.kind in "fiub"
    return isinstance(cell, list) and bool(cell) and all(isinstance(x, int | float) for x in cell)


def _numbers_in(text: str) -> list[float] | None:
    """The numbers of a cell such as [0.1, 0.2]; None if it is not such a list."""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    try:
        values = parse_json(text)
    except ValueError:
        return None
    return values if are_numbers(values) else None
