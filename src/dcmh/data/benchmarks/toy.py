"""Synthetic pairs for tests and first steps: small pictures and short texts that share eight labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dcmh.data.columns import Images, Texts
from dcmh.data.dataset import Dataset
from dcmh.errors import ParameterError

# Label, colour, and the words that go with it.
_LABELS = {
    "sun": ((240, 200, 40), "sun sunny bright yellow noon warm summer light rays heat dawn golden"),
    "sea": ((40, 110, 200), "sea wave blue ocean boat sail harbour tide coast island swim anchor"),
    "wood": ((40, 140, 60), "wood tree forest green leaf moss oak pine trail fern deer bark"),
    "rose": ((220, 60, 110), "rose pink petal bloom garden thorn bouquet scent spring bud florist vase"),
    "snow": ((205, 215, 225), "snow white winter ice frost cold sledge glacier flake ski storm mitten"),
    "fire": ((230, 90, 30), "fire flame orange burn smoke spark ember stove candle torch blaze ash"),
    "night": ((60, 40, 110), "night dark star moon owl dream sleep midnight lantern shadow comet purple"),
    "stone": ((130, 120, 110), "stone rock grey cliff pebble wall quarry granite castle arch cave brick"),
}
_NOISE_WORDS = [first + vowel + last for first in "bdfgklmnprstw" for vowel in "aeiou" for last in ("xo", "zil", "vum")]


def toy(n: int = 200, size: int = 24, seed: int = 0) -> Dataset:
    """n items of size x size pixels. About a quarter have two labels; half of the texts have a misleading word."""
    if n < 8 or size < 8:
        raise ParameterError(f"toy needs at least 8 items of at least 8 pixels, not n={n}, size={size}.")
    generator = np.random.default_rng(seed)
    labels = np.zeros((n, len(_LABELS)), np.uint8)
    # The first labels cycle, so that every label is in use.
    labels[np.arange(n), generator.permutation(n) % len(_LABELS)] = 1
    second = generator.integers(len(_LABELS), size=n)
    labels[np.arange(n), second] |= generator.random(n) < 0.28
    return Dataset(
        {
            "image": Images([_picture(np.flatnonzero(row), size, generator) for row in labels]),
            "text": Texts([_text(np.flatnonzero(row), generator) for row in labels]),
        },
        labels=labels,
        label_names=list(_LABELS),
        name="toy",
    )


def _picture(labels: NDArray[np.intp], size: int, generator: np.random.Generator) -> NDArray[np.uint8]:
    """A pattern for each label, roughly in its colour, on a noisy grey background; the later one is on top."""
    picture = np.full((size, size, 3), generator.uniform(60, 190), np.float64)
    colours = [colour for colour, _ in _LABELS.values()]
    for label in generator.permutation(labels):
        shape = _pattern(int(label), size, generator)
        picture[shape] = np.array(colours[label]) + generator.normal(0, 25, 3)
    picture += generator.normal(0, 20, picture.shape)
    return np.clip(picture, 0, 255).astype(np.uint8)


def _pattern(label: int, size: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """The mask of a label's pattern, shape (size, size); position and scale vary."""
    rows, columns = np.mgrid[0:size, 0:size] - generator.uniform(0.35, 0.65, (2, 1, 1)) * size
    reach = generator.uniform(0.25, 0.4) * size
    distance = np.hypot(rows, columns)
    inside = np.maximum(abs(rows), abs(columns)) < reach
    step = max(size // 8, 1)
    match label:
        case 0:
            mask = distance < reach
        case 1:
            mask = inside & (rows // step % 2 == 0)
        case 2:
            mask = inside & (columns // step % 2 == 0)
        case 3:
            mask = (distance < reach) & (distance > reach / 2)
        case 4:
            mask = inside & ((abs(rows) < step) | (abs(columns) < step))
        case 5:
            mask = inside & (abs(columns) < (rows + reach) / 2)
        case 6:
            mask = inside & (rows // step % 2 == columns // step % 2)
        case _:
            mask = inside
    return np.asarray(mask, bool)


def _text(labels: NDArray[np.intp], generator: np.random.Generator) -> str:
    lists = [words.split() for _, words in _LABELS.values()]
    words: list[str] = []
    for label in labels:
        words += generator.choice(lists[label], generator.integers(1, 4), replace=False).tolist()
    if generator.random() < 0.5:
        words.append(str(generator.choice(lists[generator.integers(len(lists))])))
    words += generator.choice(_NOISE_WORDS, generator.integers(3, 7), replace=False).tolist()
    return " ".join(generator.permutation(words).tolist())
