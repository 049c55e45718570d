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
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from egpu.adapters import native
from egpu.adapters.cards.nvml import CardReading
from egpu.adapters.local.fitting import candidates, check_host_memory, fullest_with_room, refusal
from egpu.adapters.local.holders import WHOLE_CORE, Holder, RoomTerms, SliceRequest, is_used
from egpu.adapters.slices.pages import PPM, DevicePolicy, Parking, create_usage, write_policy
from egpu.adapters.slices.rooms import first_room
from egpu.core.backoff import Backoff
from egpu_base.errors import DoesNotFit, NativeMissing, TooSoon
from egpu_base.system.files import write_atomically
from egpu_base.system.private import PASSABLE, private_directory
from egpu_base.system.processes import Process

MIB: Final = 1024 * 1024
INTERPOSER: Final = "libegpu-interposer.so"
SLICE: Final = ".slice"


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
        able = candidates(cards, request)
        with self.locked():
            now = time.time()
            if (backoff := self._backoff()).wait_seconds(now):
                raise TooSoon(backoff.why("a slice of yours", now))
            holders = self.holders()
            check_host_memory(request, holders)
            chosen = fullest_with_room(able, request, holders)
            if len(chosen) < request.cards:
                raise DoesNotFit(refusal(able, request, holders))
            return self._give(chosen, request, command, processes)

    def _give(
        self, cards: Sequence[CardReading], request: SliceRequest, command: str, processes: tuple[Process, ...]
    ) -> "LocalSlice":
        name = f"{processes[0].pid}-{secrets.token_hex(4)}"
        holder = Holder(
            name=name, uuids=tuple(card.uuid for card in cards), core=request.core, memory_mib=request.memory_mib,
            command=command, processes=processes,
            room=RoomTerms(
                resident_mib=request.own_mib, idle_seconds=request.idle_seconds, card_memory_mib=cards[0].memory_mib
            ) if request.resident_percent else None,
        )  # fmt: skip
        local = LocalSlice(self, cards, request, holder)
        try:
            local.write_files()
            self.record(holder)
        except BaseException:
            shutil.rmtree(local.directory, ignore_errors=True)
            raise
        return local

    def slice_directory(self, holder: Holder) -> Path:
        """Return the directory of its slice."""
        return self.directory / f"{holder.name}{SLICE}"

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

    def __init__(self, book: Book, cards: Sequence[CardReading], request: SliceRequest, holder: Holder) -> None:
        self._book = book
        self.cards = cards
        self.request = request
        self.holder = holder
        self.directory = book.slice_directory(holder)

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
        write_policy(self.directory / "policy", limits, parking=self._parking())
        create_usage(self.directory / "usage", mode=0o600)

    def _parking(self) -> Parking | None:
        if self.request.resident_percent:
            return first_room(self.request.own_mib * MIB)
        return Parking() if self.request.parkable else None

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
        if not is_used(self.directory):
            self._book.remove(self)


def _read_holder(path: Path) -> Holder | None:
    """Return None for an invalid file (then it holds nothing)."""
    try:
        holder = msgspec.json.decode(path.read_bytes(), type=Holder)
    except (OSError, msgspec.MsgspecError):
        return None
    return holder if holder.name == path.stem else None
