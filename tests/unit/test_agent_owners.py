"""Whose slot is it? The cases that a device plugin gets wrong: init containers, equal names, status that lags."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx2
import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, PodAllocation, encode
from egpu.apps.agent.node_pods import READS, NodePods
from egpu.apps.agent.slots.owners import Owners
from egpu_base.api.kubernetes import (
    MIRROR,
    Container,
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
)
from egpu_base.errors import NotFound, TerminalError, Unavailable
from egpu_base.kubelet.podresources import ContainerHoldings, PodHoldings
from egpu_base.kubernetes import Client
from support.waiting import DEADLINE_SECONDS

NODE = "node-a"


def given(core: int) -> ContainerAllocation:
    share = CardShare(uuid="GPU-1", index=0, minor=0, core=core, memory_mib=1)
    return ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=(share,))


def pod(
    *containers: str,
    inits: Sequence[str] = (),
    node: str = NODE,
    allocated_on: str = NODE,
    uid: str = "u1",
    name: str = "p",
) -> Pod:
    allocation = PodAllocation(
        node=allocated_on, init=tuple(inits), containers={each: given(10) for each in (*containers, *inits)}
    )
    return Pod(
        metadata=ObjectMeta(name=name, namespace="ns", uid=uid, annotations={names.ALLOCATION: encode(allocation)}),
        spec=PodSpec(
            node_name=node,
            containers=[Container(name=each) for each in containers],
            init_containers=[Container(name=each) for each in inits],
        ),
        status=PodStatus(phase="Pending"),
    )


def ended(given_pod: Pod, **codes: int) -> Pod:
    statuses = [
        ContainerStatus(name=name, state=ContainerState(terminated=ContainerStateTerminated(exit_code=code)))
        for name, code in codes.items()
    ]
    return replace(given_pod, status=PodStatus(phase="Pending", init_container_statuses=statuses))


def holdings(container: str = "main", slot_id: str = "3", name: str = "p") -> PodHoldings:
    held = ContainerHoldings("ns", name, container, {names.SLOT: (slot_id,), "other.io/thing": ("3", "9")})
    return PodHoldings("ns", name, (held,))


@dataclass
class Pods:
    now: list[Pod]
    reads: int = 0
    later: Pod | None = None
    after_reads: int = 0
    seen: list[str] = field(default_factory=list[str])

    async def read(self, namespace: str, name: str) -> Pod:
        self.reads += 1
        if self.later is not None and self.reads > self.after_reads:
            return self.later
        return next(each for each in self.now if each.name == name)

    async def on_node(self) -> Sequence[Pod]:
        return self.now


def owners(
    pods: Pods,
    *listed: PodHoldings,
    prepared: Sequence[tuple[str, str]] = (),
    slots: Mapping[tuple[str, str], set[str]] | None = None,
    lag_seconds: float = 0.3,
) -> Owners:
    async def ask() -> Sequence[PodHoldings]:
        return listed

    return Owners(
        NODE,
        holdings=ask,
        pods=pods,
        prepared=lambda: prepared,
        slots=lambda: slots or {},
        status_lag_seconds=lag_seconds,
    )


async def test_the_listed_container() -> None:
    found = await owners(Pods([pod("main")]), holdings()).of("3")
    assert (found.pod.uid, found.container, found.allocation) == ("u1", "main", given(10))


async def test_a_static_pod_gets_no_card_and_is_told_why() -> None:
    """Its mirror pod was refused; or, in a namespace that no webhook sees, it is there and nobody placed it."""

    class Nowhere(Pods):
        async def read(self, namespace: str, name: str) -> Pod:
            raise NotFound(f"pods {name} not found")

    bare = pod("main")
    mirror = replace(bare, metadata=replace(bare.metadata, annotations={MIRROR: "0123"}))
    for pods in (Nowhere([]), Pods([mirror])):
        with pytest.raises(TerminalError, match=r"pod ns/p, container main: .*a static pod can have no GPU") as raised:
            await owners(pods, holdings()).of("3")
        assert not isinstance(raised.value, NotFound)


async def test_the_same_id_of_another_resource_is_not_a_slot() -> None:
    with pytest.raises(Unavailable, match="lists no container"):
        await owners(Pods([pod("main")]), holdings()).of("9")


async def test_an_older_pod_of_the_same_name_still_ends() -> None:
    with pytest.raises(Unavailable, match="an earlier pod of this name"):
        await owners(Pods([pod("main")]), holdings(slot_id="3"), holdings(slot_id="4")).of("3")


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (pod("main", node="node-b"), "bound to node-b, not to node-a"),
        (pod("main", allocated_on="node-b"), "the allocation is for node node-b"),
        (pod("other"), "the allocation is for other"),
        (replace(pod("main"), metadata=ObjectMeta(name="p", namespace="ns")), "no allocation"),
        (
            replace(pod("main"), metadata=ObjectMeta(name="p", namespace="ns", annotations={names.ALLOCATION: "{}"})),
            "allocation annotation",
        ),
    ],
)
async def test_refusals_name_pod_container_and_reason(found: Pod, reason: str) -> None:
    with pytest.raises(TerminalError, match=reason) as caught:
        await owners(Pods([found]), holdings()).of("3")
    assert "pod ns/p, container main" in str(caught.value)


async def test_the_first_init_container_is_certain_without_waiting() -> None:
    pods = Pods([pod("main", inits=["one", "two"])])
    found = await asyncio.wait_for(owners(pods, holdings(), lag_seconds=1000).of("3"), DEADLINE_SECONDS)
    assert found.container == "one"


async def test_the_app_container_starts_when_every_init_container_has_ended() -> None:
    done = ended(pod("main", inits=["one", "two"]), one=0, two=0)
    assert (await owners(Pods([done]), holdings(), prepared=[("u1", "two")]).of("3")).container == "main"


async def test_a_status_that_lags_is_waited_for() -> None:
    early = pod("main", inits=["one"])
    pods = Pods([early], later=ended(early, one=0), after_reads=2)
    found = await owners(pods, holdings(), prepared=[("u1", "one")], lag_seconds=5).of("3")
    assert found.container == "main"


async def test_the_next_init_container_follows_the_last() -> None:
    early = pod("main", inits=["one", "two"])
    pods = Pods([early], later=ended(early, one=0), after_reads=1)
    found = await owners(pods, holdings(), prepared=[("u1", "one")], lag_seconds=5).of("3")
    assert found.container == "two"


async def test_an_init_container_that_failed_runs_again() -> None:
    failed = ended(pod("main", inits=["one"]), one=1)
    found = await asyncio.wait_for(
        owners(Pods([failed]), holdings(), prepared=[("u1", "one")], lag_seconds=1000).of("3"), DEADLINE_SECONDS
    )
    assert found.container == "one"


async def test_no_news_means_that_it_starts_once_more() -> None:
    found = await owners(Pods([pod("main", inits=["one"])]), holdings(), prepared=[("u1", "one")]).of("3")
    assert found.container == "one"


async def test_what_was_prepared_for_another_pod_says_nothing() -> None:
    pods = Pods([pod("main", inits=["one"])])
    asked = owners(pods, holdings(), prepared=[("u0", "one")], lag_seconds=1000).of("3")
    found = await asyncio.wait_for(asked, DEADLINE_SECONDS)
    assert found.container == "one"


async def test_a_pod_replaced_while_waiting() -> None:
    pods = Pods([pod("main", inits=["one"])], later=pod("main", inits=["one"], uid="u2"), after_reads=1)
    with pytest.raises(Unavailable, match="replaced by another pod"):
        await owners(pods, holdings(), prepared=[("u1", "one")], lag_seconds=5).of("3")


async def test_a_slot_that_only_init_containers_hold() -> None:
    found = await owners(Pods([pod(inits=["one"]), pod("main", name="q", uid="u2")])).of("3")
    assert (found.pod.name, found.container) == ("p", "one")


async def test_two_pods_that_could_have_it_are_not_guessed_between() -> None:
    with pytest.raises(Unavailable, match="ns/p, ns/q"):
        await owners(Pods([pod(inits=["one"]), pod(inits=["one"], name="q", uid="u2")])).of("3")


async def test_few_pods_are_read_at_once() -> None:
    """Each read beside others would begin with a handshake."""
    under_way, most = 0, 0

    async def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        under_way -= 1
        return httpx2.Response(200, json={"metadata": {"name": request.url.path.rpartition("/")[2]}})

    http = httpx2.AsyncClient(base_url="http://api.test", transport=httpx2.MockTransport(answer))
    pods = NodePods(Client(http), "node-1")
    found = await asyncio.gather(*(pods.read("ns", f"p{number}") for number in range(20)))
    assert [pod.name for pod in found] == [f"p{number}" for number in range(20)]
    assert most == READS


async def test_a_slot_is_not_that_of_an_init_container_that_has_another_one() -> None:
    """Neither as long as it runs, nor if the pod that the slot is for says of itself that it has ended."""
    first = pod(inits=("load",), uid="u1", name="first")
    second = pod(inits=("load",), uid="u2", name="second")
    has = {("u1", "load"): {"1"}}
    found = await owners(Pods([first, second]), slots=has).of("2")
    assert found.pod.uid == "u2"
    with pytest.raises(Unavailable, match="init containers only: none"):
        await owners(Pods([first, ended(second, load=0)]), slots=has).of("2")
    assert (await owners(Pods([first]), slots=has).of("1")).pod.uid == "u1", "it is started again"
