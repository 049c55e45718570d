"""The policy page and the usage file of a slice, read and written from Python.

``native/include/egpu_abi.h`` defines the layouts, and how live readers take a consistent snapshot of a policy and bytes
are reserved; a test compares every offset with the C compiler's.

The two files differ in trust. A policy is ours: an error in it is `CorruptData`. A usage file is written by the
container and read as a claim: any bytes give a `Usage`, clamped to possible values, never an error.
"""

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from egpu.adapters.slices import writing
from egpu.adapters.slices.fnv import fnv1a
from egpu.adapters.slices.usage import DeviceUsage, ProcessParking, ProcessUsage, Usage, park_answer
from egpu.adapters.slices.work import Kind, Work
from egpu_base.errors import CorruptData, InvalidInput
from egpu_base.system.files import write_atomically
from egpu_base.system.foreign import read_foreign

ABI_VERSION: Final = 2
MAX_DEVICES: Final = 16
PPM: Final = 1_000_000
MEMORY_UNLIMITED: Final = 2**64 - 1

_POLICY_MAGIC: Final = b"EGPUPOL1"
_POLICY_SIZE: Final = 8192
_POLICY_HEADER: Final = struct.Struct("<8sIIQ40x")
_BANK_HEADER: Final = struct.Struct("<QQIIQQQQ8x")
_POLICY_DEVICE: Final = struct.Struct("<48sIIIIIIQQQQIIIII4x")
_BANK_SIZE: Final = _BANK_HEADER.size + MAX_DEVICES * _POLICY_DEVICE.size
_GENERATION_OFFSET: Final = 16
_CHECKSUM_OFFSET: Final = 8
_READ_ATTEMPTS: Final = 64

_USAGE_MAGIC: Final = b"EGPUUSG1"
_USAGE_SLOTS: Final = 1024
USAGE_HEADER: Final = struct.Struct("<8sIIII40x")
USAGE_ROWS_OFFSET: Final = 4096 + MAX_DEVICES * 128 * 8  # the totals' page, and the loaded code
USAGE_DEVICE: Final = struct.Struct("<QQQQQ16xQqQQQQ24x")
USAGE_ROW: Final = struct.Struct("<IIIIQQQQIIQQQQQQ24x8Q8Q")
USAGE_SIZE: Final = USAGE_ROWS_OFFSET + _USAGE_SLOTS * USAGE_ROW.size
_USAGE_OURS: Final = (_USAGE_MAGIC, ABI_VERSION, USAGE_SIZE, _USAGE_SLOTS, MAX_DEVICES)
SLOT_LIVE: Final = 1
_UINT64: Final = 2**64
_PARKABLE: Final = 1


class Mode(IntEnum):
    """The limit mode for a device's compute time."""

    UNLIMITED = 0
    CAP = 1
    SHARE = 2


@dataclass(frozen=True, kw_only=True)
class Window:
    """The time in which a container may start work on a contended card: `length_us` from `start_us` of every
    `period_us` since `epoch_ns` (CLOCK_MONOTONIC). It may wrap around the period's end."""

    epoch_ns: int
    period_us: int
    start_us: int
    length_us: int

    def __post_init__(self) -> None:
        if not 0 < self.length_us <= self.period_us < 2**32 or not 0 <= self.start_us < self.period_us:
            raise InvalidInput("window", f"{self} is not a part of its period")


@dataclass(frozen=True, kw_only=True)
class DevicePolicy:
    """The limits of a slice on one device.

    `core_ppm` is 1..1,000,000 of the card's time (not read when `mode` is UNLIMITED); `memory_limit_bytes` may be
    MEMORY_UNLIMITED; `weight` (1..10000) divides idle time in SHARE; `contention_ppm` says how much of a measured GPU
    interval is the container's own work (1,000,000 when alone on the card). In SHARE, `grant_ppm` is what may be used
    now, others' idle time included (0: `core_ppm`). `spill_limit_bytes` are managed memory beyond the limit;
    `overhead_bytes` of the limit are held where the container does not count them. Sharing of time writes `work`.
    """

    uuid: str
    minor: int
    mode: Mode
    core_ppm: int
    memory_limit_bytes: int
    weight: int = 100
    contention_ppm: int = PPM
    grant_ppm: int = 0
    spill_limit_bytes: int = 0
    overhead_bytes: int = 0
    window: Window | None = None
    work: Work = Work.PLAIN
    kind: Kind = Kind.BATCH

    def __post_init__(self) -> None:
        if not 0 < len(self.uuid.encode()) < 48:
            raise InvalidInput("uuid", f"{self.uuid!r} does not fit the policy page (1..47 bytes)")
        for field, value, low, high in (
            ("minor", self.minor, 0, 2**32 - 1),
            ("core_ppm", self.core_ppm, 0 if self.mode is Mode.UNLIMITED else 1, PPM),
            ("memory_limit_bytes", self.memory_limit_bytes, 0, MEMORY_UNLIMITED),
            ("weight", self.weight, 1, 10_000),
            ("contention_ppm", self.contention_ppm, 1, PPM),
            ("grant_ppm", self.grant_ppm, 0, PPM),
            ("spill_limit_bytes", self.spill_limit_bytes, 0, MEMORY_UNLIMITED),
            ("overhead_bytes", self.overhead_bytes, 0, MEMORY_UNLIMITED),
        ):
            if not low <= value <= high:
                raise InvalidInput(field, f"{value} is outside {low}..{high}")


