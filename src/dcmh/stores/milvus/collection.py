"""A collection of codes in Milvus: creating and indexing it, reading and writing its rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcmh.codes import bytes_of
from dcmh.errors import EngineError, ModelMismatch
from dcmh.stores.codes import Packed
from dcmh.stores.milvus.connection import ANSWER_SECONDS, BATCH, BUILD_SECONDS, MAX_ROWS, Milvus
from dcmh.util.retry import LOAD_PATIENCE, QUERY_PATIENCE

LISTS = 1024  # of BIN_IVF_FLAT
SMALL_COLLECTION = 10_000  # rows that are searched quickly, indexed or not
HAND_OVER_SECONDS = 60.0
NO_VECTOR = bytes(1)  # Milvus requires a vector in every collection


class Collection:
    """A collection of codes of `bits` bits. Call `open` first."""

    fields: Callable[[Any], None] | None = None  # adds others than alone to a schema

    def __init__(self, server: Milvus, bits: int, name: str) -> None:
        self.server = server
        self.bits = bits
        self.name = name
        self.kind = "BIN_FLAT"  # of its index
        self.lists = LISTS  # of its index, if that has any

    def open(self, *, create: bool) -> None:
        """Load the collection; create it if it does not exist and `create`; refuse one of other codes."""

        def prepare(client: Any, _: int) -> None:
            if not client.has_collection(self.name, timeout=ANSWER_SECONDS):
                if not create:
                    raise EngineError(
                        f"{self.server.address} has no collection {self.name}.", hint="Make the index again."
                    )
                make_collection(client, self.name, 8 * bytes_of(self.bits), self.fields)
            self._check(client)
            client.load_collection(self.name, timeout=300.0)

        self.server.call(prepare)

    def _check(self, client: Any) -> None:
        fields = client.describe_collection(self.name, timeout=ANSWER_SECONDS)["fields"]
        dimension = next((field["params"]["dim"] for field in fields if field["name"] == "code"), None)
        if dimension is None or int(dimension) != 8 * bytes_of(self.bits):
            raise ModelMismatch(
                f"{self.server.address} holds codes of {dimension} bits, not of {self.bits}.",
                hint="Use the model it was made with, or another collection.",
            )
        index = client.describe_index(self.name, "code", timeout=ANSWER_SECONDS) or {}
        self.kind = index.get("index_type", "BIN_FLAT")
        self.lists = int(index.get("nlist", LISTS))

    # -- the index --------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Write all to storage and wait until it is indexed."""
        self._flush()
        self._wait_for_index()

    def index_by(self, kind: str, settings: dict[str, Any]) -> None:
        """Index by another kind, and wait until it is done."""

        def build(client: Any, _: int) -> None:
            if self.kind != kind:
                client.release_collection(self.name, timeout=60.0)
                client.drop_index(self.name, "code", timeout=60.0)
                client.create_index(self.name, index_of(client, kind, settings), timeout=60.0)
            client.load_collection(self.name, timeout=BUILD_SECONDS)
            self._check(client)

        self._flush()
        self.server.call(build, patience=LOAD_PATIENCE)
        self._wait_for_index()

    def _flush(self) -> None:
        self.server.call(lambda client, _: client.flush(self.name, timeout=600.0), patience=LOAD_PATIENCE)

    def _wait_for_index(self) -> None:
        end = time.monotonic() + BUILD_SECONDS
        while time.monotonic() < end:
            index = self.server.call(
                lambda client, _: client.describe_index(self.name, "code", timeout=ANSWER_SECONDS),
                patience=LOAD_PATIENCE,
            )
            if not index.get("pending_index_rows") and index.get("state") != "InProgress":
                break
            time.sleep(0.2)
        count = self.count()
        if count > SMALL_COLLECTION:
            self._wait_for_hand_over(count)

    def _wait_for_hand_over(self, count: int) -> None:
        """Wait until sealed segments are loaded: before, searches are ten times slower, with the same results."""
        end = time.monotonic() + HAND_OVER_SECONDS
        while time.monotonic() < end:
            segments = self.server.call(
                lambda client, _: client.list_loaded_segments(self.name, timeout=ANSWER_SECONDS), patience=LOAD_PATIENCE
            )
            if sum(segment.num_rows for segment in segments if "Sealed" in str(segment.state)) >= count:
                return
            time.sleep(0.2)

    # -- reading ----------------------------------------------------------------------------------------------------

    def count(self) -> int:
        """The number of rows."""
        return int(self.query("", ["count(*)"])[0]["count(*)"])

    def query(
        self,
        text: str,
        fields: list[str],
        *,
        limit: int | None = None,
        patience: float = QUERY_PATIENCE,
        level: str = "Strong",
    ) -> list[dict[str, Any]]:
        """The rows that pass a filter, in no order."""
        more = {} if limit is None else {"limit": limit}
        rows = self.server.call(
            lambda client, _: client.query(
                self.name,
                filter=text,
                output_fields=fields,
                consistency_level=level,
                timeout=ANSWER_SECONDS,
                **more,
            ),
            patience=patience,
        )
        return list(rows)

    def pages(self, fields: list[str]) -> Iterator[dict[str, Any]]:
        """All rows, by ascending id."""
        after = ""
        while True:
            rows = self.query(after, fields, limit=MAX_ROWS)
            rows.sort(key=lambda row: int(row["id"]))
            yield from rows
            if len(rows) < MAX_ROWS:
                return
            after = f"id > {rows[-1]['id']}"

    def known(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of the ids exist."""
        known_ids = []
        if len(ids) and not self.query(
            f"id >= {ids.min()} and id <= {ids.max()}", ["id"], limit=1, patience=LOAD_PATIENCE
        ):
            return np.empty(0, np.int64)
        for block in blocks(ids, BATCH):
            known_ids += [row["id"] for row in self.query(f"id in {block.tolist()}", ["id"], patience=LOAD_PATIENCE)]
        return np.unique(np.array(known_ids, np.int64))

    # -- writing ----------------------------------------------------------------------------------------------------

    def insert(
        self,
        ids: NDArray[np.int64],
        packed: Packed,
        alone: NDArray[np.bool_] | None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Insert new rows."""
        done = 0
        for rows in self._batches(ids, packed, alone):
            self._insert(rows)
            done += len(rows)
            if progress:
                progress(done, len(ids))

    def _insert(self, rows: list[dict[str, Any]]) -> None:
        """Insert a batch. Milvus would keep an id twice, so one that may have arrived is upserted."""

        def insert(client: Any, attempt: int) -> Any:
            way = client.upsert if attempt else client.insert
            return way(self.name, rows, timeout=ANSWER_SECONDS)

        self.server.call(insert, patience=LOAD_PATIENCE)

    def upsert(self, ids: NDArray[np.int64], packed: Packed, alone: NDArray[np.bool_]) -> None:
        """Write rows, replacing those with the same ids."""
        for rows in self._batches(ids, packed, alone):
            self._send("upsert", data=rows)

    def upsert_rows(self, rows: list[dict[str, Any]]) -> None:
        """Write rows as they are."""
        for start in range(0, len(rows), BATCH):
            self._send("upsert", data=rows[start : start + BATCH])

    def delete(self, ids: ArrayLike) -> None:
        """Delete rows."""
        for block in blocks(np.asarray(ids, np.int64), BATCH):
            self._send("delete", filter=f"id in {block.tolist()}")

    def remove_from(self, first: int) -> None:
        """Remove every row whose id is at least `first`, left by an interrupted writer."""
        while rows := self.query(f"id >= {first}", ["id"], limit=MAX_ROWS, patience=LOAD_PATIENCE):
            self.delete([row["id"] for row in rows])

    def _send(self, method: str, **arguments: Any) -> None:
        self.server.call(
            lambda client, _: getattr(client, method)(self.name, timeout=ANSWER_SECONDS, **arguments),
            patience=LOAD_PATIENCE,
        )

    def _batches(
        self, ids: NDArray[np.int64], packed: Packed, alone: NDArray[np.bool_] | None
    ) -> Iterator[list[dict[str, Any]]]:
        width = bytes_of(self.bits)
        for start in range(0, len(ids), BATCH):
            rows = slice(start, start + BATCH)
            joined = packed[rows].tobytes()
            numbers = ids[rows].tolist()
            flags = [False] * len(numbers) if alone is None else alone[rows].tolist()
            yield [
                {"id": number, "code": joined[width * row : width * (row + 1)], "alone": flag}
                for row, (number, flag) in enumerate(zip(numbers, flags, strict=True))
            ]


def make_collection(client: Any, name: str, dimension: int, more: Callable[[Any], None] | None = None) -> None:
    """Create a collection with the fields id, code and alone, or others, indexed by BIN_FLAT and loaded."""
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.INT64, is_primary=True)
    schema.add_field("code", DataType.BINARY_VECTOR, dim=dimension)
    if more is None:
        schema.add_field("alone", DataType.BOOL)
    else:
        more(schema)
    client.create_collection(
        name,
        schema=schema,
        index_params=index_of(client, "BIN_FLAT", {}),
        num_shards=1,
        consistency_level="Session",
        timeout=300.0,
    )


def index_of(client: Any, kind: str, settings: dict[str, Any]) -> Any:
    """The parameters of an index on codes."""
    parameters = client.prepare_index_params()
    parameters.add_index("code", index_type=kind, metric_type="HAMMING", index_name="code", params=settings)
    return parameters


def blocks(ids: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    """Ids in blocks of at most `size`."""
    return (ids[start : start + size] for start in range(0, len(ids), size))
