"""Memory limits of cards in the driver, by control group: NVML of CUDA 13.4 and newer, cgroup v2.

Source: nvml.h (nvmlDeviceSetMemoryLimits_v1), https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html.
Only the hard limit is set: a soft one must be released before its group ends; a hard one ends with it.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpu.adapters.cards.package import nvml
from egpu.adapters.slices.membership import is_of_pod
from egpu_base.errors import NotSupported, Unavailable

_PLACES = ("kubepods*/*", "kubepods*/*/*", "kubelet*/*kubepods*/*", "kubelet*/*kubepods*/*/*")
"""The possible places of pods' groups, with either of kubelet's drivers, inside a group of its own or not."""


@dataclass(frozen=True)
class MemoryLimit:
    """The memory of a card that a group may use and uses, in bytes."""

    hard_bytes: int
    used_bytes: int


def pod_group(root: Path, uid: str) -> Path | None:
    """Return the control group of the pod with that UID, or None while kubelet has made none."""
    found = (each for place in _PLACES for each in root.glob(place) if is_of_pod(each.name, uid))
    return next(found, None)


def limits_memory(handle: Any) -> bool:
    """Return whether the driver supports limits by control group for this card; for the root it reports none."""
    try:
        nvml.nvmlDeviceGetMemoryLimits_v1(handle, nvml.c_nvmlGetMemoryLimits_v1_t(b"/sys/fs/cgroup"))
    except nvml.NVMLError as error:
        return getattr(error, "value", None) == nvml.NVML_ERROR_NOT_FOUND
    return True


class MemoryLimits:
    """Memory limits. `library` is the NVML to load instead of the system's. Calls block, briefly."""

    def __init__(self, library: Path | None = None) -> None:
        self._library = library

    def set(self, uuid: str, group: Path, hard_bytes: int) -> MemoryLimit:
        """Limit the memory of the card `uuid` for all processes in `group` and below it. Return the limit that the
        driver reports then.

        Raises:
            NotSupported: the driver cannot, or we may not.
            Unavailable: it did not answer, or keeps another limit.
        """
        limits = nvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=os.fsencode(group), softLimit=0, hardLimit=hard_bytes)
        asked = nvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=os.fsencode(group))
        where = f"the memory limit of card {uuid} for {group}"
        try:
            self._initialise()
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
                nvml.nvmlDeviceSetMemoryLimits_v1(handle, limits)
                nvml.nvmlDeviceGetMemoryLimits_v1(handle, asked)
            finally:
                nvml.nvmlShutdown()
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission, nvml.NVMLError_FunctionNotFound) as error:
            raise NotSupported(f"cannot set {where}: {error}") from error
        except nvml.NVMLError as error:
            raise Unavailable(f"cannot set {where}: {error}") from error
        found = MemoryLimit(int(asked.hardLimit), int(asked.currentUsed))
        if found.hard_bytes > hard_bytes:
            raise Unavailable(f"{where} is {found.hard_bytes} bytes instead of {hard_bytes}")
        return found

    def _initialise(self) -> None:
        if self._library is not None and nvml.nvmlLib is None:
            nvml.nvmlLib = ctypes.CDLL(str(self._library))
        nvml.nvmlInit()
