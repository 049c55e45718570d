"""Limits and use of this node's cards by containers, read at each Prometheus scrape.

The node that has the card reports a slice, once: programs of other nodes that use this one's cards through the pool
are here, and not there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from egpu.adapters.cards.nvml import CardReading
from egpu.adapters.executors.process import Executor
from egpu.adapters.slices import membership
from egpu.adapters.slices.overruns import Finding
from egpu.adapters.slices.pages import DeviceUsage, Usage, UsageReader
from egpu.api.allocation import CardShare, Qos, Work, qos_of
from egpu.apps.agent.limits.memory import Key
from egpu.apps.agent.serving.pod_service import ServedContainer
from egpu.apps.agent.slots.directories import Slots
from egpu.core.bill import lost_gpu_seconds
from egpu.core.view import SliceUsage
from egpu_base.api.quantities import MIB_BYTES
from egpu_base.system.processes import seconds_since_boot

LABELS: Final = ("namespace", "pod", "container", "node", "node_ip", "device_index", "device_uuid", "claim")
INFO: Final = "elasticgpu_container_info"
_GAUGES: Final = {
    "memory_limit_bytes": "Card memory that the container may use.",
    "memory_used_bytes": "Card memory that the container reports as used.",
    "memory_parked_bytes": "Reported memory of idle programs that is in the host's memory, not on the card.",
    "memory_peak_bytes": "Highest card memory that the container reported, since its slice was made.",
    "core_limit_ratio": "Share of the card's time; 1 is a whole card.",
    "core_used_ratio": "Share of the card's time used in the last five whole seconds.",
    "memory_spill_limit_bytes": "Memory that the container may allocate beyond its limit, as managed memory.",
    "memory_spilled_bytes": "Memory beyond the limit, as managed memory.",
    "delaying_launch_seconds": "Mean length of its launches, by its own account, while long ones delay latency work.",
    "idle_seconds": "Time since the container last used the card, or since its slice was made.",
    "age_seconds": "Time since the slice was made: its counters count from then.",
    "lost_gpu_seconds": "GPU time that was allocated to the container and not used, since its slice was made.",
    "usage_mismatch": "1 if its usage file is damaged, or it reports or has more memory than it may.",
    "memory_driver_bytes": "Card memory of its processes, by the driver.",
    "memory_overhead_bytes": "Memory that its programs do not count (contexts, code, heaps): taken off its limit.",
}
_COUNTERS: Final = {
    "gpu_seconds": "Time for which the card worked for the container; 1 a second is a whole card.",
    "throttled_seconds": "Time for which its launches were delayed.",
    "memory_refusals": "Allocations refused at the limit.",
    "parked_seconds": "Time for which memory of the slice was parked or waited for room on its card.",
    "overstayed_seconds": "Time for which the slice kept room of its card after its turn, while others waited for it.",
    "parks": "Times that running programs of the container left the card.",
    "wakes": "Times that running programs of the container came back to the card.",
    "wake_wait_seconds": "Time for which calls of running programs waited until their memory was back.",
}
_OF_PROCESSES: Final = (
    ("memory_mismatch_bytes", "Card memory of a process by the driver, less what it counted itself.", "pid"),
    (
        "memory_used_bytes",
        "Card memory that a process reports as used; the pid is the one inside its container.",
        "container_pid",
    ),
)
MAX_PROCESSES: Final = 32
"""Most processes that are reported for one slice, those with most memory: a container may have a thousand."""


@dataclass(frozen=True, kw_only=True)
class ContainerUse:
    """A container's slices on cards of this node, with the use that it reports."""

    namespace: str
    pod: str
    container: str
    claim: str
    key: tuple[str, int]
    cards: tuple[CardShare, ...]
    limit_bytes: Mapping[str, int]
    """The memory that it may allocate, by card UUID, including managed memory beyond its share."""
    qos: Qos
    work: Work
    usage: Usage
    age_seconds: float | None
    """The age of its slice; None if that was not recorded."""


@dataclass(frozen=True)
class _Sample:
    taken_at: float
    gpu_ns: int


