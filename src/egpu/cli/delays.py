"""Long kernels that delay latency work, as the agents' events of a pod name them."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from egpu.api.names import EVENT_DELAYED, EVENT_DELAYS
from egpu.api.text import escaped
from egpu.cli.snapshot import reading
from egpu_base.api.kubernetes import Event
from egpu_base.api.wire import seconds_since
from egpu_base.errors import NotAllowed
from egpu_base.kubernetes import Client

RECENT_SECONDS: Final = 1200.0
"""Twice the time between two such events of a pod."""


def delays_from(kubeconfig: Path | None, namespace: str, name: str) -> list[str]:
    """Return a line for each recent event of the pod, with a client of its own; none if events may not be listed."""
    with reading():
        return asyncio.run(_delays_from(kubeconfig, namespace, name))


async def _delays_from(kubeconfig: Path | None, namespace: str, name: str) -> list[str]:
    async with Client.from_kubeconfig(kubeconfig) as client:
        try:
            events = await client.list(Event, namespace=namespace, fields=f"involvedObject.name={name}")
        except NotAllowed:
            return []
    return delays_of(events, name, now=datetime.now(UTC))


def delays_of(events: Sequence[Event], name: str, *, now: datetime) -> list[str]:
    """Return the messages of those that name long kernels, each once, if they are recent."""
    found = dict[str, None]()
    for one in events:
        subject = one.involved_object
        told = subject.kind == "Pod" and subject.name == name and one.reason in (EVENT_DELAYS, EVENT_DELAYED)
        if told and seconds_since(one.last_timestamp, now) < RECENT_SECONDS:
            found[escaped(one.message)] = None  # a line, whatever the event says
    return list(found)
