"""What kube-scheduler counts of a slice that shrank, and by how much more a node publishes."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, PodAllocation
from egpu.apps.agent.cards.capacity import node_capacity
from egpu.core.placement.sums import asked_beyond_held
from egpu_base.api.kubernetes import Condition, Node, NodeStatus, Pod, ResourceRequirements
from egpu_base.api.objects import ObjectMeta
from egpu_sim.cluster.scheduler.filters import Filters, NodeState
from egpu_sim.cluster.scheduler.requests import requests_of, total
from support.local_node import Cards
from support.objects import container, ended, placed, pod

CARD_MIB = 16384


def share(core: int, memory_mib: int, number: int = 0) -> CardShare:
    return CardShare(
        uuid=f"u{number}", index=number, minor=number, core=core, memory_mib=memory_mib, card_memory_mib=CARD_MIB
    )


def slice_of(*cards: CardShare, resized: bool = True) -> ContainerAllocation:
    return ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=cards, revision=int(resized))


def bound(asks: Mapping[str, int | str], allocated: ContainerAllocation) -> Pod:
    return placed(pod("p", container("app", asks)), PodAllocation(node="n0", containers={"app": allocated}))


@pytest.mark.parametrize(
    ("asks", "allocated", "beyond"),
    [
        ({names.GPU_CORE: 80, names.GPU_MEMORY: 4096}, slice_of(share(80, 1024)), {names.GPU_MEMORY: 3072}),
        ({names.GPU_CORE: 80, names.GPU_MEMORY: 4096}, slice_of(share(80, 4096)), {}),
        ({names.GPU_CORE: 80}, slice_of(share(30, 512)), {names.GPU_CORE: 50}),
        ({names.GPU_CORE: 30}, slice_of(share(80, 512)), {}),
        ({names.GPU_CORE: 160}, slice_of(share(50, 1), share(50, 1, 1)), {names.GPU_CORE: 60}),
        ({names.TENCENT_VCUDA_MEMORY: 16}, slice_of(share(10, 1025)), {names.TENCENT_VCUDA_MEMORY: 12}),
        ({names.VOLCANO_CORES: 50}, slice_of(share(20, 1), share(20, 1, 1)), {names.VOLCANO_CORES: 30}),
        ({names.VOLCANO_MEMORY_PERCENT: 50}, slice_of(share(0, CARD_MIB // 4)), {names.VOLCANO_MEMORY_PERCENT: 25}),
        ({names.TFLOPS: 4}, slice_of(share(50, 1), resized=False), {}),
        ({names.TFLOPS: 4}, slice_of(share(50, 1)), {names.TFLOPS: 4}),
        ({names.GPU: 1, "cpu": "500m"}, replace(slice_of(share(100, CARD_MIB)), mode="exclusive"), {}),
    ],
    ids=lambda one: "-".join(one) if isinstance(one, dict) else "",
)  # fmt: skip
def test_a_slice_counts_as_it_is(asks: Mapping[str, int | str], allocated: ContainerAllocation, beyond: object) -> None:
    assert asked_beyond_held([bound(asks, allocated)]) == beyond


def test_init_containers_count_as_kubernetes_counts_them() -> None:
    """The init container still asks for 70 at its time, so only 10 are too many."""
    what = pod("p", container("app", {names.GPU_CORE: 80}), init=[container("first", {names.GPU_CORE: 70})])
    given = PodAllocation(
        node="n0", containers={"app": slice_of(share(20, 1)), "first": slice_of(share(70, 1))}, init=("first",)
    )
    assert asked_beyond_held([placed(what, given)]) == {names.GPU_CORE: 10}


def test_pods_that_kube_scheduler_does_not_count_add_nothing() -> None:
    shrunk = bound({names.GPU_CORE: 80}, slice_of(share(30, 512)))
    broken = replace(shrunk, metadata=replace(shrunk.metadata, annotations={names.ALLOCATION: "no JSON"}))
    waiting = pod("w", container("app", {names.GPU_CORE: 80}))
    assert asked_beyond_held([ended(shrunk), broken, waiting]) == {}


def test_a_bound_pod_that_was_given_no_cards_holds_nothing() -> None:
    """A static pod, say: kubelet runs it, and kube-scheduler counts what its mirror asks for."""
    what = pod("static", container("app", {names.NVIDIA_GPU: 2, "cpu": 1}))
    static = replace(what, spec=replace(what.spec, node_name="n0"))
    assert asked_beyond_held([static]) == {names.NVIDIA_GPU: 2}


def test_the_freed_part_of_a_card_passes_kube_schedulers_sums() -> None:
    """A card of 100 %, a slice of 80 % that shrank to 30 %, and a pod that asks for the other 70 %."""

    def asking(name: str, core: int) -> Pod:
        needs = ResourceRequirements(limits={names.GPU_CORE: core}, requests={names.GPU_CORE: core})
        return pod(name, replace(container("app"), resources=needs))

    given = PodAllocation(node="n0", containers={"app": slice_of(share(30, 512))})
    shrunk, waiting = placed(asking("shrunk", 80), given), asking("waits", 70)

    def refused(beyond: Mapping[str, int]) -> tuple[str, ...]:
        offered = node_capacity(Cards(1).read(), 0, (), beyond) | {"pods": "10"}
        node = Node(
            metadata=ObjectMeta(name="n0"),
            status=NodeStatus(allocatable=dict(offered), conditions=[Condition(type="Ready", status="True")]),
        )
        state = NodeState(node, total([requests_of(shrunk)]), [shrunk])
        said = Filters(waiting, {"n0": state}).rejection(state)
        return said.reasons if said is not None else ()

    assert refused({}) == (f"Insufficient {names.GPU_CORE}",)
    assert refused(asked_beyond_held([shrunk])) == ()
