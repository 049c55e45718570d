"""Simulated machines: making, finding and removing the state that the simulated CUDA driver and NVML share.

A machine is one sparse file in /dev/shm (layout: native/sim/sim_machine.h) and a directory that points at it:

    DIRECTORY/
      machine.json              what was created, for `open_machine`
      devices/nvidia0 …         one device file per card: "EGPUSIM1 " and the card's UUID
      devices/nvidia-caps/…     where a card can be cut up with MIG: device files of all instances that there can be,
                                and mig-minors, which says what is whose, as NVIDIA's driver says it in /proc
      driver/                   the *driver directory*; programs run with LD_LIBRARY_PATH=DIRECTORY/driver
        libcuda.so.1            ┐
        libnvidia-ml.so.1       │ links to the libraries
        libcudart.so.12, .13    │
        libcublas.so.13, …      │ small simulated ones
        libcupti.so.13          ┘ says that it is not there
        machine                 link to the file in /dev/shm
        dev                     link to DIRECTORY/devices

A container gets a driver directory of its own (`make_driver_dir`) whose `dev` holds only the cards it was granted. A
link `cgroup` in it leads to the directory that stands for the container's control group: what NVML limits by that.
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

from egpu.adapters import native
from egpu.adapters.files import links
from egpu.adapters.simulator import loader_cache
from egpu.adapters.simulator.models import CHUNK_MIB, Profile, profiles
from egpu.adapters.simulator.shared_memory import DEFAULT_SHARED_MEMORY, new_path
from egpu.adapters.simulator.state import (
    FIFO,
    MANUAL_CLOCK,
    MAX_CARDS,
    SimulatedCard,
    bus_number,
    read_header,
    take_over,
    write_state,
)
from egpu.core.provisioners.preparation import FORWARDED, REFUSED, RUNTIMES
from egpu.errors import CorruptData, InvalidInput, Unavailable

__all__ = [
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

LIBRARIES: Final = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
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
PRELOADED: Final = (*RUNTIMES, *(name for name in LIBRARIES if name in FORWARDED), *REFUSED)
"""What a program has to find here and nowhere else. The loader's cache comes after a path in the program itself, and
packages have one to libraries of theirs, which work over NVIDIA's driver alone; what is loaded already comes first."""

_MOST_KEPT_MIB: Final = 4096
_GPU_INSTANCES: Final = 15
_COMPUTE_INSTANCES: Final = 8
"""How many of a card, and of a GPU instance, have device files."""
_MOST_DIGITS: Final = 10
_UUIDS: Final = uuid.UUID("6f1d7a3e-5a1c-4f0e-9f0b-2c7d0c5b8e11")  # of simulated cards


@dataclass(frozen=True)
class Machine:
    """A simulated machine: where it is and what cards it has."""

    node_name: str
    directory: Path
    driver_dir: Path
    device_dir: Path
    state: Path
    cards: tuple[SimulatedCard, ...]

    @property
    def mig_minors(self) -> Path:
        """There if a card can be cut up."""
        return self.device_dir / "nvidia-caps" / "mig-minors"


class _Kept(msgspec.Struct, frozen=True):
    """What each context and the driver keep of a card, in MiB, where the machine has other figures than the models."""

    context_mib: int | None = None
    driver_mib: int | None = None


class _Description(msgspec.Struct, frozen=True):
    """machine.json: what the rest is derived from."""

    node_name: str
    state: str
    profiles: tuple[str, ...]
    kept: _Kept = _Kept()


