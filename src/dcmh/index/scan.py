"""Scans over all rows: which kernels run, and how threads share the work."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.index import numpy_kernels

Words = NDArray[np.uint64]
log = logging.getLogger(__name__)

# Loading numba and its kernels takes about 0.3 s, in which NumPy compares 60 million words. So a process that sends one
# query to a million items never loads numba; one that sends a hundred pays for it once.
WORDS_BEFORE_NUMBA = 60_000_000
# One thread compares this many words in 0.4 ms; below that, waking another thread costs more than it saves.
WORDS_BEFORE_THREADS = 4_000_000


class _Engines:
    """Which kernels to use: NumPy until loading numba pays, then numba; always NumPy if numba is not installed."""

    def __init__(self) -> None:
        self.kernels: ModuleType | None = None
        self.missing = False
        self.compared = 0

    def choose(self, words: int) -> ModuleType:
        """The kernels for comparing this many words with queries."""
        self.compared += words
        if self.kernels is None and not self.missing and (self.compared > WORDS_BEFORE_NUMBA or "numba" in sys.modules):
            self.load()
        return self.kernels or numpy_kernels

    def load(self) -> bool:
        """Load the compiled kernels if they are not yet loaded; False if numba is not installed."""
        if self.kernels is None and not self.missing:
            try:
                from dcmh.index import kernels
            except ImportError:
                self.missing = True
                log.warning("numba is not installed, so NumPy searches, about 30 times slower: pip install numba")
            else:
                self.kernels = kernels
        return not self.missing


engines = _Engines()


def threads_of(threads: int | None) -> int:
    """The number of threads to use: the one given, or one per core that this process may use."""
    if threads:
        return threads
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()


def _forget_pool() -> None:
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)  # threads do not survive a fork


def in_threads(functions: list[Callable[[], Any]]) -> list[Any]:
    """Run functions in parallel, the first one in this thread; they must not call this function again."""
    global _pool
    if len(functions) > 1 and _pool is None:
        with _pool_lock:
            _pool = _pool or ThreadPoolExecutor(max(64, 2 * threads_of(None)), "dcmh-scan")
    others = [_pool.submit(function) for function in functions[1:]] if _pool else []
    return [functions[0](), *(other.result() for other in others)] if functions else []


def _cuts(size: int, parts: int, step: int) -> list[tuple[int, int]]:
    """Cut range(size) into at most `parts` ranges that start at multiples of `step`."""
    length = max(step, -(-size // (parts * step)) * step)
    return [(start, min(start + length, size)) for start in range(0, size, length)]


def nearest(words: Words, live: Words, queries: Words, k: int, threads: int) -> Words:
    """Sorted keys (distance << 32 | row) of the k nearest live rows, shape (queries, k); there must be k such rows."""
    rows, count = len(words), len(queries)
    engine = engines.choose(words.size * count)
    flat, width = words.reshape(-1), (0,) * words.shape[1]
    flat_queries = np.ascontiguousarray(queries).reshape(-1)
    if words.size * count < WORDS_BEFORE_THREADS:
        threads = 1

    def find(first: int, end: int, q0: int, q1: int, out: Words) -> Callable[[], None]:
        return lambda: engine.nearest(flat, width, first, end, live, flat_queries, q0, q1, out)

    if count >= 16 * threads:  # each thread takes some of the queries
        keys = np.empty((count, k), np.uint64)
        in_threads([find(0, rows, q0, q1, keys) for q0, q1 in _cuts(count, threads, 1)])
    else:  # each thread takes some of the rows
        cuts = _cuts(rows, threads, 64)
        several = np.empty((len(cuts), count, k), np.uint64)
        in_threads([find(first, end, 0, count, out) for (first, end), out in zip(cuts, several, strict=True)])
        keys = several[0] if len(cuts) == 1 else np.concatenate(list(several), axis=1)
    keys.sort(axis=1)
    return keys[:, :k]


def near(words: Words, live: Words, queries: Words, radius: int, threads: int, *, first: int = 0) -> Words:
    """Sorted keys (query << 43 | distance << 32 | row) of all live rows from `first` on within the radius."""
    rows, count = len(words), len(queries)
    engine = engines.choose((words.size - first * words.shape[1]) * count)
    flat, width = words.reshape(-1), (0,) * words.shape[1]
    flat_queries = np.ascontiguousarray(queries).reshape(-1)
    if words.size * count < WORDS_BEFORE_THREADS:
        threads = 1

    def find(start: int, end: int, q0: int, q1: int) -> Callable[[], Words]:
        return lambda: engine.near(flat, width, start, end, live, flat_queries, q0, q1, radius)

    if count >= 16 * threads:
        searches = [find(first, rows, q0, q1) for q0, q1 in _cuts(count, threads, 1)]
    else:
        searches = [find(first + start, first + end, 0, count) for start, end in _cuts(rows - first, threads, 64)]
    keys: Words = np.concatenate([np.empty(0, np.uint64), *in_threads(searches)])
    keys.sort()
    return keys
