"""The bytes of a simulated machine (simulator/native/gpu/sim_machine.h)."""

import fcntl
import os
import struct
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from egpu_base.system.private import open_own
from egpu_base.system.processes import start_time
from egpu_sim.machines.models import CHUNK_MIB, MigProfile, profiles

MAX_CARDS: Final = 16

# The layout of simulator/native/gpu/sim_machine.h.
_MAGIC: Final = b"EGPUSIM1"
_LAYOUT: Final = 5
_HEADER: Final = struct.Struct("<8sIIIIQQQQII64s256sQQQII512s")
_MAKER: Final = struct.Struct("<QQI")  # of the header: start time, pid namespace and pid of the owner
_MAKER_OFFSET: Final = struct.calcsize("<8sIIIIQQQQII64s256sQ")
_LONGEST_DIRECTORY: Final = 511
_CARD: Final = struct.Struct("<16s96s7Ii3Q30I16I2f4Q")
_MIG_PROFILE: Final = struct.Struct("<14I8x")
_MIG_PROFILES_OFFSET: Final = 392  # sim_card.mig_profiles
_PAGE: Final = 4096
CARDS_OFFSET: Final = _PAGE
CARD_BYTES: Final = _PAGE
_MAX_PROCESSES: Final = 1024
_MAX_RECORDS: Final = MAX_CARDS * (1 + 2 * 7)  # cards, and up to 7 GPU and 7 compute instances of each
_PROCESS_BYTES: Final = 128 + (MAX_CARDS + 1) * 1048 + 544
_SHARED_BYTES: Final = 1024 * 176
_WINDOW_OFFSET: Final = 3136  # sim_card.utilization_window_ms
CLOCK_OFFSET: Final = 1032  # sim_header.clock_ns, clock_changes, clock_sleepers
MANUAL_START_NS: Final = 10_000_000_000  # room for windows of utilisation before the start
MANUAL_CLOCK: Final = 1
FIFO: Final = 2
SKIP_COMPILED: Final = 4
ZERO_RESULTS: Final = 8
_LOCKS: Final = 1 << 60  # SIM_LOCK_TABLE; the processes' locks follow

_ARCHITECTURES: Final = {"volta": 5, "turing": 6, "ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10}
_BRANDS: Final = {"tesla": 2, "geforce": 5, "nvidia": 14}
_ECC: Final = {"off": 0, "on": 1, "none": 2}
_PCIE_MBYTES_PER_SECOND_PER_LANE: Final = {3: 985, 4: 1969, 5: 3938}


@dataclass(frozen=True)
class SimulatedCard:
    """One simulated card of a machine. Programs share `memory_mib`, of which each context keeps `context_mib`. The
    driver keeps `driver_mib` beside that."""

    index: int
    minor: int
    uuid: str
    profile: str
    model: str
    memory_mib: int
    driver_mib: int
    context_mib: int
    pci_bus_id: str
    device: Path


@dataclass(frozen=True)
class StateHeader:
    """The first bytes of a machine's file.

    `creator` is (pid, start in ticks, pid namespace), or None for a persistent machine. A persistent machine names the
    pid namespace of its `directory`; None means unknown.
    """

    node_name: str
    cards: int
    created_unix_ns: int
    flags: int
    creator: tuple[int, int, int] | None
    pid_namespace: int
    directory: Path | None


def read_header(path: Path) -> StateHeader | None:
    """Read the header. Return None when the file is no machine of this layout, or belongs to another user."""
    try:
        with open_own(path) as file:
            fields = _HEADER.unpack(file.read(_HEADER.size))
    except (OSError, struct.error):
        return None
    if fields[0] != _MAGIC or fields[1] != _LAYOUT:
        return None
    creator = (fields[16], fields[14], fields[15]) if fields[16] else None
    directory = fields[18].rstrip(b"\0")
    return StateHeader(
        node_name=fields[12].rstrip(b"\0").decode(errors="replace"),
        cards=fields[3],
        created_unix_ns=fields[8],
        flags=fields[10],
        creator=creator,
        pid_namespace=fields[15],
        directory=Path(os.fsdecode(directory)) if directory else None,
    )


def bus_number(index: int) -> int:
    return 0x07 + 8 * index


def _numa_node(index: int, count: int) -> int:
    """Return two sockets when there are many cards, as in the usual eight-card server."""
    return index * 2 // count if count > 4 else 0


def _links(index: int, cards: Sequence[SimulatedCard]) -> list[int]:
    """Return the links from a card to each other card. A card's links are spread evenly over the cards of its model."""
    profile = profiles()[cards[index].profile]
    peers = [card.index for card in cards if card.profile == cards[index].profile and card.index != index]
    if profile.nvlink_count < len(peers):  # too few links for all: a ring
        count = len(cards)
        peers = [peer for peer in peers if (peer - index) % count in (1, count - 1)]
    each = profile.nvlink_count // len(peers) if peers else 0
    return [each if other in peers else 0 for other in range(MAX_CARDS)]


def _board_mib(card: SimulatedCard) -> int:
    """Return the card's whole memory: MIG instances are cut out of this."""
    return card.memory_mib + card.driver_mib


def _round_up(value: int, to: int) -> int:
    return (value + to - 1) // to * to


def has_users(path: Path) -> bool:
    """Return whether a live process uses the machine. Each holds an OFD lock beyond the data
    (simulator/native/gpu/sim_machine.h)."""
    try:
        with open_own(path) as file:
            # struct flock: type, whence, start, length, pid
            asked = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, _LOCKS, 0, 0)
            answer: bytes = fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked)
    except OSError:
        return True  # not known to be unused
    return struct.unpack("hhqqi", answer)[0] != fcntl.F_UNLCK


