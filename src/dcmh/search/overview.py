"""An overview of a collection: the words that it is searched well by, its labels and folders; and the words that find one item.

Candidates are the labels of a sample of items and the words of their texts; where there are neither, the names of ImageNet's
classes. A word is judged by pictures alone: it is ranked against the sample by fine scores (by distances where there are none),
without looking into texts. It is a topic if its first hits carry it far more often than items do on average, so that "giraffe"
is one and "next" is not. Without labels and texts, an item belongs to the class whose score stands out most, and the classes
with the most items are the topics.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dcmh import codes
from dcmh.util.text import index_words, singular

if TYPE_CHECKING:
    from dcmh.search.index import SearchIndex
    from dcmh.stores.base import Item

SAMPLE = 4_000  # items
CANDIDATES = 400  # labels, and as many words
HITS = 12  # by which a word is judged
MAX_TOPICS = 24
MIN_ITEMS = 3  # that carry a word
MAX_SHARE = 0.4  # of items that carry a word: a more common one says nothing
MIN_LIFT = 0.3  # precision of the first hits minus the share of items that carry the word
GOOD, FAIR = 0.9, 0.6  # precision of the first hits
MAX_OVERLAP = 0.4  # share of common hits: with more, two words are one topic
COMMON_SHARE = 0.05  # of items that a common word finds
LABEL_CHARACTERS = 40  # maximum length

Scores = NDArray[np.float32]
Carried = NDArray[np.bool_]


@dataclass(frozen=True)
class Topic:
    """A word, the number of sampled items that carry it, and how many of its first hits by picture alone do (None: unknown)."""

    word: str
    items: int
    precision: float | None


class Overview:
    """What an index holds, from a sample of its items: topics, labels and folders; and the words for single items."""

    def __init__(self, index: SearchIndex) -> None:
        self.generation = index.store.snapshot.generation
        self.topics: tuple[Topic, ...] = ()
        self._words: tuple[str, ...] = ()
        self._space = _Space(index)
        items = _sample(index)
        self.labels = _most_common(label for item in items for label in item.labels)
        self.folders = _most_common(filter(None, map(_folder, items)))
        if self._space.modality is None or not items:
            return
        vectors = self._space.of_items(index, [item.id for item in items])
        items = [item for item in items if item.id in vectors]
        if not items:
            return
        labels, texts = _labels(items), _texts(items)
        words = list(dict.fromkeys((*labels, *texts)))
        has_words = bool(words)
        words = words or _class_names()
        self._queries = self._space.of_words(words)
        scores = np.asarray(self._queries @ np.stack([vectors[item.id] for item in items]).T, np.float32)
        self._mean, self._deviation = scores.mean(1), scores.std(1) + 1e-6
        self._words = tuple(words)
        carried = _occurrences(words, items) if has_words else _assigned(self._standard(scores))
        separated = _precision(scores, carried)[1] >= FAIR if has_words else np.ones(len(words), bool)
        self._limits = _limits(scores, np.where(separated, carried.sum(1), 0))
        if not has_words:
            self.topics = tuple(_largest_classes(words, scores, carried))
            return
        chosen = _separated(words[: len(labels)], scores[: len(labels)], carried[: len(labels)]) if labels else []
        if len(chosen) < MAX_TOPICS // 4:  # too few labels, or names that mean nothing to the model
            chosen = _separated(words, scores, carried)
        self.topics = tuple(chosen)

    def words_for(self, index: SearchIndex, item: int, most: int = 8) -> list[str]:
        """The words that find one item by its picture, best first.

        A word finds it if the item is among the first n hits, where n items carry the word.
        """
        vector = self._space.of_items(index, [item]).get(item) if self._words else None
        if vector is None:
            return []
        scores = np.asarray(self._queries @ vector, np.float32)
        standing = self._standard(scores[:, None])[:, 0]
        chosen: dict[str, str] = {}
        for row in np.argsort(-standing, kind="stable"):
            if scores[row] >= self._limits[row]:
                chosen.setdefault(singular(self._words[row]), self._words[row])
        return list(chosen.values())[:most]

    def _standard(self, scores: Scores) -> Scores:
        return np.asarray((scores - self._mean[:, None]) / self._deviation[:, None], np.float32)


class _Space:
    """Words and items as vectors whose inner products rank the items: fine vectors, or codes where there are none."""

    def __init__(self, index: SearchIndex) -> None:
        encoders, present = index.encoders, index.modalities
        others = [name for name in present if name != encoders.text]
        preferred = encoders.picture if encoders.picture in present else next(iter(others), encoders.text)
        self.modality: str | None = preferred if preferred in present and encoders.text is not None else None
        fine = encoders.fine
        self._fine = fine if fine is not None and self.modality in index.store.snapshot.fine else None
        self._encoders = encoders

    def of_words(self, words: Sequence[str]) -> Scores:
        if self._fine is not None:
            return self._fine.as_query(self._fine.of_texts(list(words)))
        encoder = self._encoders.words
        assert encoder is not None
        return self._signs(encoder.encode(list(words)))

    def of_items(self, index: SearchIndex, ids: Sequence[int]) -> dict[int, Scores]:
        assert self.modality is not None
        if self._fine is not None:
            vectors = index.store.fine_of(self.modality, ids)
            return {item: np.frombuffer(vector, np.int8).astype(np.float32) for item, vector in vectors.items()}
        packed = index.store.codes_of(self.modality, ids)
        return {item: self._signs(np.frombuffer(code, np.uint8)[None])[0] for item, code in packed.items()}

    def _signs(self, packed: NDArray[np.uint8]) -> Scores:
        return codes.unpack(packed, self._encoders.bits).astype(np.float32)


def _sample(index: SearchIndex) -> list[Item]:
    """Items at even distances; ids grow from 1, and those of removed items are missing. If most are, the oldest items."""
    step = max(1, -(-len(index) // SAMPLE))
    ids = range(1, len(index) + step, step)
    items = index.store.get(ids)
    if 2 * len(items) < len(ids):
        return list(islice(index.store.items(), SAMPLE))
    return sorted(items.values(), key=lambda item: item.id)


def _folder(item: Item) -> str:
    """The folder of an item within the data; none for items outside of it, such as uploads."""
    inside = item.path is not None and not item.uploaded and not posixpath.isabs(item.path)
    return posixpath.dirname(item.path or "") if inside else ""


def _most_common(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name, _ in Counter(names).most_common(CANDIDATES))


def _labels(items: Sequence[Item]) -> list[str]:
    counts = Counter(label for item in items for label in item.labels if 1 < len(label) <= LABEL_CHARACTERS)
    return _frequent(counts, len(items))


def _texts(items: Sequence[Item]) -> list[str]:
    counts = Counter(word for item in items for word in set(index_words(item.text or "")))
    words = {word: count for word, count in counts.items() if len(word) > 2 and not any(map(str.isdigit, word))}
    return _frequent(words, len(items))


def _frequent(counts: dict[str, int], items: int) -> list[str]:
    """The most frequent of those that are neither rare nor common."""
    fewest = max(MIN_ITEMS, items // 500)
    frequent = [(count, word) for word, count in counts.items() if fewest <= count <= MAX_SHARE * items]
    return [word for _, word in sorted(frequent, key=lambda pair: (-pair[0], pair[1]))[:CANDIDATES]]


def _class_names() -> list[str]:
    listed = (files("dcmh.networks") / "imagenet_classes.txt").read_text(encoding="utf-8").splitlines()
    return list(dict.fromkeys(listed))


def _occurrences(words: Sequence[str], items: Sequence[Item]) -> Carried:
    """Which items (columns) carry which words (rows), as a label or in their text."""
    rows = {word: row for row, word in enumerate(words)}
    carried = np.zeros((len(words), len(items)), bool)
    for column, item in enumerate(items):
        for word in {*item.labels, *index_words(item.text or "")}:
            if word in rows:
                carried[rows[word], column] = True
    return carried


def _precision(scores: Scores, carried: Carried) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The first hits of each word, and the share of them that carry it; 0 if it is not much larger than among all items."""
    first = np.argsort(-scores, axis=1, kind="stable")[:, :HITS]
    counts = carried.sum(1)
    possible = np.maximum(np.minimum(counts, first.shape[1]), 1)
    precision = np.take_along_axis(carried, first, 1).sum(1) / possible
    return first, np.where(precision - counts / carried.shape[1] >= MIN_LIFT, precision, 0.0)


