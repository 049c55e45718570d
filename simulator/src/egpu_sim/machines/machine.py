"""Simulated machines: create, find and remove the state that the simulated CUDA driver and NVML share.

A machine is one sparse file in /dev/shm (layout: simulator/native/gpu/sim_machine.h) and a directory that points at it:

    DIRECTORY/
      machine.json              the description, for `open_machine`
      devices/nvidia0 …         one device file per card: "EGPUSIM1 " and the card's UUID
      devices/nvidia-caps/…     with MIG: device files of all possible instances, and mig-minors, which maps them to
                                instances as NVIDIA's driver does in /proc
      driver/                   the *driver directory*; programs run with LD_LIBRARY_PATH=DIRECTORY/driver
        libcuda.so.1            ┐
        libnvidia-ml.so.1       │ links to the libraries
        libcudart.so.12, .13    │
        libcublas.so.13, …      │ small simulated ones
        libcupti.so.13          ┘ returns errors only
        machine                 link to the file in /dev/shm
        dev                     link to DIRECTORY/devices

A container gets its own driver directory (`make_driver_dir`), whose `dev` holds only its cards. Its link `cgroup` leads
to the directory that stands for the container's control group, by which NVML limits memory.
"""

import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

import msgspec

from egpu_base.errors import CorruptData, InvalidInput, Unavailable
from egpu_base.system.files import links
from egpu_sim import native
from egpu_sim.machines import loader_cache
from egpu_sim.machines.generated import SONAMES
from egpu_sim.machines.models import CHUNK_MIB, Profile, profiles, suggestion
from egpu_sim.machines.settings import Compiled, Kept, compiled_kernels, kept_memory
from egpu_sim.machines.shared_memory import DEFAULT_SHARED_MEMORY, new_path
from egpu_sim.machines.state import (
    FIFO,
    MANUAL_CLOCK,
    MAX_CARDS,
    SKIP_COMPILED,
    ZERO_RESULTS,
    SimulatedCard,
    bus_number,
    read_header,
    take_over,
    write_state,
)

__all__ = [
    "MAX_CARDS",
    "PRELOADED",
    "Machine",
    "Profile",
    "SimulatedCard",
    "card_uuid",
    "create_machine",
    "destroy",
    "keep",
    "loader_files",
    "make_driver_dir",
    "open_machine",
    "profiles",
    "use_our_libraries",
]

DRIVER: Final = ("libcuda.so.1", "libnvidia-ml.so.1")
RUNTIMES: Final = ("libcudart.so.12", "libcudart.so.13")
"""CUDA's runtime over any driver: NVIDIA's works over NVIDIA's driver only."""
OTHERS: Final = (*SONAMES, "libcupti.so.13")
"""Simulated libraries over the simulated driver. All functions of CUPTI return an error."""
LIBRARIES: Final = (*DRIVER, *OTHERS)
PROGRAMS: Final = ("nvidia-smi", "nvidia-cuda-mps-control")
"""Programs of the driver. A machine's own driver directory has them; those of containers do without."""
PRELOADED: Final = (*RUNTIMES, *OTHERS)
"""Libraries that programs must load from here. The loader prefers paths in a program to its cache, and packages have
paths to their own libraries, which need NVIDIA's driver. Preloaded libraries come first."""

_GPU_INSTANCES: Final = 15
_COMPUTE_INSTANCES: Final = 8
"""Numbers of GPU instances of a card, and of compute instances of a GPU instance, that have device files."""
_UUIDS: Final = uuid.UUID("6f1d7a3e-5a1c-4f0e-9f0b-2c7d0c5b8e11")  # of simulated cards


@dataclass(frozen=True)
class Machine:
    """A simulated machine: its paths and cards."""

    node_name: str
    directory: Path
    driver_dir: Path
    device_dir: Path
    state: Path
    cards: tuple[SimulatedCard, ...]

    @property
    def mig_minors(self) -> Path:
        """The file exists if a card supports MIG."""
        return self.device_dir / "nvidia-caps" / "mig-minors"


