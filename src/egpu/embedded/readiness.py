"""When a cluster takes pods: every component says so, and the API shows every node and card."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import httpx2

from egpu.adapters.kubernetes import Client
from egpu.api import names
from egpu.api.kubernetes import Node
from egpu.api.objects import ElasticGPU
from egpu.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from egpu.embedded.cluster import Cluster

START_SECONDS = 60.0
POLL_SECONDS = 0.05


async def wait_ready(running: Cluster, client: Client) -> None:
    """Until every component says that it is ready, and the API shows every node and card. Raises Unavailable."""
    deadline = time.monotonic() + START_SECONDS
    waiting = dict(running.ready_urls)
    async with httpx2.AsyncClient(trust_env=False, timeout=2.0) as http:
        while waiting:
            for name, url in list(waiting.items()):
                with contextlib.suppress(httpx2.HTTPError):
                    if (await http.get(url)).status_code == 200:
                        del waiting[name]
            if waiting:
                await _again(running, deadline, f"not ready: {', '.join(sorted(waiting))}", sorted(waiting)[0])
    while (missing := await _missing(running, client)) is not None:
        await _again(running, deadline, missing, "controller")


async def _missing(running: Cluster, client: Client) -> str | None:
    """What the API does not show yet."""
    cards = [gpu for gpu in await client.list(ElasticGPU) if gpu.spec.physical_gpu is not None]
    if len(cards) < running.config.nodes * running.config.cards_per_node:
        return f"{len(cards)} cards are published"
    for name in running.node_names:
        try:
            node = await client.get(Node, name)
        except NotFound:
            return f"{name} is not registered"
        if not any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or []):
            return f"{name} is not ready"
        if names.POOL_ADDRESS not in node.annotations:
            return f"{name} takes no part in the pool"
        if (node.status.allocatable or {}).get(names.SLOT) in (None, "0"):
            return f"{name} offers no {names.SLOT}"
    return None


async def _again(running: Cluster, deadline: float, what: str, culprit: str) -> None:
    running.fleet.check_steady()
    if time.monotonic() > deadline:
        raise Unavailable(
            f"the cluster did not start within {START_SECONDS:g} s ({what}); the log of {culprit} ends:\n"
            + running.fleet.log_tail(culprit)
        )
    await asyncio.sleep(POLL_SECONDS)
