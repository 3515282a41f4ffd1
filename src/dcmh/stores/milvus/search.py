"""Searching a collection in Milvus: complete results, with ties in the order of ids.

Milvus returns an arbitrary choice of the items at the last distance, and at most MAX_ROWS rows. So a search requests some more
than k; if all of the last ones tie, or there are more rows than it returns, it is repeated by ranges of ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dcmh.stores.codes import ALONE, Found, Packed, chosen_ids
from dcmh.stores.milvus.collection import Collection, blocks
from dcmh.stores.milvus.connection import ANSWER_SECONDS, MAX_ROWS

QUERIES_AT_ONCE = 64
IDS_AT_ONCE = 10_000  # in a filter
EXTRA_HITS = 100  # beyond k: usually enough to include all that tie with the last
EFFORT = 64  # lists that an approximate search reads


class Search:
    """One search of a collection, at a level of consistency, exact or approximate."""

    def __init__(self, collection: Collection, consistency: str, method: str = "exact") -> None:
        self.collection = collection
        self.consistency = consistency
        self.method = method

    def nearest(self, queries: Packed, k: int, allowed: Any) -> list[Found]:
        """The k nearest items of each query."""
        found: list[Found] = [[] for _ in queries]
        for text in _filters(allowed):
            for start in range(0, len(queries), QUERIES_AT_ONCE):
                batch = queries[start : start + QUERIES_AT_ONCE]
                for row, hits in enumerate(self._nearest(batch, k, text), start):
                    found[row] = sorted([*found[row], *hits], key=_by_distance)[:k]
        return found

    def within(self, queries: Packed, radius: int, allowed: Any) -> list[Found]:
        """All items within the radius of each query."""
        texts = list(_filters(allowed))
        return [
            sorted((hit for text in texts for hit in self._near(query, radius, text)), key=_by_distance)
            for query in queries
        ]

    def _nearest(self, queries: Packed, k: int, text: str) -> Iterator[Found]:
        limit = min(MAX_ROWS, k + EXTRA_HITS)
        if 2 * k > MAX_ROWS:
            for query in queries:
                yield self._near(query, self.collection.bits, text)[:k]
            return
        for query, hits in zip(queries, self._request(queries, limit, text), strict=True):
            if self.method == "approximate" or len(hits) < limit or hits[k - 1][1] < hits[-1][1]:
                yield hits[:k]  # all items that tie with the last one are included
                continue
            last = hits[k - 1][1]
            nearer = [hit for hit in hits if hit[1] < last]
            yield [*nearer, *self._lowest(query, last, k - len(nearer), text)]

    def _lowest(self, query: Packed, distance: int, count: int, text: str) -> Found:
        """The smallest ids at a distance, even if there are more than one response holds."""
        bound: int | None = None
        while True:
            limited = text if bound is None else _both(text, f"id <= {bound}")
            hits = self._request(query[None], MAX_ROWS, limited, distance, least=distance)[0]
            if len(hits) < MAX_ROWS:
                return hits[:count]
            bound = hits[max(count, len(hits) // 2) - 1][0]

    def _near(self, query: Packed, radius: int, text: str) -> Found:
        """All hits. If there are more than one response holds, the range of ids is split in two, recursively."""
        hits = self._request(query[None], MAX_ROWS, text, radius)[0]
        if len(hits) < MAX_ROWS:
            return hits
        middle = int(np.median([number for number, _ in hits]))
        low = self._near(query, radius, _both(text, f"id <= {middle}"))
        high = self._near(query, radius, _both(text, f"id > {middle}"))
        return sorted([*low, *high], key=_by_distance)

    def _request(
        self, queries: Packed, limit: int, text: str, radius: int | None = None, *, least: int | None = None
    ) -> list[Found]:
        """The hits of each query, sorted."""
        answers = self.collection.server.call(
            lambda client, _: client.search(
                self.collection.name,
                [query.tobytes() for query in queries],
                filter=text,
                limit=limit,
                search_params={"metric_type": "HAMMING", "params": self._settings(radius, least)},
                consistency_level=self.consistency,
                timeout=ANSWER_SECONDS,
            )
        )
        return [sorted(((hit["id"], int(hit["distance"])) for hit in hits), key=_by_distance) for hits in answers]

    def _settings(self, radius: int | None, least: int | None) -> dict[str, Any]:
        """Milvus' radius is exclusive, its range_filter inclusive. A search within a radius reads all lists."""
        settings: dict[str, Any] = {}
        if radius is not None:
            settings["radius"] = float(radius + 1)
        if least is not None and least > 0:
            settings["range_filter"] = float(least)
        if self.collection.kind == "BIN_IVF_FLAT":
            lists, effort = self.collection.lists, self.collection.server.address.effort or EFFORT
            settings["nprobe"] = min(lists, effort) if self.method == "approximate" and radius is None else lists
        return settings


def _filters(allowed: Any) -> Iterator[str]:
    """`allowed` as filter expressions; several if it is long."""
    if allowed is None:
        yield ""
    elif isinstance(allowed, str) and allowed == ALONE:
        yield "alone == true"
    else:
        alone = isinstance(allowed, tuple) and isinstance(allowed[0], str) and allowed[0] == ALONE
        for block in blocks(chosen_ids(allowed[1] if alone else allowed), IDS_AT_ONCE):
            yield _both("alone == true" if alone else "", f"id in {block.tolist()}")


def _by_distance(hit: tuple[int, int]) -> tuple[int, int]:
    return hit[1], hit[0]


def _both(*texts: str) -> str:
    return " and ".join(f"({text})" for text in texts if text)
