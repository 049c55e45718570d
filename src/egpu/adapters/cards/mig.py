"""Instances of MIG through NVML: possible and present instances of a card, and the steps to make and destroy one.

Functions take NVML's handle of a card, while NVML is open (`egpu.adapters.cards.nvml.NvmlInventory.on_card`). An
instance is a GPU instance with one compute instance of its full size: programs see that as one device. Source: NVIDIA's
NVML API reference, "Multi Instance GPU Management".
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from egpu.adapters.cards.package import nvml
from egpu.api.mig import InstancePlace, InstanceProfile

T = TypeVar("T")

_MOST: Final = 64
"""The number of instances of one profile in one question; cards have 7."""
_NAME_PREFIX: Final = "MIG "
_IN_PIECES: Final = " in pieces"
"""A suffix to the profile of an instance that is no whole device: it takes room, and is never given out."""


@dataclass(frozen=True)
class FoundInstance:
    """A present GPU instance. `uuid` is CUDA's name of its compute instance `compute_id`. Without one of full size it
    is no device: it is half `made`, or cut further by another tool. `in_use`: programs run on it."""

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
        """Return it as others see it."""
        if self.whole:
            return self.place
        return InstancePlace(profile=self.place.profile + _IN_PIECES, start=self.place.start, size=self.place.size)


@dataclass(frozen=True)
class MigReading:
    """A card in MIG mode."""

    profiles: tuple[InstanceProfile, ...]
    instances: tuple[FoundInstance, ...]


class NvmlInstances:
    """The instances of this machine's cards, by UUID of the card. Each call raises as `on_card`: Unavailable if the
    driver refuses now, NotSupported if it never supports it."""

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
    """Return whether the card is in MIG mode; a card that does not say is not."""
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:
        return False


def why_not_whole(handle: Any) -> str:
    """Return why a card in MIG mode cannot be used as a whole (to CUDA it is no device), "" for any other."""
    return "in MIG mode: only its instances can be used, and only in a cluster" if is_on(handle) else ""


def read(handle: Any) -> MigReading:
    """Read a card in MIG mode: its possible and present instances. Raises NVMLError."""
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
    """Make a GPU instance, the first step. Raises NVMLError."""
    there = nvml.c_nvmlGpuInstancePlacement_t(place.start, place.size)
    nvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, _named(handle, place.profile).id, ctypes.byref(there))


def create_compute_instance(handle: Any, place: InstancePlace) -> None:
    """Make one compute instance of its full size, the second step. Raises NVMLError."""
    gpu_instance = _at(handle, place)
    slices = int(_named(handle, place.profile).sliceCount)
    for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        info = _or_none(nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, gpu_instance, number, 0)
        if info is not None and int(info.sliceCount) == slices:
            nvml.nvmlGpuInstanceCreateComputeInstance(gpu_instance, info.id)
            return
    raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)


def destroy_compute_instances(handle: Any, place: InstancePlace) -> None:
    """Destroy its compute instances, the first step. Raises NVMLError, NVMLError_InUse while programs run on it."""
    for compute_instance in _compute_instances(_at(handle, place)):
        nvml.nvmlComputeInstanceDestroy(compute_instance)


def destroy_gpu_instance(handle: Any, place: InstancePlace) -> None:
    """Destroy a GPU instance, the second step. Raises NVMLError."""
    nvml.nvmlGpuInstanceDestroy(_at(handle, place))


def _or_none(function: Callable[..., T], *arguments: Any) -> T | None:
    """Return None for a feature that this card or driver does not have."""
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
    """Return UUID and use by programs of every MIG device of the card, by the ids of its GPU instance and its compute
    instance."""
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
    """Return whether programs run on a MIG device. Where the driver does not say, it refuses later."""
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
