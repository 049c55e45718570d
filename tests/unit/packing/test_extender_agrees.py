"""Extender, broker and simulator choose the same places: one sequence of pods, or leases, each way."""

import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as with_fields

from egpu.apps.agent.cards.publisher import PRODUCT_LABEL
from egpu.apps.extender.filter_results import FilterResults
from egpu.apps.extender.placing import Placing
from egpu.core.leasing.pool import Pool
from egpu.core.leasing.records import LeaseRequest, Report, RunningLease
from egpu.core.placement.cache import SchedulerCache, rebuild
from egpu.core.placement.hosts import PLENTY
from egpu.core.placement.ledger import Card
from egpu.core.placement.node_names import NodeNames
from egpu.core.policies.registry import CLUSTER_NAMES, Policies
from egpu.core.policies.shapes import Machine, Mix, Shape
from egpu.core.replay.run import run
from egpu.core.replay.workload import Workload
from egpu_base.api.kubernetes import Container, Node, NodeStatus, Pod, ResourceRequirements
from egpu_base.api.objects import ObjectMeta
from egpu_base.api.quantities import Quantity
from egpu_base.errors import DoesNotFit
from support.objects import CORE, MEMORY, card, ended, placed, pod

NODES, CARDS, MEMORY_MIB, BLOCK_MIB = 6, 4, 16384, 256
CPU_MILLI, RAM_MIB = 48_000, 98_304
WHOLE = "nvidia.com/gpu"


def model(node: int) -> str:
    return "T4" if node % 3 else "P4"


def machines() -> list[Machine]:
    return [Machine(f"n{at}", CPU_MILLI, RAM_MIB, CARDS, model(at), MEMORY_MIB) for at in range(NODES)]


def cluster() -> SchedulerCache:
    cache = rebuild(
        [card(f"n{n}", c, memory_mib=MEMORY_MIB, model=model(n)) for n in range(NODES) for c in range(CARDS)], [], []
    )
    for n in range(NODES):
        room = {"cpu": f"{CPU_MILLI}m", "memory": f"{RAM_MIB}Mi"}
        meta = ObjectMeta(name=f"n{n}", labels={PRODUCT_LABEL: model(n)})
        cache.node_changed(Node(metadata=meta, status=NodeStatus(allocatable=dict(room))))
    return cache


def as_pod(name: str, shape: Shape) -> Pod:
    whole = shape.core_milli == 1000
    limits: dict[str, Quantity] = (
        {WHOLE: shape.cards} if whole else {CORE: shape.core_milli // 10, MEMORY: shape.card_memory_mib // BLOCK_MIB}
    )
    requests: dict[str, Quantity] = {"cpu": f"{shape.cpu_milli}m", "memory": f"{shape.ram_mib}Mi"}
    app = Container(name="app", image="x", resources=ResourceRequirements(limits=limits, requests=requests))
    selector = {PRODUCT_LABEL: shape.models[0]} if shape.models else None
    return with_fields(pod(name), spec=with_fields(pod(name).spec, containers=[app], node_selector=selector))


PODS = [
    Shape(2000, 4096, 1, 300, 4096),
    Shape(1000, 2048, 1, 500, 8192),
    Shape(4000, 8192, 1, 650, 3072),
    Shape(6000, 8192, 1, 200, 12288),
    Shape(8000, 16384, 1, 1000),
    Shape(8000, 16384, 2, 1000),
    Shape(16000, 32768, 4, 1000),
    Shape(2000, 4096, 1, 400, 2048, ("P4",)),
    Shape(8000, 16384, 1, 1000, 0, ("T4",)),
]
POD_CHANCES = [0.15, 0.15, 0.15, 0.1, 0.1, 0.1, 0.05, 0.15, 0.05]
LEASES = [
    Shape(cards=1, core_milli=300, card_memory_mib=4096),
    Shape(cards=1, core_milli=500, card_memory_mib=8192),
    Shape(cards=1, core_milli=650, card_memory_mib=3072),
    Shape(cards=1, core_milli=200, card_memory_mib=12288),
    Shape(cards=1, core_milli=1000, card_memory_mib=MEMORY_MIB),
]
LEASE_CHANCES = [0.25, 0.25, 0.2, 0.2, 0.1]
Places = dict[int, tuple[str, tuple[int, ...]] | None]


def sequence(seed: int, kinds: Sequence[Shape], chances: Sequence[float]) -> Workload:
    """Pods that come, and some that go: more than the cluster can hold."""
    random = np.random.default_rng(seed)
    shapes: list[Shape] = []
    events: list[int] = []
    alive: list[int] = []
    for number in range(120):
        if alive and random.random() < 0.35:
            events.append(~alive.pop(int(random.integers(len(alive)))))
        shapes.append(kinds[int(random.choice(len(kinds), p=chances))])
        events.append(number)
        alive.append(number)
    return Workload(shapes, np.array(events), np.arange(NODES))


def by_extender(workload: Workload, policy: str) -> Places:
    """Filter, prioritize and choose, as kube-scheduler has it done: the node with the highest score is bound. Every
    second pod has a wish of its own, so the filter names all nodes that fit."""
    cache = cluster()
    view: Any = SimpleNamespace(cache=cache, nodes={f"n{at}": Node(metadata=ObjectMeta()) for at in range(NODES)})
    policies = Policies.named(policy, policy)
    placing = Placing(view, policies, FilterResults())
    names = tuple(f"n{at}" for at in range(NODES))
    chosen: Places = {}
    shown: dict[int, Pod] = {}
    several = 0
    for event in workload.events.tolist():
        if event < 0:
            if ~event in shown:
                cache.pod_changed(ended(shown.pop(~event)))
            continue
        what, models = as_pod(f"p{event}", workload.shapes[event]), workload.shapes[event].models
        selected = [name for name in names if not models or model(int(name[1:])) in models]  # the scheduler's own check
        asked = NodeNames(selected)
        wish = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}
        wishful = with_fields(what, spec=with_fields(what.spec, affinity=wish if event % 2 else None))
        fitting = asked.subset(placing.filter(wishful, asked).ok)
        if not len(fitting):
            chosen[event] = None
            continue
        several += len(fitting) > 1
        best = fitting[int(placing.prioritize(what, fitting).argmax())]
        request = cache.request(what)
        allocation = cache.ranking.choose(request, best, policies)
        cache.assume_pod(what, allocation)
        shown[event] = placed(what, allocation)
        cache.pod_changed(shown[event])
        chosen[event] = (best, tuple(share.index for share in allocation.containers["app"].cards))
    assert cache.problems() == []
    assert 0 < several < len(chosen) * 2 / 3
    return chosen


