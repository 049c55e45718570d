"""The Node object: registered, kept ready, its capacity published, its lease renewed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from egpu_base.api.kubernetes import Lease, LeaseSpec, Namespace, Node, ObjectMeta
from egpu_base.api.quantities import parse_quantity
from egpu_base.api.resources import whole_units
from egpu_base.api.wire import rfc3339
from egpu_base.errors import AlreadyExists, ElasticGPUError, InvalidQuantity, NotFound
from egpu_base.kubernetes import Client, Reflector
from egpu_sim.cluster import streams
from egpu_sim.cluster.kubelet.config import KubeletConfig

log = structlog.get_logger(__name__)

LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40
VERSION = "v1.36.0-egpu"
RETRY_SECONDS = 1.0


class NodeStatus:
    """`changed()` has the status written soon; without changes it is written with every heartbeat."""

    def __init__(
        self, config: KubeletConfig, client: Client, devices: Callable[[], tuple[dict[str, int], dict[str, int]]]
    ) -> None:
        self._config = config
        self._client = client
        self._devices = devices
        self._known = Reflector(client, Node, fields=f"metadata.name={config.node}")
        self._changed = asyncio.Event()
        self._ready_since = rfc3339(time.time())
        self.registered = asyncio.Event()
        self._read: tuple[Node | None, dict[str, int]] = None, {}
        """A node, and its allocatable resources."""

    def changed(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Write the node and read others' changes, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._known.run())
            await self._keep_written()

    async def _keep_written(self) -> None:
        while True:
            self._changed.clear()
            pause = self._config.heartbeat_seconds
            try:
                await self._write()
                await self._renew_lease()
                self.registered.set()
            except ElasticGPUError as error:
                log.info("node status not written", reason=str(error))
                pause = RETRY_SECONDS
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def allocatable(self, *, fresh: bool) -> dict[str, int]:
        """Return the node's allocatable resources: others publish some too. `fresh`: from the API server now, not from
        the watch."""
        known = None if fresh else self._known.get(self._config.node)
        node = known or await self._client.get(Node, self._config.node)
        if self._read[0] is not node:  # called for every pod, and the result rarely changes
            self._read = node, _allocatable(node)
        # The device manager knows its resources better: a list of devices may not have been written yet.
        return {**self._read[1], **self._devices()[1]}

    async def _write(self) -> None:
        patch = {"status": self._status()}
        annotations = {
            streams.LOGS_ANNOTATION: str(self._config.logs_dir),
            streams.ANNOTATION: str(self._config.kubelet_dir / streams.SOCKET),
        }
        try:
            node = await self._patched(patch)
            if any(node.annotations.get(key) != value for key, value in annotations.items()):
                await self._client.patch(Node, self._config.node, {"metadata": {"annotations": annotations}})
        except NotFound:
            labels = {
                "kubernetes.io/hostname": self._config.node,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                **self._config.labels,
            }
            with contextlib.suppress(AlreadyExists):
                metadata = ObjectMeta(name=self._config.node, labels=labels, annotations=annotations)
                await self._client.create(Node, Node(metadata=metadata))
            log.info("node registered", node=self._config.node)
            await self._patched(patch)

    async def _patched(self, patch: Mapping[str, Any]) -> Node:
        """Write the status as kubelet does: conditions of others stay."""
        path = f"/api/v1/nodes/{self._config.node}/status"
        answer = await self._client.raw("PATCH", path, body=patch, of="application/strategic-merge-patch+json")
        return msgspec.convert(answer, type=Node)

    def _status(self) -> dict[str, Any]:
        own = {
            "cpu": self._config.cpu,
            "memory": self._config.memory,
            "pods": str(self._config.pods),
            "ephemeral-storage": "100Gi",
        }
        total, healthy = self._devices()
        now = rfc3339(time.time())
        absent = {"MemoryPressure": "KubeletHasSufficientMemory", "DiskPressure": "KubeletHasNoDiskPressure"}
        conditions = [
            {"type": kind, "status": "False", "reason": reason, "lastHeartbeatTime": now,
             "lastTransitionTime": self._ready_since}
            for kind, reason in {**absent, "PIDPressure": "KubeletHasSufficientPID"}.items()
        ]  # fmt: skip
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now,
                 "lastTransitionTime": self._ready_since, "message": "kubelet is posting ready status"}  # fmt: skip
        listening = self._config.listening
        port = {} if listening is None else {"daemonEndpoints": {"kubeletEndpoint": {"Port": listening.port}}}
        return {
            **port,
            "capacity": own | {resource: str(count) for resource, count in total.items()},
            "allocatable": own | {resource: str(count) for resource, count in healthy.items()},
            "conditions": [*conditions, ready],
            "addresses": [
                {"type": "InternalIP", "address": self._config.node_ip},
                {"type": "Hostname", "address": self._config.node},
            ],
            "nodeInfo": {
                "kubeletVersion": VERSION,
                "kubeProxyVersion": "",
                "containerRuntimeVersion": "egpu://1",
                "operatingSystem": "linux",
                "architecture": "amd64",
                "osImage": "Elastic GPU simulated node",
                "kernelVersion": "",
                "machineID": self._config.node,
                "systemUUID": self._config.node,
                "bootID": self._config.node,
            },
        }

    async def _renew_lease(self) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        name = self._config.node
        try:
            await self._client.patch(Lease, name, {"spec": {"renewTime": now}}, namespace=LEASE_NAMESPACE)
        except NotFound:
            lease = Lease(
                metadata=ObjectMeta(name=name, namespace=LEASE_NAMESPACE),
                spec=LeaseSpec(holder_identity=name, lease_duration_seconds=LEASE_SECONDS, renew_time=now),
            )
            try:
                await self._client.create(Lease, lease)
            except NotFound:
                await self._client.create(Namespace, Namespace(metadata=ObjectMeta(name=LEASE_NAMESPACE)))
                await self._client.create(Lease, lease)


def _allocatable(node: Node) -> dict[str, int]:
    found: dict[str, int] = {}
    for resource, quantity in (node.status.allocatable or {}).items():
        try:
            found[resource] = whole_units(resource, parse_quantity(quantity, field=resource))
        except InvalidQuantity as error:
            log.warning("a resource of the node cannot be read", reason=str(error))
    return found
