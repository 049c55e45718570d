"""Who gives out the node's cards, and to whom: `device-plugin` (the extender, to pods), `dra` (kube-scheduler, to
claims) or `priced` (the extender, to both).

A card never has two bookkeepers. The label `elasticgpu.io/allocator` of the Node says which allocator is wanted. The
device plugin and the DRA driver are the parts that serve it. The allocator in force changes in this order:

1. The leaving parts stop giving out: the cards' objects tell the extender to keep off, or the ResourceSlices go. All
   parts leave if the bookkeeper changes. Otherwise only those that the new allocator does not have: so pods go on when
   a node begins or ends to serve claims by the extender.
2. SETTLE_SECONDS pass, for a decision that was under way.
3. Nothing may have cards by the leaving parts any more: no slot, no allocated pod, no allocated claim. Until then an
   event on the Node says what has.
4. The new allocator is written down, which an agent's restart finds, and begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import structlog

from egpu.api import names
from egpu_base.api.kubernetes import Node
from egpu_base.errors import ElasticGPUError
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.endless import EndlessTasks
from egpu_base.system.files import write_atomically

log = structlog.get_logger(__name__)

SETTLE_SECONDS: Final = 5.0
"""For an allocation that was decided before the cards were withdrawn: a watch is behind by less."""
LOOK_SECONDS: Final = 2.0
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    names.DEVICE_PLUGIN: (names.DEVICE_PLUGIN,),
    names.DRA: (names.DRA,),
    names.PRICED: (names.DEVICE_PLUGIN, names.DRA),
}
"""The parts that serve each allocator."""
MAX_NAMED: Final = 5
"""Users of cards that an event names."""


class Way(Protocol):
    """One way to give out cards."""

    @property
    def registered(self) -> bool:
        """Whether kubelet knows it."""
        ...

    async def run(self) -> None:
        """Serve it, until cancelled."""
        ...

    async def withdraw(self) -> bool:
        """Stop giving out cards; return whether that is done. Raises the API server's errors."""
        ...

    async def users(self) -> list[str]:
        """Return what has cards by it. Raises the API server's errors."""
        ...


class Allocator:
    """The allocator in force on one node. `changed` is set when the cards' objects must be published anew."""

    def __init__(self, file: Path, ways: Mapping[str, Way], *, events: EventRecorder) -> None:
        """`file` keeps the allocator in force. `ways`: the parts."""
        self._file = file
        self._ways = ways
        self._events = events
        self._node: Node | None = None
        self.changed = asyncio.Event()
        self.in_force = _read(file)
        self.wanted = self.in_force
        self._refused = ""

    @property
    def keeps_extender_off(self) -> bool:
        """Return whether the extender must place nothing on the cards."""
        return names.DRA in (self.in_force, self.wanted)

    @property
    def by_claims(self) -> bool:
        """Return whether claims get the cards now."""
        return self.in_force == self.wanted and names.DRA in PARTS[self.in_force]

    @property
    def only_by_claims(self) -> bool:
        """Return whether kube-scheduler gives out the cards."""
        return (self.in_force, self.wanted) == (names.DRA, names.DRA)

    @property
    def priced(self) -> bool:
        """Return whether the extender gives cards to claims, or did and some may have them."""
        return self.in_force == names.PRICED

    @property
    def of_cards(self) -> str:
        """Return what the cards' objects tell the extender: who gives them to claims; "" for nobody."""
        if self.keeps_extender_off:
            return names.DRA
        return names.PRICED if self.by_claims else ""

    @property
    def registered(self) -> bool:
        """Return whether kubelet knows all parts in force."""
        return all(self._ways[part].registered for part in PARTS[self.in_force])

    @property
    def node_uid(self) -> str:
        """Return the UID of the Node; empty before it was read."""
        return self._node.uid if self._node is not None else ""

    def learn(self, node: Node) -> None:
        """Read the label. An unknown value changes nothing."""
        self._node = node
        wanted = (node.metadata.labels or {}).get(names.ALLOCATOR) or names.DEVICE_PLUGIN
        if wanted not in PARTS:
            log.warning("label not understood", label=names.ALLOCATOR, value=wanted, known=list(PARTS))
            return
        if wanted != self.wanted:
            log.info("allocator wanted", wanted=wanted, in_force=self.in_force)
            self.wanted = wanted

    async def run(self) -> None:
        """Serve the allocator in force, and change it, forever."""
        async with EndlessTasks() as group:
            serving: dict[str, asyncio.Task[None]] = {}
            while True:
                for part in PARTS[self.in_force]:
                    if part not in serving:
                        serving[part] = group.start(self._ways[part].run())
                await self._until_free()
                for part in self._leaving():
                    serving[part].cancel()
                    await asyncio.wait([serving.pop(part)])
                write_atomically(self._file, f"{self.wanted}\n".encode(), durable=True)
                log.info("allocator changed", before=self.in_force, now=self.wanted)
                self.in_force = self.wanted
                self.changed.set()

    def _leaving(self) -> list[str]:
        """Return the parts by which nothing may have cards when the allocator changes."""
        if names.DRA in (self.in_force, self.wanted):
            return list(PARTS[self.in_force])
        return [part for part in PARTS[self.in_force] if part not in PARTS[self.wanted]]

    async def _until_free(self) -> None:
        """Return once another allocator is wanted, and nothing has cards by the leaving parts."""
        withdrawn: float | None = None
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.wanted == self.in_force:
                withdrawn, self._refused = None, ""
                continue
            try:
                self.changed.set()  # the newest label, and the newest holders of cards
                leaving = self._leaving()
                if not all([await self._ways[part].withdraw() for part in leaving]):
                    withdrawn = None
                    continue
                if not leaving:
                    return
                withdrawn = withdrawn or time.monotonic()
                if time.monotonic() - withdrawn >= SETTLE_SECONDS and not await self._refusal():
                    return
            except ElasticGPUError as error:
                log.info("allocator not changed yet", reason=str(error))

    async def _refusal(self) -> bool:
        """Return whether something still has cards, and say so on the Node."""
        users = sorted({one for part in self._leaving() for one in await self._ways[part].users()})
        if not users:
            return False
        listed = ", ".join(users[:MAX_NAMED]) + (f" and {len(users) - MAX_NAMED} more" if users[MAX_NAMED:] else "")
        reason = (
            f"the node stays with {self.in_force} until nothing has its cards: {listed}; it takes no new GPU work of "
            f"this kind until then. Delete these, or set {names.ALLOCATOR} back to {self.in_force}"
        )
        if reason != self._refused and self._node is not None:
            self._refused = reason
            log.warning("allocator not changed yet", reason=reason)
            await self._events.warn(self._node, "AllocatorNotChanged", reason)
        return True


def _read(file: Path) -> str:
    try:
        found = file.read_text().strip()
    except FileNotFoundError:
        return names.DEVICE_PLUGIN
    return found if found in PARTS else names.DEVICE_PLUGIN
