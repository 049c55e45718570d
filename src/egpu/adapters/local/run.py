"""A command inside a local slice: which machine (real or simulated), how it is entered, signals and exit status."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from egpu.adapters import compilers
from egpu.adapters.enter import enter
from egpu.adapters.local import election
from egpu.adapters.local.book import Book, LocalSlice
from egpu.adapters.local.election import Rank, SharingElection
from egpu.adapters.nvml import CardProcess, CardReading, NvmlInventory
from egpu.adapters.preloading import check_file_system, check_program
from egpu.adapters.processes import Process, adopt_orphans, reap_orphans, user_of
from egpu.adapters.simulator import machine as simulator
from egpu.adapters.slices.pages import UsageReader
from egpu.errors import CorruptData, InvalidInput, NativeMissing, Unavailable

DEFAULT_PROFILE: Final = "A100-80G"
SIMULATED_CARDS: Final = 1
RUN: Final = Path("/run")
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  memory, as /run is: nothing kept there outlives a boot
DRIVER_LOADED: Final = Path("/proc/driver/nvidia/version")
NVML_LIBRARY: Final = "libnvidia-ml.so.1"
_SHARING: Final = "users share a card through a pool (egpu broker, egpu serve, egpu run --pool)"
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_FROM_KERNEL: Final = 0x80  # si_code of a signal that a terminal sent to its whole foreground group


@dataclass(frozen=True)
class LocalMachine:
    """Cards to take slices of. `simulated`: the simulated machine they belong to, which is the user's own; None: they
    are real, and this user gives slices of those on which nobody else computes."""

    name: str
    book: Book
    simulated: simulator.Machine | None

    def inventory(self) -> NvmlInventory:
        """The machine's NVML, not open yet."""
        return NvmlInventory(None if self.simulated is None else self.simulated.driver_dir / NVML_LIBRARY)

    def sharing(self) -> SharingElection:
        """This run's part in sharing out the time of the machine's cards, its book entered. Raises NotPrivate,
        Unavailable: as `SharingElection`."""
        part = SharingElection(self.book.directory.parent / election.DIRECTORY, Rank.RUN)
        part.enter(self.book.directory)
        return part

    def cards(self) -> tuple[CardReading, ...]:
        """The cards of the machine, by index.

        Raises:
            NativeMissing, Unavailable: NVML is not there or does not answer; there is no card.
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


@dataclass(frozen=True)
class Plan:
    """How a command is started. `weaknesses` says, in sentences, what this machine does not let us do."""

    arguments: tuple[str, ...]
    weaknesses: tuple[str, ...]


def default_root() -> Path:
    """Where this user's slices and simulated machines are kept: for root where nobody else can take the name first."""
    return (RUN if os.access(RUN, os.W_OK) else SHARED_MEMORY) / f"egpu-{os.geteuid()}"


def without_strangers(
    cards: Sequence[CardReading], processes: Mapping[str, Sequence[CardProcess]]
) -> tuple[CardReading, ...]:
    """The cards, those on which another user's process computes as not to be had.

    What several users take of one card nobody here could add up: none of them may believe another's files. `processes`
    is what the driver says of each card, by UUID; those that are hidden from us count as ours.
    """
    us = (None, os.geteuid())

    def seen(card: CardReading) -> CardReading:
        for process in processes.get(card.uuid, ()):
            if (user := user_of(process.pid)) not in us:
                reason = f"user {user} computes on it (pid {process.pid}); {_SHARING}"
                return replace(card, healthy=False, reason=reason)
        return card

    return tuple(map(seen, cards))


def find_machine(profile: str | None, *, root: Path | None = None) -> LocalMachine:
    """The machine's own GPUs; a simulated machine when there is no NVIDIA driver, or when a `profile` is given.

    Raises:
        InvalidInput: no such profile.
        NotPrivate: others can write where slices and machines are kept.
        Unavailable: there is a driver, and it does not answer (then nothing is simulated behind the user's back).
    """
    root = root or default_root()
    if profile is None and has_driver():
        return LocalMachine("of this host", Book(root / "real"), None)
    return _simulated(profile or DEFAULT_PROFILE, root)


