"""What containers may use of this node's cards, and say that they use: read when Prometheus asks.

A slice is told of by the node that has its card, once: programs of other nodes that use this one's through the pool
are here, and not there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from egpu.adapters.executors.process import Executor
from egpu.adapters.nvml import CardReading
from egpu.adapters.processes import seconds_since_boot
from egpu.adapters.slices import membership
from egpu.adapters.slices.overruns import Finding
from egpu.adapters.slices.pages import DeviceUsage, Usage, UsageReader
from egpu.api.allocation import CardShare
from egpu.api.quantities import MIB_BYTES
from egpu.apps.agent.limits.memory import Key
from egpu.apps.agent.serving.pods import ServedContainer
from egpu.apps.agent.slots.directories import Slots
from egpu.core.bill import lost_gpu_seconds
from egpu.core.view import SliceUsage

LABELS: Final = ("namespace", "pod", "container", "node", "node_ip", "device_index", "device_uuid", "claim")
_GAUGES: Final = {
    "memory_limit_bytes": "Card memory the container may use.",
    "memory_used_bytes": "Card memory the container says it uses.",
    "memory_peak_bytes": "The most that it said it used at once, since its slice was made.",
    "core_limit_ratio": "Share of the card's time; 1 is a whole card.",
    "core_used_ratio": "Share of the card's time used in the last whole five seconds.",
    "memory_spill_limit_bytes": "What it may allocate beyond its limit, in managed memory.",
    "memory_spilled_bytes": "Beyond its limit, in managed memory.",
    "idle_seconds": "Since it last asked the card for anything, or since its slice was made.",
    "age_seconds": "Since its slice was made: for so long its counters count.",
    "lost_gpu_seconds": "What it was given of the card since its slice was made, and did not use.",
    "usage_mismatch": "1 while its usage file is damaged, or it claims or holds more than it may.",
    "memory_driver_bytes": "Card memory that its processes hold, by the driver.",
    "memory_overhead_bytes": "Held and not counted by it (contexts, code, heaps): taken off its limit.",
}
_COUNTERS: Final = {
    "gpu_seconds": "Time for which the card worked for it; 1 a second is a whole card.",
    "throttled_seconds": "Time its launches were held back.",
    "memory_refusals": "Allocations refused over the limit.",
}
_OF_PROCESSES: Final = (
    ("memory_mismatch_bytes", "What a process of it holds by the driver, less what it counted itself.", "pid"),
    ("memory_used_bytes", "Card memory that a process says it uses; its pid is its container's.", "container_pid"),
)
MAX_PROCESSES: Final = 32
"""Told of one slice, those with most memory: a container may have a thousand."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """A container's slices on cards of this node, with what it says of them."""

    namespace: str
    pod: str
    container: str
    claim: str
    key: tuple[str, int]
    cards: tuple[CardShare, ...]
    limit_bytes: Mapping[str, int]
    """What it may allocate, by card UUID, what may go beyond its share included."""
    usage: Usage
    age_seconds: float | None
    """Since its slice was made; None where nobody wrote that down."""


@dataclass(frozen=True)
class _Sample:
    taken_at: float
    gpu_ns: int


