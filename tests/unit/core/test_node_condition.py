"""Whether a node's agent may offer the cards, in words, and the node's condition that has them."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from egpu.api import names
from egpu.core.node_condition import (
    TYPE,
    Standing,
    condition_of,
    not_offering,
    removed,
    standing,
    without_driver,
    written,
)
from egpu.core.offered import OFFERED
from egpu.core.rivals import DRA, DRA_DRIVER, Rival, rivals_of
from egpu_base.api.kubernetes import Container, Node, Pod, PodSpec
from egpu_base.api.objects import ObjectMeta
from egpu_sim.cluster.apiserver.patching.json_patch import json_patch

THEIRS = Rival("their plugin", "kubectl label node NODE a=b")
OPERATORS: dict[str, str] = {"app": "nvidia-device-plugin-daemonset"}
NOTHING: dict[str, Any] = {"rivals": (), "driver": None, "starting": None, "users": 0}


def of(**more: Any) -> Standing:
    return standing("n0", **(NOTHING | more))


def test_an_agent_without_obstacles_is_ready() -> None:
    assert of() == Standing("Ready", "the agent offers this node's cards")
    assert of().ready


def test_each_obstacle_has_its_reason_and_words() -> None:
    other = of(rivals=(THEIRS,), users=2)
    assert other.reason == "OtherPlugin"
    assert "their plugin and our agent would both give out the cards of this node" in other.message
    assert "kubectl label node n0 a=b" in other.message, "with the node's name"
    assert "no more than its 2 GPU pods have" in other.message
    assert of(driver=without_driver("no NVML", loaded=False)).reason == "NoDriver"
    assert "Install NVIDIA's driver" in without_driver("no NVML.", loaded=False)
    assert "agent.runtimeClass" in without_driver("no NVML", loaded=True)
    assert of(starting="not registered with kubelet") == Standing("Starting", "not registered with kubelet")


@given(st.booleans(), st.booleans(), st.booleans())
def test_what_people_must_change_is_named_before_what_passes(rival: bool, driver: bool, starting: bool) -> None:
    found = of(
        rivals=(THEIRS,) if rival else (), driver="no" if driver else None, starting="not yet" if starting else None
    )
    reasons = {"OtherPlugin": rival, "NoDriver": driver, "Starting": starting, "Ready": True}
    assert found.reason == next(reason for reason, holds in reasons.items() if holds)
    assert found.ready == (not (rival or driver or starting))


def pod(labels: dict[str, str], *, container: str = "c") -> Pod:
    volumes = [{"name": "v", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}]
    spec = PodSpec(node_name="n0", containers=[Container(name=container)], volumes=volumes)
    return Pod(metadata=ObjectMeta(name="p", namespace="x", labels=labels), spec=spec)


def test_another_program_is_known_by_pods_by_kubelets_devices_and_by_slices() -> None:
    (by_pod,) = rivals_of([pod(OPERATORS)], resources=[names.NVIDIA_GPU], drivers=[])
    assert by_pod.name == "GPU Operator's device plugin"
    (hidden,) = rivals_of([], resources=["nvidia.com/mig-1g.10gb", "rdma/hca"], drivers=[])
    assert hidden.name == "a device plugin that offers nvidia.com/mig-1g.10gb"
    assert rivals_of([], resources=[], drivers=[DRA_DRIVER, names.DRIVER]) == (DRA,)
    both = rivals_of([pod(OPERATORS)], resources=[], drivers=[DRA_DRIVER])
    assert {one.name for one in both} == {by_pod.name, DRA.name}


@given(st.sets(st.sampled_from([*sorted(OFFERED), "nvidia.com/mig-2g.20gb", names.SLOT, "rdma/hca", "cpu", "a.b/c"])))
def test_only_a_resource_that_stands_for_cards_is_anothers(resources: set[str]) -> None:
    cards = resources - {names.SLOT, "rdma/hca", "cpu", "a.b/c"}
    found = rivals_of([pod({"app": "web"})], resources=resources, drivers=["compute-domain.nvidia.com", names.DRIVER])
    assert bool(found) == bool(cards)
    assert all(name in found[0].name for name in cards)


def node(*conditions: dict[str, Any]) -> Node:
    body = {"kind": "Node", "metadata": {"name": "n0"}, "status": {"conditions": [*conditions]}}
    return msgspec.convert(body, Node)


def patched(before: Node, operations: list[dict[str, Any]]) -> Node:
    return msgspec.convert(json_patch(msgspec.to_builtins(before), operations), Node)


OTHERS = st.lists(st.sampled_from(["Ready", "MemoryPressure", "KernelDeadlock"]), unique=True)


@given(OTHERS, st.sampled_from([of(), of(driver="no"), of(rivals=(THEIRS,))]), st.booleans())
def test_the_condition_is_written_and_removed_and_others_stay(
    others: list[str], wanted: Standing, before: bool
) -> None:
    there = [{"type": name, "status": "True"} for name in others]
    ours = [{"type": TYPE, "status": "False", "reason": "Starting", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    first = node(*there[:1], *(ours if before else []), *there[1:])
    now = patched(first, written(first, wanted, now="2026-02-02T00:00:00Z"))
    found = condition_of(now)
    assert found is not None
    assert (found.status, found.reason, found.message) == (str(wanted.ready), wanted.reason, wanted.message)
    kept = before and not wanted.ready
    assert found.last_transition_time == ("2026-01-01T00:00:00Z" if kept else "2026-02-02T00:00:00Z")
    assert [one.type for one in now.status.conditions or [] if one.type != TYPE] == others
    assert written(now, wanted, now="2026-03-03T00:00:00Z") == []
    assert not_offering(now) == (None if wanted.ready else (wanted.reason, wanted.message))
    gone = patched(now, removed(now))
    assert [one.type for one in gone.status.conditions or []] == others
    assert removed(gone) == []
