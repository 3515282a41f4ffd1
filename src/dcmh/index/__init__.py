"""Where codes are searched: exact Hamming search that stays on one machine."""

from dcmh.index.exact import HammingIndex
from dcmh.index.results import Hits, Results

__all__ = ["HammingIndex", "Hits", "Results"]
