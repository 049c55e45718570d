"""Pods that share a ResourceClaim: kubelet tells the driver the first one alone. All of them are in its slice."""

from __future__ import annotations

from pathlib import Path
from typing import cast
from unittest import mock

import pytest

from egpu.apps.agent.dra.users import ClaimUsers
from egpu.apps.agent.limits.memory import MemoryReconciler
from egpu.apps.agent.slots.leftovers import Leftovers
from egpu_base.api.kubernetes import Pod, PodSpec
from egpu_base.api.objects import ObjectMeta
from egpu_base.kubelet.dra import ClaimName
from egpu_base.kubernetes import Change
from egpu_base.kubernetes.reflector import Handler
from support.claim_node import CLAIM, ClaimNode, put_claim, put_pod, result
from support.fake_api import FakeAPI

LATER = ClaimName(CLAIM.namespace, CLAIM.name, "uid-later")
OTHER = ClaimName("default", "d", "uid-d")


class Pods:
    """In place of a reflector."""

    def on_change(self, handler: Handler[Pod]) -> None:
        self.tell = handler


def pod(name: str, *claims: str, namespace: str = "default") -> Pod:
    spec = PodSpec(resource_claims=[{"name": f"a{at}", "resourceClaimName": one} for at, one in enumerate(claims)])
    return Pod(metadata=ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}"), spec=spec)


@pytest.fixture
async def node(tmp_path: Path) -> ClaimNode:
    api = FakeAPI()
    put_pod(api, ("app", ((CLAIM.name, ""),)))
    put_claim(api, result(cores="30", memory="4Gi"))
    made = ClaimNode(tmp_path, api)
    await made.prepare()
    return made


async def test_the_pods_of_a_claim_come_and_go(node: ClaimNode) -> None:
    pods = Pods()
    users = ClaimUsers(pods)
    (record,) = node.slots.records()
    assert users.of(record) == {"uid-p"}
    pods.tell(Change(None, pod("q", "x", "c")))
    pods.tell(Change(None, pod("r", "c", namespace="another")))
    pods.tell(Change(None, pod("s", "d")))
    assert users.of(record) == {"uid-p", "uid-q"}
    pods.tell(Change(pod("s", "d"), pod("s", "d", "c")))  # the name of a template's claim comes later
    pods.tell(Change(pod("q", "x", "c"), None))
    assert users.of(record) == {"uid-p", "uid-s"}


async def test_every_pod_of_a_claim_is_watched_by_its_control_group(node: ClaimNode) -> None:
    """Else a program of the second pod hides its page and is nobody's: it may hold the whole card."""
    pods = Pods()
    memory = MemoryReconciler(node.slots, mock.Mock())
    memory.pods_of = ClaimUsers(pods).of
    pods.tell(Change(None, pod("q", "c")))
    (watched,) = memory.slices()
    assert watched.pods == ("uid-p", "uid-q")


def ended(node: ClaimNode) -> set[str]:
    """The pods whose processes were to be ended."""
    asked = cast("mock.Mock", node.former.end)
    found: list[Leftovers] = [one for each in asked.call_args_list for one in each.args[0]]
    return {one.pod_uid for one in found}


async def test_every_pod_of_a_claim_that_is_gone_is_ended(node: ClaimNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may change a claim may take its finalizer and delete it. Its cards have other users then."""
    monkeypatch.setattr(node.former, "end", mock.Mock(return_value={}))
    node.users["c"] = {"uid-p", "uid-q", "uid-new"}
    node.api.remove("resourceclaims", "c", "default")
    put_claim(node.api, result(cores="30", memory="4Gi"), claim=LATER, pod="new")
    await node.driver.sweep()
    assert ended(node) == {"uid-p", "uid-q"}, "not those of a later claim of the same name"
    assert node.left() == []


async def test_a_card_is_prepared_once_all_pods_of_a_claim_that_is_gone_have_left(
    node: ClaimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.former, "end", mock.Mock(return_value={}))
    monkeypatch.setattr(node.former, "_pids", mock.AsyncMock(return_value={1}))
    node.users["c"] = {"uid-p", "uid-q"}
    put_pod(node.api, ("app", ((OTHER.name, ""),)), pod="new")
    put_claim(node.api, result(cores="30", memory="4Gi"), claim=OTHER, pod="new")
    await node.prepare(OTHER)
    assert ended(node) == set()
    node.api.remove("resourceclaims", "c", "default")
    await node.driver.unprepare(OTHER)
    await node.prepare(OTHER)
    assert ended(node) == {"uid-p", "uid-q"}
