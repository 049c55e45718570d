"""A view that is kept by what changes is the view that is made anew, after any changes in any order."""

from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Final

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, PodAllocation, encode
from egpu.api.objects import ClaimAllocation, ElasticGPU, ElasticGPUClaim, ElasticGPUClaimStatus, ElasticGPUSpec, Slice
from egpu.core.placement.cache import SchedulerCache, rebuild
from egpu.core.view import LiveView, SliceKey, SliceUsage, cluster_view
from egpu_base.api.devices import (
    AllocatedDevice,
    ConsumerReference,
    DeviceAllocation,
    ResourceClaim,
    ResourceClaimStatus,
)
from egpu_base.api.devices import ClaimAllocation as Allocation
from egpu_base.api.kubernetes import (
    Container,
    Node,
    NodeSpec,
    NodeStatus,
    Pod,
    PodSpec,
    ResourceRequirements,
    UsedClaim,
)
from egpu_base.api.objects import Condition, ObjectMeta, ObjectReference
from support.objects import card, claim, claim_pod, cluster, ended, gang_pod, gpu_class, placed, slice_pod

NOW: Final = datetime(2026, 11, 23, 12, tzinfo=UTC)
NODES, CARDS, CLAIMS = ("n0", "n1", "n2", "n3"), (0, 1), ("c0", "c1")
"""Few, so that they meet; there are as many pods of each sort."""
CHANGES: Final = 300
LOOKS: Final = 0.7


class Cluster:
    """Objects as an API server has them; each change is shown to a cache and to the live view over it."""

    def __init__(self) -> None:
        self.cache = SchedulerCache()
        self.live = LiveView(self.cache)
        self.nodes: dict[str, Node] = {}
        self.gpus: dict[str, ElasticGPU] = {}
        self.claims: dict[str, ElasticGPUClaim] = {}
        self.pods: dict[str, Pod] = {}
        self.device_claims: dict[str, ResourceClaim] = {}
        self.usage: dict[SliceKey, SliceUsage] = {}
        self.cache.class_changed(gpu_class())

    def put_node(self, one: Node) -> None:
        self.nodes[one.name] = one
        self.cache.node_changed(one)
        self.live.node_changed(one)

    def put_gpu(self, one: ElasticGPU) -> None:
        self.gpus[one.name] = one
        self.cache.gpu_changed(one)
        self.live.gpu_changed(one)

    def put_claim(self, one: ElasticGPUClaim) -> None:
        self.claims[one.uid] = one
        self.cache.claim_changed(one)
        self.live.claim_changed(one)

    def put_device_claim(self, one: ResourceClaim) -> None:
        self.device_claims[one.uid] = one
        self.cache.device_claims.claim_changed(one)
        self.live.device_claim_changed(one)

    def drop_device_claim(self, uid: str) -> None:
        if self.device_claims.pop(uid, None) is not None:
            self.cache.device_claims.claim_deleted(uid)
            self.live.device_claim_deleted(uid)

    def put_pod(self, one: Pod) -> None:
        self.pods[one.uid] = one
        self.cache.pod_changed(one)
        self.live.pod_changed(one)

    def drop(self, kind: str, key: str) -> None:
        """Nothing happens where it is not there."""
        kept: dict[str, object] = getattr(self, f"{kind}s")
        if kept.pop(key, None) is not None:
            for told in (self.cache, self.live):
                deleted: Callable[[str], None] = getattr(told, f"{kind}_deleted")
                deleted(key)

    def use(self, usage: dict[SliceKey, SliceUsage]) -> None:
        self.usage = usage
        for _ in self.live.use(usage):
            pass

    def check(self) -> None:
        gpus, pods = list(self.gpus.values()), list(self.pods.values())
        claims, nodes = list(self.claims.values()), list(self.nodes.values())
        device_claims = list(self.device_claims.values())
        anew = rebuild(gpus, pods, claims, [gpu_class()], nodes)
        for one in device_claims:
            anew.device_claims.claim_changed(one)
        made = cluster_view(
            anew, nodes=nodes, pods=pods, claims=claims, gpus=gpus, usage=self.usage, now=NOW,
            device_claims=device_claims,
        )  # fmt: skip
        kept = self.live.view(now=NOW)
        assert kept == made
        assert (kept.totals, kept.namespaces) == (made.totals, made.namespaces)
        assert [node.text for node in kept.nodes] == [node.text for node in made.nodes]