@dataclass(frozen=True)
class Parking:
    """The memory of the slice's idle programs may leave the card. A new odd `request` asks its processes to park, a new
    even one to wake; `hold_ns`: for how long it may hold calls of a busy program.

    If several slices share the card's room, `room_bytes` of the slice may be on the card until `room_until_ns`
    (CLOCK_MONOTONIC). Then the arbiter is gone, and the driver decides. Both are 0 in a slice with its own room."""

    request: int = 0
    room_bytes: int = 0
    room_until_ns: int = 0
    hold_ns: int = 0

    @property
    def is_shared(self) -> bool:
        return self.room_until_ns != 0


@dataclass(frozen=True)
class Policy:
    """A consistent snapshot of a policy page. `generation` grows with every change."""

    generation: int
    devices: tuple[DevicePolicy, ...]
    parking: Parking | None = None


def _checksum(bank: bytes) -> int:
    """Return the checksum of a bank, with the checksum's own field as zero."""
    return fnv1a(bank[:_CHECKSUM_OFFSET] + bytes(8) + bank[_CHECKSUM_OFFSET + 8 :])


def _encode_line(d: DevicePolicy) -> bytes:
    window = (d.window.epoch_ns, d.window.period_us, d.window.start_us, d.window.length_us) if d.window else [0] * 4
    return _POLICY_DEVICE.pack(
        d.uuid.encode(), d.minor, d.mode, d.core_ppm, d.weight, d.contention_ppm, d.grant_ppm,
        d.memory_limit_bytes, d.spill_limit_bytes, d.overhead_bytes, *window, d.work, d.kind,
    )  # fmt: skip


def _encode_bank(generation: int, devices: Sequence[DevicePolicy], parking: Parking | None) -> bytes:
    lines = b"".join(map(_encode_line, devices)).ljust(MAX_DEVICES * _POLICY_DEVICE.size, b"\0")
    terms = Parking() if parking is None else parking
    times = terms.request, terms.room_bytes, terms.room_until_ns, terms.hold_ns
    rest = (len(devices), 0 if parking is None else _PARKABLE, *times)
    draft = _BANK_HEADER.pack(generation, 0, *rest) + lines
    return _BANK_HEADER.pack(generation, _checksum(draft), *rest) + lines


@lru_cache(maxsize=256)  # pages are read far more often than they change, and to check one takes 0.05 ms
def _decode_bank(bank: bytes, generation: int) -> Policy | None:
    """Return the bank's policy, or None unless it is a whole bank of that generation."""
    found, checksum, count, flags, *terms = _BANK_HEADER.unpack_from(bank)
    if found != generation or count > MAX_DEVICES or checksum != _checksum(bank):
        return None
    devices: list[DevicePolicy] = []
    for index in range(count):
        line = _POLICY_DEVICE.unpack_from(bank, _BANK_HEADER.size + index * _POLICY_DEVICE.size)
        uuid, minor, mode, core_ppm, weight, contention_ppm, grant_ppm, memory, spill, overhead = line[:10]
        epoch_ns, period_us, start_us, length_us, work, kind = line[10:]
        times = {"epoch_ns": epoch_ns, "period_us": period_us, "start_us": start_us, "length_us": length_us}
        device = DevicePolicy(
            uuid=uuid.rstrip(b"\0").decode(), minor=minor, mode=Mode(mode), core_ppm=core_ppm, weight=weight,
            contention_ppm=contention_ppm, grant_ppm=grant_ppm, memory_limit_bytes=memory, spill_limit_bytes=spill,
            overhead_bytes=overhead, window=Window(**times) if period_us else None, work=Work(work), kind=Kind(kind),
        )  # fmt: skip
        devices.append(device)
    return Policy(generation, tuple(devices), Parking(*terms) if flags & _PARKABLE else None)


