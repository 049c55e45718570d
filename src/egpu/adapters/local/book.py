"""Slices of this machine's own GPUs, without a cluster: who holds how much of which card.

The book is one user's: a directory that nobody else can have written into, of one small file per holder, guarded by a
lock file (flock, which the kernel drops with its owner). Which directory goes with a holder follows from the name of
its file, never from what is in it. A holder counts as long as any process of it lives: the one that took the slice, the
command it started, or any process that the slice's own usage file names. Processes are told apart by pid *and* start
time, so a dead holder's pid that somebody else got does not keep its share. Holders that are dead are removed whenever
the book is opened.

A user whose slice was ended for an overrun waits for the next one. That is a word to one's own programs, and no
boundary: the user can remove the file that says so.
"""

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from egpu.adapters import native
from egpu.adapters.files import write_atomically
from egpu.adapters.nvml import CardReading
from egpu.adapters.private import PASSABLE, private_directory
from egpu.adapters.processes import Process
from egpu.adapters.slices.pages import PPM, DevicePolicy, Mode, UsageReader, create_usage, write_policy
from egpu.core.backoff import Backoff
from egpu.errors import DoesNotFit, InvalidInput, NativeMissing, TooSoon

WHOLE_CORE: Final = 100
MIB: Final = 1024 * 1024
INTERPOSER: Final = "libegpu-interposer.so"
SLICE: Final = ".slice"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """One slice that is given out. `core` is in percent of the card."""

    name: str
    uuid: str
    core: int
    memory_mib: int
    command: str
    processes: tuple[Process, ...]

    def is_alive(self, directory: Path) -> bool:
        """Whether any process of it is left; `directory` is its slice's."""
        return any(process.is_alive() for process in self.processes) or _is_used(directory)

    def __str__(self) -> str:
        return f"pid {self.processes[-1].pid} ({self.command}): {self.core} % and {self.memory_mib} MiB"


@dataclass(frozen=True, kw_only=True)
class SliceRequest:
    """What a run asks for: percent of a card's time and MiB of its memory; `gpu` pins the card by ordinal."""

    core: int
    memory_mib: int
    gpu: int | None = None
    mode: Mode = Mode.CAP

    def __post_init__(self) -> None:
        if not 0 < self.core <= WHOLE_CORE:
            raise InvalidInput("--core", f"{self.core} is not a share of one card; give 1 to 100 percent")
        if self.memory_mib <= 0:
            raise InvalidInput("--memory", f"{self.memory_mib} MiB is nothing; give a size such as 2GiB")


class Book:
    """What of this machine's cards we gave to whom. `directory` is made when missing.

    Raises NotPrivate, Unavailable: as `private_directory`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = private_directory(directory)

    @contextmanager
    def locked(self) -> Generator[None]:
        """Nobody else reads or changes the book inside this block."""
        handle = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def holders(self) -> list[Holder]:
        """Everybody who still lives; what the dead left behind is removed. Call it inside `locked`."""
        alive: list[Holder] = []
        for path in sorted(self.directory.glob("*.holder")):
            holder, directory = _read_holder(path), path.with_suffix(SLICE)
            if holder is not None and holder.is_alive(directory):
                alive.append(holder)
            else:
                path.unlink()
                shutil.rmtree(directory, ignore_errors=True)
        return alive

    def take(
        self, cards: Sequence[CardReading], request: SliceRequest, *, command: str, processes: tuple[Process, ...]
    ) -> "LocalSlice":
        """Give out a slice: the fullest card that has room (binpack), or the one asked for.

        Raises:
            InvalidInput: no card has that ordinal, or none could ever have that much memory.
            DoesNotFit: not now; the message names who holds what.
            TooSoon: a slice of this user's was ended for an overrun a moment ago.
        """
        candidates = [card for card in cards if request.gpu in (None, card.index)]
        if not candidates:
            known = ", ".join(str(card.index) for card in cards) or "none"
            raise InvalidInput("--gpu", f"there is no GPU {request.gpu} on this machine; there is {known}")
        largest = max(candidates, key=lambda card: card.memory_mib)
        if request.memory_mib > largest.memory_mib:
            raise InvalidInput(
                "--memory",
                f"{request.memory_mib} MiB is more than a card has: GPU {largest.index} ({largest.model}) has "
                f"{largest.memory_mib} MiB",
            )
        with self.locked():
            now = time.time()
            if (backoff := self._backoff()).wait_seconds(now):
                raise TooSoon(backoff.why("a slice of yours", now))
            holders = self.holders()
            card = _fullest_with_room(candidates, request, holders)
            if card is None:
                raise DoesNotFit(_refusal(candidates, request, holders))
            return self._give(card, request, command, processes)

    def _give(
        self, card: CardReading, request: SliceRequest, command: str, processes: tuple[Process, ...]
    ) -> "LocalSlice":
        name = f"{processes[0].pid}-{secrets.token_hex(4)}"
        directory = self.directory / f"{name}{SLICE}"
        holder = Holder(
            name=name, uuid=card.uuid, core=request.core, memory_mib=request.memory_mib, command=command,
            processes=processes,
        )  # fmt: skip
        local = LocalSlice(self, card, request, holder, directory)
        try:
            local.write_files()
            self.record(holder)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return local

    def record(self, holder: Holder) -> None:
        """Write a holder down, whole or not at all. Call it inside `locked`."""
        write_atomically(self.directory / f"{holder.name}.holder", msgspec.json.encode(holder), mode=0o600)

    def note_overrun(self) -> None:
        """Processes of a slice were ended for an overrun: their user waits for the next slice."""
        with self.locked():
            write_atomically(self._overruns, msgspec.json.encode(self._backoff().again(time.time())), mode=0o600)

    @property
    def _overruns(self) -> Path:
        return self.directory / "overruns"

    def _backoff(self) -> Backoff:
        try:
            return msgspec.json.decode(self._overruns.read_bytes(), type=Backoff)
        except (OSError, msgspec.MsgspecError):
            return Backoff()

    def remove(self, local: "LocalSlice") -> None:
        """Strike its holder out, with the slice's directory."""
        with self.locked():
            (self.directory / f"{local.holder.name}.holder").unlink(missing_ok=True)
            shutil.rmtree(local.directory, ignore_errors=True)


