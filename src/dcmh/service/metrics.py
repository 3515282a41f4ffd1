"""Counters in the text format of Prometheus; several workers add theirs up through files."""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
EVERY = 1.0  # seconds between writes of a worker's counters
METHODS = {"GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"}  # others count as one

_SAID = {
    "dcmh_requests_total": ("counter", "Requests by route, method and status."),
    "dcmh_request_seconds": ("histogram", "Time to answer, by route."),
    "dcmh_pictures_total": ("counter", "Pictures encoded for callers."),
    "dcmh_writes_total": ("counter", "Items added or removed by callers."),
    "dcmh_reloads_total": ("counter", "Changes of the index that were taken in."),
    "dcmh_reload_failures_total": ("counter", "Changes of the index that could not be taken in."),
}


class Metrics:
    """The counters of one worker. `shared` is the folder of all of them, or None where there is one worker."""

    def __init__(self, shared: str | None = None) -> None:
        self._counts: dict[str, float] = defaultdict(float)
        self._requests: dict[tuple[str, str, int], int] = defaultdict(int)
        self._times: dict[str, list[float]] = {}  # route to the count of each bucket, of all, and the sum
        self._shared = None if shared is None else Path(shared)
        self._written = 0.0

    def add(self, name: str, value: float = 1.0) -> None:
        self._counts[name] += value

    def set(self, name: str, value: float) -> None:
        """For what is counted elsewhere."""
        self._counts[name] = value

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        """One request."""
        self._requests[route, method if method in METHODS else "other", status] += 1
        times = self._times.get(route)
        if times is None:
            times = self._times[route] = [0.0] * (len(BUCKETS) + 2)
        times[bisect_left(BUCKETS, seconds)] += 1
        times[-1] += seconds
        if self._shared is not None and time.monotonic() - self._written > EVERY:
            self.share()

    def share(self) -> None:
        """Write this worker's counters where the others find them; a worker that ends leaves them there."""
        if self._shared is not None:
            self._written = time.monotonic()
            draft = self._shared / f"{os.getpid()}.part"
            draft.write_text(json.dumps(self._series()), encoding="utf-8")
            os.replace(draft, draft.with_suffix(".json"))

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """All workers' counters, and what is so just now: name to (what it is, value)."""
        values = self._total()
        lines = []
        for name, (kind, said) in _SAID.items():
            lines += [f"# HELP {name} {said}", f"# TYPE {name} {kind}"]
            lines += [f"{series} {_number(value)}" for series, value in values.items() if series.startswith(name)]
        for name, (said, value) in gauges.items():
            lines += [f"# HELP {name} {said}", f"# TYPE {name} gauge", f"{name} {_number(value)}"]
        return "\n".join(lines) + "\n"

    def _series(self) -> dict[str, float]:
        plain = [name for name, (kind, _) in _SAID.items() if kind == "counter" and name != "dcmh_requests_total"]
        found: dict[str, float] = {name: self._counts[name] for name in plain}
        for (route, method, status), count in self._requests.items():
            found[f'dcmh_requests_total{{route="{route}",method="{method}",status="{status}"}}'] = count
        for route, times in self._times.items():
            total = 0.0
            for bucket, number in zip((*BUCKETS, "+Inf"), times[:-1], strict=True):
                total += number
                found[f'dcmh_request_seconds_bucket{{route="{route}",le="{bucket}"}}'] = total
            found[f'dcmh_request_seconds_sum{{route="{route}"}}'] = times[-1]
            found[f'dcmh_request_seconds_count{{route="{route}"}}'] = total
        return found

    def _total(self) -> dict[str, float]:
        if self._shared is None:
            return self._series()
        self.share()
        total: dict[str, float] = defaultdict(float)
        for file in sorted(self._shared.glob("*.json")):
            for series, value in json.loads(file.read_text(encoding="utf-8")).items():
                total[series] += value
        return total


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")
