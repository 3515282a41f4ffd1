"""From a query to the order of its hits, in two stages.

First stage: candidates by Hamming distance. In an index of up to EVERYTHING items all of them are candidates; in a larger one,
the nearest CANDIDATES, and those that contain a rare word of the query.

Second stage: candidates are ordered by a score with two terms.

    fine     the inner product of the query's fine vector with those of the item: by its picture (or another input) o, and by its
             text t, as (o + TEXT t) / (1 + TEXT RATIO). An item that lacks one counts as t = RATIO o, which is what relevant
             items have on average
    words    the share of the query's words, weighted by rarity, that occur in the item's text or labels

    score = fine + WORDS words; if at most FEW items contain all words of the query, those come first

What a query excludes ("dog -beach") is subtracted from its fine vector, and items that contain its words are no hits. Codes tell
better than fine vectors what a picture shows beside its main subject. So the best RERANKED items are ordered again, with the
agreement a = 1 - 2 distance / bits of their codes: score + WANTED a(the wanted words) - UNWANTED a(the excluded words). A filter
leaves out hits and changes neither the scores nor the order of the others.

Without fine vectors the order is that of Hamming distances, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dcmh.codes import hamming
from dcmh.data.dataset import JOINT
from dcmh.errors import ParameterError
from dcmh.index import HammingIndex, Index
from dcmh.index.protocol import Hits, ascending
from dcmh.stores.base import COMMON, EVERYTHING, FineVectors, Ids, Scores
from dcmh.stores.codes import ALONE
from dcmh.util.arrays import rows_of
from dcmh.util.text import plural_form

CANDIDATES = 5_000  # of an index of more than EVERYTHING items
RARE = 1_000  # a word that at most so many items contain makes them candidates
TEXT = 0.3
RATIO = 0.7
WORDS = 1.0
FEW = 10
FIRST = 10  # more than any score
SHOWING = 3  # items whose fine scores show whether anything matches
RERANKED = 1_000  # items whose codes are compared with those of excluded words
WANTED, UNWANTED = 0.2, 0.4
SPARE = 10  # hits beyond k, in case another thread removes some during the search
DEFAULT_K = 10
NONE: Ids = np.empty(0, np.int64)

Codes = Mapping[str, Index]
Scope = tuple[str, Ids | str | None]  # a modality, and the ids that may be hits in it (None: all)
Near = dict[int, tuple[int, str]]  # id to distance and modality
Found = tuple[str, Hits]  # a modality, and what was found by its codes


class WordIndex(Protocol):
    """The words in texts and labels; as in `Store`."""

    def word_counts(self, words: Sequence[str]) -> dict[str, int]: ...

    def with_word(self, word: str, among: Ids | Sequence[int] | None = None) -> Ids: ...


@dataclass(frozen=True)
class Wanted:
    """Which hits: at most k, within a radius, in one modality; not the first `offset`, and not the items `without`.

    `allowed` are the ids, ascending, of the items that pass a filter; None if there is no filter.
    """

    k: int | None = None
    radius: int | None = None
    modality: str | None = None
    offset: int = 0
    without: tuple[int, ...] = ()
    allowed: Ids | None = None

    def drop(self, near: Near) -> None:
        """Remove the items `without`."""
        for item in self.without:
            near.pop(item, None)


@dataclass(frozen=True)
class Request:
    """A query: its code in a modality, and its fine vector and words if it has any.

    `known` is False if the model knows no word of the query, so that only texts that contain them can be hits. An item is
    no hit if its text or labels contain all words of a member of `without`. `excluded_codes` are those of the excluded
    words, and `wanted_code` that of the rest of such a query.
    """

    code: bytes
    modality: str
    is_text: bool
    fine: NDArray[np.float32] | None = None
    words: tuple[str, ...] = ()
    known: bool = True
    without: tuple[tuple[str, ...], ...] = ()
    wanted_code: bytes | None = None
    excluded_codes: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Match:
    """An item in a ranking, and why it is there."""

    id: int
    distance: int
    modality: str
    score: float | None = None
    fine: float | None = None
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ranking:
    """The matches, best first; if there are none within the radius, `beyond` is the nearest item."""

    matches: list[Match]
    beyond: Match | None
    searched: int  # number of items
    candidates: int | None  # number of items that were scored; None if all were
    radius: int | None
    best: float | None = None  # the highest fine score
    first: tuple[float, ...] = ()  # the fine scores of the first SHOWING items, whatever the offset
    common: bool = False  # whether more than FEW items contain some word of the request


class WithPlurals:
    """The words of an index, each together with the form that its plural may have there."""

    def __init__(self, words: WordIndex) -> None:
        self._words = words

    def word_counts(self, words: Sequence[str]) -> dict[str, int]:
        """The number of items that contain each word; of items with both forms, perhaps more than there are."""
        forms = {word: other for word in words if (other := plural_form(word)) is not None}
        counts = self._words.word_counts(list(dict.fromkeys([*words, *forms.values()])))
        return {word: counts[word] + counts.get(forms.get(word, ""), 0) for word in words if word in counts}

    def with_word(self, word: str, among: Ids | Sequence[int] | None = None) -> Ids:
        """The ids of the items that contain a word, ascending; with `among`, only those of these items."""
        held, other = self._words.with_word(word, among), plural_form(word)
        return held if other is None else _union([held, self._words.with_word(other, among)])


@dataclass(frozen=True)
class Collection:
    """The codes, fine vectors and words to search. `text` names the modalities that are texts."""

    codes: Codes
    fine: Mapping[str, FineVectors]
    words: WordIndex | None
    items: int
    text: Sequence[str] = ()


def search(collection: Collection, request: Request, wanted: Wanted) -> Ranking:
    """The ranking of a request."""
    k, radius = limits(wanted.k, wanted.radius)
    offset = whole_number("offset", wanted.offset, 0) or 0
    scopes = _scopes(collection.codes, request, wanted.modality, collection.items)
    whole = len(scopes) != 1 or scopes[0][1] is not None
    searched = collection.items if whole else len(collection.codes[scopes[0][0]])
    searched = searched if wanted.allowed is None else len(wanted.allowed)
    scored = _second_stage(collection, request, wanted)
    if not scored:
        return _by_distance(collection, request, wanted, scopes, searched)
    near: Near = {}
    found: list[Found] = []
    among: Ids | None = None
    candidates: int | None = None
    if radius is not None:
        near = _find(collection.codes, scopes, request, None, radius, wanted.allowed)
        among = np.array(sorted(near), np.int64)
    elif collection.items > EVERYTHING:
        count = max(CANDIDATES, 2 * ((k or 0) + offset))
        found = _first_stage(collection.codes, scopes, request, count, None, wanted.allowed)
        among = _union([NONE, *(np.sort(hits.ids) for _, hits in found)])
    words = _Words(collection, request, wanted, among)
    if among is not None and radius is None:
        among = _union([among, words.sought(wanted.allowed)])
        candidates = len(among)
    ids, fine = _fine(collection, request, scored, among, words.candidates)
    score = words.added_to(fine, ids)
    key = score if words.few is None else np.where(_marked(ids, words.few), score + FIRST, score)
    without = _excluded(collection, request, wanted, among)
    kept = fine
    if len(without) or wanted.allowed is not None:
        keep = ~_marked(ids, without)
        if wanted.allowed is not None:
            keep &= _marked(ids, wanted.allowed)
        key, kept = np.where(keep, key, -np.inf), fine[keep]
    last = None if k is None else k + offset
    if request.excluded_codes:
        top = _best(ids, key, RERANKED)  # the same for every page of hits
        best_terms = _code_term(collection.codes, scopes, request, ids[top].tolist())
        term = np.full(len(ids), best_terms.min(initial=0), np.float32)  # so that the others stay behind them
        term[top] = best_terms
        score, key = score + term, key + term
    order = _best(ids, key, None if last is None else last + SPARE)
    for item in without.tolist() if near else ():
        near.pop(item, None)
    best = ids[order].tolist()
    near |= _nearest(found, among=ids[order])
    near |= _distances(collection.codes, scopes, request, [item for item in best if item not in near])
    rows = zip(best, score[order].tolist(), fine[order].tolist(), words.of(ids[order]), strict=True)
    matches = [Match(item, *near[item], *why) for item, *why in rows if item in near][offset:last]
    beyond = None
    if not near and radius is not None:
        nearest = replace(wanted, k=1, radius=None, offset=0)
        beyond = next(iter(_by_distance(collection, request, nearest, scopes, searched).matches), None)
    highest = float(kept.max()) if len(kept) else None
    first = tuple(fine[order[:SHOWING]].tolist())
    return Ranking(matches, beyond, searched, candidates, radius, highest, first, words.common)


def _second_stage(collection: Collection, request: Request, wanted: Wanted) -> list[str]:
    """The modalities whose fine vectors are scored; none if the order is that of distances."""
    if request.fine is None:
        return []
    names = [wanted.modality] if wanted.modality is not None else list(collection.codes)
    return [name for name in names if name in collection.fine and len(collection.fine[name])]


def _fine(
    collection: Collection, request: Request, names: list[str], among: Ids | None, held: list[Ids]
) -> tuple[Ids, Scores]:
    """Ids and fine scores: of the items `among`; or of all, and of those that contain a word (in the lists `held`)."""
    assert request.fine is not None
    if among is None:
        every = {name: collection.fine[name].scores(request.fine) for name in names}
        ids = _union([*(scored for scored, _ in every.values()), *held])
        columns = {name: _spread(ids, *scored) for name, scored in every.items()}
    else:
        ids = among
        columns = {name: collection.fine[name].scores_of(request.fine, ids) for name in names}
    t = _highest([column for name, column in columns.items() if name in collection.text], len(ids))
    o = _highest([column for name, column in columns.items() if name not in collection.text], len(ids))
    fine = TEXT * t
    fine += o
    fine /= 1 + TEXT * RATIO
    if np.isnan(fine.sum()):  # some items lack one, or both
        t, o = np.where(np.isnan(t), RATIO * o, t), np.where(np.isnan(o), t / RATIO, o)
        fine = (o + TEXT * t) / (1 + TEXT * RATIO)
        fine = np.where(np.isnan(fine), -1, fine)  # -1: without a fine vector, found by a word
    return ids, np.asarray(fine, np.float32)


def _code_term(codes: Codes, scopes: list[Scope], request: Request, items: list[int]) -> Scores:
    """What the codes of some items add to their scores where a query excludes something; 0 for an item without a code."""
    found: dict[int, bytes] = {}
    for name in _by_preference(codes, scopes, request):
        if missing := [item for item in items if item not in found]:
            found |= codes[name].codes_by_id(missing)
    packed = np.frombuffer(b"".join(found.values()), np.uint8).reshape(len(found), len(request.code))
    term = np.zeros(len(found), np.float32)
    weighted = [(WANTED, request.wanted_code), *((-UNWANTED, code) for code in request.excluded_codes)]
    for weight, code in weighted:
        if code is not None:
            distance = hamming(np.frombuffer(code, np.uint8)[None], packed)[0]
            term += weight * (1 - 2 * distance / next(iter(codes.values())).bits)
    of = dict(zip(found, term.tolist(), strict=True))
    return np.array([of.get(item, 0.0) for item in items], np.float32)


def _highest(columns: list[Scores], rows: int) -> Scores:
    """The highest score of each row that is not nan; nan where there is none."""
    first, *others = columns or [np.full(rows, np.nan, np.float32)]
    for column in others:
        first = np.fmax(first, column)
    return first


def _excluded(collection: Collection, request: Request, wanted: Wanted, among: Ids | None) -> Ids:
    """The items `without`, and those whose text or labels contain what the request excludes; not if only pictures count."""
    if not wanted.without and not request.without:
        return NONE
    excluded = [np.array(wanted.without, np.int64)]
    if collection.words is not None and wanted.modality in (None, JOINT, *collection.text):
        for words in request.without:
            holders = [collection.words.with_word(word, among) for word in words]
            excluded.append(_common(holders))
    return ascending(np.sort(np.concatenate(excluded)))


def _common(lists: list[Ids]) -> Ids:
    """The ids that all of some ascending lists have in common."""
    first, *others = sorted(lists, key=len)
    for ids in others:
        first = first[_holds(ids, first)]
    return first


def _union(lists: list[Ids]) -> Ids:
    """All ids of some ascending lists, ascending."""
    longest = max(lists, key=len)
    others = [ids for ids in lists if len(ids) and ids is not longest and not _is_part(ids, longest)]
    if not others:
        return longest
    joined = np.sort(np.concatenate([longest, *others]), kind="stable")  # sorted runs: a merge
    return np.asarray(joined[np.append(True, joined[1:] != joined[:-1])])


def _is_part(ids: Ids, longer: Ids) -> bool:
    """Whether an ascending list holds all ids of another one, which is no longer."""
    if longer[-1] - longer[0] == len(longer) - 1:  # none is missing, as in most collections
        return bool(longer[0] <= ids[0] and ids[-1] <= longer[-1])
    return np.array_equal(ids, longer) or bool(_holds(longer, ids).all())


def _holds(ids: Ids, wanted: Ids) -> NDArray[np.bool_]:
    """Which of some ids are in an ascending list."""
    return rows_of(ids, wanted)[1]


def _marked(ids: Ids, chosen: Ids) -> NDArray[np.bool_]:
    """Which ids of an ascending list are in another one, which is usually the shorter one."""
    marks = np.zeros(len(ids), bool)
    rows, held = rows_of(ids, chosen)
    marks[rows[held]] = True
    return marks


def _spread(ids: Ids, scored: Ids, scores: Scores) -> Scores:
    """The scores of some ids in the rows of all `ids`, nan in the other rows."""
    if len(scored) == len(ids):
        return scores
    spread = np.full(len(ids), np.nan, np.float32)
    spread[rows_of(ids, scored)[0]] = scores
    return spread


@dataclass
class _Words:
    """Which items contain which words of a request."""

    collection: Collection
    request: Request
    wanted: Wanted
    among: Ids | None
    few: Ids | None = None  # the items that contain all words, if at most FEW do
    common: bool = False  # whether more than FEW items contain some word
    candidates: list[Ids] = field(default_factory=list)  # items that contain a rare word; all lists ascend
    _weights: dict[str, float] = field(default_factory=dict)
    _holders: dict[str, Ids] = field(default_factory=dict)

    def __post_init__(self) -> None:
        index, words = self.collection.words, list(self.request.words)
        if index is None or not words or not self._count():
            return
        if self.among is None:
            self._holders = {word: index.with_word(word) for word in words}
            counts = {word: min(len(held), COMMON) for word, held in self._holders.items()}
        else:
            counts = {word: min(count, COMMON) for word, count in index.word_counts(words).items()}
            for word, count in counts.items():
                if count < COMMON:
                    self._holders[word] = index.with_word(word) if count else NONE
        if not any(counts.values()):
            self._holders = {}
            return
        self.common = max(counts.values()) > FEW
        rarity = {word: math.log(max(self.collection.items, 1) / max(count, 1)) + 0.1 for word, count in counts.items()}
        self._weights = {word: weight / sum(rarity.values()) for word, weight in rarity.items()}
        self.candidates = [held for word, held in self._holders.items() if self.among is None or counts[word] <= RARE]
        if self.among is not None:
            if len(self._holders) == len(counts) and len(whole := self._of_all()) <= RARE:
                self.candidates.append(whole)
            everyone = _union([self.among, self.sought()])
            for word in counts:
                if word not in self._holders:
                    self._holders[word] = index.with_word(word, everyone)
        if 0 < len(whole := self._of_all()) <= FEW:
            self.few = whole

    def sought(self, allowed: Ids | None = None) -> Ids:
        """The `candidates`, or those of them that are allowed."""
        found = _union([NONE, *self.candidates])
        return found if allowed is None else found[_holds(allowed, found)]

    def _of_all(self) -> Ids:
        """The items that contain all words."""
        return _common(list(self._holders.values()))

    def _count(self) -> bool:
        """Whether words count: unless only pictures are searched."""
        return self.wanted.modality in (None, JOINT, *self.collection.text)

    def added_to(self, fine: Scores, ids: Ids) -> Scores:
        """The scores of items: the fine ones, and the share of the words, weighted by rarity, that each item contains."""
        if not self._holders:
            return fine
        share = np.zeros(len(ids), np.float32)
        for word, holders in self._holders.items():
            rows, held = rows_of(ids, holders)
            share[rows[held]] += self._weights[word]
        return fine + WORDS * share

    def of(self, items: Ids) -> list[tuple[str, ...]]:
        """The words that each of some items contains."""
        if not self._holders:
            return [()] * len(items)
        held = [_holds(holders, items).tolist() for holders in self._holders.values()]
        return [tuple(compress(self._holders, which)) for which in zip(*held, strict=True)]


def _best(ids: Ids, score: Scores, k: int | None) -> NDArray[np.intp]:
    """The rows of the k highest scores, best first; at equal scores the older item, which has the smaller id, first.

    Those with a score of minus infinity are left out.
    """
    least = -np.inf if k is None or k >= len(ids) else np.partition(score, -k)[-k]
    rows = np.flatnonzero(score >= least if least > -np.inf else score > -np.inf)
    return rows[np.lexsort((ids[rows], -score[rows]))][:k]


# -- the first stage ------------------------------------------------------------------------------------------------------


def _by_distance(
    collection: Collection, request: Request, wanted: Wanted, scopes: list[Scope], searched: int
) -> Ranking:
    """The order of distances alone. A request of unknown words finds the items whose texts contain them."""
    k, radius = limits(wanted.k, wanted.radius)
    k = None if k is None else k + wanted.offset
    wanted = replace(wanted, without=tuple(_excluded(collection, request, wanted, None).tolist()))
    more = len(wanted.without)
    near: Near = {}
    held: dict[int, tuple[str, ...]] = {}
    if request.known:
        near = _find(collection.codes, scopes, request, None if k is None else k + more, radius, wanted.allowed)
    else:
        words = _Words(collection, request, wanted, None)
        holders = words.sought(wanted.allowed)
        held = dict(zip(holders.tolist(), words.of(holders), strict=True))
        near = _distances(collection.codes, scopes, request, list(held))
        near = {item: match for item, match in near.items() if radius is None or match[0] <= radius}
    wanted.drop(near)
    order = sorted(near, key=lambda item: (-len(held.get(item, ())), near[item][0], item))[:k][wanted.offset :]
    beyond = None
    if not near and radius is not None:
        others = _find(collection.codes, scopes, request, 1 + more, None, wanted.allowed)
        wanted.drop(others)
        beyond = next((Match(item, *others[item]) for item in _nearest_first(others)), None)
    return Ranking(
        [Match(item, *near[item], words=held.get(item, ())) for item in order], beyond, searched, None, radius
    )


def limits(k: int | None, radius: int | None) -> tuple[int | None, int | None]:
    """k and radius, checked; k is 10 if neither is given."""
    if k is None and radius is None:
        k = DEFAULT_K
    return whole_number("k", k, 1), whole_number("radius", radius, 0)


def _scopes(codes: Codes, request: Request, modality: str | None, items: int) -> list[Scope]:
    """Which codes are searched.

    Those of `modality` if it is given. Otherwise words search pictures, and the texts of items without a picture; a picture
    searches pictures and texts.
    """
    own = request.modality
    if modality is not None:
        if modality not in codes:
            raise ParameterError(
                f"The index has no {modality!r} codes.", hint=f"It has: {', '.join(codes) or 'nothing'}."
            )
        return [(modality, None)]
    if not request.is_text:
        return [(name, None) for name in codes]
    others = [name for name in codes if name != own]
    scopes: list[Scope] = [(name, None) for name in others]
    if not others:
        return [(own, None)] if own in codes else []
    if own in codes and max(len(codes[name]) for name in others) < items:
        only = _alone(codes, own, others)
        if len(only):
            scopes.append((own, only))
    return scopes


def _both(scope: Ids | str | None, passing: Ids) -> Ids | tuple[str, Ids]:
    """What a scope and a filter both allow."""
    if isinstance(scope, str):
        return scope, passing
    return passing if scope is None else scope[_holds(passing, scope)]


def _alone(codes: Codes, modality: str, others: list[str]) -> Ids | str:
    """The items that have a code in no other modality: their ids, or ALONE for an index on a server."""
    if not isinstance(codes[modality], HammingIndex):
        return ALONE
    only = np.sort(codes[modality].ids, kind="stable")
    for name in others:
        only = only[~_holds(np.sort(codes[name].ids, kind="stable"), only)]
    return only


def _first_stage(
    codes: Codes, scopes: list[Scope], request: Request, k: int | None, radius: int | None, passing: Ids | None
) -> list[Found]:
    """The nearest items in each scope, that of the query's modality last.

    `passing`: the items that pass a filter; None if there is no filter.
    """
    found: list[Found] = []
    packed = np.frombuffer(request.code, np.uint8)[None]
    for name, scope in sorted(scopes, key=lambda scope: scope[0] == request.modality):
        allowed = scope if passing is None else _both(scope, passing)
        if k is None:
            results = codes[name].within(packed, radius or 0, allowed=allowed)
        else:
            results = codes[name].search(packed, k, allowed=allowed)
        found.append((name, results[0]))
    return found


def _nearest(found: list[Found], radius: int | None = None, among: Ids | None = None) -> Near:
    """Items with their smallest distance; at equal distances the modality other than the query's: its precision is measured."""
    near: Near = {}
    for name, hits in found:
        if among is not None:
            which = np.isin(hits.ids, among)
            hits = Hits(hits.ids[which], hits.distances[which])
        for item, distance in hits:
            if (radius is None or distance <= radius) and (item not in near or distance < near[item][0]):
                near[item] = (distance, name)
    return near


