"""From a query to the order of its hits, in two stages.

First stage: which items are near by Hamming distance. Up to EVERYTHING items all of them are candidates; beyond, the nearest
CANDIDATES, and those that hold a rare word of the query.

Second stage: candidates are ordered by a score with two parts.

    fine     the inner product of the query's fine vector with those of the item: by its picture (or another input) o, and by its
             text t, as (o + TEXT t) / (1 + TEXT RATIO). An item that lacks one counts as t = RATIO o, which is what relevant
             items have on average
    words    the share of the query's words, weighted by rarity, that stand in the item's text or labels

    score = fine + WORDS words; and where at most FEW items hold all words of the query, those come first

An index without fine vectors is ordered by distance, as the paper does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dcmh.data.dataset import JOINT
from dcmh.errors import ParameterError
from dcmh.index import HammingIndex, Index
from dcmh.stores.codes import ALONE

EVERYTHING = 200_000  # items up to which every fine vector is scored
CANDIDATES = 5_000  # by Hamming distance, of more items
COMMON = 20_000  # items that hold a word, from which on it is looked up only in candidates
RARE = 1_000  # items that hold a word, up to which they are candidates
TEXT = 0.3
RATIO = 0.7
WORDS = 1.0
FEW = 10
FIRST = 10  # more than any score
SPARE = 10  # hits more than asked for, in case that some are removed while they are searched
DEFAULT_K = 10

Codes = Mapping[str, Index]
Ids = NDArray[np.int64]
Scores = NDArray[np.float32]
Part = tuple[str, Ids | str | None]  # a modality, and the ids that may be found in it (None: all)
Near = dict[int, tuple[int, str]]  # id to distance and modality


class WordIndex(Protocol):
    """The words in texts and labels, as a catalogue keeps them."""

    def word_counts(self, words: Sequence[str]) -> dict[str, int]: ...

    def with_word(self, word: str, among: Sequence[int] | None = None) -> Ids: ...


class FineVectors(Protocol):
    """The fine vectors of one modality, wherever they lie."""

    def __len__(self) -> int: ...

    def scores(self, query: NDArray[np.float32]) -> tuple[Ids, Scores]: ...

    def scores_of(self, query: NDArray[np.float32], wanted: Ids) -> Scores: ...


@dataclass(frozen=True)
class Wanted:
    """Which hits: at most k, within a radius, in one modality; without the `offset` first, and without an item."""

    k: int | None = None
    radius: int | None = None
    in_: str | None = None
    offset: int = 0
    without: int = 0


@dataclass(frozen=True)
class Request:
    """What is asked: a code in a modality, with a fine vector and words where there are any.

    `known` is False where the encoder can make nothing of the query, so that only its words can find something.
    """

    code: bytes
    modality: str
    is_text: bool
    fine: NDArray[np.float32] | None = None
    words: tuple[str, ...] = ()
    known: bool = True


@dataclass(frozen=True)
class Found:
    """One item: why it is there."""

    id: int
    distance: int
    modality: str
    score: float | None = None
    fine: float | None = None
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ranking:
    """What was found, best first; where that is empty, `beyond` is the nearest item past the radius."""

    found: list[Found]
    beyond: Found | None
    searched: int  # items
    candidates: int | None  # that were scored, where not all were
    radius: int | None
    best: float | None = None  # the highest fine score of all
    common: bool = False  # whether some word of the request is held by more than FEW items


@dataclass(frozen=True)
class Collection:
    """What is searched. `text` names the modalities whose items are texts."""

    codes: Codes
    fine: Mapping[str, FineVectors]
    words: WordIndex | None
    items: int
    text: Sequence[str] = ()


def search(collection: Collection, request: Request, wanted: Wanted) -> Ranking:
    """The first hits of a request."""
    k, radius = limits(wanted.k, wanted.radius)
    offset = whole_number("offset", wanted.offset, 0) or 0
    chosen = parts(collection.codes, request, wanted.in_, collection.items)
    whole = len(chosen) != 1 or chosen[0][1] is not None
    searched = collection.items if whole else len(collection.codes[chosen[0][0]])
    scored = _second_stage(collection, request, wanted)
    if not scored:
        return _by_distance(collection, request, wanted, chosen, searched)
    near: Near = {}
    among: Ids | None = None
    candidates: int | None = None
    if radius is not None:
        near = _find(collection.codes, chosen, request, None, radius)
        among = np.array(sorted(near), np.int64)
    elif collection.items > EVERYTHING:
        near = _find(collection.codes, chosen, request, max(CANDIDATES, 2 * ((k or 0) + offset)), None)
        among = np.array(sorted(near), np.int64)
    words = _Words(collection, request, wanted, among)
    if among is not None and radius is None:
        among = np.union1d(among, words.rare)
        candidates = len(among)
    ids, fine = _fine(collection, request, scored, among, words.rare)
    share = words.share(ids)
    score = fine + WORDS * share
    key = score if words.few is None else np.where(np.isin(ids, words.few), score + FIRST, score)
    keep = ids != wanted.without if wanted.without else np.ones(len(ids), bool)
    last = None if k is None else k + offset
    order = _best(ids, np.where(keep, key, -np.inf), None if last is None else last + SPARE)
    order = order[keep[order]]
    near.pop(wanted.without, None)
    near |= _distances(collection.codes, chosen, request, [int(ids[row]) for row in order if int(ids[row]) not in near])
    found = []
    for row in order:
        number = int(ids[row])
        if number in near:
            distance, modality = near[number]
            found.append(Found(number, distance, modality, float(score[row]), float(fine[row]), words.of(number)))
    found = found[offset:last]
    beyond = None
    if not near and radius is not None:
        nearest = Wanted(1, None, wanted.in_, without=wanted.without)
        beyond = next(iter(_by_distance(collection, request, nearest, chosen, searched).found), None)
    best = float(fine[keep].max()) if keep.any() else None
    return Ranking(found, beyond, searched, candidates, radius, best, words.common)


def _second_stage(collection: Collection, request: Request, wanted: Wanted) -> list[str]:
    """The modalities whose fine vectors are scored; none where the order is that of distances."""
    names = [wanted.in_] if wanted.in_ is not None else list(collection.codes)
    there = [name for name in names if name in collection.fine and len(collection.fine[name])]
    return there if request.fine is not None and there else []


def _fine(
    collection: Collection, request: Request, names: list[str], among: Ids | None, held: Ids
) -> tuple[Ids, Scores]:
    """Ids and fine scores: of the items among some; or of all, and of those that hold a word."""
    assert request.fine is not None
    if among is None:
        every = {name: collection.fine[name].scores(request.fine) for name in names}
        ids = _union([*(found for found, _ in every.values()), held])
        columns = {name: _spread(ids, *found) for name, found in every.items()}
    else:
        ids = among
        columns = {name: collection.fine[name].scores_of(request.fine, ids) for name in names}
    blank = np.full(len(ids), np.nan, np.float32)
    texts = [column for name, column in columns.items() if name in collection.text]
    others = [column for name, column in columns.items() if name not in collection.text]
    t = np.fmax.reduce(texts) if texts else blank
    o = np.fmax.reduce(others) if others else blank
    t, o = np.where(np.isnan(t), RATIO * o, t), np.where(np.isnan(o), t / RATIO, o)
    fine = (o + TEXT * t) / (1 + TEXT * RATIO)
    return ids, np.where(np.isnan(fine), -1, fine).astype(np.float32)  # -1: found by a word, and nothing else is known


def _union(lists: list[Ids]) -> Ids:
    """All ids of some ascending lists, ascending."""
    longest = max(lists, key=len)
    others = [one for one in lists if one is not longest and not _holds(longest, one).all()]
    if not others:
        return longest
    joined = np.sort(np.concatenate([longest, *others]), kind="stable")  # sorted runs: a merge
    return np.asarray(joined[np.append(True, joined[1:] != joined[:-1])])


def _holds(ids: Ids, wanted: Ids) -> NDArray[np.bool_]:
    """Which of some ids are in an ascending list."""
    rows = np.searchsorted(ids, wanted)
    there = rows < len(ids)
    there[there] = ids[rows[there]] == wanted[there]
    return np.asarray(there)


def _spread(ids: Ids, found: Ids, scores: Scores) -> Scores:
    """Scores in the rows of `ids`, nan where there is none."""
    if len(found) == len(ids):
        return scores
    spread = np.full(len(ids), np.nan, np.float32)
    spread[np.searchsorted(ids, found)] = scores
    return spread


@dataclass
class _Words:
    """Which words of a request stand in which items."""

    collection: Collection
    request: Request
    wanted: Wanted
    among: Ids | None
    rare: Ids = field(default_factory=lambda: np.empty(0, np.int64))  # items that hold a rare word
    few: Ids | None = None  # the items that hold all words, where they are few
    common: bool = False  # whether some word is held by more than FEW items
    _weights: dict[str, float] = field(default_factory=dict)
    _holders: dict[str, Ids] = field(default_factory=dict)

    def __post_init__(self) -> None:
        index, words = self.collection.words, list(self.request.words)
        if index is None or not words or not self._count():
            return
        counts = {word: min(count, COMMON) for word, count in index.word_counts(words).items()}
        if not any(counts.values()):
            return
        self.common = max(counts.values()) > FEW
        rarity = {word: math.log(max(self.collection.items, 1) / max(count, 1)) + 0.1 for word, count in counts.items()}
        self._weights = {word: weight / sum(rarity.values()) for word, weight in rarity.items()}
        for word, count in counts.items():
            if self.among is None or (0 < count < COMMON):
                self._holders[word] = index.with_word(word) if count else np.empty(0, np.int64)
        lists = [held for word, held in self._holders.items() if self.among is None or counts[word] <= RARE]
        if len(self._holders) == len(counts) and len(whole := self._of_all()) <= RARE:
            lists.append(whole)
        self.rare = _union(lists) if lists else self.rare
        for word in counts:
            if word not in self._holders:
                everyone = [] if self.among is None else _union([self.among, self.rare]).tolist()
                self._holders[word] = index.with_word(word, everyone) if counts[word] else np.empty(0, np.int64)
        if 0 < len(whole := self._of_all()) <= FEW:
            self.few = whole

    def _of_all(self) -> Ids:
        """The items that hold all words."""
        first, *others = sorted(self._holders.values(), key=len)
        for holders in others:
            first = first[_holds(holders, first)]
        return first

    def _count(self) -> bool:
        """Whether words count: for texts, unless only pictures are searched."""
        return self.request.is_text and self.wanted.in_ in (None, JOINT, *self.collection.text)

    def share(self, ids: Ids) -> Scores:
        """The share of the words, by rarity, that each item holds."""
        share = np.zeros(len(ids), np.float32)
        for word, holders in self._holders.items():
            there = holders[_holds(ids, holders)]
            share[np.searchsorted(ids, there)] += self._weights[word]
        return share

    def of(self, item: int) -> tuple[str, ...]:
        """The words that an item holds."""
        found = []
        for word, holders in self._holders.items():
            row = int(np.searchsorted(holders, item))
            if row < len(holders) and holders[row] == item:
                found.append(word)
        return tuple(found)


def _best(ids: Ids, score: Scores, k: int | None) -> NDArray[np.intp]:
    """The rows of the k highest scores, best first; older items, which have smaller ids, first at equal scores."""
    rows = np.arange(len(ids))
    if k is not None and k < len(ids):
        rows = np.flatnonzero(score >= np.partition(score, len(score) - k)[len(score) - k])
    return rows[np.lexsort((ids[rows], -score[rows]))][:k]


# -- the first stage ------------------------------------------------------------------------------------------------------


def _by_distance(
    collection: Collection, request: Request, wanted: Wanted, chosen: list[Part], searched: int
) -> Ranking:
    """The order of distances alone; a request that only its words are known of finds the items that hold them."""
    k, radius = limits(wanted.k, wanted.radius)
    k = None if k is None else k + wanted.offset
    more = 1 if wanted.without else 0
    near: Near = {}
    held: dict[int, tuple[str, ...]] = {}
    if request.known:
        near = _find(collection.codes, chosen, request, None if k is None else k + more, radius)
    else:
        words = _Words(collection, request, wanted, None)
        held = {number: words.of(number) for number in words.rare.tolist()}
        near = _distances(collection.codes, chosen, request, list(held))
        near = {item: found for item, found in near.items() if radius is None or found[0] <= radius}
    near.pop(wanted.without, None)
    order = sorted(near, key=lambda item: (-len(held.get(item, ())), near[item][0], item))[:k][wanted.offset :]
    beyond = None
    if not near and radius is not None:
        others = _find(collection.codes, chosen, request, 1 + more, None)
        others.pop(wanted.without, None)
        beyond = next((Found(item, *others[item]) for item in _nearest_first(others)), None)
    return Ranking(
        [Found(item, *near[item], words=held.get(item, ())) for item in order], beyond, searched, None, radius
    )


def limits(k: int | None, radius: int | None) -> tuple[int | None, int | None]:
    """k and radius, checked: 10 hits where neither is given."""
    if k is None and radius is None:
        k = DEFAULT_K
    return whole_number("k", k, 1), whole_number("radius", radius, 0)


def parts(codes: Codes, request: Request, in_: str | None, items: int) -> list[Part]:
    """Which codes are searched.

    A choice wins. Otherwise words look at pictures, and at the words of items that have no picture; a picture looks at
    pictures and words alike.
    """
    asked = request.modality
    if in_ is not None:
        if in_ not in codes:
            raise ParameterError(f"The index has no {in_!r} codes.", hint=f"It has: {', '.join(codes) or 'nothing'}.")
        return [(in_, None)]
    if not request.is_text:
        return [(name, None) for name in codes]
    others = [name for name in codes if name != asked]
    chosen: list[Part] = [(name, None) for name in others]
    if not others:
        return [(asked, None)] if asked in codes else []
    if asked in codes and max(len(codes[name]) for name in others) < items:
        only = _alone(codes, asked, others)
        if len(only):
            chosen.append((asked, only))
    return chosen


def _alone(codes: Codes, asked: str, others: list[str]) -> Ids | str:
    """The items that have a code in no other modality: their ids, or the word for them that a server knows."""
    if not isinstance(codes[asked], HammingIndex):
        return ALONE
    only = np.sort(codes[asked].ids, kind="stable")
    for name in others:
        only = only[~_holds(np.sort(codes[name].ids, kind="stable"), only)]
    return only


def _find(codes: Codes, chosen: list[Part], request: Request, k: int | None, radius: int | None) -> Near:
    """Items with their smaller distance. Where two are equal, the one across modalities: its precision is measured."""
    found: Near = {}
    packed = np.frombuffer(request.code, np.uint8)[None]
    for name, allowed in sorted(chosen, key=lambda part: part[0] == request.modality):
        if k is None:
            results = codes[name].within(packed, radius or 0, allowed=allowed)
        else:
            results = codes[name].search(packed, k, allowed=allowed)
        for item, distance in results[0]:
            if (radius is None or distance <= radius) and (item not in found or distance < found[item][0]):
                found[item] = (distance, name)
    return found


def _distances(codes: Codes, chosen: list[Part], request: Request, items: list[int]) -> Near:
    """The smaller distance of some items, each with its modality; those without a code are left out.

    A part that is limited to some ids, and codes that were not chosen, serve only for items that have no other.
    """
    found: Near = {}
    query = np.frombuffer(request.code, np.uint8)
    whole = {name for name, allowed in chosen if allowed is None}
    for name in sorted(codes, key=lambda name: (name not in whole, name == request.modality)):
        wanted = items if name in whole else [item for item in items if item not in found]
        for item, code in codes[name].codes_there(wanted).items() if wanted else ():
            distance = int(np.bitwise_count(np.frombuffer(code, np.uint8) ^ query).sum())
            if item not in found or distance < found[item][0]:
                found[item] = (distance, name)
    return found


def _nearest_first(near: Near) -> list[int]:
    return sorted(near, key=lambda item: (near[item][0], item))


def whole_number(name: str, value: Any, least: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ParameterError(f"{name} must be a whole number of at least {least}, not {value!r}.")
    return int(value)
