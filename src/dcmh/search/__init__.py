"""A folder of photos as something to search: SearchIndex = model + Hamming indexes + catalogue."""

from dcmh.search.index import SearchIndex
from dcmh.search.results import Hit, Hits, Query

__all__ = ["Hit", "Hits", "Query", "SearchIndex"]
