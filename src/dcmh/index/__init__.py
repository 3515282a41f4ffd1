"""Exact Hamming search over packed codes.

`HammingIndex` runs in this process; `MilvusIndex` and `PostgresIndex` in `dcmh.stores` do the same on a server.
"""

from dcmh.index.hamming import HammingIndex
from dcmh.index.protocol import Hits, Index, Results

__all__ = ["HammingIndex", "Hits", "Index", "Results"]
