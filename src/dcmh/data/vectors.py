"""Existing vectors: .npy, one matrix; .npz, one matrix per modality, and perhaps `labels` and `ids`."""

from __future__ import annotations

from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from dcmh.data.columns import Column, Vectors
from dcmh.data.dataset import Dataset
from dcmh.errors import DataError
from dcmh.util.formats import read_npy, readable

SUFFIXES = (".npy", ".npz")
MODALITY = "vectors"  # of a .npy file, whose matrix has no name
_ABOUT = ("labels", "ids")


def load(file: Path) -> Dataset:
    """The vectors of a file, one row per item; items without `ids` are named by the number of their row."""
    with readable(file, DataError, hint="Write it again, with numpy.save or numpy.savez."):
        arrays = {MODALITY: read_npy(file)} if file.suffix.lower() == ".npy" else _read_npz(file)
    about = {name: arrays.pop(name) for name in _ABOUT if name in arrays}
    if not arrays:
        raise DataError(f"{file} holds no vectors.", which=file, hint="Give a matrix (items, features).")
    for name, array in arrays.items():
        if array.ndim != 2 or array.dtype.kind not in "fiu":
            raise DataError(
                f"{file}: {name} is an array of {array.dtype} with shape {array.shape}, not a matrix of numbers.",
                which=file,
                hint="Give vectors as (items, features); labels and ids under these names.",
            )
    ids = [str(name) for name in about["ids"]] if "ids" in about else None
    columns: dict[str, Column] = {name: Vectors(array) for name, array in arrays.items()}
    return Dataset(columns, labels=about.get("labels"), ids=ids, name=file.stem)


def _read_npz(file: Path) -> dict[str, NDArray[np.generic]]:
    try:
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as opened:
            return {name: opened[name] for name in opened.files}
    except (BadZipFile, EOFError) as error:
        raise ValueError(str(error) or "it ends early") from error
