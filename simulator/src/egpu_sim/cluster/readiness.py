"""Waits until a cluster takes pods: every component is ready, and the API has every node."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import httpx2

from egpu_base.api.kubernetes import Node
from egpu_base.errors import NotFound, Unavailable
from egpu_base.kubernetes import Client

if TYPE_CHECKING:
    from egpu_sim.cluster.cluster import Cluster

START_SECONDS = 60.0
POLL_SECONDS = 0.05


async def wait_ready(running: Cluster[Any], client: Client) -> None:
    """Wait until every component is ready, and the API has every node. Raises Unavailable."""
    deadline = time.monotonic() + START_SECONDS
    await answered(running, running.ready_urls, deadline)
    names = running.node_names
    while (missing := await _missing(names, client) or await running.components.missing(running, client)) is not None:
        await _again(running, deadline, *missing)


async def answered(running: Cluster[Any], urls: Mapping[str, str], deadline: float) -> None:
    """Wait until every readiness probe, by the name of its process, succeeds. Raises Unavailable."""
    waiting = dict(urls)
    async with httpx2.AsyncClient(trust_env=False, timeout=2.0) as http:
        while waiting:
            for name, url in list(waiting.items()):
                with contextlib.suppress(httpx2.HTTPError):
                    if (await http.get(url)).status_code == 200:
                        del waiting[name]
            if waiting:
                await _again(running, deadline, f"not ready: {', '.join(sorted(waiting))}", sorted(waiting)[0])


async def _missing(names: tuple[str, ...], client: Client) -> tuple[str, str] | None:
    """Return what the API does not have yet, and the process whose log may say why."""
    for name in names:
        try:
            node = await client.get(Node, name)
        except NotFound:
            return f"{name} is not registered", f"kubelet-{name}"
        if not any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or []):
            return f"{name} is not ready", f"kubelet-{name}"
    return None


async def _again(running: Cluster[Any], deadline: float, what: str, culprit: str) -> None:
    running.fleet.check_steady()
    if time.monotonic() > deadline:
        raise Unavailable(
            f"the cluster did not start within {START_SECONDS:g} s ({what}); the log of {culprit} ends:\n"
            + running.fleet.log_tail(culprit)
        )
    await asyncio.sleep(POLL_SECONDS)
