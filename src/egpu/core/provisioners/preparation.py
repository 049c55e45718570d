"""The set-up of one container by a node agent, as values. `Provisioner.prepare` makes them.

They do not depend on the caller (device plugin today, DRA or NRI tomorrow) and do no I/O: the agent writes the policy
page, links the devices and the libraries, and starts the executor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.api.mig import InstancePlace
from egpu.core.provisioners.generated import SONAMES
from egpu_base.api.quantities import MIB_BYTES

INTERPOSER: Final = {"libegpu-interposer.so": "libegpu-interposer.so"}
"""The library that limits a program to its policy page: file name → artefact."""
RUNTIMES: Final = {
    "libcudart.so.12": "runtime/libcudart.so.12",
    "libcudart.so.13": "runtime/libcudart.so.13",
}
"""CUDA's runtime over any driver, file name → artefact; NVIDIA's works only over NVIDIA's driver."""
FORWARDED: Final = {soname: f"libraries/{soname}" for soname in SONAMES}
"""Libraries over the remote driver, file name → artefact: each forwards its functions to the server's library."""
REFUSED: Final = {"libcupti.so.13": "libraries/libcupti.so.13"}
"""Libraries that need NVIDIA's driver, file name → artefact: each returns an error from every function."""
REMOTE_LIBRARIES: Final = {
    "libcuda.so.1": "remote/libcuda.so.1",
    "libnvidia-ml.so.1": "remote/libnvidia-ml.so.1",
    **RUNTIMES,
    **FORWARDED,
    **REFUSED,
}
"""The libraries that a program without a GPU loads instead of NVIDIA's. They are preloaded: a loaded library is found
by name, before those that the program or its packages bring along."""


@dataclass(frozen=True)
class DeviceLimit:
    """The slice on one card, as in the policy page, in the order in which the container sees its cards.

    `core_percent` 0: no compute limit. `work_conserving`: idle compute may be used beyond it. `weight`: the share under
    contention. `latency`: its launches come before those of others. `spill_bytes`: managed memory beyond
    `memory_bytes`.
    """

    uuid: str
    minor: int
    memory_bytes: int
    core_percent: int
    weight: int
    work_conserving: bool = False
    latency: bool = False
    spill_bytes: int = 0


@dataclass(frozen=True)
class CardInstance:
    """A MIG instance, and the UUID of its card."""

    uuid: str
    place: InstancePlace


@dataclass(frozen=True)
class ServedSlice:
    """The share of each program of a container on the card `uuid`, by MPS."""

    uuid: str
    core_percent: int
    memory_mib: int


@dataclass(frozen=True)
class Preparation:
    """Everything that one container needs. `minors`: its device nodes; none if an executor has the cards. `policy`: its
    policy page; empty if nothing in the process is limited (whole cards, a technology that trusts the program, or an
    executor that is limited in its place). `libraries`: preloaded, file beside the policy page → artefact. `executor`:
    where a process has the cards in the container's place. `instance`: its only MIG instance of the card. `served`: its
    programs are clients of the card's MPS server. `parkable`: memory of its idle programs may leave the card;
    `room_bytes` of it have their own room there (None: all of it)."""

    minors: tuple[int, ...] = ()
    policy: tuple[DeviceLimit, ...] = ()
    libraries: Mapping[str, str] = field(default_factory=dict[str, str])
    executor: Literal["here", "elsewhere"] | None = None
    instance: CardInstance | None = None
    served: ServedSlice | None = None
    parkable: bool = False
    room_bytes: int | None = None


def device_limit(share: CardShare, minor: int, allocation: ContainerAllocation) -> DeviceLimit:
    """Return the slice on one card of a container that has its cards itself."""
    return DeviceLimit(
        uuid=share.uuid,
        minor=minor,
        memory_bytes=share.memory_mib * MIB_BYTES,
        core_percent=share.core,
        # A slice without a compute share still gets a little of a contended card.
        weight=max(share.core, 1),
        work_conserving=allocation.core_limit > 0,
        latency=allocation.latency,
        spill_bytes=allocation.memory_limit_bytes(share) - share.memory_mib * MIB_BYTES,
    )
