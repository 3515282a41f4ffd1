"""MilvusIndex: the same searches over codes in a Milvus collection, BINARY_VECTOR under an integer primary key.

BIN_FLAT compares every code, so results are exact. BIN_IVF_FLAT is for approximate searches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcmh.codes import check_bits
from dcmh.index.protocol import Results, as_ids, refuse_known, refuse_missing
from dcmh.stores.address import Address, parse
from dcmh.stores.codes import CodeIndex, Method, Packed, new_items, results_of
from dcmh.stores.milvus.collection import LISTS, Collection, blocks
from dcmh.stores.milvus.connection import BATCH, MAX_ROWS, Milvus
from dcmh.stores.milvus.fine import FineCollection
from dcmh.stores.milvus.search import Search


class MilvusIndex(CodeIndex):
    """Codes of `bits` bits in a collection. Threads may share it; one process at a time may add.

    Parameters
    ----------
    where
        An address, such as milvus://host:19530/photos, or a `Milvus` that is shared.
    name
        A suffix of the collection's name. The collection is created if it does not exist, unless `create` is False.
    consistency
        What a search sees. "session": at least what this process has written. "strong": everything that was written,
        which takes a fifth of a second. "bounded": all but the last seconds. Changes always read with "strong".
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
        self._codes = Collection(self.server, self.bits, self.collection)
        try:
            self._codes.open(create=create)
        except BaseException:
            if self.server is not where:
                self.server.close()
            raise

    def __len__(self) -> int:
        return self._codes.count()

    def __repr__(self) -> str:
        return f"MilvusIndex({str(self.server.address)!r}, bits={self.bits}, collection={self.collection!r})"

    @property
    def kind(self) -> str:
        """How Milvus indexes the codes: BIN_FLAT or BIN_IVF_FLAT."""
        return self._codes.kind

    @property
    def ids(self) -> NDArray[np.int64]:
        """All ids, ascending."""
        return np.array([row["id"] for row in self._codes.pages(["id"])], np.int64)

    def codes_by_id(self, ids: ArrayLike, *, level: str | None = None) -> dict[int, bytes]:
        """The packed codes of some items by id, unknown ids left out; by default with the consistency of searches."""
        packed: dict[int, bytes] = {}
        for block in blocks(np.unique(as_ids(ids)), BATCH):
            for row in self._codes.query(f"id in {block.tolist()}", ["id", "code"], level=level or self.consistency):
                packed[row["id"]] = row["code"][0] if isinstance(row["code"], list) else bytes(row["code"])
        return packed

    # -- changing ---------------------------------------------------------------------------------------------------

    def add(self, ids: ArrayLike, codes: Packed, *, alone: NDArray[np.bool_] | None = None) -> None:
        """Add items under new ids. Milvus has no transactions: after an interruption add the rest with `load`."""
        new, packed = new_items(ids, codes, self.bits)
        if len(new):
            refuse_known(self._codes.known(new))
            self._codes.insert(new, packed, alone)

    def load(
        self,
        ids: ArrayLike,
        codes: Packed,
        *,
        fine: NDArray[np.int8] | None = None,
        alone: NDArray[np.bool_] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Add the items whose id is new, any number of them; returns how many were added.

        `fine` are their fine vectors, shape (n, dimensions), for the collection of fine vectors beside that of codes. Can be
        interrupted and called again. Call `optimise` at the end.
        """
        new, packed = new_items(ids, codes, self.bits)
        if not len(new):
            return 0
        fresh = ~np.isin(new, self._codes.known(new))
        if fine is not None:  # first, so that every item with a code is complete
            self._load_fine(new[fresh], fine[fresh])
        self._codes.insert(new[fresh], packed[fresh], None if alone is None else alone[fresh], progress)
        return int(np.count_nonzero(fresh))

    def _load_fine(self, ids: NDArray[np.int64], vectors: NDArray[np.int8]) -> None:
        name = self.collection.removeprefix(self.server.address.collection)
        beside = FineCollection(
            self.server, self.server.address.collection + (name.replace("codes", "fine", 1) or "_fine")
        )
        beside.open(create=True)
        known = beside.known(ids)
        fresh = ~np.isin(ids, known)
        beside.load(ids[fresh], vectors[fresh])

    def put(self, ids: NDArray[np.int64], packed: Packed, alone: NDArray[np.bool_]) -> None:
        """Write items, replacing those with the same ids."""
        self._codes.upsert(ids, packed, alone)

    def remove(self, ids: ArrayLike, *, missing_ok: bool = False) -> int:
        """Remove items and return how many there were. If an id is unknown none is removed, unless missing_ok."""
        wanted = np.unique(as_ids(ids))
        known = self._codes.known(wanted)
        if not missing_ok:
            refuse_missing(np.setdiff1d(wanted, known))
        self._codes.delete(known)
        return len(known)

    def remove_from(self, first: int) -> None:
        """Remove every item whose id is at least `first`, left by an interrupted writer."""
        self._codes.remove_from(first)

    def optimise(self) -> None:
        """Flush to storage and wait until it is indexed. For after a bulk load; harmless at any time."""
        self._codes.settle()

    def approximate(self, *, lists: int = LISTS) -> None:
        """Index by BIN_IVF_FLAT, which `search(..., method="approximate")` uses; exact searches look at all its lists."""
        self._codes.index_by("BIN_IVF_FLAT", {"nlist": int(lists)})

    # -- searching --------------------------------------------------------------------------------------------------

    def _search(self, queries: Packed, k: int, allowed: Any, method: Method) -> Results:
        return results_of(Search(self._codes, self.consistency, method).nearest(queries, k, allowed))

    def _within(self, queries: Packed, radius: int, allowed: Any) -> Results:
        return results_of(Search(self._codes, self.consistency).within(queries, radius, allowed))

    def _sample(self, size: int) -> list[int]:
        ids = [row["id"] for row in self._codes.query("id >= 0", ["id"], limit=MAX_ROWS)]
        return ids[:: max(1, len(ids) // size)][:size]
