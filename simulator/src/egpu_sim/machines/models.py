"""Models of card that can be simulated, with their published figures (profiles/*.yaml)."""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from egpu_base.errors import CorruptData

_PROFILES: Final = Path(__file__).with_name("profiles")
CHUNK_MIB: Final = 2
"""The unit of allocation of a card's memory."""
_MAX_MIG_PROFILES: Final = 8
_MEMORY_SLICES: Final = 8
"""The most memory slices of a card: SIM_MEMORY_SLICES of simulator/native/gpu/sim_machine.h."""


class MigProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shape of GPU instance of a card in MIG mode, with NVIDIA's numbers for it.

    `profile` is NVML's ``NVML_GPU_INSTANCE_PROFILE_*``, and `id` the driver's and nvidia-smi's number. `starts` are the
    memory slices at which an instance may begin, and `size` is its number of slices. The largest takes all.
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
        return int(self.name.partition(".")[2].partition("gb")[0])


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model of card with its published figures (profiles/*.yaml). Units are in the names.

    `memory_mib` is NVML's total, and `driver_mib` the part that the driver keeps (NVML's `reserved`). Programs get the
    rest; each of their contexts keeps `context_mib` of it.
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
    mig: tuple[MigProfile, ...]  # none: the card has no MIG
    utilization_window_ms: int


@cache
def profiles() -> Mapping[str, Profile]:
    """Return every known model of card, by its short name (``A100-80G``)."""
    found: dict[str, Profile] = {}
    for path in sorted(_PROFILES.glob("*.yaml")):
        try:
            profile = msgspec.yaml.decode(path.read_bytes(), type=Profile)
        except msgspec.DecodeError as error:
            raise CorruptData(f"card profile {path}: {error}") from error
        if (profile.memory_mib - profile.driver_mib) % CHUNK_MIB:
            raise CorruptData(f"card profile {path}: programs' memory is not a multiple of {CHUNK_MIB} MiB")
        _check_mig(path, profile)
        found[path.stem.upper()] = profile
    return found


def suggestion(name: str) -> str:
    """Return " (did you mean …?)" for a name that is no profile; "" if none is like it."""
    known = sorted(profiles())
    near = [one for one in known if name and name.upper() in one] or get_close_matches(name.upper(), known)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def _check_mig(path: Path, profile: Profile) -> None:
    """Check that every placement lies within the card, and an instance's memory within its slices."""
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
