"""Search: SearchIndex = a model's encoders + a store of items and codes."""

from dcmh.search.index import SearchIndex
from dcmh.search.results import Hit, Hits, Query

__all__ = ["Hit", "Hits", "Query", "SearchIndex"]
