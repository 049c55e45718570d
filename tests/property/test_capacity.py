"""Capacity is never lost and never invented, whatever comes in whatever order.

The oracle is arithmetic done afresh from the list of live pods and claims: per card what the ledger says is free plus
what they hold must be what the card has.
"""

import functools
from collections import defaultdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import PodAllocation
from egpu.api.objects import ClaimAllocation, ElasticGPU, ElasticGPUClaim, ElasticGPUClaimStatus
from egpu.core.claims.lifecycle import claim_slices
from egpu.core.placement.cache import SchedulerCache, rebuild
from egpu.core.placement.node_names import NodeNames
from egpu.core.placement.ranking import SECOND_BEST
from egpu.core.placement.requests import CLAIM_CONTAINER, claim_allocations
from egpu.core.policies.fleet import Fleet
from egpu.core.policies.prices import Prices, compute_prices
from egpu.core.policies.registry import CLUSTER_NAMES, Policies
from egpu.core.policies.shapes import Machine, Mix, Shape
from egpu_base.api.kubernetes import Container, Node, NodeStatus, Pod
from egpu_base.api.objects import ObjectMeta
from support.long import or_long
from support.objects import BINPACK, card, claim, claim_pod, container, ended, gpu_class, placed, pod

MEMORY_MIB = 8192
NODES = ("n0", "n1", "n2")
ASKED = (
    pod("asked-share", container("app", {names.GPU_CORE: 40, names.GPU_MEMORY: 2000})),
    pod("asked-card", container("app", {names.GPU: 1})),
    pod("asked-cards", container("app", {names.GPU: 2})),
)
_WHOLE = pod("selecting", container("app", {names.GPU: 1}))
SELECTING = replace(_WHOLE, spec=replace(_WHOLE.spec, node_selector={"zone": "a"}))
BEST_FIT = Policies.named("best-fit", "best-fit")
"""What it prefers follows from nothing but cards and hosts."""

asks = st.one_of(
    st.builds(lambda n: {names.NVIDIA_GPU: n}, st.integers(1, 2)),
    st.builds(
        lambda core, blocks: {names.DOCKER_VCUDA_CORE: core, names.DOCKER_VCUDA_MEMORY: blocks},
        st.sampled_from([1, 20, 30, 50, 70, 99, 100, 200]),
        st.integers(1, 20),
    ),
    st.builds(lambda n: {names.ALIYUN_GPU_MEM: n}, st.integers(1, 7)),
    st.builds(lambda n: {names.TFLOPS: n}, st.integers(1, 8)),
    st.builds(lambda n, core: {names.GPU: n, names.GPU_CORE: core}, st.integers(1, 2), st.sampled_from([10, 60])),
    st.none(),
)
policies = st.builds(Policies.named, st.sampled_from(CLUSTER_NAMES), st.sampled_from(CLUSTER_NAMES))


@functools.cache
def prices() -> Prices:
    """Of a mix of halves and of small shares with much memory, for these cards."""
    fleet = Fleet([Machine("", 0, 0, 0), Machine("n0", 0, 0, 3, "T4", MEMORY_MIB)])
    halves, small = (Shape(cards=1, core_milli=core, card_memory_mib=4096) for core in (500, 100))
    return compute_prices(Mix({halves: 2.0, small: 1.0}), fleet)


Containers = tuple[list[Container], list[Container]]


@st.composite
def containers(draw: st.DrawFn) -> Containers:
    """App containers and init containers (some of them restartable)."""
    cpus = st.integers(1, 2)
    apps = [container(f"a{i}", {"cpu": draw(cpus), **(draw(asks) or {})}) for i in range(draw(st.integers(1, 3)))]
    init = [container(f"i{i}", draw(asks), sidecar=draw(st.booleans())) for i in range(draw(st.integers(0, 2)))]
    return apps, init


def published(node: str, index: int, *, healthy: bool = True) -> ElasticGPU:
    return card(node, index, memory_mib=MEMORY_MIB, healthy=healthy)


