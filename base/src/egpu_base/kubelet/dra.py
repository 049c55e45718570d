"""The API for drivers of dynamic resource allocation, v1: a driver's services and registration, and kubelet's side."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import grpc.aio

from egpu_base.errors import ElasticGPUError, TerminalError, Unavailable
from egpu_base.kubelet import channels
from egpu_base.kubelet.generated import dra_pb2 as pb
from egpu_base.kubelet.generated import dra_pb2_grpc as pb_grpc
from egpu_base.kubelet.generated import pluginregistration_pb2 as reg
from egpu_base.kubelet.generated import pluginregistration_pb2_grpc as reg_grpc

_drivers: Any = pb_grpc  # the generated modules have no types
_registrations: Any = reg_grpc

REGISTRY: Final = "plugins_registry"
"""The folder, under the kubelet directory, where kubelet looks for sockets of registrations."""
PLUGINS: Final = "plugins"
"""The folder, under the kubelet directory, where each driver has a folder for its own socket."""
PLUGIN_TYPE: Final = "DRAPlugin"
SERVICES: Final = ("v1.DRAPlugin",)
"""The services of a driver's socket, as kubelet names them."""
CALL_TIMEOUT_SECONDS: Final = 45.0
"""kubelet gives each call 45 seconds."""


@dataclass(frozen=True)
class ClaimName:
    """A ResourceClaim that kubelet names."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class PreparedDevice:
    """A device of a claim. `cdi_devices` are names, as VENDOR/CLASS=NAME; `share_id` is "" for none."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_devices: tuple[str, ...]
    share_id: str = ""


class Driver(Protocol):
    """A driver's behaviour. An ElasticGPUError is the answer for its one claim, with its text."""

    async def prepare(self, claim: ClaimName) -> Sequence[PreparedDevice]:
        """Prepare a claim's devices of this driver; repeatable."""
        ...

    async def unprepare(self, claim: ClaimName) -> None:
        """Remove everything that `prepare` made; repeatable."""
        ...


@dataclass(frozen=True)
class PluginInfo:
    """A registration: the name of a driver, and the path of its socket."""

    name: str
    endpoint: str
    type: str = PLUGIN_TYPE
    services: tuple[str, ...] = SERVICES


class _DriverServicer(pb_grpc.DRAPluginServicer):
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def NodePrepareResources(
        self, request: pb.NodePrepareResourcesRequest, context: Any
    ) -> pb.NodePrepareResourcesResponse:
        answers = {claim.uid: await self._prepare(_claim_in(claim)) for claim in request.claims}
        return pb.NodePrepareResourcesResponse(claims=answers)

    async def _prepare(self, claim: ClaimName) -> pb.NodePrepareResourceResponse:
        try:
            devices = await self._driver.prepare(claim)
        except ElasticGPUError as error:
            return pb.NodePrepareResourceResponse(error=str(error))
        return pb.NodePrepareResourceResponse(devices=[_device_out(device) for device in devices])

    async def NodeUnprepareResources(
        self, request: pb.NodeUnprepareResourcesRequest, context: Any
    ) -> pb.NodeUnprepareResourcesResponse:
        answers = {claim.uid: await self._unprepare(_claim_in(claim)) for claim in request.claims}
        return pb.NodeUnprepareResourcesResponse(claims=answers)

    async def _unprepare(self, claim: ClaimName) -> pb.NodeUnprepareResourceResponse:
        try:
            await self._driver.unprepare(claim)
        except ElasticGPUError as error:
            return pb.NodeUnprepareResourceResponse(error=str(error))
        return pb.NodeUnprepareResourceResponse()


class _RegistrationServicer(reg_grpc.RegistrationServicer):
    def __init__(self, info: PluginInfo, notify: Callable[[str], None]) -> None:
        self._info = info
        self._notify = notify

    async def GetInfo(self, request: reg.InfoRequest, context: Any) -> reg.PluginInfo:
        info = self._info
        return reg.PluginInfo(
            type=info.type, name=info.name, endpoint=info.endpoint, supported_versions=list(info.services)
        )

    async def NotifyRegistrationStatus(
        self, request: reg.RegistrationStatus, context: Any
    ) -> reg.RegistrationStatusResponse:
        self._notify("" if request.plugin_registered else request.error or "kubelet does not say why")
        return reg.RegistrationStatusResponse()


