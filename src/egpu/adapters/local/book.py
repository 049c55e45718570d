"""Slices of this machine's own GPUs, without a cluster: the holders of each card's parts.

The book is one user's: a directory that no other user can write into, with one small file per holder, guarded by a lock
file (flock, which the kernel drops with its owner). A holder's directory follows from the name of its file, never from
its content. A holder counts while any process of it lives: the process that took the slice, its command, or any process
in the slice's own usage file. Processes are identified by pid *and* start time, so the reused pid of a dead holder does
not keep its share. Each opening of the book removes dead holders.

A user whose slice was ended for an overrun waits for the next one. That is a rule for the user's own programs, and no
security boundary: the user can remove the file that records it.
"""

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Final

import msgspec

from egpu.adapters import native
from egpu.adapters.cards.nvml import CardReading
from egpu.adapters.slices.pages import PPM, DevicePolicy, Mode, Parking, UsageReader, create_usage, write_policy
from egpu.adapters.slices.work import Kind
from egpu.core.backoff import Backoff
from egpu_base.errors import DoesNotFit, InvalidInput, NativeMissing, TooSoon
from egpu_base.system.files import write_atomically
from egpu_base.system.private import PASSABLE, private_directory
from egpu_base.system.processes import Process

WHOLE_CORE: Final = 100
MIB: Final = 1024 * 1024
INTERPOSER: Final = "libegpu-interposer.so"
SLICE: Final = ".slice"
MOST_TOLD: Final = 2
"""The most cards, and holders of a card, that a refusal names: it is one line."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """One slice in use. `core` and `memory_mib` are of each of its cards; `core` is in percent."""

    name: str
    uuids: tuple[str, ...]
    core: int
    memory_mib: int
    command: str
    processes: tuple[Process, ...]

    def is_alive(self, directory: Path) -> bool:
        """Return whether any process of it is left; `directory` is its slice's."""
        return any(process.is_alive() for process in self.processes) or _is_used(directory)

    def __str__(self) -> str:
        program = PurePath(self.command.split(" ", 1)[0]).name
        return f"pid {self.processes[-1].pid} ({program}): {self.core} % and {self.memory_mib} MiB"


@dataclass(frozen=True, kw_only=True)
class SliceRequest:
    """The size of a slice: percent of each card's time and MiB of its memory; `gpu` pins one card by ordinal.
    `parkable`: memory of idle programs may leave the card."""

    core: int
    memory_mib: int
    cards: int = 1
    gpu: int | None = None
    mode: Mode = Mode.CAP
    kind: Kind = Kind.BATCH
    parkable: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.core <= WHOLE_CORE:
            raise InvalidInput("--core", f"{self.core} is not a share of one card; give 1 to 100 percent")
        if self.memory_mib <= 0:
            raise InvalidInput("--memory", f"{self.memory_mib} MiB is not a size; give one such as 2GiB")
        if self.gpu is not None and self.cards > 1:
            raise InvalidInput("--gpu", f"it names one card, and --gpus asks for {self.cards}; give one of the two")
        if self.parkable and self.cards > 1:
            raise InvalidInput("--parkable", f"it needs a slice of one card, and --gpus asks for {self.cards}")


class Book:
    """A user's slices of the machine's cards. `directory` is made if needed.

    Raises NotPrivate, Unavailable: as `private_directory`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = private_directory(directory)

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep other processes from reading or changing the book inside this block."""
        handle = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def holders(self) -> list[Holder]:
        """Return all living holders, and remove the files of dead ones. Call it inside `locked`."""
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
        """Give out a slice: on the fullest cards that have room (binpack), or on the requested one.

        Raises:
            InvalidInput: the machine has no such card, too few, or none with that much memory.
            DoesNotFit: not now; the message lists the holders.
            TooSoon: a slice of this user's was ended for an overrun a moment ago.
        """
        candidates = _candidates(cards, request)
        with self.locked():
            now = time.time()
            if (backoff := self._backoff()).wait_seconds(now):
                raise TooSoon(backoff.why("a slice of yours", now))
            holders = self.holders()
            chosen = _fullest_with_room(candidates, request, holders)
            if len(chosen) < request.cards:
                raise DoesNotFit(_refusal(candidates, request, holders))
            return self._give(chosen, request, command, processes)

    def _give(
        self, cards: Sequence[CardReading], request: SliceRequest, command: str, processes: tuple[Process, ...]
    ) -> "LocalSlice":
        name = f"{processes[0].pid}-{secrets.token_hex(4)}"
        directory = self.directory / f"{name}{SLICE}"
        holder = Holder(
            name=name, uuids=tuple(card.uuid for card in cards), core=request.core, memory_mib=request.memory_mib,
            command=command, processes=processes,
        )  # fmt: skip
        local = LocalSlice(self, cards, request, holder, directory)
        try:
            local.write_files()
            self.record(holder)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return local

    def record(self, holder: Holder) -> None:
        """Write a holder's file atomically. Call it inside `locked`."""
        write_atomically(self.directory / f"{holder.name}.holder", msgspec.json.encode(holder), mode=0o600)

    def note_overrun(self) -> None:
        """Note that a slice's processes were ended for an overrun: their user waits for the next slice."""
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
        """Remove its holder, with the slice's directory."""
        with self.locked():
            (self.directory / f"{local.holder.name}.holder").unlink(missing_ok=True)
            shutil.rmtree(local.directory, ignore_errors=True)


