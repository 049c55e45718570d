"""The cards of this machine, read through NVML with NVIDIA's own Python package (real or simulated library alike).

Everything is keyed by UUID: index and minor number change when the machine boots, and a lost card comes back under
another index. A reading never raises for one bad card; that card is reported unhealthy, with the reason, and a later
reading that succeeds makes it healthy again.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from egpu.adapters.cards import mig
from egpu.adapters.cards.memory_limits import limits_memory
from egpu.adapters.cards.mig import MigReading
from egpu.adapters.cards.package import nvml
from egpu_base.errors import NativeMissing, NotSupported, Unavailable
from egpu_base.system.files import write_atomically
from egpu_base.system.processes import boot_id

log = structlog.get_logger(__name__)
T = TypeVar("T")

#: XIDs that blame the application, not the card (NVIDIA's XID catalogue; NVIDIA's device plugin ignores the same).
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
#: After a critical XID a card that answers again is trusted once this time has passed without another.
XID_QUIET_SECONDS = 300.0
EVENTS_PER_READING = 256  # a limit for the waiting events

MIB = 1024 * 1024
CUDA_DRIVER = "libcuda.so.1"


@dataclass(frozen=True)
class CardReading:
    """One physical card. `tflops` is peak fp32 = cores * 2 * maximum SM clock; None where NVML does not say."""

    uuid: str
    index: int
    minor: int
    model: str
    memory_mib: int
    compute_capability: str
    tflops: float | None = None
    numa: int | None = None
    bus_id: str = ""
    memory_isolation: str = ""  # "driver": limits by control group (egpu.adapters.cards.memory_limits)
    links: tuple[tuple[str, str], ...] = ()  # (other card's UUID, kind of connection), nearest kind only
    healthy: bool = True
    reason: str = ""
    mig: MigReading | None = None  # for cards in MIG mode whose instances are given out


@dataclass(frozen=True)
class CardProcess:
    """A process that holds memory of a card, as the driver sees it. `pid` is the host's."""

    pid: int
    used_bytes: int


