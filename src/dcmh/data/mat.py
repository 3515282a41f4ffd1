"""Public .mat conventions for cross-modal data: feature vectors, labels, and sometimes a split.

Read are MATLAB files up to version 7.2, with
    I_tr, T_tr, L_tr, I_te, T_te, L_te, perhaps I_db, T_db, L_db    (one file, such as wikiData.mat)
    YAll, LAll, perhaps XAll or FAll                                (in one file, or NAME-yall.mat, NAME-lall.mat, …)
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.data.columns import Column, Vectors
from dcmh.data.dataset import Dataset
from dcmh.errors import DataError, MissingExtra

_READ = (
    "Read are files with I_tr, T_tr, L_tr, I_te, T_te, L_te, and files with YAll and LAll, "
    "such as NAME-yall.mat beside NAME-lall.mat"
)
_MODALITY = {"XAll": "image", "FAll": "image", "YAll": "text"}
_SPLIT_FILE = re.compile(r"(?P<name>.+)-(?P<part>[xyl]all|iall-vgg|xall-vgg)", re.IGNORECASE)


def load(path: Path | str) -> Dataset:
    """Feature vectors of one file, or of the files that belong together with it; or of the only such in a folder."""
    path = Path(path)
    if path.is_dir():
        path = _choose(path)
    arrays: dict[str, NDArray[Any]] = {}
    files = _siblings(path)
    for file in files:
        arrays |= _read(file)
    said = ", ".join(file.name for file in files)
    if {"I_tr", "T_tr", "L_tr", "I_te", "T_te", "L_te"} <= set(arrays):
        return _train_and_test(arrays, path)
    if {"YAll", "LAll"} <= set(arrays):
        return _whole(arrays, path, said)
    raise DataError(f"{said} holds {', '.join(sorted(arrays)) or 'no arrays'}. {_READ}.")


def _choose(folder: Path) -> Path:
    found = sorted(folder.glob("*.mat"))
    groups = {tuple(_siblings(file)) for file in found}
    if len(groups) != 1:
        raise DataError(f"{folder} holds {len(groups)} data sets in .mat files. Name one, such as {found[0]}.")
    return found[0]


def _siblings(path: Path) -> list[Path]:
    named = _SPLIT_FILE.fullmatch(path.stem)
    if named is None:
        return [path]
    return [
        file
        for file in sorted(path.parent.glob("*.mat"))
        if (other := _SPLIT_FILE.fullmatch(file.stem)) and other["name"] == named["name"]
    ]


def _read(file: Path) -> dict[str, NDArray[Any]]:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise MissingExtra('Reading .mat files needs SciPy. Install: pip install "dcmh[bench]"') from error
    try:
        found = loadmat(file)
    except NotImplementedError as error:
        raise DataError(
            f"{file.name} is a MATLAB 7.3 file (HDF5), which is not read yet. In MATLAB: save(…, '-v7')."
        ) from error
    except Exception as error:  # SciPy raises almost anything on damaged files
        raise DataError(f"{file.name} is no MATLAB file, or it is damaged ({error}). Get it again.") from error
    return {
        name: _dense(value)
        for name, value in found.items()
        if not name.startswith("__") and (hasattr(value, "toarray") or value.dtype.kind in "biuf")
    }


def _dense(value: Any) -> NDArray[Any]:
    array = np.asarray(value.toarray() if hasattr(value, "toarray") else value)
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def _train_and_test(arrays: dict[str, NDArray[Any]], path: Path) -> Dataset:
    """Test items are the queries; training items belong to the database, which I_db may extend."""
    order = [name for name in ("te", "tr", "db") if f"I_{name}" in arrays]
    image = np.concatenate([arrays[f"I_{name}"] for name in order])
    text = np.concatenate([arrays[f"T_{name}"] for name in order])
    labels = [_class_vector(arrays[f"L_{name}"]) for name in order]
    part_of = {"te": "query", "tr": "train", "db": "database"}
    parts = np.repeat([part_of[name] for name in order], [len(arrays[f"I_{name}"]) for name in order])
    data = Dataset(
        {"image": Vectors(image), "text": Vectors(text)},
        labels=np.concatenate(labels),
        name=path.stem,
        notes=[f"{path.name}: {(parts == 'query').sum():,} queries, {(parts != 'query').sum():,} others, as given."],
        parts=parts.tolist(),
    )
    return data.take(_without_repeats(image, text, parts)) if "db" in order else data


def _without_repeats(image: NDArray[Any], text: NDArray[Any], parts: NDArray[np.str_]) -> list[int]:
    """Rows without the database items that are training items as well: most files hold those twice."""
    trained = {image[row].tobytes() + text[row].tobytes() for row in np.flatnonzero(parts == "train")}
    return [
        row
        for row, part in enumerate(parts)
        if part != "database" or image[row].tobytes() + text[row].tobytes() not in trained
    ]


def _class_vector(labels: NDArray[Any]) -> NDArray[Any]:
    """Multi-hot labels as they are; one class an item, shape (items, 1) or (1, items), as whole numbers (items,)."""
    return labels.ravel().astype(np.int64) if 1 in labels.shape else labels


def _whole(arrays: dict[str, NDArray[Any]], path: Path, said: str) -> Dataset:
    used = {name: arrays[name] for name in (*_MODALITY, "LAll") if name in arrays}
    common = set.intersection(*(set(array.shape) for array in used.values()))
    if not common:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in used.items())
        raise DataError(f"The arrays of {said} have no length in common: {shapes}. Are they of one data set?")
    # Files saved by other tools have their axes the other way round: items are the length all arrays share.
    items = max(common)
    rows = {name: array if len(array) == items else array.T for name, array in used.items()}
    columns: dict[str, Column] = {_MODALITY[name]: Vectors(array) for name, array in rows.items() if name in _MODALITY}
    named = _SPLIT_FILE.fullmatch(path.stem)
    return Dataset(
        columns,
        labels=_class_vector(rows["LAll"]),
        name=named["name"] if named else path.stem,
        notes=[f"Read {said}: {items:,} items, {', '.join(columns)}."],
    )
