"""This node's cards for pods of other nodes: one executor per container, started when the pod's agent asks for it.

Who may have what is not for the asking agent to say: the pod is read from the API server, where only the scheduler
writes allocations, and must be on the node that the agent's certificate names. An executor lives as long as its pod.
The pods of executors that nobody uses are looked at every second, the others now and then, and all of a card before
another executor is started on it: so what was given back is free before it is given out again.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from egpu.adapters.executors.supervisor import Executor, Executors
from egpu.adapters.pool import messages
from egpu.adapters.pool.connection import Connection
from egpu.adapters.pool.door import Door
from egpu.adapters.pool.joining import join
from egpu.adapters.pool.security import Credentials
from egpu.api import names
from egpu.api.allocation import ContainerAllocation, decode_allocation
from egpu.api.kubernetes import Pod
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.serving.executors import until_ready
from egpu.apps.agent.slots.owners import PodReader
from egpu.core.leasing import tokens
from egpu.core.leasing.leases import LeaseRecord
from egpu.core.provisioners import provisioner
from egpu.errors import CorruptData, ElasticGPUError, NotFound, Refused, Unavailable

log = structlog.get_logger(__name__)

MAX_CONNECTIONS: Final = 8192
SWEEP_SECONDS: Final = 1.0
LOOK_AGAIN_SECONDS: Final = 15.0
"""How often the pod of an executor in use is looked at."""
MAX_LOOKS: Final = 32
"""Pods looked at in one sweep."""


class _Client(msgspec.Struct, frozen=True):
    """Whose executor it is: what `LeaseRecord.request` holds, as JSON."""

    namespace: str
    pod: str
    uid: str
    container: str

    @property
    def lease(self) -> str:
        """Short, because a socket lies below a directory of that name."""
        return "pod-" + hashlib.sha256(f"{self.uid}/{self.container}".encode()).hexdigest()[:24]


@dataclass
class _Served:
    """A running executor. `looked_at`: when its pod was last seen to need it, in monotonic seconds."""

    executor: Executor
    client: _Client
    looked_at: float


class Serving:
    """The door of one node, and the executors behind it. `pods` asks the API server."""

    def __init__(
        self,
        node: str,
        *,
        executors: Executors,
        inventory: Inventory,
        pods: PodReader,
        credentials: Credentials,
        listen: str,
    ) -> None:
        self._node = node
        self._executors = executors
        self._inventory = inventory
        self._pods = pods
        self._lock = asyncio.Lock()
        self._served: dict[str, _Served] = {}
        self.door = Door(credentials, listen, self._come_in, max_connections=MAX_CONNECTIONS, relayed=True)

    async def open(self) -> None:
        """Find the executors of an earlier run, then listen. Raises InvalidInput."""
        for executor in await asyncio.to_thread(self._executors.adopt):
            try:
                client = msgspec.json.decode(executor.record.request, type=_Client)
            except msgspec.MsgspecError:
                await asyncio.to_thread(executor.end)
                continue
            self._served[executor.record.lease] = _Served(executor, client, 0.0)
        await self.door.open()
        log.info("serving the pool", listen=str(self.door.address), executors=len(self._served))

    async def run(self) -> None:
        """End what no pod needs any more, for ever."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self.sweep()
            except (ElasticGPUError, OSError) as error:
                log.info("executors of other nodes' pods not swept", reason=str(error))

    async def sweep(self) -> None:
        """Raises Unavailable when the API server does not answer."""
        async with self._lock:
            now = time.monotonic()
            for one in self._served.values():
                one.executor.follow()
            due = [
                lease
                for lease, one in self._served.items()
                if not one.executor.is_alive() or not one.executor.sessions or now - one.looked_at > LOOK_AGAIN_SECONDS
            ]
            due.sort(key=lambda lease: self._served[lease].looked_at)
            await self._end_unneeded(due[:MAX_LOOKS])

    # --- who comes in -------------------------------------------------------------------------------------------------

    async def _come_in(self, connection: Connection, hello: messages.Hello) -> None:
        role, _, caller = connection.peer.partition("/")
        if role != "server" or not caller:
            raise Refused(f"{connection.peer} is not the agent of a node")
        if hello.role == "data":
            found = self._served.get(hello.lease)
            if found is None or not found.executor.ready:
                raise NotFound(f"lease {hello.lease[:64]} does not run on {self._node}")
            await join(connection, hello, found.executor)
        elif hello.role == "pod":
            await connection.send(messages.Welcome(name=connection.peer))
            await self._answer(connection, await connection.expect(messages.Open), caller)
        else:
            raise Refused(f"the agent of a node has no role {hello.role!r} for others")

    async def _answer(self, connection: Connection, asked: messages.Open, caller: str) -> None:
        try:
            client = _Client(asked.namespace, asked.pod, asked.uid, asked.container)
            executor = await self._executor(client, await self._given(client, caller), connection.peer)
        except ElasticGPUError as error:
            log.warning("a container of another node gets no executor", node=caller, reason=str(error))
            await connection.send(messages.Failed(number=asked.number, kind=type(error).__name__, reason=str(error)))
        else:
            await connection.send(self._granted(asked.number, executor))

    async def _given(self, client: _Client, caller: str) -> ContainerAllocation:
        """What the container was given of this node's cards. Raises Refused, Unavailable."""
        where = f"pod {client.namespace}/{client.pod}, container {client.container}"
        try:
            pod = await self._pods.read(client.namespace, client.pod)
        except NotFound as error:
            raise Refused(f"{where}: there is no such pod") from error
        if pod.spec.node_name != caller:
            raise Refused(f"{where}: the pod is on {pod.spec.node_name or 'no node'}, {caller} may not ask for it")
        given = self._needed(client, pod)
        if given is None:
            raise Refused(f"{where}: it was given no card of {self._node}")
        for share in given.cards:
            card = self._inventory.cards.get(share.uuid)
            if card is None or not card.healthy:
                raise Unavailable(
                    f"{where}: card {share.uuid} of {self._node} is {'gone' if card is None else 'unhealthy'}"
                )
        return given

    def _needed(self, client: _Client, pod: Pod) -> ContainerAllocation | None:
        """What `pod` has of this node's cards for that container; None when nothing (any more)."""
        text = pod.annotations.get(names.ALLOCATION)
        if pod.uid != client.uid or pod.finished or text is None:
            return None
        try:
            given = decode_allocation(text).containers.get(client.container)
        except CorruptData:
            return None
        if given is None or given.server != self._node or not provisioner(given.provisioner).anywhere:
            return None
        return given

    # --- executors ----------------------------------------------------------------------------------------------------

    async def _executor(self, client: _Client, given: ContainerAllocation, peer: str) -> Executor:
        """The container's executor, started if there is none (any more). Raises TerminalError, Unavailable."""
        async with self._lock:
            found = self._served.get(client.lease)
            if found is None or not found.executor.is_alive():
                await self._make_room(client.lease, {share.uuid for share in given.cards})
                record = LeaseRecord(
                    lease=client.lease, holder=f"pod:{client.uid}", peer=peer,
                    request=msgspec.json.encode(client).decode(), key=secrets.token_hex(32), part=0, parts=1,
                    cards=given.cards,
                )  # fmt: skip
                minors = {share.uuid: self._inventory.cards[share.uuid].minor for share in given.cards}
                executor = await asyncio.to_thread(self._executors.start, record, minors)
                self._served[client.lease] = found = _Served(executor, client, time.monotonic())
                log.info("executor started", lease=client.lease, pod=f"{client.namespace}/{client.pod}", peer=peer)
        await until_ready(found.executor)
        return found.executor

    async def _make_room(self, lease: str, cards: Collection[str]) -> None:
        """End the lease's own dead executor, and those on the same cards whose pods have ended."""
        beside = [
            other
            for other, one in self._served.items()
            if other == lease or any(share.uuid in cards for share in one.executor.record.cards)
        ]
        await self._end_unneeded(beside)

    async def _end_unneeded(self, leases: Collection[str]) -> None:
        for lease in leases:
            one = self._served[lease]
            if one.executor.is_alive() and await self._is_needed(one.client):
                one.looked_at = time.monotonic()
                continue
            await asyncio.to_thread(one.executor.end)
            del self._served[lease]
            log.info("executor ended", lease=lease, pod=f"{one.client.namespace}/{one.client.pod}")

    async def _is_needed(self, client: _Client) -> bool:
        try:
            return self._needed(client, await self._pods.read(client.namespace, client.pod)) is not None
        except NotFound:
            return False

    def _granted(self, number: int, executor: Executor) -> messages.Granted:
        record = executor.record
        claims = tokens.Claims(
            lease=record.lease, holder=record.holder, peer=record.peer, expires=time.time() + tokens.LIFETIME_SECONDS
        )
        part = messages.PartView(server=self._node, address="", host="", socket="", cards=len(record.cards))
        view = messages.LeaseView(
            lease=record.lease, holder=record.holder, peer=record.peer, state="active", cards=(), parts=(part,)
        )
        return messages.Granted(number=number, lease=view, token=tokens.issue(claims, record.key))
