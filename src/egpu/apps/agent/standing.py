"""Whether this agent may offer the node's cards, and the node's condition that says so.

A card has one bookkeeper. While another program gives out the same cards, the agent offers nothing; if that program
came later, the agent offers no more than its pods have, and these go on. Without a driver it waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

import structlog

from egpu.adapters.cards import kernel_driver
from egpu.adapters.kubernetes import node_conditions
from egpu.api import names
from egpu.apps.agent.cards.inventory import Inventory
from egpu.core.node_condition import ENDED_BY_PEOPLE, Standing, standing, without_driver
from egpu.core.offered import is_offered
from egpu.core.placement.sums import asked_in_use
from egpu.core.rivals import Rival, rivals_of
from egpu_base.api.devices import ResourceSlice
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.errors import ElasticGPUError, NativeMissing, NotFound
from egpu_base.kubernetes import Client, Reflector
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.beats import rest

LOOK_SECONDS: Final = 2.0
STARTING_SECONDS: Final = 0.5
"""Between two looks of an agent that starts: pods wait for it."""
SLICES_SECONDS: Final = 60.0
"""Between two lists of the node's ResourceSlices. The pod of a DRA driver is seen at once."""
SETTLE_SECONDS: Final = 8.0
"""From the mark on the cards, which the extender sees, until the amounts are lowered: kubelet would refuse a pod that
was bound meanwhile, for good."""
WRITE_AGAIN_SECONDS: Final = 300.0
"""A Node that was made again has no condition."""

log = structlog.get_logger(__name__)