def _find(
    codes: Codes, scopes: list[Scope], request: Request, k: int | None, radius: int | None, passing: Ids | None
) -> Near:
    """The nearest items in all scopes."""
    return _nearest(_first_stage(codes, scopes, request, k, radius, passing), radius)


def _distances(codes: Codes, scopes: list[Scope], request: Request, items: list[int]) -> Near:
    """The smallest distance of some items, each with its modality; items without a code are left out.

    Codes outside the scopes, or in a scope that is limited to some ids, are used only for items that have no others.
    """
    near: Near = {}
    query = int.from_bytes(request.code)
    whole = {name for name, allowed in scopes if allowed is None}
    for name in _by_preference(codes, scopes, request):
        wanted = items if name in whole else [item for item in items if item not in near]
        for item, code in codes[name].codes_by_id(wanted).items() if wanted else ():
            distance = (int.from_bytes(code) ^ query).bit_count()
            if item not in near or distance < near[item][0]:
                near[item] = (distance, name)
    return near


def _by_preference(codes: Codes, scopes: list[Scope], request: Request) -> list[str]:
    """The modalities, those that are searched as a whole first, and that of the query last."""
    whole = {name for name, allowed in scopes if allowed is None}
    return sorted(codes, key=lambda name: (name not in whole, name == request.modality))


def _nearest_first(near: Near) -> list[int]:
    return sorted(near, key=lambda item: (near[item][0], item))


def whole_number(name: str, value: Any, least: int) -> int | None:
    """A parameter, checked: a whole number of at least `least`, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ParameterError(f"{name} must be a whole number of at least {least}, not {value!r}.")
    return int(value)
