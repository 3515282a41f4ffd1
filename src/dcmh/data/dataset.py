"""Dataset: items in one or more modalities, with labels and ids."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from dcmh.data.columns import Column, Images, Texts, Vectors
from dcmh.data.labels import check_labels, labels_from_folders, labels_from_text, labels_from_words
from dcmh.data.splits import Split, make_split
from dcmh.data.values import as_column, plain
from dcmh.errors import DataError
from dcmh.util.text import sanitized

PARTS = ("query", "database", "train")
JOINT = "joint"  # the code of all modalities of an item together: reserved, not a modality
_NAME = re.compile(r"[^\W\d][\w-]*")
_TAKEN = ("ids", "labels", "label_names", "name", "self", JOINT)


class Dataset:
    """Items, one per row, in any number of named modalities.

    `data["text"]` or `data.text` is a modality, `"text" in data` checks for it, `len(data)` counts items, and
    `data.take(rows)` selects some. A data set cannot be iterated, since it is ambiguous whether over items or over
    modalities: iterate over `data.ids`, `data.text.values` or `data.modalities`.

    Parameters
    ----------
    columns
        Modality name to `Images`, `Texts` or `Vectors`, all of the same length. Any names, kinds and number.
    labels
        0/1, shape (items, labels), or one class per item; None if there are none.
    ids
        One per row, unique; default "0", "1", ….
    notes
        Sentences to show to the user who loads the data.
    skipped
        (file, reason) of each file that the loader left out.
    parts
        The split that came with the source: "query", "database" or "train" for each item. See `dcmh.data.split_given`.
    extra
        Other cells of each item by column, numbers or texts, by which searches can be filtered.
    """

    def __init__(
        self,
        columns: Mapping[str, Column],
        *,
        labels: Any = None,
        label_names: Sequence[str] | None = None,
        ids: Sequence[object] | None = None,
        name: str = "",
        notes: Iterable[str] = (),
        skipped: Iterable[tuple[str, str]] = (),
        parts: Sequence[str] | None = None,
        extra: Sequence[Mapping[str, str | int | float]] | None = None,
    ) -> None:
        self.columns = dict(columns)
        _check_modalities(self.columns)
        self.name = sanitized(name)
        self.notes = tuple(notes)
        self.skipped = list(skipped)
        self._size = _common_length(self.columns)
        self.labels: NDArray[np.uint8] | None = None
        self.label_names: list[str] | None = None
        if labels is not None:
            self.labels, classes = check_labels(labels, self._size)
            self.label_names = _check_names(classes if label_names is None else label_names, self.labels.shape[1])
        self.ids = _check_ids(ids, self._size)
        self.parts = _check_parts(parts, self._size)
        self.extra = None if extra is None else list(extra)
        if self.extra is not None and len(self.extra) != self._size:
            raise DataError(f"extra has {len(self.extra):,} rows for {self._size:,} items. Give one per item.")

    @classmethod
    def from_arrays(
        cls,
        *,
        labels: Any = None,
        ids: Sequence[object] | None = None,
        label_names: Sequence[str] | None = None,
        name: str = "",
        **modalities: Any,
    ) -> Dataset:
        """A data set from arrays and lists in memory; every other keyword is a modality.

        Values may come from lists, NumPy, torch, pandas, polars or Arrow. Numbers (items, features) become `Vectors`;
        PIL images, decoded pictures and paths of pictures become `Images`; other strings become `Texts`. To decide
        yourself, give `Images(…)`, `Texts(…)` or `Vectors(…)`.

        >>> Dataset.from_arrays(image=X, text=["two dogs", "a boat"], labels=[[1, 0], [0, 1]])
        """
        labels = None if labels is None else plain(labels)
        ids = None if ids is None else plain(ids)
        columns = {modality: as_column(values) for modality, values in modalities.items()}
        return cls(columns, labels=labels, label_names=label_names, ids=ids, name=name)

    @property
    def modalities(self) -> tuple[str, ...]:
        """The names of the modalities."""
        return tuple(self.columns)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, modality: object) -> bool:
        return modality in self.modalities

    def __iter__(self) -> NoReturn:
        raise DataError(
            "A data set cannot be iterated. For items use data.ids or data[modality].values; "
            "for the names of modalities, data.modalities."
        )

    def __getitem__(self, modality: str) -> Column:
        if not isinstance(modality, str):
            raise DataError(
                "data[...] takes the name of a modality, such as data['text']. "
                "For items write data.take(rows): whole numbers, a slice(start, stop), or a mask."
            )
        if modality not in self.columns:
            raise DataError(f"This data set has no modality {modality!r}. It has: {', '.join(self.columns)}.")
        return self.columns[modality]

    def __getattr__(self, attribute: str) -> Column:
        # Only called if there is no such attribute; "columns" itself is missing while unpickling.
        columns = self.__dict__.get("columns", {})
        if attribute in columns:
            return cast(Column, columns[attribute])
        raise AttributeError(
            f"Dataset has no attribute or modality {attribute!r}. Its modalities: {', '.join(columns)}."
        )

    def __repr__(self) -> str:
        labels = "no labels" if self.labels is None else f"{self.labels.shape[1]} labels"
        return f"<Dataset {self.name!r}: {len(self):,} items, {', '.join(self.columns)}, {labels}>"

    def observed(self, modality: str) -> NDArray[np.bool_]:
        """Which items have this modality, shape (items,)."""
        return self[modality].observed

    def complete(self) -> NDArray[np.bool_]:
        """Which items have every modality, shape (items,)."""
        return np.asarray(np.stack([column.observed for column in self.columns.values()]).all(axis=0))

    def take(self, rows: Any) -> Dataset:
        """The items of these rows (integers, a slice, or a mask), in that order."""
        rows = np.arange(self._size)[_as_index(rows)]
        return Dataset(
            {name: column.take(rows) for name, column in self.columns.items()},
            labels=None if self.labels is None else self.labels[rows],
            label_names=self.label_names,
            ids=[self.ids[i] for i in rows],
            name=self.name,
            notes=self.notes,
            skipped=self.skipped,
            parts=None if self.parts is None else [self.parts[i] for i in rows],
            extra=None if self.extra is None else [self.extra[i] for i in rows],
        )

    def select(self, modalities: Sequence[str]) -> Dataset:
        """The same items with some of their modalities."""
        columns = {name: self[name] for name in modalities}
        return Dataset(columns, labels=self.labels, label_names=self.label_names, ids=self.ids, name=self.name)

    def drop(self, rows: Any) -> Dataset:
        """All items but those of these rows."""
        keep = np.ones(self._size, bool)
        keep[_as_index(rows)] = False
        return self.take(keep)

    def split(self, queries: int, train: int | None = None, seed: int = 0) -> Split:
        """Query, database and training items, drawn at random. See `dcmh.data.make_split`."""
        return make_split(self, queries, train, seed)

    def with_labels_from_text(
        self, modality: str = "text", *, min_count: int | None = None, max_labels: int = 100
    ) -> Dataset:
        """The same items with the most frequent words of a text modality as labels. See `labels_from_text`."""
        labels, names = labels_from_text(self._texts(modality), min_count=min_count, max_labels=max_labels)
        note = f"No labels given: the {len(names)} most frequent words serve as labels ({', '.join(names[:5])}, …)."
        return self._with_labels(labels, names, note)

    def with_labels_from_words(self, words: Sequence[str], modality: str = "text") -> Dataset:
        """The same items with given words as labels, such as the `label_names` of another data set.

        See `labels_from_words`.
        """
        return self._with_labels(*labels_from_words(self._texts(modality), words))

    def with_labels_from_folders(self) -> Dataset:
        """The same items, each labelled with the folder of its picture. See `labels_from_folders`."""
        labels, names = labels_from_folders(self._paths())
        note = f"The {len(names):,} folders serve as labels ({', '.join(names[:5])}{', …' if len(names) > 5 else ''})."
        return self._with_labels(labels, names, note)

    def _texts(self, modality: str) -> Sequence[str | None]:
        """The texts of a modality, for labels."""
        column = self[modality]
        if not isinstance(column, Texts):
            raise DataError(f"Labels can be taken from words, but {modality!r} holds {column.kind}s. Give labels.")
        return column.values

    def _paths(self) -> list[str | None]:
        """The path of each item's first picture; without one, its id if that is a path."""
        columns = [column for column in self.columns.values() if isinstance(column, Images)]
        paths: list[str | None] = []
        for row, item in enumerate(self.ids):
            values = (column.values[row] for column in columns)
            path = next((str(value) for value in values if isinstance(value, str | Path)), None)
            paths.append(path if path is not None else item if "/" in item else None)
        return paths

    def _with_labels(self, labels: NDArray[np.uint8], names: list[str], *notes: str) -> Dataset:
        return Dataset(
            self.columns,
            labels=labels,
            label_names=names,
            ids=self.ids,
            name=self.name,
            notes=(*self.notes, *notes),
            skipped=self.skipped,
            parts=self.parts,
            extra=self.extra,
        )

    def fingerprint(self) -> str:
        """A hash of ids, labels, texts, vectors and modality names: the same for the same data on every machine.

        Pictures enter by their ids only: they may be many gigabytes.
        """
        texts = {name: column.values for name, column in self.columns.items() if isinstance(column, Texts)}
        described = [self.ids, self.label_names, [(name, column.kind) for name, column in self.columns.items()], texts]
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps(described).encode())
        if self.labels is not None:
            digest.update(self.labels.tobytes())
        for column in self.columns.values():
            if isinstance(column, Vectors):
                observed = column.values if column.observed.all() else column.values[column.observed]
                digest.update(column.observed.tobytes())
                digest.update(np.ascontiguousarray(observed).tobytes())
        return digest.hexdigest()


