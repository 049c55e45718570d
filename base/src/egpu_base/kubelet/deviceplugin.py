"""Device plugin API v1beta1: a plugin's server and registration, and kubelet's side of the same conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import grpc.aio

from egpu_base.errors import ElasticGPUError
from egpu_base.kubelet import channels
from egpu_base.kubelet.generated import deviceplugin_pb2 as pb
from egpu_base.kubelet.generated import deviceplugin_pb2_grpc as pb_grpc

VERSION = "v1beta1"
#: The directory of every socket, under the kubelet directory (default /var/lib/kubelet).
DIRECTORY = "device-plugins"
KUBELET_SOCKET = "kubelet.sock"

HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"

#: kubelet gives PreStartContainer 30 s; Allocate gets the same from us.
CALL_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class PluginDevice:
    """One device id as a plugin announces it. `numa` has its possible NUMA nodes, none if nothing is known."""

    id: str
    healthy: bool = True
    numa: tuple[int, ...] = ()


@dataclass(frozen=True)
class Mount:
    container_path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True)
class DeviceNode:
    """A device file for the container; `permissions` is some of "rwm"."""

    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True)
class ContainerDevices:
    """A plugin's answer to Allocate for one container; `cdi_devices` are names, as VENDOR/CLASS=NAME."""

    envs: dict[str, str] = field(default_factory=dict[str, str])
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: dict[str, str] = field(default_factory=dict[str, str])
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class PluginOptions:
    pre_start_required: bool = False


@dataclass(frozen=True)
class Registration:
    """A plugin's registration at kubelet; `endpoint` is a file name beside kubelet.sock."""

    resource: str
    endpoint: str
    options: PluginOptions = PluginOptions()
    version: str = VERSION


class DevicePlugin(Protocol):
    """A plugin's behaviour. Any ElasticGPUError becomes the call's gRPC status, its text the message."""

    @property
    def options(self) -> PluginOptions: ...

    def watch(self) -> AsyncIterator[Sequence[PluginDevice]]: ...

    async def allocate(self, ids: tuple[str, ...]) -> ContainerDevices: ...

    async def pre_start(self, ids: tuple[str, ...]) -> None: ...


class _PluginServicer(pb_grpc.DevicePluginServicer):
    def __init__(self, plugin: DevicePlugin) -> None:
        self._plugin = plugin

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions(pre_start_required=self._plugin.options.pre_start_required)

    async def ListAndWatch(self, request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:
        async for devices in self._plugin.watch():
            yield pb.ListAndWatchResponse(devices=[_device_out(device) for device in devices])

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        try:
            answers = [await self._plugin.allocate(tuple(each.devices_ids)) for each in request.container_requests]
        except ElasticGPUError as error:
            await channels.refuse(context, error)
        return pb.AllocateResponse(container_responses=[_answer_out(answer) for answer in answers])

    async def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: Any
    ) -> pb.PreStartContainerResponse:
        try:
            await self._plugin.pre_start(tuple(request.devices_ids))
        except ElasticGPUError as error:
            await channels.refuse(context, error)
        return pb.PreStartContainerResponse()


async def serve_plugin(plugin: DevicePlugin, socket: Path) -> grpc.aio.Server:
    """Listen on `socket`. The caller stops the returned server."""
    server = channels.server()
    cast(Any, pb_grpc).add_DevicePluginServicer_to_server(_PluginServicer(plugin), server)
    await channels.listen(server, socket)
    return server


async def register(directory: Path, registration: Registration) -> None:
    """Tell the kubelet that listens in `directory`. Raises Unavailable, or TerminalError when kubelet refuses."""
    async with channels.channel(directory / KUBELET_SOCKET) as channel:
        stub: Any = cast(Any, pb_grpc).RegistrationStub(channel)
        request = pb.RegisterRequest(
            version=registration.version,
            endpoint=registration.endpoint,
            resource_name=registration.resource,
            options=pb.DevicePluginOptions(pre_start_required=registration.options.pre_start_required),
        )
        await channels.call(
            stub.Register(request), f"registering {registration.resource}", timeout_seconds=CALL_TIMEOUT_SECONDS
        )