#: NVML's topology levels, in the words of `nvidia-smi topo`.
_TOPOLOGY = {0: "internal", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


class _Symbol(ctypes.Structure):
    """`Dl_info` of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def driver_directory() -> Path | None:
    """Return the folder from which NVML was loaded, if CUDA's driver is there, for processes without our
    LD_LIBRARY_PATH. Return None before NVML is loaded, and where the system keeps the two apart."""
    if nvml.nvmlLib is None:
        return None
    symbol = _Symbol()
    address = ctypes.c_void_p.from_buffer(nvml.nvmlLib.nvmlInit_v2)
    if not ctypes.CDLL(None).dladdr(address, ctypes.byref(symbol)) or b"/" not in (symbol.file or b""):
        return None
    directory = Path(os.fsdecode(symbol.file)).absolute().parent
    return directory if (directory / CUDA_DRIVER).exists() else None


class NvmlInventory:
    """Reads the cards repeatedly. Calls block (milliseconds to seconds): run them in a thread.

    `library` is the NVML to load instead of the system's, for instance a simulated machine's. The package keeps one
    library per process, so a process serves one machine.
    """

    def __init__(
        self,
        library: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        xid_quiet_seconds: float = XID_QUIET_SECONDS,
        kept: Path | None = None,
        instances: bool = False,
    ) -> None:
        """Prepare. `kept`: a file in which critical XIDs outlive this process, but not the boot, by `clock`.
        `instances`: MIG instances are given out; otherwise cards in MIG mode are unusable."""
        self._instances = instances
        self._library = library
        self._clock = clock
        self._xid_quiet_seconds = xid_quiet_seconds
        self._lock = threading.Lock()
        self._open = False
        self._events: Any = None
        self._watched: set[str] = set()
        self._kept = kept
        self._last_xid: dict[str, tuple[int, float]] = _remembered(kept)
        self._known: dict[str, CardReading] = {}
        self._handles: dict[str, Any] = {}

    def read(self) -> tuple[CardReading, ...]:
        """Return all cards, by index. A known card that is gone now stays in the list as unhealthy.

        Raises:
            NativeMissing: no NVML library.
            Unavailable: the driver does not answer.
        """
        with self._lock:
            return self._read()

    def _read(self) -> tuple[CardReading, ...]:
        self._initialise()
        try:
            found = self._cards()
        except nvml.NVMLError as error:
            self._close()
            raise Unavailable(f"the NVIDIA driver (NVML) does not answer: {error}") from error
        present = {card.uuid for card in found}
        lost = [_failed(card, "NVML does not find it") for uuid, card in self._known.items() if uuid not in present]
        cards = tuple(sorted([*found, *lost], key=lambda card: (card.index, card.uuid)))
        self._known, self._handles = {card.uuid: card for card in cards}, {}
        if any(not card.healthy for card in cards):
            # NVML finds a card after a reset or return only after a fresh start.
            self._close()
        return cards

    def ask(self, question: Callable[[Any], T | None]) -> dict[str, T]:
        """Return the result of `question` for the handle of each card of the last reading, by its UUID, without None.

        Raises NativeMissing, Unavailable.
        """
        with self._lock:
            if not self._known:
                self._read()
            self._initialise()
            self._handles = self._handles or {one: quiet(nvml.nvmlDeviceGetHandleByUUID, one) for one in self._known}
            found = {uuid: question(handle) for uuid, handle in self._handles.items() if handle is not None}
            return {uuid: answer for uuid, answer in found.items() if answer is not None}

    def processes(self) -> dict[str, tuple[CardProcess, ...]]:
        """Return the processes of each card and their memory, without cards that do not say. Raises as `ask`."""
        return self.ask(_processes)

    def used_bytes(self) -> dict[str, int]:
        """Return the used memory of each card, without cards that do not say. Raises as `ask`."""
        return self.ask(_used_bytes)

    def on_card(self, uuid: str, function: Callable[..., T], *arguments: Any) -> T:
        """Call `function` with NVML's handle of a card, one caller at a time. Raises NotSupported if this driver never
        does it, or not for us; Unavailable if it does not do it now; NativeMissing."""
        with self._lock:
            self._initialise()
            try:
                return function(nvml.nvmlDeviceGetHandleByUUID(uuid), *arguments)
            except (nvml.NVMLError_NoPermission, nvml.NVMLError_NotSupported) as error:
                raise NotSupported(f"card {uuid}: {error}") from error
            except nvml.NVMLError as error:
                raise Unavailable(f"card {uuid}: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._open:
            self._free_events()
            quiet(nvml.nvmlShutdown)
            self._open, self._handles = False, {}

    def _initialise(self) -> None:
        if self._open:
            return
        if self._library is not None and nvml.nvmlLib is None:
            try:
                nvml.nvmlLib = ctypes.CDLL(str(self._library))
            except OSError as error:
                raise NativeMissing(f"cannot load {self._library}: {error}") from error
        try:
            nvml.nvmlInit()
        except nvml.NVMLError_LibraryNotFound as error:
            raise NativeMissing("libnvidia-ml.so.1 was not found; install the NVIDIA driver") from error
        except nvml.NVMLError as error:
            raise Unavailable(f"cannot start NVML: {error}") from error
        self._open = True

    def _cards(self) -> list[CardReading]:
        handles: dict[str, Any] = {}
        cards: list[CardReading] = []
        for index in range(int(nvml.nvmlDeviceGetCount())):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = _text(nvml.nvmlDeviceGetUUID(handle))
                cards.append(self._card(handle, index, uuid))
                handles[uuid] = handle
            except nvml.NVMLError as error:
                # Without a UUID this card is unknown; a known one is reported as lost.
                log.warning("a card does not answer", index=index, reason=str(error))
        self._take_events(handles)
        links = _links(handles)
        return [self._judged(card, links.get(card.uuid, ())) for card in cards]

    def _card(self, handle: Any, index: int, uuid: str) -> CardReading:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        pci = quiet(nvml.nvmlDeviceGetPciInfo, handle)
        return CardReading(
            uuid=uuid,
            index=index,
            minor=int(nvml.nvmlDeviceGetMinorNumber(handle)),
            model=_text(nvml.nvmlDeviceGetName(handle)),
            memory_mib=_memory_mib(handle),
            compute_capability=f"{major}.{minor}",
            tflops=_tflops(handle),
            numa=_numa(handle),
            bus_id=_text(pci.busId) if pci is not None else "",
            memory_isolation="driver" if limits_memory(handle) else "",
            reason=_memory_fault(handle) or ("" if self._instances else mig.why_not_whole(handle)),
            mig=mig.read(handle) if self._instances and mig.is_on(handle) else None,
        )

    def _judged(self, card: CardReading, links: tuple[tuple[str, str], ...]) -> CardReading:
        reason = card.reason
        last = self._last_xid.get(card.uuid)
        if last is not None:
            xid, when = last
            if self._clock() - when < self._xid_quiet_seconds:
                reason = reason or f"XID {xid}"
            else:
                del self._last_xid[card.uuid]
        return replace(card, links=links, healthy=not reason, reason=reason)

    def _take_events(self, handles: dict[str, Any]) -> None:
        """Take critical XIDs since the last reading. With a library without events, the other checks show health."""
        if self._events is None:
            self._events = quiet(nvml.nvmlEventSetCreate)
        if self._events is None:
            return
        for uuid in handles.keys() - self._watched:
            quiet(nvml.nvmlDeviceRegisterEvents, handles[uuid], nvml.nvmlEventTypeXidCriticalError, self._events)
            self._watched.add(uuid)
        for _ in range(EVENTS_PER_READING):
            event = quiet(nvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:
                return
            xid = int(event.eventData)
            uuid = quiet(nvml.nvmlDeviceGetUUID, event.device)
            if uuid is not None and xid not in APPLICATION_XIDS:
                self._last_xid[_text(uuid)] = (xid, self._clock())
                self._keep()
                log.warning("critical XID", uuid=_text(uuid), xid=xid)

    def _keep(self) -> None:
        if self._kept is None:
            return
        try:
            write_atomically(self._kept, msgspec.json.encode(_Xids(boot_id(), self._last_xid)))
        except OSError as error:
            log.warning("cannot save an XID; it is lost when the agent ends", reason=str(error))

    def _free_events(self) -> None:
        if self._events is not None:
            quiet(nvml.nvmlEventSetFree, self._events)
        self._events = None
        self._watched.clear()


class _Xids(msgspec.Struct):
    """The last critical XID and its time by UUID, in seconds of the boot's own clock."""

    boot_id: str
    last: dict[str, tuple[int, float]]


def _remembered(kept: Path | None) -> dict[str, tuple[int, float]]:
    """Return what an earlier process of this boot kept, or nothing where the file is missing or unreadable."""
    try:
        found = msgspec.json.decode(kept.read_bytes(), type=_Xids) if kept is not None else None
    except (OSError, msgspec.MsgspecError):
        return {}
    return found.last if found is not None and found.boot_id == boot_id() else {}


def quiet(function: Callable[..., T], *arguments: Any) -> T | None:
    """Return None where NVML does not support, or does not answer, one optional question."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


def _processes(handle: Any) -> tuple[CardProcess, ...] | None:
    listed = quiet(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if listed is None or any(process.usedGpuMemory is None for process in listed):
        return None
    return tuple(CardProcess(int(one.pid), int(one.usedGpuMemory)) for one in listed)


def _used_bytes(handle: Any) -> int | None:
    memory = quiet(nvml.nvmlDeviceGetMemoryInfo, handle)
    return None if memory is None else int(memory.used)


def _memory_mib(handle: Any) -> int:
    """Return the memory of a card for programs, in MiB: all of it without the driver's reserve.

    Drivers before 510 do not report the reserve.
    """
    memory = quiet(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    if memory is None:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // MIB
    return (int(memory.total) - int(memory.reserved)) // MIB


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _failed(card: CardReading, reason: str) -> CardReading:
    return replace(card, healthy=False, reason=reason)


def _tflops(handle: Any) -> float | None:
    cores = quiet(nvml.nvmlDeviceGetNumGpuCores, handle)
    clock_mhz = quiet(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM)
    if not cores or not clock_mhz:
        return None
    return round(int(cores) * 2 * int(clock_mhz) / 1e6, 2)


def _numa(handle: Any) -> int | None:
    node = quiet(nvml.nvmlDeviceGetNumaNodeId, handle)
    return None if node is None or int(node) < 0 else int(node)


def _memory_fault(handle: Any) -> str:
    """Return why the card's memory is unfit for use, or "", also when NVML does not say."""
    rows = quiet(nvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None and rows[3]:
        return "a memory row cannot be remapped: replace the card"
    if quiet(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle) == nvml.NVML_FEATURE_ENABLED:
        return "memory pages wait for retirement: reset the card"
    return ""


def _links(handles: dict[str, Any]) -> dict[str, tuple[tuple[str, str], ...]]:
    links: dict[str, list[tuple[str, str]]] = {}
    for (one, first), (other, second) in itertools.permutations(handles.items(), 2):
        if _nvlinked(first, second):
            links.setdefault(one, []).append((other, "NVLink"))
            continue
        level = quiet(nvml.nvmlDeviceGetTopologyCommonAncestor, first, second)
        if level is not None:
            links.setdefault(one, []).append((other, _TOPOLOGY.get(int(level), f"level {level}")))
    return {uuid: tuple(sorted(found)) for uuid, found in links.items()}


def _nvlinked(first: Any, second: Any) -> bool:
    status = quiet(nvml.nvmlDeviceGetP2PStatus, first, second, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    return status == nvml.NVML_P2P_STATUS_OK
