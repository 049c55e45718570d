"""Models of card that can be simulated, with the figures that are published for them (profiles/*.yaml)."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from egpu.errors import CorruptData

_PROFILES: Final = Path(__file__).with_name("profiles")
CHUNK_MIB: Final = 2
"""A card's memory is given out in pieces of so much."""
_MAX_MIG_PROFILES: Final = 8
_MEMORY_SLICES: Final = 8
"""Of a card, at the most: SIM_MEMORY_SLICES of native/sim/sim_machine.h."""


class MigProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shape of GPU instance that a card in MIG mode can be cut into, with NVIDIA's numbers for it.

    `profile` is NVML's ``NVML_GPU_INSTANCE_PROFILE_*``, `id` what the driver and nvidia-smi call it; `starts` are the
    memory slices at which one may begin, `size` how many it takes: the largest of a model takes all that there are.
    """

    name: str
    profile: int
    id: int
    slices: int
    memory_mib: int
    sm_count: int
    size: int
    starts: tuple[int, ...]
    instances: int
    copy_engines: int
    decoders: int
    jpegs: int
    ofas: int

    @property
    def gigabytes(self) -> int:
        """As its name says."""
        return int(self.name.partition(".")[2].partition("gb")[0])


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model of card, with the figures that are published for it (profiles/*.yaml). Units are in the names.

    `memory_mib` is NVML's total, and `driver_mib` what the driver keeps of it (NVML's `reserved`). Programs can have
    the rest; each context of theirs keeps `context_mib` of that.
    """

    name: str
    architecture: str
    brand: str
    compute_capability: str
    memory_mib: int
    driver_mib: int
    context_mib: int
    sm_count: int
    cores_per_sm: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    shared_kib_per_block: int
    shared_kib_per_block_optin: int
    shared_kib_per_sm: int
    l2_kib: int
    sm_clock_mhz: int
    memory_clock_mhz: int
    memory_bus_bits: int
    memory_gbytes_per_second: int
    tflops_fp32: float
    tflops_fp16: float
    fp64_ratio: int
    async_engines: int
    power_idle_watts: int
    power_limit_watts: int
    power_min_watts: int
    temperature_idle_celsius: int
    temperature_slowdown_celsius: int
    pcie_generation: int
    pcie_width: int
    pci_device_id: int
    pci_subsystem_id: int
    nvlink_version: int
    nvlink_count: int
    ecc: str
    mig: tuple[MigProfile, ...]  # none: the card cannot be cut up
    utilization_window_ms: int


@cache
def profiles() -> Mapping[str, Profile]:
    """Every known model of card, by its short name (``A100-80G``)."""
    found: dict[str, Profile] = {}
    for path in sorted(_PROFILES.glob("*.yaml")):
        try:
            profile = msgspec.yaml.decode(path.read_bytes(), type=Profile)
        except msgspec.DecodeError as error:
            raise CorruptData(f"card profile {path}: {error}") from error
        if (profile.memory_mib - profile.driver_mib) % CHUNK_MIB:
            raise CorruptData(f"card profile {path}: what the driver leaves is no multiple of {CHUNK_MIB} MiB")
        _check_mig(path, profile)
        found[path.stem.upper()] = profile
    return found


def _check_mig(path: Path, profile: Profile) -> None:
    """Every placement lies within the card, and an instance's memory within its slices."""
    slices = max((mig.size for mig in profile.mig), default=1)
    slice_mib = profile.memory_mib // 2 // slices * 2
    if slices > _MEMORY_SLICES or len(profile.mig) > _MAX_MIG_PROFILES:
        raise CorruptData(
            f"card profile {path}: more than {_MAX_MIG_PROFILES} MIG profiles, or {_MEMORY_SLICES} slices"
        )
    for mig in profile.mig:
        if mig.memory_mib % 2 or mig.memory_mib > mig.size * slice_mib:
            raise CorruptData(f"card profile {path}: {mig.name} has more memory than {mig.size} slices")
        if any(start + mig.size > slices for start in mig.starts):
            raise CorruptData(f"card profile {path}: {mig.name} has a placement beyond the card")
