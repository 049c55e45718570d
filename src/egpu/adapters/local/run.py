"""Run a command inside a local slice: machine (real or simulated), entry, signals and exit status."""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from egpu.adapters.cards.nvml import CardProcess, CardReading, NvmlInventory
from egpu.adapters.local import election
from egpu.adapters.local.book import Book, LocalSlice
from egpu.adapters.local.election import Rank, SharingElection
from egpu.adapters.local.holders import SliceRequest
from egpu.adapters.programs.enter import enter
from egpu.adapters.programs.preloading import check_file_system, check_program
from egpu.adapters.slices.pages import UsageReader
from egpu_base.errors import DoesNotFit, NativeMissing, TooSoon, Unavailable
from egpu_base.system.processes import Process, adopt_orphans, reap_orphans, user_of

RUN: Final = Path("/run")
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  memory, as /run is: nothing kept there outlives a boot
DRIVER_LOADED: Final = Path("/proc/driver/nvidia/version")
NVML_LIBRARY: Final = "libnvidia-ml.so.1"
AGAIN_SECONDS: Final = 0.5
"""The time between two tries to take a slice: holders that were killed leave no sign to wait for."""
_SHARING: Final = "users share a card through a pool (egpu broker, egpu serve, egpu run --pool)"
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_FROM_KERNEL: Final = 0x80  # si_code of a signal that a terminal sent to its whole foreground group


@dataclass(frozen=True)
class Driver:
    """A driver other than the machine's own, for a command: its directory, and its accessories."""

    directory: Path
    environment: Mapping[str, str]
    libraries: Sequence[Path]
    read_only: Mapping[Path, Path]


class SimulatedMachine(Protocol):
    """A simulated machine, for a run (`egpu.laptop.machines` has the only one)."""

    @property
    def driver_dir(self) -> Path:
        """Return the directory of its libraries."""
        ...

    def driver_of(self, local: LocalSlice) -> Driver:
        """Make the driver that shows the cards of a slice."""
        ...


@dataclass(frozen=True)
class LocalMachine:
    """Cards for slices. `simulated` is the user's own simulated machine. None: the cards are real, and this user gets
    slices of cards on which no other user computes."""

    name: str
    book: Book
    simulated: SimulatedMachine | None

    def inventory(self) -> NvmlInventory:
        """Return the machine's NVML, not open yet."""
        return NvmlInventory(None if self.simulated is None else self.simulated.driver_dir / NVML_LIBRARY)

    def sharing(self) -> SharingElection:
        """Return this run's part in sharing the time of the machine's cards, with its book entered. Raises NotPrivate,
        Unavailable: as `SharingElection`."""
        part = SharingElection(self.book.directory.parent / election.DIRECTORY, Rank.RUN)
        part.enter(self.book.directory)
        return part

    def cards(self) -> tuple[CardReading, ...]:
        """Return the cards of the machine, by index.

        Raises:
            NativeMissing, Unavailable: NVML is missing or does not answer; no card.
        """
        inventory = self.inventory()
        try:
            cards = inventory.read()
            if self.simulated is None:
                cards = without_strangers(cards, inventory.processes())
        finally:
            inventory.close()
        if not cards:
            raise Unavailable(f"NVML finds no GPU on the machine {self.name}")
        return cards

    def take(
        self,
        cards: Sequence[CardReading],
        request: SliceRequest,
        command: Sequence[str],
        *,
        wait_seconds: float,
        tell: Callable[[str], None],
    ) -> LocalSlice:
        """Take a slice of these cards for this process, with retries for `wait_seconds`. `tell` gets the first refusal.

        Raises as `Book.take` and `cards`.
        """
        us, deadline, told = (Process.of(os.getpid()),), time.monotonic() + wait_seconds, False
        while True:
            try:
                return self.book.take(cards, request, command=shlex.join(command), processes=us)
            except (DoesNotFit, TooSoon) as error:
                left_seconds = deadline - time.monotonic()
                if left_seconds <= 0:
                    raise
                if not told:
                    tell(f"waiting up to {wait_seconds:g} s (--wait): {error}")
                    told = True
                time.sleep(min(left_seconds, AGAIN_SECONDS))
            cards = self.cards()


@dataclass(frozen=True)
class Plan:
    """The start of a command. `weaknesses` lists, in sentences, what this machine does not support."""

    arguments: tuple[str, ...]
    weaknesses: tuple[str, ...]


def default_root() -> Path:
    """Return the place of this user's slices and simulated machines; root's name there cannot be taken."""
    return (RUN if os.access(RUN, os.W_OK) else SHARED_MEMORY) / f"egpu-{os.geteuid()}"


