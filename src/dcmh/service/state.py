"""What the endpoints share: the open index and its reloads, thread pools, limits, metrics."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import hashlib
import itertools
import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import DCMHError, ImageError, ModelError, QueryError
from dcmh.index import scan
from dcmh.inputs.images import Framing
from dcmh.inputs.sandbox import Sandbox, SandboxedPicture
from dcmh.methods import folder as model_folder
from dcmh.search import SearchIndex
from dcmh.search.calibration import FEWEST
from dcmh.search.duplicates import Duplicates
from dcmh.search.overview import Overview
from dcmh.search.query import read_ahead
from dcmh.search.results import Query
from dcmh.service import logs, schemas, uploads
from dcmh.service.limits import BodySlots, BoundedPool, Connections, RateLimiter
from dcmh.service.metrics import Metrics
from dcmh.service.problems import busy
from dcmh.service.settings import Settings
from dcmh.service.thumbnails import ByteCache
from dcmh.util.blas import one_blas_thread
from dcmh.util.checksums import read_checked_text
from dcmh.util.formats import parse_object, readable
from dcmh.util.text import BagOfWords

Result = TypeVar("Result")

SEARCH_THREADS = 2  # more would only wait for each other: most of a search is Python
TEXTS_AT_ONCE = 16  # as many as an encoder takes well
MAX_SEARCHES = 2000  # running and waiting
THUMBNAIL_THREADS = 2
LARGE_PIXELS = 12_000_000  # larger pictures are decoded one at a time
SCAN_ITEMS = 10_000  # from here on the compiled scan is worth loading
SAVE_AFTER = 2.0  # seconds without another change
TRIM_AFTER = 0.5  # seconds without another picture
PREPARE_AFTER = 5.0  # seconds without another change
START_AFTER = 0.3  # seconds, in which the first requests are answered


_numbers = itertools.count()  # of the indexes that were opened


class Vocabulary:
    """The words of a model, by frequency and by spelling, for type-ahead."""

    def __init__(self, bag: BagOfWords | None) -> None:
        self.words: tuple[str, ...] = bag.words_ if bag else ()
        self.counts: list[int] = bag.counts_.tolist() if bag else []
        self._sorted = sorted((word, rank) for rank, word in enumerate(self.words))

    def __len__(self) -> int:
        return len(self.words)

    def starting_with(self, prefix: str, limit: int, offset: int = 0) -> schemas.Words:
        """The words that begin with a prefix, most frequent first."""
        start = prefix.strip().lower()
        if start:
            first = bisect_left(self._sorted, (start,))
            last = bisect_right(self._sorted, (f"{start}\U0010ffff",))
            ranks = sorted(rank for _, rank in self._sorted[first:last])
        else:
            ranks = list(range(len(self.words)))
        words = [schemas.Word(word=self.words[rank], count=self.counts[rank]) for rank in ranks[offset:][:limit]]
        return schemas.Words(prefix=prefix, vocabulary=len(self.words), total=len(ranks), words=words)


class OpenIndex:
    """An open index with what is derived from its model."""

    def __init__(self, index: SearchIndex, *, owned: bool) -> None:
        self.index = index
        self.owned = owned  # opened here, so to be closed here
        self.number = next(_numbers)
        encoder = index.encoders.words  # read now: later the folder may hold another model
        self.words = Vocabulary(encoder.bag if encoder else None)
        self.has_image_network = False
        self.users = 0
        self.retired = False
        self.measured = _read_measures(index.encoders.folder / model_folder.REPORT)
        self.overview: Overview | None = None  # set in the background
        self._making_overview = threading.Lock()
        self._duplicates: tuple[int, Duplicates] | None = None  # of a generation
        self._comparing = threading.Lock()

    def duplicates(self) -> Duplicates:
        """The copies in the index, found again after a change. No picture is decoded for it."""
        with self._comparing:
            generation = self.index.store.snapshot.generation
            if self._duplicates is None or self._duplicates[0] != generation:
                self._duplicates = generation, self.index.duplicates(compute=False)
            return self._duplicates[1]

    @property
    def text_encoder(self) -> str | None:
        """Name of the sentence encoder that reads queries; None where a vocabulary limits them."""
        words, fine = self.index.encoders.words, self.index.encoders.fine
        encoder = None if words is None else words.encoder or (fine.encoder if fine is not None else None)
        return None if encoder is None else schemas.printable(os.path.basename(encoder.name))  # a name, or a folder

    def make_overview(self) -> Overview:
        """The overview of the index as it is now; made once for each of its states."""
        with self._making_overview:
            if self.overview is None or self.overview.generation != self.index.store.snapshot.generation:
                self.overview = Overview(self.index)
            return self.overview

    def warm_up(self) -> None:
        """Search once, which loads the sentence encoder and reads the memory-mapped vectors."""
        with contextlib.suppress(DCMHError):
            self.index.search(text="photo", k=1)


class IndexHolder:
    """Holds the index that is served and reloads it; a replaced index is closed after its last use."""

    def __init__(self, index: SearchIndex | Path | str, metrics: Metrics, *, check_seconds: float) -> None:
        given = isinstance(index, SearchIndex)
        self.address = index.where if isinstance(index, SearchIndex) else index
        opened = index if isinstance(index, SearchIndex) else SearchIndex.open(index)
        self.writing = threading.Lock()  # one change, or one check for changes, at a time
        self._current = OpenIndex(opened, owned=not given)
        self._lock = threading.Lock()
        self._metrics = metrics
        self._check_seconds = check_seconds
        self._checked = time.monotonic()

    @contextlib.contextmanager
    def use(self) -> Iterator[OpenIndex]:
        """The current index, which stays open within the block."""
        with self._lock:
            current = self._current
            current.users += 1
        try:
            yield current
        finally:
            with self._lock:
                current.users -= 1
            self._close_if_unused(current)

    @property
    def is_due(self) -> bool:
        """Whether it is time to check for changes."""
        return time.monotonic() - self._checked > self._check_seconds

    def reload(self, *, wait: bool = False) -> bool:
        """Load changes that other processes made; returns whether there were any.

        Where the folder cannot be read, as during a rebuild, the open index stays. Where this process is changing the
        index, that change includes the others; with `wait` the check follows it nevertheless.
        """
        self._checked = time.monotonic()
        if not self.writing.acquire(blocking=wait):
            return False
        try:
            with self.use() as current:
                if not current.index.replaced():
                    changed = current.index.refresh()
                else:
                    self._replace(SearchIndex.open(self.address))
                    changed = True
        except (DCMHError, OSError) as error:
            self._metrics.reload_failures.inc()
            logs.events.warning("the index has changed but cannot be opened, so the old one is served: %s", error)
            return False
        finally:
            self.writing.release()
        self._metrics.reloads.inc(changed)
        return changed

    def close(self) -> None:
        """Close the index, after its last use."""
        with self._lock:
            current = self._current
            current.retired = True
        self._close_if_unused(current)

    def _replace(self, index: SearchIndex) -> None:
        new = OpenIndex(index, owned=True)
        new.warm_up()
        with self._lock:
            old, self._current = self._current, new
            old.retired = True
        logs.events.info("reopened the index: %d items, model %s", len(index), index.fingerprint[:12])

    def _close_if_unused(self, opened: OpenIndex) -> None:
        with self._lock:
            unused = opened.retired and opened.users == 0 and opened.owned
        if unused:
            opened.index.close()


class WaitingTexts:
    """The texts of searches that wait for a thread. The first one to get it encodes them all: one takes nearly as long."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}  # in the order of their searches
        self._reading = threading.Lock()

    @contextlib.contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Within the block a search for a text waits."""
        self._texts[text] = None
        try:
            yield
        finally:  # also if there was no room for it
            self._texts.pop(text, None)

    def read(self, index: SearchIndex, text: str) -> None:
        """Encode a text with those that wait, unless another search has done it, or is about to have done it."""
        with self._reading:
            if text not in self._texts:
                return
            texts = list(self._texts)[:TEXTS_AT_ONCE]
            for one in (text, *texts):
                self._texts.pop(one, None)
            with contextlib.suppress(DCMHError):  # whoever searches for it is told
                read_ahead(index.encoders, list(dict.fromkeys([text, *texts])))


class Service:
    """The state of one application."""

    def __init__(self, index: SearchIndex | Path | str, settings: Settings) -> None:
        self.settings = settings
        self.token = settings.token_digest()
        self.metrics = Metrics()
        self.holder = IndexHolder(index, self.metrics, check_seconds=settings.check_seconds)
        self.rate_limiter = RateLimiter(settings.rate)
        self.thumbnails = ByteCache(settings.thumbnail_bytes)
        self.answers = ByteCache(settings.answer_bytes)
        self.searches = BoundedPool("search", SEARCH_THREADS, MAX_SEARCHES)
        self.pictures = BoundedPool("pictures", settings.picture_threads, settings.waiting)
        self.previews = BoundedPool("thumbnails", THUMBNAIL_THREADS, MAX_SEARCHES)
        limits = (settings.decode_seconds, settings.decode_megabytes)
        self.sandbox = Sandbox(settings.picture_threads, *limits)  # for pictures that clients send
        self.preview_sandbox = Sandbox(THUMBNAIL_THREADS, *limits)
        self.bodies = BodySlots(settings.waiting, settings.uploads_per_client, settings.upload_seconds)
        self.connections = Connections(settings)
        self.active = 0
        self._texts = WaitingTexts()
        self._large = threading.Lock()
        self._loading = threading.Lock()
        self._reloading = False
        self._saving: asyncio.TimerHandle | None = None
        self._preparing: asyncio.TimerHandle | None = None
        self._background = ThreadPoolExecutor(1, "dcmh-background")
        self._trimming: asyncio.TimerHandle | None = None
        self._preloaded = contextlib.ExitStack()

    async def with_index(self, work: Callable[[OpenIndex], Result], pool: BoundedPool | None = None) -> Result:
        """Run work with the index, after a check for changes where one is due; by default quick work in a search thread."""

        def job() -> Result:
            with self.holder.use() as opened:
                return work(opened)

        await self._reload_if_due()
        return await (pool or self.searches).run(job)

    async def kept_answer(self, query: bytes) -> bytes | None:
        """The answer to the same query before, if the index has not changed since."""
        await self._reload_if_due()
        with self.holder.use() as opened:
            return self.answers.get(self._answer_key(opened, query))

    async def answer(self, query: bytes, text: str | None, work: Callable[[OpenIndex], bytes]) -> bytes:
        """Run a search in a search thread, for a text or for something else, and keep its result for `kept_answer`."""

        def job(opened: OpenIndex) -> bytes:
            if text is not None:
                self._texts.read(opened.index, text)
            key = self._answer_key(opened, query)  # before the search: it may see a newer index, not an older one
            answer = work(opened)
            self.answers.put(key, answer)
            return answer

        with contextlib.nullcontext() if text is None else self._texts.waiting(text):
            return await self.with_index(job)

    @staticmethod
    def _answer_key(opened: OpenIndex, query: bytes) -> str:
        digest = hashlib.blake2b(
            query, digest_size=16
        ).hexdigest()  # a query may be long, and keys do not count as kept bytes
        return f"{opened.number} {opened.index.store.snapshot.generation} {digest}"

    async def with_picture(self, data: bytes, work: Callable[[OpenIndex, Query, str], Result]) -> Result:
        """Encode a picture and run work with its code. The caller holds a slot of `pictures`."""

        def job() -> Result:
            with self.holder.use() as opened:
                return work(opened, *self.encode(opened, data))

        await self._reload_if_due()
        try:
            result = await self.pictures.run(job, has_slot=True)
        finally:
            self._trimming = self._schedule(self._trimming, TRIM_AFTER, _trim_memory)
        self.metrics.pictures.inc()
        return result

    async def reload(self, *, wait: bool = False) -> bool:
        """Load changes of the index; returns whether there were any."""
        self._reloading = True
        try:
            changed = await asyncio.to_thread(self.holder.reload, wait=wait)
        finally:
            self._reloading = False
        if changed:
            self.prepare_soon(PREPARE_AFTER)
        return changed

    async def overview(self) -> Overview:
        """The overview of the index; waits where it is still being made."""

        def job() -> Overview:
            with self.holder.use() as opened:
                return opened.overview or opened.make_overview()

        await self._reload_if_due()
        return await asyncio.to_thread(job)

    async def _reload_if_due(self) -> None:
        if self.holder.is_due and not self._reloading:
            await self.reload()

    # -- pictures ---------------------------------------------------------------------------------------------------

    def encode(self, opened: OpenIndex, data: bytes) -> tuple[Query, str]:
        """The query for a picture, and its modality."""
        with self.sandbox.open(data) as picture:
            _, count = uploads.inspect_image(picture, self.settings)
            if opened.index.encoders.picture is None:
                raise QueryError("The model of this index takes no pictures.", hint="Search with words.")
            pixels = self.decode(picture, count, opened.index.encoders.framing)
        self.load_image_network(opened)
        query, request = opened.index.ask(image=pixels)
        return query, request.modality

    def decode(self, picture: SandboxedPicture, count: int, framing: Framing) -> NDArray[np.uint8]:
        """The pixels of a client's picture as the network takes them. Large ones, by their count, one at a time."""
        with self._large if count > LARGE_PIXELS else contextlib.nullcontext():
            try:
                return picture.decode(framing)
            except ImageError as error:
                raise uploads.damaged(error) from error

    def preload(self) -> None:
        """Load before the first request what it would otherwise wait for: the sentence encoder and the compiled scan."""
        self._preloaded.enter_context(one_blas_thread())  # searches run side by side: more threads would wait
        if self.token is not None:
            self._sweep()
        with self.holder.use() as opened:
            if len(opened.index) >= SCAN_ITEMS:
                scan.engines.load()
            opened.warm_up()
        self._preloaded.callback(gc.unfreeze)

    def prepare_soon(self, seconds: float) -> None:
        """Prepare in the background, after some seconds without another change."""
        self._preparing = self._schedule(self._preparing, seconds, self._prepare, self._background)

    def _prepare(self) -> None:
        """Make the overview for the page, load the image network with the setting, so that the first picture need not wait for
        it, and let the garbage collector skip all that."""
        try:
            with self.holder.use() as opened:
                opened.make_overview()
                if self.settings.preload:
                    self.load_image_network(opened)
                    self.sandbox.start()
            _keep_what_is_loaded()
        except Exception:  # each request that needs it tries again, and says what is wrong
            logs.events.exception("preparing the index in the background failed")

    def _sweep(self) -> None:
        try:
            with self.holder.writing, self.holder.use() as opened:
                uploads.sweep(opened.index)
        except (DCMHError, OSError) as error:  # another process writes, or the disk is full: next time
            logs.events.warning("the uploads were not swept: %s", error)

    def load_image_network(self, opened: OpenIndex) -> None:
        """Load the image network once. It takes one thread per picture, so that health checks keep answering."""
        encoders = opened.index.encoders
        if encoders.picture is None or opened.has_image_network:
            return
        with self._loading:
            if model_folder.read_record(encoders.folder)["fingerprint"] != opened.index.fingerprint:
                raise busy("The index is being rebuilt with another model.", 5)
            import torch

            torch.set_num_threads(1)
            encoders.pictures(encoders.picture).encode(np.zeros((8, 8, 3), np.uint8))  # loads everything
            opened.has_image_network = True

    # -- saving and closing -----------------------------------------------------------------------------------------

    def save_soon(self) -> None:
        """Save the codes after a moment without changes, so that the index opens quickly next time."""
        self._saving = self._schedule(self._saving, SAVE_AFTER, self.save)

    def save(self) -> None:
        """Save the codes of the index."""
        with contextlib.suppress(DCMHError, OSError), self.holder.writing, self.holder.use() as opened:
            opened.index.save()

    def close(self) -> None:
        """Finish running work, save, and close the index."""
        for planned in (self._trimming, self._preparing):
            if planned is not None:
                planned.cancel()
        self._background.shutdown(wait=True, cancel_futures=True)
        if self._saving is not None:
            self._saving.cancel()
            self.save()
        for pool in (self.searches, self.pictures, self.previews):
            pool.close()
        for sandbox in (self.sandbox, self.preview_sandbox):
            sandbox.close()
        self._preloaded.close()
        self.holder.close()

    def _schedule(
        self,
        planned: asyncio.TimerHandle | None,
        seconds: float,
        work: Callable[[], None],
        threads: ThreadPoolExecutor | None = None,
    ) -> asyncio.TimerHandle:
        """Run work in a thread after some seconds, in place of what was planned."""
        if planned is not None:
            planned.cancel()
        loop = asyncio.get_running_loop()
        return loop.call_later(seconds, lambda: loop.run_in_executor(threads, work))


