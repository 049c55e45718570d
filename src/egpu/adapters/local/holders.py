"""The slices of a book, as values: a request for one, and its holder."""

from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from egpu.adapters.slices.pages import Mode, UsageReader
from egpu.adapters.slices.work import Kind
from egpu.api.allocation import Qos, qos_of
from egpu_base.errors import InvalidInput
from egpu_base.system.processes import Process

WHOLE_CORE: Final = 100


@dataclass(frozen=True, kw_only=True)
class RoomTerms:
    """A slice shares the room of its card: `resident_mib` are always its own, and it is idle after `idle_seconds`
    without a call."""

    resident_mib: int
    idle_seconds: float
    card_memory_mib: int


@dataclass(frozen=True, kw_only=True)
class Holder:
    """One slice in use. `core` and `memory_mib` are of each of its cards; `core` is in percent. `room`: None if all of
    its memory is its own."""

    name: str
    uuids: tuple[str, ...]
    core: int
    memory_mib: int
    command: str
    processes: tuple[Process, ...]
    room: RoomTerms | None = None

    @property
    def own_mib(self) -> int:
        """Return how much of its memory no other slice may use."""
        return self.memory_mib if self.room is None else self.room.resident_mib

    def is_alive(self, directory: Path) -> bool:
        """Return whether any process of it is left; `directory` is its slice's."""
        return any(process.is_alive() for process in self.processes) or is_used(directory)

    def __str__(self) -> str:
        program = PurePath(self.command.split(" ", 1)[0]).name
        resident = "" if self.room is None else f", {self.room.resident_mib} of them resident"
        return f"pid {self.processes[-1].pid} ({program}): {self.core} % and {self.memory_mib} MiB{resident}"


@dataclass(frozen=True, kw_only=True)
class SliceRequest:
    """The size of a slice: percent of each card's time and MiB of its memory; `gpu` pins one card by ordinal.
    `parkable`: memory of idle programs may leave the card. With `resident_percent`, only this part of its memory is its
    own, it is idle after `idle_seconds`, and slices that are parked for others may take `host_memory_mib`."""

    core: int
    memory_mib: int
    cards: int = 1
    gpu: int | None = None
    mode: Mode = Mode.CAP
    kind: Kind = Kind.BATCH
    parkable: bool = False
    resident_percent: int = 0
    idle_seconds: float = 0.0
    host_memory_mib: int = 0

    @property
    def core_limit(self) -> int:
        """Return the percent of each card that it may use while others are idle."""
        return WHOLE_CORE if self.mode is Mode.SHARE else self.core

    @property
    def qos(self) -> Qos:
        """Return the quality of service of its compute."""
        return qos_of((self.core,), self.core_limit)

    @property
    def own_mib(self) -> int:
        """Return how much of its memory no other slice may use."""
        return -(-self.memory_mib * self.resident_percent // 100) if self.resident_percent else self.memory_mib

    def __post_init__(self) -> None:
        if not 0 < self.core <= WHOLE_CORE:
            raise InvalidInput("--core", f"{self.core} is not a share of one card; give 1 to 100 percent")
        if self.memory_mib <= 0:
            raise InvalidInput("--memory", f"{self.memory_mib} MiB is not a size; give one such as 2GiB")
        if self.gpu is not None and self.cards > 1:
            raise InvalidInput("--gpu", f"it names one card, and --gpus asks for {self.cards}; give one of the two")
        if self.parkable and self.cards > 1:
            raise InvalidInput("--parkable", f"it needs a slice of one card, and --gpus asks for {self.cards}")


def is_used(directory: Path) -> bool:
    """Return whether a process in the slice's usage file lives."""
    users = UsageReader(directory / "usage").read().processes
    return any(Process(user.pid, user.start_time).is_alive() for user in users)