def card_uuid(node_name: str, index: int) -> str:
    """The UUID of a node's card: the same each time the machine is made again."""
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
    persistent: bool = False,
    shared_memory: Path = DEFAULT_SHARED_MEMORY,
) -> Machine:
    """Make a machine in a new or empty directory.

    Args:
        directory: where its driver directory and device files go.
        profile: the model of every card, or one model per card.
        count: how many cards (0 to 16); not needed when `profile` lists them.
        node_name: goes into the cards' UUIDs.
        context_mib: card memory that each context keeps, in MiB; unless given, what EGPU_SIM_CONTEXT_MIB says, else the
            model's profile.
        driver_mib: card memory that the driver keeps, likewise, by EGPU_SIM_DRIVER_MIB.
        cuda_version: the release whose functions the driver has, as CUDA numbers it: 13010 is 13.1.
        timeslice_us: how long a process keeps the card while others have work for it, in microseconds.
        clock: with "manual", simulated time goes on only through `egpu.adapters.simulator.clock.Clock`.
        arbitration: between processes: time slices in turn, or kernels whole in the order in which they came.
        persistent: it stays when this process ends, for as long as the directory does; otherwise whoever makes the next
            machine removes what is left.
        shared_memory: where the state lives; a tmpfs.

    Raises:
        InvalidInput: unknown profile, a count out of range, or the directory holds a machine already.
        NotSupported: shared memory is missing or not writable.
        Unavailable: shared memory is (nearly) full.
        NativeMissing: the simulated libraries were not built.
    """
    models = _models(profile, count)
    kept = _Kept(_kept("context_mib", context_mib), _kept("driver_mib", driver_mib))
    _check(node_name, cuda_version, timeslice_us, clock, arbitration)
    directory = directory.absolute()
    if (directory / "machine.json").exists():
        raise InvalidInput("directory", f"{directory} holds a machine already; destroy it first")
    libraries = _libraries()
    state = new_path(shared_memory, node_name)
    device_dir = directory / "devices"
    cards = tuple(_card(node_name, index, name, device_dir, kept) for index, name in enumerate(models))
    machine = Machine(node_name, directory, directory / "driver", device_dir, state, cards)
    try:
        flags = (MANUAL_CLOCK if clock == "manual" else 0) | (FIFO if arbitration == "fifo" else 0)
        device_dir.mkdir(parents=True)
        for card in cards:
            card.device.write_text(f"EGPUSIM1 {card.uuid}")
        _make_capabilities(machine)
        _link_driver(machine, machine.driver_dir, device_dir, libraries)
        # After the link to it: without that it would count as left.
        write_state(
            state,
            node_name,
            cards,
            directory=directory,
            cuda_version=cuda_version,
            timeslice_us=timeslice_us,
            flags=flags,
            persistent=persistent,
        )
        (directory / "machine.json").write_bytes(msgspec.json.encode(_Description(node_name, str(state), models, kept)))
    except OSError as error:
        state.unlink(missing_ok=True)
        raise Unavailable(f"cannot create the simulated machine in {directory}: {error}") from error
    return machine


def _check(node_name: str, cuda_version: int, timeslice_us: int, clock: str, arbitration: str) -> None:
    """Raises InvalidInput naming the option that is none."""
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


def open_machine(directory: Path) -> Machine:
    """The machine that `create_machine` made in this directory.

    Raises:
        InvalidInput: there is none.
        CorruptData: its description does not decode.
        Unavailable: its state is gone (the computer was restarted, or somebody removed it).
    """
    directory = directory.absolute()
    try:
        machine = _described(directory, (directory / "machine.json").read_bytes())
    except FileNotFoundError as error:
        raise InvalidInput("directory", f"{directory} holds no simulated machine") from error
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
    """The machine of a description. A kubelet asks for the same one at every start of a container."""
    found = msgspec.json.decode(description, type=_Description)
    cards = tuple(
        _card(found.node_name, index, name, directory / "devices", found.kept)
        for index, name in enumerate(found.profiles)
    )
    return Machine(found.node_name, directory, directory / "driver", directory / "devices", Path(found.state), cards)


def use_our_libraries(machine: Machine) -> None:
    """Make an open machine one of this build: its driver directory may be of one that is gone, or of another.

    Raises NativeMissing: the simulated libraries were not built.
    """
    libraries = _libraries()
    if any(not os.path.lexists(link := machine.driver_dir / name) or link.readlink() != target
           for name, target in libraries.items()):  # fmt: skip
        _link_driver(machine, machine.driver_dir, machine.device_dir, libraries)