class SliceMetrics:
    """Nothing is kept but the last sample of each slice's GPU time, and its rate."""

    def __init__(
        self,
        slots: Slots,
        *,
        node: str,
        node_ip: str,
        served: Callable[[], list[Executor[ServedContainer]]],
        findings: Callable[[], Mapping[Key, Finding]],
        cards: Callable[[], Mapping[str, CardReading]],
    ) -> None:
        """`served`: the executors of other nodes' containers; `findings`: what the driver says of containers' memory;
        `cards`: those of this node by UUID."""
        self._slots = slots
        self._where = [node, node_ip]
        self._served = served
        self._findings = findings
        self._cards = cards
        self._samples: dict[Key, _Sample] = {}
        self._rates: dict[Key, float] = {}

    def sample(self) -> None:
        """At even times: what was used since the last sample is what all who ask until the next one are told."""
        before, now = self._samples, time.monotonic()
        self._samples = {
            (*told.key, share.uuid): _Sample(now, used.gpu_ns)
            for told in self._told(UsageReader.read_totals)
            for share, used in zip(told.cards, told.usage.devices, strict=False)
        }
        self._rates = {key: _rate(before[key], one) for key, one in self._samples.items() if key in before}

    def collect(self) -> Iterator[Metric]:
        """One family a series, with a line for each container and card."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
            name: GaugeMetricFamily(f"elasticgpu_container_{name}", text, labels=LABELS)
            for name, text in _GAUGES.items()
        }
        for name, text in _COUNTERS.items():
            families[name] = CounterMetricFamily(f"elasticgpu_container_{name}", text, labels=LABELS)
        mismatch, process = (
            GaugeMetricFamily(f"elasticgpu_process_{name}", text, labels=(*LABELS, label))
            for name, text, label in _OF_PROCESSES
        )
        findings = self._findings()
        for told in self._told(UsageReader.read):
            for position, share in enumerate(told.cards):
                labels = self._labels(told, share)
                used = told.usage.devices[position] if position < len(told.usage.devices) else None
                key = (*told.key, share.uuid)
                finding = findings.get(key)
                values = _values(told, share, used, finding)
                for one in () if finding is None else finding.processes:
                    counted = _counted_by(one.pid, told.usage, position)
                    mismatch.add_metric([*labels, str(one.pid)], one.used_bytes - counted)
                for pid, used_bytes in _largest(told.usage, position):
                    process.add_metric([*labels, str(pid)], used_bytes)
                if key in self._rates:
                    values["core_used_ratio"] = self._rates[key]
                if used is not None:
                    values |= _history(used, told.age_seconds, share, self._cards().get(share.uuid))
                for name, value in values.items():
                    families[name].add_metric(labels, value)
        yield from (*families.values(), mismatch, process)

    def _labels(self, told: Told, share: CardShare) -> list[str]:
        card = self._cards().get(share.uuid)
        index = share.index if card is None else card.index
        return [told.namespace, told.pod, told.container, *self._where, str(index), share.uuid, told.claim]

    def _told(self, read: Callable[[UsageReader], Usage]) -> Iterator[Told]:
        now = seconds_since_boot()
        for record in self._slots.records():
            if record.server:
                continue  # its cards are another node's, which tells of them
            given = record.allocation
            yield Told(
                namespace=record.namespace,
                pod=record.pod,
                container=record.container,
                claim=given.claim,
                key=record.slice,
                cards=given.cards,
                limit_bytes={share.uuid: given.memory_limit_bytes(share) for share in given.cards},
                usage=read(UsageReader(self._slots.usage_file(record.slot_id), devices=len(given.cards))),
                age_seconds=max(0.0, now - record.prepared_at) if record.prepared_at else None,
            )
        for executor in self._served():
            record, owner = executor.record, executor.record.owner
            yield Told(
                namespace=owner.namespace,
                pod=owner.pod,
                container=owner.container,
                claim="",
                key=(record.name, record.pid),
                cards=record.cards,
                limit_bytes={share.uuid: share.memory_mib * MIB_BYTES for share in record.cards},
                usage=read(UsageReader(executor.directory / "usage", devices=len(record.cards))),
                age_seconds=max(0.0, now - record.process.started_at),
            )


def _values(told: Told, share: CardShare, used: DeviceUsage | None, finding: Finding | None) -> dict[str, float]:
    """By the names of _GAUGES and _COUNTERS, all but its rate."""
    limit, with_spill = share.memory_mib * MIB_BYTES, told.limit_bytes[share.uuid]
    # The interposer never lets it claim more than its limit: then somebody else wrote it. Holding more is memory got
    # behind the interposer's back, or contexts on top of a limit that was used up.
    mismatch = used is None or 0 < limit < used.memory_bytes
    values = {"memory_limit_bytes": limit, "core_limit_ratio": share.core / 100,
              "memory_spill_limit_bytes": with_spill - limit}  # fmt: skip
    if finding is not None:
        mismatch = mismatch or (limit > 0 and finding.driver_bytes > with_spill)
        values |= {"memory_driver_bytes": finding.driver_bytes, "memory_overhead_bytes": finding.overhead_bytes}
    if used is not None:
        values |= {"memory_used_bytes": used.memory_bytes, "memory_peak_bytes": used.peak_bytes,
                   "memory_spilled_bytes": used.spill_bytes, "gpu_seconds": used.gpu_ns / 1e9,
                   "throttled_seconds": used.throttled_ns / 1e9, "memory_refusals": used.refusals}  # fmt: skip
    return values | {"usage_mismatch": int(mismatch)}


def _history(
    used: DeviceUsage, age_seconds: float | None, share: CardShare, card: CardReading | None
) -> dict[str, float]:
    """What can be said where it is known since when it counts."""
    if age_seconds is None:
        return {}
    idle = _idle_seconds(used.refilled_ns, age_seconds)
    values = {"age_seconds": age_seconds, "idle_seconds": idle}
    if card is not None:
        part = min(1.0, max(share.core / 100, share.memory_mib / card.memory_mib))
        told = SliceUsage(
            peak_bytes=used.peak_bytes, gpu_seconds=used.gpu_ns / 1e9, idle_seconds=idle, age_seconds=age_seconds
        )
        values["lost_gpu_seconds"] = lost_gpu_seconds(part, told, card_memory_mib=card.memory_mib)
    return values


def _idle_seconds(last_launch_ns: int, age_seconds: float) -> float:
    """Never above its age: the moment is the container's claim, and may be any number."""
    since = (time.monotonic_ns() - last_launch_ns) / 1e9
    return min(since, age_seconds) if last_launch_ns and since >= 0 else age_seconds


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


def _largest(usage: Usage, position: int) -> list[tuple[int, int]]:
    """The processes with most memory of a card: pid, as its container has it, and bytes. Of one pid in several
    namespaces the memory is added up."""
    found = Counter[int]()
    for process in usage.processes:
        if process.device == position:
            found[process.pid] += process.memory_bytes + process.spill_bytes
    return found.most_common(MAX_PROCESSES)


def _rate(before: _Sample, now: _Sample) -> float:
    """GPU seconds per second between two readings, within 0..1: the file is the container's claim."""
    if now.taken_at <= before.taken_at:
        return 0.0
    return min(1.0, max(0.0, (now.gpu_ns - before.gpu_ns) / 1e9 / (now.taken_at - before.taken_at)))
