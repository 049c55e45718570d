"""What an agent may offer beside other programs, step by step: by a clock, a kubelet and pods that a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpu.api import names
from egpu.apps.agent import standing as module
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.standing import SETTLE_SECONDS, SLICES_SECONDS, NodeStanding
from egpu.core.node_condition import condition_of
from egpu.core.offered import OFFERED
from egpu_base.api.kubernetes import Container, Node, NodeStatus, Pod, PodSpec, ResourceRequirements
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import ElasticGPUError, Unavailable
from egpu_base.kubernetes import Reflector
from egpu_base.kubernetes.events import EventRecorder
from support.fake_api import FakeAPI
from support.local_node import NODE, Cards

THEIRS = {names.NVIDIA_GPU: ("GPU-0", "GPU-1")}


class Pods(list[Pod]):
    """In place of a reflector."""

    def __init__(self) -> None:
        self.synced = asyncio.Event()
        self.synced.set()


def our_pod(core: int) -> Pod:
    needs = ResourceRequirements(limits={names.GPU_CORE: core}, requests={names.GPU_CORE: core})
    spec = PodSpec(node_name=NODE, containers=[Container(name="c", resources=needs)])
    return Pod(metadata=ObjectMeta(name="p", namespace="x", annotations={names.ALLOCATION: "{}"}), spec=spec)


class World:
    def __init__(self) -> None:
        self.api = FakeAPI()
        self.api.put("nodes", {"kind": "Node", "metadata": {"name": NODE}, "status": {"conditions": []}})
        self.kubelet: Mapping[str, Collection[str]] | ElasticGPUError = {}
        self.pods = Pods()
        self.clock = 1000.0
        self.changes = 0
        self.withdrawn = 0
        self.starting: str | None = None
        self.inventory = Inventory(Cards(2), interval_seconds=60)
        client = self.api.client()
        self.standing = NodeStanding(
            client, NODE, inventory=self.inventory, pods=cast("Reflector[Pod]", self.pods), devices=self.devices,
            starting=lambda: self.starting, holders=list, events=EventRecorder(client, component="test"),
            changed=self.changed,
        )  # fmt: skip

    async def devices(self) -> Mapping[str, Collection[str]]:
        if isinstance(self.kubelet, ElasticGPUError):
            raise self.kubelet
        return self.kubelet

    def changed(self) -> None:
        self.changes += 1

    def withdraw(self) -> None:
        self.withdrawn += 1

    async def look(self, *, after: float = 0.0) -> None:
        self.clock += after
        await self.standing.look()

    async def written(self) -> str:
        await self.standing.write()
        found = condition_of(await self.api.client().get(Node, NODE))
        return "" if found is None else found.reason

    def limited(self, amounts: dict[str, str], **there: str) -> dict[str, str]:
        found: dict[str, Any] = {key.replace("_", "-").replace("--", "/"): value for key, value in there.items()}
        return self.standing.limited(amounts, Node(metadata=ObjectMeta(name=NODE), status=NodeStatus(capacity=found)))


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    here = World()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: here.clock))
    return here


OURS = {names.GPU_CORE: "200", names.NVIDIA_GPU: "2"}


async def test_amounts_are_lowered_only_after_the_cards_were_marked_for_a_while(world: World) -> None:
    """kubelet would refuse a pod for good that was bound just before the other program came."""
    await world.look()
    assert world.limited(OURS, **OURS) == OURS
    world.kubelet = THEIRS
    await world.look()
    assert world.standing.contested, "the cards are marked at once"
    assert world.limited(OURS, **OURS) == {}, "nothing is changed yet"
    world.pods.append(our_pod(30))
    changes = world.changes
    await world.look(after=SETTLE_SECONDS)
    assert world.changes == changes + 1, "the publisher is told"
    assert world.limited(OURS, **OURS) == {names.GPU_CORE: "30"}, "kubelet publishes the other name"
    assert world.limited(OURS) == {names.GPU_CORE: "30"}
    world.pods.clear()
    await world.look()
    assert world.limited(OURS, **OURS) == {names.GPU_CORE: "0"}
    assert world.limited(OURS) == {}, "nothing that is not there is published as 0"


async def test_a_name_that_kubelet_still_counts_is_left_to_it(world: World) -> None:
    world.kubelet = THEIRS
    await world.look()
    world.kubelet = {names.NVIDIA_GPU: ()}
    await world.look()
    assert not world.standing.contested
    assert world.limited(OURS, **OURS) == {names.GPU_CORE: "200"}
    assert world.standing.others() == {names.NVIDIA_GPU}
    assert world.limited(OURS, **(OURS | {names.NVIDIA_GPU: "0"})) == OURS, "kubelet has forgotten the other plugin"
    assert world.standing.others() == set()


async def test_a_kubelet_that_does_not_answer_changes_nothing(world: World) -> None:
    world.kubelet = Unavailable("no answer")
    with pytest.raises(Unavailable):
        await world.look()
    assert not world.standing.looked.is_set(), "nothing may be offered before it is known who else does"
    assert world.standing.now.reason == "Starting"
    assert await world.written() == "", "the condition of an earlier agent stays until more is known"
    world.kubelet = THEIRS
    await world.look()
    world.kubelet = Unavailable("no answer")
    with pytest.raises(Unavailable):
        await world.look()
    assert world.standing.contested
    assert await world.written() == "OtherPlugin"


async def test_slots_wait_for_the_end_of_another_program_unless_pods_have_some(world: World) -> None:
    async def known() -> None:
        """They are injected in some way."""

    world.kubelet = THEIRS
    waiting = asyncio.create_task(world.standing.may_register(known, world.withdraw))
    await asyncio.sleep(0)
    assert not world.withdrawn
    await world.look()
    await asyncio.sleep(0.01)
    assert (waiting.done(), world.withdrawn) == (False, 1), "what an earlier agent offered is withdrawn"
    waiting.cancel()
    world.pods.append(our_pod(30))
    await asyncio.wait_for(world.standing.may_register(known, world.withdraw), 1)
    assert world.withdrawn == 1, "pods keep their slots"


async def test_slices_of_a_dra_driver_are_listed_once_a_minute(world: World) -> None:
    def lists() -> int:
        return sum(path.endswith("resourceslices") for _, path in world.api.log)

    await world.look()
    await world.look()
    assert lists() == 1
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": NODE, "pool": pool, "devices": [{"name": "gpu-0"}]}
    world.api.put("resourceslices", {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec})
    await world.look(after=SLICES_SECONDS)
    assert lists() == 2
    assert [one.name for one in world.standing.rivals] == ["NVIDIA's DRA driver"]


async def test_an_event_and_readiness_follow_the_condition(world: World) -> None:
    await world.look()
    world.starting = "the cards have not been read"
    assert (await world.written(), world.standing.stuck()) == ("Starting", "the cards have not been read")
    world.kubelet = THEIRS
    await world.look()
    assert (await world.written(), world.standing.stuck()) == ("OtherPlugin", None), "an upgrade goes on"
    world.kubelet, world.starting = {}, None
    await world.look()
    assert await world.written() == "Ready"
    writes = len(world.api.log)
    await world.standing.write()
    assert len(world.api.log) == writes, "what is written is not written again"
    assert [one["reason"] for one in world.api.all("events")] == ["OtherPlugin", "Ready"]


SHARE = st.dictionaries(st.sampled_from(sorted(OFFERED)), st.integers(1, 400).map(str))


@given(SHARE, st.sets(st.sampled_from(sorted(OFFERED)), min_size=1), SHARE)
def test_beside_another_program_no_more_is_offered_than_pods_have(
    amounts: dict[str, str], taken: set[str], there: dict[str, str]
) -> None:
    async def offered() -> dict[str, str]:
        world = World()
        world.kubelet = dict.fromkeys(taken, ("GPU-0",))
        world.pods.append(our_pod(30))
        with mock.patch.object(module, "time", SimpleNamespace(monotonic=lambda: world.clock)):
            await world.look()
            await world.look(after=SETTLE_SECONDS)
        return world.limited(amounts, **there)

    found = asyncio.run(offered())
    assert not found.keys() & taken
    assert found.get(names.GPU_CORE, "30") == "30"
    assert all(amount == "0" for name, amount in found.items() if name != names.GPU_CORE)