def write_policy(
    path: Path, devices: Sequence[DevicePolicy], *, fresh: bool = False, parking: Parking | None = None
) -> int:
    """Create a policy page, or change the limits in an existing one while its readers run; returns the generation.

    `parking` is for a new page; an existing one keeps its own (`amend_parking`).

    A new page appears whole (written aside, then renamed). An existing one is changed in place: the inactive bank
    first, the generation that activates it last. So a reader sees the old limits or the new ones, and a writer killed
    in between leaves the old ones. Writers wait for each other; `fresh`: no other process writes there yet.

    Raises:
        InvalidInput: no devices, more than MAX_DEVICES, or the same UUID twice.
    """
    uuids = [device.uuid for device in devices]
    if not 0 < len(uuids) <= MAX_DEVICES or len(set(uuids)) != len(uuids):
        raise InvalidInput("devices", f"need 1..{MAX_DEVICES} different devices, got {uuids}")
    if fresh:
        return _create_policy(path, devices, parking)
    with writing.alone(path):
        return _write_policy(path, devices, parking)


def _write_policy(path: Path, devices: Sequence[DevicePolicy], parking: Parking | None, *, ask: bool = False) -> int:
    """Write it in place; what the page says of parking stays, unless `ask` is set."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return _create_policy(path, devices, parking)
    try:
        header = os.pread(handle, _POLICY_HEADER.size, 0)
        if os.fstat(handle).st_size != _POLICY_SIZE or header[:8] != _POLICY_MAGIC:
            return _create_policy(path, devices, parking)
        before = _POLICY_HEADER.unpack(header)[3]
        generation = (before + 1) % _UINT64 or 2
        bank_offset = _POLICY_HEADER.size + (generation & 1) * _BANK_SIZE
        if not ask:
            active = os.pread(handle, _BANK_HEADER.size, _POLICY_HEADER.size + (before & 1) * _BANK_SIZE)
            flags, *terms = _BANK_HEADER.unpack(active)[3:]
            parking = Parking(*terms) if flags & _PARKABLE else None
        _pwrite_all(handle, _encode_bank(generation, devices, parking), bank_offset)
        _pwrite_all(handle, struct.pack("<Q", generation), _GENERATION_OFFSET)
    finally:
        os.close(handle)
    return generation


def amend_policy(path: Path, uuid: str, **changes: Any) -> DevicePolicy:
    """Change fields of one device in a page that others amend, too; returns the line as it is now.

    Raises:
        FileNotFoundError, CorruptData: as `read_policy`. InvalidInput: no such device, or no such value of a field.
    """
    with writing.alone(path):
        lines = list(read_policy(path).devices)
        for position, line in enumerate(lines):
            if line.uuid == uuid:
                lines[position] = replace(line, **changes)
                if lines[position] != line:
                    _write_policy(path, lines, None)
                return lines[position]
    raise InvalidInput("uuid", f"{path} has no device {uuid}")


def amend_parking(path: Path, change: Callable[[Parking], Parking]) -> Parking:
    """Change what a page says of parking; returns it as it is now.

    Raises:
        FileNotFoundError, CorruptData: as `read_policy`. InvalidInput: the slice cannot be parked.
    """
    with writing.alone(path):
        policy = read_policy(path)
        if policy.parking is None:
            raise InvalidInput(
                "parking", "the slice is not parkable; use `egpu run --parkable` or a class with parking"
            )
        parking = change(policy.parking)
        _write_policy(path, policy.devices, parking, ask=True)
    return parking


def _create_policy(path: Path, devices: Sequence[DevicePolicy], parking: Parking | None) -> int:
    generation = 1
    page = bytearray(_POLICY_SIZE)
    _POLICY_HEADER.pack_into(page, 0, _POLICY_MAGIC, ABI_VERSION, _POLICY_SIZE, generation)
    start = _POLICY_HEADER.size + (generation & 1) * _BANK_SIZE
    page[start : start + _BANK_SIZE] = _encode_bank(generation, devices, parking)
    write_atomically(path, bytes(page))
    return generation


def _pwrite_all(handle: int, content: bytes, offset: int) -> None:
    while content:
        written = os.pwrite(handle, content, offset)
        content, offset = content[written:], offset + written


def read_policy(path: Path) -> Policy:
    """Read the limits in force.

    Raises:
        FileNotFoundError: no page exists.
        CorruptData: the file is not a policy page of this ABI, or it has no consistent bank.
    """
    with path.open("rb", buffering=0) as file:
        for _attempt in range(_READ_ATTEMPTS):
            page = os.pread(file.fileno(), _POLICY_SIZE, 0)
            if len(page) != _POLICY_SIZE:
                raise CorruptData(f"{path} has {len(page)} bytes; a policy page has {_POLICY_SIZE}")
            magic, version, size, generation = _POLICY_HEADER.unpack_from(page)
            if magic != _POLICY_MAGIC or version != ABI_VERSION or size != _POLICY_SIZE:
                raise CorruptData(f"{path} is not a policy page of ABI {ABI_VERSION}")
            start = _POLICY_HEADER.size + (generation & 1) * _BANK_SIZE
            try:
                policy = _decode_bank(page[start : start + _BANK_SIZE], generation)
            except (ValueError, InvalidInput) as error:
                raise CorruptData(f"{path}: {error}") from error
            if policy is not None:
                return policy
    raise CorruptData(f"{path}: wrong checksum in {_READ_ATTEMPTS} attempts to read the limits")


def create_usage(path: Path, *, mode: int = 0o600, sparse: bool = False) -> None:
    """Create an empty usage file. A process that can write it can falsify the count; by `mode` only ours can.

    `sparse`: unwritten parts take no room, and writing fails (SIGBUS) when the file system is full.
    """
    header = USAGE_HEADER.pack(*_USAGE_OURS)
    write_atomically(path, header if sparse else header.ljust(USAGE_SIZE, b"\0"), mode=mode)
    if sparse:
        os.truncate(path, USAGE_SIZE)


class UsageReader:
    """Reads a usage file repeatedly, the totals first. The container owns it: it may hold anything."""

    def __init__(self, path: Path, *, devices: int = MAX_DEVICES) -> None:
        self._path = os.fspath(path)
        self._totals_size = USAGE_HEADER.size + devices * USAGE_DEVICE.size

    def read(self) -> Usage:
        """Return the container's current account; `Usage.problem` is set for an invalid file."""
        content = self.content(USAGE_SIZE)
        return Usage(problem=content) if isinstance(content, str) else decode_usage(content)

    def read_totals(self, content: bytes | str | None = None) -> Usage:
        """Return the account without its processes, for frequent readers; of `content`, if given."""
        content = self.content() if content is None else content
        if isinstance(content, str):
            return Usage(problem=content)
        if len(content) != self._totals_size or USAGE_HEADER.unpack_from(content) != _USAGE_OURS:
            return Usage(problem=f"its header is not that of ABI {ABI_VERSION}")
        return Usage(tuple(DeviceUsage(*one) for one in USAGE_DEVICE.iter_unpack(content[USAGE_HEADER.size :])))

    def content(self, size: int = 0) -> bytes | str:
        """Return at most `size` bytes (0: the totals), or the error. Read, never mapped: the file may shrink."""
        try:
            return read_foreign(self._path, most=size or self._totals_size)
        except OSError as error:
            return f"cannot read: {os.strerror(error.errno or 0)}"


