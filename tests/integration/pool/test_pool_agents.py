"""Agents of two nodes and a container of one on a card of the other: who is let in, what runs how long, restarts."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.executors.leftovers import processes_of
from egpu.adapters.executors.parents import ThisProcess
from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.adapters.pool import authority, messages
from egpu.adapters.pool.client import answer_of, dial
from egpu.adapters.pool.connection import Connection
from egpu.adapters.pool.security import Credentials
from egpu.api import names
from egpu.api.allocation import ContainerAllocation, PodAllocation
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.serving.bridges import SlotBridges, link
from egpu.apps.agent.serving.pod_service import PodService, ServedContainer
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu_base.api.kubernetes import Node, Pod, PodStatus
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import NotFound, Refused, Unavailable
from support import local_node, objects
from support.waiting import until

SERVER, HERE, ELSEWHERE = "gpu-1", "cpu-1", "cpu-2"


pytestmark = pytest.mark.usefixtures("executor_that_runs_nothing")


def given(index: int = 0, *, server: str = SERVER) -> ContainerAllocation:
    return ContainerAllocation(provisioner=names.POOL, mode="shared", server=server, cards=(local_node.share(index),))


def a_pod(name: str, on: str = HERE, allocation: ContainerAllocation | None = None) -> Pod:
    containers = {"main": allocation or given()}
    return objects.placed(objects.pod(name, objects.container("main")), PodAllocation(node=on, containers=containers))


@dataclass
class Pods:
    """The API server, as far as agents ask it."""

    pods: dict[str, Pod] = field(default_factory=dict[str, Pod])

    def add(self, pod: Pod) -> Pod:
        self.pods[pod.key] = pod
        return pod

    def end(self, pod: Pod) -> None:
        self.pods[pod.key] = replace(pod, status=PodStatus(phase="Succeeded"))

    async def read(self, namespace: str, name: str) -> Pod:
        if f"{namespace}/{name}" not in self.pods:
            raise NotFound(name)
        return self.pods[f"{namespace}/{name}"]

    async def on_node(self) -> Sequence[Pod]:
        return ()


class Nodes:
    """A client that knows where the one node serves."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def get(self, _kind: type[Node], name: str) -> Node:
        if name != SERVER:
            raise NotFound(name)
        return Node(metadata=ObjectMeta(name=name, annotations={names.POOL_ADDRESS: self.address}))


@dataclass
class Agents:
    directory: Path
    pods: Pods
    serving: PodService
    taken: set[str]
    """Cards that nobody else is to have any more."""

    def of(self, node: str, role: str = "server") -> Credentials:
        return authority.issue(self.directory / "pki", role, node)  # type: ignore[arg-type]

    async def ask(self, whose: Pod, who: str = HERE, role: str = "server", **changed: str) -> messages.Granted:
        said = {"namespace": whose.namespace, "pod": whose.name, "uid": whose.uid, "container": "main", **changed}
        hello = messages.Hello(role="pod")
        connection, _ = await dial(self.serving.listener.address, self.of(who, role), hello, expect=f"server/{SERVER}")
        try:
            await connection.send(messages.Open(number=1, **said))
            return answer_of(await connection.receive(), messages.Granted)
        finally:
            await connection.close()

    async def join(self, lease: str, token: str, who: str = HERE) -> Connection:
        hello = messages.Hello(role="data", lease=lease, token=token)
        connection, _ = await dial(self.serving.listener.address, self.of(who), hello, expect=f"server/{SERVER}")
        connection.writer.write(b"\n")
        return connection

    def running(self) -> set[str]:
        return {path.name for path in (self.directory / "served").iterdir()}


