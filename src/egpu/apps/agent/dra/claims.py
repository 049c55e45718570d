"""Reads the ResourceClaims of one node from the API server, and writes what their devices got."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import structlog

from egpu.api import names
from egpu.apps.agent.slots.directories import SlotRecord
from egpu.core.dra.devices import device_name
from egpu.core.dra.grants import Grant, ours
from egpu.core.dra.kept import kept_claim
from egpu_base.api.devices import AllocatedDevice, ResourceClaim
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import Conflict, ElasticGPUError, NotFound, TerminalError, Unavailable
from egpu_base.kubelet.dra import ClaimName
from egpu_base.kubernetes import Client

log = structlog.get_logger(__name__)

STATUS_KIND = "SliceStatus"


class Claims:
    """The claims with devices of the pool `node`. `pods_of` returns the UIDs of the node's pods that name the claim of
    a slot."""

    def __init__(self, client: Client, node: str, pods_of: Callable[[SlotRecord], Collection[str]]) -> None:
        self._client = client
        self._node = node
        self._pods_of = pods_of

    async def read(self, claim: ClaimName) -> ResourceClaim:
        """Return a claim. Raises TerminalError if another one has its name, NotFound, Unavailable."""
        found = await self._client.get(ResourceClaim, claim.name, namespace=claim.namespace)
        if found.uid != claim.uid:
            raise TerminalError(
                f"claim {found.key}: kubelet asks for the one with UID {claim.uid}, and the API server has {found.uid}"
            )
        return found

    async def pod(self, claim: ResourceClaim) -> Pod:
        """Return the first pod on this node for which the claim is reserved. Raises Unavailable if there is none."""
        for user in claim.status.reserved_for or ():
            if user.resource != "pods" or user.api_group:
                continue
            try:
                pod = await self._client.get(Pod, user.name, namespace=claim.namespace)
            except NotFound:
                continue
            if (pod.uid, pod.spec.node_name) == (user.uid, self._node):
                return pod
        raise Unavailable(f"claim {claim.key}: it is reserved for no pod of node {self._node}")

    async def holds(self, record: SlotRecord) -> bool:
        """Return whether the claim of a slot still has its devices. Raises Unavailable."""
        held, found = record.resource_claim, await self._present(record)
        return held is not None and found is not None and found.uid == held.uid and bool(ours(found, self._node))

    async def left(self, record: SlotRecord) -> frozenset[str]:
        """Return the UIDs of the pods that may still use the slot of a claim that is gone. Another claim may have its
        name by now; pods for which that one is reserved are not among them. Raises Unavailable."""
        found = await self._present(record)
        reserved = {one.uid for one in found.status.reserved_for or ()} if found is not None else set[str]()
        return frozenset({record.pod_uid} | ({*self._pods_of(record)} - reserved))

    async def _present(self, record: SlotRecord) -> ResourceClaim | None:
        """Return the claim that has the name of a slot's now."""
        held = record.resource_claim
        return None if held is None else await self._client.find(ResourceClaim, held.name, namespace=record.namespace)

    async def allocated(self) -> list[str]:
        """Return the claims (`namespace/name`) that have devices of this node."""
        try:
            found = await self._client.list(ResourceClaim, transform=kept_claim)
        except NotFound:
            return []  # this API server does not serve them
        return [claim.key for claim in found if ours(claim, self._node)]

    async def report(self, claim: ResourceClaim, grants: Sequence[Grant]) -> None:
        """Write into the claim's status what its devices got. Programs do not need it, so a failure is only logged."""
        mine = [_status(grant, device) for grant in grants for device in grant.devices]
        others = [one for one in claim.status.devices or () if not _is_one_of(one, mine)]
        if [*others, *mine] == (claim.status.devices or []):
            return
        patch = {
            "metadata": {"resourceVersion": claim.metadata.resource_version},
            "status": {"devices": [*others, *mine]},
        }
        try:
            await self._client.patch(ResourceClaim, claim.name, patch, namespace=claim.namespace, subresource="status")
        except Conflict:
            log.info("status of devices not written: the claim has changed", claim=claim.key)
        except ElasticGPUError as error:
            log.warning("status of devices not written", claim=claim.key, reason=str(error))


def _status(grant: Grant, device: AllocatedDevice) -> dict[str, Any]:
    """Return the status of one device. A card that its request got twice has the sum in both."""
    share = next(one for one in grant.allocation.cards if device_name(one.uuid) == device.device)
    data = {
        "apiVersion": names.API_VERSION,
        "kind": STATUS_KIND,
        "technology": grant.allocation.provisioner,
        "uuid": share.uuid,
        "cores": share.core,
        "memoryMiB": share.memory_mib,
    }
    found = {"driver": device.driver, "pool": device.pool, "device": device.device, "data": data}
    return found | ({"shareID": device.share_id} if device.share_id else {})


def _is_one_of(one: dict[str, Any], mine: Iterable[dict[str, Any]]) -> bool:
    return _key(one) in [_key(other) for other in mine]


def _key(one: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(one.get(field, "") for field in ("driver", "pool", "device", "shareID"))
