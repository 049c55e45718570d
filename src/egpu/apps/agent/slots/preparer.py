"""From a container's allocation to what stands in its slot directory. Knows nothing of who asks.

Cards are named by UUID in an allocation; where they are today (minor number, health) is looked up for every
preparation, because a reboot changes it. Whatever is wrong is said, and nothing is prepared: no slice without limits.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog

from egpu.adapters import native
from egpu.adapters.files import write_atomically
from egpu.adapters.nvml import CardReading
from egpu.adapters.processes import boot_id
from egpu.adapters.slices import pages
from egpu.api.allocation import ContainerAllocation
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.serving import bridges
from egpu.apps.agent.serving.bridges import SlotBridges
from egpu.apps.agent.serving.slots import SlotExecutors, link_into
from egpu.apps.agent.slots import directories as layout
from egpu.apps.agent.slots.devices import DeviceFiles, name
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.apps.agent.slots.owners import Owner
from egpu.core.provisioners import provisioner
from egpu.core.provisioners.preparation import DeviceLimit, Preparation
from egpu.errors import NotSupported, TerminalError, Unavailable

log = structlog.get_logger(__name__)


class Preparer:
    """Fills slot directories. `state_dir` also keeps this node's copy of the interposer; `bridges` lead to executors of
    other nodes, on a node that takes part in the pool."""

    def __init__(
        self,
        *,
        slots: Slots,
        state_dir: Path,
        devices: DeviceFiles,
        inventory: Inventory,
        node: str = "",
        executors: SlotExecutors | None = None,
        bridges: SlotBridges | None = None,
    ) -> None:
        self._slots = slots
        self._node = node
        self._executors = executors
        self._bridges = bridges
        self._library_dir = state_dir / "lib"
        self._devices = devices
        self._inventory = inventory
        self._boot_id = boot_id()

    async def prepare(self, slot_id: str, owner: Owner) -> SlotRecord:
        """Make the slot of `slot_id` what `owner` was given, with nothing left of whoever had it before.

        Raises:
            TerminalError: the allocation cannot be prepared on this node.
            Unavailable: a card of it is unhealthy, or not read yet.
        """
        where = f"pod {owner.pod.key}, container {owner.container}"
        server = owner.allocation.cards_node(self._node)
        cards = await self._cards(where, owner.allocation) if server == self._node else []
        record = SlotRecord(
            slot_id=slot_id,
            namespace=owner.pod.namespace,
            pod=owner.pod.name,
            pod_uid=owner.pod.uid,
            container=owner.container,
            generation=self._slots.next_generation(),
            boot_id=self._boot_id,
            allocation=owner.allocation,
            minors={card.uuid: card.minor for card in cards},
            server="" if server == self._node else server,
        )
        technology = provisioner(owner.allocation.provisioner)
        plan = technology.prepare(where, owner.allocation, None if record.server else record.minors)
        try:
            link = await self._executor(record, plan)
            await asyncio.to_thread(self._slots.replace, record, lambda slot: self._fill(slot, plan, link))
        except OSError as error:
            raise Unavailable(f"{where}: its slot directory cannot be made: {error}") from error
        finally:
            for executors in (self._executors, self._bridges):
                if executors is not None:
                    executors.settled(record)
        log.info(
            "prepared",
            slot_id=slot_id,
            pod=owner.pod.key,
            uid=owner.pod.uid,
            container=owner.container,
            generation=record.generation,
            provisioner=owner.allocation.provisioner,
            minors=record.minors,
            server=server,
        )
        return record

    async def _cards(self, where: str, allocation: ContainerAllocation) -> list[CardReading]:
        """Those of the allocation that this node has."""
        if not allocation.cards:
            raise TerminalError(f"{where}: its allocation names no card")
        if any(share.uuid not in self._inventory.cards for share in allocation.cards):
            await self._inventory.refresh()
        cards = [self._inventory.cards[share.uuid] for share in allocation.cards if share.uuid in self._inventory.cards]
        for card in cards:
            if not card.healthy:
                raise Unavailable(f"{where}: card {card.uuid} is unhealthy: {card.reason}")
        return cards

    async def _executor(self, record: SlotRecord, plan: Preparation) -> Callable[[Path], None] | None:
        """What links the executor that has the cards in the container's place into its slot; None where the container
        has them itself."""
        if plan.executor is None:
            return None
        if plan.executor == "elsewhere":
            if self._bridges is None:
                raise NotSupported(f"node {record.server} has the cards, and this one takes no part in the pool")
            return partial(bridges.link, await self._bridges.start(record))
        if self._executors is None:
            raise TerminalError("this agent runs no executors")
        return partial(link_into, executor=await self._executors.start(record))

    def _fill(self, slot: Path, plan: Preparation, link: Callable[[Path], None] | None) -> None:
        if link is not None:
            link(slot)
        if plan.policy:
            pages.write_policy(slot / layout.POLICY_FILE, [_policy_line(limit) for limit in plan.policy])
        for file, artefact in plan.libraries.items():
            os.link(self._library(artefact), slot / file)
        preloaded = "".join(f"{layout.CONTAINER_DIRECTORY}/{file}\n" for file in plan.libraries)
        (slot / layout.PRELOAD_FILE).write_text(preloaded)
        self._slots.create_usage(slot)
        devices = slot / layout.DEVICES
        devices.mkdir()
        nowhere = self._devices.nowhere()
        for minor in {*self._inventory.minors, *plan.minors}:
            target = self._devices.card(minor) if minor in plan.minors else nowhere
            (devices / name(minor)).symlink_to(target)

    def _library(self, artefact: str) -> Path:
        """A library of ours, copied once per build beside the slots: a hard link cannot leave its file system."""
        source = native.path(artefact)
        found = source.stat()
        copy = self._library_dir / f"{found.st_mtime_ns:x}-{found.st_size:x}-{artefact.replace('/', '-')}"
        if not copy.exists():
            self._library_dir.mkdir(parents=True, exist_ok=True)
            write_atomically(copy, source.read_bytes(), mode=0o755, durable=True)
        return copy


def _policy_line(limit: DeviceLimit) -> pages.DevicePolicy:
    shared = pages.Mode.SHARE if limit.work_conserving else pages.Mode.CAP
    return pages.DevicePolicy(
        uuid=limit.uuid,
        minor=limit.minor,
        mode=shared if limit.core_percent else pages.Mode.UNLIMITED,
        core_ppm=limit.core_percent * pages.PPM // 100,
        memory_limit_bytes=limit.memory_bytes,
        weight=limit.weight,
        spill_limit_bytes=limit.spill_bytes,
    )
