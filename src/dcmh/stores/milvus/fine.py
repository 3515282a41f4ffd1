"""A collection of fine vectors in Milvus: base64 in VARCHAR, which is read five times faster than BINARY_VECTOR or ARRAY.

Not in the collection of codes: a text may have a fine vector but no code.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.stores.milvus.collection import NO_VECTOR, Collection, blocks
from dcmh.stores.milvus.connection import BATCH, Milvus

IDS_PER_QUERY = 100_000  # ids that one query reads: 20 to 40 MB
MAX_CHARACTERS = 2_048  # characters of a vector


class FineCollection(Collection):
    """Fine vectors by id, as bytes. Call `open` first."""

    def __init__(self, server: Milvus, name: str) -> None:
        super().__init__(server, 8 * len(NO_VECTOR), name)
        self.fields = _fields

    def put(self, vectors: Mapping[int, bytes]) -> None:
        """Write vectors, replacing those with the same ids."""
        rows = [
            {"id": number, "code": NO_VECTOR, "fine": b64encode(vector).decode()} for number, vector in vectors.items()
        ]
        self.upsert_rows(rows)

    def load(self, ids: NDArray[np.int64], vectors: NDArray[np.int8]) -> None:
        """Insert vectors (n, dimensions) under new ids."""
        for start in range(0, len(ids), BATCH):
            texts = [b64encode(vector).decode() for vector in vectors[start : start + BATCH]]
            numbers = ids[start : start + BATCH].tolist()
            self._insert([{"id": n, "code": NO_VECTOR, "fine": text} for n, text in zip(numbers, texts, strict=True)])

    def some(self, ids: Sequence[int], level: str) -> dict[int, bytes]:
        """The vectors of some items, at a level of consistency."""
        vectors: dict[int, bytes] = {}
        for block in blocks(np.array(ids, np.int64), BATCH):
            for row in self.query(f"id in {block.tolist()}", ["id", "fine"], level=level):
                vectors[row["id"]] = b64decode(row["fine"])
        return vectors

    def all_below(self, end: int) -> tuple[NDArray[np.int64], bytes]:
        """Ids, ascending, and joined vectors of all items with smaller ids.

        By ranges of ids: pages would be limited to 16,384 rows, and each waits for Milvus' next time tick.
        """
        rows: list[tuple[int, bytes]] = []
        for start in range(0, end, IDS_PER_QUERY):
            text = f"id >= {start} and id < {min(end, start + IDS_PER_QUERY)}"
            rows += sorted((row["id"], b64decode(row["fine"])) for row in self.query(text, ["id", "fine"]))
        return np.array([number for number, _ in rows], np.int64), b"".join(vector for _, vector in rows)


def _fields(schema: Any) -> None:
    from pymilvus import DataType

    schema.add_field("fine", DataType.VARCHAR, max_length=MAX_CHARACTERS)