def pid_namespace() -> int:
    """Return the inode that identifies the pid namespace."""
    return os.stat("/proc/self/ns/pid").st_ino


def write_state(
    path: Path,
    node_name: str,
    cards: Sequence[SimulatedCard],
    *,
    directory: Path,
    cuda_version: int,
    timeslice_us: int,
    flags: int = 0,
    persistent: bool = False,
) -> None:
    """Write a new machine's file. Everything dynamic in it begins as zeros (holes). `directory` is the machine's."""
    place = os.fsencode(directory)
    cards_offset = _PAGE
    processes_offset = cards_offset + _MAX_RECORDS * _PAGE
    shared_offset = processes_offset + _MAX_PROCESSES * _PROCESS_BYTES
    at = _round_up(shared_offset + _SHARED_BYTES, _PAGE)
    chunk_offsets: list[int] = []
    for card in cards:
        chunk_offsets.append(at)
        at = _round_up(at + 4 * (_board_mib(card) // 2), _PAGE)
    records: list[bytes] = []
    for card, chunk_offset in zip(cards, chunk_offsets, strict=True):
        memory_offset = _round_up(at, 1 << 30)
        at = memory_offset + (_board_mib(card) << 20)
        records.append(
            _pack_card(
                cards,
                card,
                memory_offset=memory_offset,
                chunk_offset=chunk_offset,
                timeslice_us=timeslice_us,
            )
        )
    header = _HEADER.pack(
        _MAGIC,
        _LAYOUT,
        _PAGE,
        len(cards),
        _MAX_PROCESSES,
        cards_offset,
        processes_offset,
        at,
        time.time_ns(),
        cuda_version,
        flags,
        b"580.95.05",
        node_name.encode(),
        shared_offset,
        0 if persistent else start_time(os.getpid()),
        pid_namespace(),
        0 if persistent else os.getpid(),
        0,
        place if len(place) <= _LONGEST_DIRECTORY else b"",
    )
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "r+b") as file:
        file.truncate(at)
        for index, record in enumerate(records):
            file.seek(cards_offset + index * _PAGE)
            file.write(record)
            file.seek(cards_offset + index * _PAGE + _WINDOW_OFFSET)
            file.write(struct.pack("<I", profiles()[cards[index].profile].utilization_window_ms))
            file.seek(cards_offset + index * _PAGE + _MIG_PROFILES_OFFSET)
            file.write(b"".join(map(_pack_mig, profiles()[cards[index].profile].mig)))
        if flags & MANUAL_CLOCK:
            file.seek(CLOCK_OFFSET)
            file.write(struct.pack("<Q", MANUAL_START_NS))
        file.seek(0)
        file.write(header)  # Last: a file without the magic is no machine.


def take_over(path: Path) -> None:
    """Become the machine's owner: it is abandoned when this process ends, not when its first owner does."""
    with open_own(path, os.O_RDWR) as file:
        file.seek(_MAKER_OFFSET)
        file.write(_MAKER.pack(start_time(os.getpid()), pid_namespace(), os.getpid()))


def _pack_mig(mig: MigProfile) -> bytes:
    return _MIG_PROFILE.pack(
        mig.profile,
        mig.id,
        mig.slices,
        mig.gigabytes,
        int(mig.name.endswith("+me")),
        mig.memory_mib // 2,
        mig.sm_count,
        mig.size,
        sum(1 << start for start in mig.starts),
        mig.instances,
        mig.copy_engines,
        mig.decoders,
        mig.jpegs,
        mig.ofas,
    )


def _pack_card(
    cards: Sequence[SimulatedCard],
    card: SimulatedCard,
    *,
    memory_offset: int,
    chunk_offset: int,
    timeslice_us: int,
) -> bytes:
    profile = profiles()[card.profile]
    major, _, minor = profile.compute_capability.partition(".")
    lane = _PCIE_MBYTES_PER_SECOND_PER_LANE[profile.pcie_generation]
    return _CARD.pack(
        uuid.UUID(card.uuid.removeprefix("GPU-")).bytes,
        profile.name.encode(),
        card.index,
        card.minor,
        0,
        bus_number(card.index),
        0,
        profile.pci_device_id,
        profile.pci_subsystem_id,
        _numa_node(card.index, len(cards)),
        card.memory_mib << 20,
        memory_offset,
        chunk_offset,
        card.memory_mib // CHUNK_MIB,
        _round_up(card.context_mib, CHUNK_MIB) // CHUNK_MIB,
        int(major),
        int(minor),
        profile.sm_count,
        profile.cores_per_sm,
        profile.max_threads_per_sm,
        profile.max_blocks_per_sm,
        profile.shared_kib_per_block << 10,
        profile.shared_kib_per_block_optin << 10,
        profile.shared_kib_per_sm << 10,
        profile.l2_kib << 10,
        profile.sm_clock_mhz,
        profile.memory_clock_mhz,
        profile.memory_bus_bits,
        profile.fp64_ratio,
        profile.async_engines,
        profile.power_idle_watts * 1000,
        profile.power_limit_watts * 1000,
        profile.power_min_watts * 1000,
        profile.temperature_idle_celsius,
        profile.temperature_slowdown_celsius,
        profile.pcie_generation,
        profile.pcie_width,
        _ECC[profile.ecc],
        int(bool(profile.mig)),
        _BRANDS[profile.brand],
        _ARCHITECTURES[profile.architecture],
        profile.nvlink_version,
        profile.nvlink_count,
        *_links(card.index, cards),
        profile.tflops_fp32,
        profile.tflops_fp16,
        profile.memory_gbytes_per_second * 10**9,
        lane * profile.pcie_width * 10**6,
        timeslice_us * 1000,
        card.driver_mib << 20,
    )
