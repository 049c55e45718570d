"""Slot directories: the content of the paths that Allocate named by slot id, for the container that has the slot now.

    <state-dir>/slots/<id>/             mounted read-only at /opt/egpu
        policy                          limits; absent if the technology enforces none
        usage                           mounted read-write at /opt/egpu/usage; a file system of its own, or a plain file
        libegpu-interposer.so           hard link to the node's copy; absent likewise
        ld.so.preload                   mounted at /etc/ld.so.preload; empty if nothing is preloaded; hard link likewise
        dev                             link to a directory of links that slots with the same cards share:
        dev/nvidia*                     link to the real device, or to a file that leads nowhere
        executor-policy, executor-usage hard links to its executor's files, if it has one; these then limit the slot
        owner.json                      the owner (`SlotRecord`)

Slots whose claim several pods use share one slice: one `policy` and one `usage` (or one executor's files), hard linked
or mounted into each of them. So these last as long as one slot has them, in whatever order the others go.

A slot is built under another name and renamed into place, and renamed away before it is removed. So a slot directory is
complete or absent at any moment, even if the agent is killed. A new owner never gets an inode of the previous one."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path

import msgspec

from egpu.adapters.slices.bounded import UsageRoom, unmount_bounded
from egpu.adapters.slices.pages import create_usage
from egpu.api import names
from egpu.api.allocation import ContainerAllocation
from egpu.core.provisioners.preparation import Preparation
from egpu_base.errors import CorruptData
from egpu_base.system import selinux
from egpu_base.system.files import last_change, write_atomically, write_new
from egpu_base.system.private import private_directory

PRELOAD_FILE = "ld.so.preload"
USAGE_FILE = "usage"
POLICY_FILE = "policy"
GRACE_FILE = "grace"
"""The file beside the socket of an executor on another node: for how many seconds the program waits for its agents."""
EXECUTOR_POLICY_FILE = "executor-policy"
EXECUTOR_USAGE_FILE = "executor-usage"
DEVICES = "dev"
USAGE_ROOM = "usage-room"
"""The directory beside the slots where usage files are mounted."""
OWNER_FILE = "owner.json"
_SCRATCH_PREFIX = "."


def preloaded(plan: Preparation) -> list[str]:
    """Return the libraries that every program of the container loads, by their paths there."""
    return [f"{names.SLICE_DIRECTORY}/{file}" for file in plan.libraries]


class HeldClaim(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The request of a ResourceClaim that a slot was prepared for."""

    name: str
    uid: str
    request: str


class SlotRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The owner of a slot, its allocation, and the time of its preparation. `boot_id` is here because minors change
    at boot."""

    slot_id: str = msgspec.field(name="token")
    namespace: str
    pod: str
    pod_uid: str
    container: str
    generation: int
    boot_id: str
    allocation: ContainerAllocation
    minors: dict[str, int]
    server: str = ""
    """The node that has the cards, if it is another one."""
    slice_generation: int = 0
    """The generation of the slot that the slice was made for, if several pods share it."""
    prepared_at: float = 0.0
    """The time at which its slice was made, in seconds since the boot; 0: by a version that did not record it."""

    resource_claim: HeldClaim | None = None
    """Set if the slot belongs to a ResourceClaim: then it lasts as long as the claim, and all containers that use the
    claim share it. `pod` is the pod that it was first prepared for, `container` those of its containers."""

    @property
    def owner(self) -> tuple[str, str]:
        return self.pod_uid, self.container

    @property
    def slice(self) -> tuple[str, int]:
        """The slice that limits it and counts its use: its claim if others share that, else the slot itself."""
        if self.allocation.shared_claim:
            return self.allocation.shared_claim, self.slice_generation
        return self.slot_id, self.generation


class Slots:
    """The slot directories of one node. Calls block on the file system, briefly.

    `mount_usage`: a container cannot make its usage file larger. Without it the usage file is a file of the node's
    file system."""

    def __init__(self, directory: Path, *, mount_usage: bool = False) -> None:
        self._known: dict[str, tuple[tuple[int, int], SlotRecord]] = {}
        """Each slot's record, its inode, and when that was changed, by slot id."""
        # A slot is only for its container, which gets it as a mount, and for no other user of the node.
        self._directory = private_directory(directory)
        self._directory.chmod(0o700)
        self._room = UsageRoom(self._directory.with_name(USAGE_ROOM)) if mount_usage else None
        self._discard_scratch()
        self._generation = max((record.generation for record in self.records()), default=0)

    def path(self, slot_id: str) -> Path:
        return self._directory / slot_id

    def policy_file(self, slot_id: str) -> Path:
        """Return the slot's policy page: its executor's if it has one."""
        return self._first(slot_id, EXECUTOR_POLICY_FILE, POLICY_FILE)

    def usage_file(self, slot_id: str) -> Path:
        """Return the slot's usage file: its executor's if it has one, which no container can write."""
        return self._first(slot_id, EXECUTOR_USAGE_FILE, USAGE_FILE)

    def _first(self, slot_id: str, of_executor: str, own: str) -> Path:
        slot = f"{self._directory}/{slot_id}/"
        return Path(slot + (of_executor if os.path.exists(slot + of_executor) else own))

    def create_usage(self, slot: Path) -> None:
        """Create the usage file in a slot directory that is being made; its container may run as any user.

        Raises NotSupported if it should be mounted and this process may not mount."""
        create = self._room.create if self._room is not None else create_usage
        create(slot / USAGE_FILE, mode=0o666)

    def share_pages(self, slot: Path, member: SlotRecord) -> None:
        """Share the policy page and the usage file of another slot with a slot directory that is being made.

        Raises OSError if that slot has none (any more), NotSupported as `create_usage`."""
        of = self.path(member.slot_id)
        os.link(of / POLICY_FILE, slot / POLICY_FILE)
        source, usage = of / USAGE_FILE, slot / USAGE_FILE
        if self._room is None or source.stat().st_dev == slot.stat().st_dev:
            os.link(source, usage)
        else:
            self._room.share(source, usage)

    @property
    def last_change(self) -> int:
        """A number that changes when a slot comes or goes."""
        return last_change(self._directory)

    def record(self, slot_id: str) -> SlotRecord | None:
        """Return the record of a complete slot. Raises CorruptData if the agent did not write it."""
        file = f"{self._directory}/{slot_id}/{OWNER_FILE}"
        try:
            found = os.stat(file)
            written = found.st_ino, found.st_ctime_ns
            # All records are read often: a file that was not replaced is not read again.
            if (known := self._known.get(slot_id)) is not None and known[0] == written:
                return known[1]
            record = msgspec.json.decode(Path(file).read_bytes(), type=SlotRecord)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except msgspec.MsgspecError as error:
            raise CorruptData(f"{file}: {error}") from error
        self._known[slot_id] = written, record
        return record

    def ids(self) -> tuple[str, ...]:
        """Return the ids of all slots that have a directory, whatever is inside."""
        return tuple(sorted(each for each in os.listdir(self._directory) if not each.startswith(_SCRATCH_PREFIX)))

    def records(self) -> Iterator[SlotRecord]:
        """Yield every readable record."""
        for slot_id in self.ids():
            try:
                record = self.record(slot_id)
            except CorruptData:
                continue
            if record is not None:
                yield record

    def slices(self) -> list[tuple[SlotRecord, ...]]:
        """Return the records of each slice: one, or those that share it."""
        return list(self.by_slice().values())

    def by_slice(self) -> dict[Hashable, tuple[SlotRecord, ...]]:
        """Return the same by `SlotRecord.slice`."""
        found: dict[Hashable, list[SlotRecord]] = {}
        for record in self.records():
            found.setdefault(record.slice, []).append(record)
        return {key: tuple(records) for key, records in found.items()}

    def others(self, record: SlotRecord) -> list[SlotRecord]:
        """Return the other slots that share its slice."""
        if not record.allocation.shared_claim:
            return []
        return [one for one in self.records() if one.slice == record.slice and one.slot_id != record.slot_id]

    def revision(self, record: SlotRecord) -> int:
        """Return the revision of the allocation in the pages of its slice, whichever slot they were last written
        for."""
        return max(one.allocation.revision for one in (record, *self.others(record)))

    def next_generation(self) -> int:
        """Return a number above that of every slot since the agent started."""
        self._generation += 1
        return self._generation

    def newest_owners(self) -> list[tuple[str, str]]:
        """Return (pod UID, container) of every slot, the last prepared one first."""
        records = sorted(self.records(), key=lambda record: record.generation, reverse=True)
        return [record.owner for record in records]

    def held(self) -> dict[tuple[str, str], set[str]]:
        """Return the ids of the slots that kubelet gave to each (pod UID, container)."""
        found: dict[tuple[str, str], set[str]] = {}
        for record in (one for one in self.records() if one.resource_claim is None):
            found.setdefault(record.owner, set()).add(record.slot_id)
        return found

    def replace(self, record: SlotRecord, fill: Callable[[Path], None]) -> Path:
        """Let `fill` write a fresh directory, then put it in place of the slot's old one."""
        fresh = self._scratch(record.slot_id, "new")
        try:
            fresh.mkdir(mode=0o755)
        except FileExistsError:
            _discard(fresh)
            fresh.mkdir(mode=0o755)
        try:
            fill(fresh)
            write_new(f"{fresh}/{OWNER_FILE}", msgspec.json.encode(record))
            selinux.label(fresh)
            self.remove(record.slot_id)
            fresh.rename(self.path(record.slot_id))
        except BaseException:
            _discard(fresh)
            raise
        return self.path(record.slot_id)

    def amend(self, record: SlotRecord) -> None:
        """Put another record of the same owner into a complete slot."""
        write_atomically(self.path(record.slot_id) / OWNER_FILE, msgspec.json.encode(record), mode=0o644)

    def remove(self, slot_id: str) -> None:
        """Remove the slot; do nothing if it does not exist."""
        old = self._scratch(slot_id, "old")
        try:
            os.rename(self.path(slot_id), old)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            _discard(old)
            os.rename(self.path(slot_id), old)
        finally:
            self._known.pop(slot_id, None)
        _discard(old)

    def _scratch(self, slot_id: str, purpose: str) -> Path:
        return self._directory / f"{_SCRATCH_PREFIX}{slot_id}.{purpose}.{os.getpid()}"

    def _discard_scratch(self) -> None:
        for each in self._directory.iterdir():
            if each.name.startswith(_SCRATCH_PREFIX):
                _discard(each)


def _discard(slot: Path) -> None:
    unmount_bounded(slot / USAGE_FILE)
    shutil.rmtree(slot, ignore_errors=True)
