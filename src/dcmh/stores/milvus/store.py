"""MilvusStore: an index in Milvus, a collection of items and one of codes per modality.

Milvus has no transactions. So codes are written first, then items, then the properties of the whole, which complete a
change. Rows whose id was not assigned by then are removed by the next writer.

Fine vectors are in a collection of their own per modality. Milvus has no index of words, so words do not count.

The collection of items also holds, under negative ids, the properties (-1) and what was skipped (a hash of its name).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import BusyError, DataError, ParameterError
from dcmh.stores.address import Address
from dcmh.stores.base import UPLOADED, Filter, Ids, Item, Skipped, was_uploaded
from dcmh.stores.milvus.collection import NO_VECTOR, SMALL_COLLECTION, Collection, make_collection
from dcmh.stores.milvus.connection import ANSWER_SECONDS, BATCH, MAX_ROWS, Milvus
from dcmh.stores.milvus.fine import FineCollection
from dcmh.stores.milvus.index import MilvusIndex
from dcmh.stores.server import ServerStore
from dcmh.stores.transaction import Transaction
from dcmh.util.retry import LOAD_PATIENCE

ABOUT = -1
RECORD_BYTES = 60_000  # bytes of what Milvus keeps of an item
NAME_CHARACTERS = 1_000
LEASE_SECONDS = 120.0
FIELDS = ["id", "name", "content", "record"]


class MilvusStore(ServerStore):
    """The items of a collection in Milvus."""

    has_words = False

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.server = Milvus(address)
        self._rows = Collection(self.server, 8 * len(NO_VECTOR), address.collection)
        self._indexes: dict[str, MilvusIndex] = {}
        self._fine: dict[str, FineCollection] = {}
        self._lease = ""
        self._noted: dict[str, str] | None = None  # the properties, while this process is the only writer
        self._loaded = False

    def close(self) -> None:
        self.server.close()

    # -- the collection --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writer(self) -> Iterator[None]:
        """A lease in the properties, renewed with every change. It expires after two minutes without one, or at once if
        its holder was a process of this machine that no longer runs."""
        about = self.read_about()
        holder = about.get("writer", "")
        if holder and not _has_expired(holder):
            raise BusyError(f"Another process is writing {self.place}.", hint="Wait for it, then try again.")
        self._lease, self._noted = f"{socket.gethostname()} {os.getpid()}", about
        try:
            if about:
                self._note({})
            yield
        finally:
            self._lease = ""
            with contextlib.suppress(Exception):  # it expires by itself
                if self._noted:
                    self._note({})
            self._noted = None

    def create(self, bits: int, modalities: Sequence[str], about: Mapping[str, str]) -> None:
        for modality in modalities:
            if not modality.replace("_", "a").isalnum() or not modality.isascii():
                raise ParameterError(
                    f"Milvus cannot name a collection after the modality {modality!r}.",
                    hint="Use ASCII letters, digits and _.",
                )

        def create(client: Any, _: int) -> None:
            if not client.has_collection(self._rows.name, timeout=ANSWER_SECONDS):
                make_collection(client, self._rows.name, 8, _item_fields)

        # Milvus takes seconds to create a collection, and can create several at once.
        with ThreadPoolExecutor(1 + 2 * len(modalities), "dcmh-milvus") as pool:
            made: list[Future[Any]] = []
            for modality in modalities:
                made.append(pool.submit(MilvusIndex, self.server, bits, name=f"codes_{modality}"))
                if int(about["fine"]):
                    made.append(pool.submit(self._vectors, modality, create=True))
            self.server.call(create)
            for future in made:
                future.result()
        self._note({**about, "modalities": "\n".join(modalities)})

    def migrate(self) -> None:
        """Nothing to do: there are no words, and no fine vectors until the collection is rebuilt."""

    def drop(self) -> None:
        self._indexes.clear()
        self._fine.clear()
        ours = (f"{self._rows.name}_codes_", f"{self._rows.name}_fine_")

        def drop(client: Any, _: int) -> None:
            for name in client.list_collections():
                if name == self._rows.name or name.startswith(ours):
                    client.drop_collection(name, timeout=ANSWER_SECONDS)

        self.server.call(drop)
        self._loaded = False
        if self._noted is not None:
            self._noted = {}

    def sweep(self) -> None:
        first = int(self.about("next_id") or 1)
        for modality in self.modalities():
            self.index(modality).remove_from(first)
            if self.dimensions:
                self._vectors(modality).remove_from(first)
        self._rows.remove_from(first)

    def optimise(self) -> dict[str, str]:
        measured = {}
        for modality in self.modalities():
            index = self.index(modality)
            count = len(index)
            if self.address.approximate and count:
                index.approximate()
                measured[f"recall {modality}"] = f"{index.recall():.3f}"
            elif count > SMALL_COLLECTION:
                index.optimise()
        return measured

    def read_about(self) -> dict[str, str]:
        if self._noted is not None:
            return dict(self._noted)
        if not self._ready():
            return {}
        rows = self._query(f"id == {ABOUT}", ["record"])
        return dict(rows[0]["record"]) if rows else {}

    # -- changing ---------------------------------------------------------------------------------------------------

    def apply(self, changes: Transaction) -> None:
        indexes = {modality: self.index(modality) for modality in self.modalities()}
        items = [_row_of(item) for item in changes.items.values()]  # first, as it refuses what is too long
        rows = self.code_rows(changes)
        for modality, index in indexes.items():
            coded = rows[modality]
            index.remove(coded.deleted, missing_ok=True)
            index.put(coded.ids, coded.packed, coded.alone)
            if self.dimensions:
                fine = changes.fine_rows(modality)
                self._vectors(modality).delete(fine.deleted)
                self._vectors(modality).put(fine.vectors)
        self._rows.delete(sorted(changes.removed))
        self._rows.delete([_skip_id(name) for name, why in changes.skipped.items() if why is None])
        items += [_row_of_skipped(name, why) for name, why in changes.skipped.items() if why is not None]
        self._rows.upsert_rows(items)
        self._note(changes.about)

    def _note(self, about: Mapping[str, str]) -> None:
        record = self.read_about() | {"writer": f"{time.time():.0f} {self._lease}" if self._lease else ""} | dict(about)
        self._rows.upsert_rows([{"id": ABOUT, "code": NO_VECTOR, "name": "", "content": "", "record": record}])
        if self._noted is not None:
            self._noted = record

    # -- reading ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._query("id > 0", ["count(*)"])[0]["count(*)"])

    def items(self) -> Iterator[Item]:
        last = 0
        while rows := self._query(f"id > {last}", FIELDS, limit=BATCH):
            rows.sort(key=lambda row: int(row["id"]))
            yield from map(self._item, rows)
            last = rows[-1]["id"]

    def get(self, ids: Iterable[int]) -> dict[int, Item]:
        """Read with the consistency of searches."""
        numbers = sorted({int(number) for number in ids})
        items = {}
        for start in range(0, len(numbers), BATCH):
            for row in self._query(f"id in {numbers[start : start + BATCH]}", FIELDS, level=self._level):
                items[row["id"]] = self._item(row)
        return items

    def found_by(self, column: str, values: Sequence[Any]) -> list[Item]:
        if not values:
            return []
        keys = [value.hex() if isinstance(value, bytes) else _named(value) for value in values]
        items = [self._item(row) for row in self._query(f"id > 0 and {column} in {json.dumps(keys)}", FIELDS)]
        wanted = set(values)
        return [item for item in items if (item.name if column == "name" else item.content) in wanted]

    def uploads(self) -> list[Item]:
        rows = self._query(f'id > 0 and name like "{UPLOADED}%"', FIELDS)
        return [item for item in map(self._item, rows) if item.uploaded]

    def codes_in(self, modality: str, ids: Sequence[int]) -> dict[int, bytes]:
        return self.index(modality).codes_by_id(ids, level="Strong")

    def vectors(self, modality: str) -> tuple[NDArray[np.int64], bytes]:
        return self._vectors(modality).all_below(int(self.about("next_id") or 0))

    def vectors_of(self, modality: str, ids: Sequence[int]) -> dict[int, bytes]:
        """Read with the consistency of searches; a writer reads with strong consistency."""
        return self._vectors(modality).some(ids, "Strong" if self._lease else self._level)

    def vector_count(self, modality: str) -> int:
        return self._vectors(modality).count()

    def word_counts(self, words: Iterable[str]) -> dict[str, int]:
        """Nothing: Milvus has no index of words."""
        return {}

    def with_word(self, word: str, among: Ids | Sequence[int] | None = None) -> Ids:
        """Nothing: Milvus has no index of words."""
        return np.empty(0, np.int64)

    def matching(self, filter: Filter) -> NDArray[np.int64]:  # noqa: A002 - the word for it
        matches: list[int] = []
        tests = [f"({text})" for text in _conditions(filter)]
        while True:
            last = f"id > {matches[-1] if matches else 0}"
            rows = self._query(" and ".join([last, *tests]), ["id"], limit=MAX_ROWS, level=self._level)
            matches += sorted(row["id"] for row in rows)
            if len(rows) < MAX_ROWS:
                return np.array(matches, np.int64)

    def upload_model(self, files: Mapping[str, bytes]) -> None:
        """Nothing: models are too large for Milvus, so each machine needs its copy."""

    def download_model(self) -> None:
        """None: models are not stored in Milvus."""
        return

    def skipped(self) -> dict[str, Skipped]:
        reasons, last = {}, ABOUT
        while rows := self._query(f"id < {last}", FIELDS, limit=BATCH):
            rows.sort(key=lambda row: -int(row["id"]))
            for row in rows:
                record = row["record"]
                reasons[str(record["name"])] = Skipped(record["reason"], record["size"], record["mtime_ns"])
            if len(rows) < BATCH:
                break
            last = rows[-1]["id"]
        return dict(sorted(reasons.items()))

    # -- inside -----------------------------------------------------------------------------------------------------

    @property
    def _level(self) -> str:
        """The consistency of searches."""
        return self.address.options.get("consistency", "session").capitalize()

    def _vectors(self, modality: str, *, create: bool = False) -> FineCollection:
        if modality not in self._fine:
            collection = FineCollection(self.server, f"{self._rows.name}_fine_{modality}")
            collection.open(create=create)
            self._fine[modality] = collection
        return self._fine[modality]

    def index(self, modality: str) -> MilvusIndex:
        if modality not in self._indexes:
            self._indexes[modality] = MilvusIndex(self.server, self.bits, name=f"codes_{modality}", create=False)
        return self._indexes[modality]

    def _item(self, row: Mapping[str, Any]) -> Item:
        record, content = row["record"], bytes.fromhex(row["content"]) or None
        name, path, text = record["name"], record["path"], record["text"]
        uploaded = record.get("uploaded")
        return Item(
            name,
            path,
            text,
            tuple(record["labels"]),
            content,
            record["size"],
            record["mtime_ns"],
            row["id"],
            was_uploaded(self.folder, name, path, text) if uploaded is None else bool(uploaded),
            datetime.fromisoformat(record["taken"]) if record.get("taken") else None,
            record.get("extra") or {},
        )

    def _ready(self) -> bool:
        """Whether the collection exists; it is loaded if so."""

        def ready(client: Any, _: int) -> bool:
            if not client.has_collection(self._rows.name, timeout=ANSWER_SECONDS):
                return False
            client.load_collection(self._rows.name, timeout=300.0)
            return True

        self._loaded = self._loaded or self.server.call(ready)
        return self._loaded

    def _query(
        self, text: str, fields: list[str], *, limit: int | None = None, level: str = "Strong"
    ) -> list[dict[str, Any]]:
        return self._rows.query(text, fields, limit=limit, patience=LOAD_PATIENCE, level=level)


def _item_fields(schema: Any) -> None:
    from pymilvus import DataType

    schema.add_field("name", DataType.VARCHAR, max_length=4 * NAME_CHARACTERS)
    schema.add_field("content", DataType.VARCHAR, max_length=128)
    schema.add_field("record", DataType.JSON)


def _conditions(filter: Filter) -> Iterator[str]:  # noqa: A002 - the word for it
    """What a filter asks for, as filter expressions of Milvus."""
    if filter.labels:
        yield f'json_contains_any(record["labels"], {_quoted(list(filter.labels))})'
    if filter.prefix is not None:
        # 0 follows /.
        yield f'record["path"] >= {_quoted(filter.prefix)} and record["path"] < {_quoted(filter.prefix[:-1] + "0")}'
    for sign, moment in zip((">=", "<"), filter.taken, strict=True):
        if moment is not None:
            yield f'record["taken"] {sign} {_quoted(moment.isoformat(timespec="seconds"))}'
    for condition in filter.conditions:
        cell = f'record["extra"][{_quoted(condition.column)}]'
        sign = "==" if condition.operator == "=" else condition.operator
        known = f"(exists {cell}) and " if condition.operator == "!=" else ""
        yield f"{known}{cell} {sign} {_quoted(condition.value)}"


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _row_of(item: Item) -> dict[str, Any]:
    record = {
        "name": item.name,
        "path": item.path,
        "text": item.text,
        "labels": list(item.labels),
        "size": item.size,
        "mtime_ns": item.mtime_ns,
        "uploaded": item.uploaded,
        "taken": None if item.taken is None else item.taken.isoformat(timespec="seconds"),
        "extra": dict(item.extra),
    }
    size = len(json.dumps(record, ensure_ascii=False).encode())
    if size > RECORD_BYTES:
        raise DataError(
            f"The text and labels of {item.name} take {size:,} bytes; Milvus keeps {RECORD_BYTES:,} of an item.",
            hint="Shorten the text, or use PostgreSQL.",
        )
    content = "" if item.content is None else item.content.hex()
    return {"id": item.id, "code": NO_VECTOR, "name": _named(item.name), "content": content, "record": record}


def _row_of_skipped(name: str, why: Skipped) -> dict[str, Any]:
    record = {"name": name, "reason": why.reason[:NAME_CHARACTERS], "size": why.size, "mtime_ns": why.mtime_ns}
    return {"id": _skip_id(name), "code": NO_VECTOR, "name": "", "content": "", "record": record}


def _named(name: str) -> str:
    """The part of a name that is looked up: the length of Milvus' strings is limited."""
    return name[:NAME_CHARACTERS]


def _skip_id(name: str) -> int:
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=7).digest()
    return -2 - int.from_bytes(digest, "big")


def _has_expired(holder: str) -> bool:
    """Whether a lease has expired."""
    when, host, process = [*holder.split(" "), "", "", ""][:3]
    if not when.isdigit() or time.time() - int(when) > LEASE_SECONDS:
        return True
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return True
    except PermissionError:
        return False
    return int(process) == os.getpid()