def peak(allocation: PodAllocation, uuid: str) -> tuple[int, int]:
    """Compute and memory that an allocation takes of one card at its worst moment, by the definition."""

    def total(chosen: list[str]) -> tuple[int, int]:
        shares = [s for name in chosen for s in allocation.containers[name].cards if s.uuid == uuid]
        return sum(s.core for s in shares), sum(s.memory_mib for s in shares)

    steady = [name for name in allocation.containers if name not in allocation.init]
    moments, started = [total(steady)], list[str]()
    for name in allocation.containers:
        if name in allocation.sidecars:
            started.append(name)
        elif name in allocation.init:
            moments.append(total([*started, name]))
    return max(core for core, _ in moments), max(memory for _, memory in moments)


class Cluster(RuleBasedStateMachine):
    """Pods and claims come, bind, run, end and vanish; cards fail, disappear and return; the extender restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = SchedulerCache()
        self.cards: dict[str, ElasticGPU] = {}
        self.pods: dict[str, tuple[Pod, PodAllocation]] = {}
        self.assumed: dict[str, tuple[Pod, PodAllocation]] = {}
        self.nodes_shown: dict[str, Node] = {}
        self.claims: dict[str, ElasticGPUClaim] = {}
        self.slices: dict[str, ElasticGPU] = {}
        self.count = 0
        self.nodes = NodeNames((*NODES, "stranger"))
        self.classes = [
            gpu_class("now", retain=True),
            gpu_class("later", wait=True),
            gpu_class("whole", names.PHYSICAL),
        ]

    @initialize(sizes=st.tuples(*[st.integers(1, 3)] * len(NODES)))
    def start(self, sizes: tuple[int, ...]) -> None:
        for node, size in zip(NODES, sizes, strict=True):
            for index in range(size):
                self.show(published(node, index))
        for klass in self.classes:
            self.cache.class_changed(klass)
        self.cache.ranking.use_prices(prices())

    def show(self, gpu: ElasticGPU) -> None:
        self.cards[gpu.name] = gpu
        self.cache.gpu_changed(gpu)

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    # --- pods ---

    def bind(self, what: Pod, how: Policies, data: st.DataObject) -> None:
        """Filter, then choose on any node that was granted, then write claims, then assume: as the extender does."""
        request = self.cache.request(what)
        granted = self.cache.filter(request, NODES).fits
        if not granted:
            return
        node = data.draw(st.sampled_from(granted))
        allocation = self.cache.ranking.choose(request, node, how)  # must never raise after the filter's yes
        for name, held in claim_allocations(request, allocation).items():
            changed = replace(self.claims[name], status=ElasticGPUClaimStatus(allocation=held))
            self.cache.assume_claim(changed.uid, held)
            self.claims[name] = changed
            self.cache.claim_changed(changed)
        self.cache.assume_pod(what, allocation)
        self.assumed[what.uid] = (what, allocation)

    @rule(shape=containers(), how=policies, data=st.data())
    def pod_comes(self, shape: tuple[list[Container], list[Container]], how: Policies, data: st.DataObject) -> None:
        apps, init = shape
        self.bind(pod(self.name("p"), *apps, init=init), how, data)

    @precondition(lambda self: self.claims)
    @rule(how=policies, data=st.data())
    def pod_with_a_claim_comes(self, how: Policies, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.claims)))
        self.bind(claim_pod(self.name("p"), chosen), how, data)

    @precondition(lambda self: self.assumed)
    @rule(data=st.data())
    def binding_is_seen(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.assumed)))
        what, allocation = self.assumed.pop(uid)
        self.pods[uid] = (placed(what, allocation), allocation)
        self.cache.pod_changed(self.pods[uid][0])

    @precondition(lambda self: self.assumed)
    @rule(data=st.data())
    def binding_fails(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.assumed)))
        del self.assumed[uid]
        self.cache.forget_pod(uid)

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), gone=st.booleans())
    def pod_ends(self, data: st.DataObject, gone: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        what, _ = self.pods[uid]
        self.cache.pod_changed(ended(what, still_running=True))
        assert any(holder.id == uid for holder in self.cache.ledger.holders())
        del self.pods[uid]
        for _ in range(2):  # events repeat
            self.cache.pod_deleted(uid) if gone else self.cache.pod_changed(ended(what))

    # --- claims ---

    @rule(klass=st.sampled_from(["now", "later"]), core=st.sampled_from([10, 60]), cards=st.integers(1, 2))
    def claim_comes(self, klass: str, core: int, cards: int) -> None:
        wanted = {names.GPU: cards, names.GPU_CORE: core, names.GPU_MEMORY: 1024}
        self.claims_of(claim(self.name("c"), wanted, klass))

    @rule(cards=st.integers(1, 2))
    def claim_for_whole_cards_comes(self, cards: int) -> None:
        self.claims_of(claim(self.name("c"), {names.NVIDIA_GPU: cards}, "whole"))

    def claims_of(self, what: ElasticGPUClaim) -> None:
        self.claims[what.name] = what
        self.cache.claim_changed(what)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), how=policies)
    def claim_is_bound(self, data: st.DataObject, how: Policies) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.claims)))
        what = self.claims[chosen]
        request = self.cache.claim_request(what)
        granted = self.cache.filter(request, NODES).fits
        if what.status.allocation is not None or what.spec.class_name == "later" or not granted:
            return
        node = data.draw(st.sampled_from(granted))
        given = self.cache.ranking.choose(request, node, how)
        held = ClaimAllocation(node=node, container=given.containers[CLAIM_CONTAINER])
        self.cache.assume_claim(what.uid, held)
        self.claims_of(replace(what, status=ElasticGPUClaimStatus(allocation=held)))
        for piece in claim_slices(self.claims[chosen], "Retain"):
            self.slices[piece.name] = piece
            self.cache.gpu_changed(piece)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def claim_goes(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.claims)))
        users = [p for p, _ in [*self.pods.values(), *self.assumed.values()] if chosen in p.annotations.values()]
        if not users:
            self.cache.claim_deleted(self.claims.pop(chosen).uid)

    @precondition(lambda self: self.slices)
    @rule(data=st.data())
    def retained_slice_is_deleted(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.slices)))
        del self.slices[chosen]
        self.cache.gpu_deleted(chosen)

    # --- cards ---

    @rule(node=st.sampled_from(NODES), index=st.integers(0, 2), healthy=st.booleans())
    def card_changes(self, node: str, index: int, healthy: bool) -> None:
        self.show(published(node, index, healthy=healthy))

    @precondition(lambda self: self.cards)
    @rule(data=st.data())
    def card_disappears(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.cards)))
        del self.cards[chosen]
        self.cache.gpu_deleted(chosen)

    @precondition(lambda self: self.cards)
    @rule(data=st.data(), model=st.sampled_from(["T4", "A10"]))
    def card_turns_out_to_be_another(self, data: st.DataObject, model: str) -> None:
        gpu = self.cards[data.draw(st.sampled_from(sorted(self.cards)))]
        physical = gpu.spec.physical_gpu
        assert physical is not None
        self.show(replace(gpu, spec=replace(gpu.spec, physical_gpu=replace(physical, model=model))))

    # --- nodes ---

    @rule(name=st.sampled_from(NODES), zone=st.sampled_from("ab"), cpu=st.sampled_from([2, 8, 8]), pooled=st.booleans())
    def node_is_shown(self, name: str, zone: str, cpu: int, pooled: bool) -> None:
        annotations = {names.POOL_ADDRESS: "10.0.0.1:7000", names.POOL_LINK: "10000"} if pooled else None
        node = Node(
            metadata=ObjectMeta(name=name, labels={"zone": zone}, annotations=annotations),
            status=NodeStatus(allocatable={"cpu": str(cpu), "memory": "64Gi"}),
        )
        self.nodes_shown[name] = node
        self.cache.node_changed(node)

    @precondition(lambda self: self.nodes_shown)
    @rule(data=st.data())
    def node_goes(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes_shown)))
        del self.nodes_shown[name]
        self.cache.node_deleted(name)

    # --- what must hold ---

    @invariant()
    def free_plus_held_is_all(self) -> None:
        held: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        bound = {c.uid: c.status.allocation for c in self.claims.values() if c.status.allocation}
        for allocation in bound.values():
            whole = PodAllocation(node=allocation.node, containers={"c": allocation.container})
            for share in allocation.container.cards:
                held[(allocation.node, share.uuid)].append(peak(whole, share.uuid))
        for piece in self.slices.values():
            source, owner = piece.spec.slice, piece.spec.claim_ref
            assert source is not None
            assert owner is not None
            if owner.uid not in bound:
                held[(piece.spec.node_name, source.uuid)].append((source.core, source.memory_mib))
        for _, allocation in [*self.pods.values(), *self.assumed.values()]:
            own = {name: c for name, c in allocation.containers.items() if not c.claim}
            for uuid in {share.uuid for c in own.values() for share in c.cards}:
                held[(allocation.node, uuid)].append(peak(replace(allocation, containers=own), uuid))
        for key, (core_free, memory_free, mode, _) in self.cache.ledger.snapshot().items():
            takes = held.get(key, [])
            assert core_free + sum(core for core, _ in takes) == 100
            assert memory_free + sum(memory for _, memory in takes) == MEMORY_MIB
            assert core_free >= 0
            assert memory_free >= 0
            assert (mode == "") == (not takes)
            assert mode != "exclusive" or len(takes) == 1
        assert self.cache.problems() == []

    @invariant()
    def a_restart_sees_the_same(self) -> None:
        seen = [*self.cards.values(), *self.slices.values()]
        pods = [what for what, _ in self.pods.values()]
        again = rebuild(reversed(seen), pods, list(self.claims.values()), self.classes, self.nodes_shown.values())
        for what, allocation in self.assumed.values():
            again.pod_changed(placed(what, allocation))
        assert again.ledger.snapshot() == self.cache.ledger.snapshot()
        assert again.ledger.holders() == self.cache.ledger.holders()
        self.compare_answers(again)

    def compare_answers(self, again: SchedulerCache) -> None:
        """What is kept between questions (verdicts, rows of names, the fleet) against what is computed from nothing."""
        names_alone = list(self.nodes)
        for asked in (*ASKED, SELECTING):
            request = self.cache.request(asked)
            assert request == again.request(asked)
            fits = self.cache.filter(request, self.nodes).ok
            assert fits.tolist() == again.filter(request, names_alone).ok.tolist()
            mine = self.cache.ranking.rated(request, self.nodes, BEST_FIT)
            others = again.ranking.rated(request, names_alone, BEST_FIT)
            # Which of equals is the best of all follows from when they came.
            assert np.minimum(mine, SECOND_BEST).tolist() == np.minimum(others, SECOND_BEST).tolist()
            assert (mine == 1).sum() == fits.any()
        assert self.cache.ledger.pool == again.ledger.pool
        self.compare_fleets(again)

    def compare_fleets(self, again: SchedulerCache) -> None:
        mine, others = self.cache.ranking.fleet(), again.ranking.fleet()
        for node in NODES:
            assert self.cache.hosts.free(node) == again.hosts.free(node)
            row, other = self.cache.ledger.row(node), again.ledger.row(node)
            assert (row is None) == (other is None)
            if row is not None and other is not None:
                assert mine.state[:, row].tolist() == others.state[:, other].tolist()
                width = min(mine.width, others.width)
                assert mine.core[row, :width].tolist() == others.core[other, :width].tolist()
                assert mine.card_memory[row, :width].tolist() == others.card_memory[other, :width].tolist()


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=or_long(20, 60), stateful_step_count=30, deadline=None)


@given(shapes=st.lists(containers(), max_size=6), asked=containers(), order=st.permutations(NODES))
@settings(max_examples=or_long(40, 100), deadline=None)
def test_the_answer_does_not_depend_on_the_order_of_nodes(
    shapes: list[Containers], asked: Containers, order: list[str]
) -> None:
    cache = rebuild([published(node, index) for node in NODES for index in range(2)], [], [])
    for number, (apps, init) in enumerate(shapes):
        what = pod(f"p{number}", *apps, init=init)
        for node in cache.filter(cache.request(what), NODES).fits[:1]:
            cache.pod_changed(placed(what, cache.ranking.choose(cache.request(what), node, BINPACK)))
    request = cache.request(pod("x", *asked[0], init=asked[1]))
    straight, shuffled = cache.filter(request, NODES), cache.filter(request, order)
    assert set(straight.fits) == set(shuffled.fits)
    assert set(straight.refused) == set(shuffled.refused)
    one_by_one = {node for node in NODES if cache.filter(request, [node]).fits}
    assert one_by_one == set(straight.fits)
    assert cache.ranking.scores(request, NODES, BINPACK) == cache.ranking.scores(request, order, BINPACK)
    for node, refusal in straight.refusals().items():
        assert refusal.text()
        assert refusal.node == node
