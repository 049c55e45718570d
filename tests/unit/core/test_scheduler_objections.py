"""What `egpu explain` says of Kubernetes' own rules: selectors, taints, resources, and the scheduler's last word."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from egpu.core.explain import Explanation
from egpu.core.preemption.explaining import explain_with_preemption
from egpu.core.preemption.population import Population
from egpu.core.preemption.scene import Scene
from egpu_base.api.kubernetes import ContainerPort, Node, NodeSpec, NodeStatus, Pod, Taint, Toleration
from egpu_base.api.objects import Condition, ObjectMeta
from egpu_base.api.quantities import Quantity
from support.objects import BINPACK, CORE, MEMORY, cluster, container, pod

ML = Taint(key="team", value="ml", effect="NoSchedule")


def a_node(
    name: str,
    *,
    taints: Sequence[Taint] = (),
    labels: Mapping[str, str] | None = None,
    ready: bool = True,
    cordoned: bool = False,
    pods: int = 10,
) -> Node:
    room: dict[str, Quantity] = {CORE: 1000, MEMORY: 1000, "pods": pods, "cpu": "4", "memory": "8Gi"}
    return Node(
        metadata=ObjectMeta(name=name, labels=dict(labels or {})),
        spec=NodeSpec(taints=list(taints), unschedulable=cordoned),
        status=NodeStatus(allocatable=room, conditions=[Condition(type="Ready", status="True" if ready else "False")]),
    )


def asking(name: str = "p", *, node: str = "", resources: Mapping[str, int | str] | None = None, **spec: Any) -> Pod:
    made = pod(name, container("app", {CORE: 20, MEMORY: 10, **(resources or {})}))
    return replace(made, spec=replace(made.spec, node_name=node, **spec))


def explained(what: Pod, *nodes: Node, others: Sequence[Pod] = ()) -> Explanation:
    cache = cluster(nodes=len(nodes))
    for one in nodes:
        cache.node_changed(one)
    return explain_with_preemption(
        what, Scene(cache, {one.name: one for one in nodes}, Population.of(others), (), BINPACK)
    )


@pytest.mark.parametrize(
    ("what", "node", "reason"),
    [
        (asking(), a_node("n0", taints=[ML]), "has the taint team=ml:NoSchedule, which the pod does not tolerate"),
        (asking(), a_node("n0", cordoned=True), "is unschedulable (kubectl uncordon)"),
        (asking(), a_node("n0", ready=False), "is not ready"),
        (
            asking(node_selector={"zone": "a"}),
            a_node("n0", labels={"zone": "b"}),
            "has zone=b, and the pod selects zone=a",
        ),
        (asking(node_selector={"zone": "a"}), a_node("n0"), "has no label zone, and the pod selects zone=a"),
        (
            asking(
                affinity={
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
                        }
                    }
                }
            ),
            a_node("n0"),
            "does not match the pod's node affinity",
        ),
        (
            asking(resources={"cpu": "3500m", "memory": "16Gi"}),
            a_node("n0"),
            "has 3 of 4 cpu free, the pod asks for 3.5; has 8192 MiB of 8192 MiB memory free, the pod asks for 16 GiB",
        ),
        (asking(), a_node("n0", pods=1), "has its maximum of 1 pods"),
    ],
)
def test_a_node_with_free_cards_that_the_scheduler_would_not_give_says_why(what: Pod, node: Node, reason: str):
    there = asking("other", node="n0", resources={"cpu": 1})
    found = explained(what, node, others=[there])
    assert found.objections == (("n0", reason),)
    assert (found.state, found.scores) == ("waiting", ())
    lines = found.lines()
    assert lines[0] == "pod default/p: waits: 1 of 1 nodes have the cards; the scheduler rejects them"
    assert f"  node n0: {reason}" in lines
    assert "preemption" not in " ".join(lines), "nobody with cards has to go"


def test_a_neighbours_port_is_an_objection():
    port = ContainerPort(host_port=8080)
    mine = asking(containers=[replace(container("app", {CORE: 20, MEMORY: 10}), ports=[port])])
    there = replace(
        mine, metadata=replace(mine.metadata, name="other", uid="u2"), spec=replace(mine.spec, node_name="n0")
    )
    found = explained(mine, a_node("n0"), others=[there])
    assert found.objections == (("n0", "pod default/other uses port 8080 of node n0"),)


def test_nodes_that_take_the_pod_keep_their_scores():
    found = explained(asking(), a_node("n0", taints=[ML]), a_node("n1"))
    assert found.state == "can-be-placed"
    assert found.summary == "is not placed yet; 1 of 2 nodes have room for it"
    assert [node for node, _ in found.scores] == ["n1"]
    tolerant = asking(tolerations=[Toleration(key="team", operator="Exists")])
    assert explained(tolerant, a_node("n0", taints=[ML])).objections == ()


def test_where_cards_are_short_too_both_are_said():
    full = explained(asking(resources={MEMORY: 100, "cpu": 8}), a_node("n0"))
    assert full.refusals
    assert full.objections
    assert full.summary.endswith("; the scheduler would reject all nodes")


def test_a_pod_without_a_gpu_is_explained_as_well():
    plain = asking(containers=[container("app", {"cpu": 8})])
    found = explained(plain, a_node("n0"))
    assert found.state == "no-gpu"
    assert found.objections == (("n0", "has 4 of 4 cpu free, the pod asks for 8"),)


def test_the_scheduler_has_the_last_word():
    assert explained(asking(), a_node("n0")).lines()[-1] == "  default-scheduler has not reported on it yet"
    other = asking(scheduler_name="batch", scheduling_gates=[{"name": "quota"}])
    assert explained(other, a_node("n0")).scheduler == (
        "batch ignores it until its scheduling gates are removed: quota"
    )
    what = asking()
    said = Condition(
        type="PodScheduled",
        status="False",
        reason="Unschedulable",
        message="0/1 nodes are available: 1 Insufficient cpu.",
        last_transition_time="2026-11-01T10:00:00Z",
    )
    told = replace(what, status=replace(what.status, conditions=[said]))
    assert explained(told, a_node("n0")).lines()[-1] == (
        "  default-scheduler said (2026-11-01T10:00:00Z): 0/1 nodes are available: 1 Insufficient cpu."
    )


def test_what_only_the_scheduler_can_tell_is_named():
    spread = asking(topology_spread_constraints=[{"whenUnsatisfiable": "DoNotSchedule"}])
    details = " ".join(explained(spread, a_node("n0")).details)
    assert "spec.topologySpreadConstraints is not checked here" in details


def test_a_pod_that_has_its_place_is_not_asked_about():
    bound = asking(node="n0", containers=[container("app", {"cpu": 8})])
    assert explained(bound, a_node("n0", taints=[ML])).objections == ()
