"""Variables of MATLAB files: version 5 to 7.2 through SciPy, version 7.3 (HDF5) through h5py, read in blocks.

HDF5 stores MATLAB's axes in reverse: here a matrix has the shape that MATLAB shows, in files of either version. Pictures are
read only when needed. How they are stored is recognized by the axes as NumPy sees them:

    (N, 3, A, B)   in HDF5: MATLAB's height x width x 3 x N, so A is the width; in older files A is the height
    (N, A, B, 3)   A is the height
    (A, B, 3, N)   A is the height
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.data import mat_process
from dcmh.data.columns import Stored
from dcmh.data.mat_process import check_sparse, compact
from dcmh.errors import DataError, DCMHError, ImageError, MissingExtra, needs
from dcmh.util.formats import reason

_BLOCK = 16 << 20  # bytes of a matrix read at a time
_CACHE = 16 << 20  # bytes of HDF5 chunks kept while pictures are read


@dataclass(frozen=True)
class Layout:
    """Which of NumPy's axes are the items, and which the height, width and colours."""

    item: int
    axes: tuple[int, int, int]  # of one picture, as (height, width, colour)

    def size(self, shape: Sequence[int]) -> tuple[int, int]:
        """Height and width of pictures in an array of this shape."""
        picture = [length for axis, length in enumerate(shape) if axis != self.item]
        return picture[self.axes[0]], picture[self.axes[1]]


def layout_of(shape: Sequence[int], *, hdf5: bool) -> Layout | None:
    """The layout by the rule above; None if no axis can be the colours."""
    if len(shape) != 4:
        return None
    if shape[1] == 3:
        return Layout(0, (2, 1, 0) if hdf5 else (1, 2, 0))
    if shape[3] == 3:
        return Layout(0, (0, 1, 2))
    return Layout(3, (0, 1, 2)) if shape[2] == 3 else None


class PictureArray:
    """Pictures in one array of four axes; also the `Store` of each of them."""

    def __init__(self, source: Any, layout: Layout, where: str) -> None:
        self._source = source  # has a shape and can be indexed
        self.layout = layout
        self.where = where
        self.height, self.width = layout.size(source.shape)

    def __len__(self) -> int:
        return int(self._source.shape[self.layout.item])

    def read(self, key: int) -> NDArray[np.uint8]:
        """One picture, (height, width, 3)."""
        try:
            values = self._source[key] if self.layout.item == 0 else self._source[..., key]
        except Exception as error:  # h5py raises almost anything on damaged files
            raise ImageError(f"damaged in {self.where} ({reason(error)})") from error
        picture = values.transpose(self.layout.axes)
        if picture.dtype != np.uint8:
            picture = np.clip(np.rint(picture), 0, 255).astype(np.uint8)
        return np.ascontiguousarray(picture)

    def stored(self) -> list[Stored]:
        """The pictures as values of an `Images` column."""
        return [Stored(self, row) for row in range(len(self))]


def read(file: Path) -> dict[str, Variable]:
    """The variables of a MATLAB file that hold numbers or text, by name."""
    try:
        with file.open("rb") as opened:
            start = opened.read(8)
            opened.seek(512)  # MATLAB's own header comes before that of HDF5
            later = opened.read(8)
    except OSError as error:
        raise DataError(f"Cannot read {file}: {error.strerror}. Check the path and the file permissions.") from error
    signature = b"\x89HDF\r\n\x1a\n"
    return _read_hdf5(file) if signature in (start, later) else _read_old(file)


# -- up to version 7.2 --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OldVariable:
    """A variable that SciPy has read, a list of strings if it is text; `shape` is MATLAB's."""

    name: str
    file: Path
    value: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """MATLAB's shape."""
        return (len(self.value),) if self.is_text else tuple(self.value.shape)

    @property
    def is_text(self) -> bool:
        """Whether it holds text: a char array or a cell array."""
        return isinstance(self.value, list)

    def matrix(self) -> NDArray[Any]:
        """The numbers, as uint8 if all are integers below 256, otherwise as float32."""
        if hasattr(self.value, "toarray"):
            sparse = self.value
            sparse.data = compact(sparse.data)
            return _dense(sparse, self.file)
        return compact(np.asarray(self.value))

    def strings(self) -> list[str]:
        """The rows of a char array, or the cells of a cell array."""
        return list(self.value)

    def pictures(self) -> PictureArray:
        """The pictures of an array of four axes."""
        layout = layout_of(self.shape, hdf5=False)
        return PictureArray(self.value, _checked(layout, self), f"{self.name} of {self.file.name}")


def _read_old(file: Path) -> dict[str, Variable]:
    try:
        values = mat_process.load(file)
    except ImportError as error:
        raise MissingExtra('Reading .mat files needs SciPy. Install: pip install "dcmh[bench]"') from error
    except ValueError as error:
        raise DataError(
            f"{file.name} is not a MATLAB file, or it is damaged ({error}).", which=file, hint="Get it again."
        ) from error
    return {name: OldVariable(name, file, value) for name, value in values.items()}


# -- version 7.3 --------------------------------------------------------------------------------------------------


