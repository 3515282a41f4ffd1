"""What makes two items similar: the paper's S, from labels or without any, for a batch x some points at a time.

labels         they share a label, as in the paper
folders        their pictures lie in the same folder
tags           they share words that are rare enough together; tags:NAME takes the words of the text modality NAME
labels+tags    they share a label, more so if they also share such words; labels+tags:NAME likewise
pairs:FILE     the file says so; a pair that it does not list is unknown and does not count
pairing        they are the same item: only what belongs together in two modalities is similar
neighbours     their vectors are near: neighbours:NAME takes those of the modality NAME, neighbours the first ones

With pairs and with pairing, the few similar pairs would drown among the others, so they get half of the weight (`W`).
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from dcmh.data.columns import Texts, Vectors
from dcmh.data.dataset import Dataset
from dcmh.data.labels import labels_from_folders
from dcmh.data.pairs import read_pairs
from dcmh.errors import DataError, ParameterError
from dcmh.methods.dcmh import objective
from dcmh.util.text import BagOfWords

KINDS = ("labels", "folders", "tags", "labels+tags", "pairs", "pairing", "neighbours")
RARE_SHARE = 0.05  # shared words must be as rare together as one word that this share of the items has
TAG_WEIGHT = 0.2  # of tags beside labels: S = 1 with both, 1 - TAG_WEIGHT with labels alone, TAG_WEIGHT with tags alone
SIMILAR_WEIGHT = 0.5  # smallest share of the total weight that listed similar pairs get
NEIGHBOUR_SHARE = 0.01  # of the items: the neighbours of one item
MIN_NEIGHBOURS = 10


class Similarity(ABC):
    """S and the weight W of each pair. Built on the CPU; `to` brings it to where the training runs."""

    within: ClassVar[bool] = True  # whether it also says something about pairs within one modality

    @property
    @abstractmethod
    def description(self) -> str:
        """A sentence for the user."""

    @abstractmethod
    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        """The same on another device, with S and W of another type."""

    @abstractmethod
    def S(self, batch: Tensor, start: int, stop: int) -> Tensor:
        """S of the batch's points against points start to stop, (batch, stop - start), from 0 to 1."""

    def W(self, S: Tensor, batch: Tensor, start: int, stop: int) -> Tensor | None:
        """The weight of each of these pairs, with mean 1 over all pairs; None if all weigh the same."""
        return None


def check(spec: str) -> str:
    """Return the setting, or refuse one that is not known."""
    kind, colon, rest = spec.partition(":")
    named = ("tags", "labels+tags", "pairs", "neighbours")
    if kind not in KINDS or (colon and not rest) or (colon and kind not in named):
        raise ParameterError(
            f"similarity {spec!r} is not known. Choose labels, folders, tags, tags:MODALITY, labels+tags, "
            "labels+tags:MODALITY, pairs:FILE, pairing, neighbours or neighbours:MODALITY."
        )
    if kind == "pairs" and not rest:
        raise ParameterError("similarity 'pairs' needs a file: pairs:FILE, with two ids and 1 or 0 per line.")
    return spec


def kind_of(spec: str) -> str:
    """One of KINDS."""
    return check(spec).partition(":")[0]


def fingerprint(spec: str) -> str:
    """A hash of what the setting reads besides the data: the file of pairs."""
    file = Path(spec.removeprefix("pairs:"))
    if kind_of(spec) != "pairs" or not file.is_file():
        return ""
    return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()


def build(spec: str, train: Dataset) -> Similarity:
    """The similarity of these training items under a setting such as "labels" or "pairs:FILE"."""
    kind, _, rest = check(spec).partition(":")
    if kind == "labels":
        if train.labels is None:
            raise DataError("The data has no labels. Give some, or choose another similarity: folders, tags, pairing.")
        return SharedLabels.of(train.labels, f"{train.labels.shape[1]:,} labels: two items that share one are similar")
    if kind == "folders":
        labels, names = labels_from_folders(train._paths())
        return SharedLabels.of(labels, f"{len(names):,} folders: two items in the same one are similar")
    if kind == "tags":
        return SharedTags.of(train, rest)
    if kind == "labels+tags":
        return LabelsAndTags(build("labels", train), SharedTags.of(train, rest))
    if kind == "neighbours":
        return Neighbours.nearest(train, rest)
    return ListedPairs.of(train, Path(rest)) if kind == "pairs" else ListedPairs.alone(len(train))