def has_driver() -> bool:
    """Whether this machine has an NVIDIA driver. Raises Unavailable: it has one, which does not answer."""
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


def _simulated(profile: str, root: Path) -> LocalMachine:
    """The user's simulated machine of this profile: made by whichever run comes first, then shared by all."""
    name = profile.upper()
    if name not in simulator.profiles():
        raise InvalidInput("--simulate", f"no profile {profile!r}; there are {', '.join(sorted(simulator.profiles()))}")
    book = Book(root / name)
    directory = book.directory / "machine"
    with book.locked():
        try:
            machine = simulator.open_machine(directory)
            simulator.use_our_libraries(machine)
        except (InvalidInput, CorruptData, Unavailable):  # none yet, or what a reboot left of one
            shutil.rmtree(directory, ignore_errors=True)
            node = f"local-{os.geteuid()}-{name.lower()}"
            machine = simulator.create_machine(directory, name, SIMULATED_CARDS, node, persistent=True)
    return LocalMachine(name, book, machine)


def plan(machine: LocalMachine, local: LocalSlice, command: Sequence[str]) -> Plan:
    """How to run `command` in the slice, as well as this machine allows.

    Raises:
        NativeMissing: egpu-enter was not built.
        NotSupported: the loader would start it without the interposer.
    """
    check_file_system(local.interposer)
    check_program(local.interposer, command[0])
    environment = {"NVIDIA_VISIBLE_DEVICES": local.card.uuid}
    policy, driver = local.directory / "policy", None
    libraries = [local.interposer]
    read_only = {policy: policy}
    if machine.simulated is None:
        # By ordinal: many programs read a number there. In this order NVML's ordinal is CUDA's.
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(local.card.index)}
    else:
        driver = _driver_dir(machine.simulated, local)
        environment |= compilers.giving_ptx(os.environ)
        read_only |= simulator.loader_files(driver)
        libraries += [driver / name for name in simulator.PRELOADED]
    entry = enter(command, libraries=libraries, environment=environment, library_dir=driver, read_only=read_only)
    weaknesses = (
        f"{entry.refused}; so the slice is carried by LD_PRELOAD and LD_LIBRARY_PATH, and a command that clears its "
        "environment, or starts a set-user-id program, leaves it",
        "the policy page is not mounted read-only: a command of the same user can change its own limits",
    )
    return Plan(entry.arguments, weaknesses if entry.refused else ())


def _driver_dir(machine: simulator.Machine, local: LocalSlice) -> Path:
    """The simulated driver as the slice sees it: one card, because only its device file is there."""
    devices = local.directory / "devices"
    devices.mkdir()
    node = f"nvidia{local.card.minor}"
    (devices / node).symlink_to(machine.device_dir / node)
    return simulator.make_driver_dir(machine, local.directory / "driver", devices)


def execute(plan: Plan, local: LocalSlice, *guards: AbstractContextManager[None]) -> int:
    """Run the command to its end, inside these guards; signals sent to us go to it. Returns its exit status, 128 + N
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
            pass  # what came for the command after it ended is not for us
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
    """What was given and what was used, for scripts; units are in the keys."""
    usage = UsageReader(local.directory / "usage").read()
    used = usage.devices[0] if usage.devices else None
    return {
        "gpu": local.card.index,
        "uuid": local.card.uuid,
        "model": local.card.model,
        "corePercent": local.request.core,
        "memoryMiB": local.request.memory_mib,
        "mode": local.request.mode.name.lower(),
        "exitStatus": status,
        "peakMemoryBytes": used.peak_bytes if used else 0,
        "refusedAllocations": used.refusals if used else 0,
        "launches": used.launches if used else 0,
        "gpuSeconds": used.gpu_ns / 1e9 if used else 0.0,
        "throttledSeconds": used.throttled_ns / 1e9 if used else 0.0,
    }