class _Source:
    """A data set of an HDF5 file, which each process opens for itself when it first reads."""

    def __init__(self, file: Path, name: str, shape: tuple[int, ...]) -> None:
        self.file, self.name, self.shape = file, name, shape
        self._set: Any = None
        self._lock = threading.Lock()

    def __getitem__(self, index: Any) -> NDArray[Any]:
        with self._lock:
            if self._set is None:
                import h5py

                self._set = h5py.File(self.file, "r", rdcc_nbytes=_CACHE)[self.name]
            return np.asarray(self._set[index])

    def __reduce__(self) -> tuple[type[_Source], tuple[Path, str, tuple[int, ...]]]:
        return _Source, (self.file, self.name, self.shape)


@dataclass(frozen=True)
class HDF5Variable:
    """A variable of a version 7.3 file, which stays on disk; `shape` is MATLAB's."""

    name: str
    file: Path
    shape: tuple[int, ...]
    is_text: bool
    sparse: bool = False

    def matrix(self) -> NDArray[Any]:
        """See `OldVariable.matrix`."""
        with _opened(self.file) as file:
            if self.sparse:
                return _dense(_from_sparse(file[self.name], self.shape), self.file)
            stored = file[self.name]  # (columns, rows) where MATLAB shows (rows, columns)
            if stored.ndim != 2:
                return compact(np.asarray(stored).T)
            matrix: NDArray[Any] = np.zeros(self.shape, np.uint8)
            step = max(1, _BLOCK // max(1, stored.shape[1] * stored.dtype.itemsize))
            step = -(-step // (stored.chunks or (1,))[0]) * (stored.chunks or (1,))[0]
            for start in range(0, stored.shape[0], step):
                block = compact(stored[start : start + step])
                if block.dtype != matrix.dtype:
                    matrix = matrix.astype(np.float32)
                matrix[:, start : start + step] = block.T
            return matrix

    def strings(self) -> list[str]:
        """See `OldVariable.strings`."""
        with _opened(self.file) as file:
            return _hdf5_strings(file, file[self.name])

    def pictures(self) -> PictureArray:
        """See `OldVariable.pictures`."""
        stored = self.shape[::-1]
        layout = _checked(layout_of(stored, hdf5=True), self)
        return PictureArray(_Source(self.file, self.name, stored), layout, f"{self.name} of {self.file.name}")


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    with needs("Reading MATLAB 7.3 files needs h5py", "dcmh[bench]"):
        import h5py
    try:
        with h5py.File(file, "r") as opened:
            yield opened
    except DCMHError:
        raise
    except Exception as error:  # h5py raises almost anything on damaged files
        raise DataError(
            f"{file.name} is a damaged MATLAB 7.3 file ({reason(error)}).", which=file, hint="Get it again."
        ) from error


def _read_hdf5(file: Path) -> dict[str, Variable]:
    variables: dict[str, Variable] = {}
    with _opened(file) as opened:
        for name, value in opened.items():
            if name.startswith("#"):
                continue
            if "MATLAB_sparse" in value.attrs:
                shape = int(value.attrs["MATLAB_sparse"]), len(value["jc"]) - 1
                variables[name] = HDF5Variable(name, file, shape, False, sparse=True)
            elif hasattr(value, "dtype") and (value.dtype.kind in "biuf" or value.dtype == object):
                text = value.dtype == object or value.attrs.get("MATLAB_class") == b"char"
                variables[name] = HDF5Variable(name, file, tuple(value.shape[::-1]), text)
    return variables


def _from_sparse(group: Any, shape: tuple[int, ...]) -> Any:
    from scipy.sparse import csc_array

    data = compact(np.asarray(group["data"])) if "data" in group else np.zeros(0, np.uint8)
    rows = np.asarray(group["ir"]) if "ir" in group else np.zeros(0, np.int64)
    sparse = csc_array((data, rows, np.asarray(group["jc"])), shape=shape)
    check_sparse(sparse)
    return sparse


def _hdf5_strings(file: Any, value: Any) -> list[str]:
    if value.dtype == object:  # a cell array: references; or variable-length strings that Python wrote
        cells = list(np.asarray(value).T.ravel())
        if cells and isinstance(cells[0], bytes | str):
            return [cell.decode() if isinstance(cell, bytes) else cell for cell in cells]
        return ["\n".join(_hdf5_strings(file, file[cell])) for cell in cells]
    letters = np.asarray(value)
    rows = letters.T if letters.ndim == 2 else letters[None]  # (texts, letters)
    return ["".join(chr(letter) for letter in row).strip("\0 ") for row in rows]


Variable = OldVariable | HDF5Variable

# -- both ---------------------------------------------------------------------------------------------------------


def _checked(layout: Layout | None, variable: Variable) -> Layout:
    if layout is None:
        raise DataError(
            f"{variable.name} of {variable.file.name} has the shape {_shape_text(variable.shape)}; pictures need four axes, one "
            "of them the three colours. Save them as height x width x 3 x N."
        )
    return layout


def _dense(sparse: Any, file: Path) -> NDArray[Any]:
    try:
        return np.asarray(sparse.toarray())
    except (MemoryError, ValueError) as error:
        raise DataError(
            f"{file.name} holds a sparse array of {_shape_text(sparse.shape)}, which does not fit in memory.",
            which=file,
            hint="Is it damaged? Get it again, or convert it on a larger machine.",
        ) from error


def _shape_text(shape: Sequence[int]) -> str:
    return " x ".join(f"{length:,}" for length in shape)
