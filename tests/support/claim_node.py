"""A node that prepares claims: real files, stand-ins for cards, a pretend API server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from egpu.adapters.cards.nvml import CardProcess
from egpu.api import names
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.dra.claims import Claims
from egpu.apps.agent.dra.driver import ClaimDriver, slot_of
from egpu.apps.agent.dra.specs import ClaimSpecs
from egpu.apps.agent.node_pods import NodePods
from egpu.apps.agent.slots.devices import DeviceFiles
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.apps.agent.slots.former import FormerUsers
from egpu.apps.agent.slots.injection import Injection
from egpu.apps.agent.slots.preparer import Preparer
from egpu.core.dra.devices import device_name
from egpu_base.kubelet import cdi
from egpu_base.kubelet.dra import ClaimName
from support.fake_api import FakeAPI
from support.local_node import Cards, card

NODE = "node-a"
CLAIM = ClaimName("default", "c", "uid-c")
DEVICES = tuple(device_name(card(number).uuid) for number in range(2))


def no_processes() -> Mapping[str, tuple[CardProcess, ...]]:
    return {}


class ClaimNode:
    """The driver of a node with two cards. `again()` is the same node after the agent's restart."""

    def __init__(self, root: Path, api: FakeAPI) -> None:
        (root / "dev").mkdir(exist_ok=True)
        self.root, self.api = root, api
        self.priced = False
        self.client = api.client()
        self.slots = Slots(root / "slots")
        self.inventory = Inventory(Cards(2), interval_seconds=60)
        devices = DeviceFiles(root / "dev", root)
        self.specs = ClaimSpecs([root / "cdi"], devices, root / "slots")
        self.users: dict[str, set[str]] = {}
        """UIDs of pods that use a claim, by its name."""
        self.claims = Claims(self.client, NODE, self._pods_of)
        self.former = FormerUsers(self.slots, NodePods(self.client, NODE), no_processes)
        self.former.claimed, self.former.claim_left = self.claims.holds, self.claims.left
        self.preparer = Preparer(
            slots=self.slots, state_dir=root, devices=devices, inventory=self.inventory, node=NODE, specs=self.specs,
            injection=Injection("always"), former=self.former,
        )  # fmt: skip
        self.driver = ClaimDriver(
            NODE, self.claims, inventory=self.inventory, slots=self.slots, preparer=self.preparer, specs=self.specs,
            former=self.former, slot_lock=self._locks(), priced=lambda: self.priced,
        )  # fmt: skip
        self.driver.open()

    def _locks(self) -> Callable[[str], asyncio.Lock]:
        locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        return locks.__getitem__

    def _pods_of(self, record: SlotRecord) -> set[str]:
        return self.users.get(record.resource_claim.name, set()) if record.resource_claim is not None else set()

    def again(self) -> ClaimNode:
        return ClaimNode(self.root, self.api)

    async def prepare(self, claim: ClaimName = CLAIM) -> list[tuple[str, tuple[str, ...]]]:
        await self.inventory.refresh()
        return [(one.device, one.cdi_devices) for one in await self.driver.prepare(claim)]

    def spec(self, request: str = "gpu", claim: ClaimName = CLAIM) -> cdi.Spec:
        return cdi.read(self.root / "cdi" / f"{names.GROUP}-claim_{slot_of(claim.uid, request)}.json")

    def policy(self, request: str = "gpu") -> Path:
        return self.slots.path(slot_of(CLAIM.uid, request)) / "policy"

    def left(self) -> list[str]:
        """Return every slot and file that is there."""
        return [*self.slots.ids(), *self.specs.ids()]


def result(request: str = "gpu", card: int = 0, **capacity: str) -> dict[str, Any]:
    found = {
        "request": request,
        "driver": names.DRIVER,
        "pool": NODE,
        "device": DEVICES[card],
        "shareID": f"s-{request}",
    }
    return found | ({"consumedCapacity": capacity} if capacity else {})


def put_claim(api: FakeAPI, *results: dict[str, Any], claim: ClaimName = CLAIM, pod: str = "p", **config: str) -> None:
    parameters = {"apiVersion": names.API_VERSION, "kind": "SliceConfig", **config}
    configured = [{"source": "FromClass", "opaque": {"driver": names.DRIVER, "parameters": parameters}}]
    allocation = {"devices": {"results": list(results), "config": configured if config else []}}
    status = {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"}]}
    metadata = {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid}
    api.put("resourceclaims", {"kind": "ResourceClaim", "metadata": metadata, "status": status})


def put_pod(api: FakeAPI, *containers: tuple[str, tuple[tuple[str, str], ...]], pod: str = "p") -> None:
    """`containers`: name, and (claim, request) of each that it uses."""
    claims = sorted({claim for _, uses in containers for claim, _ in uses})
    plain = [
        {"name": name, "resources": {"claims": [{"name": claim, "request": request} for claim, request in uses]}}
        for name, uses in containers
    ]
    own = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    spec = {"nodeName": NODE, "containers": plain, "resourceClaims": own}
    api.put(
        "pods", {"kind": "Pod", "metadata": {"name": pod, "namespace": "default", "uid": f"uid-{pod}"}, "spec": spec}
    )
