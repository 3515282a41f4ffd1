"""SearchIndex: finds pictures by words and by other pictures, and items by vectors, in a folder or on a server."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np

from dcmh import stores
from dcmh.data.columns import Images, Texts
from dcmh.data.dataset import Dataset
from dcmh.errors import DamagedError, DataError, ParameterError, QueryError
from dcmh.index.protocol import as_id
from dcmh.methods import starter
from dcmh.search import calibration, rank
from dcmh.search import query as queries
from dcmh.search.calibration import Calibration
from dcmh.search.encode import Encoders, shared_modalities
from dcmh.search.rank import Match, Request, Wanted
from dcmh.search.results import UNMEASURED, Hit, Hits, Query
from dcmh.stores.address import Address, is_address, parse
from dcmh.stores.base import (
    COLUMNS,
    UNFINISHED,
    UPDATE,
    UPGRADING,
    UPLOADED,
    UPLOADS,
    Filter,
    Item,
    Skipped,
    Snapshot,
    Store,
    closed_on_error,
)
from dcmh.util.text import sanitized

if TYPE_CHECKING:
    from dcmh.data.splits import Split
    from dcmh.evaluation import Report
    from dcmh.methods.base import Hasher
    from dcmh.methods.fine_space import Matrix
    from dcmh.search.blocks import Blocks, Pool, State
    from dcmh.search.changes import Changes
    from dcmh.search.duplicates import Duplicates
    from dcmh.search.update import Progress, Update

T = TypeVar("T")

RENEW_SECONDS = 30.0  # a writer of Milvus is taken for dead after two minutes


class SearchIndex:
    """Items that are found by words or by a picture. Make one with `build`, open one with `open`.

    Threads may search at the same time. Changes are durable as soon as a call returns; `save` only makes the next opening
    fast. One process at a time may change an index; others see it as it was until they call `refresh`.
    """

    changes: Changes | None = None  # what `build` or `update` did

    def __init__(self, store: Store, encoders: Encoders) -> None:
        self.store = store
        self.encoders = encoders
        self.bits = encoders.bits
        self.fingerprint = str(encoders.record["fingerprint"])
        self.calibration = Calibration.read(encoders.folder, fine=encoders.record.get("fine") is not None)

    # -- making, opening, closing -----------------------------------------------------------------------------------

    @classmethod
    def build(
        cls,
        model: Hasher | Path | str | None,
        data: Dataset,
        folder: Path | str | Address | None = None,
        *,
        encoder: str | None = None,
        rebuild: bool = False,
        upgrade: bool = False,
        keep_gone: bool = False,
        report: Report | None = None,
        split: Split | None = None,
        device: str | None = None,
        codes: str | None = None,
        pool: Pool | None = None,
        progress: Progress | None = None,
        on_block: Callable[[State], None] | None = None,
    ) -> Self:
        """Index the data, or bring an existing index up to date with it. Default folder: NAME.dcmh in the current one.

        An address such as postgresql://user@host/database?collection=photos or milvus://host/photos works as well.

        Parameters
        ----------
        model
            Fitted, or a model folder. An index that was built with another one is refused, unless `rebuild` or
            `upgrade`. None: the starter model, for any pictures.
        encoder
            Without a model: an encoder of both pictures and texts to search with, without training, such as
            "transformers:FOLDER" (`dcmh.inputs.encoders`). An index that was built with it keeps its model.
        rebuild
            Start with an empty index, which replaces an existing one at the end.
        upgrade
            Encode the items of an existing index with another model. All of them are kept with their ids, also those that
            are not in the data. Pictures whose features are cached are not decoded. The index can be searched meanwhile,
            and is replaced at the end.
        keep_gone
            Keep items that are in the index but no longer in the data.
        report
            What `dcmh.evaluate` measured, for a model that is not a folder with a report.json.
        split
            The split that a fitted model learned from: the precision of hits is measured on its held-out items. A model
            folder has it already.
        codes
            "each": one code per modality that an item has; "joint": one code per item, from everything it has.
            Default: as the index is, "each" for a new one.
        pool
            Who encodes, where that is not this process: see `dcmh.search.pools.open_pool`.
        progress
            Called as progress(items done, items to do).
        on_block
            Called with the state of a pool's work after every block.
        """
        if codes not in (None, "each", "joint"):
            raise ParameterError(f"codes must be 'each' or 'joint', not {codes!r}.")
        if not isinstance(data, Dataset):
            raise ParameterError(
                f"The data is a {type(data).__name__}, not a Dataset.",
                hint="Write SearchIndex.build(model, dcmh.load_dataset(…, keep_partial=True), folder).",
            )
        where = Path(f"{data.name or 'data'}.dcmh") if folder is None else folder
        if encoder is not None:
            if model is not None:
                raise ParameterError(
                    "Both a model and an encoder are given.", hint="Give one of them, and None for the model."
                )
            model = encoder_model(encoder, data, where, again=rebuild or upgrade, device=device)
        model = starter.folder() if model is None else Path(model) if isinstance(model, str) else model
        in_memory = None if isinstance(model, Path) else model
        held_out = None if split is None or in_memory is None else calibration.measure(in_memory, split)
        _check_data(model, data)  # before anything is written
        text = _report_text(report, held_out)
        with stores.build_store(where, model, rebuild=rebuild, upgrade=upgrade, report=text, codes=codes) as store:
            index = cls(store, Encoders(store.model, in_memory, device=device))
            index.changes = index._bring(data, keep_gone, progress, pool, on_block, device)
        index.encoders.folder = store.model  # a rebuilt index has moved
        return index

    @classmethod
    def open(cls, folder: Path | str | Address, *, model: Path | str | None = None) -> Self:
        """Open an index: a folder, whose codes are memory-mapped, or an address of Milvus or PostgreSQL.

        `model` is needed once for an address whose model this machine does not have; an index in a folder has its own.
        """
        with closed_on_error(stores.open_store(folder, None if model is None else Path(model))) as store:
            return cls(store, Encoders(store.model))

    load = open  # noqa: A003 - the method above

    def close(self) -> None:
        """Release files and connections. A closed index cannot be searched."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, also in another process of this machine, opens the index again."""
        if isinstance(self.where, Address):  # it may hold a password
            raise TypeError(f"The index {self.place} is on a server: open it in the other process.")
        return type(self).open, (self.where.absolute(),)

    def __len__(self) -> int:
        return self.store.snapshot.items

    def __repr__(self) -> str:
        return f"<SearchIndex {self.place!r}: {len(self):,} items, {self.bits} bits>"

    @property
    def place(self) -> str:
        """The name of the index for people: a path, or an address without its password."""
        return self.store.place

    @property
    def where(self) -> Path | Address:
        """What `open` takes to open this index again."""
        return self.store.where

    @property
    def folder(self) -> Path:
        """The folder on this machine for files that belong to the index; of an index in a folder, that one."""
        return self.store.folder

    @property
    def root(self) -> Path | None:
        """The folder that relative paths of items start at."""
        return self.store.root

    @property
    def recall(self) -> dict[str, float] | None:
        """The share of the true nearest items that searches find, by modality; None where searches are exact."""
        return self.store.recall()

    @property
    def modalities(self) -> dict[str, int]:
        """The number of items that have a code in each modality."""
        return {name: len(index) for name, index in self.store.snapshot.indexes.items()}

    # -- searching --------------------------------------------------------------------------------------------------

    def search(
        self,
        text: str | None = None,
        image: Any = None,
        *,
        k: int | None = None,
        radius: int | None = None,
        modality: str | None = None,
        offset: int = 0,
        vector: Any = None,
        query_modality: str | None = None,
        at_least: float | None = None,
        like: Sequence[int] = (),
        unlike: Sequence[int] = (),
        filter: Filter | None = None,  # noqa: A002 - the word for it
    ) -> Hits:
        """The best items for a query: words, a picture (a path, the bytes of a file, or a uint8 array), or a vector.

        Words and a picture together are one query, as are examples with any of them. Words after a minus, and after "no" and
        "without", are excluded: "dog -beach", "street without cars".

        Parameters
        ----------
        k
            Maximum number of hits. Default: 10; with `radius`, all within it.
        radius
            Only hits at most this many bits away.
        modality
            The modality to search: "image", "text", or another one. Default for words: pictures, and the texts and labels
            of items. Default for a picture: all.
        offset
            Number of hits to skip.
        query_modality
            The modality of the query, where the model has several of its kind, such as "title" and "tags". Default:
            "text" or "image", or else the first.
        at_least
            Only hits whose measured precision is at least this, possibly none.
        like, unlike
            Ids of items that hits shall resemble, and not resemble. They are no hits themselves.
        filter
            Which items may be hits, by labels, folder, date and columns of their table.
        """
        began = time.perf_counter()
        query, request = self.ask(text, image, vector=vector, query_modality=query_modality, like=like, unlike=unlike)
        return self._answer(query, request, began, Wanted(k, radius, modality, offset), at_least, filter)

    def ask(
        self,
        text: str | None = None,
        image: Any = None,
        *,
        vector: Any = None,
        query_modality: str | None = None,
        coded: tuple[bytes, str] | None = None,
        like: Sequence[int] = (),
        unlike: Sequence[int] = (),
    ) -> tuple[Query, Request]:
        """The query of `search` with its code, and the request that the ranking takes.

        `coded` is a packed code, or the `Query.key` of an earlier query, and its modality.
        """
        indexed = self.store.modalities()
        ask = functools.partial(
            queries.ask,
            self.encoders,
            text,
            image,
            vector,
            query_modality,
            coded=None if coded is None else queries.ask_code(self.encoders, *coded, indexed),
            like=self._examples(like),
            unlike=self._examples(unlike),
            indexed=indexed,
        )
        query, request = ask(counts=self.store.word_counts)
        if query.corrected:
            as_typed = ask()
            if not self._finds_better(request, as_typed[1]):
                return as_typed
        return query, request

    def _finds_better(self, request: Request, other: Request) -> bool:
        """Whether the best hit of a request has a higher fine score than that of another one."""

        def best(request: Request) -> float | None:
            return self._intact(lambda now: self._rank(now, request, Wanted(k=1))).best

        first, second = best(request), best(other)
        return first is None or second is None or first > second

    def near(
        self,
        key: bytes,
        query_modality: str,
        *,
        k: int | None = None,
        radius: int | None = None,
        modality: str | None = None,
        offset: int = 0,
        at_least: float | None = None,
        text: str | None = None,
        like: Sequence[int] = (),
        unlike: Sequence[int] = (),
        filter: Filter | None = None,  # noqa: A002
    ) -> Hits:
        """The best items for a packed code, or for the `Query.key` of an earlier query, in the query's modality.

        The rest as in `search`.
        """
        began = time.perf_counter()
        query, request = self.ask(text, coded=(key, query_modality), like=like, unlike=unlike)
        return self._answer(query, request, began, Wanted(k, radius, modality, offset), at_least, filter)

    def similar(
        self,
        item: int,
        *,
        k: int | None = None,
        radius: int | None = None,
        modality: str | None = None,
        offset: int = 0,
        at_least: float | None = None,
        filter: Filter | None = None,  # noqa: A002
    ) -> Hits:
        """The items most similar to one of the index, by its picture, or by its text if it has none; without itself."""
        began = time.perf_counter()
        about = self.item(item)
        query, request = self.ask(like=[item])
        query = replace(query, text=about.text, image=about.path)
        return self._answer(query, request, began, Wanted(k, radius, modality, offset), at_least, filter)

    def _examples(self, items: Sequence[int]) -> list[queries.Example]:
        if isinstance(items, str) or not isinstance(items, Iterable):
            raise ParameterError(f"like and unlike take a list of ids, not {items!r}.", hint="Write [id].")
        return [self._example(item) for item in items]

    def _example(self, item: int) -> queries.Example:
        """An item as part of a query: its picture, or its text if it has none."""
        number = as_id(item)
        self.item(number)
        indexes = self.store.snapshot.indexes
        for name in sorted(indexes, key=lambda name: name == self.encoders.text):
            code = self._intact(lambda now, name=name: now.indexes[name].codes_by_id([number]).get(number))  # type: ignore[misc]
            if code is not None:
                return queries.Example(number, code + self.store.fine_of(name, [number]).get(number, b""), name)
        raise QueryError(f"Item {number} of {self.place} has no code.", hint="Index it again.")

    def _answer(
        self,
        query: Query,
        request: Request,
        began: float,
        wanted: Wanted,
        at_least: float | None,
        filter: Filter | None = None,  # noqa: A002
    ) -> Hits:
        """The hits of a query. `began`: when, by `time.perf_counter`."""
        wanted = replace(wanted, without=(*query.like, *query.unlike))
        if filter is not None and not isinstance(filter, Filter):
            raise ParameterError(
                f"filter must be a dcmh.Filter, not {filter!r}.", hint='Write dcmh.Filter(labels=["pets"]).'
            )
        if filter:
            filter = self._checked_filter(filter)  # noqa: A001
            wanted = replace(wanted, allowed=self.store.matching(filter))
            query = replace(query, filter=filter, kind=UNMEASURED)
        k, _ = rank.limits(wanted.k, wanted.radius)
        offset = first = rank.whole_number("offset", wanted.offset, 0) or 0
        last = None if k is None else offset + k
        if at_least is not None:  # all that can have a precision, of which some are left out before hits are counted
            self._check_precision(at_least, query)
            measured = calibration.BANDS[-1] if self.calibration.sizes else len(self)  # by distance, any hit has one
            most = None if last is None else max(last, measured)
            wanted, first = replace(wanted, k=most, offset=0), 0
        ranking = self._intact(lambda now: self._rank(now, request, wanted))
        if not request.known and not ranking.matches and wanted.radius is None:
            raise queries.no_answer(self.encoders, query, request, texts_searched=self.store.has_words)
        hits = self._hits(ranking.matches, query, request, ranking, first)
        nearest = next(
            iter(hits or self._hits([ranking.beyond] if ranking.beyond else [], query, request, ranking)), None
        )
        below = 0
        if at_least is not None:
            good = [hit for hit in hits if hit.precision is not None and hit.precision >= at_least]
            below, hits = len(hits) - len(good), good[offset:last]
        unlikely = bool(hits) and self._is_unlikely(query, request, ranking, hits)
        took = 1000 * (time.perf_counter() - began)
        return Hits(
            tuple(hits),
            query,
            ranking.searched,
            took,
            ranking.radius,
            nearest,
            ranking.candidates,
            at_least,
            below,
            unlikely,
        )

    def _is_unlikely(self, query: Query, request: Request, ranking: rank.Ranking, hits: Sequence[Hit]) -> bool:
        """Whether probably nothing matches the query."""

        def reference_scores() -> Matrix | None:
            fine = self.encoders.fine
            return None if fine is None or request.fine is None else fine.reference_scores(request.fine)

        precisions = [hit.precision for hit in hits]
        return self.calibration.is_unlikely(query.kind, ranking, precisions, reference_scores)

    def _intact(self, work: Callable[[Snapshot[Any, Any]], T]) -> T:
        """Work on the snapshot; if its files are damaged, they are derived again first."""
        try:
            return work(self.store.snapshot)
        except DamagedError:
            self.store.restore()
            return work(self.store.snapshot)

    def _rank(self, now: Snapshot[Any, Any], request: Request, wanted: Wanted) -> rank.Ranking:
        texts = [name for name, kind in self.encoders.kinds.items() if kind == "text"]
        words = rank.WithPlurals(self.store)
        return rank.search(rank.Collection(now.indexes, now.fine, words, now.items, texts), request, wanted)

    def _checked_filter(self, filter: Filter) -> Filter:  # noqa: A002
        """The filter with its folder as paths of items begin; a column that no table had is an error."""
        columns = json.loads(self.store.about(COLUMNS) or "[]") if filter.where else []
        for condition in filter.conditions:
            if condition.column not in columns:
                has = f"It has: {', '.join(columns)}." if columns else "Its data had no further columns."
                raise QueryError(f"The index has no column {condition.column!r}.", hint=has)
        root = self.root
        if filter.folder and root is not None and os.path.isabs(filter.folder):
            with contextlib.suppress(ValueError):
                return replace(filter, folder=Path(filter.folder).relative_to(os.path.abspath(root)).as_posix())
        return filter

    def _check_precision(self, at_least: float, query: Query) -> None:
        if isinstance(at_least, bool) or not isinstance(at_least, int | float) or not 0 <= at_least <= 1:
            raise ParameterError(f"at_least must be a number from 0 to 1, not {at_least!r}.")
        if not self.calibration.is_measured:
            raise QueryError(
                f"The precision of hits was not measured for the model of {self.place}, so hits cannot be chosen by it.",
                hint="Train a model on items of this collection: dcmh train measures it.",
            )
        if query.kind == UNMEASURED:
            raise QueryError(
                "The precision of hits was not measured for queries with several parts, with excluded words or with filters.",
                hint="Leave out the minimum precision.",
            )

    def _hits(
        self, matches: Sequence[Match], query: Query, request: Request, ranking: rank.Ranking, first: int = 0
    ) -> list[Hit]:
        items = self.store.get([match.id for match in matches])
        root = self.root if matches else None
        hits = []
        for position, match in enumerate(matches, first):
            item = items.get(match.id)
            if item is not None:  # None: removed by another process since this one opened the index
                precision = self.calibration.precision(
                    match, position, query.kind, request.modality, ranking, has_text=bool(item.text)
                )
                if match.words and not item.text and not item.labels:
                    precision = None  # found by its folder, and words were measured in texts
                path = self._path(item, root)
                why = (match.modality, item.name, match.score, match.fine, match.words)
                hits.append(Hit(match.id, match.distance, self.bits, precision, item.text, path, item.labels, *why))
        return hits

    def item(self, item: int) -> Item:
        """The name, path, text and labels of an item."""
        number = as_id(item)
        items = self.store.get([number])
        if number not in items:
            raise QueryError(f"There is no item {number} in {self.place}.")
        return items[number]

    def codes_of(self, item: int) -> dict[str, bytes]:
        """The packed codes of an item, by modality."""
        number = as_id(item)
        codes = {name: self.store.codes_of(name, [number]).get(number) for name in self.store.modalities()}
        return {name: code for name, code in codes.items() if code is not None}

    def path_of(self, item: Item) -> Path | None:
        """The path of an item's picture."""
        return self._path(item, self.root)

    def _path(self, item: Item, root: Path | None) -> Path | None:
        if item.path is not None and item.uploaded:
            return self.folder / UPLOADS / os.path.basename(item.name.removeprefix(UPLOADED))
        return None if item.path is None else Path(item.path) if root is None else root / item.path

    def duplicates(
        self,
        kind: Literal["exact", "near"] | None = None,
        *,
        similarity: float | None = None,
        compute: bool = True,
        progress: Progress | None = None,
    ) -> Duplicates:
        """Groups of copies with the one to keep: the same content, or nearly the same picture. Default: both kinds.

        Parameters
        ----------
        similarity
            Minimum similarity of near copies, above 0 and at most 1.
        compute
            Compute the signatures of pictures that have none yet, which decodes them. They are cached by content.
        progress
            Called as progress(pictures done, pictures to do) meanwhile.
        """
        from dcmh.search import duplicates

        least = duplicates.SIMILARITY if similarity is None else similarity
        return duplicates.find(self, kind=kind, similarity=least, compute=compute, progress=progress)

    # -- changing ---------------------------------------------------------------------------------------------------

    def update(self, data: Dataset, *, keep_gone: bool = False, progress: Progress | None = None) -> Changes:
        """Bring the index up to date with the data: new, changed, moved and gone items."""
        with self.store.writer():
            self.changes = self._bring(data, keep_gone, progress)
        return self.changes

    def _bring(
        self,
        data: Dataset,
        keep_gone: bool,
        progress: Progress | None,
        pool: Pool | None = None,
        on_block: Callable[[State], None] | None = None,
        device: str | None = None,
    ) -> Changes:
        """Bring the index up to date, inside the caller's `writer`."""
        from dcmh.search.changes import check_root, data_root
        from dcmh.search.update import Update

        root = data_root(data)
        check_root(self.place, self.store.data_folders(), root)
        recode = self.store.about(UPDATE) == UPGRADING
        keep = keep_gone or recode
        update = Update(self.store, self.encoders, data, root=root, keep=keep, recode=recode, progress=progress)
        update.check()
        self.store.remember_root(root)  # before the first item, so that an interrupted run leaves complete paths
        blocks = None
        if pool is not None and update.compared.entries:
            blocks = self._blocks(update, device)
            blocks.encode(pool, self._renewing(on_block))
            update.encoded = blocks
        changes = update.run()
        if recode:
            self._recode_others(update, changes, progress)
        self.store.settle(changes.skipped)
        if blocks is not None:
            blocks.remove()
        return changes

    def _blocks(self, update: Update, device: str | None) -> Blocks:
        """What an update has to encode, in blocks that are kept beside the index until it is finished."""
        from dcmh.search.blocks import Blocks, Work

        rows = [entry.row for entry in update.compared.entries]
        work = Work(self.store.model.absolute(), device, update.joint)
        return Blocks(blocks_folder(self.folder), self.encoders, update.data, work, rows=rows)

    def _renewing(self, on_block: Callable[[State], None] | None) -> Callable[[State], None]:
        """A report that also shows a server now and then that its writer is alive."""
        last = time.monotonic()

        def report(state: State) -> None:
            nonlocal last
            if isinstance(self.where, Address) and time.monotonic() - last > RENEW_SECONDS:
                with self.store.writing():
                    self.store.note(UPDATE, UNFINISHED)
                last = time.monotonic()
            if on_block:
                on_block(state)

        return report

    def _recode_others(self, update: Update, changes: Changes, progress: Progress | None) -> None:
        """In an upgrade, encode the items that are not in the data: those from `add`, uploads, and others that are gone."""
        from dcmh.search.update import Update

        gone = [item for items in update.compared.gone.values() for item in items]
        items = sorted([*gone, *self.store.uploads()], key=lambda item: item.id)
        changes.gone -= len(gone)
        if not items:
            return
        paths = [self.path_of(item) for item in items]
        columns: dict[str, Any] = {}
        if self.encoders.picture is not None:
            columns[self.encoders.picture] = Images([None if path is None else str(path) for path in paths])
        if self.encoders.text is not None:
            columns[self.encoders.text] = Texts([item.text for item in items])
        if not columns:  # a model of vectors, which are in the data alone
            reason = "not in the data, so that it cannot be encoded with another model"
            with self.store.writing():
                for item in items:
                    self.store.skip(item.name, Skipped(reason))
                self.store.remove([item.id for item in items])
            changes.gone += len(items)
            changes.skipped = sorted([*changes.skipped, *((item.name, reason) for item in items)])
            return
        data = Dataset(columns, ids=[item.name for item in items])
        more = Update(
            self.store, self.encoders, data, root=self.root, partial=True, stored=items, progress=progress
        ).run()
        changes.recoded += more.recoded
        changes.gone += more.gone
        changes.skipped = sorted([*changes.skipped, *more.skipped])

    def add(
        self,
        images: Sequence[Any] | None = None,
        *,
        text: Sequence[str | None] | None = None,
        labels: Any = None,
        label_names: Sequence[str] | None = None,
        ids: Sequence[str] | None = None,
        uploaded: bool = False,
    ) -> list[int]:
        """Add items, or replace those with the same name; returns their ids. Names are paths, unless `ids` are given.

        If some cannot be indexed the others are added, and an error says which. `uploaded` is for the service: the files
        are in the folder of uploads, belong to the index and are removed with their items.
        """
        from dcmh.search.update import Update

        columns: dict[str, Any] = {}
        if images is not None:
            absolute = [os.path.abspath(image) if isinstance(image, str | Path) else image for image in images]
            columns[self.encoders.picture or "image"] = Images(absolute)
        if text is not None:
            columns[self.encoders.text or "text"] = Texts(text)
        names = _names(images, text, self.root) if ids is None else ids
        data = Dataset(columns, labels=labels, label_names=label_names, ids=names)
        with self.store.writer():
            self.refresh()
            update = Update(self.store, self.encoders, data, root=self.root, partial=True, uploaded=uploaded)
            changes = update.run()
            self.store.read(update.touched)
            added = [item.id for name in data.ids if (item := self.store.find(name)) is not None]
        if changes.skipped:
            name, reason = changes.skipped[0]
            raise DataError(f"Cannot index {name}: {reason}. {len(changes.skipped):,} of {len(data):,} left out.")
        return added

    def remove(self, ids: Iterable[int]) -> int:
        """Remove items by id; returns how many there were."""
        if not isinstance(ids, Iterable):
            raise ParameterError(f"remove takes a list of ids, not {ids!r}.", hint="Write [id].")
        wanted = [as_id(item) for item in ids]
        with self.store.writer():
            self.refresh()
            known = list(self.store.get(wanted))
            if known:
                with self.store.writing():
                    self.store.remove(known)
                self.store.read(known)
        return len(known)

    def save(self) -> None:
        """Make the next opening fast; on a server, make searches fast after many changes. Nothing is lost without it."""
        with self.store.writer():
            self.store.settle()

    def refresh(self) -> bool:
        """Read what other processes have changed; returns whether there was anything."""
        if self.store.generation == self.store.snapshot.generation:
            return False
        self.store.read()
        return True

    def replaced(self) -> bool:
        """Whether the index was rebuilt, which `refresh` cannot follow: open it again."""
        return self.store.replaced()


