"""Retries with exponential backoff, for servers that are briefly unreachable."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
QUERY_PATIENCE = 10.0  # seconds; a user is waiting
LOAD_PATIENCE = 180.0  # seconds; Milvus takes a minute to come back after a crash


def retry(work: Callable[[int], T], seconds: float, is_transient: Callable[[Exception], bool]) -> T:
    """Call `work(attempt)` until it returns, for up to `seconds`. Errors that are not transient are raised at once."""
    end, wait, attempt = time.monotonic() + seconds, FIRST_WAIT, 0
    while True:
        try:
            return work(attempt)
        except Exception as error:
            if not is_transient(error) or time.monotonic() + wait > end:
                raise
        time.sleep(wait * random.uniform(0.7, 1.0))  # so that many clients do not come back at once
        wait, attempt = min(2 * wait, LONGEST_WAIT), attempt + 1