class LocalSlice:
    """A slice in use: its cards, and the directory with interposer, policy page and usage file."""

    def __init__(
        self, book: Book, cards: Sequence[CardReading], request: SliceRequest, holder: Holder, directory: Path
    ) -> None:
        self._book = book
        self.cards = cards
        self.request = request
        self.holder = holder
        self.directory = directory

    @property
    def interposer(self) -> Path:
        """Return the library's path for a command: the library looks for its files beside this very path."""
        return self.directory / INTERPOSER

    def write_files(self) -> None:
        """Fill the slice directory."""
        library = native.path(INTERPOSER)
        if any(character in str(self.directory) for character in " \t\n:#"):
            raise NativeMissing(f"{self.directory}: ld.so.preload does not support such a path; choose another")
        self.directory.mkdir()
        self.directory.chmod(PASSABLE)
        self.interposer.symlink_to(library)
        limits = [
            DevicePolicy(
                uuid=card.uuid, minor=card.minor, mode=self.request.mode, kind=self.request.kind,
                core_ppm=self.request.core * (PPM // WHOLE_CORE), memory_limit_bytes=self.request.memory_mib * MIB,
            )
            for card in self.cards
        ]  # fmt: skip
        write_policy(self.directory / "policy", limits, parking=Parking() if self.request.parkable else None)
        create_usage(self.directory / "usage", mode=0o600)

    def add_process(self, process: Process) -> None:
        """Keep the slice as long as this process lives, too."""
        self.holder = replace(self.holder, processes=(*self.holder.processes, process))
        with self._book.locked():
            self._book.record(self.holder)

    def note_overrun(self) -> None:
        """Note that its processes were ended for an overrun."""
        self._book.note_overrun()

    def give_back(self) -> None:
        """Release the share, unless processes of the slice still run: then the end of the last one releases it."""
        if not _is_used(self.directory):
            self._book.remove(self)


def _is_used(directory: Path) -> bool:
    """Return whether a process in the slice's usage file lives."""
    users = UsageReader(directory / "usage").read().processes
    return any(Process(user.pid, user.start_time).is_alive() for user in users)


def _read_holder(path: Path) -> Holder | None:
    """Return None for an invalid file (then it holds nothing)."""
    try:
        holder = msgspec.json.decode(path.read_bytes(), type=Holder)
    except (OSError, msgspec.MsgspecError):
        return None
    return holder if holder.name == path.stem else None


def _candidates(cards: Sequence[CardReading], request: SliceRequest) -> list[CardReading]:
    """Return the cards that could ever have room. Raises InvalidInput for too few."""
    named = [card for card in cards if request.gpu in (None, card.index)]
    if not named:
        known = ", ".join(str(card.index) for card in cards) or "none"
        raise InvalidInput("--gpu", f"this machine has no GPU {request.gpu}; it has {known}")
    if request.cards > len(named):
        raise InvalidInput("--gpus", f"this machine has {len(named)} of the {request.cards} cards")
    large = [card for card in named if card.memory_mib >= request.memory_mib]
    if request.cards > len(large):
        smaller = max((card for card in named if card not in large), key=lambda card: card.memory_mib)
        raise InvalidInput(
            "--memory",
            f"{request.memory_mib} MiB is more than a card has: GPU {smaller.index} ({smaller.model}) has "
            f"{smaller.memory_mib} MiB",
        )
    return large


def _free(card: CardReading, holders: Sequence[Holder]) -> tuple[int, int]:
    """Return the free percent and MiB of a card."""
    mine = [holder for holder in holders if card.uuid in holder.uuids]
    return WHOLE_CORE - sum(h.core for h in mine), card.memory_mib - sum(h.memory_mib for h in mine)


def _fullest_with_room(
    cards: Sequence[CardReading], request: SliceRequest, holders: Sequence[Holder]
) -> list[CardReading]:
    """Return the chosen cards by index, or as many as there are."""
    roomy: list[tuple[tuple[int, int, int], CardReading]] = []
    for card in cards:
        core, memory_mib = _free(card, holders)
        if card.healthy and core >= request.core and memory_mib >= request.memory_mib:
            roomy.append(((core, memory_mib, card.index), card))
    chosen = [card for _, card in sorted(roomy, key=lambda one: one[0])[: request.cards]]
    return sorted(chosen, key=lambda card: card.index)


def _refusal(cards: Sequence[CardReading], request: SliceRequest, holders: Sequence[Holder]) -> str:
    """Return one line: the request, and the cards that are closest to it with some of their holders."""
    asked = f"{request.core} % and {request.memory_mib} MiB"
    found = "no card has" if request.cards == 1 else f"fewer than {request.cards} cards have"
    closest = sorted(cards, key=lambda card: (not card.healthy, *(-free for free in _free(card, holders))))
    told = [_card_state(card, holders) for card in closest[:MOST_TOLD]]
    return f"{found} {asked} free now: {'; '.join(told)}{_more(len(closest))}"


def _card_state(card: CardReading, holders: Sequence[Holder]) -> str:
    if not card.healthy:
        return f"GPU {card.index} is not available: {card.reason}"
    core, memory_mib = _free(card, holders)
    mine = [str(holder) for holder in holders if card.uuid in holder.uuids]
    held = f", held by {', '.join(mine[:MOST_TOLD])}{_more(len(mine))}" if mine else ""
    return f"GPU {card.index} has {core} % and {memory_mib} of {card.memory_mib} MiB free{held}"


def _more(count: int) -> str:
    return f" and {count - MOST_TOLD} more" if count > MOST_TOLD else ""