def share(node: str, index: int, core: int) -> CardShare:
    return CardShare(uuid=f"GPU-{node}-{index}", index=index, minor=index, core=core, memory_mib=core * 100)


def held(node: str, index: int, core: int, *, claimed: str = "", server: str = "") -> ContainerAllocation:
    return ContainerAllocation(
        provisioner=names.VCUDA, mode="shared", cards=(share(node, index, core),), claim=claimed, server=server
    )


def labelled(one: Pod, label: str) -> Pod:
    meta = replace(one.metadata, labels={"team": label}, creation_timestamp="2026-11-23T11:00:00Z")
    return replace(one, metadata=meta)


def waiting(one: Pod) -> Pod:
    cache = cluster()
    cache.class_changed(gpu_class())
    cache.claim_changed(claim(CLAIMS[0]))
    demand = {names.DEMAND: encode(cache.request(one).demand)}
    return replace(one, metadata=replace(one.metadata, annotations=one.annotations | demand))


def node_change(on: Cluster, chance: Random) -> None:
    name = chance.choice(NODES)
    if chance.random() < 0.3:
        on.drop("node", name)
        return
    ready = Condition(type="Ready", status=chance.choice(("True", "False")))
    meta = ObjectMeta(name=name, annotations=chance.choice(({}, {names.POOL_ADDRESS: "127.0.0.1:1"})))
    spec = NodeSpec(unschedulable=chance.random() < 0.5)
    on.put_node(Node(metadata=meta, spec=spec, status=NodeStatus(conditions=[ready])))


def card_change(on: Cluster, chance: Random) -> None:
    one = card(chance.choice(NODES), chance.choice(CARDS), healthy=chance.random() < 0.7,
               model=chance.choice(("T4", "A10")))  # fmt: skip
    if chance.random() < 0.5:
        on.put_gpu(one)
    else:
        on.drop("gpu", one.name)


def claim_change(on: Cluster, chance: Random) -> None:
    """Bound or not, or gone: its slice may stay."""
    one = claim(chance.choice(CLAIMS))
    if chance.random() < 0.3:
        on.drop("claim", one.uid)
        return
    one = replace(one, metadata=replace(one.metadata, labels={"team": chance.choice("ab")}))
    if chance.random() < 0.7:
        node = chance.choice(NODES)
        bound = ClaimAllocation(node=node, container=held(node, chance.choice(CARDS), 30, claimed=one.name))
        one = replace(one, status=ElasticGPUClaimStatus(phase="Bound", allocation=bound))
    on.put_claim(one)


def slice_change(on: Cluster, chance: Random) -> None:
    name, node, index = chance.choice(CLAIMS), chance.choice(NODES), chance.choice(CARDS)
    if chance.random() < 0.4:
        on.drop("gpu", f"slice-{name}")
        return
    source = Slice(
        uuid=f"GPU-{node}-{index}", index=index, minor=index, core=30, memory_mib=3000,
        provisioner=names.VCUDA, mode="shared",
    )  # fmt: skip
    whose = ObjectReference(namespace=chance.choice(("default", "other")), name=name, uid=f"uid-claim-{name}")
    spec = ElasticGPUSpec(node_name=node, slice=source, claim_ref=whose)
    on.put_gpu(ElasticGPU(metadata=ObjectMeta(name=f"slice-{name}"), spec=spec))


