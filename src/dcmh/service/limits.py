"""How much one client may ask for, and how much work may wait."""

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

CLIENTS = 10_000  # whose buckets are kept
BURST = 2.0  # seconds' worth of requests that may come at once


class Buckets:
    """A token bucket for each client: `rate` a second, and twice as many at once."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self.size = BURST * rate
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client to (tokens, when)

    def take(self, client: str, cost: float = 1.0) -> None:
        """Take some tokens, or raise a problem that says when there will be enough."""
        if not self.rate:
            return
        now = self._clock()
        tokens, when = self._buckets.pop(client, (self.size, now))
        tokens = min(self.size, tokens + (now - when) * self.rate)
        enough = tokens >= min(cost, self.size)
        self._buckets[client] = (tokens - cost if enough else tokens, now)
        if len(self._buckets) > CLIENTS:
            self._buckets.popitem(last=False)
        if not enough:
            seconds = max(1, math.ceil((min(cost, self.size) - tokens) / self.rate))
            raise Problem(
                429,
                "Too many requests.",
                f"This server answers {self.rate:g} a second to one client. Try again in {seconds} s.",
                headers={"Retry-After": str(seconds)},
            )


class Pool:
    """Some threads for one kind of work, and a bound on what may wait for them."""

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self.name = name
        self.waiting = waiting
        self.inside = 0
        self._threads = ThreadPoolExecutor(threads, f"dcmh-{name}")

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Within the block one place is taken; where there is none, the caller is told to come back."""
        self._enter()
        try:
            yield
        finally:
            self.inside -= 1

    async def run(self, work: Callable[[], Result], *, placed: bool = False) -> Result:
        """Do some work in a thread; `placed`: within `place`."""
        if not placed:
            self._enter()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()

        def finish(result: Result | None, error: BaseException | None) -> None:
            # A caller that was cancelled has left its work in the queue: its place is free only now.
            self.inside -= not placed
            if answer.cancelled():
                return
            if error is None:
                answer.set_result(result)  # type: ignore[arg-type] # there is one
            else:
                answer.set_exception(error)

        def job() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as caught:
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(finish, result, error)

        self._threads.submit(job)
        return await answer

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _enter(self) -> None:
        if self.inside >= self.waiting:
            raise busy("The server has too much to do.")
        self.inside += 1
