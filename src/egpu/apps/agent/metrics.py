"""/metrics of an agent: what each container may use and says it uses, the node's cards, and how long our calls take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from egpu.adapters.slices import membership
from egpu.adapters.slices.overruns import Finding
from egpu.adapters.slices.pages import DeviceUsage, Usage, UsageReader
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.limits.memory import Key
from egpu.apps.agent.slots.directories import SlotRecord, Slots

MIB = 1024 * 1024
_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_CONTAINER_LABELS = ("namespace", "pod", "container", "node", "node_ip", "gpu", "uuid", "claim")
_OF_CONTAINERS = {
    "memory_limit_bytes": "Card memory the container may use.",
    "memory_used_bytes": "Card memory the container says it uses.",
    "core_limit_ratio": "Share of the card's time; 1 is a whole card.",
    "core_used_ratio": "Share of the card's time used since the last look.",
    "memory_spill_limit_bytes": "What it may allocate beyond its limit, in managed memory.",
    "memory_spilled_bytes": "Beyond its limit, in managed memory.",
    "throttled_seconds": "Time its launches were held back, ever.",
    "memory_refusals": "Allocations refused over the limit, ever.",
    "usage_mismatch": "1 while its usage file is damaged, or it claims or holds more than it may.",
    "memory_driver_bytes": "Card memory that its processes hold, by the driver.",
    "memory_overhead_bytes": "Held and not counted by it (contexts, code, heaps): taken off its limit.",
}
_CARD_LABELS = ("node", "node_ip", "gpu", "uuid", "model")


@dataclass(frozen=True)
class _Sample:
    taken_at: float
    gpu_ns: int


class AgentMetrics(Collector):
    """Collected when asked for: nothing is kept but the last GPU time of each container and card, for its rate."""

    def __init__(
        self,
        *,
        node: str,
        node_ip: str,
        slots: Slots,
        inventory: Inventory,
        demand: Callable[[], Mapping[str, float]] = dict,
        findings: Callable[[], Mapping[Key, Finding]] = dict,
    ) -> None:
        """`demand` says per card UUID how much of its time its containers use together, `findings` what the driver says
        of containers' memory."""
        self._findings = findings
        self._demand = demand
        self._node = node
        self._node_ip = node_ip
        self._slots = slots
        self._inventory = inventory
        self._samples: dict[Key, _Sample] = {}
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.allocate_seconds = Histogram(
            "elasticgpu_agent_allocate_seconds", "Device plugin Allocate.", buckets=_SECONDS, registry=self.registry
        )
        self.prepare_seconds = Histogram(
            "elasticgpu_agent_prepare_seconds",
            "From PreStartContainer to a prepared slot.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.executors_grouped = Gauge(
            "elasticgpu_agent_executors_grouped",
            "1 where each executor has a control group for memory, processors and processes; 0 where none can be had.",
            registry=self.registry,
        )
        self.executors_lack = Gauge(
            "elasticgpu_agent_executors_lack",
            "1 for each of cgroup, user, view and landlock that does not hold executors here.",
            ["what"],
            registry=self.registry,
        )
        self.refusals = Counter(
            "elasticgpu_agent_refusals", "Containers kept from starting.", ["reason"], registry=self.registry
        )
        self.environment_preloads = Counter(
            "elasticgpu_agent_environment_preloads",
            "Containers started with LD_PRELOAD, for images that read no /etc/ld.so.preload: a cleared environment "
            "frees a program.",
            registry=self.registry,
        )

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._containers()
        yield from self._cards()

    def _containers(self) -> Iterator[Metric]:
        families = {name: _gauge(f"elasticgpu_container_{name}", text) for name, text in _OF_CONTAINERS.items()}
        process = _gauge(
            "elasticgpu_process_memory_mismatch_bytes",
            "What a process of it holds by the driver, less what it counted itself.",
            (*_CONTAINER_LABELS, "pid"),
        )
        findings = self._findings()
        seen: dict[Key, _Sample] = {}
        for record in self._slots.records():
            if record.server:
                continue  # its cards are another node's, and so is what it uses of them
            usage = UsageReader(self._slots.usage_file(record.slot_id)).read()
            for position, share in enumerate(record.allocation.cards):
                labels = self._labels(record, share)
                used = usage.devices[position] if position < len(usage.devices) else None
                key = (*record.slice, share.uuid)
                finding = findings.get(key)
                for name, value in _of_container(record.allocation, share, used, finding).items():
                    families[name].add_metric(labels, value)
                for one in () if finding is None else finding.processes:
                    counted = _counted_by(one.pid, usage, position)
                    process.add_metric([*labels, str(one.pid)], one.used_bytes - counted)
                if used is not None:
                    seen[key] = _Sample(time.monotonic(), used.gpu_ns)
                    families["core_used_ratio"].add_metric(labels, _rate(self._samples.get(key), seen[key]))
        self._samples = seen
        yield from (*families.values(), process)

    def _labels(self, record: SlotRecord, share: CardShare) -> list[str]:
        card = self._inventory.cards.get(share.uuid)
        index = share.index if card is None else card.index
        owner = [record.namespace, record.pod, record.container, self._node, self._node_ip]
        return [*owner, str(index), share.uuid, record.allocation.claim]

    def _cards(self) -> Iterator[Metric]:
        memory = _gauge("elasticgpu_card_memory_bytes", "Memory of the card.", _CARD_LABELS)
        healthy = _gauge("elasticgpu_card_healthy", "1 while the card may be given to containers.", _CARD_LABELS)
        demand = _gauge("elasticgpu_card_demand_ratio", "Its containers' use of its time, added up.", _CARD_LABELS)
        used = self._demand()
        for card in self._inventory.cards.values():
            labels = [self._node, self._node_ip, str(card.index), card.uuid, card.model]
            memory.add_metric(labels, card.memory_mib * MIB)
            healthy.add_metric(labels, int(card.healthy))
            demand.add_metric(labels, used.get(card.uuid, 0.0))
        yield from (memory, healthy, demand)