@contextlib.asynccontextmanager
async def agents(directory: Path, pods: Pods | None = None) -> AsyncGenerator[Agents]:
    """The serving half of the agent of SERVER."""
    pods = pods or Pods()
    inventory = Inventory(local_node.Cards(2), interval_seconds=60)
    await inventory.refresh()
    taken: set[str] = set()

    async def take(uuids: Iterable[str]) -> None:
        taken.update(uuids)

    serving = PodService(
        SERVER,
        executors=ExecutorSupervisor(directory / "served", ServedContainer, parent=ThisProcess(None, Confinement())),
        inventory=inventory,
        pods=pods,
        credentials=authority.issue(directory / "pki", "server", SERVER),
        listen="127.0.0.1:0",
        taken=take,
    )
    await serving.open()
    tasks = [asyncio.create_task(serving.listener.serve()), asyncio.create_task(serving.run())]
    try:
        yield Agents(directory, pods, serving, taken)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_pods_node_gets_its_executor_and_asking_again_the_same_one(state_dir: Path) -> None:
    async with agents(state_dir) as here:
        pod = here.pods.add(a_pod("p"))
        granted = await here.ask(pod)
        lease = granted.lease.lease
        connection = await here.join(lease, granted.token)
        greeting = (await connection.reader.readline()).decode().split()
        assert greeting == [lease, local_node.card(0).uuid]
        await connection.close()
        assert (await here.ask(pod)).lease.lease == lease
        assert here.running() == {lease}
        assert here.taken == {local_node.card(0).uuid}


async def test_nobody_gets_what_the_scheduler_did_not_give_to_a_pod_of_their_node(state_dir: Path) -> None:
    async with agents(state_dir) as here:
        pod = here.pods.add(a_pod("p"))
        local = here.pods.add(a_pod("local", allocation=replace(given(), server="", provisioner=names.QGPU)))
        third = here.pods.add(a_pod("third", allocation=given(server="gpu-2")))
        ended = here.pods.add(a_pod("ended"))
        here.pods.end(ended)
        for asking, why in (
            (here.ask(pod, ELSEWHERE), "the pod is on cpu-1, so cpu-2 may not ask for it"),
            (here.ask(pod, uid="another"), "it has no card of gpu-1"),
            (here.ask(pod, container="side"), "it has no card of gpu-1"),
            (here.ask(pod, pod="nobody"), "the pod does not exist"),
            (here.ask(local), "it has no card of gpu-1"),
            (here.ask(third), "it has no card of gpu-1"),
            (here.ask(ended), "it has no card of gpu-1"),
            (here.ask(pod, "ann", "client"), "is not the agent of a node"),
        ):
            with pytest.raises(Refused, match=why):
                await asking
        foreign = authority.issue(state_dir / "foreign", "server", HERE)
        with pytest.raises((Refused, Unavailable)):
            await dial(here.serving.listener.address, foreign, messages.Hello(role="pod"), expect=f"server/{SERVER}")
        assert here.running() == set()


async def test_a_token_is_good_for_one_pods_lease_in_the_hands_of_its_node(state_dir: Path) -> None:
    async with agents(state_dir) as here:
        one, other = here.pods.add(a_pod("one")), here.pods.add(a_pod("other", on=ELSEWHERE))
        first, second = await here.ask(one), await here.ask(other, ELSEWHERE)
        with pytest.raises(Refused, match="not issued for"):
            await here.join(second.lease.lease, first.token)
        with pytest.raises(Refused, match="may not use it"):
            await here.join(second.lease.lease, second.token)
        with pytest.raises(Refused, match="does not run"):
            await here.join("pod-unknown", first.token)
        await (await here.join(second.lease.lease, second.token, ELSEWHERE)).close()


async def test_an_executor_lives_as_long_as_its_pod_also_over_a_restart_of_the_agent(state_dir: Path) -> None:
    pods = Pods()
    pod = pods.add(a_pod("p"))
    async with agents(state_dir, pods) as here:
        granted = await here.ask(pod)
        before = processes_of(state_dir / "served" / granted.lease.lease)
    assert before
    async with agents(state_dir, pods) as here:
        connection = await here.join(granted.lease.lease, granted.token)
        assert await connection.reader.readline()
        await connection.close()
        assert processes_of(state_dir / "served" / granted.lease.lease) == before
        pods.end(pod)
        await until(lambda: not here.running(), seconds=60)
        assert processes_of(state_dir / "served" / granted.lease.lease) == []