class NodeStanding:
    """Looks again and again in `run()`. `devices` returns kubelet's devices by resource, `starting` why containers
    cannot be prepared yet, `holders` what has cards besides this node's pods. `changed` is called with each change."""

    def __init__(
        self,
        client: Client,
        node: str,
        *,
        inventory: Inventory,
        pods: Reflector[Pod],
        devices: Callable[[], Awaitable[Mapping[str, Collection[str]]]],
        starting: Callable[[], str | None],
        holders: Callable[[], Iterable[str]],
        events: EventRecorder,
        changed: Callable[[], None],
    ) -> None:
        self._client = client
        self._node = node
        self._inventory = inventory
        self._pods = pods
        self._devices = devices
        self._starting = starting
        self._holders = holders
        self._events = events
        self._changed = changed
        self._drivers: frozenset[str] = frozenset()
        self._slices_read: float | None = None
        self._since: float | None = None
        """When the other program was first seen, in monotonic seconds."""
        self._in_use: Mapping[str, int] | None = None
        """What pods have of the amounts, SETTLE_SECONDS after that."""
        self._written: tuple[Standing, float] | None = None
        self.rivals: tuple[Rival, ...] = ()
        """Other programs that give out this node's cards."""
        self.taken: frozenset[str] = frozenset()
        """Resource names of ours that kubelet gives out by another device plugin."""
        self.kept_back: frozenset[str] = frozenset()
        """Those, and names that kubelet still counts for a plugin that has gone (five minutes)."""
        self.looked = asyncio.Event()
        """Set once it is known whether there are others. Nothing may be offered before."""

    @property
    def contested(self) -> bool:
        """Return whether another program gives out the node's cards."""
        return bool(self.rivals)

    @property
    def users(self) -> int:
        """Return how many pods have cards of this node."""
        own = sum(names.ALLOCATION in pod.annotations and not pod.finished for pod in self._pods)
        return own or len([*self._holders()])

    @property
    def now(self) -> Standing:
        """Return the present standing."""
        failure = self._inventory.failure
        driver = None if failure is None else without_driver(str(failure), loaded=kernel_driver.loaded())
        starting = None if self.looked.is_set() else "kubelet has not said which device plugins it has"
        return standing(
            self._node,
            rivals=self.rivals,
            driver=driver,
            starting=starting or self._starting(),
            users=self.users if self.rivals else 0,
        )

    def limited(self, amounts: Mapping[str, str], node: Node) -> dict[str, str]:
        """Return the amounts to publish: after a while those that are in use while another program gives out the cards,
        and never a name that kubelet publishes for another plugin."""
        there = node.status.capacity or {}
        self.kept_back = frozenset(
            name for name in self.kept_back if name in self.taken or str(there.get(name, "0")) != "0"
        )
        if self.contested:
            used = self._in_use
            kept = () if used is None else [name for name in amounts if name in there or name in used]
            amounts = {name: str((used or {}).get(name, 0)) for name in kept}
        return {name: amount for name, amount in amounts.items() if name not in self.kept_back}

    def stuck(self) -> str | None:
        """Return why this agent's pod is not ready. One that waits for a driver, or for the end of another program, is
        ready: an upgrade goes on."""
        return None if self.now.reason in ENDED_BY_PEOPLE else self._starting()

    async def until_too_old(self, stop: Callable[[], None]) -> None:
        """End this process when its container must be created again to have the driver's libraries."""
        await kernel_driver.container_is_too_old(lambda: isinstance(self._inventory.failure, NativeMissing))
        log.info("NVIDIA's driver has come: this container ends, to be created again with the driver's libraries")
        stop()

    def others(self) -> frozenset[str]:
        """Return the resource names that are not ours to take away."""
        return self.kept_back

    async def run(self) -> None:
        """Look and write forever."""
        while True:
            for act in (self.look, self.write):
                try:
                    await act()
                except ElasticGPUError as error:
                    log.info("the node's standing is not known or not written yet", reason=str(error))
            await rest(STARTING_SECONDS if self.now.reason == "Starting" else LOOK_SECONDS)

    async def may_register(self, known: Callable[[], Awaitable[None]], withdraw: Callable[[], None]) -> None:
        """Return when slots may be offered to kubelet: it is `known` how they are injected, and no other program gives
        out the cards, or pods have slots. Otherwise `withdraw` them first."""
        await known()
        await self.looked.wait()
        if not self.contested or self.users:
            return
        withdraw()
        while self.contested:
            await rest(LOOK_SECONDS)

    async def look(self) -> None:
        """Look for other programs once. Raises Unavailable and the API server's errors."""
        if not self._pods.synced.is_set():
            return
        given = {resource for resource, ids in (await self._devices()).items() if ids and is_offered(resource)}
        await self._read_slices()
        rivals = rivals_of(self._pods, resources=given, drivers=self._drivers)
        self._since = (self._since or time.monotonic()) if rivals else None
        settled = self._since is not None and time.monotonic() - self._since >= SETTLE_SECONDS
        in_use = asked_in_use(self._pods) if settled else None
        found = (rivals, frozenset(given), in_use)
        changed = found != (self.rivals, self.taken, self._in_use) or not self.looked.is_set()
        self.rivals, self.taken, self._in_use = found
        self.kept_back |= self.taken
        self.looked.set()
        if changed:
            self._changed()

    async def _read_slices(self) -> None:
        if self._slices_read is not None and time.monotonic() - self._slices_read < SLICES_SECONDS:
            return
        try:
            found = await self._client.list(ResourceSlice, fields=f"spec.nodeName={self._node}")
        except NotFound:  # an API server without resource.k8s.io
            found = ()
        self._drivers = frozenset(one.spec.driver for one in found if one.spec.devices)
        self._slices_read = time.monotonic()

    async def write(self) -> None:
        """Write the condition if it changed, and an event. Raises the API server's errors."""
        wanted, clock = self.now, time.monotonic()
        before, at = self._written or (None, 0.0)
        if wanted == before and clock - at < WRITE_AGAIN_SECONDS:
            return
        if before is None and wanted.reason == "Starting" and not self.looked.is_set():
            return  # a restarted agent leaves what it knew before until it knows more
        node = await node_conditions.write(self._client, self._node, wanted)
        self._written = wanted, clock
        if wanted == before or wanted.reason == "Starting":
            return
        log.info("node condition", reason=wanted.reason, message=wanted.message)
        if not wanted.ready:
            await self._events.warn(node, wanted.reason, wanted.message)
        elif before is not None and before.reason in ENDED_BY_PEOPLE:
            await self._events.note(node, wanted.reason, wanted.message)