def keep(machine: Machine) -> None:
    """Make an open machine this process's own: one whose maker has ended is swept when the next one is made."""
    take_over(machine.state)


def _libraries() -> Mapping[str, Path]:
    """What a driver directory has, by name. Raises NativeMissing."""
    return _libraries_of(native.directories())


@lru_cache(maxsize=1)
def _libraries_of(_directories: tuple[Path, ...]) -> Mapping[str, Path]:
    artefacts = {name: f"sim/{name}" for name in LIBRARIES} | RUNTIMES | REFUSED
    return {name: native.path(artefact) for name, artefact in artefacts.items()}


def make_driver_dir(machine: Machine, directory: Path, device_dir: Path, *, group: Path | None = None) -> Path:
    """Make a driver directory for a container: the machine's libraries and state, and the given device files.

    Device files are found as ``device_dir/nvidia<minor>``; a card without one there does not exist for the container,
    nor does an instance of MIG without its two in ``device_dir/nvidia-caps``. `group` is the directory that stands for
    its control group, by which NVML limits memory.
    Returns the absolute directory.
    """
    directory = directory.absolute()
    groups = {} if group is None else {"cgroup": group.absolute()}
    _link_driver(machine, directory, device_dir.absolute(), {**_libraries(), **groups})
    return directory


def loader_files(driver_dir: Path) -> dict[Path, Path]:
    """What a container has to see in place of which file of its own, by path, to find the driver of `driver_dir` as
    NVIDIA's is found: in the loader's cache. Nothing where the C library has no such cache; then LD_LIBRARY_PATH leads
    to it."""
    content = loader_cache.with_libraries(driver_dir, (*LIBRARIES, *RUNTIMES, *REFUSED))
    if content is None:
        return {}
    file = driver_dir / "ld.so.cache"
    file.write_bytes(content)
    file.chmod(0o644)
    return {loader_cache.SYSTEM_CACHE: file}


def destroy(machine: Machine) -> None:
    """Remove a machine with all contents of its cards. Programs that still run on it keep what they have open."""
    machine.state.unlink(missing_ok=True)
    shutil.rmtree(machine.directory, ignore_errors=True)


def _kept(name: str, given: int | None) -> int | None:
    """A figure of _Kept: as given, or as the environment says. Raises InvalidInput naming which."""
    if given is None:
        name = f"EGPU_SIM_{name.upper()}"
        text = os.environ.get(name, "")
        if not text:
            return None
        given = int(text) if text.isdecimal() and len(text) < _MOST_DIGITS else -1
    if not 0 <= given <= _MOST_KEPT_MIB:
        raise InvalidInput(name, f"it has to be a number of MiB from 0 to {_MOST_KEPT_MIB}")
    return given


def _models(profile: str | Sequence[str], count: int | None) -> tuple[str, ...]:
    models = (profile,) * (1 if count is None else count) if isinstance(profile, str) else tuple(profile)
    if not isinstance(profile, str) and count is not None and count != len(models):
        raise InvalidInput("count", f"{count} cards, but {len(models)} profiles are listed")
    if (count is not None and count < 0) or len(models) > MAX_CARDS:
        raise InvalidInput("count", f"{len(models) if count is None else count} is not between 0 and {MAX_CARDS}")
    known = {name.lower(): name for name in profiles()}
    for name in models:
        if name.lower() not in known:
            raise InvalidInput("profile", f"{name!r} is not known; known are {', '.join(sorted(profiles()))}")
    return tuple(known[name.lower()] for name in models)


def _card(node_name: str, index: int, name: str, device_dir: Path, kept: _Kept) -> SimulatedCard:
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
    """Device files of MIG, numbered as NVIDIA's driver does it (native/sim/sim_machine.h: SIM_CAPABILITY…)."""
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
    # One that is right stays: without its link a state counts as left.
    links(directory, {**libraries, "machine": machine.state, "dev": device_dir}, like=machine.driver_dir)
