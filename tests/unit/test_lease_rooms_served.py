"""`egpu serve` arbitrates between leases that share room, and keeps what it promised to the others."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from egpu.adapters.executors.process import Executor
from egpu.adapters.executors.record import MIB, ExecutorRecord
from egpu.adapters.slices.overruns import MemoryWatch
from egpu.adapters.slices.pages import USAGE_ROW, USAGE_ROWS_OFFSET, Parking, create_usage
from egpu.api.allocation import CardShare
from egpu.apps.serve.owners import LeaseExecutor, LeaseOwner, running_lease
from egpu.apps.serve.rooms import LeaseRooms
from egpu.apps.serve.supervisor import LeaseSupervisor
from egpu.core.leasing.records import LeaseIdentity

UUID = "GPU-1"


def executor(directory: Path, memory_mib: int, resident_mib: int = 0) -> LeaseExecutor:
    share = CardShare(
        uuid=UUID, index=0, minor=0, core=10, memory_mib=memory_mib, card_memory_mib=1000, resident_mib=resident_mib
    )
    lease = LeaseIdentity(
        lease=directory.name, holder="h", peer="p", request="1", key="k", part=0, parts=1, park_idle_seconds=30.0
    )
    record = ExecutorRecord(
        name=directory.name,
        owner=LeaseOwner(lease=lease),
        cards=(share,),
        minors={UUID: 0},
        parkable=resident_mib > 0,
    )
    directory.mkdir()
    create_usage(directory / "usage")
    return Executor(directory, record, None)


def rooms(*executors: LeaseExecutor) -> LeaseRooms:
    leases = cast(LeaseSupervisor, SimpleNamespace(running={one.name: one for one in executors}))
    return LeaseRooms(leases, cast(MemoryWatch, SimpleNamespace(findings={})))


def test_leases_share_what_the_others_leave(tmp_path: Path) -> None:
    made = [executor(tmp_path / name, 600, 20) for name in "ab"]
    (card,) = rooms(*made, executor(tmp_path / "c", 300)).cards().values()
    assert card.budget_bytes == 700 * MIB
    assert [one.key for one in card.slices] == ["a", "b"]
    first = card.slices[0]
    assert (first.limit_bytes, first.floor_bytes, first.idle_seconds) == (600 * MIB, 20 * MIB, 30.0)
    assert first.policy == tmp_path / "a" / "policy"


def test_a_lease_that_has_moved_away_has_no_room(tmp_path: Path) -> None:
    gone = executor(tmp_path / "a", 300)
    gone.moved = True
    (card,) = rooms(gone, executor(tmp_path / "b", 600, 20)).cards().values()
    assert card.budget_bytes == 1000 * MIB


def test_no_lease_shares_room(tmp_path: Path) -> None:
    assert rooms(executor(tmp_path / "a", 300)).cards() == {}


def test_what_the_page_says_at_first(tmp_path: Path) -> None:
    assert executor(tmp_path / "a", 300).record.parking() is None
    shared = executor(tmp_path / "b", 300, 30).record
    parking = shared.parking()
    assert parking is not None
    assert (parking.is_shared, parking.room_bytes) == (True, 30 * MIB)
    own = ExecutorRecord(name="c", owner=None, cards=(), minors={}, parkable=True)
    assert own.parking() == Parking()


def test_a_report_says_what_is_parked(tmp_path: Path) -> None:
    made = executor(tmp_path / "a", 300, 30)
    content = bytearray((tmp_path / "a" / "usage").read_bytes())
    row: list[Any] = list(USAGE_ROW.unpack_from(content, USAGE_ROWS_OFFSET))
    row[0], row[7] = 1, 70 * MIB  # a living process, and its parked bytes
    USAGE_ROW.pack_into(content, USAGE_ROWS_OFFSET, *row)
    (tmp_path / "a" / "usage").write_bytes(content)
    assert running_lease(made).parked_mib == 70
