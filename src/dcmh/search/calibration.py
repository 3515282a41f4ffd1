"""How often hits like this one were relevant: precision by score, measured on items that the model did not learn from.

`measure` lets held-out items search each other through the whole pipeline, and records the score of every hit and whether it is
relevant. Separate curves are kept for:

- the kind of query: a word (the name of a label; relevant is what carries it), a sentence or a picture (of held-out items;
  relevant is what shares a label with them);
- hits whose text contains a word of the query, hits whose text contains none, and hits without a text;
- the first ten hits and later ones, since a score that is good for the first place of one query may be the fortieth of another.

Within each, precision is the monotone least-squares curve over the score less BEST times the best fine score of the query, since
uncommon words score lower throughout. Everything is measured on all held-out items, on every second, every fourth and so on: hits
of equal score and rank are better in a larger collection, and a search takes the curves of the sizes next to its own. A query
whose best fine score is lower than that of nearly all measured ones has no measured precision, since what it asks for may not be
there at all. Neither have hits after the fiftieth.

`Calibration.is_unlikely` tells whether probably nothing matches a query of words at all: where precision was measured, if the
best hit's is low, or the query weaker than nearly all measured ones; for a model with reference pictures (the starter model), if
the first hits score lower than those among as many reference pictures, or both score low.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import ModelError
from dcmh.index import HammingIndex
from dcmh.index.fine import FineIndex
from dcmh.methods import folder as model_folder
from dcmh.search import rank
from dcmh.search.rank import Collection, Match, Ranking, Request, Wanted
from dcmh.search.results import UNMEASURED
from dcmh.util.checksums import read_checked_text
from dcmh.util.formats import parse_object, readable
from dcmh.util.text import index_words

if TYPE_CHECKING:
    from dcmh.data.dataset import Dataset
    from dcmh.data.splits import Split
    from dcmh.methods.base import Hasher

FEWEST = 20  # hits, or pairs at a distance: with fewer, precision is not measured
BANDS = (10, 50)  # hits up to the tenth, and up to the fiftieth
QUERIES = 1000  # sentences and pictures, at most
ITEMS = 10_000  # held-out items that are searched, at most
SMALLEST = 250  # items of the smallest collection that is measured beside the whole
POINTS = 40  # hits for each point of a curve, at least
STEPS = 16  # points of a curve, at most
BARE, UNCOMMON = "bare", "uncommon"  # contexts: no text; a text, but hardly any text contains a word of the query
BEST = 0.25
WEAKEST = 0.05  # share of the measured queries that are weaker than what counts as measured
HELD = "held_out"  # the entry of report.json

# Nothing is likely to match (benchmarks/starter.py measures the last two):
UNLIKELY = 0.25  # if the best precision among the first ten hits is lower
LESS = 0.12  # if the first hits score less by this than those among reference pictures
FAINT = 0.36  # if neither score that much

Curve = list[tuple[float, float]]  # scores and precision, both rising
Measured = dict[tuple[str, str, int], list[tuple[float, bool]]]  # (kind, context, band) to score and relevance


class Curves:
    """What was measured on a collection of one size."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.items = int(record["items"])
        self.curves: dict[tuple[str, str, int], Curve] = {
            (kind, context, int(band)): [(float(score), float(share)) for score, share in curve]
            for kind, contexts in record["curves"].items()
            for context, bands in contexts.items()
            for band, curve in bands.items()
        }
        self.weakest = {str(kind): float(score) for kind, score in record["weakest"].items()}

    def precision(self, match: Match, kind: str, where: str, last: int, best: float) -> float | None:
        """The precision of a hit in a context, among the hits up to the `last`; None if it was not measured."""
        curve = self.curves.get((kind, where, last))
        if where == UNCOMMON and curve is None:  # reports of version 0.1 have one curve for both
            curve = self.curves.get((kind, BARE, last))
        if not curve or match.score is None or (best < self.weakest.get(kind, -1) and not match.words):
            return None
        scores, shares = np.array(curve).T
        value = match.score - BEST * best
        return float(np.interp(value, scores, shares)) if value >= scores[0] else None


