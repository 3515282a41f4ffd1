"""From a query to hits: what is near its code, with what the catalogue says of each and how good its distance has been."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dcmh.data.dataset import JOINT
from dcmh.search import finding, place
from dcmh.search.finding import Found, Wanted
from dcmh.search.hits import Hit, Hits, Query

if TYPE_CHECKING:
    from dcmh.search.index import SearchIndex


def answer(index: SearchIndex, query: Query, asked: str, began: float, wanted: Wanted) -> Hits:
    """The hits of a query that is asked in a modality. `began`: when, by `time.perf_counter`."""
    text = asked if asked != JOINT and index.encoders.kind(asked) == "text" else None
    near = finding.search(index._codes.now(), query.code, asked, text, len(index), wanted)
    hits = _hits(index, near.order, near.found, asked)
    nearest = next(iter(hits or _hits(index, near.beyond, near.found, asked)), None)
    return Hits(tuple(hits), query, near.searched, 1000 * (time.perf_counter() - began), near.radius, nearest)


def _hits(index: SearchIndex, order: list[int], found: Found, asked: str) -> list[Hit]:
    items = index.catalogue.get(order)
    root = index.root if order else None
    hits = []
    for number in order:
        item = items.get(number)
        if item is not None:  # None: removed by another process since this one opened the index
            distance, name = found[number]
            precision = index._measured.get((asked, name), {}).get(distance)
            path = place.path_of(index.folder, item, root)
            hits.append(Hit(number, distance, index.bits, precision, item.text, path, item.labels, name, item.name))
    return hits
