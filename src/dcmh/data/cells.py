"""The cells of a table as a picture's path, a text, or a feature vector; and which of these a column holds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.data.columns import IMAGE_SUFFIXES, Kind
from dcmh.errors import DataError
from dcmh.util.text import mended

Vector = NDArray[np.float32]


def kind_of(cells: Iterable[Any]) -> Kind:
    """What a column holds, by its first cell that is not blank: numbers or a .npy file, a picture's file, or words."""
    first = next((cell for cell in cells if words(cell) is not None), None)
    if _are_numbers(first):
        return "vector"
    said = str(first)
    if said.partition("#")[0].lower().endswith(".npy") or _listed(said) is not None:
        return "vector"
    return "image" if said.lower().endswith(IMAGE_SUFFIXES) else "text"


def words(cell: Any) -> str | None:
    """A text without blanks around it; None for a blank cell. A list of tags becomes one text."""
    if isinstance(cell, list):
        cell = " ".join(str(part) for part in cell)
    return None if cell is None else mended(str(cell)).strip() or None


def picture(cell: Any) -> str | None:
    """A path, spelt in one way: ./a.jpg is a.jpg."""
    said = words(cell)
    return said and PurePosixPath(said).as_posix()


class VectorReader:
    """Cells to vectors: [0.1, 0.2], the file one.npy with one vector, or row 17 of a matrix, all.npy#17."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._matrices: dict[str, NDArray[Any]] = {}

    def __call__(self, cell: Any) -> Vector | None:
        """The vector, or None for a blank cell. A DataError says in a few words why a cell cannot be read."""
        said = words(cell)
        if said is None:
            return None
        numbers = cell if _are_numbers(cell) else _listed(said)
        values = np.asarray(numbers) if numbers is not None else self._from_file(said)
        if values.ndim != 1 or values.dtype.kind not in "fiub" or not values.size:
            raise DataError(f"no vector of numbers but shape {values.shape}, {values.dtype}")
        if not np.isfinite(values).all():
            raise DataError("holds NaN or infinity")
        return values.astype(np.float32)

    def _from_file(self, said: str) -> NDArray[Any]:
        name, mark, row = said.partition("#")
        if name not in self._matrices:
            try:
                matrix = np.load(self.root / name, mmap_mode="r", allow_pickle=False)
            except FileNotFoundError:
                raise DataError("does not exist") from None
            except (OSError, ValueError) as error:
                raise DataError("is no .npy file, nor a list of numbers") from error
            if not mark:
                return np.asarray(matrix).reshape(-1) if matrix.ndim == 2 and len(matrix) == 1 else np.asarray(matrix)
            self._matrices[name] = matrix
        matrix = self._matrices[name]
        if not row.isdecimal() or matrix.ndim != 2 or int(row) >= len(matrix):
            raise DataError(f"has no such row: {name} has shape {matrix.shape}")
        return np.asarray(matrix[int(row)])


def _are_numbers(cell: Any) -> bool:
    return isinstance(cell, list) and bool(cell) and all(isinstance(x, int | float) for x in cell)


def _listed(said: str) -> list[float] | None:
    """The numbers of a cell such as [0.1, 0.2]."""
    if not (said.startswith("[") and said.endswith("]")):
        return None
    try:
        found = json.loads(said)
    except ValueError:
        return None
    return found if _are_numbers(found) else None
