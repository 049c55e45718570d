"""Pod-resources API v1: who holds which device ids on this node, as kubelet knows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import msgspec

from egpu_base.kubelet import channels
from egpu_base.kubelet.generated import podresources_pb2 as pb
from egpu_base.kubelet.generated import podresources_pb2_grpc as pb_grpc
from egpu_base.runtime.coalescing import Coalescer

#: Under the kubelet directory.
SOCKET = "pod-resources/kubelet.sock"

CALL_TIMEOUT_SECONDS = 10.0


class ContainerHoldings(msgspec.Struct, frozen=True):
    """Device ids by resource name. Plain init containers never appear; kubelet does not list them."""

    namespace: str
    pod: str
    container: str
    devices: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict[str, tuple[str, ...]])


class PodHoldings(msgspec.Struct, frozen=True):
    """One pod of the node. The API gives no UID: two entries of one name are two pods, an old and a new one."""

    namespace: str
    name: str
    containers: tuple[ContainerHoldings, ...]


class PodResources:
    """A client of the kubelet whose directory is `kubelet_dir`. It keeps its connection, and reconnects when needed."""

    def __init__(self, kubelet_dir: Path) -> None:
        self._socket = kubelet_dir / SOCKET
        self._channel: grpc.aio.Channel | None = None
        self._pods = Coalescer(self._list)

    async def pods(self) -> tuple[PodHoldings, ...]:
        """Return every active pod, as kubelet knows it from now on. Raises Unavailable."""
        # Each start of a container asks about all pods of a node, and many containers start together.
        return await self._pods.answer()

    async def _list(self) -> tuple[PodHoldings, ...]:
        reply: pb.ListPodResourcesResponse = await channels.call(
            self._stub().List(pb.ListPodResourcesRequest()), "pod-resources List", timeout_seconds=CALL_TIMEOUT_SECONDS
        )
        return tuple(_pod_in(pod) for pod in reply.pod_resources)

    def _stub(self) -> Any:
        if self._channel is None:  # not before there is an event loop, which it belongs to
            self._channel = channels.channel(self._socket)
        return cast(Any, pb_grpc).PodResourcesListerStub(self._channel)

    async def pod(self, namespace: str, name: str) -> PodHoldings:
        """Return one pod. Raises Unavailable, also when kubelet does not know the pod."""
        request = pb.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        reply: pb.GetPodResourcesResponse = await channels.call(
            self._stub().Get(request), f"pod-resources Get {namespace}/{name}", timeout_seconds=CALL_TIMEOUT_SECONDS
        )
        return _pod_in(reply.pod_resources)

    async def allocatable(self) -> dict[str, tuple[str, ...]]:
        """Return every device id that kubelet can give out, by resource name."""
        reply: pb.AllocatableResourcesResponse = await channels.call(
            self._stub().GetAllocatableResources(pb.AllocatableResourcesRequest()),
            "pod-resources GetAllocatableResources",
            timeout_seconds=CALL_TIMEOUT_SECONDS,
        )
        return _joined(reply.devices)


class _Lister(pb_grpc.PodResourcesListerServicer):
    def __init__(
        self, pods: Callable[[], Sequence[PodHoldings]], allocatable: Callable[[], dict[str, tuple[str, ...]]]
    ) -> None:
        self._pods = pods
        self._allocatable = allocatable

    async def List(self, request: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:
        return pb.ListPodResourcesResponse(pod_resources=[_pod_out(pod) for pod in self._pods()])

    async def Get(self, request: pb.GetPodResourcesRequest, context: Any) -> pb.GetPodResourcesResponse:
        for pod in self._pods():
            if (pod.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return pb.GetPodResourcesResponse(pod_resources=_pod_out(pod))
        await context.abort(
            grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        )
        raise AssertionError("abort does not return")

    async def GetAllocatableResources(
        self, request: pb.AllocatableResourcesRequest, context: Any
    ) -> pb.AllocatableResourcesResponse:
        return pb.AllocatableResourcesResponse(devices=_split(self._allocatable()))


async def serve_pod_resources(
    kubelet_dir: Path,
    pods: Callable[[], Sequence[PodHoldings]],
    allocatable: Callable[[], dict[str, tuple[str, ...]]],
) -> grpc.aio.Server:
    """Serve kubelet's side from the two functions, with one entry per device id as Kubernetes 1.36 does."""
    server = channels.server()
    cast(Any, pb_grpc).add_PodResourcesListerServicer_to_server(_Lister(pods, allocatable), server)
    await channels.listen(server, kubelet_dir / SOCKET)
    return server


def _joined(entries: Sequence[pb.ContainerDevices]) -> dict[str, tuple[str, ...]]:
    ids: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        ids[entry.resource_name] = (*ids.get(entry.resource_name, ()), *entry.device_ids)
    return ids


def _split(devices: dict[str, tuple[str, ...]]) -> list[pb.ContainerDevices]:
    return [
        pb.ContainerDevices(resource_name=resource, device_ids=[each])
        for resource, ids in devices.items()
        for each in ids
    ]


def _pod_in(pod: pb.PodResources) -> PodHoldings:
    return PodHoldings(
        namespace=pod.namespace,
        name=pod.name,
        containers=tuple(
            ContainerHoldings(pod.namespace, pod.name, each.name, _joined(each.devices)) for each in pod.containers
        ),
    )


def _pod_out(pod: PodHoldings) -> pb.PodResources:
    return pb.PodResources(
        name=pod.name,
        namespace=pod.namespace,
        containers=[
            pb.ContainerResources(name=each.container, devices=_split(each.devices)) for each in pod.containers
        ],
    )
