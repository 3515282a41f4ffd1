"""MilvusIndex: the same searches over codes in a Milvus collection, BINARY_VECTOR under an integer primary key.

BIN_FLAT compares every code, so answers are exact; BIN_IVF_FLAT is the approximate way, for whoever asks for it.
Milvus gives some of the items at the last distance, in no order; here ties go to the smallest ids, as everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcmh.codes import bytes_of, check_bits
from dcmh.engines.address import Address, parse
from dcmh.engines.milvus import ANSWER_SECONDS, AT_ONCE, BATCH, BUILD_SECONDS, Milvus
from dcmh.engines.patience import ASKING, LOADING
from dcmh.errors import DataError, EngineError, ModelMismatch
from dcmh.index.arguments import as_ids, at_least, refuse_known, refuse_missing, refuse_repeated
from dcmh.index.remote import ALONE, as_packed, chosen_ids, measure_recall, results_of
from dcmh.index.results import Results

Packed = NDArray[np.uint8]
Found = list[tuple[int, int]]  # (id, distance), nearest first

QUERIES_AT_ONCE = 64
IDS_AT_ONCE = 10_000  # in a filter
SPARE = 100  # hits more than asked for: mostly enough to see all that tie with the last
LISTS = 1024  # of BIN_IVF_FLAT
FEW = 10_000  # rows that are searched quickly, indexed or not
HAND_OVER_SECONDS = 60.0
EFFORT = 64  # lists that an approximate search looks at


class MilvusIndex:
    """Codes of `bits` bits in a collection. Threads may share it; one process at a time may add.

    Parameters
    ----------
    where
        An address, such as milvus://host:19530/photos, or a `Milvus` that is shared.
    name
        What follows the collection's name, for one of several. It is made if it is not there, unless `create` is False.
    consistency
        What a search sees. "session": at least what this process has written. "strong": whatever anybody has written,
        which takes a fifth of a second. "bounded": all but the last seconds. Changes always look strongly.
    """

    def __init__(
        self,
        where: Milvus | Address | str,
        bits: int,
        *,
        name: str = "",
        create: bool = True,
        consistency: str | None = None,
    ) -> None:
        self.server = where if isinstance(where, Milvus) else Milvus(parse(where))
        self.bits = check_bits(bits)
        address = self.server.address
        self.collection = address.collection + (f"_{name}" if name else "")
        self.consistency = (consistency or address.options.get("consistency", "session")).capitalize()
        self.kind = "BIN_FLAT"
        try:
            self._prepare(create)
        except BaseException:
            if self.server is not where:
                self.server.close()
            raise

    def __len__(self) -> int:
        rows = self._query("", ["count(*)"])
        return int(rows[0]["count(*)"])

    def __repr__(self) -> str:
        return f"MilvusIndex({str(self.server.address)!r}, bits={self.bits}, collection={self.collection!r})"

    def __contains__(self, item: int) -> bool:
        return bool(self._query(f"id in [{int(item)}]", ["id"]))

    @property
    def count(self) -> int:
        """The number of items."""
        return len(self)

    @property
    def ids(self) -> NDArray[np.int64]:
        """All ids, ascending."""
        return np.array([row["id"] for row in self._pages("", ["id"])], np.int64)

    def codes(self, ids: ArrayLike) -> Packed:
        """The packed codes of some items, in the order asked for."""
        wanted = as_ids(ids)
        found = self.codes_there(wanted)
        refuse_missing(np.array([item for item in wanted.tolist() if item not in found], np.int64))
        joined = b"".join(found[item] for item in wanted.tolist())
        return np.frombuffer(joined, np.uint8).reshape(len(wanted), bytes_of(self.bits))

    def codes_there(self, ids: ArrayLike) -> dict[int, bytes]:
        """The packed codes of those of the items that are there."""
        found: dict[int, bytes] = {}
        for part in _parts(np.unique(as_ids(ids)), BATCH):
            for row in self._query(f"id in {part.tolist()}", ["id", "code"]):
                found[row["id"]] = row["code"][0] if isinstance(row["code"], list) else bytes(row["code"])
        return found

    # -- changing ---------------------------------------------------------------------------------------------------

    def add(self, ids: ArrayLike, codes: Packed, *, alone: NDArray[np.bool_] | None = None) -> None:
        """Add items under new ids. Milvus knows no transactions: who is interrupted adds the rest with `load`."""
        new, packed = as_ids(ids), as_packed(codes, self.bits, "Codes")
        if len(new) != len(packed):
            raise DataError(f"There are {len(new)} ids but {len(packed)} codes. Give one id for each code.")
        refuse_repeated(new)
        if len(new):
            refuse_known(self._known(new))
            self._insert(new, packed, alone, None)

    def load(
        self,
        ids: ArrayLike,
        codes: Packed,
        *,
        alone: NDArray[np.bool_] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Add those items whose id is not there yet, however many there are; how many that were.

        May be stopped at any time, and called again. Call `optimise` at the end.
        """
        new, packed = as_ids(ids), as_packed(codes, self.bits, "Codes")
        if len(new) != len(packed):
            raise DataError(f"There are {len(new)} ids but {len(packed)} codes. Give one id for each code.")
        refuse_repeated(new)
        if not len(new):
            return 0
        fresh = ~np.isin(new, self._known(new))
        self._insert(new[fresh], packed[fresh], None if alone is None else alone[fresh], progress)
        return int(np.count_nonzero(fresh))

    def put(self, ids: NDArray[np.int64], packed: Packed, alone: NDArray[np.bool_]) -> None:
        """Write items, in place of those of the same ids."""
        for rows in self._batches(ids, packed, alone):
            self._mutate(lambda client, _: client.upsert(self.collection, rows, timeout=ANSWER_SECONDS))  # noqa: B023

    def remove(self, ids: ArrayLike, *, missing_ok: bool = False) -> int:
        """Remove items and return how many there were. If an id is unknown none is removed, unless missing_ok."""
        wanted = np.unique(as_ids(ids))
        known = self._known(wanted)
        if not missing_ok:
            refuse_missing(np.setdiff1d(wanted, known))
        for part in _parts(known, BATCH):
            self._delete(f"id in {part.tolist()}")
        return len(known)

    def _delete(self, text: str) -> None:
        self._mutate(lambda client, _: client.delete(self.collection, filter=text, timeout=ANSWER_SECONDS))

    def remove_from(self, first: int) -> None:
        """Remove every item whose id is at least `first`: what an interrupted writer left."""
        while rows := self._query(f"id >= {first}", ["id"], limit=AT_ONCE):
            self.remove([row["id"] for row in rows], missing_ok=True)

    def optimise(self) -> None:
        """Write all to storage and wait until it is indexed. After a bulk load; harmless at any time."""
        self.server.call(lambda client, _: client.flush(self.collection, timeout=600.0), patience=LOADING)
        self._wait_for_index()

    def approximate(self, *, lists: int = LISTS) -> None:
        """Index by BIN_IVF_FLAT, which `search(..., method="approximate")` uses; exact searches look at all its lists."""
        self._index_by("BIN_IVF_FLAT", {"nlist": int(lists)})

    def recall(self, *, k: int = 10, sample: int = 100) -> float:
        """The share of true nearest items that the approximate search finds, measured on codes of the collection."""
        ids = [row["id"] for row in self._query("id >= 0", ["id"], limit=AT_ONCE)]
        step = max(1, len(ids) // sample)
        return measure_recall(self, self.codes(ids[::step][:sample]), k)

    # -- searching --------------------------------------------------------------------------------------------------

    def search(
        self, codes: Packed, k: int, *, allowed: Any = None, method: Literal["exact", "approximate"] = "exact"
    ) -> Results:
        """The k nearest items of each query, or all items where there are fewer.

        `allowed` as in `Index`, or "alone": items that have no code in another collection of the index.
        """
        queries, k = as_packed(codes, self.bits, "Query codes"), at_least(k, 1, "k")
        found: list[Found] = [[] for _ in queries]
        for text in self._filters(allowed):
            for start in range(0, len(queries), QUERIES_AT_ONCE):
                some = queries[start : start + QUERIES_AT_ONCE]
                for place, hits in enumerate(self._nearest(some, k, text, method), start):
                    found[place] = sorted([*found[place], *hits], key=_by_distance)[:k]
        return results_of(found)

    def within(self, codes: Packed, radius: int, *, allowed: Any = None) -> Results:
        """All items at most `radius` bits away from each query."""
        queries = as_packed(codes, self.bits, "Query codes")
        radius = min(at_least(radius, 0, "radius"), self.bits)
        texts = list(self._filters(allowed))
        return results_of(
            [
                sorted((hit for text in texts for hit in self._near(query, radius, text)), key=_by_distance)
                for query in queries
            ]
        )

    def _nearest(self, queries: Packed, k: int, text: str, method: str) -> Iterator[Found]:
        limit = min(AT_ONCE, k + SPARE)
        if 2 * k > AT_ONCE:
            for query in queries:
                yield self._near(query, self.bits, text)[:k]
            return
        for query, hits in zip(queries, self._ask(queries, limit, text, method=method), strict=True):
            if method == "approximate" or len(hits) < limit or hits[k - 1][1] < hits[-1][1]:
                yield hits[:k]  # every item that ties with the last one is there
                continue
            last = hits[k - 1][1]
            nearer = [hit for hit in hits if hit[1] < last]
            yield [*nearer, *self._lowest(query, last, k - len(nearer), text)]

    def _lowest(self, query: Packed, distance: int, count: int, text: str) -> Found:
        """The smallest ids at a distance, of which there may be more than one answer holds."""
        bound: int | None = None
        while True:
            limited = text if bound is None else _both(text, f"id <= {bound}")
            hits = self._ask(query[None], AT_ONCE, limited, distance, least=distance)[0]
            if len(hits) < AT_ONCE:
                return hits[:count]
            bound = hits[max(count, len(hits) // 2) - 1][0]

    def _near(self, query: Packed, radius: int, text: str) -> Found:
        """All hits; where there are more than one answer holds, the ids are halved, and halved again."""
        hits = self._ask(query[None], AT_ONCE, text, radius)[0]
        if len(hits) < AT_ONCE:
            return hits
        middle = int(np.median([number for number, _ in hits]))
        low = self._near(query, radius, _both(text, f"id <= {middle}"))
        high = self._near(query, radius, _both(text, f"id > {middle}"))
        return sorted([*low, *high], key=_by_distance)

    def _ask(
        self,
        queries: Packed,
        limit: int,
        text: str,
        radius: int | None = None,
        *,
        least: int | None = None,
        method: str = "exact",
    ) -> list[Found]:
        """One answer for each query, sorted. Milvus' radius leaves its end out, its range_filter includes it."""
        settings: dict[str, Any] = {}
        if radius is not None:
            settings["radius"] = float(radius + 1)
        if least is not None and least > 0:
            settings["range_filter"] = float(least)
        if self.kind == "BIN_IVF_FLAT":
            effort = self.server.address.effort or EFFORT
            settings["nprobe"] = min(self._lists, effort) if method == "approximate" else self._lists
        answers = self.server.call(
            lambda client, _: client.search(
                self.collection,
                [query.tobytes() for query in queries],
                filter=text,
                limit=limit,
                search_params={"metric_type": "HAMMING", "params": settings},
                consistency_level=self.consistency,
                timeout=ANSWER_SECONDS,
            )
        )
        return [sorted(((hit["id"], int(hit["distance"])) for hit in hits), key=_by_distance) for hits in answers]

    def _filters(self, allowed: Any) -> Iterator[str]:
        """What `allowed` is in Milvus' words; in parts where it is long."""
        if allowed is None:
            yield ""
        elif isinstance(allowed, str) and allowed == ALONE:
            yield "alone == true"
        else:
            for part in _parts(chosen_ids(allowed), IDS_AT_ONCE):
                yield f"id in {part.tolist()}"

    # -- inside -----------------------------------------------------------------------------------------------------

    def _prepare(self, create: bool) -> None:
        def prepare(client: Any, _: int) -> None:
            if not client.has_collection(self.collection, timeout=ANSWER_SECONDS):
                if not create:
                    raise EngineError(
                        f"{self.server.address} has no collection {self.collection}. Make the index again."
                    )
                make_collection(client, self.collection, 8 * bytes_of(self.bits))
            self._check(client)
            client.load_collection(self.collection, timeout=300.0)

        self.server.call(prepare)

    def _check(self, client: Any) -> None:
        fields = client.describe_collection(self.collection, timeout=ANSWER_SECONDS)["fields"]
        found = next((field["params"]["dim"] for field in fields if field["name"] == "code"), None)
        if found is None or int(found) != 8 * bytes_of(self.bits):
            raise ModelMismatch(
                f"{self.server.address} holds codes of {found} bits, not of {self.bits}. "
                "Use the model it was made with, or another collection."
            )
        said = client.describe_index(self.collection, "code", timeout=ANSWER_SECONDS) or {}
        self.kind = said.get("index_type", "BIN_FLAT")
        self._lists = int(said.get("nlist", LISTS))

    def _index_by(self, kind: str, settings: dict[str, Any]) -> None:
        def build(client: Any, _: int) -> None:
            if self.kind != kind:
                client.release_collection(self.collection, timeout=60.0)
                client.drop_index(self.collection, "code", timeout=60.0)
                client.create_index(self.collection, index_of(client, kind, settings), timeout=60.0)
            client.load_collection(self.collection, timeout=BUILD_SECONDS)
            self._check(client)

        self.server.call(lambda client, _: client.flush(self.collection, timeout=600.0), patience=LOADING)
        self.server.call(build, patience=LOADING)
        self._wait_for_index()

    def _wait_for_index(self) -> None:
        end = time.monotonic() + BUILD_SECONDS
        while time.monotonic() < end:
            said = self.server.call(
                lambda client, _: client.describe_index(self.collection, "code", timeout=ANSWER_SECONDS),
                patience=LOADING,
            )
            if not said.get("pending_index_rows") and said.get("state") != "InProgress":
                break
            time.sleep(0.2)
        count = len(self)
        if count > FEW:
            self._wait_for_hand_over(count)

    def _wait_for_hand_over(self, count: int) -> None:
        """Until then Milvus searches what it took in, ten times slower; the answers are the same."""
        end = time.monotonic() + HAND_OVER_SECONDS
        while time.monotonic() < end:
            segments = self.server.call(
                lambda client, _: client.list_loaded_segments(self.collection, timeout=ANSWER_SECONDS), patience=LOADING
            )
            if sum(segment.num_rows for segment in segments if "Sealed" in str(segment.state)) >= count:
                return
            time.sleep(0.2)

    def _mutate(self, work: Callable[[Any, int], Any]) -> None:
        self.server.call(work, patience=LOADING)

    def _known(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of the ids are there."""
        found = []
        if len(ids) and not self._query(f"id >= {ids.min()} and id <= {ids.max()}", ["id"], limit=1, patience=LOADING):
            return np.empty(0, np.int64)
        for part in _parts(ids, BATCH):
            found += [row["id"] for row in self._query(f"id in {part.tolist()}", ["id"], patience=LOADING)]
        return np.unique(np.array(found, np.int64))

    def _insert(
        self,
        ids: NDArray[np.int64],
        packed: Packed,
        alone: NDArray[np.bool_] | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        """Insert what is not there. Milvus would keep an id twice, so a batch that may have arrived is upserted."""
        done = 0
        for rows in self._batches(ids, packed, alone):

            def insert(client: Any, attempt: int, rows: list[dict[str, Any]] = rows) -> Any:
                way = client.upsert if attempt else client.insert
                return way(self.collection, rows, timeout=ANSWER_SECONDS)

            self._mutate(insert)
            done += len(rows)
            if progress:
                progress(done, len(ids))

    def _batches(
        self, ids: NDArray[np.int64], packed: Packed, alone: NDArray[np.bool_] | None
    ) -> Iterator[list[dict[str, Any]]]:
        width = bytes_of(self.bits)
        for start in range(0, len(ids), BATCH):
            part = slice(start, start + BATCH)
            joined = packed[part].tobytes()
            numbers = ids[part].tolist()
            flags = [False] * len(numbers) if alone is None else alone[part].tolist()
            yield [
                {"id": number, "code": joined[width * row : width * (row + 1)], "alone": flag}
                for row, (number, flag) in enumerate(zip(numbers, flags, strict=True))
            ]

    def _query(
        self, text: str, fields: list[str], *, limit: int | None = None, patience: float = ASKING
    ) -> list[dict[str, Any]]:
        more = {} if limit is None else {"limit": limit}
        rows = self.server.call(
            lambda client, _: client.query(
                self.collection,
                filter=text,
                output_fields=fields,
                consistency_level="Strong",
                timeout=ANSWER_SECONDS,
                **more,
            ),
            patience=patience,
        )
        return list(rows)

    def _pages(self, text: str, fields: list[str]) -> Iterator[dict[str, Any]]:
        """All rows, by ascending id."""
        after = ""
        while True:
            rows = self._query(_both(text, after), fields, limit=AT_ONCE)
            rows.sort(key=lambda row: int(row["id"]))
            yield from rows
            if len(rows) < AT_ONCE:
                return
            after = f"id > {rows[-1]['id']}"


def make_collection(client: Any, name: str, dimension: int, more: Callable[[Any], None] | None = None) -> None:
    """A collection with id, code and alone, or other fields, indexed by BIN_FLAT and loaded."""
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
    wanted = client.prepare_index_params()
    wanted.add_index("code", index_type=kind, metric_type="HAMMING", index_name="code", params=settings)
    return wanted


def _by_distance(hit: tuple[int, int]) -> tuple[int, int]:
    return hit[1], hit[0]


def _both(*texts: str) -> str:
    return " and ".join(f"({text})" for text in texts if text)


def _parts(ids: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))
