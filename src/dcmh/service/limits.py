"""Limits: requests per client, and work that may wait for a thread."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dcmh.service.problems import Problem, busy

Result = TypeVar("Result")

MAX_CLIENTS = 10_000  # whose buckets are kept
BURST_SECONDS = 2.0


class RateLimiter:
    """A token bucket per client: `rate` requests per second, and twice as many at once. 0 is no limit."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self.size = BURST_SECONDS * rate
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client to (tokens, time)

    def take(self, client: str, cost: float = 1.0) -> None:
        """Take tokens, or raise a problem that says when there will be enough."""
        if not self.rate:
            return
        now = self._clock()
        tokens, last = self._buckets.pop(client, (self.size, now))
        tokens = min(self.size, tokens + (now - last) * self.rate)
        allowed = tokens >= min(cost, self.size)
        self._buckets[client] = (tokens - cost if allowed else tokens, now)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        if not allowed:
            seconds = max(1, math.ceil((min(cost, self.size) - tokens) / self.rate))
            raise Problem(
                429,
                "Too many requests.",
                f"The limit is {self.rate:g} requests per second and client. Try again in {seconds} s.",
                headers={"Retry-After": str(seconds)},
            )


class BoundedPool:
    """Threads for one kind of work. Beyond `capacity` running and waiting jobs, clients are told to come back."""

    def __init__(self, name: str, threads: int, capacity: int) -> None:
        self.name = name
        self.capacity = capacity
        self.pending = 0
        self._threads = ThreadPoolExecutor(threads, f"dcmh-{name}")

    @contextlib.contextmanager
    def slot(self) -> Iterator[None]:
        """Hold one slot of the capacity within the block; raises a problem where none is free."""
        self._acquire()
        try:
            yield
        finally:
            self.pending -= 1

    async def run(self, work: Callable[[], Result], *, has_slot: bool = False) -> Result:
        """Run `work` in a thread. `has_slot`: the caller is within `slot`."""
        if not has_slot:
            self._acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def finish(result: Result | None, error: BaseException | None) -> None:
            # A cancelled caller has left its job in the queue: the slot is free only now.
            self.pending -= not has_slot
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)  # type: ignore[arg-type] # there is one
            else:
                future.set_exception(error)

        def job() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as caught:
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(finish, result, error)

        self._threads.submit(job)
        return await future

    def close(self) -> None:
        """Finish the running jobs and drop the waiting ones."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _acquire(self) -> None:
        if self.pending >= self.capacity:
            raise busy("The server is overloaded.")
        self.pending += 1