async def serve_driver(driver: Driver, socket: Path) -> grpc.aio.Server:
    """Listen on `socket`. The caller stops the returned server. Raises Unavailable, NotSupported."""
    server = channels.server()
    _drivers.add_DRAPluginServicer_to_server(_DriverServicer(driver), server)
    await channels.listen(server, socket)
    return server


async def serve_registration(info: PluginInfo, socket: Path, notify: Callable[[str], None]) -> grpc.aio.Server:
    """Listen for kubelet on `socket`, a file in REGISTRY. `notify` gets "" when kubelet has registered the plugin, else
    its reason. Raises Unavailable, NotSupported."""
    server = channels.server()
    _registrations.add_RegistrationServicer_to_server(_RegistrationServicer(info, notify), server)
    await channels.listen(server, socket)
    return server


async def plugin_info(socket: Path) -> PluginInfo:
    """Ask a plugin for its registration: kubelet's side. Raises Unavailable, NotSupported."""
    async with channels.channel(socket) as channel:
        stub: Any = _registrations.RegistrationStub(channel)
        reply: reg.PluginInfo = await _call(stub.GetInfo(reg.InfoRequest()), "GetInfo")
    return PluginInfo(reply.name, reply.endpoint, reply.type, tuple(reply.supported_versions))


async def notify_registered(socket: Path, problem: str = "") -> None:
    """Tell a plugin that it is registered, or why not: kubelet's side. Raises Unavailable, NotSupported."""
    async with channels.channel(socket) as channel:
        stub: Any = _registrations.RegistrationStub(channel)
        status = reg.RegistrationStatus(plugin_registered=not problem, error=problem)
        await _call(stub.NotifyRegistrationStatus(status), "NotifyRegistrationStatus")


class DriverClient:
    """kubelet's side of one driver's socket. Close it when the driver is gone."""

    def __init__(self, socket: Path) -> None:
        self._channel = channels.channel(socket)
        self._stub: Any = _drivers.DRAPluginStub(self._channel)

    async def close(self) -> None:
        await self._channel.close(None)

    async def prepare(self, claim: ClaimName) -> tuple[PreparedDevice, ...]:
        """Prepare a claim. Raises Unavailable, and TerminalError with the driver's reason."""
        request = pb.NodePrepareResourcesRequest(claims=[_claim_out(claim)])
        reply: pb.NodePrepareResourcesResponse = await _call(
            self._stub.NodePrepareResources(request), "NodePrepareResources"
        )
        answer = _answer_for(claim, reply.claims)
        return tuple(_device_in(device) for device in answer.devices)

    async def unprepare(self, claim: ClaimName) -> None:
        """Undo `prepare`. Raises as it does."""
        request = pb.NodeUnprepareResourcesRequest(claims=[_claim_out(claim)])
        reply: pb.NodeUnprepareResourcesResponse = await _call(
            self._stub.NodeUnprepareResources(request), "NodeUnprepareResources"
        )
        _answer_for(claim, reply.claims)


async def _call(reply: Awaitable[Any], what: str) -> Any:
    return await channels.call(reply, what, timeout_seconds=CALL_TIMEOUT_SECONDS)


def _answer_for(claim: ClaimName, answers: Mapping[str, Any]) -> Any:
    if claim.uid not in answers:
        raise Unavailable(f"claim {claim.namespace}/{claim.name}: the driver does not answer for it")
    answer = answers[claim.uid]
    if answer.error:
        raise TerminalError(answer.error)
    return answer


def _claim_in(claim: pb.Claim) -> ClaimName:
    return ClaimName(claim.namespace, claim.name, claim.uid)


def _claim_out(claim: ClaimName) -> pb.Claim:
    return pb.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid)


def _device_out(device: PreparedDevice) -> pb.Device:
    return pb.Device(
        request_names=list(device.requests),
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=list(device.cdi_devices),
        share_id=device.share_id or None,
    )


def _device_in(device: pb.Device) -> PreparedDevice:
    return PreparedDevice(
        requests=tuple(device.request_names),
        pool=device.pool_name,
        device=device.device_name,
        cdi_devices=tuple(device.cdi_device_ids),
        share_id=device.share_id,
    )