def by_broker(workload: Workload, policy: str) -> Places:
    """Leases that are granted, run, and are released; all servers are alike near."""
    pool = Pool("epoch", Policies.named(policy, policy))
    names = [f"n{at}" for at in range(NODES)]

    def report(server: str, number: int) -> None:
        """The server runs what it was ordered to."""
        version, records = pool.orders(server) if number else (0, ())
        runs = tuple(
            RunningLease(record=record, occupied_mib=tuple(share.memory_mib for share in record.cards), ready=True)
            for record in records
        )
        found = tuple(
            Card(f"{server}-{index}", index, index, MEMORY_MIB, model(int(server[1:]))) for index in range(CARDS)
        )
        pool.report(
            Report(
                server=server, address="", host="", link_mbps=1, instance="1", cards=found, leases=runs, epoch="epoch",
                version=version,
            ),
            now=0.0,
        )  # fmt: skip

    for server in names:
        report(server, 0)
    chosen: Places = {}
    for event in workload.events.tolist():
        if event < 0:
            if (place := chosen[~event]) is not None:
                pool.end(f"l{~event}", "released")
                report(place[0], 1)
            continue
        shape = workload.shapes[event]
        request = LeaseRequest(cards=shape.cards, core=shape.core_milli // 10, memory_mib=shape.card_memory_mib)
        try:
            lease = pool.grant(
                request, lease=f"l{event}", key="k", holder=f"h{event}", peer="p", request=str(event), now=0.0
            )
        except DoesNotFit:
            chosen[event] = None
            continue
        ((server, part),) = lease.parts.items()
        (share,) = part.wanted
        report(server, 1)
        chosen[event] = (server, (share.index,))
    assert pool.ledger.overcommits() == []
    return chosen


def by_simulator(workload: Workload, policy: str, nodes: Sequence[Machine]) -> Places:
    mix = Mix.of(list(workload.shapes))
    outcome = run(policy, nodes, workload, mix, clock=time.perf_counter, keep_placements=True)
    places: Places = {
        at: None if place is None else (f"n{place.row}", place.cards) for at, place in outcome.placements.items()
    }
    assert None in places.values()  # the sequence fills the cluster, or it would say little
    assert len({place[0] for place in places.values() if place}) == NODES
    return places


# Of the policies of a cluster, `random` draws in another order, and `fgd` learns the mix that a simulation gives it.
ALIKE = [name for name in CLUSTER_NAMES if name not in ("random", "fgd")]


@pytest.mark.parametrize("policy", ALIKE)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_extender_chooses_what_the_simulator_chooses(policy: str, seed: int) -> None:
    workload = sequence(seed, PODS, POD_CHANCES)
    assert by_extender(workload, policy) == by_simulator(workload, policy, machines())


@pytest.mark.parametrize("policy", ALIKE)
def test_the_broker_chooses_what_the_simulator_chooses(policy: str) -> None:
    workload = sequence(3, LEASES, LEASE_CHANCES)
    assert by_broker(workload, policy) == by_simulator(
        workload, policy, [replace(machine, cpu_milli=PLENTY, ram_mib=PLENTY) for machine in machines()]
    )
