"""Search: SearchIndex = a model's encoders + a store of items and codes."""

from dcmh.search.index import SearchIndex
from dcmh.search.results import Hit, Hits, Query
from dcmh.stores.base import Filter

__all__ = ["Filter", "Hit", "Hits", "Query", "SearchIndex"]
