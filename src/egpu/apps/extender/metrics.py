"""Metrics of one extender, in its own registry, so that two extenders can live in one process (a test, for example)."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from egpu.apps.extender.view import View

BUCKETS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """Histograms of the three verbs, counters of outcomes, and the ledger's totals."""

    def __init__(self, view: View) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(LedgerCollector(view))
        self.filter_seconds = self._histogram("filter", "Duration of one filter call")
        self.prioritize_seconds = self._histogram("prioritize", "Duration of one prioritize call")
        self.bind_seconds = self._histogram("bind", "Duration of one bind call, including the API server's answer")
        self.filters = Counter(
            "elasticgpu_extender_filters_total",
            "Filter calls by outcome: fits, or refused by every node in the request",
            ["outcome"],
            registry=self.registry,
        )
        self.binds = Counter(
            "elasticgpu_extender_binds_total", "Bind calls by outcome", ["outcome"], registry=self.registry
        )
        self.claims_bound = Counter(
            "elasticgpu_extender_claims_bound_total", "Immediate claims that got their cards", registry=self.registry
        )
        self.device_claims_allocated = Counter(
            "elasticgpu_extender_resource_claims_allocated_total",
            "ResourceClaims of Kubernetes' own that got their cards",
            registry=self.registry,
        )
        self.pods_woken = Counter(
            "elasticgpu_extender_pods_woken_total",
            "Waiting pods that kube-scheduler was asked to schedule again because there is room",
            registry=self.registry,
        )
        self.pods_evicted = Counter(
            "elasticgpu_extender_pods_evicted_total", "Pods evicted for more important ones", registry=self.registry
        )

    def _histogram(self, verb: str, what: str) -> Histogram:
        name = f"elasticgpu_extender_{verb}_duration_seconds"
        return Histogram(name, what, buckets=BUCKETS_SECONDS, registry=self.registry)


class LedgerCollector(Collector):
    """The ledger's totals, read at each scrape."""

    def __init__(self, view: View) -> None:
        self._view = view

    def collect(self) -> Iterable[GaugeMetricFamily]:
        ledger = self._view.cache.ledger
        cards = sum(len(ledger.cards(node)) for node in ledger.nodes())
        for name, what, value in (
            ("cards", "Cards known to the scheduler", cards),
            ("holders", "Pods, claims, ResourceClaims and retained slices that hold cards", len(ledger.holders())),
            ("overcommitted_cards", "Cards with more allocated than they have", len(ledger.overcommits())),
        ):
            family = GaugeMetricFamily(f"elasticgpu_extender_{name}", what)
            family.add_metric([], value)
            yield family
