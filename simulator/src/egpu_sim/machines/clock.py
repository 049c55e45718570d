"""The time of simulated machines that were made with ``clock="manual"``."""

import ctypes
import mmap
import os
import struct
import time
from types import TracebackType
from typing import Final, Self

from egpu_base.errors import InvalidInput, Unavailable
from egpu_sim.machines.machine import Machine
from egpu_sim.machines.state import CLOCK_OFFSET, MANUAL_CLOCK, read_header

_HEADER_BYTES: Final = 4096
_FUTEX_SYSCALL: Final = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAKE: Final = 1
_EVERYBODY: Final = 2**31 - 1


class Clock:
    """Sets the time of one machine, for all its processes. Use one clock per machine at a time.

    Raises:
        InvalidInput: the machine's time passes by itself.
    """

    def __init__(self, machine: Machine) -> None:
        header = read_header(machine.state)
        if header is None or not header.flags & MANUAL_CLOCK:
            raise InvalidInput(
                "machine", f"the time of {machine.node_name} passes by itself; make it with clock='manual'"
            )
        with machine.state.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _HEADER_BYTES)
        self._changes = ctypes.c_uint32.from_buffer(self._map, CLOCK_OFFSET + 8)

    def now(self) -> int:
        """Return the machine's time in nanoseconds."""
        return int(struct.unpack_from("<Q", self._map, CLOCK_OFFSET)[0])

    def sleepers(self) -> int:
        """Return how many threads of the machine's programs wait for time to pass. Killed threads may be counted."""
        return int(struct.unpack_from("<I", self._map, CLOCK_OFFSET + 12)[0])

    def advance(self, ns: int) -> int:
        """Let time pass. Return the new time in nanoseconds."""
        if ns < 0:
            raise InvalidInput("ns", f"{ns}: time cannot go back")
        now = self.now() + ns
        ctypes.c_uint64.from_buffer(self._map, CLOCK_OFFSET).value = now
        self._changes.value = (self._changes.value + 1) % 2**32
        libc = ctypes.CDLL(None, use_errno=True)
        address = ctypes.addressof(self._changes)
        number = _FUTEX_SYSCALL.get(os.uname().machine)
        if number is not None:  # Elsewhere, sleeping threads check the time every 20 ms.
            libc.syscall(number, ctypes.c_void_p(address), _FUTEX_WAKE, _EVERYBODY, None, None, 0)
        return now

    def wait_for_sleepers(self, count: int, seconds: float = 30) -> None:
        """Wait until at least so many threads wait for time to pass. Then nothing moves until `advance`.

        Raises:
            Unavailable: the timeout passed first.
        """
        deadline = time.monotonic() + seconds
        while self.sleepers() < count:
            if time.monotonic() > deadline:
                raise Unavailable(f"{self.sleepers()} of {count} threads wait for the machine's time after {seconds} s")
            time.sleep(0.001)

    def close(self) -> None:
        """Unmap the state. The machine's time stands still."""
        del self._changes
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
