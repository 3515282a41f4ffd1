"""Prometheus metrics. Several workers add theirs up through files in $PROMETHEUS_MULTIPROC_DIR."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as MEDIA_TYPE
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from dcmh.service.settings import SHARED_METRICS

__all__ = ["MEDIA_TYPE", "Metrics"]

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
METHODS = {"GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"}  # others count as one


class Metrics(Collector):
    """The counters of one application, in a registry of their own."""

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        self._gauges: Mapping[str, tuple[str, float]] = {}
        labels = ["route", "method", "status"]
        self._requests = Counter("dcmh_requests", "Requests by route, method and status.", labels, registry=own)
        self._seconds = Histogram(
            "dcmh_request_seconds", "Response time by route.", ["route"], buckets=BUCKETS, registry=own
        )
        self.pictures = Counter("dcmh_pictures", "Pictures encoded for clients.", registry=own)
        self.writes = Counter("dcmh_writes", "Items added or removed by clients.", registry=own)
        self.reloads = Counter("dcmh_reloads", "Index changes that were loaded.", registry=own)
        self.reload_failures = Counter("dcmh_reload_failures", "Index changes that failed to load.", registry=own)

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(route, method if method in METHODS else "other", status).inc()
        self._seconds.labels(route).observe(seconds)

    def collect(self) -> Iterable[Metric]:
        """The counters of all workers, without the time at which each was created, and this worker's gauges."""
        registry = self._registry
        if SHARED_METRICS in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        for metric in registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
        for name, (description, value) in self._gauges.items():
            yield GaugeMetricFamily(name, description, value=value)

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> bytes:
        """The counters of all workers, then the gauges of this one: name to (description, value)."""
        self._gauges = gauges
        return generate_latest(self)
