"""Two pods of our own scheduler, each with a scheduler and an extender: one leads, and after it the other."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.apps.extender import Extender as App
from egpu.core.schedulers import OWN_SCHEDULER
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.runtime.supervisor import Supervisor
from egpu_sim.cluster.scheduler.extender import Extender
from egpu_sim.cluster.scheduler.own import OwnScheduler
from support.control_plane import SYSTEM, ControlPlane, control_plane, extender_config
from support.waiting import until

NODES, CARDS, PODS = 2, 2, 7
ELECTION = "egpu_base.kubernetes.election"


@asynccontextmanager
async def scheduler_pod(plane: ControlPlane, host: str) -> AsyncGenerator[App]:
    """A pod of the Deployment; on leaving it ends as by SIGKILL, as far as one process can."""
    app = App(extender_config(plane, follow=OWN_SCHEDULER, host=host), plane.client)
    tasks = [asyncio.create_task(app.run(Supervisor(signals=())))]
    await until(lambda: app.address is not None)
    managed = frozenset({names.SLOT})
    asked = Extender(f"https://{app.address}", tls=plane.credentials.client_context(), managed_resources=managed)
    own = OwnScheduler(OWN_SCHEDULER, "admin", SYSTEM, OWN_SCHEDULER, host=host)
    async with asked:
        tasks.append(asyncio.create_task(own.run(plane.client, asked)))
        try:
            yield app
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def asking_for_most_of_a_card(name: str) -> dict[str, Any]:
    limits = {names.SLOT: "1", names.GPU_CORE: "60", names.GPU_MEMORY: "1000"}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "annotations": {names.DEMAND: '{"version":1,"containers":{}}'}},
        "spec": {
            "schedulerName": OWN_SCHEDULER,
            "containers": [{"name": "app", "image": "x", "resources": {"limits": limits, "requests": limits}}],
        },
    }


async def offer(plane: ControlPlane, node: str) -> None:
    """What a node's kubelet and agent publish."""
    await plane.node(node, cards=CARDS)
    amounts = {"cpu": "8", "memory": "8Gi", "pods": "50"}
    amounts |= {names.SLOT: "40", names.GPU_CORE: "200", names.GPU_MEMORY: "32768"}
    ready: Any = [{"type": "Ready", "status": "True"}]
    status = {"status": {"allocatable": amounts, "capacity": amounts, "conditions": ready}}
    await plane.client.patch(Node, node, status, subresource="status")


async def cards_given(plane: ControlPlane) -> list[str]:
    found: list[str] = []
    for pod in await plane.client.list(Pod):
        if text := pod.annotations.get(names.ALLOCATION):
            allocation = decode_allocation(text)
            found += [card.uuid for one in allocation.containers.values() for card in one.cards]
    return found


async def test_the_other_pod_takes_over_and_no_card_is_given_out_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LEASE_SECONDS", 2), ("RENEW_SECONDS", 0.3), ("RETRY_SECONDS", 0.1)):
        monkeypatch.setattr(f"{ELECTION}.{name}", value)

    async def killed(_: Any) -> None:
        """A process that is killed releases nothing."""

    monkeypatch.setattr(f"{ELECTION}.LeaseElection.release", killed)
    async with AsyncExitStack() as ends_last, AsyncExitStack() as ends_first:
        plane = await ends_last.enter_async_context(control_plane(tmp_path))
        for number in range(NODES):
            await offer(plane, f"n{number}")
        first = await ends_first.enter_async_context(scheduler_pod(plane, "pod-a"))
        await until(lambda: first.not_ready() is None)
        second = await ends_last.enter_async_context(scheduler_pod(plane, "pod-b"))
        for number in range(2):
            await plane.create(asking_for_most_of_a_card(f"early-{number}"))
        await until(lambda: given(plane, 2))
        assert second.not_ready() is not None
        assert second.unhealthy() is None, "a replica that stands by is in order"
        await ends_first.aclose()
        for number in range(PODS - 2):
            await plane.create(asking_for_most_of_a_card(f"late-{number}"))
        await until(lambda: second.not_ready() is None)
        await until(lambda: given(plane, NODES * CARDS))
        await asyncio.sleep(0.5)
        cards = await cards_given(plane)
        assert len(cards) == len(set(cards)) == NODES * CARDS, "each card has room for one"


async def given(plane: ControlPlane, count: int) -> bool:
    return len(await cards_given(plane)) >= count
