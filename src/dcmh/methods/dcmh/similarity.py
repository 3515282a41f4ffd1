"""What makes two items similar: the paper's S, from labels or without any, for a batch x some points at a time.

labels         they share a label, as in the paper
folders        their pictures lie in the same folder
tags           they share words that are rare enough together; tags:NAME takes the words of the text modality NAME
labels+tags    they share a label, and the more so if they share such words; labels+tags:NAME likewise
pairs:FILE     the file says so; a pair that it does not name is unknown, and counts for nothing
pairing        they are the same item: only what belongs together in two modalities is similar

With pairs and with the pairing, few pairs are similar and would drown among the others: they get half of the weight (`W`).
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from dcmh.data.columns import Texts
from dcmh.data.dataset import Dataset
from dcmh.data.labels import labels_from_folders
from dcmh.errors import DataError, ParameterError
from dcmh.methods.dcmh.likelihood import SharedLabels, Similarity
from dcmh.util.text import BagOfWords

KINDS = ("labels", "folders", "tags", "labels+tags", "pairs", "pairing")
RARE = 0.05  # shared words must be as rare together as one word that this share of the items has
FINER = 0.2  # what shared words say beside shared labels: S = 1 with both, 1 - FINER with labels alone, FINER with words alone
LEAST = 0.5  # of the weight, for listed pairs that are similar
_YES, _NO = ("1", "true", "yes", "similar", "+1"), ("0", "false", "no", "dissimilar", "-1")


class Known(Protocol):
    """What is known about the training items, in memory; `on` brings it to where the training runs."""

    @property
    def said(self) -> str:
        """A sentence for the user."""
        ...

    def on(self, device: torch.device, dtype: torch.dtype) -> Similarity: ...


def check(spec: str) -> str:
    """The setting, if it makes sense."""
    kind, colon, rest = spec.partition(":")
    if kind not in KINDS or (colon and not rest) or (colon and kind not in ("tags", "labels+tags", "pairs")):
        raise ParameterError(
            f"similarity {spec!r} is not known. Choose labels, folders, tags, tags:MODALITY, labels+tags, "
            "labels+tags:MODALITY, pairs:FILE or pairing."
        )
    if kind == "pairs" and not rest:
        raise ParameterError("similarity 'pairs' needs a file: pairs:FILE, with two ids a line and 1 or 0.")
    return spec


def kind_of(spec: str) -> str:
    """One of KINDS."""
    return check(spec).partition(":")[0]


def fingerprint(spec: str) -> str:
    """A hash of what the setting reads beside the data: the file of pairs."""
    file = Path(spec.removeprefix("pairs:"))
    if kind_of(spec) != "pairs" or not file.is_file():
        return ""
    return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()


def learn_from(spec: str, train: Dataset) -> Known:
    """What the setting says about these training items."""
    kind, _, rest = check(spec).partition(":")
    if kind == "labels":
        if train.labels is None:
            raise DataError("The data has no labels. Give some, or choose another similarity: folders, tags, pairing.")
        return KnownLabels(train.labels, f"{train.labels.shape[1]:,} labels: two items are similar that share one")
    if kind == "folders":
        labels, names = labels_from_folders(train._paths())
        return KnownLabels(labels, f"{len(names):,} folders: two items are similar that lie in the same one")
    if kind == "tags":
        return KnownTags.of(train, rest)
    if kind == "labels+tags":
        return KnownBoth(learn_from("labels", train), KnownTags.of(train, rest))
    if kind == "pairs":
        return KnownPairs.of(train, Path(rest))
    return KnownPairs.alone(len(train))


# -- what is known ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class KnownLabels:
    labels: NDArray[np.uint8]  # (n, labels)
    about: str = "labels"

    @property
    def said(self) -> str:
        return f"Similarity from {self.about}."

    def on(self, device: torch.device, dtype: torch.dtype) -> Similarity:
        return SharedLabels(torch.from_numpy(self.labels).to(device), dtype)


@dataclass(frozen=True, eq=False)
class KnownTags:
    """The words of all items in a row, those of item i at places starts[i] to starts[i + 1]."""

    modality: str
    words: NDArray[np.int64]
    starts: NDArray[np.int64]  # (n + 1,)
    rarity: NDArray[np.float64]  # of each word: -log of the share of items that have it

    @classmethod
    def of(cls, train: Dataset, modality: str) -> KnownTags:
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
        found = [np.flatnonzero(bag.transform([value])[0]) for value in column.values]
        rarity = -np.log(bag.counts_ / bag.documents_)
        starts = np.cumsum([0, *map(len, found)])
        return cls(modality, np.concatenate(found).astype(np.int64), starts, rarity)

    @property
    def said(self) -> str:
        return (
            f"Similarity from the {len(self.rarity):,} words of {self.modality!r}: two items are similar whose shared "
            f"words are as rare together as one word that {RARE:.0%} of the items have, {self.share:.2%} of the pairs."
        )

    @property
    def share(self) -> float:
        """Of similar pairs, by a sample of the items."""
        items = len(self.starts) - 1
        sample = np.random.default_rng(0).permutation(items)[:500]
        shared = SharedWords(self, torch.device("cpu"), torch.float32)
        return float(shared.S(torch.from_numpy(sample), 0, items).mean())

    def on(self, device: torch.device, dtype: torch.dtype) -> Similarity:
        return SharedWords(self, device, dtype)


@dataclass(frozen=True, eq=False)
class KnownBoth:
    labels: Known
    tags: KnownTags

    @property
    def said(self) -> str:
        return f"{self.labels.said.removesuffix('.')}; the more so if they also share rare words of {self.tags.modality!r}."

    def on(self, device: torch.device, dtype: torch.dtype) -> Similarity:
        return LabelsAndWords(self.labels.on(device, dtype), self.tags.on(device, dtype))


@dataclass(frozen=True, eq=False)
class KnownPairs:
    """Known pairs of items, each in both orders, by first item: the partners of item i at places starts[i] to
    starts[i + 1]. `rest`: pairs that are not listed are dissimilar; otherwise they are unknown."""

    partners: NDArray[np.int64]
    similar: NDArray[np.bool_]
    starts: NDArray[np.int64]  # (n + 1,)
    rest: bool
    about: str

    @classmethod
    def alone(cls, items: int) -> KnownPairs:
        """Every item is similar to itself, and to no other."""
        every = np.arange(items)
        about = "the pairing alone: an item is similar only to itself, in another modality"
        return cls(every, np.ones(items, bool), np.arange(items + 1), True, about)

    @classmethod
    def of(cls, train: Dataset, file: Path) -> KnownPairs:
        row_of = {name: row for row, name in enumerate(train.ids)}
        pairs: dict[tuple[int, int], bool] = {(row, row): True for row in range(len(train))}
        listed, rest = 0, True  # rest: the file names similar pairs only, whether they are of training items or not
        for line, first, second, similar in _lines(file, row_of):
            listed += 1
            rest &= similar
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
        unlisted = "all others are dissimilar" if rest else "others are unknown and count for nothing"
        about = f"{used // 2:,} of the {listed:,} pairs in {file.name}, those of training items; {unlisted}"
        starts = np.searchsorted([a for a, _ in order], np.arange(len(train) + 1))
        partners, similar_ = np.array([b for _, b in order]), np.array([pairs[pair] for pair in order])
        return cls(partners, similar_, starts.astype(np.int64), rest, about)

    @property
    def said(self) -> str:
        return f"Similarity from {self.about}."

    def on(self, device: torch.device, dtype: torch.dtype) -> Similarity:
        return ListedPairs(self, device, dtype)


# -- for the objective: S and W of a batch against points start to stop -------------------------------------------------


class SharedWords:
    """S = 1 where the words that two points share are rare enough together, and for a point with itself."""

    within = True

    def __init__(self, known: KnownTags, device: torch.device, dtype: torch.dtype) -> None:
        self.words = torch.from_numpy(known.words).to(device)
        self.starts = torch.from_numpy(known.starts).to(device)
        self.rarity = torch.from_numpy(known.rarity).to(device, dtype)
        self.threshold = -math.log(RARE) - 1e-4

    def S(self, batch: Tensor, start: int, stop: int) -> Tensor:
        places, rows = _places(self.starts, batch)
        words = self.words[places]
        mine = self.rarity.new_zeros(len(self.rarity), len(batch))
        mine[words, rows] = self.rarity[words]
        bounds = self.starts[start : stop + 1]
        theirs = self.words[int(bounds[0]) : int(bounds[-1])]
        shared = embedding_bag(theirs, mine, bounds[:-1] - bounds[0], mode="sum")  # (points, batch)
        S = shared.T.ge(self.threshold).to(mine.dtype)
        own = (batch >= start) & (batch < stop)
        S[own.nonzero()[:, 0], batch[own] - start] = 1
        return S

    def W(self, S: Tensor, batch: Tensor, start: int, stop: int) -> Tensor | None:
        return None


class LabelsAndWords:
    """S between 0 and 1: labels say most of it, words the rest, so that codes also tell apart what shares a label."""

    within = True

    def __init__(self, labels: Similarity, words: Similarity) -> None:
        self.labels, self.words = labels, words

    def S(self, batch: Tensor, start: int, stop: int) -> Tensor:
        return self.labels.S(batch, start, stop).lerp(self.words.S(batch, start, stop), FINER)

    def W(self, S: Tensor, batch: Tensor, start: int, stop: int) -> Tensor | None:
        return None


class ListedPairs:
    """S and W from a list: what is unknown has no weight."""

    within = False  # a point is similar to itself: within a modality that says nothing

    def __init__(self, known: KnownPairs, device: torch.device, dtype: torch.dtype) -> None:
        self.partners = torch.from_numpy(known.partners).to(device)
        self.similar = torch.from_numpy(known.similar).to(device, dtype)
        self.starts = torch.from_numpy(known.starts).to(device)
        everything = (len(known.starts) - 1) ** 2
        counted = everything if known.rest else len(known.partners)
        yes, no = _weights(float(known.similar.sum()) / counted) or (1.0, 1.0)
        self.rest = known.rest
        self.weights = yes * everything / counted, no * everything / counted  # so that their mean is 1 again

    def S(self, batch: Tensor, start: int, stop: int) -> Tensor:
        return self._fill(batch, start, stop, self.similar, 0.0)

    def W(self, S: Tensor, batch: Tensor, start: int, stop: int) -> Tensor | None:
        yes, no = self.weights
        return self._fill(batch, start, stop, torch.where(self.similar > 0, yes, no), no if self.rest else 0.0)

    def _fill(self, batch: Tensor, start: int, stop: int, values: Tensor, others: float) -> Tensor:
        places, rows = _places(self.starts, batch)
        columns = self.partners[places]
        here = (columns >= start) & (columns < stop)
        filled = self.similar.new_full((len(batch), stop - start), others)
        filled[rows[here], columns[here] - start] = values[places[here]].to(filled.dtype)
        return filled


def _places(starts: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Where the entries of the batch's items lie, and which of the batch each belongs to."""
    counts = starts[batch + 1] - starts[batch]
    rows = torch.repeat_interleave(torch.arange(len(batch), device=batch.device), counts)
    before = counts.cumsum(0) - counts
    return torch.arange(len(rows), device=batch.device) - before[rows] + starts[batch][rows], rows