class Calibration:
    """The precision of hits, as report.json of a model folder has it; empty where nothing was measured."""

    def __init__(self, report: Mapping[str, Any], *, fine: bool = True) -> None:
        self.by_distance = {} if fine else _by_distance(report)  # distances do not order the hits of a fine space
        held = report.get(HELD) or {}
        self.sizes = sorted(map(Curves, held.get("sizes", [held] if held else [])), key=lambda curves: curves.items)

    @classmethod
    def read(cls, model: Path, *, fine: bool) -> Calibration:
        """Read the report.json of a model folder, if it has one."""
        path = model / model_folder.REPORT
        if not path.is_file():
            return cls({})
        with readable(path, ModelError, hint="Copy the model again."):
            return cls(parse_object(read_checked_text(path)), fine=fine)

    @property
    def is_measured(self) -> bool:
        """Whether any hit can have a precision."""
        return bool(self.sizes or self.by_distance)

    def precision(
        self, match: Match, position: int, kind: str, query_modality: str, ranking: Ranking, *, has_text: bool
    ) -> float | None:
        """The precision of a hit at a position, from 0, for a kind of query; None if it was not measured.

        Nothing was measured of queries that exclude or combine something, nor of filters, which change how rare relevant
        items are.

        `has_text`: whether the item has a text. Labels are not one: words were measured in texts alone.
        """
        if kind == UNMEASURED or not self.is_measured:
            return None
        if match.score is None:
            return self.by_distance.get((query_modality, match.modality), {}).get(match.distance)
        last = band(position)
        if last is None or ranking.best is None:
            return None
        where = context(match, ranking, has_text=has_text)
        shares, weights = [], []
        for curves, weight in self._around(ranking.searched):
            share = curves.precision(match, kind, where, last, ranking.best)
            if share is not None:
                shares.append(share)
                weights.append(weight)
        return float(np.average(shares, weights=weights)) if sum(weights) else None

    def is_unlikely(
        self,
        kind: str,
        ranking: Ranking,
        precisions: Sequence[float | None],
        reference_scores: Callable[[], NDArray[np.float32] | None],
    ) -> bool:
        """Whether probably nothing matches a query.

        `precisions` are those of the first hits; `reference_scores` gives `FineSpace.reference_scores` of the query. The first
        hits are compared with the mean of equally many among as many reference pictures as there are items. A collection
        that is larger than the reference counts as large as it.
        """
        shares = [1.0 if share is None else share for share in precisions[: BANDS[0]]]
        if shares and max(shares) < UNLIKELY:
            return True
        if kind not in ("word", "sentence") or not ranking.first or any(match.words for match in ranking.matches):
            return False
        if self.is_measured:
            weakest = [curves.weakest.get(kind, -1.0) for curves, _ in self._around(ranking.searched)]
            return ranking.best is not None and ranking.best < min(weakest)
        reference = reference_scores()
        if reference is None:
            return False
        score, count = float(np.mean(ranking.first)), len(ranking.first)
        as_many = max(count, round(count * len(reference) / ranking.searched))
        expected, highest = float(reference[:as_many].mean()), float(reference[:count].mean())
        return score < expected - LESS or max(score, highest) < FAINT

    def _around(self, items: int) -> list[tuple[Curves, float]]:
        """The measured sizes next to that of a collection, each with its weight."""
        larger = next((i for i, curves in enumerate(self.sizes) if curves.items >= items), len(self.sizes))
        if not self.sizes or larger == 0 or larger == len(self.sizes):
            return [(curves, 1.0) for curves in (self.sizes[:1] if larger == 0 else self.sizes[-1:])]
        below, above = self.sizes[larger - 1 : larger + 1]
        weight = math.log(items / below.items) / math.log(above.items / below.items)
        return [(below, 1 - weight), (above, weight)]


def band(position: int) -> int | None:
    """The band of hits that a position belongs to; None beyond the last."""
    return next((last for last in BANDS if position < last), None)


def context(match: Match, ranking: Ranking, *, has_text: bool) -> str:
    """What is known of a hit besides its picture: a word of the query in its text, another text, or no text.

    A text without the word says little if hardly any text contains it: that is a context of its own.
    """
    if match.words:
        return "matched"
    return BARE if not has_text else "unmatched" if ranking.common else UNCOMMON


