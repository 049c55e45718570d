"""Serves this node's cards to pods of other nodes: one executor per container, started when the pod's agent asks.

The asking agent is not trusted. The pod is read from the API server, where only the scheduler writes allocations,
and must be on the node in the agent's certificate. An executor lives as long as its pod. Pods of unused executors
are checked every second, the others from time to time, and all of a card before another executor starts on it. So
released cards are free before they are given out again."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import msgspec
import structlog

from egpu.adapters.executors.process import Executor
from egpu.adapters.executors.record import ExecutorRecord
from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.adapters.pool import messages
from egpu.adapters.pool.connection import Connection
from egpu.adapters.pool.data import connect_program
from egpu.adapters.pool.listener import Listener
from egpu.adapters.pool.security import Credentials
from egpu.api import names
from egpu.api.allocation import ContainerAllocation, decode_allocation
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.serving.bridges import AGENTS_AWAY_SECONDS
from egpu.apps.agent.serving.slot_executors import caller_of
from egpu.apps.agent.slots.owners import PodReader
from egpu.core.leasing import tokens
from egpu.core.provisioners import provisioner
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import CorruptData, ElasticGPUError, NotFound, Refused, Unavailable

log = structlog.get_logger(__name__)

MAX_CONNECTIONS: Final = 8192
SWEEP_SECONDS: Final = 1.0
LOOK_AGAIN_SECONDS: Final = 15.0
"""Time between two checks of the pod of an executor in use."""
MAX_LOOKS: Final = 32
"""Most pods checked in one sweep."""


class ServedContainer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A container of another node with cards of this one. `peer` is the agent that may connect its programs, with
    tokens signed with `key`; `revision` and `within_seconds` are of the allocation in force."""

    namespace: str
    pod: str
    uid: str
    container: str
    peer: str
    key: str
    revision: int = 0
    within_seconds: float | None = None

    @property
    def name(self) -> str:
        """The executor's name: short, because a socket lies below a directory of this name."""
        return "pod-" + hashlib.sha256(f"{self.uid}/{self.container}".encode()).hexdigest()[:24]

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.pod}, container {self.container}"