def device_claim_change(on: Cluster, chance: Random) -> None:
    """Allocated or not, shared by pods or not, or gone. An allocation does not change, and its pods are on its node."""
    number, node = chance.choice(CARDS), NODES[1]
    uid, known = f"uid-dra-{number}", on.device_claims.get(f"uid-dra-{number}")
    if chance.random() < 0.3:
        on.drop_device_claim(uid)
        return
    result = AllocatedDevice(
        request="gpu", driver=names.DRIVER, pool=node, device=f"gpu-{node}-{chance.choice(CARDS)}",
        consumed_capacity={"cores": "20", "memory": "1Gi"},
    )  # fmt: skip
    allocation = Allocation(devices=DeviceAllocation(results=[result])) if chance.random() < 0.7 else None
    if known is not None and known.status.allocation is not None and allocation is not None:
        allocation = known.status.allocation
    users = [ConsumerReference(resource="pods", name=f"dra-{n}", uid=f"uid-dra-pod-{n}") for n in CARDS]
    reserved = chance.sample(users, chance.randrange(3)) if allocation is not None else None
    status = ResourceClaimStatus(allocation=allocation, reserved_for=reserved)
    on.put_device_claim(
        ResourceClaim(metadata=ObjectMeta(name=f"dra-{number}", namespace="default", uid=uid), status=status)
    )


def device_pod_change(on: Cluster, chance: Random) -> None:
    number, node = chance.choice(CARDS), NODES[1]
    uid = f"uid-dra-pod-{number}"
    if chance.random() < 0.3:
        on.drop("pod", uid)
        return
    known = on.pods.get(uid)
    placed_on = known.spec.node_name if known is not None and known.spec.node_name else chance.choice(("", node))
    using = Container(name="app", resources=ResourceRequirements(claims=[UsedClaim(name="c")]))
    listed = [{"name": "c", "resourceClaimName": f"dra-{chance.choice(CARDS)}"}] if known is None else None
    claims = listed or (known.spec.resource_claims if known is not None else None)
    on.put_pod(
        Pod(
            metadata=ObjectMeta(name=f"dra-{number}", namespace="default", uid=uid),
            spec=PodSpec(containers=[using], node_name=placed_on, resource_claims=claims),
        )
    )


def pod_change(on: Cluster, chance: Random) -> None:
    """Of its own slice, of a claim's, of another node's card, or of a gang; waiting, running, ended or gone. A pod that
    has cards keeps them until it ends."""
    sort, number = chance.choice(("own", "claim", "pool", "gang")), chance.choice(CARDS)
    name, claimed = f"{sort}-{number}", CLAIMS[number]
    node, index, other = chance.choice(NODES), chance.choice(CARDS), chance.choice(NODES)
    one, given = {
        "own": (slice_pod(name), held(node, index, 20)),
        "claim": (claim_pod(name, claimed), held(node, index, 30, claimed=claimed)),
        "pool": (slice_pod(name), held(other, index, 20, server=other if other != node else "")),
        "gang": (gang_pod(name), held(node, index, 100)),
    }[sort]
    state, known = chance.choice(("waits", "runs", "runs", "ended", "gone")), on.pods.get(one.uid)
    if state == "gone":
        on.drop("pod", one.uid)
        return
    if known is not None and known.spec.node_name:
        one = known
    elif state == "waits":
        one = waiting(one)
    else:
        one = placed(one, PodAllocation(node=node, containers={"app": given}))
    one = labelled(one, chance.choice("ab"))
    on.put_pod(ended(one) if state == "ended" and one.spec.node_name else one)


def use_change(on: Cluster, chance: Random) -> None:
    used = SliceUsage(memory_bytes=chance.randrange(3) << 20, core_ratio=0.25 * chance.randrange(3), age_seconds=90.0)
    uuid = f"GPU-{chance.choice(NODES)}-{chance.choice(CARDS)}"
    on.use({SliceKey("default", f"{sort}-{number}", "app", uuid): used for number in CARDS for sort in ("own", "dra")})


@pytest.mark.parametrize("seed", range(4))
def test_what_is_kept_is_what_is_made_anew(seed: int) -> None:
    """Looked at now and then: what was kept at one look counts at the next."""
    on, chance = Cluster(), Random(seed)
    for node in NODES:
        for index in CARDS:
            on.put_gpu(card(node, index))
    changes = (node_change, card_change, claim_change, claim_change, slice_change, pod_change, pod_change, use_change)
    changes += (device_claim_change, device_claim_change, device_pod_change)
    for _ in range(CHANGES):
        chance.choice(changes)(on, chance)
        if chance.random() < LOOKS:
            on.check()
    on.check()
