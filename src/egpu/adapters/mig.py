"""Instances of MIG through NVML: what a card can be cut into, what it is cut into, and the steps of cutting it.

Functions take NVML's handle of a card, while NVML is open (`egpu.adapters.nvml.NvmlInventory.on_card`). An
instance is a GPU instance with one compute instance that has all of it: that is what a program sees as one device.
NVIDIA's NVML API reference, "Multi Instance GPU Management".
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from egpu.adapters.nvml_package import nvml
from egpu.api.mig import InstancePlace, InstanceProfile

T = TypeVar("T")

_MOST: Final = 64
"""Instances of one profile that are asked about at once; cards have 7."""
_NAME_PREFIX: Final = "MIG "
_IN_PIECES: Final = " in pieces"
"""Follows the profile of an instance that is no whole device: it takes its place, and is given to nobody."""


@dataclass(frozen=True)
class FoundInstance:
    """A GPU instance that is there. `uuid` is what CUDA calls its compute instance `compute_id`; without one that has
    all of it, it is no device: then it is `made` by half, or cut further by somebody. `in_use`: programs run on it."""

    place: InstancePlace
    gpu_id: int
    compute_id: int = -1
    uuid: str = ""
    in_use: bool = False

    @property
    def whole(self) -> bool:
        return bool(self.uuid)

    @property
    def published(self) -> InstancePlace:
        """As others are told of it."""
        if self.whole:
            return self.place
        return InstancePlace(profile=self.place.profile + _IN_PIECES, start=self.place.start, size=self.place.size)


@dataclass(frozen=True)
class MigReading:
    """A card in MIG mode."""

    profiles: tuple[InstanceProfile, ...]
    instances: tuple[FoundInstance, ...]


class NvmlInstances:
    """Those of this machine's cards, by UUID of the card. Each call raises as `on_card` does: Unavailable for what the
    driver refuses now, NotSupported for what it never does."""

    def __init__(self, on_card: Callable[..., Any]) -> None:
        self._on_card = on_card

    def instances(self, uuid: str) -> MigReading:
        return self._on_card(uuid, read)

    def create_gpu_instance(self, uuid: str, place: InstancePlace) -> None:
        self._on_card(uuid, create_gpu_instance, place)

    def create_compute_instance(self, uuid: str, place: InstancePlace) -> None:
        self._on_card(uuid, create_compute_instance, place)

    def destroy_compute_instances(self, uuid: str, place: InstancePlace) -> None:
        self._on_card(uuid, destroy_compute_instances, place)

    def destroy_gpu_instance(self, uuid: str, place: InstancePlace) -> None:
        self._on_card(uuid, destroy_gpu_instance, place)


def is_on(handle: Any) -> bool:
    """Whether the card is in MIG mode; one that does not say is not."""
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:
        return False


def why_not_whole(handle: Any) -> str:
    """Why a card in MIG mode cannot be used as one: to CUDA it is no device. "" of any other."""
    return "in MIG mode: only its instances can be used, and only in a cluster" if is_on(handle) else ""


def read(handle: Any) -> MigReading:
    """What a card in MIG mode can be cut into, and is. Raises NVMLError."""
    found = [info for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT) if (info := _info(handle, number))]
    profiles = [_profile(handle, info) for info in found]
    devices = _devices(handle)
    instances = [
        _instance(gpu_instance, profile, info, devices)
        for info, profile in zip(found, profiles, strict=True)
        for gpu_instance in _gpu_instances(handle, info.id)
    ]
    return MigReading(tuple(profiles), tuple(sorted(instances, key=lambda one: one.place.start)))


def create_gpu_instance(handle: Any, place: InstancePlace) -> None:
    """The first step of making one. Raises NVMLError."""
    there = nvml.c_nvmlGpuInstancePlacement_t(place.start, place.size)
    nvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, _named(handle, place.profile).id, ctypes.byref(there))


def create_compute_instance(handle: Any, place: InstancePlace) -> None:
    """The second step: one compute instance that has all of it. Raises NVMLError."""
    gpu_instance = _at(handle, place)
    slices = int(_named(handle, place.profile).sliceCount)
    for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        info = _or_none(nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, gpu_instance, number, 0)
        if info is not None and int(info.sliceCount) == slices:
            nvml.nvmlGpuInstanceCreateComputeInstance(gpu_instance, info.id)
            return
    raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)


def destroy_compute_instances(handle: Any, place: InstancePlace) -> None:
    """The first step of taking one apart. Raises NVMLError, NVMLError_InUse while programs run on it."""
    for compute_instance in _compute_instances(_at(handle, place)):
        nvml.nvmlComputeInstanceDestroy(compute_instance)


def destroy_gpu_instance(handle: Any, place: InstancePlace) -> None:
    """The second step. Raises NVMLError."""
    nvml.nvmlGpuInstanceDestroy(_at(handle, place))


def _or_none(function: Callable[..., T], *arguments: Any) -> T | None:
    """None for what this card or driver has not."""
    try:
        return function(*arguments)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument, nvml.NVMLError_NotFound):
        return None


def _info(handle: Any, number: int) -> Any:
    return _or_none(nvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number)


def _name(info: Any) -> str:
    text = info.name.decode() if isinstance(info.name, bytes) else str(info.name)
    return text.removeprefix(_NAME_PREFIX)


def _named(handle: Any, name: str) -> Any:
    for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = _info(handle, number)
        if info is not None and _name(info) == name:
            return info
    raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)


def _profile(handle: Any, info: Any) -> InstanceProfile:
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, info.id, None, ctypes.byref(count))
    room = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, info.id, room, ctypes.byref(count))
    return InstanceProfile(
        name=_name(info),
        compute=int(info.sliceCount),
        memory_mib=int(info.memorySizeMB),
        size=int(room[0].size),
        starts=tuple(sorted(int(one.start) for one in room[: count.value])),
        most=int(info.instanceCount),
    )


def _gpu_instances(handle: Any, profile_id: int) -> list[Any]:
    found, count = (nvml.c_nvmlGpuInstance_t * _MOST)(), ctypes.c_uint()
    nvml.nvmlDeviceGetGpuInstances(handle, profile_id, found, ctypes.byref(count))
    return list(found[: count.value])


def _compute_instances(gpu_instance: Any) -> list[Any]:
    listed: list[Any] = []
    for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        info = _or_none(nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, gpu_instance, number, 0)
        if info is not None:
            found, count = (nvml.c_nvmlComputeInstance_t * _MOST)(), ctypes.c_uint()
            nvml.nvmlGpuInstanceGetComputeInstances(gpu_instance, info.id, found, ctypes.byref(count))
            listed += found[: count.value]
    return listed


def _at(handle: Any, place: InstancePlace) -> Any:
    for gpu_instance in _gpu_instances(handle, _named(handle, place.profile).id):
        if int(nvml.nvmlGpuInstanceGetInfo(gpu_instance).placement.start) == place.start:
            return gpu_instance
    raise nvml.NVMLError(nvml.NVML_ERROR_NOT_FOUND)


def _devices(handle: Any) -> dict[tuple[int, int], tuple[str, bool]]:
    """UUID of every MIG device of the card, and whether programs run on it, by the ids of its GPU instance and its
    compute instance."""
    found: dict[tuple[int, int], tuple[str, bool]] = {}
    for number in range(int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))):
        device = _or_none(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        if device is not None:
            ids = nvml.nvmlDeviceGetGpuInstanceId(device), nvml.nvmlDeviceGetComputeInstanceId(device)
            uuid = nvml.nvmlDeviceGetUUID(device)
            text = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
            found[int(ids[0]), int(ids[1])] = text, _in_use(device)
    return found


def _in_use(device: Any) -> bool:
    """Whether programs run on a MIG device; where the driver does not say, it is the one to refuse later."""
    try:
        return bool(nvml.nvmlDeviceGetComputeRunningProcesses(device))
    except nvml.NVMLError:
        return False


def _instance(
    gpu_instance: Any, profile: InstanceProfile, info: Any, devices: dict[tuple[int, int], tuple[str, bool]]
) -> FoundInstance:
    said = nvml.nvmlGpuInstanceGetInfo(gpu_instance)
    place = InstancePlace(profile=profile.name, start=int(said.placement.start), size=int(said.placement.size))
    parts = [nvml.nvmlComputeInstanceGetInfo(one) for one in _compute_instances(gpu_instance)]
    if len(parts) != 1 or int(parts[0].placement.size) != int(info.sliceCount):
        return FoundInstance(place, int(said.id))
    compute_id = int(parts[0].id)
    uuid, in_use = devices.get((int(said.id), compute_id), ("", False))
    return FoundInstance(place, int(said.id), compute_id, uuid, in_use)
