"""A model of an encoder of both pictures and texts, such as CLIP, from pictures alone: no captions, no labels, no training.

Such an encoder's pictures and texts lie apart in their common space. `dcmh.methods.fine_space` takes the mean of each side from
its vectors, which closes that gap, and `dcmh.methods.semantic` rotates what remains. The means are those of pictures of the
collection, and of common words with the texts that these pictures have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dcmh.data.columns import Column, Images, Texts
from dcmh.data.dataset import Dataset
from dcmh.errors import DataError, ModelMismatch, ParameterError
from dcmh.inputs import encoders
from dcmh.inputs.encoders import Encoder
from dcmh.methods.semantic import Semantic
from dcmh.util.text import STOP_WORDS, common_words

PICTURES = 5000  # of the collection, at most
WORDS = 1000
FEW = 100  # pictures: with fewer, their mean changes much as the collection grows
_WORDS = "common_words"  # the entry of `trained_on` that other models lack

Progress = Callable[[int, int], None]  # pictures done, pictures in total


def learn(
    encoder: str,
    data: Dataset,
    *,
    pictures: int = PICTURES,
    device: str | None = None,
    progress: Progress | None = None,
) -> Semantic:
    """A model of an encoder, from at most `pictures` pictures of the data, spread evenly over it.

    Pictures that cannot be read are left out. The vectors of the others are cached, so that indexing does not encode them again.
    """
    opened = _of_both(encoder)
    sample = _sample(data, pictures, opened.name, device or "auto", progress)
    words = [word for word in common_words() if word not in STOP_WORDS][:WORDS]
    texts = [f"a photo of {word}" if row % 2 else word for row, word in enumerate(words)]  # queries are both
    columns: dict[str, Column] = {}
    added: list[str | None] = [*texts]
    for name, column in sample.columns.items():
        if isinstance(column, Images):
            columns[name] = Images([*column.values, *([None] * len(texts))], root=column.root)
        elif isinstance(column, Texts):
            columns[name] = Texts([*column.values, *added])
            added = [None] * len(texts)  # in the first column alone
    model = Semantic(encoder=opened.name).fit(Dataset(columns, name=data.name))
    model.trained_on_ |= {"items": len(sample), _WORDS: len(texts)}
    return model


def encoder_of(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The record of the encoder that `learn` made a model of; None for any other model."""
    made_here = _WORDS in record.get("trained_on", {})
    return next(iter(record["modalities"].values()))["encoder"] if made_here else None


def check(place: object, record: Mapping[str, Any], encoder: str) -> None:
    """Refuse an index whose model, with this model.json, `learn` did not make of this encoder."""
    own, opened = encoder_of(record), _of_both(encoder)
    if own is not None and own["sha256"] == opened.sha256:
        return
    if own is None:
        was = (
            f"another model ({record['method']}, learned from {record['trained_on']['name'] or 'data without a name'})"
        )
    else:
        was = f"{'other weights of ' if own['name'] == opened.name else ''}the encoder {own['name']}"
    raise ModelMismatch(
        f"{place} was built with {was}, not with the encoder {encoder}.",
        which=encoder,
        hint="Add --upgrade to encode its items again (not on a server), or --rebuild to start from scratch; or choose "
        "another --out.",
    )


def _of_both(name: str) -> Encoder:
    """The encoder of this name; one of pictures or of texts alone is refused."""
    opened = encoders.open_encoder(name)
    takes, lacks = ("pictures", "texts") if encoders.sees(opened) else ("texts", "pictures")
    if not (encoders.sees(opened) and encoders.reads(opened)):
        raise ParameterError(
            f"The encoder {name} takes {takes}, not {lacks}. Without training, one of both is needed.",
            which=name,
            hint="Choose another one, or train a model with it on captions or labels: dcmh train DATA --encoder ENCODER",
        )
    return opened


def _sample(data: Dataset, count: int, network: str, device: str, progress: Progress | None) -> Dataset:
    """Some items with readable pictures, whose vectors are in the cache now; with their texts, or an empty column."""
    from dcmh.inputs import features

    pictures = [column for column in data.columns.values() if isinstance(column, Images)]
    rows = np.flatnonzero(np.any([column.observed for column in pictures], axis=0)) if pictures else np.arange(0)
    rows = rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)]
    failed: dict[int, str] = {}
    for column in pictures:
        features.extract(column.take(rows), network, device=device, progress=progress, on_error=failed.__setitem__)
    read = np.delete(rows, sorted(failed))
    if len(read) < 2:
        raise DataError(
            f"{data.name or 'The data'} has {len(read) or 'no'} readable picture{'s' * (len(read) != 1)}, and a model of "
            "an encoder is learned from two, or better hundreds.",
            hint="Add pictures; or leave out the encoder, for the starter model.",
        )
    taken = {name: column.take(read) for name, column in data.columns.items() if isinstance(column, Images | Texts)}
    kept: dict[str, Column] = {name: column for name, column in taken.items() if column.observed.any()}
    if not any(isinstance(column, Texts) for column in kept.values()):
        kept["text"] = Texts([None] * len(read))
    return Dataset(kept, name=data.name)
