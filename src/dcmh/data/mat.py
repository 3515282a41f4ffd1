"""The conventions of public .mat files for cross-modal data: pictures or features, bags of words, labels, and a split.

    images, YAll, LAll                          FLICKR-25K.mat; images are pixels
    IAll, TAll, LAll                            pixels or features
    NAME-iall.mat, NAME-yall.mat, NAME-lall.mat with IAll, YAll, LAll; NAME-iall-vgg.mat or NAME-xall-vgg.mat with XAll
    XTest, YTest, XDatabase, YDatabase, testL, databaseL, perhaps VTest, VDatabase (deep features)
    I_tr, T_tr, L_tr, I_te, T_te, L_te, perhaps I_db, T_db, L_db
    imgList.mat, tagList.mat, labelList.mat     with FAll, YAll, LAll or imgs, tags, labels
    index.mat, caption.mat, label.mat           with index (paths of pictures), caption, category or label

Files of MATLAB 5 to 7.3 (HDF5) can be read. The axis of the items is the one whose length the variables share; a note says
which of them were transposed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.data import mat_variables
from dcmh.data.columns import Column, Images, Stored, Texts, Vectors
from dcmh.data.dataset import Dataset
from dcmh.data.mat_variables import PictureArray, Variable
from dcmh.errors import DataError, ParameterError

_READ = (
    "Supported are files with I_tr, T_tr, L_tr, I_te, T_te, L_te; with XTest, YTest, testL, XDatabase, YDatabase, databaseL; and "
    "with labels (LAll) beside pictures or features (images, IAll, XAll, FAll) and words (YAll, TAll), also over several files"
)
# Names of the same thing, in order of preference.
_IMAGE = ("images", "IAll", "XAll", "FAll", "imgs", "index", "VAll")
_TEXT = ("YAll", "TAll", "tags", "caption")
_LABELS = ("LAll", "labels", "category", "label")
_TOGETHER = (("imglist", "taglist", "labellist"), ("index", "caption", "label"))
_SPLIT_FILE = re.compile(r"(?P<name>.+)-(?P<part>[ixytl]all(?:-\w+)?)", re.IGNORECASE)

Part = tuple[str, dict[str, str]]  # "query", "database" or "train", and the variable of each modality


def load(path: Path | str, *, image: str | None = None, photos: Path | str | None = None) -> Dataset:
    """Items of one file, or of the files that belong together with it; or of the only ones in a folder.

    Parameters
    ----------
    image
        The variable to take as images if the files hold several, such as XAll or V.
    photos
        The folder of the pictures that the file names. Default: beside it.
    """
    path = Path(path)
    if path.is_dir():
        path = _choose(path)
    files = _siblings(path)
    variables: dict[str, Variable] = {}
    for file in files:
        variables |= mat_variables.read(file)
    names = ", ".join(file.name for file in files)
    parts = _parts(variables, names, image)
    reader = _Reader(variables, Path(photos).expanduser() if photos is not None else path.parent, names)
    columns, labels, split = reader.assemble(parts)
    unused = sorted(_image_like(variables) - {names["image"] for _, names in parts if "image" in names})
    used = ", ".join(name for _, names in parts for name in names.values())
    notes = [_summary(f"{names} ({used})", columns, labels, split), *reader.notes]
    if unused:
        notes.append(f"Not used: {', '.join(unused)} (choose with the option image).")
    data = Dataset(columns, labels=labels, name=_name(path), notes=notes, parts=split)
    return data.take(_without_repeats(data)) if split is not None and len(parts) > 2 else data


# -- which files, which variables -----------------------------------------------------------------------------------


def _choose(folder: Path) -> Path:
    files = sorted(folder.glob("*.mat"))
    groups = {tuple(_siblings(file)) for file in files}
    if len(groups) != 1:
        raise DataError(f"{folder} holds {len(groups)} data sets in .mat files. Name one, such as {files[0]}.")
    return files[0]


def _siblings(path: Path) -> list[Path]:
    files = sorted(path.parent.glob("*.mat"))
    for together in _TOGETHER:
        if path.stem.lower() in together:
            return [file for file in files if file.stem.lower() in together]
    named = _SPLIT_FILE.fullmatch(path.stem)
    if named is None:
        return [path]
    return [
        file for file in files if (match := _SPLIT_FILE.fullmatch(file.stem)) and match["name"] == named["name"]
    ] or [path]


def _name(path: Path) -> str:
    if any(path.stem.lower() in together for together in _TOGETHER):
        return path.resolve().parent.name
    named = _SPLIT_FILE.fullmatch(path.stem)
    return named["name"] if named else path.stem


def _parts(variables: Mapping[str, Variable], files: str, image: str | None) -> list[Part]:
    """The variables of each part of the data, queries first; one part called "" if there is no split."""
    have = set(variables)
    if {"I_tr", "T_tr", "L_tr", "I_te", "T_te", "L_te"} <= have:
        letter = _pick("I", ("I",), image)
        return [
            (part, {"image": f"{letter}_{name}", "text": f"T_{name}", "labels": f"L_{name}"})
            for name, part in (("te", "query"), ("tr", "train"), ("db", "database"))
            if f"I_{name}" in have
        ]
    if {"XTest", "YTest", "XDatabase", "YDatabase", "testL", "databaseL"} <= have:
        letter = _pick("X", ("X", "V") if {"VTest", "VDatabase"} <= have else ("X",), image)
        return [
            ("query", {"image": f"{letter}Test", "text": "YTest", "labels": "testL"}),
            ("database", {"image": f"{letter}Database", "text": "YDatabase", "labels": "databaseL"}),
        ]
    chosen = {"image": _first(_IMAGE, have), "text": _first(_TEXT, have), "labels": _first(_LABELS, have)}
    if image is not None:
        chosen["image"] = _pick(image, tuple(sorted(_image_like(variables))), image)
    if chosen["labels"] is None or (chosen["image"] is None and chosen["text"] is None):
        raise DataError(f"{files} holds {', '.join(sorted(variables)) or 'no arrays'}. {_READ}.")
    return [("", {role: name for role, name in chosen.items() if name is not None})]


def _first(names: Sequence[str], have: set[str]) -> str | None:
    return next((name for name in names if name in have), None)


def _pick(default: str, choices: tuple[str, ...], image: str | None) -> str:
    if image is not None and image not in choices:
        raise ParameterError(f"image must be one of {', '.join(choices)}, not {image!r}.")
    return image or default


def _image_like(variables: Mapping[str, Variable]) -> set[str]:
    return {name for name in variables if name in _IMAGE or name in ("VTest", "VDatabase", "XTest", "XDatabase")}


# -- one part and all of them -----------------------------------------------------------------------------------------


class _Reader:
    """Turns variables into columns; `notes` says what was transposed or skipped, and how pictures are stored."""

    def __init__(self, variables: Mapping[str, Variable], photos: Path, files: str) -> None:
        self.variables = variables
        self.photos = photos
        self.files = files
        self.notes: list[str] = []

    def assemble(self, parts: Sequence[Part]) -> tuple[dict[str, Column], NDArray[Any], list[str] | None]:
        """Columns, labels and the split of all parts, concatenated."""
        read = [self._part(names) for _, names in parts]
        columns: dict[str, Column] = {}
        for role in ("image", "text"):
            pieces = [part[role] for part in read if role in part]
            if pieces:
                columns[role] = _joined(pieces)
        labels = [_class_vector(part["labels"]) for part in read]
        if len({part.shape[1:] for part in labels}) > 1:
            shapes = ", ".join(str(part.shape) for part in labels)
            raise DataError(f"The parts of {self.files} have different labels: {shapes}.")
        if len(parts) == 1:
            return columns, labels[0], None
        split = [name for (name, _), part in zip(parts, labels, strict=True) for _ in range(len(part))]
        return columns, np.concatenate(labels), split

    def _part(self, names: Mapping[str, str]) -> dict[str, Any]:
        """The values of one part of the data by role: image, text and labels."""
        values: dict[str, Any] = {}
        matrices: dict[str, NDArray[Any]] = {}
        counts: dict[str, int] = {}
        for role, name in names.items():
            variable = self.variables[name]
            if variable.is_text:
                values[role] = self._texts(variable, role)
                counts[name] = len(values[role])
            elif len(variable.shape) == 4:
                values[role] = self._pictures(variable)
                counts[name] = len(values[role])
            else:
                matrices[name] = variable.matrix()
        items = self._count(counts, matrices)
        for role, name in names.items():
            if name in matrices:
                values[role] = self._rows(name, matrices[name], items)
        return values

    def _count(self, counts: Mapping[str, int], matrices: Mapping[str, NDArray[Any]]) -> int:
        """The number of items: the length that all variables of the part share."""
        shapes = {name: (count,) for name, count in counts.items()} | {n: m.shape for n, m in matrices.items()}
        common = set.intersection(*(set(shape) for shape in shapes.values()))
        firsts = {shape[0] for shape in shapes.values()}
        if len(firsts) == 1 and firsts <= common:
            return int(firsts.pop())  # as MATLAB shows them: items are the rows
        if not common:
            sizes = ", ".join(f"{name} {' x '.join(f'{n:,}' for n in shape)}" for name, shape in shapes.items())
            raise DataError(
                f"The arrays of {self.files} have no length in common: {sizes}. Are they complete, and of one data set?"
            )
        return int(max(common))

    def _rows(self, name: str, matrix: NDArray[Any], items: int) -> NDArray[Any]:
        if matrix.ndim != 2:
            raise DataError(f"{name} of {self.files} has {matrix.ndim} axes; expected items x features.")
        if matrix.shape[0] == items:
            return matrix
        if 1 not in matrix.shape:
            self.notes.append(
                f"{name} ({matrix.shape[0]:,} x {matrix.shape[1]:,}) was transposed: its columns are the items."
            )
        return np.ascontiguousarray(matrix.T)

    def _pictures(self, variable: Variable) -> PictureArray:
        pictures = variable.pictures()
        self.notes.append(f"{variable.name} holds pictures, {pictures.height} high and {pictures.width} wide.")
        return pictures

    def _texts(self, variable: Variable, role: str) -> Any:
        strings = variable.strings()
        if role == "labels":
            return np.array(strings)
        return Texts(strings) if role == "text" else Images(self._files(strings, variable), root=self.photos)

    def _files(self, names: Sequence[str], variable: Variable) -> list[str | None]:
        """Paths relative to the folder of the pictures, None if missing. Paths of another machine match by their ends."""
        paths: list[str | None] = []
        for name in names:
            parts = PureWindowsPath(name).parts if "\\" in name else PurePosixPath(name).parts
            tails = ("/".join(parts[start:]) for start in range(len(parts)) if parts[start] != "/")
            paths.append(next((tail for tail in tails if (self.photos / tail).is_file()), None))
        missing = [name for name, path in zip(names, paths, strict=True) if path is None]
        if len(missing) == len(names):
            raise DataError(
                f"None of the {len(names):,} pictures that {variable.file.name} names is in {self.photos}; the first is "
                f"{missing[0]}. Give their folder with the option photos."
            )
        if missing:
            self.notes.append(f"{len(missing):,} of {len(names):,} pictures are missing, the first is {missing[0]}.")
        return paths


def _joined(pieces: Sequence[Any]) -> Column:
    """The parts of one modality, concatenated."""
    if all(isinstance(piece, np.ndarray) for piece in pieces):
        widths = {piece.shape[1] for piece in pieces}
        if len(widths) > 1:
            raise DataError(
                f"The parts of a modality have {' and '.join(map(str, sorted(widths)))} features. Are they of the same data set?"
            )
        return Vectors(pieces[0] if len(pieces) == 1 else np.concatenate(pieces))
    if all(isinstance(piece, Texts) for piece in pieces):
        return Texts([value for piece in pieces for value in piece.values])
    values: list[str | Path | NDArray[np.uint8] | Stored | None] = []
    for piece in pieces:
        values += piece.stored() if isinstance(piece, PictureArray) else piece.values
    return Images(values, root=next((piece.root for piece in pieces if isinstance(piece, Images)), None))


def _class_vector(labels: NDArray[Any]) -> NDArray[Any]:
    """Multi-hot labels unchanged; one class per item, shape (items, 1) or (1, items), as integers (items,)."""
    if labels.ndim == 2 and 1 in labels.shape:
        return labels.ravel().astype(np.int64)
    return labels


def _without_repeats(data: Dataset) -> list[int]:
    """All rows except the database items that are also training items: most files hold those twice."""
    assert data.parts is not None
    vectors = [column.values for column in data.columns.values() if isinstance(column, Vectors)]

    def content(row: int) -> bytes:
        return b"".join(values[row].tobytes() for values in vectors)

    trained = {content(row) for row, part in enumerate(data.parts) if part == "train"}
    return [row for row, part in enumerate(data.parts) if part != "database" or content(row) not in trained]


def _summary(files: str, columns: Mapping[str, Column], labels: NDArray[Any], split: list[str] | None) -> str:
    if split is not None:
        queries = split.count("query")
        return f"{files}: {queries:,} queries, {len(split) - queries:,} others, as given."
    return f"Read {files}: {len(labels):,} items, {', '.join(columns)}."
