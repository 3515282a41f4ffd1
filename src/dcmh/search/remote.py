"""SearchIndex on a server: the same searches and changes, with items and codes on Milvus or PostgreSQL."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcmh import stores
from dcmh.errors import ModelError
from dcmh.index.fine import FineIndex
from dcmh.index.protocol import Index, Results
from dcmh.methods import folder as model_folder
from dcmh.search.building import Choices, Progress, check_data
from dcmh.search.calibration import Calibration
from dcmh.search.encode import Encoders
from dcmh.search.index import SearchIndex
from dcmh.search.rank import EVERYTHING, Ids, Scores
from dcmh.stores import models
from dcmh.stores.address import Address, parse
from dcmh.stores.base import RemoteCatalogue, check_model
from dcmh.stores.local import layout
from dcmh.util.cache import home

if TYPE_CHECKING:
    from dcmh.data.dataset import Dataset
    from dcmh.methods.base import Hasher
    from dcmh.search.compare import Changes


class CountedIndex:
    """An index on a server whose size is known from when it was last read: counting 10^9 rows takes a while."""

    def __init__(self, index: Any, count: int, *, approximate: bool) -> None:
        self.bits = index.bits
        self.count = count
        self._index = index
        self._how = {"method": "approximate"} if approximate else {}

    def __len__(self) -> int:
        return self.count

    def __contains__(self, item: object) -> bool:
        return item in self._index

    @property
    def ids(self) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self._index.ids
        return found

    def codes(self, ids: ArrayLike) -> NDArray[np.uint8]:
        found: NDArray[np.uint8] = self._index.codes(ids)
        return found

    def codes_there(self, ids: ArrayLike) -> dict[int, bytes]:
        found: dict[int, bytes] = self._index.codes_there(ids)
        return found

    def add(self, ids: ArrayLike, codes: NDArray[np.uint8]) -> None:
        raise NotImplementedError("items are added through the SearchIndex")

    def remove(self, ids: ArrayLike, *, missing_ok: bool = False) -> int:
        raise NotImplementedError("items are removed through the SearchIndex")

    def search(self, codes: NDArray[np.uint8], k: int, *, allowed: Any = None) -> Results:
        found: Results = self._index.search(codes, k, allowed=allowed, **self._how)
        return found

    def within(self, codes: NDArray[np.uint8], radius: int, *, allowed: Any = None) -> Results:
        found: Results = self._index.within(codes, radius, allowed=allowed)
        return found


class RemoteFine:
    """The fine vectors of one modality on a server, as of a generation.

    Up to EVERYTHING they are all fetched when they are first needed, and kept in memory and in a folder of this machine; of
    more, only those that are asked for.
    """

    def __init__(self, catalogue: RemoteCatalogue, modality: str, count: int, generation: int, folder: Path) -> None:
        self.catalogue = catalogue
        self.modality = modality
        self.count = count
        self.generation = generation
        self.folder = folder
        self._whole: FineIndex | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.count

    def scores(self, query: NDArray[np.float32]) -> tuple[Ids, Scores]:
        """As in `FineIndex`."""
        return self._all().scores(query)

    def scores_of(self, query: NDArray[np.float32], wanted: Ids) -> Scores:
        """As in `FineIndex`."""
        index = self._all() if self.count <= EVERYTHING else FineIndex.of(*self._fetch(wanted.tolist()))
        return index.scores_of(query, wanted)

    def take_over(self, before: RemoteFine, changed: list[int]) -> None:
        """Spare the next search to fetch all again: these are the only items that have changed since `before`."""
        if before._whole is not None:
            whole = before._whole.without(np.array(changed, np.int64))
            ids, vectors = self._fetch(changed)
            if len(ids):
                whole = whole.with_items(ids, vectors)
            self._whole = whole if len(whole) == self.count else None

    def _fetch(self, wanted: list[int]) -> tuple[Ids, NDArray[np.int8]]:
        """Ids, ascending, and vectors of those of the items that have one."""
        found = self.catalogue.fine_of(self.modality, wanted)
        ids = np.array(sorted(found), np.int64)
        joined = b"".join(found[number] for number in ids.tolist())
        return ids, np.frombuffer(joined, np.int8).reshape(len(ids), self.catalogue.dimensions)

    def _all(self) -> FineIndex:
        with self._lock:
            if self._whole is None:
                with contextlib.suppress(ModelError):  # not kept here yet, or of another generation
                    self._whole = FineIndex.load(self.folder, self.generation)
            if self._whole is None:
                self._whole = FineIndex.of(*self.catalogue.fine(self.modality))
                if self.catalogue.generation == self.generation:  # otherwise they may be newer
                    self._keep(self._whole)
            return self._whole

    def _keep(self, index: FineIndex) -> None:
        """In the folder, if it may be written, less what an earlier collection of this address has left."""
        with contextlib.suppress(OSError):
            index.save(self.folder, self.generation)
            made = self.folder.parent
            for other in made.parent.iterdir():
                if other != made:
                    shutil.rmtree(other, ignore_errors=True)


class RemoteCodes(Mapping[str, Index]):
    """An index for each modality in which some item has a code, as of the last `read`.

    `folder` is where this machine keeps fine vectors.
    """

    def __init__(self, catalogue: RemoteCatalogue, folder: Path) -> None:
        self.catalogue = catalogue
        self.folder = folder
        self.item_count = 0
        self.generation = -1
        self._indexes: dict[str, Index] = {}
        self._fine: dict[str, RemoteFine] = {}
        self.read()

    def __getitem__(self, modality: str) -> Index:
        return self._indexes[modality]

    def __iter__(self) -> Iterator[str]:
        return iter(self._indexes)

    def __len__(self) -> int:
        return len(self._indexes)

    def now(self) -> dict[str, Index]:
        return self._indexes

    @property
    def fine(self) -> dict[str, RemoteFine]:
        """The fine vectors of each modality that has some."""
        return self._fine

    @property
    def modalities(self) -> tuple[str, ...]:
        return tuple(self.catalogue.modalities())

    def add(self, ids: list[int]) -> None:
        """These items, and no others, were added or changed: count again."""
        self.read(ids)

    remove = add

    def read(self, changed: list[int] | None = None) -> None:
        """Take the state of the server. Sizes are noted where a writer finished, and counted where it did not."""
        about = self.catalogue.open()
        noted = json.loads(about.get("sizes", "{}"))
        generation = int(about["generation"])
        current = noted.get("generation") == generation
        indexes: dict[str, Index] = {}
        fine: dict[str, RemoteFine] = {}
        for modality in about["modalities"].split():
            index = self.catalogue.index(modality)
            count = int(noted["codes"][modality]) if current else len(index)
            if count:
                indexes[modality] = CountedIndex(index, count, approximate=self.catalogue.address.approximate)
            count = int(noted["fine"][modality]) if "fine" in noted and current else self.catalogue.fine_count(modality)
            if count:
                place = self.folder / about["made"] / modality
                fine[modality] = RemoteFine(self.catalogue, modality, count, generation, place)
                if modality in self._fine and (changed is not None or generation == self.generation):
                    fine[modality].take_over(self._fine[modality], changed or [])
        self._indexes, self._fine = indexes, fine
        self.item_count = int(noted["items"]) if current else len(self.catalogue)
        self.generation = generation

    def sizes(self) -> str:
        """To be noted: so many, at this generation and the next, which the note itself makes."""
        names = self.catalogue.modalities()
        codes, fine = ({name: len(held.get(name, ())) for name in names} for held in (self._indexes, self._fine))
        return json.dumps({"generation": self.generation + 1, "items": self.item_count, "codes": codes, "fine": fine})


class RemoteSearchIndex(SearchIndex):
    """A collection on a server. `folder` is where this machine keeps what belongs to it and cannot lie there."""

    catalogue: RemoteCatalogue  # type: ignore[assignment]
    _codes: RemoteCodes  # type: ignore[assignment]

    def __init__(self, address: Address, catalogue: RemoteCatalogue, encoders: Encoders) -> None:
        self.address = address
        self.place = str(address)
        self.where = address
        digest = hashlib.blake2b(address.identity.encode(), digest_size=4).hexdigest()
        self.folder = home() / "engines" / f"{address.collection}-{digest}"
        self.catalogue = catalogue
        self.encoders = encoders
        self.bits = encoders.bits
        self.fingerprint = str(encoders.record["fingerprint"])
        self._codes = RemoteCodes(catalogue, self.folder / "fine")
        self.calibration = Calibration.read(encoders.folder, fine=encoders.fine is not None)
        self._made = catalogue.about("made")
        self._root: tuple[int, str | None] | None = None  # as of a generation

    @classmethod
    def make(
        cls,
        model: Hasher | Path,
        data: Dataset,
        place: Address | Path | str,
        choices: Choices,
        progress: Progress | None = None,
    ) -> Self:
        """As `SearchIndex.build`."""
        address = parse(place)
        check_data(model, data)
        with _closed_on_error(stores.connect(address)) as catalogue, catalogue.writer():
            kept = models.keep(model, choices.report_text)
            fresh = choices.rebuild or not catalogue.read_about()
            catalogue.begin(model_folder.read_record(kept), rebuild=choices.rebuild, codes=choices.codes)
            if fresh:
                catalogue.keep_model(models.files_of(kept))
            encoders = Encoders(kept, None if isinstance(model, Path) else model, device=choices.device)
            index = cls(address, catalogue, encoders)
            index.changes = index._bring(data, choices.keep_gone, progress)
        return index

    @classmethod
    def connect(cls, place: Address | Path | str, model: Path | str | None = None) -> Self:
        """As `SearchIndex.open`."""
        address = parse(place)
        with _closed_on_error(stores.connect(address)) as catalogue:
            about = catalogue.open()
            return cls(address, catalogue, Encoders(_model_of(catalogue, about["fingerprint"], model)))

    @property
    def root(self) -> Path | None:
        """The folder that relative paths count from, on the machine that indexed them."""
        generation = self._codes.generation
        if self._root is None or self._root[0] != generation:
            self._root = generation, self.catalogue.about("root")
        return None if self._root[1] is None else Path(self._root[1])

    @property
    def recall(self) -> dict[str, float] | None:
        """What an approximate search found of the true nearest, by modality, when it was measured; None if exact."""
        if not self.address.approximate:
            return None
        about = self.catalogue.read_about()
        return {key.removeprefix("recall "): float(value) for key, value in about.items() if key.startswith("recall ")}

    def replaced(self) -> bool:
        """Whether the collection was made anew."""
        return self.catalogue.about("made") != self._made

    def _bring(self, data: Dataset, keep_gone: bool, progress: Progress | None) -> Changes:
        from dcmh.search.compare import data_root
        from dcmh.search.update import Update

        root, was = data_root(data), self.catalogue.about("root")
        layout.check_root(self.place, [] if was is None else [Path(was)], root)
        before = self.catalogue.generation
        unfinished = json.loads(self.catalogue.about("sizes") or "{}").get("generation") != before
        update = Update(self.catalogue, self.encoders, data, root=root, keep=keep_gone, progress=progress)
        update.check()
        where = None if root is None else str(Path(root).absolute())
        if where is not None and where != was:
            with self.catalogue.writing():
                self.catalogue.note("root", where)
        changes = update.run()
        if unfinished or self.catalogue.generation != before or self._lacks_recall():
            self._settle()
        return changes

    def _lacks_recall(self) -> bool:
        return self.address.approximate and not self.recall

    def _settle(self) -> None:
        """Make searches fast after many changes, and note sizes."""
        measured = self.catalogue.settle()
        self._codes.read()
        with self.catalogue.writing():
            for key, value in measured.items():
                self.catalogue.note(key, value)
            self.catalogue.note("sizes", self._codes.sizes())
        self._codes.read([])

    def _writer(self) -> contextlib.AbstractContextManager[None]:
        return self.catalogue.writer()


@contextlib.contextmanager
def _closed_on_error(catalogue: RemoteCatalogue) -> Iterator[RemoteCatalogue]:
    try:
        yield catalogue
    except BaseException:
        catalogue.close()
        raise


def model_at(place: Address | Path | str) -> Path | None:
    """The model that a collection was made with; None where there is no collection."""
    with contextlib.closing(stores.connect(parse(place))) as catalogue:
        about = catalogue.read_about()
        return _model_of(catalogue, about["fingerprint"], None) if about else None


def check_model_at(place: Address | Path | str, model: Path) -> None:
    """Refuse another model than a collection was made with, before any work."""
    with contextlib.closing(stores.connect(parse(place))) as catalogue:
        about = catalogue.read_about()
        if about:
            check_model(catalogue.place, about["fingerprint"], str(model_folder.read_record(model)["fingerprint"]))


def _model_of(catalogue: RemoteCatalogue, fingerprint: str, given: Path | str | None) -> Path:
    """The folder of the model that a collection was made with."""
    if given is not None:
        check_model(catalogue.place, fingerprint, str(model_folder.read_record(Path(given))["fingerprint"]))
        return models.keep(Path(given))
    found = models.find(fingerprint)
    if found is None and (files := catalogue.kept_model()) is not None:
        found = models.restore(files)
        check_model(catalogue.place, fingerprint, str(model_folder.read_record(found)["fingerprint"]))
    if found is None:
        raise ModelError(
            f"{catalogue.place} was built with model {fingerprint[:4]}, which this machine does not have. "
            "Copy the model's folder here and give it once: --model MODEL"
        )
    return found
