"""MATLAB files of version 4 to 7.2, read by SciPy in a separate process, since its C code can crash on a damaged file.

The process writes each array, in the type in which it will be used, as a .npy file into a temporary folder. It is mapped
here, so that a large array is copied once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.util.formats import read_npy, read_object, reason
from dcmh.util.subprocesses import command, environment

SECONDS = 60.0  # for the start of the process and a small file
BYTES_PER_SECOND = 1 << 20  # added to that for a large file: the slowest rate that is waited for
_LISTING = "variables.json"


def load(file: Path) -> dict[str, Any]:
    """The variables by name: arrays, sparse arrays, and lists of strings. A ValueError if the file cannot be read."""
    with tempfile.TemporaryDirectory(prefix="dcmh-mat-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        record = _run(file, folder)
        if "missing" in record:
            raise ImportError(record["missing"])
        if "error" in record:
            raise ValueError(record["error"])
        return {name: _value(folder, kind, value) for name, kind, value in record["variables"]}


def _run(file: Path, folder: Path) -> dict[str, Any]:
    """The answer of the process: the variables that it has written, or why it cannot read the file."""
    try:
        ended = subprocess.run(
            command("from dcmh.data.mat_process import main; main()", str(file), str(folder)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
            timeout=SECONDS + os.path.getsize(file) / BYTES_PER_SECOND,
        )
    except subprocess.TimeoutExpired:
        raise ValueError("reading it took too long") from None
    if ended.returncode or not (folder / _LISTING).is_file():
        raise ValueError(f"the process that read it ended with status {ended.returncode}")
    return read_object(folder / _LISTING)


def _value(folder: Path, kind: str, value: Any) -> Any:
    if kind == "text":
        return value
    arrays = [read_npy(folder / name, mmap="c") for name in value["files"]]  # the mapping outlives the folder
    if kind == "array":
        return arrays[0]
    from scipy.sparse import csc_array

    return csc_array(tuple(arrays), shape=tuple(value["shape"]))


def compact(values: NDArray[Any]) -> NDArray[Any]:
    """The values as uint8 if all are integers below 256, otherwise as float32."""
    if values.dtype.kind == "b":
        return values.astype(np.uint8)
    if values.size == 0 or (values.min() >= 0 and values.max() < 256):
        if values.dtype == np.uint8:
            return values
        integers = values.astype(np.uint8)
        if (integers == values).all():
            return integers
    return values.astype(np.float32) if values.dtype != np.float32 else values


def check_sparse(sparse: Any) -> None:
    """Refuse a damaged sparse array: an index outside its shape would be written outside the dense one."""
    sparse.check_format(full_check=True)
    if (np.diff(sparse.indptr) < 0).any():  # SciPy does not look if the last one says that there are no values
        raise ValueError("the columns of a sparse array are not in order")


# -- in the process -------------------------------------------------------------------------------------------------


def main() -> None:
    """Read the file named first into the folder named second."""
    file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        record: dict[str, Any] = {"variables": _write(file, folder)}
    except ImportError as error:
        record = {"missing": str(error)}
    except Exception as error:  # SciPy raises almost anything on damaged files
        record = {"error": reason(error)}
    (folder / _LISTING).write_text(json.dumps(record), encoding="utf-8")
    os._exit(0)  # skips cleaning up: a damaged file may have corrupted the memory


def _write(file: Path, folder: Path) -> list[tuple[str, str, Any]]:
    from scipy.io import loadmat

    written: list[tuple[str, str, Any]] = []
    options = {"spmatrix": False} if "spmatrix" in signature(loadmat).parameters else {}
    for name, value in loadmat(file, **options).items():
        if name.startswith("__"):
            continue
        if hasattr(value, "toarray"):
            sparse = value.tocsc()
            check_sparse(sparse)
            files = _save(folder, len(written), sparse.data, sparse.indices, sparse.indptr)
            written.append((name, "sparse", {"files": files, "shape": [int(length) for length in sparse.shape]}))
        elif isinstance(value, np.ndarray) and value.dtype.kind in "UO":
            written.append((name, "text", [_joined(cell) for cell in value.ravel()]))
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            written.append((name, "array", {"files": _save(folder, len(written), compact(value))}))
    return written


def _save(folder: Path, number: int, *arrays: Any) -> list[str]:
    names = [f"{number}-{part}.npy" for part in range(len(arrays))]
    for name, array in zip(names, arrays, strict=True):
        np.save(folder / name, array, allow_pickle=False)
    return names


def _joined(cell: Any) -> str:
    """The text of a cell; several texts in one cell become lines."""
    if isinstance(cell, np.ndarray):
        return "\n".join(_joined(text) for text in cell.ravel())
    return str(cell).strip()
