"""A column: one modality of a data set, one value an item, some of them perhaps missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import DataError

Kind = Literal["image", "text", "vector"]


class Images:
    """Pictures, decoded only when asked for.

    Each value is a path (relative ones count from `root`), a uint8 array (height, width, 3), or None where there is none.
    """

    kind: Kind = "image"

    def __init__(self, values: Sequence[str | Path | NDArray[np.uint8] | None], *, root: Path | str | None = None) -> None:
        self.values = list(values)
        self.root = Path(root) if root is not None else None
        self.observed: NDArray[np.bool_] = np.array([value is not None for value in self.values], bool)

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: NDArray[np.intp]) -> Self:
        return type(self)([self.values[i] for i in rows], root=self.root)

    def path(self, row: int) -> Path | None:
        """The file of one picture; None for a picture that lies in memory, or is missing."""
        value = self.values[row]
        if value is None or isinstance(value, np.ndarray):
            return None
        return self.root / value if self.root is not None else Path(value)


class Texts:
    """Words: one string an item, or None where there is none."""

    kind: Kind = "text"

    def __init__(self, values: Sequence[str | None]) -> None:
        self.values = list(values)
        self.observed: NDArray[np.bool_] = np.array([value is not None for value in self.values], bool)

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: NDArray[np.intp]) -> Self:
        return type(self)([self.values[i] for i in rows])


class Vectors:
    """Feature vectors, shape (items, features). `observed` says which rows are there."""

    kind: Kind = "vector"

    def __init__(self, values: NDArray[Any], *, observed: NDArray[np.bool_] | None = None) -> None:
        self.values = np.asarray(values)
        if self.values.ndim != 2:
            raise DataError(f"Feature vectors need two dimensions (items, features), not shape {self.values.shape}.")
        self.observed = np.ones(len(self.values), bool) if observed is None else np.asarray(observed, bool)
        if not np.isfinite(self.values[self.observed]).all():
            row = int(np.flatnonzero(self.observed)[np.flatnonzero(~np.isfinite(self.values[self.observed]).all(axis=1))[0]])
            raise DataError(f"Feature vector of item {row} holds NaN or infinity. Remove the item or repair its features.")

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: NDArray[np.intp]) -> Self:
        return type(self)(self.values[rows], observed=self.observed[rows])


Column = Images | Texts | Vectors