def _by_distance(report: Mapping[str, Any]) -> dict[tuple[str, str], dict[int, float]]:
    """Precision by distance for each direction of a report; not where too few pairs were seen."""
    precision = {}
    for direction, record in report.items():
        if "_to_" in direction:
            query, _, database = direction.partition("_to_")
            rows = record["by_distance"]
            precision[query, database] = {
                row["distance"]: row["relevant"] / row["points"] for row in rows if row["points"] >= FEWEST
            }
    return precision


# -- measuring --------------------------------------------------------------------------------------------------------


def measure(model: Hasher, split: Split) -> dict[str, Any] | None:
    """Curves of precision by score for a fitted model, on what it did not learn from; None where it has no fine space.

    The items searched are the queries of the split and those of its database that were not trained on.
    """
    from dcmh.data.splits import unseen_rows

    fine = model.fine_
    picture = next((name for name in model.modalities if model.views_[name].kind != "text"), None)
    if fine is None or picture is None or picture not in fine.modalities:
        return None
    unseen = unseen_rows(split.database.ids, split.train.ids)
    text = next((name for name in model.modalities if model.views_[name].kind == "text"), None)
    parts = [split.query, *([split.database.take(unseen)] if len(unseen) else [])]
    items = sum(len(part) for part in parts)
    if items < FEWEST:
        return None
    sizes: list[dict[str, Any]] = []
    step = 1
    while step == 1 or items // step >= SMALLEST:
        some = parts if step == 1 else [part.take(slice(None, None, step)) for part in parts]
        if record := _curves(_Searched(model, some, picture, text), QUERIES // step):
            sizes.append(record)
        step *= 2
    return {"sizes": sizes} if sizes else None


def _curves(searched: _Searched, queries: int) -> dict[str, Any] | None:
    """Curves of precision by score on a collection, by kind, context and band; None where there were too few hits.

    Hits that would be shown without a precision, because the query is too weak, do not count.
    """
    rankings = []
    best: dict[str, list[float]] = {}
    for kind, request, relevant, own in searched.requests(queries):
        for with_texts in (False, True) if searched.text is not None else (False,):
            ranking = rank.search(searched.collection(texts=with_texts), request, Wanted(BANDS[-1], without=(own,)))
            if ranking.best is None:
                continue
            best.setdefault(kind, []).append(ranking.best)
            rankings.append((kind, ranking, ranking.best, relevant, with_texts))
    weakest = {kind: round(float(np.quantile(scores, WEAKEST)), 4) for kind, scores in best.items()}
    hits: Measured = {}
    for kind, ranking, highest, relevant, with_texts in rankings:
        for position, match in enumerate(ranking.matches):
            if highest < weakest[kind] and not match.words:
                continue
            where = context(match, ranking, has_text=with_texts and bool(searched.texts[match.id - 1]))
            hit = ((match.score or 0.0) - BEST * highest, bool(relevant[match.id - 1]))
            for pool in (where, UNCOMMON) if where == BARE else (where,):  # few words are uncommon
                hits.setdefault((kind, pool, band(position) or 0), []).append(hit)
    curves: dict[str, dict[str, dict[str, Curve]]] = {}
    for (kind, where, last), seen in hits.items():
        if len(seen) >= FEWEST:
            curves.setdefault(kind, {}).setdefault(where, {})[str(last)] = curve_of(seen)
    counts = {kind: sum(len(seen) for (name, _, _), seen in hits.items() if name == kind) for kind in curves}
    weakest = {kind: weakest[kind] for kind in curves}
    return {"items": len(searched), "hits": counts, "weakest": weakest, "curves": curves} if curves else None


class _Searched:
    """Held-out items as collections with and without texts, in memory, and the queries that search them."""

    def __init__(self, model: Hasher, parts: Sequence[Dataset], picture: str, text: str | None) -> None:
        assert model.fine_ is not None
        self.fine_space, self.picture, self.text = model.fine_, picture, text
        view = model.fine_view(picture)
        pictures: list[NDArray[np.float32]] = []
        labels: list[NDArray[np.uint8]] = []
        self.texts: list[str] = []
        self.names = parts[0].label_names
        for part in parts:
            rows = np.flatnonzero(part.observed(picture))[: ITEMS - len(self.texts)]
            if not len(rows):
                continue
            part = part.take(rows)
            pictures.append(model.fine_.of_inputs(picture, view(part[picture]), view))
            spoken = part[text].values if text in part.modalities and text is not None else [""] * len(part)
            self.texts += [value if isinstance(value, str) else "" for value in spoken]
            if part.labels is not None:
                labels.append(part.labels)
        self.pictures = np.concatenate(pictures) if pictures else np.empty((0, model.fine_.dimensions), np.float32)
        self.labels = np.concatenate(labels) if labels else None
        self.ids = np.arange(1, len(self.texts) + 1, dtype=np.int64)
        self.fine = {picture: FineIndex.of(self.ids, model.fine_.quantise(self.pictures))}
        rows = np.array([row for row, value in enumerate(self.texts) if value], np.intp)
        if text is not None and len(rows):
            vectors = model.fine_.of_texts([self.texts[row] for row in rows])
            self.fine[text] = FineIndex.of(self.ids[rows], model.fine_.quantise(vectors))
        self.index = HammingIndex(8)  # every item is a candidate, so that codes do not matter
        self.index.add(self.ids, np.zeros((len(self.ids), 1), np.uint8))
        self.words = _TextWords(self.texts)

    def __len__(self) -> int:
        return len(self.ids)

    def collection(self, *, texts: bool) -> Collection:
        """The items, with their texts or as if they had none."""
        names = [self.picture, *([self.text] if texts and self.text is not None and self.text in self.fine else [])]
        spoken = [self.text] if texts and self.text is not None else []
        fine = {name: self.fine[name] for name in names}
        words = self.words if texts else None
        return Collection(dict.fromkeys(names, self.index), fine, words, len(self), spoken)

    def requests(self, queries: int) -> Iterator[tuple[str, Request, NDArray[np.bool_], int]]:
        """Kind, request, which items are relevant, and the item that asks, if it is one of them."""
        space, labels = self.fine_space, self.labels
        if labels is None:
            return
        query_modality = self.text or self.picture
        if self.names is not None:
            for column, vector in enumerate(space.as_query(space.of_texts(list(self.names)))):
                if labels[:, column].any():
                    words = tuple(index_words(self.names[column]))
                    yield "word", Request(b"\0", query_modality, True, vector, words), labels[:, column].astype(bool), 0
        for row in np.flatnonzero(labels.any(axis=1))[:queries].tolist():
            relevant, own = np.asarray(labels @ labels[row] > 0), int(self.ids[row])
            yield "picture", Request(b"\0", self.picture, False, space.as_query(self.pictures[row])), relevant, own
            if text := self.texts[row]:
                vector = space.as_query(space.of_texts([text]))[0]
                yield "sentence", Request(b"\0", query_modality, True, vector, tuple(index_words(text))), relevant, own


class _TextWords:
    """The words of some texts, whose ids count from 1."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._holders: dict[str, list[int]] = {}
        for number, text in enumerate(texts, 1):
            for word in index_words(text) if text else ():
                self._holders.setdefault(word, []).append(number)

    def word_counts(self, words: Sequence[str]) -> dict[str, int]:
        return {word: len(self._holders.get(word, ())) for word in words}

    def with_word(self, word: str, among: NDArray[np.int64] | Sequence[int] | None = None) -> NDArray[np.int64]:
        held = np.array(self._holders.get(word, ()), np.int64)
        return held if among is None else np.intersect1d(held, np.asarray(among, np.int64))


def curve_of(seen: Sequence[tuple[float, bool]]) -> Curve:
    """The monotone curve of least squares through hits: neighbours are pooled until it rises (Ayer et al., 1955)."""
    scores, relevant = np.array(sorted(seen), np.float64).T
    parts = np.array_split(np.arange(len(scores)), min(STEPS, max(1, len(scores) // POINTS)))
    pooled: list[tuple[float, float, int]] = []  # mean score, precision, hits
    for part in parts:
        pooled.append((float(scores[part].mean()), float(relevant[part].mean()), len(part)))
        while len(pooled) > 1 and pooled[-2][1] >= pooled[-1][1]:
            (s, p, n), (t, q, m) = pooled[-2:]
            pooled[-2:] = [((s * n + t * m) / (n + m), (p * n + q * m) / (n + m), n + m)]
    return [(round(score, 4), round(share, 4)) for score, share, _ in pooled]