@dataclass(frozen=True, eq=False)
class SharedLabels(Similarity):
    """S = 1 where two points share a label."""

    labels: Tensor  # (n, labels) of 0 and 1, uint8
    source: str = "labels"
    dtype: torch.dtype = torch.float32
    words: Tensor | None = None  # on a GPU: the labels as bits, (n, words), int32, for its kernel

    @classmethod
    def of(cls, labels: NDArray[np.uint8], source: str = "labels") -> Self:
        """From labels (n, l) of 0 and 1."""
        return cls(torch.from_numpy(labels).to(torch.uint8), source)

    @property
    def description(self) -> str:
        return f"Similarity from {self.source}."

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        labels = self.labels.to(device)
        return replace(self, labels=labels, dtype=dtype, words=label_bits(labels) if labels.is_cuda else None)

    def S(self, batch: Tensor, start: int, stop: int) -> Tensor:
        return objective.similarity(self.labels[batch].to(self.dtype), self.labels[start:stop].to(self.dtype))


def label_bits(labels: Tensor) -> Tensor:
    """Labels (n, l) of 0 and 1 as bits of int32, (n, ceil(l / 31)): 31 to a word, the sign bit stays unused."""
    padded = torch.nn.functional.pad(labels, (0, -labels.shape[1] % 31)).view(len(labels), -1, 31)
    weights = 2 ** torch.arange(31, device=labels.device)
    return (padded.to(torch.int64) * weights).sum(-1).to(torch.int32)


@dataclass(frozen=True, eq=False)
class SharedTags(Similarity):
    """S = 1 where the words that two points share are rare enough together, and for a point with itself.

    The words of all items lie in one row, those of item i from starts[i] to starts[i + 1].
    """

    modality: str
    words: Tensor  # int64
    starts: Tensor  # (n + 1,), int64
    rarity: Tensor  # of each word: -log of the share of items that have it

    @classmethod
    def of(cls, train: Dataset, modality: str) -> Self:
        """From the words of a text modality; "" takes tags, text, or the first one there is."""
        texts = [name for name, column in train.columns.items() if isinstance(column, Texts)]
        if not texts:
            raise DataError(
                "Similarity from tags needs words, and the data has none. Choose folders, pairs or pairing."
            )
        modality = modality or ("tags" if "tags" in texts else "text" if "text" in texts else texts[0])
        if modality not in texts:
            raise DataError(f"There is no text modality {modality!r} to take tags from. There are: {', '.join(texts)}.")
        column = train[modality]
        assert isinstance(column, Texts)
        bag = BagOfWords().fit(column.values)
        words = [np.flatnonzero(bag.transform([value])[0]) for value in column.values]
        rarity = -np.log(bag.counts_ / bag.documents_)
        starts = np.cumsum([0, *map(len, words)])
        return cls(
            modality,
            torch.from_numpy(np.concatenate(words).astype(np.int64)),
            torch.from_numpy(starts),
            torch.from_numpy(rarity),
        )

    @property
    def description(self) -> str:
        return (
            f"Similarity from the {len(self.rarity):,} words of {self.modality!r}: two items are similar if their shared "
            f"words are as rare together as one word that {RARE_SHARE:.0%} of the items have, {self.share:.2%} of the pairs."
        )

    @property
    def share(self) -> float:
        """Share of similar pairs, estimated from a sample of the items."""
        items = len(self.starts) - 1
        sample = np.random.default_rng(0).permutation(items)[:500]
        tags = self.to(torch.device("cpu"), torch.float32)
        return float(tags.S(torch.from_numpy(sample), 0, items).mean())

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        words, starts, rarity = self.words.to(device), self.starts.to(device), self.rarity.to(device, dtype)
        return replace(self, words=words, starts=starts, rarity=rarity)

    def S(self, batch: Tensor, start: int, stop: int) -> Tensor:
        entries, rows = _entries(self.starts, batch)
        words = self.words[entries]
        mine = self.rarity.new_zeros(len(self.rarity), len(batch))
        mine[words, rows] = self.rarity[words]
        bounds = self.starts[start : stop + 1]
        theirs = self.words[int(bounds[0]) : int(bounds[-1])]
        shared = embedding_bag(theirs, mine, bounds[:-1] - bounds[0], mode="sum")  # (points, batch)
        S = shared.T.ge(-math.log(RARE_SHARE) - 1e-4).to(mine.dtype)
        inside = (batch >= start) & (batch < stop)  # points of the batch against themselves
        S[inside.nonzero()[:, 0], batch[inside] - start] = 1
        return S


