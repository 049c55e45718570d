"""Simulated machines in the place of real cards: `egpu run --simulate`, `egpu serve --simulate`, `egpu sim`."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from egpu.adapters.local.book import Book, LocalSlice
from egpu.adapters.local.run import Driver, LocalMachine, default_root, has_driver, real_machine
from egpu_base.errors import CorruptData, InvalidInput, Unavailable
from egpu_sim.machines import machine as simulator
from egpu_sim.machines.environment import making_ptx
from egpu_sim.machines.models import suggestion
from egpu_sim.machines.shared_memory import StateFile, list_machines, remove_unused, sweep

__all__ = [
    "Simulated",
    "StateFile",
    "find_machine",
    "list_machines",
    "making_ptx",
    "remove_served",
    "remove_unused",
    "served_driver",
]

DEFAULT_PROFILE: Final = "A100-80G"


@dataclass(frozen=True)
class Simulated:
    """The user's simulated machine, from which local slices are taken."""

    machine: simulator.Machine

    @property
    def driver_dir(self) -> Path:
        """Return the directory of its libraries."""
        return self.machine.driver_dir

    def driver_of(self, local: LocalSlice) -> Driver:
        """Make the driver as the slice sees it: with its cards alone, because only their device files are there."""
        devices = local.directory / "devices"
        devices.mkdir()
        for card in local.cards:
            node = f"nvidia{card.minor}"
            (devices / node).symlink_to(self.machine.device_dir / node)
        directory = simulator.make_driver_dir(self.machine, local.directory / "driver", devices)
        libraries = [directory / name for name in simulator.PRELOADED]
        return Driver(directory, making_ptx(os.environ), libraries, simulator.loader_files(directory))

    def destroy(self) -> None:
        """Remove the machine with what its cards hold."""
        simulator.destroy(self.machine)


def find_machine(profile: str | None, *, root: Path | None = None, cards: int = 1) -> LocalMachine:
    """Return the machine's own GPUs. Without an NVIDIA driver, or with a `profile`, return a simulated machine with
    this number of cards.

    Raises:
        InvalidInput: no such profile.
        NotPrivate: others can write where slices and machines are kept.
        Unavailable: there is a driver, and it does not answer (then nothing is simulated behind the user's back).
    """
    if profile is None and has_driver():
        return real_machine(root)
    return _simulated(profile or DEFAULT_PROFILE, root or default_root(), cards)


def _simulated(profile: str, root: Path, cards: int) -> LocalMachine:
    """Return the user's simulated machine with these cards. The first run makes it, all runs share it."""
    name = profile.upper()
    if name not in simulator.profiles():
        known = ", ".join(sorted(simulator.profiles()))
        raise InvalidInput("--simulate", f"no profile {profile!r}{suggestion(profile)}; there are {known}")
    if not 0 < cards <= simulator.MAX_CARDS:
        raise InvalidInput("--gpus", f"{cards} is not between 1 and {simulator.MAX_CARDS}, a simulated machine's cards")
    place = name if cards == 1 else f"{name}-x{cards}"
    sweep()
    book = Book(root / place)
    directory = book.directory / "machine"
    with book.locked():
        try:
            machine = simulator.open_machine(directory)
            simulator.use_our_libraries(machine)
        except (InvalidInput, CorruptData, Unavailable):  # none yet, or what a reboot left of one
            shutil.rmtree(directory, ignore_errors=True)
            node = f"local-{os.geteuid()}-{place.lower()}"
            machine = simulator.create_machine(directory, name, cards, node, persistent=True)
    return LocalMachine(name, book, Simulated(machine))


def served_driver(state: Path, profile: str, gpus: int, name: str) -> Path:
    """Return the driver directory of the simulated machine below `state`; make the machine when it is not there."""
    directory = state / "machine"
    sweep()
    try:
        machine = simulator.open_machine(directory)
        models = {card.profile for card in machine.cards}
        if models == {profile} and len(machine.cards) == gpus:
            simulator.keep(machine)
            simulator.use_our_libraries(machine)
            return machine.driver_dir
        simulator.destroy(machine)
    except (InvalidInput, CorruptData, Unavailable, FileNotFoundError):
        shutil.rmtree(directory, ignore_errors=True)
    return simulator.create_machine(directory, profile, gpus, name).driver_dir


def remove_served(state: Path) -> None:
    """Remove the simulated machine below `state`."""
    simulator.destroy(simulator.open_machine(state / "machine"))