class _Description(msgspec.Struct, frozen=True):
    node_name: str
    state: str
    profiles: tuple[str, ...]
    kept: Kept = Kept()


def card_uuid(node_name: str, index: int) -> str:
    """Return the UUID of a node's card. It is the same each time the machine is made again."""
    return f"GPU-{uuid.uuid5(_UUIDS, f'{node_name}/{index}')}"


def create_machine(
    directory: Path,
    profile: str | Sequence[str],
    count: int | None = None,
    node_name: str = "local",
    *,
    context_mib: int | None = None,
    driver_mib: int | None = None,
    cuda_version: int = 13000,
    timeslice_us: int = 2000,
    clock: Literal["wall", "manual"] = "wall",
    arbitration: Literal["timeslice", "fifo"] = "timeslice",
    compiled: Compiled | None = None,
    persistent: bool = False,
    shared_memory: Path = DEFAULT_SHARED_MEMORY,
) -> Machine:
    """Create a machine in a new or empty directory.

    Args:
        directory: for its driver directory and device files.
        profile: the model of every card, or one model per card.
        count: how many cards (0 to 16); not needed when `profile` lists them.
        node_name: goes into the cards' UUIDs.
        context_mib: card memory that each context keeps, in MiB. Default: EGPU_SIM_CONTEXT_MIB, else the model's.
        driver_mib: card memory that the driver keeps, in MiB. Default: EGPU_SIM_DRIVER_MIB, else the model's.
        cuda_version: the release whose functions the driver has, as CUDA numbers it: 13010 is 13.1.
        timeslice_us: how long a process keeps the card while others wait for it, in microseconds.
        clock: with "manual", only `egpu_sim.machines.clock.Clock` advances simulated time.
        arbitration: between processes: time slices in turn, or whole kernels in the order of arrival.
        compiled: kernels without PTX are refused, or taken and skipped: programs make all their calls, and results are
            0xff bytes ("skip") or zeros ("zero"). Default: EGPU_SIM_COMPILED, else "refuse".
        persistent: the machine lives as long as its directory. Otherwise creating the next machine removes it, once
            this process has ended.
        shared_memory: a tmpfs for the state.

    Raises:
        InvalidInput: unknown profile, a count out of range, or the directory already holds a machine.
        NotSupported: shared memory is missing or not writable.
        Unavailable: shared memory is (nearly) full.
        NativeMissing: the simulated libraries were not built.
    """
    models = _models(profile, count)
    kept, compiled = kept_memory(context_mib, driver_mib), compiled or compiled_kernels()
    _check(node_name, cuda_version, timeslice_us, clock, arbitration)
    directory = directory.absolute()
    if (directory / "machine.json").exists():
        raise InvalidInput("directory", f"{directory} already has a machine; destroy it first")
    libraries = {**_libraries(), **_programs()}
    state = new_path(shared_memory, node_name)
    device_dir = directory / "devices"
    cards = tuple(_card(node_name, index, name, device_dir, kept) for index, name in enumerate(models))
    machine = Machine(node_name, directory, directory / "driver", device_dir, state, cards)
    try:
        device_dir.mkdir(parents=True)
        for card in cards:
            card.device.write_text(f"EGPUSIM1 {card.uuid}")
        _make_capabilities(machine)
        _link_driver(machine, machine.driver_dir, device_dir, libraries)
        # Link first: a state without a link counts as abandoned.
        write_state(
            state,
            node_name,
            cards,
            directory=directory,
            cuda_version=cuda_version,
            timeslice_us=timeslice_us,
            flags=_flags(clock, arbitration, compiled),
            persistent=persistent,
        )
        (directory / "machine.json").write_bytes(msgspec.json.encode(_Description(node_name, str(state), models, kept)))
    except OSError as error:
        state.unlink(missing_ok=True)
        raise Unavailable(f"cannot create the simulated machine in {directory}: {error}") from error
    return machine