def _separated(words: Sequence[str], scores: Scores, carried: Carried) -> list[Topic]:
    """The words whose first hits carry them: first those with a GOOD precision, each group by frequency."""
    first, precision = _precision(scores, carried)
    counts = carried.sum(1)
    good = np.flatnonzero(precision >= FAIR).tolist()
    order = sorted(good, key=lambda row: (precision[row] < GOOD, -counts[row], row))
    return [
        Topic(words[row], int(counts[row]), round(float(precision[row]), 4)) for row in _distinct(words, first, order)
    ]


def _assigned(standing: Scores) -> Carried:
    """Which items (columns) belong to which classes (rows): each to the one that stands out most for it."""
    best = np.argmax(standing, axis=0)
    return np.asarray(np.arange(len(standing))[:, None] == best)


def _limits(scores: Scores, counts: NDArray[Any]) -> Scores:
    """For each word, the score of its n-th hit, where n items carry the word, but at most COMMON_SHARE of all items."""
    ordered = -np.sort(-scores, axis=1)
    last = np.minimum(counts, max(HITS, round(COMMON_SHARE * scores.shape[1])))
    limits = ordered[np.arange(len(scores)), np.maximum(last, 1) - 1]
    return np.where(counts > 0, limits, np.inf).astype(np.float32)


def _largest_classes(words: Sequence[str], scores: Scores, carried: Carried) -> list[Topic]:
    """The classes to which most items belong."""
    counts = carried.sum(1)
    first = np.argsort(-scores, axis=1, kind="stable")[:, :HITS]
    fewest = MIN_ITEMS if scores.shape[1] >= 10 * MIN_ITEMS else 1
    order = [row for row in np.argsort(-counts, kind="stable").tolist() if counts[row] >= fewest]
    return [Topic(words[row], int(counts[row]), None) for row in _distinct(words, first, order)]


def _distinct(words: Sequence[str], first: NDArray[Any], order: Iterable[int]) -> list[int]:
    """The first rows in an order that neither share most of their hits with an earlier one, nor its word."""
    chosen: list[int] = []
    for row in order:
        if len(chosen) == MAX_TOPICS:
            break
        hits = set(first[row].tolist())
        alike = any(len(hits & set(first[other].tolist())) > MAX_OVERLAP * len(hits) for other in chosen)
        if not alike and singular(words[row]) not in {singular(words[other]) for other in chosen}:
            chosen.append(row)
    return chosen
