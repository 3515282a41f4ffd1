"""SearchIndex: words find pictures, and pictures find pictures and words, in a folder that can be kept and moved."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from dcmh.catalogue import Catalogue, Item
from dcmh.codes import bytes_of
from dcmh.data.dataset import JOINT
from dcmh.engines.address import Address, is_address
from dcmh.errors import DataError, ParameterError, QueryError
from dcmh.methods.folder import read_record
from dcmh.search import asking, finding, place
from dcmh.search.encoders import Encoders, shared_modalities
from dcmh.search.hits import Hit, Hits, Query
from dcmh.search.stored import StoredCodes, try_to_save

if TYPE_CHECKING:
    from dcmh.data.dataset import Dataset
    from dcmh.evaluation import Report
    from dcmh.methods.base import Hasher
    from dcmh.search.compare import Changes

Progress = Callable[[int, int], None]


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
        joint = catalogue.about("codes") == JOINT
        self._codes = StoredCodes(folder, catalogue, encoders.bits, (JOINT,) if joint else encoders.modalities)
        self._measured = finding.measured(folder / place.MODEL)
        self._file = _identity(folder)

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
        if folder is not None and is_address(folder):
            from dcmh.search.remote import RemoteSearchIndex

            choices = {"rebuild": rebuild, "keep_gone": keep_gone, "report": report, "device": device, "codes": codes}
            made = RemoteSearchIndex.make(model, data, folder, progress=progress, **choices)  # type: ignore[arg-type]
            return cast("Self", made)
        folder = Path(f"{data.name or 'data'}.dcmh" if folder is None else str(folder))
        place.check_target(folder)
        _check_data(model, data)
        said = None if report is None else json.dumps(report.to_json(), indent=1) + "\n"
        with place.writer(folder):
            catalogue = place.begin(folder, model, rebuild=rebuild, report=said, codes=codes)
            encoders = Encoders(folder / place.MODEL, None if isinstance(model, Path) else model, device=device)
            changes = _update(catalogue, encoders, data, folder, keep_gone, progress)
            index = cls(folder, catalogue, encoders)
            if not index._codes.is_saved():
                index._codes.save(**index._about())
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
        header = place.read_header(folder)
        if model is not None:
            place.check_model(folder, header["fingerprint"], str(read_record(Path(model))["fingerprint"]))
        encoders = Encoders(folder / place.MODEL)
        place.check_model(folder, header["fingerprint"], str(encoders.record["fingerprint"]))
        index = cls(folder, Catalogue(folder / place.CATALOGUE), encoders)
        if header["generation"] != index._codes.generation:  # its writer was killed, or has not saved yet
            try_to_save(index._codes, **index._about())
        return index

    load = open  # noqa: A003 - the method above

    def close(self) -> None:
        self.catalogue.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        beside, absolute = self.catalogue.about("root_beside"), self.catalogue.about("root")
        if beside is not None:
            candidate = Path(os.path.normpath(self.folder.absolute() / beside))
            if candidate.is_dir():
                return candidate
        return None if absolute is None else Path(absolute)

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
        return self._answer(*self.ask(text, image, vector=vector, as_=as_), began, k, radius, in_, offset)

    def ask(
        self, text: str | None = None, image: Any = None, *, vector: Any = None, as_: str | None = None
    ) -> tuple[Query, str]:
        """What `search` asks, with its code, and the modality it is asked in."""
        if sum(given is not None for given in (text, image, vector)) != 1:
            raise ParameterError("Give either text or image to search for.")
        encoders = self.encoders
        if text is not None:
            return asking.ask_words(encoders, text, asking.in_modality(encoders, as_, "text"))
        if image is not None:
            return asking.ask_picture(encoders, image, asking.in_modality(encoders, as_, "image"))
        return asking.ask_vector(encoders, vector, asking.in_modality(encoders, as_, "vector"))

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
        if modality not in (*self.encoders.modalities, *self._codes.modalities):
            raise ParameterError(f"The model has no {modality!r}. It has: {', '.join(self.encoders.modalities)}.")
        if len(code) != bytes_of(self.bits):
            raise ParameterError(
                f"The code has {len(code)} bytes; codes of {self.bits} bits have {bytes_of(self.bits)}."
            )
        return self._answer(Query(code=code), modality, began, k, radius, in_, offset)

    def similar(
        self,
        item: int,
        *,
        k: int | None = None,
        radius: int | None = None,
        in_: str | None = None,
        offset: int = 0,
    ) -> Hits:
        """Items near one of the index, which itself is left out: by its picture, or by its words if it has none."""
        began = time.perf_counter()
        said = self.item(item)
        for modality in sorted(self._codes, key=lambda name: name == self.encoders.text):
            if item in self._codes[modality]:
                code = self._codes[modality].codes([item])[0].tobytes()
                query = Query(text=said.text, image=said.path, code=code)
                return self._answer(query, modality, began, k, radius, in_, offset, without=item)
        raise QueryError(f"Item {item} of {self.place} has no code. Index it again.")

    def item(self, item: int) -> Item:
        """What the catalogue says about an item."""
        found = self.catalogue.get([item])
        if item not in found:
            raise QueryError(f"There is no item {item} in {self.place}.")
        return found[item]

    def codes_of(self, item: int) -> dict[str, bytes]:
        """An item's packed codes, by modality."""
        return self.catalogue.codes_of(item, self._codes.modalities)

    def path_of(self, item: Item) -> Path | None:
        """Where an item's picture lies."""
        return self._path_from(self.root, item)

    def _path_from(self, root: Path | None, item: Item) -> Path | None:
        if item.path is not None and item.name.startswith(place.UPLOADED):
            return self.folder / place.UPLOADS / item.name.removeprefix(place.UPLOADED)
        return None if item.path is None else Path(item.path) if root is None else root / item.path

    def _answer(
        self,
        query: Query,
        asked: str,
        began: float,
        k: int | None,
        radius: int | None,
        in_: str | None,
        offset: int,
        without: int = 0,
    ) -> Hits:
        k, radius = finding.limits(k, radius)
        k = None if k is None else k + offset
        codes = self._codes.now()
        words = asked if asked != JOINT and self.encoders.kind(asked) == "text" else None
        parts = finding.parts(codes, asked, words, in_, len(self))
        whole = len(parts) != 1 or parts[0][1] is not None
        searched = len(self) if whole else len(codes[parts[0][0]])
        more = 1 if without else 0
        found = finding.find(codes, parts, query.code, asked, None if k is None else k + more, radius)
        found.pop(without, None)
        hits = self._hits(finding.nearest_first(found, k)[offset:], found, asked)
        nearest = hits[0] if hits else None
        if not found and radius is not None:
            found = finding.find(codes, parts, query.code, asked, 1 + more, None)
            found.pop(without, None)
            nearest = next(iter(self._hits(finding.nearest_first(found, 1), found, asked)), None)
        return Hits(tuple(hits), query, searched, 1000 * (time.perf_counter() - began), radius, nearest)

    def _hits(self, order: list[int], found: finding.Found, asked: str) -> list[Hit]:
        items = self.catalogue.get(order)
        root = self.root if order else None
        hits = []
        for number in order:
            item = items.get(number)
            if item is not None:  # None: removed by another process since this one opened the index
                distance, name = found[number]
                precision = self._measured.get((asked, name), {}).get(distance)
                path = self._path_from(root, item)
                hits.append(Hit(number, distance, self.bits, precision, item.text, path, item.labels, name, item.name))
        return hits

    # -- changing ---------------------------------------------------------------------------------------------------

    def update(self, data: Dataset, *, keep_gone: bool = False, progress: Progress | None = None) -> Changes:
        """Bring the index up to date with the data: new, changed, moved and gone items."""
        with place.writer(self.folder):
            self.changes = _update(self.catalogue, self.encoders, data, self.folder, keep_gone, progress)
            self._codes.read()
            if not self._codes.is_saved():
                self._codes.save(**self._about())
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
        from dcmh.data.columns import Images, Texts
        from dcmh.data.dataset import Dataset
        from dcmh.search.update import Update

        columns: dict[str, Any] = {}
        if images is not None:
            whole = [os.path.abspath(image) if isinstance(image, str | Path) else image for image in images]
            columns[self.encoders.picture or "image"] = Images(whole)
        if text is not None:
            columns[self.encoders.text or "text"] = Texts(text)
        names = self._names(images, text) if ids is None else ids
        data = Dataset(columns, labels=labels, label_names=label_names, ids=names)
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
        with self._writer():
            self.refresh()
            there = list(self.catalogue.get(ids))
            if there:
                with self.catalogue.writing():
                    self.catalogue.remove(there)
                self._codes.remove(there)
        return len(there)

    def save(self) -> None:
        """Write the codes to be memory-mapped, so that the next opening is quick. Without it nothing is lost."""
        with place.writer(self.folder):
            if not self._codes.is_saved():
                self._codes.save(**self._about())

    def refresh(self) -> bool:
        """Take in what other processes have changed since; whether there was anything."""
        if self.catalogue.generation == self._codes.generation:
            return False
        self._codes.read()
        return True

    def replaced(self) -> bool:
        """Whether the folder holds another index by now, whole, which `refresh` cannot take in: open it anew."""
        if _identity(self.folder) in (None, self._file) or not place.is_index(self.folder):
            return False
        with contextlib.closing(Catalogue(self.folder / place.CATALOGUE)) as other:
            return bool(place.read_header(self.folder)["generation"] == other.generation)

    def _writer(self) -> contextlib.AbstractContextManager[None]:
        return place.writer(self.folder)

    def _about(self) -> dict[str, str | None]:
        method = str(self.encoders.record["method"])
        return {"fingerprint": self.fingerprint, "method": method, "root": self.catalogue.about("root")}

    def _names(self, images: Sequence[Any] | None, text: Sequence[str | None] | None) -> list[str]:
        """Paths, from the data's root where they lie in it; a hash for what has no path."""
        names, root = [], self.root
        for row in range(len(images if images is not None else text or ())):
            image = None if images is None else images[row]
            if isinstance(image, str | Path):
                full = Path(os.path.abspath(image))
                inside = root is not None and full.is_relative_to(root)
                names.append((full.relative_to(root) if root is not None and inside else full).as_posix())
            else:
                digest = hashlib.blake2b(b"" if image is None else np.asarray(image).tobytes(), digest_size=8)
                digest.update(str(text[row] if text is not None else "").encode())
                names.append(f"added {digest.hexdigest()}")
        return names


def _identity(folder: Path) -> tuple[int, int] | None:
    """Which file the catalogue is: one begun anew is another."""
    try:
        status = os.stat(folder / place.CATALOGUE)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _check_data(model: Hasher | Path, data: Dataset) -> None:
    """Refuse data that the model cannot encode, before anything is written."""
    if isinstance(model, Path):
        Encoders(model).check(data)
    else:
        shared_modalities({name: model.views_[name].kind for name in model.modalities}, data)


def _update(
    catalogue: Catalogue,
    encoders: Encoders,
    data: Dataset,
    folder: Path,
    keep_gone: bool,
    progress: Progress | None,
) -> Changes:
    from dcmh.search.compare import data_root
    from dcmh.search.update import Update

    changes = Update(catalogue, encoders, data, root=data_root(data), keep=keep_gone, progress=progress).run()
    place.remember_root(folder, catalogue, data_root(data))
    place.write_skipped(folder, changes.skipped)
    return changes