def without_strangers(
    cards: Sequence[CardReading], processes: Mapping[str, Sequence[CardProcess]]
) -> tuple[CardReading, ...]:
    """Return the cards, with those on which another user's process computes marked as unhealthy.

    No process here could add up the use of one card by several users, because they do not trust each other's files.
    `processes` is the driver's list for each card, by UUID; those that are hidden from us count as ours.
    """
    us = (None, os.geteuid())

    def seen(card: CardReading) -> CardReading:
        for process in processes.get(card.uuid, ()):
            if (user := user_of(process.pid)) not in us:
                reason = f"user {user} computes on it (pid {process.pid}); {_SHARING}"
                return replace(card, healthy=False, reason=reason)
        return card

    return tuple(map(seen, cards))


def real_machine(root: Path | None = None) -> LocalMachine:
    """Return the machine's own GPUs. Raises NotPrivate: others can write to the place of slices."""
    return LocalMachine("of this host", Book((root or default_root()) / "real"), None)


def has_driver() -> bool:
    """Return whether this machine has an NVIDIA driver. Raises Unavailable: it has one, which does not answer."""
    inventory = NvmlInventory()
    try:
        inventory.read()
    except NativeMissing:
        return False
    except Unavailable:
        if DRIVER_LOADED.exists():
            raise
        return False  # the library alone, as in many container images
    finally:
        inventory.close()
    return True


def plan(machine: LocalMachine, local: LocalSlice, command: Sequence[str]) -> Plan:
    """Plan how to run `command` in the slice, as well as this machine allows.

    Raises:
        NativeMissing: egpu-enter is not built.
        NotSupported: the loader would start it without the interposer.
    """
    check_file_system(local.interposer)
    check_program(local.interposer, command[0])
    environment = {"NVIDIA_VISIBLE_DEVICES": ",".join(card.uuid for card in local.cards)}
    policy, driver = local.directory / "policy", None
    libraries = [local.interposer]
    read_only = {policy: policy}
    if machine.simulated is None:
        # By ordinal: many programs read a number there. In this order NVML's ordinal is CUDA's.
        ordinals = ",".join(str(card.index) for card in local.cards)
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ordinals}
    else:
        given = machine.simulated.driver_of(local)
        driver = given.directory
        environment |= given.environment
        read_only |= given.read_only
        libraries += given.libraries
    entry = enter(command, libraries=libraries, environment=environment, library_dir=driver, read_only=read_only)
    weaknesses = (
        f"{entry.refused}; so the slice is carried by LD_PRELOAD and LD_LIBRARY_PATH, and a command that clears its "
        "environment, or starts a set-user-id program, leaves it",
        "the policy page is not mounted read-only: a command of the same user can change its own limits",
    )
    return Plan(entry.arguments, weaknesses if entry.refused else ())


def execute(plan: Plan, local: LocalSlice, *guards: AbstractContextManager[None]) -> int:
    """Run the command to its end, inside these guards, and forward our signals to it. Return its exit status, 128 + N
    for signal N.

    A signal from the terminal is not passed on: the command is in the same foreground group and got it itself.
    """
    watched = {signal.SIGCHLD, *_FORWARDED}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    adopt_orphans()  # the guard finds the slice's processes below this one
    try:
        child = subprocess.Popen(
            plan.arguments,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),  # noqa: PLW1509  we have one thread
        )
        local.add_process(Process.of(child.pid))
        with contextlib.ExitStack() as entered:
            for guard in guards:
                entered.enter_context(guard)
            _wait(child, watched)
    finally:
        while signal.sigtimedwait(watched, 0) is not None:
            pass  # a signal for the command after its end is not for us
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _wait(child: subprocess.Popen[bytes], watched: set[signal.Signals]) -> None:
    while child.poll() is None:
        reap_orphans(child.pid)
        received = signal.sigwaitinfo(watched)
        if received.si_signo != signal.SIGCHLD and received.si_code != _FROM_KERNEL:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(received.si_signo)


def summary(local: LocalSlice, status: int) -> dict[str, Any]:
    """Return the slice's limits and use, for scripts; units are in the keys. The use of several cards is added up.

    Launches and time are None for a slice of 100 %, whose programs run without being timed."""
    used = UsageReader(local.directory / "usage").read().devices
    launches = sum(one.launches for one in used)
    timed = launches > 0 or local.request.core < 100
    first, *more = ({"gpu": card.index, "uuid": card.uuid, "model": card.model} for card in local.cards)
    return {
        **first,
        **({"moreGpus": more} if more else {}),
        "corePercent": local.request.core,
        "memoryMiB": local.request.memory_mib,
        "coreLimitPercent": local.request.core_limit,
        "qos": local.request.qos,
        "mode": local.request.mode.name.lower(),
        "work": local.request.kind.name.lower(),
        "exitStatus": status,
        "peakMemoryBytes": sum(one.peak_bytes for one in used),
        "refusedAllocations": sum(one.refusals for one in used),
        "launches": launches if timed else None,
        "gpuSeconds": sum(one.gpu_ns for one in used) / 1e9 if timed else None,
        "throttledSeconds": sum(one.throttled_ns for one in used) / 1e9,
    }
