"""What is kept beside each executor, and nowhere else: whose it is, which cards it has and how much of them, and which
process it is. A daemon that starts again learns from it what runs."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from egpu.adapters.files import write_atomically
from egpu.adapters.processes import Process
from egpu.adapters.slices.pages import PPM, DevicePolicy, Mode
from egpu.api.allocation import CardShare
from egpu.errors import CorruptData

RECORD: Final = "executor.json"
MIB: Final = 1024 * 1024
GRACE_SECONDS: Final = 30
"""How long a session whose program has lost its connection waits for it to come back, where nobody says otherwise."""
_EARLIER_RECORD: Final = "lease.json"
"""What versions before this file wrote in its place."""

Owner = TypeVar("Owner")
"""Whose an executor is: what a slot, a served container or a lease has to keep beside its executor."""


class ExecutorRecord(msgspec.Struct, Generic[Owner], frozen=True, kw_only=True, rename="camel"):
    """One executor. `name` is its directory's, its control group's, and what it tells programs; `minors` by card UUID.

    `cards` are the limits in force. `pid` 0: not started yet; `boot_id` is that of the boot it was started in. `uid` is
    its user, who nobody else is; 0: it is who started it. `granted_mib` by card, in the order of `cards`: what it was
    allowed before its limits were last changed, and may still hold; empty: they never were. `grace_seconds` is how long
    a session of it outlives its connection. Executors of one `network` share it, where they have one at all
    (`egpu.adapters.executors.networks`); "": with nobody. `caller` is for whose later executors its modules' images are
    kept (`egpu.adapters.executors.images`): a name that it cannot choose itself; "": for nobody's.
    """

    name: str
    owner: Owner
    cards: tuple[CardShare, ...]
    minors: dict[str, int]
    pid: int = 0
    start_time: int = 0
    boot_id: str = ""
    uid: int = 0
    granted_mib: tuple[int, ...] = ()
    grace_seconds: int = GRACE_SECONDS
    network: str = ""
    caller: str = ""

    @property
    def granted(self) -> tuple[int, ...]:
        """`granted_mib`, with something for every card."""
        return self.granted_mib or tuple(share.memory_mib for share in self.cards)

    @property
    def process(self) -> Process:
        return Process(self.pid, self.start_time)

    def policy(self) -> list[DevicePolicy]:
        """The lines of its policy page. Raises CorruptData when a card's minor is not known."""
        if missing := [share.uuid for share in self.cards if share.uuid not in self.minors]:
            raise CorruptData(f"card {missing[0]} is not on this machine")
        return [
            DevicePolicy(
                uuid=share.uuid,
                minor=self.minors[share.uuid],
                mode=Mode.CAP if share.core else Mode.UNLIMITED,
                core_ppm=share.core * PPM // 100,
                memory_limit_bytes=share.memory_mib * MIB,
                weight=max(share.core, 1),
            )
            for share in self.cards
        ]


def write(directory: Path, record: ExecutorRecord[Owner]) -> None:
    """Put the record into the executor's directory, whole or not at all; nobody else may read it."""
    write_atomically(directory / RECORD, msgspec.json.encode(record), mode=0o600)


def read(directory: Path, owner: type[Owner]) -> ExecutorRecord[Owner]:
    """The record in an executor's directory. Raises CorruptData, saying what is wrong with it."""
    try:
        return msgspec.json.decode((directory / RECORD).read_bytes(), type=ExecutorRecord[owner])
    except FileNotFoundError as error:
        if (directory / _EARLIER_RECORD).exists():
            raise CorruptData("it was started by an earlier version, whose records this one does not read") from error
        raise CorruptData("it has no record") from error
    except (OSError, msgspec.MsgspecError) as error:
        raise CorruptData(f"its record cannot be read: {error}") from error