def _check(node_name: str, cuda_version: int, timeslice_us: int, clock: str, arbitration: str) -> None:
    if not 12000 <= cuda_version <= 13990:
        raise InvalidInput("cuda_version", f"{cuda_version} is not between 12000 and 13990: 13010 is CUDA 13.1")
    if not 10 <= timeslice_us <= 100_000:
        raise InvalidInput("timeslice_us", f"{timeslice_us} is not between 10 and 100000")
    if not node_name or len(node_name.encode()) > 253 or "/" in node_name:
        raise InvalidInput("node_name", f"{node_name!r} is not a node's name")
    if clock not in ("wall", "manual"):
        raise InvalidInput("clock", f"{clock!r} is neither 'wall' nor 'manual'")
    if arbitration not in ("timeslice", "fifo"):
        raise InvalidInput("arbitration", f"{arbitration!r} is neither 'timeslice' nor 'fifo'")


def _flags(clock: str, arbitration: str, compiled: Compiled) -> int:
    chosen = {
        MANUAL_CLOCK: clock == "manual", FIFO: arbitration == "fifo", SKIP_COMPILED: compiled != "refuse",
        ZERO_RESULTS: compiled == "zero",
    }  # fmt: skip
    return sum(flag for flag, on in chosen.items() if on)


def open_machine(directory: Path) -> Machine:
    """Open the machine that `create_machine` made in this directory.

    Raises:
        InvalidInput: the directory has no machine.
        CorruptData: its description does not decode.
        Unavailable: its state is gone (the computer restarted, or the file was removed).
    """
    directory = directory.absolute()
    try:
        machine = _described(directory, (directory / "machine.json").read_bytes())
    except FileNotFoundError as error:
        raise InvalidInput("directory", f"{directory} has no simulated machine") from error
    except msgspec.MsgspecError as error:
        raise CorruptData(f"{directory}/machine.json: {error}") from error
    if read_header(machine.state) is None:
        raise Unavailable(
            f"the state of the machine in {directory} is gone, or of another version ({machine.state}); "
            "destroy and make it again"
        )
    return machine


@lru_cache(maxsize=16)
def _described(directory: Path, description: bytes) -> Machine:
    """Return the machine of a description, cached: a kubelet asks for it at every start of a container."""
    found = msgspec.json.decode(description, type=_Description)
    cards = tuple(
        _card(found.node_name, index, name, directory / "devices", found.kept)
        for index, name in enumerate(found.profiles)
    )
    return Machine(found.node_name, directory, directory / "driver", directory / "devices", Path(found.state), cards)


def use_our_libraries(machine: Machine) -> None:
    """Link an open machine to the libraries of this build, as its driver directory may have those of another.

    Raises NativeMissing: the simulated libraries were not built.
    """
    libraries = {**_libraries(), **_programs()}
    if any(not os.path.lexists(link := machine.driver_dir / name) or link.readlink() != target
           for name, target in libraries.items()):  # fmt: skip
        _link_driver(machine, machine.driver_dir, machine.device_dir, libraries)


def keep(machine: Machine) -> None:
    """Make this process the owner of an open machine. The next creation removes machines whose owner has ended."""
    take_over(machine.state)


def _libraries() -> Mapping[str, Path]:
    """Return the libraries of a driver directory by name. Raises NativeMissing."""
    return _libraries_of(native.directories())


@lru_cache(maxsize=1)
def _libraries_of(_directories: tuple[Path, ...]) -> Mapping[str, Path]:
    simulated = {name: f"sim/{name}" for name in LIBRARIES}
    artefacts = simulated | {name: f"runtime/{name}" for name in RUNTIMES}
    return {name: native.path(artefact) for name, artefact in artefacts.items()}


def _programs() -> Mapping[str, Path]:
    """Return the driver's programs by name. Raises NativeMissing."""
    return {name: native.path(f"tools/{name}") for name in PROGRAMS}


def make_driver_dir(machine: Machine, directory: Path, device_dir: Path, *, group: Path | None = None) -> Path:
    """Make a driver directory for a container, with the machine's libraries and state, and the given device files.

    The container sees only cards with a device file ``device_dir/nvidia<minor>``, and only MIG instances with their two
    files in ``device_dir/nvidia-caps``. `group` is the directory that stands for its control group, by which NVML
    limits memory. Return the absolute directory.
    """
    directory = directory.absolute()
    groups = {} if group is None else {"cgroup": group.absolute()}
    _link_driver(machine, directory, device_dir.absolute(), {**_libraries(), **groups})
    return directory


