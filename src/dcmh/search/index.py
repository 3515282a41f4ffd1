"""SearchIndex: words find pictures, and pictures find pictures and words, in a folder that can be kept and moved."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from dcmh.catalogue import Catalogue, Item
from dcmh.engines.address import Address, is_address
from dcmh.errors import DataError, ParameterError, QueryError
from dcmh.index.arguments import as_id
from dcmh.search import adding, answering, asking, building, finding, place
from dcmh.search.building import Choices, Progress
from dcmh.search.encoders import Encoders
from dcmh.search.finding import Wanted
from dcmh.search.hits import Hits, Query
from dcmh.search.stored import StoredCodes, try_to_save

if TYPE_CHECKING:
    from dcmh.data.dataset import Dataset
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
        self._measured = finding.measured(folder / place.MODEL)
        self._file = place.identity(folder)

    # -- making, opening, closing -----------------------------------------------------------------------------------

    @classmethod
    def build(
        cls,
        model: Hasher | Path | str,
        data: Dataset,
        folder: Path | str | Address | None = None,
        *,
        rebuild: bool = False,
        keep_gone: bool = False,
        report: Report | None = None,
        device: str | None = None,
        codes: str | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Make an index of the data, or bring the one in the folder up to date. Default folder: NAME.dcmh here.

        An address such as postgresql://user@host/database?collection=photos or milvus://host/photos is as good.

        Parameters
        ----------
        model
            Fitted, or a model folder. An index that was built with another one is refused, unless `rebuild`.
        keep_gone
            Keep items that are in the index but no longer in the data.
        report
            What `dcmh.evaluate` measured, for a model that is not a folder with a report.json.
        codes
            "each": a code of each modality that an item has; "joint": one code an item, from all that it has.
            Default: as the index is, "each" for a new one.
        progress
            Called as progress(items done, items to do).
        """
        model = Path(model) if isinstance(model, str) else model
        choices = Choices(rebuild, keep_gone, report, device, codes)
        if folder is not None and is_address(folder):
            from dcmh.search.remote import RemoteSearchIndex

            return cast("Self", RemoteSearchIndex.make(model, data, folder, choices, progress))
        folder = Path(f"{data.name or 'data'}.dcmh" if folder is None else str(folder))
        return cls._make(model, data, folder, choices, progress)

    @classmethod
    def _make(
        cls, model: Hasher | Path, data: Dataset, folder: Path, choices: Choices, progress: Progress | None
    ) -> Self:
        place.check_target(folder)
        building.check_data(model, data)
        with place.writer(folder):
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
        return place.known_root(self.folder, self.catalogue)

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
    ) -> Hits:
        """Items near a query: words, or a picture (a path, the bytes of a file, or a uint8 array), or a vector.

        Parameters
        ----------
        k
            At most so many hits. Default: 10; with `radius`, all within it.
        radius
            Only hits at most so many bits away.
        in_
            Which codes are searched: "image", "text", or another modality. Default for words: pictures, and the words
            of items that have no picture. Default for a picture: both, each item at the smaller of its distances.
        offset
            Leave out so many of the nearest, which earlier answers had.
        as_
            Which modality the query is, where the model has several of its kind, such as "title" and "tags". Default:
            "text" or "image", or else the first.
        """
        began = time.perf_counter()
        query, asked = self.ask(text, image, vector=vector, as_=as_)
        return answering.answer(self, query, asked, began, Wanted(k, radius, in_, offset))

    def ask(
        self, text: str | None = None, image: Any = None, *, vector: Any = None, as_: str | None = None
    ) -> tuple[Query, str]:
        """What `search` asks, with its code, and the modality it is asked in."""
        return asking.ask(self.encoders, text, image, vector, as_)

    def near(
        self,
        code: bytes,
        modality: str,
        *,
        k: int | None = None,
        radius: int | None = None,
        in_: str | None = None,
        offset: int = 0,
    ) -> Hits:
        """Items near a packed code that `ask` gave in a modality."""
        began = time.perf_counter()
        query = asking.ask_code(self.encoders, code, modality, self._codes.modalities)
        return answering.answer(self, query, modality, began, Wanted(k, radius, in_, offset))

    def similar(
        self, item: int, *, k: int | None = None, radius: int | None = None, in_: str | None = None, offset: int = 0
    ) -> Hits:
        """Items near one of the index, which itself is left out: by its picture, or by its words if it has none."""
        began = time.perf_counter()
        item = as_id(item)
        said = self.item(item)
        for modality in sorted(self._codes, key=lambda name: name == self.encoders.text):
            if item in self._codes[modality]:
                code = self._codes[modality].codes([item])[0].tobytes()
                query = Query(text=said.text, image=said.path, code=code)
                return answering.answer(self, query, modality, began, Wanted(k, radius, in_, offset, without=item))
        raise QueryError(f"Item {item} of {self.place} has no code. Index it again.")

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
        return place.path_of(self.folder, item, self.root)

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
        if place.identity(self.folder) in (None, self._file) or not place.is_index(self.folder):
            return False
        with contextlib.closing(Catalogue(self.folder / place.CATALOGUE)) as other:
            return bool(place.read_header(self.folder)["generation"] == other.generation)

    def _writer(self) -> contextlib.AbstractContextManager[None]:
        return place.writer(self.folder)

    def _bring(self, data: Dataset, keep_gone: bool, progress: Progress | None) -> Changes:
        """Bring the index up to date, within the caller's `_writer`."""
        changes = building.bring(self.folder, self.catalogue, self.encoders, data, keep_gone, progress)
        self._codes.read()
        self._settle()
        return changes

    def _settle(self) -> None:
        """Write the codes to be memory-mapped, where they have changed, within the caller's `_writer`."""
        self._codes.save()
