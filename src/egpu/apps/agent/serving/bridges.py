"""Connects containers of this node to their executors on other nodes: one bridge per slot, closed with the slot.

A bridge's socket is linked into the slot, and replaced when the agent starts again: the program connects once more,
and continues its session."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from pathlib import Path

import structlog

from egpu.adapters.executors.process import SOCKET
from egpu.adapters.pool import messages
from egpu.adapters.pool.bridge import Bridge, Target
from egpu.adapters.pool.client import answer_of, dial, parse_address
from egpu.adapters.pool.security import Credentials
from egpu.api import names
from egpu.apps.agent.serving.slot_executors import SlotOwner
from egpu.apps.agent.slots.directories import GRACE_FILE, SlotRecord, Slots
from egpu_base.api.kubernetes import Node
from egpu_base.errors import NotFound, Refused, Unavailable
from egpu_base.kubernetes import Client
from egpu_base.system.files import write_atomically

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 1.0
OPEN_SECONDS = 15.0
"""The time that the other node has to start an executor."""
BRIDGE_SOCKET = "lease0.sock"
AGENTS_AWAY_SECONDS = 300
"""The time that a program waits for the agents between it and its executor, and the session for the program: an agent
whose new image is being pulled is away for minutes. No program waits for a node that Kubernetes has lost."""


class SlotBridges:
    """The bridges of one node's slots."""

    def __init__(self, directory: Path, credentials: Credentials, client: Client, slots: Slots) -> None:
        self._directory = directory
        self._credentials = credentials
        self._client = client
        self._slots = slots
        self._open: dict[SlotOwner, Bridge] = {}
        self._any_open = asyncio.Event()
        self._preparing: set[SlotOwner] = set()
        # Sockets of an earlier run: no process listens on them.
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, mode=0o700)  # only root passes: the sockets in it are for containers

    async def start(self, record: SlotRecord) -> Path:
        """Open the bridge of a slot that is being made, and return its socket. Its executor runs by then.

        Raises Refused, TerminalError or Unavailable, as the other node answers."""
        self._preparing.add(SlotOwner.of(record))
        await self._take(record)
        return await self._listen(record)

    async def resize(self, record: SlotRecord) -> None:
        """Ask the node that has the cards to read the container's allocation again, which resizes its executor.
        Raises as `start`."""
        await self._take(record)

    def settled(self, record: SlotRecord) -> None:
        """Note that the slot is in place or given up: from now on its bridge lives as long as the slot."""
        self._preparing.discard(SlotOwner.of(record))

    async def run(self) -> None:
        """Open the bridges of existing slots, then close those of removed slots, forever."""
        for record in list(self._slots.records()):
            if record.server and SlotOwner.of(record) not in self._open:
                link(await self._listen(record), self._slots.path(record.slot_id))
                log.info("bridge reopened", slot_id=record.slot_id, server=record.server)
        try:
            while True:
                await self._any_open.wait()
                await asyncio.sleep(SWEEP_SECONDS)
                await self.sweep()
        finally:
            for bridge in self._open.values():
                await bridge.close()

    async def sweep(self) -> None:
        """Close every bridge whose slot was reused or removed."""
        needed = {SlotOwner.of(record) for record in self._slots.records()} | self._preparing
        for owner in self._open.keys() - needed:
            await self._open.pop(owner).close()
            shutil.rmtree(self._directory / owner.name, ignore_errors=True)
        if not self._open:
            self._any_open.clear()

    async def _listen(self, record: SlotRecord) -> Path:
        owner = SlotOwner.of(record)
        directory = self._directory / owner.name
        directory.mkdir(mode=0o711)
        bridge = Bridge(directory, self._credentials, lambda: self._take_unless_lost(record))
        await bridge.open()
        self._open[owner] = bridge
        self._any_open.set()
        return directory / BRIDGE_SOCKET

    async def _take_unless_lost(self, record: SlotRecord) -> Target:
        """Do as `_take` for a program that connects, but raise Refused at once if the node's kubelet has been silent
        for long."""
        node = await self._server_of(record)
        try:
            return await self._ask(node, record)
        except Unavailable as error:
            if is_lost(node):
                raise Refused(f"node {record.server}, which has the cards, is lost: {error}") from error
            raise

    async def _take(self, record: SlotRecord) -> Target:
        """Ask the node that has the cards for the container's executor, and for a token."""
        return await self._ask(await self._server_of(record), record)

    async def _server_of(self, record: SlotRecord) -> Node:
        try:
            return await self._client.get(Node, record.server)
        except NotFound as error:
            raise Unavailable(f"node {record.server}, which has the cards, is gone") from error

    async def _ask(self, node: Node, record: SlotRecord) -> Target:
        address = node.annotations.get(names.POOL_ADDRESS)
        if not address:
            raise Unavailable(f"node {record.server}, which has the cards, is not in the pool now")
        connection, _ = await dial(
            parse_address(address, names.POOL_ADDRESS),
            self._credentials,
            messages.Hello(role="pod"),
            expect=f"server/{record.server}",
        )
        asked = messages.Open(
            number=1, namespace=record.namespace, pod=record.pod, uid=record.pod_uid, container=record.container
        )
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await connection.send(asked)
                granted = answer_of(await connection.receive(), messages.Granted)
        except TimeoutError as error:
            raise Unavailable(f"{record.server} did not answer within {OPEN_SECONDS:g} s") from error
        finally:
            await connection.close()
        part = messages.PartView(
            server=record.server, address=address, host="", socket="", cards=len(record.allocation.cards)
        )
        return Target(granted.lease.lease, (part,), granted.token)


def is_lost(node: Node) -> bool:
    """Return whether Kubernetes says Unknown: the kubelet has been silent for long (40 seconds by default)."""
    return any(one.type == "Ready" and one.status == "Unknown" for one in node.status.conditions or [])


def link(socket: Path, slot: Path) -> None:
    """Put a bridge's socket into a slot, replacing an older one, and a file that says how long a program may wait.
    Every user of the container can connect, as in `slots.link_into`."""
    write_atomically(slot / GRACE_FILE, f"{AGENTS_AWAY_SECONDS}\n".encode())
    socket.chmod(0o666)
    draft = slot / f".{SOCKET}"
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    os.link(socket, draft)
    draft.rename(slot / SOCKET)