class LocalSlice:
    """A slice that was given out: its card, and the directory with interposer, policy page and usage file."""

    def __init__(self, book: Book, card: CardReading, request: SliceRequest, holder: Holder, directory: Path) -> None:
        self._book = book
        self.card = card
        self.request = request
        self.holder = holder
        self.directory = directory

    @property
    def interposer(self) -> Path:
        """The library as a command is to load it: it looks for its files beside this very path."""
        return self.directory / INTERPOSER

    def write_files(self) -> None:
        """Fill the slice directory."""
        library = native.path(INTERPOSER)
        if any(character in str(self.directory) for character in " \t\n:#"):
            raise NativeMissing(f"{self.directory}: ld.so.preload has no way to name such a path; choose another")
        self.directory.mkdir()
        self.directory.chmod(PASSABLE)
        self.interposer.symlink_to(library)
        limits = DevicePolicy(
            uuid=self.card.uuid, minor=self.card.minor, mode=self.request.mode,
            core_ppm=self.request.core * (PPM // WHOLE_CORE), memory_limit_bytes=self.request.memory_mib * MIB,
        )  # fmt: skip
        write_policy(self.directory / "policy", [limits])
        create_usage(self.directory / "usage", mode=0o600)

    def add_process(self, process: Process) -> None:
        """The slice is held as long as this process lives, too."""
        self.holder = replace(self.holder, processes=(*self.holder.processes, process))
        with self._book.locked():
            self._book.record(self.holder)

    def note_overrun(self) -> None:
        """Processes of it were ended for an overrun."""
        self._book.note_overrun()

    def give_back(self) -> None:
        """Free the share, unless processes of the slice still run: then the last of them frees it by ending."""
        if not _is_used(self.directory):
            self._book.remove(self)


def _is_used(directory: Path) -> bool:
    """Whether a process that the slice's usage file names lives."""
    users = UsageReader(directory / "usage").read().processes
    return any(Process(user.pid, user.start_time).is_alive() for user in users)


def _read_holder(path: Path) -> Holder | None:
    """None for a file that is no holder's (then nobody holds anything by it)."""
    try:
        holder = msgspec.json.decode(path.read_bytes(), type=Holder)
    except (OSError, msgspec.MsgspecError):
        return None
    return holder if holder.name == path.stem else None


def _free(card: CardReading, holders: Sequence[Holder]) -> tuple[int, int]:
    """Percent and MiB of a card that nobody holds."""
    mine = [holder for holder in holders if holder.uuid == card.uuid]
    return WHOLE_CORE - sum(h.core for h in mine), card.memory_mib - sum(h.memory_mib for h in mine)


def _fullest_with_room(
    cards: Sequence[CardReading], request: SliceRequest, holders: Sequence[Holder]
) -> CardReading | None:
    best: tuple[tuple[int, int, int], CardReading] | None = None
    for card in cards:
        core, memory_mib = _free(card, holders)
        if not card.healthy or core < request.core or memory_mib < request.memory_mib:
            continue
        rank = (core, memory_mib, card.index)
        if best is None or rank < best[0]:
            best = (rank, card)
    return None if best is None else best[1]


def _refusal(cards: Sequence[CardReading], request: SliceRequest, holders: Sequence[Holder]) -> str:
    lines = [f"no card has {request.core} % and {request.memory_mib} MiB free now:"]
    for card in cards:
        core, memory_mib = _free(card, holders)
        state = "" if card.healthy else f", not to be had: {card.reason}"
        lines.append(
            f"  GPU {card.index} ({card.model}): {core} % and {memory_mib} of {card.memory_mib} MiB free{state}"
        )
        lines += [f"    held by {holder}" for holder in holders if holder.uuid == card.uuid]
    return "\n".join(lines)
