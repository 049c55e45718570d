"""The filter names the best node alone, unless kube-scheduler's scores should have a say."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from egpu.apps.extender.filter_results import FilterResults
from egpu.apps.extender.placing import Placing, Refused
from egpu.apps.extender.view import View
from egpu.core.placement.node_names import KnownNodes, NodeNames
from egpu.core.policies.registry import Policies
from egpu_base.api.kubernetes import Node, NodeSpec, Pod, Taint
from egpu_base.api.objects import ObjectMeta, OwnerReference
from egpu_base.errors import Conflict
from support.objects import cluster, container, place, pod, slice_pod

KNOWN = KnownNodes()
NODES = ("n0", "n1", "n2", "bare")
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {}}]}
NO_WISHES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "required affinity": {"affinity": {"podAffinity": REQUIRED, "nodeAffinity": None}},
    "other volumes": {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "persistentVolumeClaim": None}]},
}
WISHES: dict[str, dict[str, Any]] = {
    "a node": {"affinity": {"nodeAffinity": PREFERRED}},
    "near pods": {"affinity": {"podAffinity": REQUIRED | PREFERRED}},
    "far from pods": {"affinity": {"podAntiAffinity": PREFERRED}},
    "spreading": {"topology_spread_constraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
    "a volume": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
    "a volume of its own": {"volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}]},
    "devices": {"resource_claims": [{"name": "c", "resourceClaimName": "c"}]},
}


class World:
    """Three nodes with a card, of which n1 is in use, and one without."""

    def __init__(self, policy: str = "binpack", **taints: str) -> None:
        self.cache = cluster(nodes=3)
        nodes = {
            name: Node(
                metadata=ObjectMeta(name=name),
                spec=NodeSpec(taints=[Taint(key="k", effect=taints[name])] if name in taints else None),
            )
            for name in NODES
        }
        self.filtered = FilterResults()
        self.answers: list[tuple[str, ...]] = []
        view = cast("View", SimpleNamespace(cache=self.cache, nodes=nodes))
        self.placing = Placing(view, Policies.named(policy, policy), self.filtered)
        place(self.cache, slice_pod("there"), "n1")

    def named(self, what: Pod, nodes: tuple[str, ...] = NODES) -> tuple[str, ...]:
        asked = NodeNames(nodes, KNOWN)
        return tuple(asked.subset(self.placing.filter(what, asked).ok))


def wanting(**spec: Any) -> Pod:
    what = slice_pod("p")
    return replace(what, spec=replace(what.spec, **spec))


def owned(kind: str, *, controller: bool = True) -> Pod:
    what = slice_pod("p")
    owner = OwnerReference(api_version="v1", kind=kind, name="o", uid="o", controller=controller)
    return replace(what, metadata=replace(what.metadata, owner_references=[owner]))


@pytest.mark.parametrize("spec", NO_WISHES.values(), ids=NO_WISHES)
def test_a_pod_without_wishes_is_named_the_best_node_alone(spec: dict[str, Any]) -> None:
    assert World().named(wanting(**spec)) == ("n1",)


@pytest.mark.parametrize("spec", WISHES.values(), ids=WISHES)
def test_kube_scheduler_gets_all_nodes_for_a_pod_with_a_wish(spec: dict[str, Any]) -> None:
    assert World().named(wanting(**spec)) == NODES[:3]


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "ReplicationController"])
def test_it_spreads_replicas(kind: str) -> None:
    assert World().named(owned(kind)) == NODES[:3]


@pytest.mark.parametrize("what", [owned("Job"), owned("ReplicaSet", controller=False)], ids=["a Job", "no controller"])
def test_it_does_not_spread_pods_of_others(what: Pod) -> None:
    assert World().named(what) == ("n1",)


def test_all_nodes_are_named_when_the_best_one_is_to_be_avoided() -> None:
    assert World(n1="PreferNoSchedule").named(slice_pod("p")) == NODES[:3]
    assert World(n0="PreferNoSchedule", n1="NoSchedule").named(slice_pod("p")) == ("n1",)


def test_a_pod_that_comes_back_is_named_all_nodes_once() -> None:
    world = World()
    first, second = slice_pod("a"), slice_pod("b")
    assert world.named(first) == ("n1",)
    assert world.named(second) == ("n1",)
    assert world.named(first) == NODES[:3]
    assert world.named(first) == ("n1",)


def test_it_may_be_bound_to_no_other_node() -> None:
    world, what = World(), slice_pod("p")
    world.named(what)
    world.filtered.check(what.uid, "n1")
    with pytest.raises(Conflict, match="refused node n0"):
        world.filtered.check(what.uid, "n0")


def test_reasons_are_those_of_nodes_without_room_alone() -> None:
    world = World()
    asked = NodeNames(NODES, KNOWN)
    (refused,) = world.placing.filter(slice_pod("p"), asked).refused
    assert isinstance(refused, Refused)
    assert tuple(asked.subset(refused.which)) == ("bare",)


def test_the_best_node_is_that_of_the_policy_among_the_nodes_asked_about() -> None:
    assert World("spread").named(slice_pod("p"))[0] in {"n0", "n2"}
    assert World().named(slice_pod("p"), ("n0", "n2")) == ("n0",)
    assert World().named(slice_pod("p"), ("bare", "n2")) == ("n2",)
    assert World().named(slice_pod("p"), ("bare",)) == ()


def test_a_pod_without_a_gpu_fits_everywhere() -> None:
    assert World().named(pod("plain", container("c"))) == NODES
