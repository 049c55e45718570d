"""The two ways to give out a node's cards, as `egpu.apps.agent.dra.allocator` changes between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Protocol

from egpu.api import names
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.config import AgentConfig
from egpu.apps.agent.dra.claims import Claims
from egpu.apps.agent.dra.driver import ClaimDriver
from egpu.apps.agent.dra.registration import Registration
from egpu.apps.agent.dra.slices import Slices
from egpu.apps.agent.dra.specs import ClaimSpecs
from egpu.apps.agent.node_pods import NodePods
from egpu.apps.agent.slots.cdi import SlotSpecs
from egpu.apps.agent.slots.devices import DeviceFiles
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.apps.agent.slots.former import FormerUsers
from egpu.apps.agent.slots.injection import Injection
from egpu.apps.agent.slots.preparer import Preparer
from egpu_base.kubernetes import Client
from egpu_base.runtime.endless import EndlessTasks


class Registrar(Protocol):
    """Keeps the device plugin registered (`egpu.adapters.registrar`, `egpu.apps.agent.slots.offering`)."""

    registered: bool

    async def run(self) -> None: ...

    def withdraw(self) -> None: ...


class ByPlugin:
    """The extender chooses cards, and the device plugin gives slots. `known` returns when the way of injection is
    chosen; `kept_off` says whether the extender has been told to keep off the cards; `others` returns further users."""

    def __init__(
        self,
        registrar: Registrar,
        *,
        known: Callable[[], Awaitable[None]],
        kept_off: Callable[[], bool],
        others: Callable[[], Iterable[str]],
        slots: Slots,
        pods: NodePods,
    ) -> None:
        self._registrar = registrar
        self._known = known
        self._kept_off = kept_off
        self._others = others
        self._slots = slots
        self._pods = pods

    @property
    def registered(self) -> bool:
        return self._registrar.registered

    async def run(self) -> None:
        """Register only when ready: kubelet asks at once, and keeps the answers as long as the pod exists."""
        await self._known()
        await self._registrar.run()

    async def withdraw(self) -> bool:
        return self._kept_off()

    async def users(self) -> list[str]:
        found = {f"pod {one.namespace}/{one.pod}" for one in self._slots.records() if one.resource_claim is None}
        pods = await self._pods.on_node()
        found |= {f"pod {pod.key}" for pod in pods if names.ALLOCATION in pod.annotations and not pod.finished}
        return [*found.union(self._others())]


class ByClaims:
    """kube-scheduler or the extender chooses devices, and our driver prepares slots. `withdraw_plugin` ends the offer
    of the device plugin's slots, unless the node has both."""

    def __init__(
        self,
        slices: Slices,
        registration: Registration,
        driver: ClaimDriver,
        claims: Claims,
        *,
        slots: Slots,
        withdraw_plugin: Callable[[], None],
    ) -> None:
        self._slices = slices
        self._registration = registration
        self._driver = driver
        self._claims = claims
        self._slots = slots
        self._withdraw_plugin = withdraw_plugin

    @property
    def registered(self) -> bool:
        return self._registration.registered

    async def run(self) -> None:
        """Serve claims. Raises NotSupported if this node can have no CDI devices."""
        self._withdraw_plugin()
        await asyncio.to_thread(self._driver.open)
        async with EndlessTasks() as group:
            group.start(self._registration.run())
            group.start(self._slices.run())
            group.start(self._driver.run())

    async def withdraw(self) -> bool:
        await self._slices.withdraw()
        return True

    async def users(self) -> list[str]:
        held = {
            f"claim {one.namespace}/{one.resource_claim.name}"
            for one in self._slots.records()
            if one.resource_claim is not None
        }
        return [*held.union(f"claim {key}" for key in await self._claims.allocated())]


def by_claims(
    config: AgentConfig,
    client: Client,
    *,
    inventory: Inventory,
    slots: Slots,
    devices: DeviceFiles,
    preparer: Callable[[SlotSpecs, Injection], Preparer],
    former: FormerUsers,
    slot_lock: Callable[[str], asyncio.Lock],
    pods_of: Callable[[SlotRecord], Collection[str]],
    cordoned: Callable[[], Collection[str]],
    node_uid: Callable[[], str],
    giving: Callable[[], bool],
    priced: Callable[[], bool],
    contested: Callable[[], bool],
    withdraw_plugin: Callable[[], None],
) -> ByClaims:
    """Assemble the way by claims, of the agent's parts. Other parameters as in `Slices` and `ByClaims`."""
    claims = Claims(client, config.node, pods_of)
    specs = ClaimSpecs(config.cdi_directories, devices, config.slots_dir)
    former.claimed, former.claim_left = claims.holds, claims.left
    driver = ClaimDriver(
        config.node,
        claims,
        inventory=inventory,
        slots=slots,
        preparer=preparer(specs, Injection("always")),
        specs=specs,
        former=former,
        slot_lock=slot_lock,
        priced=priced,
        sweep_seconds=config.sweep_seconds,
    )
    registration = Registration(driver, config.kubelet_dir)
    slices = Slices(
        client,
        config.node,
        inventory=inventory,
        slots=slots,
        node_uid=node_uid,
        cordoned=cordoned,
        giving=lambda: giving() and registration.registered,
        priced=priced,
        contested=contested,
    )
    return ByClaims(slices, registration, driver, claims, slots=slots, withdraw_plugin=withdraw_plugin)