@dataclass(frozen=True, eq=False)
class LabelsAndTags(Similarity):
    """S between 0 and 1, mostly from labels and the rest from tags, so that codes also distinguish items that share a label."""

    labels: Similarity
    tags: SharedTags

    @property
    def description(self) -> str:
        labels = self.labels.description.removesuffix(".")
        return f"{labels}; the more so if they also share rare words of {self.tags.modality!r}."

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        return replace(self, labels=self.labels.to(device, dtype), tags=self.tags.to(device, dtype))

    def S(self, batch: Tensor, start: int, stop: int) -> Tensor:
        return self.labels.S(batch, start, stop).lerp(self.tags.S(batch, start, stop), TAG_WEIGHT)


@dataclass(frozen=True, eq=False)
class ListedPairs(Similarity):
    """S and W from a list of pairs, each in both orders: the partners of item i lie from starts[i] to starts[i + 1]."""

    partners: Tensor  # int64
    similar: Tensor  # 1 or 0 for each partner
    starts: Tensor  # (n + 1,), int64
    complete: bool  # pairs that are not listed are dissimilar; otherwise they are unknown and weigh nothing
    source: str

    within: ClassVar[bool] = False  # a point is similar to itself, which says nothing within a modality

    @classmethod
    def alone(cls, items: int) -> Self:
        """Every item is similar to itself, and to no other."""
        source = "the pairing alone: an item is similar only to itself, in another modality"
        return cls(torch.arange(items), torch.ones(items), torch.arange(items + 1), True, source)

    @classmethod
    def of(cls, train: Dataset, file: Path) -> Self:
        """From a file of pairs of ids; pairs with an item outside the training set are left out."""
        row_of = {name: row for row, name in enumerate(train.ids)}
        pairs: dict[tuple[int, int], bool] = {(row, row): True for row in range(len(train))}
        listed, complete = 0, True  # complete: the file names similar pairs only, of training items or not
        for line, first, second, similar in read_pairs(file, row_of):
            listed += 1
            complete &= similar
            a, b = row_of.get(first), row_of.get(second)
            if a is None or b is None:
                continue
            if pairs.get((a, b), similar) != similar:
                raise DataError(
                    f"{file.name} line {line}: {first} and {second} are both similar and not. Keep one line."
                )
            pairs[a, b] = pairs[b, a] = similar
        used = len(pairs) - len(train)
        if not used:
            raise DataError(
                f"None of the {listed:,} pairs of {file} is of two training items. Are the ids those of the data?"
            )
        order = sorted(pairs)
        unlisted = "all others are dissimilar" if complete else "others are unknown and do not count"
        source = f"{used // 2:,} of the {listed:,} pairs in {file.name}, those of training items; {unlisted}"
        starts = np.searchsorted([a for a, _ in order], np.arange(len(train) + 1)).astype(np.int64)
        partners, similar_ = torch.tensor([b for _, b in order]), torch.tensor([float(pairs[pair]) for pair in order])
        return cls(partners, similar_, torch.from_numpy(starts), complete, source)

    @property
    def description(self) -> str:
        return f"Similarity from {self.source}."

    @cached_property
    def weights(self) -> tuple[float, float]:
        """Weights of similar and of other pairs, so that the mean over all pairs is 1."""
        pairs = (len(self.starts) - 1) ** 2
        counted = pairs if self.complete else len(self.partners)
        share = int((self.similar > 0).sum()) / counted
        yes, no = 1.0, 1.0
        if share < SIMILAR_WEIGHT:
            yes, no = SIMILAR_WEIGHT / max(share, 1e-12), (1 - SIMILAR_WEIGHT) / (1 - share)
        return yes * pairs / counted, no * pairs / counted

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        partners, starts, similar = self.partners.to(device), self.starts.to(device), self.similar.to(device, dtype)
        return replace(self, partners=partners, starts=starts, similar=similar)

    def S(self, batch: Tensor, start: int, stop: int) -> Tensor:
        return self._fill(batch, start, stop, self.similar, 0.0)

    def W(self, S: Tensor, batch: Tensor, start: int, stop: int) -> Tensor | None:
        yes, no = self.weights
        return self._fill(batch, start, stop, torch.where(self.similar > 0, yes, no), no if self.complete else 0.0)

    def _fill(self, batch: Tensor, start: int, stop: int, values: Tensor, unlisted: float) -> Tensor:
        entries, rows = _entries(self.starts, batch)
        columns = self.partners[entries]
        inside = (columns >= start) & (columns < stop)
        filled = self.similar.new_full((len(batch), stop - start), unlisted)
        filled[rows[inside], columns[inside] - start] = values[entries[inside]].to(filled.dtype)
        return filled


