"""The extender chooses what the simulator chooses: one sequence of pods, both ways."""

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from egpu.api.extender import ExtenderArgs
from egpu.api.kubernetes import Container, Node, NodeStatus, Pod, ResourceRequirements
from egpu.api.objects import ObjectMeta
from egpu.api.quantities import Quantity
from egpu.apps.agent.cards.publisher import PRODUCT_LABEL
from egpu.apps.extender.placing import Placing, policies_for
from egpu.core.placement.cache import Feed, rebuild
from egpu.core.placement.preference import Policies
from egpu.core.policies.shapes import Machine, Mix, Shape
from egpu.core.simulation.replay import run
from egpu.core.simulation.workload import Workload
from support.objects import CORE, MEMORY, card, ended, placed, pod

NODES, CARDS, MEMORY_MIB, BLOCK_MIB = 6, 4, 16384, 256
CPU_MILLI, RAM_MIB = 48_000, 98_304
WHOLE = "nvidia.com/gpu"


def model(node: int) -> str:
    return "T4" if node % 3 else "P4"


def machines() -> list[Machine]:
    return [Machine(f"n{at}", CPU_MILLI, RAM_MIB, CARDS, model(at), MEMORY_MIB) for at in range(NODES)]


def cluster() -> Feed:
    feed = rebuild(
        [card(f"n{n}", c, memory_mib=MEMORY_MIB, model=model(n)) for n in range(NODES) for c in range(CARDS)], [], []
    )
    for n in range(NODES):
        room = {"cpu": f"{CPU_MILLI}m", "memory": f"{RAM_MIB}Mi"}
        meta = ObjectMeta(name=f"n{n}", labels={PRODUCT_LABEL: model(n)})
        feed.node_changed(Node(metadata=meta, status=NodeStatus(allocatable=dict(room))))
    return feed


def as_pod(name: str, shape: Shape) -> Pod:
    whole = shape.core_milli == 1000
    limits: dict[str, Quantity] = (
        {WHOLE: shape.cards} if whole else {CORE: shape.core_milli // 10, MEMORY: shape.card_memory_mib // BLOCK_MIB}
    )
    requests: dict[str, Quantity] = {"cpu": f"{shape.cpu_milli}m", "memory": f"{shape.ram_mib}Mi"}
    app = Container(name="app", image="x", resources=ResourceRequirements(limits=limits, requests=requests))
    selector = {PRODUCT_LABEL: shape.models[0]} if shape.models else None
    return replace(pod(name), spec=replace(pod(name).spec, containers=[app], node_selector=selector))


def sequence(seed: int) -> Workload:
    """Pods that come, and some that go: more than the cluster can hold."""
    random = np.random.default_rng(seed)
    kinds = [
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
    shapes: list[Shape] = []
    events: list[int] = []
    alive: list[int] = []
    for number in range(120):
        if alive and random.random() < 0.35:
            events.append(~alive.pop(int(random.integers(len(alive)))))
        shapes.append(kinds[int(random.choice(len(kinds), p=[0.15, 0.15, 0.15, 0.1, 0.1, 0.1, 0.05, 0.15, 0.05]))])
        events.append(number)
        alive.append(number)
    return Workload(shapes, np.array(events), np.arange(NODES))


def by_extender(workload: Workload, policy: str) -> dict[int, tuple[str, tuple[int, ...]] | None]:
    """Filter, prioritize and choose, as kube-scheduler has it done: the node with the highest score is bound."""
    feed = cluster()
    view: Any = SimpleNamespace(feed=feed)
    policies = Policies.named(policy, policy)
    placing = Placing(view, policies)
    names = tuple(f"n{at}" for at in range(NODES))
    chosen: dict[int, tuple[str, tuple[int, ...]] | None] = {}
    shown: dict[int, Pod] = {}
    for event in workload.events.tolist():
        if event < 0:
            if ~event in shown:
                feed.pod_changed(ended(shown.pop(~event)))
            continue
        what, models = as_pod(f"p{event}", workload.shapes[event]), workload.shapes[event].models
        selected = [name for name in names if not models or model(int(name[1:])) in models]  # the scheduler's own check
        fitting = placing.filter(ExtenderArgs(pod=what, node_names=selected)).node_names or []
        if not fitting:
            chosen[event] = None
            continue
        scores = placing.prioritize(ExtenderArgs(pod=what, node_names=fitting))
        best = max(scores, key=lambda entry: entry.score).host
        request = feed.request(what)
        allocation = feed.choose(request, best, policies_for(request, feed, policies))
        feed.assume_pod(what, allocation)
        shown[event] = placed(what, allocation)
        feed.pod_changed(shown[event])
        chosen[event] = (best, tuple(share.index for share in allocation.containers["app"].cards))
    assert feed.problems() == []
    return chosen


@pytest.mark.parametrize("policy", ["price", "best-fit", "gpu-packing", "dot-product"])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_sequence_gives_the_same_places(policy: str, seed: int) -> None:
    workload = sequence(seed)
    outcome = run(
        policy, machines(), workload, Mix.of(list(workload.shapes)), clock=time.perf_counter, keep_placements=True
    )
    simulated = {
        at: None if place is None else (f"n{place.row}", place.cards) for at, place in outcome.placements.items()
    }
    assert by_extender(workload, policy) == simulated
    assert None in simulated.values()  # the sequence fills the cluster, or it would say little
    assert len({place[0] for place in simulated.values() if place}) == NODES
