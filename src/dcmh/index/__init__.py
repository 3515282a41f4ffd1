"""Where codes are searched: exact Hamming search, in this process or on a server.

`HammingIndex` is embedded; `MilvusIndex` and `PostgresIndex` in `dcmh.stores` are the same on a server.
"""

from dcmh.index.hamming import HammingIndex
from dcmh.index.protocol import Index
from dcmh.index.results import Hits, Results

__all__ = ["HammingIndex", "Hits", "Index", "Results"]
