"""What a node agent must set up for one container, as values. `Provisioner.prepare` makes them.

They know nothing of who asks (device plugin today, DRA or NRI tomorrow) and touch nothing: the agent writes the policy
page, links the devices and the libraries, and starts the executor that these name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.api.mig import InstancePlace
from egpu.api.quantities import MIB_BYTES

INTERPOSER: Final = {"libegpu-interposer.so": "libegpu-interposer.so"}
"""The library that holds a program to its policy page: its file, and the artefact it is."""
RUNTIMES: Final = {
    "libcudart.so.12": "runtime/libcudart.so.12",
    "libcudart.so.13": "runtime/libcudart.so.13",
}
"""CUDA's runtime over whichever driver a program finds, likewise: NVIDIA's works over NVIDIA's driver only."""
FORWARDED: Final = {
    soname: f"libraries/{soname}"
    for soname in (
        "libcublas.so.13",
        "libcublasLt.so.13",
        "libcudnn.so.9",
        "libcufft.so.12",
        "libcurand.so.10",
        "libcusolver.so.12",
        "libcusparse.so.12",
        "libcusparseLt.so.0",
        "libnccl.so.2",
    )
}
"""Libraries over the remote driver, likewise: each carries its functions to the server's own."""
REFUSED: Final = {"libcupti.so.13": "libraries/libcupti.so.13"}
"""Libraries that work over NVIDIA's driver alone, likewise: each says so, whatever is asked of it."""
REMOTE_LIBRARIES: Final = {
    "libcuda.so.1": "remote/libcuda.so.1",
    "libnvidia-ml.so.1": "remote/libnvidia-ml.so.1",
    **RUNTIMES,
    **FORWARDED,
    **REFUSED,
}
"""What a program without a GPU of its own loads instead of NVIDIA's, likewise. A library that is loaded already is
found by its name, so these come before those that the program or a package of its brings along."""


@dataclass(frozen=True)
class DeviceLimit:
    """The slice on one card, as the policy page states it, in the order in which the container sees its cards.

    `core_percent` 0 means that compute is not limited; `work_conserving` that idle compute may be used beyond it;
    `weight` is the share under contention. `spill_bytes` may be allocated beyond `memory_bytes`, as managed memory.
    """

    uuid: str
    minor: int
    memory_bytes: int
    core_percent: int
    weight: int
    work_conserving: bool = False
    spill_bytes: int = 0


@dataclass(frozen=True)
class CardInstance:
    """An instance of MIG, and the card, by UUID, that it is one of."""

    uuid: str
    place: InstancePlace


@dataclass(frozen=True)
class ServedSlice:
    """What each program of a container has of the card `uuid`, by MPS."""

    uuid: str
    core_percent: int
    memory_mib: int


@dataclass(frozen=True)
class Preparation:
    """Everything one container needs. `minors` are the device nodes that it may open, now: none where an executor has
    the cards. `policy` is its policy page: none where nothing in the process has to be limited (whole cards, a
    technology that trusts the program, or an executor that is limited in its place). `libraries` are preloaded: file
    beside the policy page → artefact of ours. `executor` is where a process has the cards in the container's place, if
    one has. `instance`: of the card's memory and compute it gets this instance of MIG, and sees no other. `served`:
    its programs are clients of the card's MPS server."""

    minors: tuple[int, ...] = ()
    policy: tuple[DeviceLimit, ...] = ()
    libraries: Mapping[str, str] = field(default_factory=dict[str, str])
    executor: Literal["here", "elsewhere"] | None = None
    instance: CardInstance | None = None
    served: ServedSlice | None = None


def device_limit(share: CardShare, minor: int, allocation: ContainerAllocation) -> DeviceLimit:
    """The slice on one card of a container that has its cards itself."""
    return DeviceLimit(
        uuid=share.uuid,
        minor=minor,
        memory_bytes=share.memory_mib * MIB_BYTES,
        core_percent=share.core,
        # Who has no compute share of its own still gets a little when the card is contended.
        weight=max(share.core, 1),
        work_conserving=allocation.core_limit > 0,
        spill_bytes=allocation.memory_limit_bytes(share) - share.memory_mib * MIB_BYTES,
    )