def blocks_folder(folder: Path) -> Path:
    """Where the blocks of an index are kept while a pool encodes them."""
    return folder.with_name(f".{folder.name}.blocks")


def encoder_model(
    encoder: str,
    data: Dataset,
    where: Path | str | Address,
    *,
    again: bool,
    device: str | None = None,
    pictures: int | None = None,
    progress: Progress | None = None,
) -> Hasher | Path:
    """The model of an index, which must be of this encoder; for a new index, or `again`, a new one (`from_encoder.learn`)."""
    from dcmh.methods import folder, from_encoder

    own = None if again else stores.model_of(where)
    if own is not None:
        place = parse(where) if is_address(where) else where
        from_encoder.check(place, folder.read_record(own), encoder)
        return own
    return from_encoder.learn(
        encoder, data, pictures=pictures or from_encoder.PICTURES, device=device, progress=progress
    )


def _check_data(model: Hasher | Path, data: Dataset) -> None:
    """Refuse data that the model cannot encode."""
    if isinstance(model, Path):
        Encoders(model).check(data)
    else:
        shared_modalities({name: model.views_[name].kind for name in model.modalities}, data)


def _report_text(report: Report | None, held_out: dict[str, Any] | None) -> str | None:
    """The report.json to keep with a model in memory."""
    if report is None and held_out is None:
        return None
    record = {} if report is None else report.to_json()
    return json.dumps(record | {calibration.HELD: held_out}, indent=1) + "\n"


def _names(images: Sequence[Any] | None, text: Sequence[str | None] | None, root: Path | None) -> list[str]:
    """Names of items: paths, relative to the data's root where they are in it; a hash for items without a path."""
    names = []
    for row in range(len(images if images is not None else text or ())):
        image = None if images is None else images[row]
        if isinstance(image, str | Path):
            full = Path(os.path.abspath(image))
            inside = root is not None and full.is_relative_to(root)
            names.append((full.relative_to(root) if root is not None and inside else full).as_posix())
        else:
            digest = hashlib.blake2b(b"" if image is None else np.asarray(image).tobytes(), digest_size=8)
            digest.update(sanitized(str(text[row] if text is not None else "")).encode())
            names.append(f"added {digest.hexdigest()}")
    return names
