"""What the endpoints of one application share: the index, threads, limits, counters."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from threadpoolctl import threadpool_limits

from dcmh.errors import DCMHError, ImageError, QueryError
from dcmh.index import scan
from dcmh.methods import folder as model_folder
from dcmh.search import SearchIndex
from dcmh.search.results import Query
from dcmh.service import uploads
from dcmh.service.limits import Buckets, Pool
from dcmh.service.memory import give_back
from dcmh.service.metrics import Metrics
from dcmh.service.problems import Problem, busy
from dcmh.service.reload import Opened, Served
from dcmh.service.settings import Settings
from dcmh.service.thumbnails import Thumbnails

Result = TypeVar("Result")

SEARCH_THREADS = 2  # more would only wait for each other: most of a search is Python
SEARCHES_WAITING = 2000
THUMBNAIL_THREADS = 2
LARGE = 12_000_000  # pixels; of pictures larger than this one is decoded at a time
MANY = 10_000  # items; below, NumPy scans as fast as anybody asks
SAVE_AFTER = 2.0  # seconds without another change
TRIM_AFTER = 0.5  # seconds without another picture


class Service:
    """Everything behind the endpoints."""

    def __init__(self, index: SearchIndex | Path | str, settings: Settings) -> None:
        self.settings = settings
        self.token = settings.token_digest()
        self.served = Served(index, every=settings.check_seconds)
        self.metrics = Metrics(settings.shared)
        self.buckets = Buckets(settings.rate)
        self.thumbnails = Thumbnails(settings.thumbnail_bytes)
        self.searches = Pool("search", SEARCH_THREADS, SEARCHES_WAITING)
        self.pictures = Pool("pictures", settings.picture_threads, settings.waiting)
        self.previews = Pool("thumbnails", THUMBNAIL_THREADS, SEARCHES_WAITING)
        self.active = 0
        self._large = threading.Lock()
        self._loading = threading.Lock()
        self._checking = False
        self._saving: asyncio.TimerHandle | None = None
        self._trimming: asyncio.TimerHandle | None = None
        self._blas: threadpool_limits | None = None

    async def look(self, work: Callable[[Opened], Result]) -> Result:
        """Do some quick work with the index, as it is now or was a moment ago."""
        if self.served.due and not self._checking:
            await self.check()
        return await self.searches.run(lambda: self._with_index(work))

    def _with_index(self, work: Callable[[Opened], Result]) -> Result:
        with self.served.use() as opened:
            return work(opened)

    async def check(self, *, wait: bool = False) -> bool:
        """Take in what has changed in the index folder."""
        self._checking = True
        try:
            changed = await asyncio.to_thread(self.served.check, wait=wait)
        finally:
            self._checking = False
        if changed:
            self.metrics.add("dcmh_reloads_total")
        return changed

    # -- pictures ---------------------------------------------------------------------------------------------------

    async def with_picture(self, data: bytes, work: Callable[[Opened, Query, str], Result]) -> Result:
        """Encode a picture, and do something with its code. Needs a place in `pictures`."""

        def job() -> Result:
            with self.served.use() as opened:
                return work(opened, *self.encode(opened, data))

        if self.served.due and not self._checking:
            await self.check()
        try:
            found = await self.pictures.run(job, placed=True)
        finally:
            self._trimming = self._later(self._trimming, TRIM_AFTER, give_back)
        self.metrics.add("dcmh_pictures_total")
        return found

    def encode(self, opened: Opened, data: bytes) -> tuple[Query, str]:
        """The query that a picture is, and its modality."""
        _, pixels = uploads.look_at(data, self.settings)
        if opened.index.encoders.picture is None:
            raise QueryError("The model of this index takes no pictures. Ask with words.")
        self.load_pictures(opened)
        with self._large if pixels > LARGE else contextlib.nullcontext():
            try:
                query, request = opened.index.ask(image=data)
                return query, request.modality
            except QueryError as error:
                if isinstance(error.__cause__, ImageError):
                    raise damaged(error.__cause__) from error
                raise

    def preload(self) -> None:
        """Load what takes a while and is needed for sure: nobody asks yet who would have to wait for it.

        That is the sentence encoder and, of many items, the compiled scan; the image network only where it was asked for.
        """
        self._blas = threadpool_limits(1, "blas")  # searches run side by side: more threads would wait for each other
        with self.served.use() as opened:
            if len(opened.index) >= MANY:
                scan.engines.load()
            opened.warm_up()
            if self.settings.preload:
                self.load_pictures(opened)

    def load_pictures(self, opened: Opened) -> None:
        """Load the image network, once. It takes one thread for each picture: health must keep answering."""
        encoders = opened.index.encoders
        if encoders.picture is None or opened.loaded:
            return
        with self._loading:
            if model_folder.read_record(encoders.folder)["fingerprint"] != opened.index.fingerprint:
                raise busy("The index is being rebuilt with another model.", 5)
            import torch

            torch.set_num_threads(1)
            encoders.pictures(encoders.picture)
            opened.loaded = True

    # -- the end ----------------------------------------------------------------------------------------------------

    def save_soon(self) -> None:
        """Save the codes when there has been no change for a moment, so that the next opening is quick."""
        self._saving = self._later(self._saving, SAVE_AFTER, self.save)

    def _later(
        self, planned: asyncio.TimerHandle | None, seconds: float, work: Callable[[], None]
    ) -> asyncio.TimerHandle:
        """Do something in a thread after a while, instead of what was planned."""
        if planned is not None:
            planned.cancel()
        loop = asyncio.get_running_loop()
        return loop.call_later(seconds, lambda: loop.run_in_executor(None, work))

    def save(self) -> None:
        with contextlib.suppress(DCMHError, OSError), self.served.writing, self.served.use() as opened:
            opened.index.save()

    def close(self) -> None:
        """Finish what has begun, and close."""
        if self._trimming is not None:
            self._trimming.cancel()
        if self._saving is not None:
            self._saving.cancel()
            self.save()
        for pool in (self.searches, self.pictures, self.previews):
            pool.close()
        if self._blas is not None:
            self._blas.restore_original_limits()
        self.metrics.share()
        self.served.close()

    def too_large(self) -> Problem:
        return uploads.too_large(self.settings)


def damaged(error: ImageError) -> Problem:
    return Problem(422, f"The picture cannot be read: {error}.", "Send another picture.", kind="damaged-picture")
