"""Where codes are searched: exact Hamming search, in this process or on a server.

`HammingIndex` is embedded; `dcmh.index.milvus.MilvusIndex` and `dcmh.index.postgres.PostgresIndex` are the same on a server.
"""

from dcmh.index.exact import HammingIndex
from dcmh.index.protocol import Index
from dcmh.index.results import Hits, Results

__all__ = ["HammingIndex", "Hits", "Index", "Results"]
