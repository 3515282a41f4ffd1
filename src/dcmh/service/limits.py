"""Limits: requests per client, connections, bodies that arrive, and work that may wait for a thread."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from dcmh.service.problems import Problem, busy
from dcmh.service.settings import Settings

if TYPE_CHECKING:
    from dcmh.service.connections import LimitedProtocol

Result = TypeVar("Result")

MAX_CLIENTS = 10_000  # whose buckets are kept
BURST_SECONDS = 2.0
ACCEPTED_AT_ONCE = 32  # connections, before the loop handles those there are
RESERVED = 96  # descriptors for the index, uploads, pipes and log files
GRACE_SECONDS = 2.0  # of a body, before it may be given up for another one


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


def capacity(settings: Settings) -> int:
    """How many connections a worker holds: the setting, or what its file descriptors allow."""
    limit = settings.connections
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if descriptors != resource.RLIM_INFINITY:
            limit = min(limit, descriptors - RESERVED - ACCEPTED_AT_ONCE)
    return max(8, limit)


class Connections:
    """The connections of one worker that wait for a request, oldest first, and how many there are in all."""

    def __init__(self, settings: Settings) -> None:
        self.capacity = capacity(settings)
        self.header_seconds = settings.header_seconds
        self.count = 0
        self.waiting: dict[LimitedProtocol, None] = {}

    def make_room(self) -> bool:
        """Close a waiting connection where there are too many; False where all of them are at work.

        It is one of the client that has the most of them: first one that has never sent a request, then the oldest.
        """
        if self.count <= self.capacity:
            return True
        clients = Counter(connection.address for connection in self.waiting)
        if not clients:
            return False
        address = clients.most_common(1)[0][0]
        candidates = [connection for connection in self.waiting if connection.address == address]
        victim = next((connection for connection in candidates if connection.cycle is None), candidates[0])
        victim.drop()
        return True


class BodySlots:
    """Bodies that are being received, and how long each may take.

    Where a client, or all of them together, send too many at once, the oldest one is given up for a new one, so that slow
    uploads do not keep others out; but only after `GRACE_SECONDS`.
    """

    def __init__(self, total: int, per_client: int, seconds: float) -> None:
        self.total = total
        self.per_client = per_client
        self.seconds = seconds
        self._bodies: dict[asyncio.Timeout, tuple[str, float]] = {}  # to client and start, oldest first

    @contextlib.asynccontextmanager
    async def receive(self, client: str) -> AsyncIterator[None]:
        """Receive a body within the block. Raises a problem where it takes too long, or where there is no room."""
        self._make_room(client)
        timeout = asyncio.timeout(self.seconds)
        try:
            async with timeout:
                self._bodies[timeout] = (client, time.monotonic())
                yield
        except TimeoutError:
            if not timeout.expired():
                raise
            hint = f"The limit is {self.seconds:.0f} s, and less while many are uploading."
            raise Problem(408, "The upload took too long.", hint) from None
        finally:
            self._bodies.pop(timeout, None)

    def _make_room(self, client: str) -> None:
        clients = Counter(name for name, _ in self._bodies.values())
        if clients[client] >= self.per_client:
            largest = client
        elif len(self._bodies) >= self.total:
            largest = clients.most_common(1)[0][0]
        else:
            return
        oldest, (_, began) = next(entry for entry in self._bodies.items() if entry[1][0] == largest)
        if time.monotonic() - began < GRACE_SECONDS:
            raise busy("Too many uploads at the same time.")
        del self._bodies[oldest]
        oldest.reschedule(asyncio.get_running_loop().time())


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
