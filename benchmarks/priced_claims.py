"""The trace openb as ResourceClaims: what the extender's allocation of claims gives out, beside the replay of pods.

Each pod of the trace has one claim, which asks for its cards and compute, and for 1 MiB of memory. The claims are
chosen by the functions that the extender calls (`egpu.core.dra`), over its scheduler cache, until as much has arrived
as the cluster has. The replay offers the same pods to the default policy. Pods without GPUs are left out. Nothing is
sent: the rate is that of choices alone.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.report import Report
from benchmarks.scheduling.stages import capacity, trace
from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUClass, ElasticGPUSpec, PhysicalGPU
from egpu.core.dra.asking import asked
from egpu.core.dra.choosing import Wish, choose, request_of
from egpu.core.dra.classes import device_class
from egpu.core.placement.cache import SchedulerCache
from egpu.core.policies.registry import Policies
from egpu.core.policies.shapes import Machine, Mix, Shape
from egpu.core.preemption.population import Population
from egpu.core.preemption.scene import Scene
from egpu.core.replay.run import run as replay
from egpu.core.replay.workload import published_arrivals
from egpu_base.api.devices import (
    CapacityRequirements,
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from egpu_base.api.kubernetes import Container, Node, NodeStatus, Pod, PodSpec, ResourceRequirements
from egpu_base.api.objects import Condition, ObjectMeta
from egpu_base.api.quantities import Quantity
from egpu_base.errors import DoesNotFit

SEEDS: Final = (42, 43, 44)
MODEL: Final = "model"
"""Label of nodes."""
CLASSES: Final = {
    name: ElasticGPUClass(metadata=ObjectMeta(name=name, uid=name), provisioner=provisioner)
    for name, provisioner in (("slice", names.VCUDA), ("whole", names.PHYSICAL))
}
MADE: Final[dict[str, DeviceClass]] = {name: device_class(klass) for name, klass in CLASSES.items()}


@dataclass(frozen=True)
class Result:
    """`allocated` in percent of the capacity when as much has arrived; `rate` in claims per second."""

    allocated: float
    rate: float


def node(number: int, machine: Machine) -> Node:
    there: dict[str, Quantity] = {"cpu": f"{machine.cpu_milli}m", "memory": f"{machine.ram_mib}Mi", "pods": "100000"}
    status = NodeStatus(allocatable=there, conditions=[Condition(type="Ready", status="True")])
    return Node(metadata=ObjectMeta(name=f"n{number}", labels={MODEL: machine.model}), status=status)


def cards(number: int, machine: Machine) -> list[ElasticGPU]:
    return [
        ElasticGPU(
            metadata=ObjectMeta(name=f"n{number}-{index}"),
            spec=ElasticGPUSpec(
                node_name=f"n{number}",
                physical_gpu=PhysicalGPU(
                    uuid=f"GPU-{number}-{index}",
                    index=index,
                    minor=index,
                    model=machine.model,
                    memory_mib=max(machine.card_memory_mib, 1 << 14),
                    allocator=names.PRICED,
                ),
            ),
        )
        for index in range(machine.cards)
    ]


def pod(number: int, shape: Shape) -> Pod:
    wanted: dict[str, Quantity] = {"cpu": f"{shape.cpu_milli}m", "memory": f"{shape.ram_mib}Mi"}
    container = Container(name="app", image="x", resources=ResourceRequirements(requests=wanted))
    one = {"key": MODEL, "operator": "In", "values": list(shape.models)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [one]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}} if shape.models else None
    spec = PodSpec(containers=[container], affinity=affinity)
    return Pod(metadata=ObjectMeta(name=f"p{number}", namespace="ns", uid=f"uid-{number}"), spec=spec)


def claim(number: int, shape: Shape) -> ResourceClaim:
    amounts = {"cores": str(shape.core_milli // 10), "memory": "1Mi"}
    exactly = (
        ExactDeviceRequest(device_class_name="whole", count=shape.cards)
        if shape.whole
        else ExactDeviceRequest(device_class_name="slice", capacity=CapacityRequirements(requests=dict(amounts)))
    )
    spec = ResourceClaimSpec(devices=DeviceClaim(requests=[DeviceRequest(name="gpu", exactly=exactly)]))
    return ResourceClaim(metadata=ObjectMeta(name=f"c{number}", namespace="ns", uid=f"claim-{number}"), spec=spec)


def as_claims(machines: Sequence[Machine], shapes: Sequence[Shape], order: Sequence[int]) -> Result:
    """Place the shapes as claims, in order, until as much has arrived as the machines have."""
    cache, nodes = SchedulerCache(), {f"n{at}": node(at, machines[at]) for at in order}
    for klass in CLASSES.values():
        cache.class_changed(klass)
    for at in order:
        cache.node_changed(nodes[f"n{at}"])
        cache.gpu_changed(*cards(at, machines[at]))
    running: dict[str, Pod] = {}
    scene = Scene(cache, nodes, Population(running.get), (), Policies.named("default", "default"))
    whole, arrived, given, chosen, seconds = capacity(machines), 0, 0, 0, 0.0
    for number, shape in enumerate(shapes):
        if arrived >= whole:
            break
        arrived += shape.gpu_milli
        one = pod(number, shape)
        found = asked(claim(number, shape), cache.classes, MADE.get)
        assert found is not None
        wish = Wish(one, [found], {})
        cache.ranking.see(one.uid, request_of(wish, scene))
        began = time.perf_counter()
        try:
            choice = choose(wish, scene)
        except DoesNotFit:
            continue
        finally:
            seconds += time.perf_counter() - began
            chosen += 1
        cache.device_claims.assume(choice.claims[0])
        cache.hosts.pod_placed(one, choice.node)
        given += shape.gpu_milli
    assert not cache.problems()
    return Result(100 * given / whole, chosen / seconds)


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    machines, pods = trace()
    pods = [one for one in pods if one.cards]
    figures: dict[str, Any] = {}
    for seed in SEEDS[:1] if report.options.quick else SEEDS:
        report.progress(f"openb as claims, seed {seed}")
        load = published_arrivals(pods, nodes=len(machines), capacity_milli=capacity(machines), load=1.0, seed=seed)
        replayed = replay("default", machines, load, Mix.of(pods), seed=seed, clock=time.perf_counter)
        found = as_claims(machines, load.shapes, load.node_order.tolist())
        figures[str(seed)] = {"replay": replayed.allocated_at(100), "claims": found.allocated, "rate": found.rate}
    columns = ("seed", "replay of pods @100 %", "claims @100 %", "choices/s")
    report.table("openb as ResourceClaims", columns, [(seed, *one.values()) for seed, one in figures.items()])
    behind = max(one["replay"] - one["claims"] for one in figures.values())
    report.verdict("claims behind pods @100", f"{behind:.2f} points", "0.3 points", behind <= 0.3)
    return figures
