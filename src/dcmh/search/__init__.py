"""A folder of photos as something to search: SearchIndex = model + Hamming indexes + catalogue."""

from dcmh.search.hits import Hit, Hits, Query
from dcmh.search.index import SearchIndex

__all__ = ["Hit", "Hits", "Query", "SearchIndex"]