def _gauge(name: str, text: str, labels: Iterable[str] = _CONTAINER_LABELS) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=list(labels))


def _of_container(
    allocation: ContainerAllocation, share: CardShare, used: DeviceUsage | None, finding: Finding | None
) -> dict[str, float]:
    """By the names of _OF_CONTAINERS, all but its rate."""
    limit, with_spill = share.memory_mib * MIB, allocation.memory_limit_bytes(share)
    # The interposer never lets it claim more than its limit: then somebody else wrote it. Holding more is memory got
    # behind the interposer's back, or contexts on top of a limit that was used up.
    mismatch = used is None or 0 < limit < used.memory_bytes
    values = {"memory_limit_bytes": limit, "core_limit_ratio": share.core / 100,
              "memory_spill_limit_bytes": with_spill - limit}  # fmt: skip
    if finding is not None:
        mismatch = mismatch or (limit > 0 and finding.driver_bytes > with_spill)
        values |= {"memory_driver_bytes": finding.driver_bytes, "memory_overhead_bytes": finding.overhead_bytes}
    if used is not None:
        values |= {"memory_used_bytes": used.memory_bytes, "memory_spilled_bytes": used.spill_bytes,
                   "throttled_seconds": used.throttled_ns / 1e9, "memory_refusals": used.refusals}  # fmt: skip
    return values | {"usage_mismatch": int(mismatch)}


def _counted_by(pid: int, usage: Usage, position: int) -> int:
    """What a process (`pid` as the host has it) says that it holds, in the slot of its own that has its name."""
    name = membership.name_of(pid)
    return sum(
        process.memory_bytes + process.spill_bytes
        for process in usage.processes
        if name is not None
        and process.device == position
        and (process.pid_namespace, process.pid) == (name.pid_namespace, name.pid)
    )


def _rate(before: _Sample | None, now: _Sample) -> float:
    """GPU seconds per second between two readings, within 0..1: the file is the container's claim."""
    if before is None or now.taken_at <= before.taken_at:
        return 0.0
    return min(1.0, max(0.0, (now.gpu_ns - before.gpu_ns) / 1e9 / (now.taken_at - before.taken_at)))