class PodService:
    """Listens for agents of other nodes, and runs executors for them. `pods` asks the API server; `taken` gets the
    cards, by UUID, that they are about to use."""

    def __init__(
        self,
        node: str,
        *,
        executors: ExecutorSupervisor[ServedContainer],
        inventory: Inventory,
        pods: PodReader,
        credentials: Credentials,
        listen: str,
        taken: Callable[[Collection[str]], Awaitable[None]],
    ) -> None:
        self._taken = taken
        self._node = node
        self._executors = executors
        self._inventory = inventory
        self._pods = pods
        self._lock = asyncio.Lock()
        self._looked_at: dict[str, float] = {}
        """The time at which the pod of an executor was last seen to need it, in monotonic seconds."""
        self.listener = Listener(credentials, listen, self._come_in, max_connections=MAX_CONNECTIONS, relayed=True)

    async def open(self) -> None:
        """Find the executors of an earlier run, then listen. Raises InvalidInput, Unavailable."""
        await self._executors.adopt()
        await self.listener.open()
        log.info("serving the pool", listen=str(self.listener.address), executors=len(self._executors.running))

    def executors(self) -> list[Executor[ServedContainer]]:
        """Return the running executors."""
        return list(self._executors.running.values())

    async def run(self) -> None:
        """End executors that no pod needs any more, forever."""
        while True:
            await self._executors.any_runs.wait()
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self.sweep()
            except ElasticGPUError as error:
                log.info("executors of other nodes' pods not swept", reason=str(error))

    async def sweep(self) -> None:
        """Sweep once. Raises Unavailable if the API server does not answer, or an executor does not end."""
        async with self._lock:
            running = self._executors.running
            self._looked_at = {name: self._looked_at.get(name, 0.0) for name in running}
            for executor in running.values():
                executor.follow()
            before = time.monotonic() - LOOK_AGAIN_SECONDS
            due = [
                executor
                for name, executor in running.items()
                if not executor.is_alive() or not executor.sessions or self._looked_at[name] < before
            ]
            due.sort(key=lambda executor: self._looked_at[executor.name])
            await self._end_unneeded(due[:MAX_LOOKS])

    async def leave(self, cards: Collection[str]) -> None:
        """End the executors on these cards whose pods have ended. Raises Unavailable."""
        if self._executors.running:
            async with self._lock:
                await self._make_room("", cards)

    # --- who comes in -------------------------------------------------------------------------------------------------

    async def _come_in(self, connection: Connection, hello: messages.Hello) -> None:
        role, _, caller = connection.peer.partition("/")
        if role != "server" or not caller:
            raise Refused(f"{connection.peer} is not the agent of a node")
        if hello.role == "data":
            executor = self._executors.usable(hello.lease)
            if executor is None:
                raise NotFound(f"lease {hello.lease[:64]} does not run on {self._node}")
            await connect_program(connection, hello, executor, key=executor.record.owner.key)
        elif hello.role == "pod":
            await connection.send(messages.Welcome(name=connection.peer))
            await self._answer(connection, await connection.expect(messages.Open), caller)
        else:
            raise Refused(f"the agent of a node does not accept the role {hello.role!r}")

    async def _answer(self, connection: Connection, asked: messages.Open, caller: str) -> None:
        container = ServedContainer(
            namespace=asked.namespace, pod=asked.pod, uid=asked.uid, container=asked.container,
            peer=connection.peer, key=secrets.token_hex(32),
        )  # fmt: skip
        try:
            executor = await self._executor(container, await self._given(container, caller))
        except ElasticGPUError as error:
            log.warning("executor refused to a container of another node", node=caller, reason=str(error))
            await connection.send(messages.Failed(number=asked.number, kind=type(error).__name__, reason=str(error)))
        else:
            await connection.send(self._granted(asked.number, executor))

    async def _given(self, container: ServedContainer, caller: str) -> ContainerAllocation:
        """Return the container's allocation on this node's cards. Raises Refused, Unavailable."""
        try:
            pod = await self._pods.read(container.namespace, container.pod)
        except NotFound as error:
            raise Refused(f"{container}: the pod does not exist") from error
        if pod.spec.node_name != caller:
            raise Refused(
                f"{container}: the pod is on {pod.spec.node_name or 'no node'}, so {caller} may not ask for it"
            )
        given = self._allocation(container, pod)
        if given is None:
            raise Refused(f"{container}: it has no card of {self._node}")
        for share in given.cards:
            card = self._inventory.cards.get(share.uuid)
            if card is None or not card.healthy:
                raise Unavailable(
                    f"{container}: card {share.uuid} of {self._node} is {'gone' if card is None else 'unhealthy'}"
                )
        await self._taken([share.uuid for share in given.cards])
        return given

    def _allocation(self, container: ServedContainer, pod: Pod) -> ContainerAllocation | None:
        """Return the container's allocation in `pod` on this node's cards, or None."""
        text = pod.annotations.get(names.ALLOCATION)
        if pod.uid != container.uid or pod.finished or text is None:
            return None
        try:
            given = decode_allocation(text).containers.get(container.container)
        except CorruptData:
            return None
        if given is None or given.server != self._node or not provisioner(given.provisioner).anywhere:
            return None
        return given

    # --- executors ----------------------------------------------------------------------------------------------------

    async def _executor(self, container: ServedContainer, given: ContainerAllocation) -> Executor[ServedContainer]:
        """Return the container's executor, started if needed. Raises TerminalError, Unavailable."""
        async with self._lock:
            executor = self._executors.running.get(container.name)
            if executor is None or not executor.is_alive():
                await self._make_room(container.name, {share.uuid for share in given.cards})
                minors = {share.uuid: self._inventory.cards[share.uuid].minor for share in given.cards}
                owner = _of(container, given)
                executor = await self._executors.launch(
                    ExecutorRecord(
                        name=container.name,
                        owner=owner,
                        cards=given.cards,
                        minors=minors,
                        grace_seconds=AGENTS_AWAY_SECONDS,
                        caller=caller_of(container.namespace),
                        core_limit=given.core_limit,
                        latency=given.latency,
                    )
                )
            elif given.revision > executor.record.owner.revision:
                executor.resize(given.cards, _of(executor.record.owner, given), core_limit=given.core_limit)
        await self._executors.until_ready(executor)
        return executor

    async def _make_room(self, name: str, cards: Collection[str]) -> None:
        """End the container's own dead executor, and those on the same cards whose pods have ended."""
        await self._end_unneeded(
            [
                executor
                for executor in self._executors.running.values()
                if executor.name == name or any(share.uuid in cards for share in executor.record.cards)
            ]
        )

    async def _end_unneeded(self, executors: Collection[Executor[ServedContainer]]) -> None:
        for executor in executors:
            if executor.is_alive() and await self._is_needed(executor.record.owner):
                self._looked_at[executor.name] = time.monotonic()
            else:
                await self._executors.end(executor)

    async def _is_needed(self, container: ServedContainer) -> bool:
        try:
            pod = await self._pods.read(container.namespace, container.pod)
        except NotFound:
            return False
        return self._allocation(container, pod) is not None

    def _granted(self, number: int, executor: Executor[ServedContainer]) -> messages.Granted:
        """Return the executor as a lease of the pool's protocol, which knows no pods."""
        record, owner = executor.record, executor.record.owner
        holder = f"pod:{owner.uid}"
        claims = tokens.Claims(
            lease=record.name, holder=holder, peer=owner.peer, expires=time.time() + tokens.LIFETIME_SECONDS
        )
        part = messages.PartView(server=self._node, address="", host="", socket="", cards=len(record.cards))
        view = messages.LeaseView(
            lease=record.name, holder=holder, peer=owner.peer, state="active", cards=(), parts=(part,)
        )
        return messages.Granted(number=number, lease=view, token=tokens.issue(claims, owner.key))


def _of(container: ServedContainer, given: ContainerAllocation) -> ServedContainer:
    """Return the container with the revision of its allocation."""
    return msgspec.structs.replace(container, revision=given.revision, within_seconds=given.within_seconds)