class _RegistrationServicer(pb_grpc.RegistrationServicer):
    def __init__(self, on_register: Callable[[Registration], Awaitable[None]]) -> None:
        self._on_register = on_register

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:
        registration = Registration(
            resource=request.resource_name,
            endpoint=request.endpoint,
            options=PluginOptions(pre_start_required=request.options.pre_start_required),
            version=request.version,
        )
        try:
            await self._on_register(registration)
        except ElasticGPUError as error:
            await channels.refuse(context, error)
        return pb.Empty()


async def serve_registration(
    on_register: Callable[[Registration], Awaitable[None]], directory: Path
) -> grpc.aio.Server:
    """Listen on kubelet.sock in `directory`: kubelet's side."""
    server = channels.server()
    cast(Any, pb_grpc).add_RegistrationServicer_to_server(_RegistrationServicer(on_register), server)
    await channels.listen(server, directory / KUBELET_SOCKET)
    return server


class PluginClient:
    """kubelet's side of one registered plugin. Close it when the plugin is replaced."""

    def __init__(self, socket: Path) -> None:
        self._channel = channels.channel(socket)
        self._stub: Any = cast(Any, pb_grpc).DevicePluginStub(self._channel)

    async def close(self) -> None:
        await self._channel.close(None)

    async def options(self) -> PluginOptions:
        reply: pb.DevicePluginOptions = await channels.call(
            self._stub.GetDevicePluginOptions(pb.Empty()),
            "GetDevicePluginOptions",
            timeout_seconds=CALL_TIMEOUT_SECONDS,
        )
        return PluginOptions(pre_start_required=reply.pre_start_required)

    async def watch(self) -> AsyncIterator[tuple[PluginDevice, ...]]:
        """Yield device lists until the plugin goes away, which raises Unavailable or ends the iteration."""
        stream: Any = self._stub.ListAndWatch(pb.Empty())
        try:
            async for reply in stream:
                yield tuple(_device_in(device) for device in cast(pb.ListAndWatchResponse, reply).devices)
        except grpc.aio.AioRpcError as error:
            raise channels.translated(error, "ListAndWatch") from error
        finally:
            stream.cancel()

    async def allocate(self, ids: Sequence[str]) -> ContainerDevices:
        """Allocate for one container per call, as kubelet does."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=list(ids))])
        reply: pb.AllocateResponse = await channels.call(
            self._stub.Allocate(request), "Allocate", timeout_seconds=CALL_TIMEOUT_SECONDS
        )
        return _answer_in(reply.container_responses[0])

    async def pre_start(self, ids: Sequence[str]) -> None:
        await channels.call(
            self._stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=list(ids))),
            "PreStartContainer",
            timeout_seconds=CALL_TIMEOUT_SECONDS,
        )


def _device_out(device: PluginDevice) -> pb.Device:
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in device.numa]) if device.numa else None
    return pb.Device(ID=device.id, health=HEALTHY if device.healthy else UNHEALTHY, topology=topology)


def _device_in(device: pb.Device) -> PluginDevice:
    numa = tuple(node.ID for node in device.topology.nodes)
    return PluginDevice(id=device.ID, healthy=device.health == HEALTHY, numa=numa)


def _answer_out(answer: ContainerDevices) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=answer.envs,
        mounts=[
            pb.Mount(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in answer.mounts
        ],
        devices=[
            pb.DeviceSpec(
                container_path=device.container_path, host_path=device.host_path, permissions=device.permissions
            )
            for device in answer.devices
        ],
        annotations=answer.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in answer.cdi_devices],
    )


def _answer_in(answer: pb.ContainerAllocateResponse) -> ContainerDevices:
    return ContainerDevices(
        envs=dict(answer.envs),
        mounts=tuple(Mount(each.container_path, each.host_path, each.read_only) for each in answer.mounts),
        devices=tuple(DeviceNode(each.container_path, each.host_path, each.permissions) for each in answer.devices),
        annotations=dict(answer.annotations),
        cdi_devices=tuple(each.name for each in answer.cdi_devices),
    )
