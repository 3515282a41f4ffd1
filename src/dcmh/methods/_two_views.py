"""What the methods for exactly two modalities share: the check, centring, linear hash functions, sampled pairs.

Notation. X (n, d1) and Y (n, d2) are the views of the training items, in the order of the data's modalities.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh import codes
from dcmh.data.dataset import Dataset
from dcmh.errors import DataError
from dcmh.methods.base import Arrays, Hasher, Labels, Mask

Matrix = NDArray[np.floating[Any]]
Names = tuple[str, str]  # of the two modalities
BLOCK = 4096  # rows at a time, where a product with all rows would take much memory


class TwoViewHasher(Hasher):
    """A method for exactly two modalities. Subclasses implement `_learn`, which gets the views in float64."""

    @abstractmethod
    def _learn(self, names: Names, X: Matrix, Y: Matrix, labels: Labels | None) -> None:
        """Learn from the two views as they are, and labels (n, l)."""

    def _fit(self, inputs: dict[str, Any], labels: Labels | None, observed: dict[str, Mask]) -> None:
        first, second = inputs
        for name, view in inputs.items():
            if not np.ptp(view, axis=0).any():
                raise DataError(f"All training items have the same {name}, so it says nothing. Check its features.")
        X, Y = (np.asarray(inputs[name], np.float64) for name in (first, second))
        self._learn((first, second), X, Y, labels)

    def _check(self, train: Dataset) -> Dataset:
        if len(train.modalities) > 2:
            raise DataError(
                f"{type(self).__name__} learns from exactly two modalities; the data has {len(train.modalities)}: "
                f"{', '.join(train.modalities)}. Leave some out, or use the method dcmh."
            )
        return super()._check(train)

    def _record(self, **values: float) -> None:
        """Add one iteration to the history, and report progress."""
        self.history_.append(values)
        if self._progress is not None:
            self._progress(values)


class LinearHasher(TwoViewHasher):
    """Hash functions sign((x - mean) @ weights + offset), the mean that of the training items."""

    @abstractmethod
    def _directions(self, names: Names, X: Matrix, Y: Matrix, labels: Labels | None) -> tuple[Matrix, Matrix]:
        """Weights (d1, bits) and (d2, bits) from centred views. Thresholds, if any, go to `self.offsets_`."""

    def _learn(self, names: Names, X: Matrix, Y: Matrix, labels: Labels | None) -> None:
        self.means_ = {names[0]: X.mean(axis=0), names[1]: Y.mean(axis=0)}
        self.offsets_ = {name: np.zeros(self.bits) for name in names}
        Wx, Wy = self._directions(names, X - self.means_[names[0]], Y - self.means_[names[1]], labels)
        self.weights_ = {names[0]: Wx, names[1]: Wy}

    def _outputs(self, modality: str, values: Any) -> Matrix:
        outputs = np.empty((len(values), self.bits))
        for rows in blocks(len(values)):
            centred = np.asarray(values[rows], np.float64) - self.means_[modality]
            outputs[rows] = centred @ self.weights_[modality] + self.offsets_[modality]
        return outputs

    def _state(self) -> Arrays:
        state: Arrays = {}
        for name in self.weights_:
            state[f"{name}.mean"] = self.means_[name]
            state[f"{name}.weights"] = self.weights_[name]
            state[f"{name}.offset"] = self.offsets_[name]
        return state

    def _restore(self, state: Arrays) -> None:
        self.means_ = {name: state[f"{name}.mean"] for name in self.views_}
        self.weights_ = {name: state[f"{name}.weights"] for name in self.views_}
        self.offsets_ = {name: state[f"{name}.offset"] for name in self.views_}


def blocks(rows: int, size: int = BLOCK) -> Iterator[slice]:
    """Slices that cover the rows, in order."""
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def sign(values: Matrix) -> Matrix:
    """`codes.sign` as float64, for the products that follow."""
    return codes.sign(values).astype(np.float64)


def unit_rows(values: NDArray[Any]) -> Matrix:
    """Rows scaled to length 1; rows of zeros stay."""
    values = np.asarray(values, np.float64)
    length = np.linalg.norm(values, axis=1, keepdims=True)
    return values / np.where(length > 0, length, 1)


def sample_pairs(
    labels: Labels, count: int, generator: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[np.intp], Mask]:
    """Pairs (a, b) of an item in the first view and one in the second, half of them similar (a label in common).

    Drawn with replacement. Gives a, b and whether each pair is similar, all of shape (count,).
    """
    drawn: dict[bool, list[NDArray[np.intp]]] = {True: [], False: []}
    counts = {True: count // 2, False: count - count // 2}
    for _ in range(100):
        a, b = generator.integers(len(labels), size=(2, count))
        similar = np.concatenate([(labels[a[r]] & labels[b[r]]).any(axis=1) for r in blocks(count)])
        for kind, pairs in drawn.items():
            pairs.append(np.stack([a, b])[:, similar == kind])
        if all(sum(p.shape[1] for p in drawn[kind]) >= counts[kind] for kind in drawn):
            break
    halves = [np.concatenate(drawn[kind], axis=1)[:, : counts[kind]] for kind in (True, False)]
    for half, condition in zip(halves, ("share a label", "share no label"), strict=True):
        if half.shape[1] == 0:
            raise DataError(
                f"Hardly any two training items {condition}, so there is nothing to learn. Check the labels."
            )
    repeats = (np.resize(np.arange(half.shape[1]), n) for half, n in zip(halves, counts.values(), strict=True))
    a, b = np.concatenate([half[:, pairs] for half, pairs in zip(halves, repeats, strict=True)], axis=1)
    return a, b, np.arange(count) < counts[True]