async def test_a_card_given_out_again_is_free_of_its_last_pod(state_dir: Path) -> None:
    async with agents(state_dir) as here:
        first, beside = here.pods.add(a_pod("first")), here.pods.add(a_pod("beside", allocation=given(1)))
        one, two = await here.ask(first), await here.ask(beside)
        del here.pods.pods[first.key]
        next_one = await here.ask(here.pods.add(a_pod("next")))
        assert here.running() == {two.lease.lease, next_one.lease.lease}, "at once, not at the next look"
        assert one.lease.lease not in here.running()


async def test_a_dead_executor_is_started_anew_and_its_old_sessions_are_not_known_there(state_dir: Path) -> None:
    async with agents(state_dir) as here:
        pod = here.pods.add(a_pod("p"))
        lease = (await here.ask(pod)).lease.lease
        before = processes_of(state_dir / "served" / lease)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: not processes_of(state_dir / "served" / lease), seconds=30)
        assert (await here.ask(pod)).lease.lease == lease
        assert set(processes_of(state_dir / "served" / lease)).isdisjoint(before)


def talk(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(30)
        sock.connect(str(path))
        sock.sendall(b"\n")
        return sock.makefile("rb").readline().decode().split()[0]


def grace_of(pid: int) -> str:
    """As an executor's process was told."""
    arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return arguments[arguments.index("--grace") + 1]


async def test_a_container_reaches_its_executor_through_its_slot_also_when_its_agent_has_restarted(
    state_dir: Path,
) -> None:
    slots = Slots(state_dir / "slots")
    async with agents(state_dir) as here:
        pod = here.pods.add(a_pod("p"))
        record = SlotRecord(
            slot_id="7", namespace=pod.namespace, pod=pod.name, pod_uid=pod.uid, container="main",
            generation=slots.next_generation(), boot_id="", allocation=given(), minors={}, server=SERVER,
        )  # fmt: skip
        client: Any = Nodes(str(here.serving.listener.address))

        @contextlib.asynccontextmanager
        async def agent() -> AsyncGenerator[SlotBridges]:
            bridges = SlotBridges(state_dir / "bridges", here.of(HERE), client, slots)
            running = asyncio.create_task(bridges.run())
            try:
                yield bridges
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

        async with agent() as bridges:
            way = await bridges.start(record)
            slots.replace(record, lambda slot: link(way, slot))
            bridges.settled(record)
            (lease,) = here.running()
            assert await asyncio.to_thread(talk, slots.path("7") / "lease.sock") == lease
            # The program waits for its agents as long as its session waits for it.
            said = (slots.path("7") / "grace").read_text().strip()
            assert {grace_of(pid) for pid in processes_of(state_dir / "served" / lease)} == {said}
        async with agent():
            inode = (slots.path("7") / "lease.sock").stat().st_ino
            await until(lambda: (slots.path("7") / "lease.sock").stat().st_ino != inode, seconds=30)
            assert await asyncio.to_thread(talk, slots.path("7") / "lease.sock") == lease
            slots.remove("7")
            await until(lambda: not list((state_dir / "bridges").iterdir()), seconds=30)


async def test_what_cannot_be_reached_or_is_refused_is_said_when_the_container_is_prepared(state_dir: Path) -> None:
    slots = Slots(state_dir / "slots")
    async with agents(state_dir) as here:
        pod = a_pod("p")
        record = SlotRecord(
            slot_id="7", namespace=pod.namespace, pod=pod.name, pod_uid=pod.uid, container="main", generation=1,
            boot_id="", allocation=given(), minors={}, server=SERVER,
        )  # fmt: skip
        client: Any = Nodes(str(here.serving.listener.address))
        bridges = SlotBridges(state_dir / "bridges", here.of(HERE), client, slots)
        with pytest.raises(Refused, match="the pod does not exist"):
            await bridges.start(record)
        with pytest.raises(Unavailable, match="node gpu-9, which has the cards, is gone"):
            await bridges.start(replace(record, server="gpu-9"))
        client.address = ""
        with pytest.raises(Unavailable, match="is not in the pool now"):
            await bridges.start(record)