def _weights(share: float) -> tuple[float, float] | None:
    """Weights of similar and other pairs, of mean 1, where the similar ones are fewer than LEAST."""
    return None if share >= LEAST else (LEAST / max(share, 1e-12), (1 - LEAST) / (1 - share))


def _lines(file: Path, ids: Container[str]) -> Iterator[tuple[int, str, str, bool]]:
    """Line, two ids, and whether they are similar: CSV, TSV or JSON lines; without a third column they are.

    The first line is one of names if its third cell is "similar" and the other two are no ids.
    """
    try:
        with open(file, encoding="utf-8-sig", newline="") as lines:
            for number, cells in enumerate(_cells(file, lines), 1):
                names = number == 1 and len(cells) > 2 and str(cells[2]).lower() == "similar"
                if not cells or (names and cells[0] not in ids and cells[1] not in ids):
                    continue
                said = str(cells[2]).strip().lower() if len(cells) > 2 else "1"
                if len(cells) not in (2, 3) or said not in (*_YES, *_NO):
                    raise DataError(f"{file.name} line {number}: expected two ids and 1 or 0, such as a.jpg,b.jpg,1.")
                yield number, str(cells[0]).strip(), str(cells[1]).strip(), said in _YES
    except OSError as error:
        raise DataError(
            f"Cannot read the pairs {file}: {error.strerror}. Give a file with two ids and 1 or 0 a line."
        ) from error
    except (ValueError, csv.Error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file.name} cannot be read: {error}. Write two ids and 1 or 0 a line.") from error


def _cells(file: Path, lines: Any) -> Iterator[list[Any]]:
    if file.suffix == ".jsonl":
        for line in lines:
            record = json.loads(line) if line.strip() else []
            yield list(record.values()) if isinstance(record, dict) else list(record)
    else:
        yield from csv.reader(lines, delimiter="\t" if file.suffix == ".tsv" else ",")