def _read_measures(path: Path) -> list[schemas.Measured]:
    """For each direction of the model's report: precision and recall within each radius; None for too few pairs."""
    if not path.is_file():
        return []
    try:
        with readable(path, ModelError, hint="Copy the model again."):
            report = parse_object(read_checked_text(path))
            return [_direction(name, record) for name, record in report.items() if "_to_" in name]
    except DCMHError as error:
        logs.events.warning("no measurements are shown: %s", error)
        return []


def _direction(name: str, record: dict[str, Any]) -> schemas.Measured:
    query_modality, _, hit_modality = name.partition("_to_")
    total = sum(row["relevant"] for row in record["by_distance"])
    points = relevant = 0
    by_radius = []
    for row in record["by_distance"]:
        points += row["points"]
        relevant += row["relevant"]
        precision = round(relevant / points, 4) if points >= FEWEST else None
        recall = round(relevant / total, 6) if total else None
        by_radius.append(schemas.Radius(radius=row["distance"], precision=precision, recall=recall))
    return schemas.Measured(
        query_modality=query_modality,
        hit_modality=hit_modality,
        queries=record["queries"],
        database=record["database"],
        chance=record["chance"],
        map=record["map"]["stable"],
        by_radius=by_radius,
    )


def _keep_what_is_loaded() -> None:
    """Let the garbage collector skip what is loaded by now: going through it again and again takes a tenth of a search."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _trim_memory() -> None:
    """Return freed memory to the system: glibc keeps what large pictures took, in every thread that decoded one."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's function; None with another C library."""
    try:
        return ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):
        return None
