"""Codes for existing vectors: a linear hash function learned with DCMH's objective, with its loss of recall measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh import codes
from dcmh.data.columns import Vectors
from dcmh.data.dataset import Dataset
from dcmh.errors import DataError, ParameterError
from dcmh.methods.base import Progress
from dcmh.methods.dcmh import DCMH
from dcmh.methods.dcmh import similarity as similarities
from dcmh.util.arrays import unit

# Chosen on validation items of coco12k's captions, never on the queries of benchmarks/compress.py. For neighbours, the hash
# function is linear and starts at the solution of ITQ, near which it stays; for others it starts anywhere.
NEIGHBOURS: dict[str, Any] = {
    "nested": False,
    "hidden": 0,
    "dropout": 0.0,
    "epochs": 20,
    "gamma": 0.3,
    "learning_rate": 1e-4,
}
OTHERS: dict[str, Any] = {"nested": False, "hidden": 512, "dropout": 0.2, "epochs": 20}
TRAIN = 20_000  # maximum number of vectors to learn from: more take longer, and change little
QUERIES, QUERY_SHARE = 1000, 0.05  # vectors to measure with: their maximum number, and their share of all
NEAREST, CANDIDATES = 10, 200  # neighbours to find; candidates that the codes pass to the second stage
BLOCK = 256  # queries at a time
MODALITY_HINT = "Give a matrix (items, features), or a table with a column of vectors."


@dataclass(frozen=True)
class Compressed:
    """A model of vectors, and how many of the ten nearest neighbours of held-out vectors it finds."""

    model: DCMH
    measured: dict[str, Any]

    def codes(self, modality: str, vectors: Any) -> NDArray[np.uint8]:
        """Packed codes (n, bytes)."""
        return codes.pack(self.model.encode(**{modality: vectors}))

    def fine(self, modality: str, vectors: Any) -> NDArray[np.int8] | None:
        """Vectors of one byte per dimension for the second stage; None if the model has none."""
        space = self.model.fine_
        if space is None or modality not in space.modalities:
            return None
        view = self.model.views_[modality]
        return space.quantise(space.of_inputs(modality, view(Vectors(vectors)), view))


def compress(
    data: Dataset,
    bits: int = 64,
    *,
    similarity: str | None = None,
    train_size: int = TRAIN,
    fine: int = 128,
    seed: int = 0,
    progress: Progress | None = None,
    **settings: Any,
) -> Compressed:
    """Learn codes for the vectors of a data set, from part of it, and measure them on others.

    Parameters
    ----------
    similarity
        As for `DCMH`. Default: "labels" if there are labels, "pairing" for several modalities, else "neighbours".
    fine
        Bytes per item of the vectors for the second stage; 0 for none. Several modalities have none.
    settings
        Of `DCMH`, in place of those chosen here.
    """
    matrices = {name: column.values for name, column in data.columns.items() if isinstance(column, Vectors)}
    if len(matrices) < len(data.modalities) or not data.complete().all():
        raise DataError(f"{data.name or 'The data'} does not hold one vector per item.", hint=MODALITY_HINT)
    for name, values in matrices.items():
        if not np.isfinite(values).all():
            raise DataError(f"The vectors of {name!r} hold NaN or infinity.", hint="Leave those items out.")
    if train_size < 2:
        raise ParameterError(f"train_size must be at least 2, not {train_size}.", which="train_size")
    order = np.random.default_rng(seed).permutation(len(data))
    held_out = min(QUERIES, int(QUERY_SHARE * len(data)))
    queries, others = order[:held_out], np.sort(order[held_out:])
    similarity = similarity or _default(data)
    chosen = NEIGHBOURS if similarity.startswith("neighbours") else OTHERS
    model = DCMH(bits, seed=seed, similarity=similarity, validation=0.0, **chosen | settings)
    train = data.take(np.sort(order[held_out:][:train_size]))
    if similarities.kind_of(model.similarity) in ("pairs", "pairing") and len(matrices) < 2:
        raise ParameterError(
            f"Similarity from {model.similarity} relates two modalities, and there is one: {next(iter(matrices))}.",
            which="similarity",
            hint="Choose neighbours or labels, or give a .npz file or a table with two matrices.",
        )
    model.fit(train, progress=progress, fine=fine)
    done = Compressed(model, {})
    measured = {name: _measure(done, name, values, queries, others) for name, values in matrices.items() if held_out}
    return Compressed(model, {"queries": held_out, "trained_on": len(train), "recall": measured})


def _default(data: Dataset) -> str:
    if data.labels is not None:
        return "labels"
    return "pairing" if len(data.modalities) > 1 else "neighbours"


def _measure(
    done: Compressed, name: str, values: NDArray[Any], queries: NDArray[np.intp], others: NDArray[np.intp]
) -> dict[str, float]:
    """The share of the ten nearest of each query, by cosine, that codes find alone and with the second stage."""
    packed, fine, space = done.codes(name, values), done.fine(name, values), done.model.fine_
    restored = None if fine is None or space is None else space.restore(fine)
    exact, first = unit(values), min(NEAREST, len(others))
    hits = {"codes": 0, "candidates": 0, "rescored": 0}
    for start in range(0, len(queries), BLOCK):
        batch = queries[start : start + BLOCK]
        nearest = np.argsort(-(exact[batch] @ exact[others].T), axis=1, kind="stable")[:, :first]
        distance = codes.hamming(packed[batch], packed[others])
        candidates = np.argsort(distance, axis=1, kind="stable")[:, :CANDIDATES]
        for row, (wanted, found) in enumerate(zip(nearest, candidates, strict=True)):
            hits["codes"] += len(np.intersect1d(wanted, found[:first]))
            hits["candidates"] += len(np.intersect1d(wanted, found))
            if restored is not None:
                scores = restored[others[found]] @ restored[batch[row]]
                best = found[np.argsort(-scores, kind="stable")[:first]]
                hits["rescored"] += len(np.intersect1d(wanted, best))
    total = max(1, first * len(queries))
    return {key: round(count / total, 4) for key, count in hits.items() if key != "rescored" or fine is not None}
