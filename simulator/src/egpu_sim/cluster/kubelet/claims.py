"""kubelet's part of dynamic resource allocation: drivers prepare the claims of a pod before its containers start.

A claim's driver is asked again until it has prepared the claim, and until it has undone that after the last pod. The
devices of prepared claims are in a checkpoint, for containers that start after a restart of the kubelet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from egpu_base.errors import TerminalError, Unavailable
from egpu_base.kubelet.deviceplugin import ContainerDevices
from egpu_base.kubelet.dra import ClaimName, PreparedDevice
from egpu_base.kubernetes import Client
from egpu_base.system.files import write_atomically
from egpu_sim.cluster.dynamic import references
from egpu_sim.cluster.dynamic.kinds import ResourceClaim
from egpu_sim.cluster.dynamic.references import PodClaim
from egpu_sim.cluster.kubelet.drivers import Drivers
from egpu_sim.cluster.kubelet.objects import Container, Pod

CHECKPOINT: Final = "dra_manager_state"


class HeldClaim(msgspec.Struct):
    """A claim on this node: the UIDs of its pods, and what each driver prepared."""

    namespace: str
    name: str
    uid: str
    drivers: dict[str, tuple[PreparedDevice, ...]]
    pods: list[str] = msgspec.field(default_factory=list[str])

    @property
    def identity(self) -> ClaimName:
        return ClaimName(self.namespace, self.name, self.uid)


class Claims:
    """The claims of this node's pods."""

    def __init__(self, kubelet_dir: Path, *, client: Client, drivers: Drivers) -> None:
        self._checkpoint = kubelet_dir / CHECKPOINT
        self._client = client
        self._drivers = drivers
        self._one_at_a_time = asyncio.Lock()
        self._prepared: set[str] = set()
        """UIDs of claims that were prepared since this kubelet started."""
        self._held: dict[tuple[str, str], HeldClaim] = {}
        try:
            saved = msgspec.json.decode(self._checkpoint.read_bytes(), type=list[HeldClaim])
        except FileNotFoundError:
            saved = []
        for one in saved:
            self._held[one.namespace, one.name] = one

    def pods(self) -> set[str]:
        """Return the UIDs of all pods with claims here."""
        return {uid for one in self._held.values() for uid in one.pods}

    def holds(self, pod_uid: str) -> bool:
        return pod_uid in self.pods()

    async def prepare(self, pod: Pod) -> None:
        """Have all claims of a pod prepared. Raises ElasticGPUError with the reason; try again then."""
        async with self._one_at_a_time:
            for one in references.pod_claims(pod):
                await self._prepare(pod, one)

    async def _prepare(self, pod: Pod, one: PodClaim) -> None:
        claim = await self._claim_for(pod, one)
        drivers = sorted({str(result.get("driver")) for result in claim.results})
        clients = {driver: self._drivers.get(driver) for driver in drivers}
        held = self._held.setdefault(
            (claim.namespace, claim.name),
            HeldClaim(claim.namespace, claim.name, claim.uid, dict.fromkeys(drivers, ())),
        )
        if held.uid != claim.uid:
            text = f"old ResourceClaim with same name {claim.name} and different UID {held.uid} still exists"
            raise Unavailable(f"{text} (previous pod force-deleted?!)")
        if pod.uid not in held.pods:
            held.pods.append(pod.uid)
            self._save()
        if claim.uid in self._prepared:
            return
        for driver, client in clients.items():
            try:
                held.drivers[driver] = await client.prepare(held.identity)
            except TerminalError as error:
                text = f"NodePrepareResources failed for ResourceClaim {claim.name}: {error}"
                raise Unavailable(text) from error
        self._prepared.add(claim.uid)
        self._save()

    async def _claim_for(self, pod: Pod, one: PodClaim) -> ResourceClaim:
        if not one.claim:
            raise references.missing(pod, one)
        claim = await self._client.get(ResourceClaim, one.claim, namespace=pod.namespace)
        if one.template:
            references.check_owner(pod, claim)
        if not references.is_reserved_for(claim, pod):
            text = f"pod {pod.name} ({pod.uid}) is not allowed to use ResourceClaim {claim.name} ({claim.uid})"
            raise Unavailable(text)
        return claim

    def devices(self, pod: Pod, container: Container) -> Sequence[ContainerDevices]:
        """Return the CDI devices of a container: those of the claims, or requests, that it names."""
        wanted = [] if container.resources is None else container.resources.claims or []
        names = {one.name: one.claim for one in references.pod_claims(pod)}
        found: list[str] = []
        for one in wanted:
            held = self._held.get((pod.namespace, names.get(one.name, "")))
            for device in (each for devices in (held.drivers.values() if held else ()) for each in devices):
                if not one.request or not device.requests or one.request in device.requests:
                    found += device.cdi_devices
        return [ContainerDevices(cdi_devices=tuple(dict.fromkeys(found)))] if found else []

    async def unprepare(self, pod_uid: str) -> None:
        """Have the claims of an ended pod undone that no other pod uses. Raises ElasticGPUError; try again then."""
        async with self._one_at_a_time:
            for key, held in list(self._held.items()):
                if pod_uid in held.pods:
                    await self._unprepare(key, held, pod_uid)

    async def _unprepare(self, key: tuple[str, str], held: HeldClaim, pod_uid: str) -> None:
        if held.pods == [pod_uid]:
            for driver in held.drivers:
                client = self._drivers.get(driver)
                try:
                    await client.unprepare(held.identity)
                except TerminalError as error:
                    text = f"NodeUnprepareResources failed for ResourceClaim {held.name}: {error}"
                    raise Unavailable(text) from error
            del self._held[key]
            self._prepared.discard(held.uid)
        else:
            held.pods.remove(pod_uid)
        self._save()

    def _save(self) -> None:
        write_atomically(self._checkpoint, msgspec.json.encode(list(self._held.values())))
