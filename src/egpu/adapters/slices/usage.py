"""What a container says of its use, as values; `egpu.adapters.slices.pages` reads them from its usage file."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class ParkAnswer(IntEnum):
    """How a process answered the last request to park or to wake."""

    NOT_ASKED = 0
    DONE = 1
    WOKEN = 2
    BUSY = 3
    CAPTURING = 4
    PINNED = 5
    NO_HOST_MEMORY = 6
    NOTHING = 7
    NOT_POSSIBLE = 8
    FAILED = 9
    NO_ROOM = 10


ANSWERS: Final[Mapping[ParkAnswer, str]] = {
    ParkAnswer.NOT_ASKED: "no answer in time. A program answers once it has an allocation of 2 MiB or more",
    ParkAnswer.DONE: "parked",
    ParkAnswer.WOKEN: "awake",
    ParkAnswer.BUSY: "not parked: calls or kernels run. Try again when it is idle",
    ParkAnswer.CAPTURING: "not parked: a stream capture is open. Try again when it has ended",
    ParkAnswer.PINNED: "not parked: its memory can be used without the driver, by a network card or an exported handle",
    ParkAnswer.NO_HOST_MEMORY: "not parked: the host has no memory for the copy. Free some, or raise the pod's limit",
    ParkAnswer.NOTHING: "not parked: it has no allocation of 2 MiB or more",
    ParkAnswer.NOT_POSSIBLE: "not parked: its kernel has no membarrier, or it has over 2048 threads or 16 contexts",
    ParkAnswer.FAILED: "the driver failed while memory was moved. The next call of the program tries again",
    ParkAnswer.NO_ROOM: "not awake: the card has no room. Its next call tries again",
}
"""The answers in words."""

_NUMBERS = {int(each): each for each in ParkAnswer}


def park_answer(number: int) -> ParkAnswer:
    """Return the answer of that number; an unknown one says nothing."""
    return _NUMBERS.get(number, ParkAnswer.NOT_ASKED)


@dataclass(frozen=True)
class DeviceUsage:
    """A container's own account of its use of one device, in the order of the policy's devices and of the file. Bytes
    and nanoseconds; `refilled_ns` is the time of the last request to launch, `room_asked_ns` that of the last look for
    room in vain (CLOCK_MONOTONIC)."""

    memory_bytes: int
    peak_bytes: int
    refusals: int
    reaped_bytes: int
    spill_bytes: int
    room_asked_ns: int
    bucket_ns: int
    refilled_ns: int
    gpu_ns: int
    throttled_ns: int
    launches: int


@dataclass(frozen=True)
class ProcessParking:
    """What a process says of its parking. `parked_bytes` are charged and not on the card; `wait_ns` is the time that
    its calls waited for memory; `answer` is that to the request `answered` of the policy."""

    parked_bytes: int = 0
    parks: int = 0
    wakes: int = 0
    wait_ns: int = 0
    answer: ParkAnswer = ParkAnswer.NOT_ASKED
    answered: int = 0


@dataclass(frozen=True)
class ProcessUsage:
    """One process on one device. `pid` and `start_time` (clock ticks since boot) are in `pid_namespace`. Bytes are by
    class of memory, in the file's order."""

    device: int
    pid: int
    start_time: int
    pid_namespace: int
    heartbeat_ns: int
    device_bytes: int
    managed_bytes: int
    pool_bytes: int
    physical_bytes: int
    array_bytes: int
    graph_bytes: int
    spill_bytes: int
    module_bytes: int
    gpu_ns: int
    throttled_ns: int
    launches: int
    parking: ProcessParking = ProcessParking()

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of all classes that count against the memory limit (without those that spill beyond it)."""
        classes = (self.device_bytes, self.managed_bytes, self.pool_bytes, self.physical_bytes)
        return sum(classes) + self.array_bytes + self.graph_bytes + self.module_bytes


@dataclass(frozen=True)
class Usage:
    """One reading of a usage file. `problem` describes an invalid file; then all else is empty."""

    devices: tuple[DeviceUsage, ...] = ()
    processes: tuple[ProcessUsage, ...] = ()
    problem: str = ""