@dataclass(frozen=True, eq=False)
class Neighbours(ListedPairs):
    """S = 1 where one of two points is among the nearest of the other by the cosine of their vectors, and for a point itself.

    All pairs weigh the same: with more weight on the similar ones, codes keep fewer neighbours.
    """

    within: ClassVar[bool] = True

    @classmethod
    def nearest(cls, train: Dataset, modality: str) -> Self:
        """From the vectors of a modality; "" takes the first one there is."""
        names = [name for name, column in train.columns.items() if isinstance(column, Vectors)]
        if not names:
            raise DataError(
                "Similarity from neighbours needs vectors, and the data has none.", hint="Choose another similarity."
            )
        modality = modality or names[0]
        if modality not in names:
            raise DataError(
                f"There are no vectors {modality!r} to take neighbours from. There are: {', '.join(names)}."
            )
        column = train[modality]
        assert isinstance(column, Vectors)
        items, rows = len(train), torch.from_numpy(np.flatnonzero(column.observed))
        vectors = torch.nn.functional.normalize(torch.from_numpy(np.asarray(column.values, np.float32))[rows])
        count = min(max(MIN_NEIGHBOURS, round(NEIGHBOUR_SHARE * len(rows))) + 1, len(rows))  # each is its own neighbour
        near = torch.cat([(block @ vectors.T).topk(count).indices for block in vectors.split(1024)])
        first, second = rows.repeat_interleave(count), rows[near.flatten()]
        alone = torch.arange(items)
        pairs = torch.cat([first * items + second, second * items + first, alone * items + alone]).unique()
        starts = torch.searchsorted(pairs, torch.arange(items + 1) * items)
        source = (
            f"the vectors of {modality!r}: two items are similar if one is among the nearest {count - 1:,} of the other"
        )
        return cls(pairs % items, torch.ones(len(pairs)), starts, True, source)

    def W(self, S: Tensor, batch: Tensor, start: int, stop: int) -> Tensor | None:
        return None


def _entries(starts: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Where the entries of the batch's items lie, and which row of the batch each belongs to."""
    counts = starts[batch + 1] - starts[batch]
    rows = torch.repeat_interleave(torch.arange(len(batch), device=batch.device), counts)
    before = counts.cumsum(0) - counts
    return torch.arange(len(rows), device=batch.device) - before[rows] + starts[batch][rows], rows
