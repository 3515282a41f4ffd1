"""Labels, which define which items are similar: checked, made from names, or taken from texts or folders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import DataError
from dcmh.util.text import BagOfWords, singular, words_of

MIN_LABELS = 4


def check_labels(labels: Any, items: int) -> tuple[NDArray[np.uint8], list[str] | None]:
    """Labels as 0/1, shape (items, labels); and their names if they are given as classes.

    Parameters
    ----------
    labels
        Zeros and ones, shape (items, labels), dense or a scipy sparse matrix; or one class per item, shape (items,):
        integers or strings; or a list of names per item.
    """
    if isinstance(labels, list | tuple) and len(labels) == items and all(map(_are_names, labels)):
        return multi_hot([list(dict.fromkeys(names)) for names in labels])
    values = np.asarray(labels.toarray() if hasattr(labels, "toarray") else labels)
    if values.ndim not in (1, 2):
        raise DataError(f"Labels have shape {values.shape}; expected (items, labels), or one class per item.")
    if len(values) != items:
        raise DataError(f"Labels are given for {len(values):,} items, but there are {items:,}. Give one row per item.")
    if values.ndim == 1:
        if values.dtype.kind not in "iuU":
            raise DataError(
                f"One class per item needs whole numbers or strings, not {values.dtype}. "
                f"For several labels per item give zeros and ones, shape (items, labels)."
            )
        classes, class_of = np.unique(values, return_inverse=True)
        return np.eye(len(classes), dtype=np.uint8)[class_of], [str(name) for name in classes]
    if values.dtype.kind not in "biuf":
        raise DataError(f"Labels must be 0 or 1, not {values.dtype}. Give zeros and ones, shape (items, labels).")
    wrong = np.flatnonzero(~((values == 0) | (values == 1)).all(axis=1))
    if len(wrong):
        value = next(value for value in values[wrong[0]].tolist() if value not in (0, 1))
        raise DataError(f"Labels must be 0 or 1; item {wrong[0]} has {value!r}. Give one column per label.")
    if values.shape[1] == 0:
        raise DataError("Labels have no columns. Give at least two labels, or labels=None.")
    return values.astype(np.uint8), None


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray) and all(isinstance(name, str) for name in value)


def multi_hot(named: Sequence[Sequence[str]]) -> tuple[NDArray[np.uint8], list[str]]:
    """Lists of label names, one per item, as 0/1, shape (items, labels); and the names in alphabetical order."""
    names = sorted({name for row in named for name in row})
    column = {name: i for i, name in enumerate(names)}
    labels = np.zeros((len(named), len(names)), np.uint8)
    for row, row_names in enumerate(named):
        labels[row, [column[name] for name in row_names]] = 1
    return labels, names


def labels_from_text(
    texts: Sequence[str | None], *, min_count: int | None = None, max_labels: int = 100
) -> tuple[NDArray[np.uint8], list[str]]:
    """The most frequent words as labels, shape (items, labels), most frequent first; and the words.

    English stop words are left out, and so are words in more than half of the texts, which would make almost all pairs
    similar. Items without any of the words have no label.

    Parameters
    ----------
    min_count
        Leave out words that occur in fewer texts. Default: 0.5 % of the texts, at least 5.
    """
    documents = sum(text is not None for text in texts)
    if min_count is None:
        min_count = max(5, math.ceil(0.005 * documents))
    try:
        bag = BagOfWords(min_count=min_count).fit(texts)
    except DataError:
        raise _too_few([], min_count, documents) from None
    names = [word for word, count in zip(bag.words_, bag.counts_, strict=True) if count <= documents / 2][:max_labels]
    if len(names) < MIN_LABELS:
        raise _too_few(names, min_count, documents)
    columns = [bag.words_.index(name) for name in names]
    return bag.transform(texts)[:, columns].astype(np.uint8), names


def labels_from_words(texts: Sequence[str | None], words: Sequence[str]) -> tuple[NDArray[np.uint8], list[str]]:
    """Given words as labels, shape (items, words); and the words in the form in which they count: Dogs is dog.

    The words may be the names that `labels_from_text` found in other texts.
    """
    if isinstance(words, str):
        raise DataError("Labels need a list of words, got one string. Write [word].")
    word_of: dict[str, str] = {}  # by the form in which it counts
    for word in words:
        if words_of(word) != [word.strip().lower()]:
            raise DataError(f"{word!r} is not one word of two letters or more, so no text has it. Leave it out.")
        form = singular(word.strip().lower())
        if form in word_of:
            raise DataError(f"The word {form!r} is given twice, as {word_of[form]!r} and {word!r}. Give each once.")
        word_of[form] = word
    return BagOfWords.of(list(word_of)).transform(texts).astype(np.uint8), list(word_of)


def tell_apart(labels: NDArray[np.uint8] | None) -> bool:
    """Whether enough labels are in use, and none by all items, so that some pairs are similar and others are not."""
    return labels is not None and int(labels.any(axis=0).sum()) >= MIN_LABELS and not labels.all(axis=0).any()


def labels_from_folders(paths: Sequence[str | None]) -> tuple[NDArray[np.uint8], list[str]]:
    """The folder of each item's file as its label, shape (items, folders); and the folders in alphabetical order.

    Files outside of any folder share the label "."; an item without a path has no label.
    """
    folders = [None if path is None else PurePath(path).parent.as_posix() for path in paths]
    named: list[Sequence[str]] = [() if folder is None else (folder,) for folder in folders]
    if len({folder for folder in folders if folder is not None}) < 2:
        raise DataError(
            "The items are not in two or more folders, so folders cannot serve as labels. "
            "Sort them into folders, or choose another --similarity."
        )
    return multi_hot(named)


def _too_few(names: Sequence[str], min_count: int, texts: int) -> DataError:
    words = "no word occurs" if not names else f"only {', '.join(names)} occur{'s' if len(names) == 1 else ''}"
    lower = "give a lower --min-tag-count, " if min_count > 1 else ""
    return DataError(
        f"There are no labels, and words cannot serve instead: {words} in {min_count} or more, but at most half, of the "
        f"{texts:,} texts; at least {MIN_LABELS} words are needed.",
        hint=f"Add a column of labels, {lower}or learn from the pairs alone: --similarity pairing",
    )
