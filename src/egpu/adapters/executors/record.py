"""The record beside each executor, the only one: its owner, its cards and their limits, and its process. A restarted
daemon learns from it what runs."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from egpu.adapters.slices.pages import PPM, DevicePolicy, Mode, Parking
from egpu.adapters.slices.rooms import first_room
from egpu.adapters.slices.work import Kind
from egpu.api.allocation import CardShare
from egpu_base.errors import CorruptData
from egpu_base.system.files import write_atomically
from egpu_base.system.processes import Process

RECORD: Final = "executor.json"
MIB: Final = 1024 * 1024
GRACE_SECONDS: Final = 30
"""The default time that a session whose program has lost its connection waits for it to come back."""
_EARLIER_RECORD: Final = "lease.json"
"""The file that versions before this one wrote in its place."""

Owner = TypeVar("Owner")
"""The owner of an executor: the data that a slot, a served container or a lease keeps beside its executor."""


class ExecutorRecord(msgspec.Struct, Generic[Owner], frozen=True, kw_only=True, rename="camel"):
    """One executor. `name` is that of its directory and control group, and is shown to programs; `minors` by card UUID.

    `cards` are the limits in force. `pid` 0: not started yet; `boot_id` is the boot of its start. `uid` is its own
    user; 0: the user of its starter. `granted_mib`, per card in the order of `cards`, is its limit before the last
    change, which it may still hold; empty: no change yet. `grace_seconds` is the time that a session outlives its
    connection. Executors of one `network` share it, if they have one at all (`egpu.adapters.executors.networks`); "":
    with none. The images of its modules are kept for later executors of `caller` (`egpu.adapters.executors.images`), a
    name that the caller cannot choose itself; "": for none. `core_limit` is the percent of each card up to which it may
    use idle compute; 0: no more than its share. `latency`: its launches come before those of others. `movable`: its
    sessions can move (`egpu.adapters.executors.moving`). `parkable`: memory of its idle sessions may leave the card.
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
    core_limit: int = 0
    latency: bool = False
    movable: bool = False
    parkable: bool = False

    @property
    def granted(self) -> tuple[int, ...]:
        """Return `granted_mib`, with a value for every card."""
        return self.granted_mib or tuple(share.memory_mib for share in self.cards)

    @property
    def process(self) -> Process:
        return Process(self.pid, self.start_time)

    @property
    def shares_room(self) -> bool:
        """Whether only a part of its memory has its own room on the card."""
        return any(share.resident_mib for share in self.cards)

    def parking(self) -> Parking | None:
        """Return what its policy page says of parking at first."""
        if not self.parkable:
            return None
        return first_room(sum(share.resident_mib for share in self.cards) * MIB) if self.shares_room else Parking()

    def policy(self) -> list[DevicePolicy]:
        """Return the lines of its policy page. Raises CorruptData when a card's minor is not known."""
        if missing := [share.uuid for share in self.cards if share.uuid not in self.minors]:
            raise CorruptData(f"card {missing[0]} is not on this machine")
        return [
            DevicePolicy(
                uuid=share.uuid,
                minor=self.minors[share.uuid],
                mode=Mode.UNLIMITED if not share.core else Mode.SHARE if self.core_limit else Mode.CAP,
                core_ppm=share.core * PPM // 100,
                memory_limit_bytes=share.memory_mib * MIB,
                weight=max(share.core, 1),
                kind=Kind.LATENCY if self.latency else Kind.BATCH,
            )
            for share in self.cards
        ]


def write(directory: Path, record: ExecutorRecord[Owner]) -> None:
    """Write the record into the executor's directory atomically, readable by us alone."""
    write_atomically(directory / RECORD, msgspec.json.encode(record), mode=0o600)


def read(directory: Path, owner: type[Owner]) -> ExecutorRecord[Owner]:
    """Read the record in an executor's directory. Raises CorruptData with the reason."""
    try:
        return msgspec.json.decode((directory / RECORD).read_bytes(), type=ExecutorRecord[owner])
    except FileNotFoundError as error:
        if (directory / _EARLIER_RECORD).exists():
            raise CorruptData("an earlier version started it, whose records this one cannot read") from error
        raise CorruptData("it has no record") from error
    except (OSError, msgspec.MsgspecError) as error:
        raise CorruptData(f"cannot read its record: {error}") from error