def similarity(labels_a: NDArray[Any], labels_b: NDArray[Any]) -> NDArray[np.bool_]:
    """Which items share at least one label, shape (n_a, n_b): the paper's S."""
    b = labels_b.T.astype(np.float32)
    shared = np.empty((len(labels_a), len(labels_b)), bool)
    for start in range(0, len(labels_a), 1024):  # the float product takes four times the memory of the result
        shared[start : start + 1024] = labels_a[start : start + 1024].astype(np.float32) @ b > 0
    return shared


def _as_index(rows: Any) -> Any:
    if isinstance(rows, slice):
        return rows
    rows = np.asarray(rows)
    return rows if rows.size else rows.astype(np.intp)  # NumPy takes [] for floats


def _check_modalities(names: Iterable[str]) -> None:
    """Refuse names that cannot be file names, keywords and parts of directions such as image_to_text."""
    for name in names:
        if not _NAME.fullmatch(name) or "_to_" in name:
            raise DataError(
                f"{name!r} cannot name a modality. Use letters, digits, _ and -, starting with a letter and without _to_."
            )
        if name in _TAKEN:
            raise DataError(f"{name!r} is reserved, so it cannot name a modality. Rename it.")


def _common_length(columns: Mapping[str, Column]) -> int:
    if not columns:
        raise DataError("A data set needs at least one modality, such as text=….")
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise DataError(f"The modalities differ in length: {counts}. Give one value per item, None if it is missing.")
    size = next(iter(lengths.values()))
    if size == 0:
        raise DataError("The data set has no items. Check the source, or the rows that were selected.")
    return size


def _check_names(names: Sequence[str] | None, count: int) -> list[str] | None:
    if names is None:
        return None
    if len(names) != count:
        raise DataError(f"{len(names)} label names are given for {count} labels. Give one name per column.")
    return [sanitized(name) for name in names]


def _check_ids(ids: Sequence[object] | None, size: int) -> list[str]:
    if ids is None:
        return [str(row) for row in range(size)]
    if len(ids) != size:
        raise DataError(f"{len(ids):,} ids are given for {size:,} items. Give one per item.")
    names = [sanitized(str(value)) for value in ids]
    if len(set(names)) < size:
        ((twice, _),) = Counter(names).most_common(1)
        raise DataError(f"The id {twice!r} occurs more than once. Each item needs its own id.")
    return names


def _check_parts(parts: Sequence[str] | None, size: int) -> list[str] | None:
    if parts is None:
        return None
    if len(parts) != size:
        raise DataError(f"The split names {len(parts):,} items, but there are {size:,}. Give one part per item.")
    for row, part in enumerate(parts):
        if part not in PARTS:
            raise DataError(f"The split of item {row} is {part!r}; expected {', '.join(PARTS)}.")
    return list(parts)
