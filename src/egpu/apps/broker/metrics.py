"""Metrics of a broker: cards and leases at each scrape, and outcomes of requests."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator, Mapping
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from egpu.adapters.pool import messages
from egpu.core.leasing.state import Lease, Outcome
from egpu_base.api.quantities import MIB_BYTES
from egpu_base.errors import DoesNotFit, ElasticGPUError, InvalidInput, Refused, TooSoon, Unavailable

BUCKETS_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_REASONS: Final[Mapping[type[ElasticGPUError], str]] = {
    DoesNotFit: "room",
    TooSoon: "overrun",
    Refused: "bound",
    InvalidInput: "invalid",
    Unavailable: "unavailable",
}
"""The reasons of a refusal; "failed" is any other."""


class Acquisitions:
    """Counts requests for leases when they end."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._seconds = Histogram(
            "elasticgpu_pool_acquire_seconds",
            "Time from a request to a lease whose executors run.",
            buckets=BUCKETS_SECONDS,
            registry=self.registry,
        )
        self._refusals = Counter(
            "elasticgpu_pool_refusals", "Requests that got no lease.", ["reason"], registry=self.registry
        )

    @contextlib.contextmanager
    def one(self) -> Generator[None]:
        """Measure one request: its time if it is granted, else the reason."""
        began = time.monotonic()
        try:
            yield
        except ElasticGPUError as error:
            self._refusals.labels(_REASONS.get(type(error), "failed")).inc()
            raise
        self._seconds.observe(time.monotonic() - began)


class Moves:
    """Counts moves of leases when they end: pauses, bytes, and reasons of those that did not happen."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._pauses = Histogram(
            "elasticgpu_pool_move_pause_seconds",
            "Time in which nothing of a moving lease ran.",
            buckets=BUCKETS_SECONDS,
            registry=registry,
        )
        self._bytes = Counter("elasticgpu_pool_moved_bytes", "Bytes of leases that moved.", registry=registry)
        self._refusals = Counter(
            "elasticgpu_pool_move_refusals", "Moves that did not happen.", ["reason"], registry=registry
        )

    @contextlib.contextmanager
    def asked(self) -> Generator[None]:
        """Count a move that is refused before it begins."""
        try:
            yield
        except ElasticGPUError as error:
            self._refusals.labels(_REASONS.get(type(error), "failed")).inc()
            raise

    def ended(self, outcome: Outcome) -> None:
        """Count a move that has ended."""
        if outcome.why:
            self._refusals.labels(outcome.kind).inc()
        else:
            self._pauses.observe(outcome.paused_ns / 1e9)
            self._bytes.inc(outcome.bytes)


class Service(Protocol):
    """The part of a `LeaseService` that metrics need."""

    def lease_ages(self) -> Iterator[tuple[Lease, float]]: ...

    def server_views(self) -> tuple[messages.ServerView, ...]: ...


class PoolMetrics(Collector):
    """Cards and leases, read at each scrape."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> list[GaugeMetricFamily]:
        leases = GaugeMetricFamily("elasticgpu_pool_leases", "Leases by state", labels=["state"])
        age = GaugeMetricFamily(
            "elasticgpu_pool_lease_age_seconds",
            "Time since this broker granted the lease, or heard of it from its server",
            labels=["lease", "holder", "state"],
        )
        ages = list(self._service.lease_ages())
        for state in ("granted", "active", "ending"):
            leases.add_metric([state], sum(one.state == state for one, _ in ages))
        for one, seconds in ages:
            age.add_metric([one.id, one.holder, one.state], seconds)
        free = GaugeMetricFamily("elasticgpu_pool_memory_free_bytes", "Memory that is not allocated", labels=["server"])
        core = GaugeMetricFamily("elasticgpu_pool_core_free_ratio", "Compute that is not allocated", labels=["server"])
        parked = GaugeMetricFamily(
            "elasticgpu_pool_memory_parked_bytes",
            "Memory of leases that is in the server's memory, not on its cards",
            labels=["server"],
        )
        host = GaugeMetricFamily(
            "elasticgpu_pool_parking_free_bytes",
            "The server's memory that parked leases may still take",
            labels=["server"],
        )
        thrashing = GaugeMetricFamily(
            "elasticgpu_pool_cards_thrashing",
            "Cards whose busy leases wait for each other most of the time",
            labels=["server"],
        )
        for server in self._service.server_views():
            parked.add_metric([server.server], server.parked_mib * MIB_BYTES)
            host.add_metric([server.server], server.parking_free_mib * MIB_BYTES)
            thrashing.add_metric([server.server], len(server.thrashing))
            free.add_metric([server.server], server.memory_free_mib * MIB_BYTES)
            core.add_metric([server.server], server.core_free / 100)
        return [leases, age, free, core, parked, host, thrashing]