class SliceMetrics:
    """Collects metrics. Stores only the last sample of each slice's GPU time, and its rate."""

    def __init__(
        self,
        slots: Slots,
        *,
        node: str,
        node_ip: str,
        served: Callable[[], list[Executor[ServedContainer]]],
        findings: Callable[[], Mapping[Key, Finding]],
        cards: Callable[[], Mapping[str, CardReading]],
        parked_seconds: Callable[[], Mapping[Hashable, float]] = dict,
        overstayed_seconds: Callable[[], Mapping[Hashable, float]] = dict,
        delaying_seconds: Callable[[], Mapping[tuple[Hashable, str], float]] = dict,
    ) -> None:
        """Take where to read. `served`: executors for other nodes' containers; `findings`: the driver's figures for
        containers' memory; `cards`: this node's, by UUID; `parked_seconds`, `overstayed_seconds`: of slices that share
        room, by key; `delaying_seconds`: the length of kernels that delay latency work, by slice and card."""
        self._of_rooms = {"parked_seconds": parked_seconds, "overstayed_seconds": overstayed_seconds}
        self._delaying_seconds = delaying_seconds
        self._slots = slots
        self._where = [node, node_ip]
        self._served = served
        self._findings = findings
        self._cards = cards
        self._samples: dict[Key, _Sample] = {}
        self._rates: dict[Key, float] = {}

    def sample(self) -> None:
        """Take a sample at even times. All scrapers until the next sample see the use between the last two."""
        before, now = self._samples, time.monotonic()
        self._samples = {
            (*use.key, share.uuid): _Sample(now, used.gpu_ns)
            for use in self._uses(UsageReader.read_totals)
            for share, used in zip(use.cards, use.usage.devices, strict=False)
        }
        self._rates = {key: _rate(before[key], one) for key, one in self._samples.items() if key in before}

    def collect(self) -> Iterator[Metric]:
        """Return one family per series, with a line for each container and card."""
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
        info = GaugeMetricFamily(INFO, "1, with quality of service and kind of work.", labels=(*LABELS, "qos", "work"))
        findings, of_rooms = self._findings(), {name: of() for name, of in self._of_rooms.items()}
        delaying_seconds = self._delaying_seconds()
        for use in self._uses(UsageReader.read):
            for position, share in enumerate(use.cards):
                labels = self._labels(use, share)
                info.add_metric([*labels, use.qos, use.work], 1)
                used = use.usage.devices[position] if position < len(use.usage.devices) else None
                key = (*use.key, share.uuid)
                finding = findings.get(key)
                values = _values(use, share, used, finding) | _parked(use.usage, position)
                for one in () if finding is None else finding.processes:
                    counted = _counted_by(one.pid, use.usage, position)
                    mismatch.add_metric([*labels, str(one.pid)], one.used_bytes - counted)
                for pid, used_bytes in _largest(use.usage, position):
                    process.add_metric([*labels, str(pid)], used_bytes)
                values |= {name: of[use.key] for name, of in of_rooms.items() if use.key in of}
                if (use.key, share.uuid) in delaying_seconds:
                    values["delaying_launch_seconds"] = delaying_seconds[use.key, share.uuid]
                if key in self._rates:
                    values["core_used_ratio"] = self._rates[key]
                if used is not None:
                    values |= _history(used, use.age_seconds, share, self._cards().get(share.uuid))
                for name, value in values.items():
                    families[name].add_metric(labels, value)
        yield from (*families.values(), mismatch, process, info)

    def _labels(self, use: ContainerUse, share: CardShare) -> list[str]:
        card = self._cards().get(share.uuid)
        index = share.index if card is None else card.index
        return [use.namespace, use.pod, use.container, *self._where, str(index), share.uuid, use.claim]

    def _uses(self, read: Callable[[UsageReader], Usage]) -> Iterator[ContainerUse]:
        now = seconds_since_boot()
        for record in self._slots.records():
            if record.server:
                continue  # the other node, which has the cards, reports it
            given = record.allocation
            yield ContainerUse(
                namespace=record.namespace,
                pod=record.pod,
                container=record.container,
                claim=given.claim,
                key=record.slice,
                cards=given.cards,
                qos=given.qos,
                work=given.work,
                limit_bytes={share.uuid: given.memory_limit_bytes(share) for share in given.cards},
                usage=read(UsageReader(self._slots.usage_file(record.slot_id), devices=len(given.cards))),
                age_seconds=max(0.0, now - record.prepared_at) if record.prepared_at else None,
            )
        for executor in self._served():
            record, owner = executor.record, executor.record.owner
            yield ContainerUse(
                namespace=owner.namespace,
                pod=owner.pod,
                container=owner.container,
                claim="",
                key=(record.name, record.pid),
                cards=record.cards,
                qos=qos_of((share.core for share in record.cards), record.core_limit),
                work="latency" if record.latency else "batch",
                limit_bytes={share.uuid: share.memory_mib * MIB_BYTES for share in record.cards},
                usage=read(UsageReader(executor.directory / "usage", devices=len(record.cards))),
                age_seconds=max(0.0, now - record.process.started_at),
            )