def decode_usage(content: bytes) -> Usage:
    """Return a usage file's bytes as a `Usage`; never raise."""
    if problem := usage_problem(content):
        return Usage(problem=problem)
    devices = tuple(_device(content, index) for index in range(MAX_DEVICES))
    return Usage(devices, tuple(_processes(content)))


def usage_problem(content: bytes) -> str:
    """Return why bytes are no usage file of this ABI; empty if they are."""
    if len(content) != USAGE_SIZE:
        return f"has {len(content)} bytes instead of {USAGE_SIZE}"
    return "" if USAGE_HEADER.unpack_from(content) == _USAGE_OURS else f"its header is not that of ABI {ABI_VERSION}"


def _processes(content: bytes) -> Iterator[ProcessUsage]:
    for row, state in enumerate(content[USAGE_ROWS_OFFSET :: USAGE_ROW.size]):  # low bytes: most rows are free
        if state == SLOT_LIVE and (process := _slot(content, row)) is not None:
            yield process


def _device(content: bytes, index: int) -> DeviceUsage:
    return DeviceUsage(*USAGE_DEVICE.unpack_from(content, USAGE_HEADER.size + index * USAGE_DEVICE.size))


def _slot(content: bytes, index: int) -> ProcessUsage | None:
    fields = USAGE_ROW.unpack_from(content, USAGE_ROWS_OFFSET + index * USAGE_ROW.size)
    state, device, pid, answer, start_time, pid_namespace, heartbeat_ns = fields[:7]
    parked_bytes, parks, wakes, wait_ns, _sequence, answered, gpu_ns, throttled_ns, launches = fields[7:16]
    if state != SLOT_LIVE or device >= MAX_DEVICES:
        return None
    # Eight classes of memory, each reserved and released in all.
    held = [max(0, reserved - released) for reserved, released in zip(fields[16:24], fields[24:32], strict=True)]
    # No more is parked than is held: the rest would be a false claim.
    parking = ProcessParking(min(parked_bytes, sum(held)), parks, wakes, wait_ns, park_answer(answer), answered)
    line = [device, pid, start_time, pid_namespace, heartbeat_ns, *held, gpu_ns, throttled_ns, launches]
    return ProcessUsage(*line, parking=parking)
