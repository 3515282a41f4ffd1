"""A column: one modality of a data set, with one value per item, some of them perhaps missing."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import DataError
from dcmh.util.text import sanitized

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

Kind = Literal["image", "text", "vector"]
PICTURE_SIZE = 224  # pixels on each side with which pictures enter most image networks
HEIC_SUFFIXES = (".heic", ".heif", ".hif")  # read with the extra `heic`
IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", *HEIC_SUFFIXES
)  # fmt: skip
HEIC_HINT = 'to read HEIC: pip install "dcmh[heic]"'


def can_read_heic() -> bool:
    """Whether the extra `heic` is installed."""
    return importlib.util.find_spec("pillow_heif") is not None


def is_pil_image(value: object) -> bool:
    """Whether this is a PIL image, checked without loading Pillow."""
    image = sys.modules.get("PIL.Image")
    return image is not None and isinstance(value, image.Image)


class Store(Protocol):
    """A file of many pictures, such as an HDF5 array or a zip, read one picture at a time.

    A store that other processes can open has its path as the attribute `file`, and can be pickled.
    """

    def read(self, key: Any) -> NDArray[np.uint8] | bytes:
        """One picture: an array, or the bytes of an image file."""
        ...


@dataclass(frozen=True, slots=True)
class Stored:
    """One picture of a store, read when needed and not kept."""

    store: Store
    key: Any

    def read(self) -> NDArray[np.uint8] | bytes:
        """The picture: an array, or the bytes of an image file."""
        return self.store.read(self.key)


class Images:
    """Pictures, decoded only when needed.

    Each value is a path (relative to `root`), a uint8 array (height, width, 3), a PIL image, a `Stored` picture, or None if
    missing.
    `bags` are bags of visual words that the pictures came with, shape (pictures, visual words).
    """

    kind: Kind = "image"

    def __init__(
        self,
        values: Sequence[str | Path | NDArray[np.uint8] | PILImage | Stored | None],
        *,
        root: Path | str | None = None,
        bags: Vectors | None = None,
    ) -> None:
        if isinstance(values, str | bytes | Path):
            raise DataError("Pictures need a list of paths or pictures, got a single one. Write [path].")
        self.values = list(values)
        self.bags = bags
        if bags is not None and len(bags) != len(self.values):
            raise DataError(
                f"{len(bags):,} bags of visual words are given for {len(self.values):,} pictures. Give one per picture."
            )
        for row, value in enumerate(self.values):
            if not (value is None or isinstance(value, str | Path | np.ndarray | Stored) or is_pil_image(value)):
                raise DataError(
                    f"Picture of item {row} is a {type(value).__name__}. Give a path, a uint8 array "
                    f"(height, width, 3), a PIL image, or None if there is no picture."
                )
            if isinstance(value, str | Path) and sanitized(str(value)) != str(value):
                raise DataError(
                    f"Picture of item {row}, {sanitized(str(value))}: its name is not UTF-8. Rename the file, or leave it out."
                )
        self.root = Path(root) if root is not None else None
        self.observed: NDArray[np.bool_] = np.array([value is not None for value in self.values], bool)

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: NDArray[np.intp]) -> Self:
        """The values of these rows, in that order."""
        bags = None if self.bags is None else self.bags.take(rows)
        return type(self)([self.values[i] for i in rows], root=self.root, bags=bags)

    def path(self, row: int) -> Path | None:
        """The file of one picture; None if it has no file of its own, or is missing."""
        value = self.values[row]
        if not isinstance(value, str | Path):
            return None
        return self.root / value if self.root is not None else Path(value)

    def source(self, row: int) -> Path | NDArray[np.uint8] | PILImage | bytes | None:
        """What `dcmh.inputs.images.decode` takes: one picture as a file, bytes, an array or a PIL image; None if missing."""
        value = self.values[row]
        if isinstance(value, Stored):
            return value.read()
        return self.path(row) if isinstance(value, str | Path) else value


class Texts:
    """Texts: one string per item, or None if missing. A blank text counts as missing.

    Unpaired surrogates, which cannot be written to a file, become U+FFFD.
    """

    kind: Kind = "text"

    def __init__(self, values: Sequence[str | None]) -> None:
        if isinstance(values, str):
            raise DataError("Texts need a list of strings, got one string. Write [text].")
        self.values: list[str | None] = []
        for row, value in enumerate(values):
            if value is not None and not isinstance(value, str):
                raise DataError(
                    f"Text of item {row} is a {type(value).__name__}. Give a string, or None if there is no text."
                )
            self.values.append(sanitized(str(value)) if value is not None and value.strip() else None)
        self.observed: NDArray[np.bool_] = np.array([value is not None for value in self.values], bool)

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: NDArray[np.intp]) -> Self:
        """The values of these rows, in that order."""
        return type(self)([self.values[i] for i in rows])


class Vectors:
    """Feature vectors, shape (items, features). `observed` marks the rows that are not missing."""

    kind: Kind = "vector"

    def __init__(self, values: NDArray[Any], *, observed: NDArray[np.bool_] | None = None) -> None:
        self.values = np.asarray(values)
        if self.values.ndim != 2:
            raise DataError(
                f"Feature vectors need two dimensions (items, features), not shape {self.values.shape}. "
                f"Flatten each item to one row."
            )
        if self.values.dtype.kind not in "fiub":
            raise DataError(f"Feature vectors must be numbers, not {self.values.dtype}. Convert them to float32.")
        self.observed: NDArray[np.bool_] = (
            np.ones(len(self.values), bool) if observed is None else np.asarray(observed, bool)
        )
        if self.observed.shape != (len(self.values),):
            raise DataError(
                f"observed has shape {self.observed.shape}; expected one value for {len(self.values)} items."
            )
        # Missing rows may hold anything.
        bad = np.flatnonzero(~_are_finite(self.values) & self.observed)
        if len(bad):
            raise DataError(
                f"Feature vector of item {bad[0]} holds NaN or infinity. Remove the item, repair its features, "
                f"or mark it as missing: Vectors(values, observed=mask)."
            )

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: NDArray[np.intp]) -> Self:
        """The values of these rows, in that order."""
        return type(self)(self.values[rows], observed=self.observed[rows])


def _are_finite(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows hold neither NaN nor infinity; in blocks, so that it takes little memory."""
    if values.dtype.kind != "f":
        return np.ones(len(values), bool)
    blocks = [np.isfinite(values[start : start + 65_536]).all(axis=1) for start in range(0, len(values), 65_536)]
    return np.concatenate(blocks) if blocks else np.ones(0, bool)


Column = Images | Texts | Vectors
