"""Metrics of an agent: limits and use of each container, the node's cards, and the duration of the agent's calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from egpu.adapters.cards.hardware import CardHardware
from egpu.adapters.executors.confinement import LAYERS
from egpu.adapters.executors.process import Executor
from egpu.adapters.slices.overruns import Finding
from egpu.adapters.slices.rooms import Totals
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.limits.memory import Key
from egpu.apps.agent.serving.pod_service import ServedContainer
from egpu.apps.agent.slice_metrics import SliceMetrics
from egpu.apps.agent.slots.directories import Slots
from egpu_base.api.quantities import MIB_BYTES
from egpu_base.errors import ElasticGPUError
from egpu_base.runtime.beats import rest
from egpu_base.system import proc

log = structlog.get_logger(__name__)

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_HARDWARE: Final[Mapping[str, tuple[str, str]]] = {
    "temperature_celsius": ("temperature_celsius", "Temperature of the chip, by the driver."),
    "power_watts": ("power_watts", "Power that the card draws, by the driver."),
    "busy_ratio": ("busy_ratio", "Part of the time in which any kernel ran, by the driver."),
    "memory_used_bytes": ("memory_driver_bytes", "Memory in use, including the driver's own, by the driver."),
}
"""The gauges by field of CardHardware."""
_ROOMS: Final[Mapping[str, str]] = {
    "parks": "Slices that were asked to leave the card for another one.",
    "contended_seconds": "Time for which busy slices waited for each other's room. A card where it grows thrashes.",
}
SAMPLE_SECONDS: Final = 5.0
_CARD_LABELS = ("node", "node_ip", "device_index", "device_uuid", "model")


class AgentMetrics(Collector):
    """Collects metrics at each scrape."""

    def __init__(
        self,
        *,
        node: str,
        node_ip: str,
        slots: Slots,
        inventory: Inventory,
        demand: Callable[[], Mapping[str, float]] = dict,
        findings: Callable[[], Mapping[Key, Finding]] = dict,
        served: Callable[[], list[Executor[ServedContainer]]] = list,
        hardware: Callable[[], Mapping[str, CardHardware]] | None = None,
        rooms: Callable[[], Totals] = Totals,
        delaying_seconds: Callable[[], Mapping[tuple[Hashable, str], float]] = dict,
    ) -> None:
        """`demand` returns how much of a card's time its containers use together, by UUID. `findings` returns the
        driver's figures for containers' memory, `served` the executors for other nodes' containers, `hardware` the
        driver's figures for the cards (None: another exporter has them), `rooms` the arbiter's totals,
        `delaying_seconds` as in SliceMetrics."""
        self._rooms = rooms
        self._read_hardware = hardware
        self._hardware: Mapping[str, CardHardware] = {}
        self._demand = demand
        self._node = node
        self._node_ip = node_ip
        self._inventory = inventory
        self._slices = SliceMetrics(
            slots,
            node=node,
            node_ip=node_ip,
            served=served,
            findings=findings,
            cards=lambda: inventory.cards,
            parked_seconds=lambda: rooms().parked_seconds,
            overstayed_seconds=lambda: rooms().overstayed_seconds,
            delaying_seconds=delaying_seconds,
        )
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(self)
        self.allocate_seconds = Histogram(
            "elasticgpu_agent_allocate_seconds", "Duration of Allocate.", buckets=_SECONDS, registry=self.registry
        )
        self.prepare_seconds = Histogram(
            "elasticgpu_agent_prepare_seconds",
            "Time from PreStartContainer to a prepared slot.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.executors_grouped = Gauge(
            "elasticgpu_agent_executors_grouped",
            "1 if each executor has a control group for memory, processors and processes; 0 if it cannot have one.",
            registry=self.registry,
        )
        self.executors_lack = Gauge(
            "elasticgpu_agent_executors_lack",
            "1 for each of cgroup, user, view and landlock that does not confine executors on this node.",
            ["what"],
            registry=self.registry,
        )
        self.refusals = Counter(
            "elasticgpu_agent_refusals", "Containers not allowed to start.", ["reason"], registry=self.registry
        )
        self.environment_preloads = Counter(
            "elasticgpu_agent_environment_preloads",
            "Containers started with LD_PRELOAD, for images that ignore /etc/ld.so.preload: a program that clears its "
            "environment escapes the limits.",
            registry=self.registry,
        )

    def confined(self, executors: str, lacks: Collection[str]) -> None:
        """Publish the confinement of executors on this node."""
        self.executors_grouped.set("cgroup" not in lacks)
        for what in LAYERS:
            self.executors_lack.labels(what).set(what in lacks)
        log.info("confinement of executors", by=executors)

    async def run(self) -> None:
        """Sample use forever, at even times, so that all scrapers see the same values."""
        while True:
            self._slices.sample()
            if self._read_hardware is not None:
                try:
                    self._hardware = await asyncio.to_thread(self._read_hardware)
                except ElasticGPUError:  # the inventory reports it; unknown values are left out
                    self._hardware = {}
            await rest(SAMPLE_SECONDS)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._slices.collect()
        yield from self._cards()
        odd = CounterMetricFamily(
            "elasticgpu_agent_odd_processes",
            "Looks at processes whose entries in /proc could not be understood; the log names the first of each kind.",
            labels=["node"],
        )
        odd.add_metric([self._node], proc.odd.total())
        yield odd
        if self._read_hardware is not None:
            yield from self._of_hardware()

    def _cards(self) -> Iterator[Metric]:
        memory = _gauge("elasticgpu_card_memory_bytes", "Memory of the card.", _CARD_LABELS)
        healthy = _gauge("elasticgpu_card_healthy", "1 while containers may have the card.", _CARD_LABELS)
        demand = _gauge(
            "elasticgpu_card_demand_ratio", "Use of the card's time by all its containers together.", _CARD_LABELS
        )
        parks, contended = (
            CounterMetricFamily(f"elasticgpu_card_{name}", text, labels=_CARD_LABELS) for name, text in _ROOMS.items()
        )
        used, rooms = self._demand(), self._rooms()
        for card in self._inventory.cards.values():
            labels = [self._node, self._node_ip, str(card.index), card.uuid, card.model]
            memory.add_metric(labels, card.memory_mib * MIB_BYTES)
            healthy.add_metric(labels, int(card.healthy))
            demand.add_metric(labels, used.get(card.uuid, 0.0))
            parks.add_metric(labels, rooms.parks[card.uuid])
            contended.add_metric(labels, rooms.contended_seconds.get(card.uuid, 0.0))
        yield from (memory, healthy, demand, parks, contended)

    def _of_hardware(self) -> Iterator[Metric]:
        for field, (name, text) in _HARDWARE.items():
            family = _gauge(f"elasticgpu_card_{name}", text, _CARD_LABELS)
            for uuid, said in self._hardware.items():
                card, value = self._inventory.cards.get(uuid), getattr(said, field)
                if card is not None and value is not None:
                    family.add_metric([self._node, self._node_ip, str(card.index), uuid, card.model], value)
            yield family


def _gauge(name: str, text: str, labels: Iterable[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=list(labels))