def loader_files(driver_dir: Path, *, seen_at: Path | None = None) -> dict[Path, Path]:
    """Return the files that a container needs in the place of its own, by path, to find `driver_dir` where it sees it:
    the loader's cache. Return nothing where the C library has no such cache; then set LD_LIBRARY_PATH."""
    content = loader_cache.with_libraries(seen_at or driver_dir, (*DRIVER, *PRELOADED))
    if content is None:
        return {}
    file = driver_dir / "ld.so.cache"
    file.write_bytes(content)
    file.chmod(0o644)
    return {loader_cache.SYSTEM_CACHE: file}


def destroy(machine: Machine) -> None:
    """Remove a machine with all contents of its cards. Running programs keep their open files."""
    machine.state.unlink(missing_ok=True)
    shutil.rmtree(machine.directory, ignore_errors=True)


def _models(profile: str | Sequence[str], count: int | None) -> tuple[str, ...]:
    models = (profile,) * (1 if count is None else count) if isinstance(profile, str) else tuple(profile)
    if not isinstance(profile, str) and count is not None and count != len(models):
        raise InvalidInput("count", f"{count} cards, but {len(models)} profiles are listed")
    if (count is not None and count < 0) or len(models) > MAX_CARDS:
        raise InvalidInput("count", f"{len(models) if count is None else count} is not between 0 and {MAX_CARDS}")
    known = {name.lower(): name for name in profiles()}
    for name in models:
        if name.lower() not in known:
            raise InvalidInput(
                "profile", f"{name!r} is not known{suggestion(name)}; known are {', '.join(sorted(profiles()))}"
            )
    return tuple(known[name.lower()] for name in models)


def _card(node_name: str, index: int, name: str, device_dir: Path, kept: Kept) -> SimulatedCard:
    profile = profiles()[name]
    driver_mib = profile.driver_mib if kept.driver_mib is None else kept.driver_mib
    memory_mib = (profile.memory_mib - driver_mib) // CHUNK_MIB * CHUNK_MIB
    return SimulatedCard(
        index=index,
        minor=index,
        uuid=card_uuid(node_name, index),
        profile=name,
        model=profile.name,
        memory_mib=memory_mib,
        driver_mib=driver_mib,
        context_mib=profile.context_mib if kept.context_mib is None else kept.context_mib,
        pci_bus_id=f"00000000:{bus_number(index):02X}:00.0",
        device=device_dir / f"nvidia{index}",
    )


def _make_capabilities(machine: Machine) -> None:
    """Make MIG's device files, numbered as NVIDIA's driver does (simulator/native/gpu/sim_machine.h)."""
    capable = [card for card in machine.cards if profiles()[card.profile].mig]
    if not capable:
        return
    minors = {"config": 1, "monitor": 2}
    for card in capable:
        for instance in range(_GPU_INSTANCES):
            first = 3 + (card.minor * _GPU_INSTANCES + instance) * (1 + _COMPUTE_INSTANCES)
            whole = f"gpu{card.minor}/gi{instance}"
            minors[f"{whole}/access"] = first
            minors |= {f"{whole}/ci{part}/access": first + 1 + part for part in range(_COMPUTE_INSTANCES)}
    directory = machine.device_dir / "nvidia-caps"
    directory.mkdir()
    for minor in minors.values():
        (directory / f"nvidia-cap{minor}").touch()
    machine.mig_minors.write_text("".join(f"{name} {minor}\n" for name, minor in minors.items()))


def _link_driver(machine: Machine, directory: Path, device_dir: Path, libraries: Mapping[str, Path]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    # Keep a link that is right: a state without its link counts as abandoned.
    links(directory, {**libraries, "machine": machine.state, "dev": device_dir}, like=machine.driver_dir)