def _values(use: ContainerUse, share: CardShare, used: DeviceUsage | None, finding: Finding | None) -> dict[str, float]:
    """Return the values by the names of _GAUGES and _COUNTERS, except the rate."""
    limit, with_spill = share.memory_mib * MIB_BYTES, use.limit_bytes[share.uuid]
    # The interposer never lets a program report more than its limit: then something else wrote it. Having more means
    # memory that bypasses the interposer, or contexts on top of a limit that is used up.
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


def _parked(usage: Usage, position: int) -> dict[str, float]:
    """Return the values that only the processes know; nothing for a damaged file."""
    if usage.problem:
        return {}
    found = [process.parking for process in usage.processes if process.device == position]
    return {
        "memory_parked_bytes": sum(one.parked_bytes for one in found),
        "parks": sum(one.parks for one in found),
        "wakes": sum(one.wakes for one in found),
        "wake_wait_seconds": sum(one.wait_ns for one in found) / 1e9,
    }


def _history(
    used: DeviceUsage, age_seconds: float | None, share: CardShare, card: CardReading | None
) -> dict[str, float]:
    """Return the values that need the age of the slice."""
    if age_seconds is None:
        return {}
    idle = _idle_seconds(used.refilled_ns, age_seconds)
    values = {"age_seconds": age_seconds, "idle_seconds": idle}
    if card is not None:
        part = min(1.0, max(share.core / 100, share.memory_mib / card.memory_mib))
        use = SliceUsage(
            peak_bytes=used.peak_bytes, gpu_seconds=used.gpu_ns / 1e9, idle_seconds=idle, age_seconds=age_seconds
        )
        values["lost_gpu_seconds"] = lost_gpu_seconds(part, use, card_memory_mib=card.memory_mib)
    return values


def _idle_seconds(last_launch_ns: int, age_seconds: float) -> float:
    """Return the idle time, at most the age: the container reports it, and may write any number."""
    since = (time.monotonic_ns() - last_launch_ns) / 1e9
    return min(since, age_seconds) if last_launch_ns and since >= 0 else age_seconds


def _counted_by(pid: int, usage: Usage, position: int) -> int:
    """Return the memory that a process (`pid` on the host) counts, in its own slot of the usage file."""
    name = membership.name_of(pid)
    return sum(
        process.memory_bytes + process.spill_bytes
        for process in usage.processes
        if name is not None
        and process.device == position
        and (process.pid_namespace, process.pid) == (name.pid_namespace, name.pid)
    )


def _largest(usage: Usage, position: int) -> list[tuple[int, int]]:
    """Return the processes with most memory on a card: pid in the container, and bytes. Memory of one pid in several
    namespaces is summed."""
    found = Counter[int]()
    for process in usage.processes:
        if process.device == position:
            found[process.pid] += process.memory_bytes + process.spill_bytes
    return found.most_common(MAX_PROCESSES)


def _rate(before: _Sample, now: _Sample) -> float:
    """Return GPU seconds per second between two readings, within 0..1: the container writes the file."""
    if now.taken_at <= before.taken_at:
        return 0.0
    return min(1.0, max(0.0, (now.gpu_ns - before.gpu_ns) / 1e9 / (now.taken_at - before.taken_at)))
