"""SearchIndex: words find pictures, and pictures find pictures and words, in a folder that can be kept and moved."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from dcmh.errors import DataError, ParameterError, QueryError
from dcmh.index.protocol import as_id
from dcmh.methods import starter
from dcmh.search import adding, building, calibration, rank
from dcmh.search import query as queries
from dcmh.search.building import Choices, Progress
from dcmh.search.calibration import Calibration
from dcmh.search.encode import Encoders
from dcmh.search.rank import Found, Request, Wanted
from dcmh.search.results import Hit, Hits, Query
from dcmh.search.stored import StoredCodes, try_to_save
from dcmh.stores.address import Address, is_address
from dcmh.stores.local import layout
from dcmh.stores.local.catalogue import Catalogue, Item

if TYPE_CHECKING:
    from dcmh.data.dataset import Dataset
    from dcmh.data.splits import Split
    from dcmh.evaluation import Report
    from dcmh.methods.base import Hasher
    from dcmh.search.compare import Changes


class SearchIndex:
    """Items that are found by words or by a picture. Make one with `build`, open one with `open`.

    Threads may search at the same time. Changes are safe in the folder as soon as a call returns; `save` only makes the
    next opening quick. One process at a time may change an index; others see it as it was until they `refresh`.
    """

    changes: Changes | None = None  # what `build` or `update` did

    def __init__(self, folder: Path, catalogue: Catalogue, encoders: Encoders) -> None:
        self.folder = folder
        self.place = str(folder)  # how to name it to people
        self.where: Path | Address = folder  # how to open it again
        self.catalogue = catalogue
        self.encoders = encoders
        self.bits = encoders.bits
        self.fingerprint = str(encoders.record["fingerprint"])
        self._codes = StoredCodes(folder, catalogue, encoders)
        self.calibration = Calibration.read(folder / layout.MODEL, fine=encoders.fine is not None)
        self._file = layout.identity(folder)

    # -- making, opening, closing -----------------------------------------------------------------------------------

    @classmethod
    def build(
        cls,
        model: Hasher | Path | str | None,
        data: Dataset,
        folder: Path | str | Address | None = None,
        *,
        rebuild: bool = False,
        keep_gone: bool = False,
        report: Report | None = None,
        split: Split | None = None,
        device: str | None = None,
        codes: str | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Make an index of the data, or bring the one in the folder up to date. Default folder: NAME.dcmh here.

        An address such as postgresql://user@host/database?collection=photos or milvus://host/photos is as good.

        Parameters
        ----------
        model
            Fitted, or a model folder. An index that was built with another one is refused, unless `rebuild`. None: the
            starter model, for any pictures.
        keep_gone
            Keep items that are in the index but no longer in the data.
        report
            What `dcmh.evaluate` measured, for a model that is not a folder with a report.json.
        split
            That a fitted model learned from: its held-out items tell the precision of hits. A folder has its own.
        codes
            "each": a code of each modality that an item has; "joint": one code per item, from all that it has.
            Default: as the index is, "each" for a new one.
        progress
            Called as progress(items done, items to do).
        """
        model = starter.folder() if model is None else Path(model) if isinstance(model, str) else model
        held_out = None if split is None or isinstance(model, Path) else calibration.measure(model, split)
        choices = Choices(rebuild, keep_gone, report, device, codes, held_out)
        if folder is not None and is_address(folder):
            from dcmh.search.remote import RemoteSearchIndex

            return cast("Self", RemoteSearchIndex.make(model, data, folder, choices, progress))
        folder = Path(f"{data.name or 'data'}.dcmh" if folder is None else str(folder))
        return cls._make(model, data, folder, choices, progress)

    @classmethod
    def _make(
        cls, model: Hasher | Path, data: Dataset, folder: Path, choices: Choices, progress: Progress | None
    ) -> Self:
        layout.check_target(folder)
        building.check_data(model, data)
        with layout.writer(folder):
            catalogue, encoders = building.begin(folder, model, choices)
            changes = building.bring(folder, catalogue, encoders, data, choices.keep_gone, progress)
            index = cls(folder, catalogue, encoders)
            index._settle()
        index.changes = changes
        return index

    @classmethod
    def open(cls, folder: Path | str | Address, *, model: Path | str | None = None) -> Self:
        """Open an index: a folder, whose codes are memory-mapped, or an address of Milvus or PostgreSQL.

        `model` is needed once for an address whose model this machine has not seen; an index in a folder has its own.
        """
        if is_address(folder):
            from dcmh.search.remote import RemoteSearchIndex

            return cast("Self", RemoteSearchIndex.connect(folder, model))
        folder = Path(str(folder))
        index = cls(folder, *building.opened(folder, None if model is None else Path(model)))
        if not index._codes.is_saved():  # its writer was killed, or has not saved yet
            try_to_save(index._codes)
        return index

    load = open  # noqa: A003 - the method above

    def close(self) -> None:
        self.catalogue.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._codes.item_count

    def __repr__(self) -> str:
        return f"<SearchIndex {str(self.folder)!r}: {len(self):,} items, {self.bits} bits>"

    @property
    def recall(self) -> dict[str, float] | None:
        """The share of the true nearest that a search finds, by modality; None where searches are exact, as here."""
        return None

    @property
    def modalities(self) -> dict[str, int]:
        """How many items have a code in each modality."""
        return {name: len(index) for name, index in self._codes.items()}

    @property
    def root(self) -> Path | None:
        """The folder that relative paths count from: beside the index as it was, or where it was."""
        return layout.known_root(self.folder, self.catalogue)

    # -- searching --------------------------------------------------------------------------------------------------

    def search(
        self,
        text: str | None = None,
        image: Any = None,
        *,
        k: int | None = None,
        radius: int | None = None,
        in_: str | None = None,
        offset: int = 0,
        vector: Any = None,
        as_: str | None = None,
        at_least: float | None = None,
    ) -> Hits:
        """The best items for a query: words, or a picture (a path, the bytes of a file, or a uint8 array), or a vector.

        Parameters
        ----------
        k
            Maximum number of hits. Default: 10; with `radius`, all within it.
        radius
            Only hits at most this many bits away.
        in_
            Which modality is searched: "image", "text", or another one. Default for words: pictures, and the texts and labels
            of items. Default for a picture: all.
        offset
            Number of hits to skip, which earlier answers had.
        as_
            Which modality the query is, where the model has several of its kind, such as "title" and "tags". Default:
            "text" or "image", or else the first.
        at_least
            Only hits whose measured precision is at least this, possibly none.
        """
        began = time.perf_counter()
        query, request = self.ask(text, image, vector=vector, as_=as_)
        return self._answer(query, request, began, Wanted(k, radius, in_, offset), at_least)

    def ask(
        self, text: str | None = None, image: Any = None, *, vector: Any = None, as_: str | None = None
    ) -> tuple[Query, Request]:
        """What `search` asks, with its code, and how it is put to the index."""
        return queries.ask(self.encoders, text, image, vector, as_)

    def near(
        self,
        key: bytes,
        modality: str,
        *,
        k: int | None = None,
        radius: int | None = None,
        in_: str | None = None,
        offset: int = 0,
        at_least: float | None = None,
    ) -> Hits:
        """The best items for a packed code, or a `Query.key`, that `ask` gave in a modality."""
        began = time.perf_counter()
        query, request = queries.ask_code(self.encoders, key, modality, self._codes.modalities)
        return self._answer(query, request, began, Wanted(k, radius, in_, offset), at_least)

    def similar(
        self,
        item: int,
        *,
        k: int | None = None,
        radius: int | None = None,
        in_: str | None = None,
        offset: int = 0,
        at_least: float | None = None,
    ) -> Hits:
        """The items most like one of the index, which itself is left out: by its picture, or by its words if it has none."""
        began = time.perf_counter()
        item = as_id(item)
        about = self.item(item)
        for modality in sorted(self._codes, key=lambda name: name == self.encoders.text):
            if item in self._codes[modality]:
                key = self._codes[modality].codes([item])[0].tobytes()
                vector = self.catalogue.fine_of(modality, [item]).get(item)
                query, request = queries.ask_code(
                    self.encoders, key + (vector or b""), modality, self._codes.modalities
                )
                query = replace(query, text=about.text, image=about.path)
                wanted = Wanted(k, radius, in_, offset, without=item)
                return self._answer(query, request, began, wanted, at_least)
        raise QueryError(f"Item {item} of {self.place} has no code. Index it again.")

    def _answer(self, query: Query, request: Request, began: float, wanted: Wanted, at_least: float | None) -> Hits:
        """The hits of a query. `began`: when, by `time.perf_counter`."""
        k, _ = rank.limits(wanted.k, wanted.radius)
        offset = first = rank.whole_number("offset", wanted.offset, 0) or 0
        last = None if k is None else offset + k
        if at_least is not None:  # all that can have a precision, of which some are left out before hits are counted
            self._check_precision(at_least)
            most = None if last is None else max(last, calibration.BANDS[-1])
            wanted, first = replace(wanted, k=most, offset=0), 0
        texts = [name for name, kind in self.encoders.kinds.items() if kind == "text"]
        collection = rank.Collection(self._codes.now(), self._codes.fine, self.catalogue, len(self), texts)
        ranking = rank.search(collection, request, wanted)
        if not request.known and not ranking.found and wanted.radius is None:
            raise queries.no_answer(self.encoders, query, request)
        hits = self._hits(ranking.found, query, request, ranking, first)
        nearest = next(
            iter(hits or self._hits([ranking.beyond] if ranking.beyond else [], query, request, ranking)), None
        )
        below = 0
        if at_least is not None:
            good = [hit for hit in hits if hit.precision is not None and hit.precision >= at_least]
            below, hits = len(hits) - len(good), good[offset:last]
        took = 1000 * (time.perf_counter() - began)
        return Hits(
            tuple(hits), query, ranking.searched, took, ranking.radius, nearest, ranking.candidates, at_least, below
        )

    def _check_precision(self, at_least: float) -> None:
        if isinstance(at_least, bool) or not isinstance(at_least, int | float) or not 0 <= at_least <= 1:
            raise ParameterError(f"at_least must be a number from 0 to 1, not {at_least!r}.")
        if not self.calibration.is_measured:
            raise QueryError(
                f"The precision of hits was not measured for the model of {self.place}, so hits cannot be chosen by it. "
                "Train a model on items of this collection: dcmh train measures it."
            )

    def _hits(
        self, found: Sequence[Found], query: Query, request: Request, ranking: rank.Ranking, first: int = 0
    ) -> list[Hit]:
        items = self.catalogue.get([one.id for one in found])
        root = self.root if found else None
        hits = []
        for position, one in enumerate(found, first):
            item = items.get(one.id)
            if item is not None:  # None: removed by another process since this one opened the index
                has_text = bool(item.text or item.labels)
                precision = self.calibration.precision(
                    one, position, query.kind, request.modality, ranking, has_text=has_text
                )
                path = layout.path_of(self.folder, item, root)
                why = (one.modality, item.name, one.score, one.fine, one.words)
                hits.append(Hit(one.id, one.distance, self.bits, precision, item.text, path, item.labels, *why))
        return hits

    def item(self, item: int) -> Item:
        """What the catalogue says about an item."""
        number = as_id(item)
        found = self.catalogue.get([number])
        if number not in found:
            raise QueryError(f"There is no item {number} in {self.place}.")
        return found[number]

    def codes_of(self, item: int) -> dict[str, bytes]:
        """An item's packed codes, by modality."""
        return self.catalogue.codes_of(as_id(item), self._codes.modalities)

    def path_of(self, item: Item) -> Path | None:
        """Where an item's picture lies."""
        return layout.path_of(self.folder, item, self.root)

    # -- changing ---------------------------------------------------------------------------------------------------

    def update(self, data: Dataset, *, keep_gone: bool = False, progress: Progress | None = None) -> Changes:
        """Bring the index up to date with the data: new, changed, moved and gone items."""
        with self._writer():
            self.changes = self._bring(data, keep_gone, progress)
        return self.changes

    def add(
        self,
        images: Sequence[Any] | None = None,
        *,
        text: Sequence[str | None] | None = None,
        labels: Any = None,
        label_names: Sequence[str] | None = None,
        ids: Sequence[str] | None = None,
    ) -> list[int]:
        """Add items, or replace those of the same name; their ids. Names are paths, unless `ids` gives others.

        If some cannot be indexed the others are added, and an error says which.
        """
        from dcmh.search.update import Update

        about = {"labels": labels, "label_names": label_names, "ids": ids}
        data = adding.as_dataset(self.encoders, images, text, root=self.root, **about)
        with self._writer():
            self.refresh()
            changes = Update(self.catalogue, self.encoders, data, root=self.root, partial=True).run()
            added = [item.id for name in data.ids if (item := self.catalogue.find(name)) is not None]
            self._codes.add(added)
        if changes.skipped:
            name, reason = changes.skipped[0]
            raise DataError(f"Cannot index {name}: {reason}. {len(changes.skipped):,} of {len(data):,} left out.")
        return added

    def remove(self, ids: Iterable[int]) -> int:
        """Remove items by id; how many there were."""
        if not isinstance(ids, Iterable):
            raise ParameterError(f"remove takes a list of ids, not {ids!r}. Write [id].")
        wanted = [as_id(item) for item in ids]
        with self._writer():
            self.refresh()
            there = list(self.catalogue.get(wanted))
            if there:
                with self.catalogue.writing():
                    self.catalogue.remove(there)
                self._codes.remove(there)
        return len(there)

    def save(self) -> None:
        """Make the next opening quick; on a server, make searches quick after many changes. Nothing is lost without."""
        with self._writer():
            self._settle()

    def refresh(self) -> bool:
        """Take in what other processes have changed since; whether there was anything."""
        if self.catalogue.generation == self._codes.generation:
            return False
        self._codes.read()
        return True

    def replaced(self) -> bool:
        """Whether the folder holds another index by now, whole, which `refresh` cannot take in: open it anew."""
        if layout.identity(self.folder) in (None, self._file) or not layout.is_index(self.folder):
            return False
        with contextlib.closing(Catalogue(self.folder / layout.CATALOGUE)) as other:
            return bool(layout.read_header(self.folder)["generation"] == other.generation)

    def _writer(self) -> contextlib.AbstractContextManager[None]:
        return layout.writer(self.folder)

    def _bring(self, data: Dataset, keep_gone: bool, progress: Progress | None) -> Changes:
        """Bring the index up to date, within the caller's `_writer`."""
        changes = building.bring(self.folder, self.catalogue, self.encoders, data, keep_gone, progress)
        self._codes.read()
        self._settle()
        return changes

    def _settle(self) -> None:
        """Write the codes to be memory-mapped, where they have changed, within the caller's `_writer`."""
        self._codes.save()
