"""The agent arbitrates between slices that share room, and keeps what it promised to the others."""

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Any, cast

import pytest

from egpu.adapters.slices import pages
from egpu.adapters.slices.host_memory import parking_memory_mib
from egpu.adapters.slices.overstays import AGAIN_SECONDS, Overstay
from egpu.adapters.slices.pages import (
    SLOT_LIVE,
    USAGE_DEVICE,
    USAGE_HEADER,
    USAGE_ROW,
    USAGE_ROWS_OFFSET,
    DevicePolicy,
    Mode,
    create_usage,
    read_policy,
    write_policy,
)
from egpu.adapters.slices.rooms import TERM_SECONDS, Rooms, first_room
from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.apps.agent.limits.overstays import ENDED, KEPT, OverstayEvents
from egpu.apps.agent.limits.rooms import CardRooms
from egpu.apps.agent.slots.directories import POLICY_FILE, USAGE_FILE, SlotRecord, Slots
from egpu_base.api.kubernetes import Pod, PodSpec
from egpu_base.api.objects import ObjectMeta
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.system import proc
from egpu_base.system.processes import Process, start_time
from support.fake_api import FakeAPI

MIB = 1 << 20


class Pods:
    """The pods of the node, by UID."""

    def __init__(self, **pods: Pod) -> None:
        self.pods = pods

    def by_uid(self, uid: str) -> Pod | None:
        return self.pods.get(uid)


def pod(name: str, *, priority: int = 0, annotations: dict[str, str] | None = None) -> Pod:
    metadata = ObjectMeta(name=name, namespace="n", uid=name, annotations=annotations or {})
    return Pod(metadata=metadata, spec=PodSpec(priority=priority))


class Driver:
    """The driver's figures, by slot."""

    def __init__(self, **held: int) -> None:
        self.held: dict[str, int] = held
        self.processes: dict[str, tuple[Process, ...]] = {}

    def driver_bytes(self, key: Hashable, _uuid: str) -> int | None:
        return self.held.get(cast(tuple[str, int], key)[0])

    def holders(self, key: Hashable, _uuid: str) -> tuple[Process, ...]:
        return self.processes.get(cast(tuple[str, int], key)[0], ())


def slot(
    slots: Slots, name: str, memory_mib: int, resident_mib: int = 0, *, stays: bool = True, patience: float = 0.0
) -> None:
    share = CardShare(
        uuid="GPU-1", index=0, minor=0, core=10, memory_mib=memory_mib, card_memory_mib=1000, resident_mib=resident_mib
    )
    given = ContainerAllocation(
        provisioner=names.VCUDA, mode="shared", cards=(share,), parkable=resident_mib > 0, park_idle_seconds=30.0,
        park_stays=stays, park_patience_seconds=patience,
    )  # fmt: skip
    record = SlotRecord(
        slot_id=name, namespace="n", pod=name, pod_uid=name, container="app", generation=1,
        boot_id="", allocation=given, minors={},
    )  # fmt: skip

    def fill(directory: Path) -> None:
        line = DevicePolicy(uuid="GPU-1", minor=0, mode=Mode.CAP, core_ppm=1, memory_limit_bytes=memory_mib * MIB)
        parking = first_room(resident_mib * MIB) if resident_mib else None
        write_policy(directory / POLICY_FILE, [line], parking=parking)
        create_usage(directory / USAGE_FILE)

    slots.replace(record, fill)


def card_rooms(slots: Slots, pods: Pods) -> CardRooms:
    return CardRooms(slots, cast(Any, pods), EventRecorder(FakeAPI().client(), component="test"), Driver())


def test_the_cards_and_their_slices(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots")
    slot(slots, "plain", 300)
    slot(slots, "one", 600, 60)
    slot(slots, "two", 500, 50)
    pods = Pods(one=pod("one", priority=7), two=pod("two", annotations={names.STAY_RESIDENT: "true"}))
    (card,) = card_rooms(slots, pods).cards().values()
    assert card.budget_bytes == 700 * MIB, "what the plain slice was promised stays free for it"
    said = {one.policy.parent.name: one for one in card.slices}
    assert {name: (one.floor_bytes // MIB, one.priority, one.stays) for name, one in said.items()} == {
        "one": (60, 7, False),
        "two": (50, 0, True),
    }
    assert said["one"].limit_bytes == 600 * MIB
    assert said["one"].idle_seconds == 30


def test_a_pod_keeps_its_memory_on_the_card_only_if_its_class_allows_it(tmp_path: Path) -> None:
    """Quotas count what is always there, so this memory would be free of charge, and others would wait for it."""
    slots = Slots(tmp_path / "slots")
    slot(slots, "one", 600, 60, stays=False)
    pods = Pods(one=pod("one", annotations={names.STAY_RESIDENT: "true"}))
    (card,) = card_rooms(slots, pods).cards().values()
    assert [one.stays for one in card.slices] == [False]


def test_a_room_stays_in_force_while_the_arbiter_lives(tmp_path: Path) -> None:
    slots, now = Slots(tmp_path / "slots"), 1000.0
    slot(slots, "one", 600, 60)
    mine = card_rooms(slots, Pods())
    rooms = Rooms(mine.cards, clock=lambda: now)
    for now in (1000.0, 1004.0, 1008.0):
        rooms.step()
        parking = read_policy(slots.policy_file("one")).parking
        assert parking is not None
        assert parking.room_bytes == 60 * MIB
        assert parking.room_until_ns / 1e9 - now >= TERM_SECONDS / 2


def test_no_cards_are_no_work(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots")
    slot(slots, "plain", 300)
    assert card_rooms(slots, Pods()).cards() == {}
    assert parking_memory_mib(5) == 5
    assert parking_memory_mib(None) > 5


def test_slices_that_fill_their_usage_files_are_read_without_an_object_for_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read 1024 rows as processes took a quarter of a second for each slice, and for each look."""
    slots = Slots(tmp_path / "slots")
    for name in ("one", "two"):
        slot(slots, name, 600, 60)
        row = USAGE_ROW.pack(SLOT_LIVE, 0, 1, 0, 7, 8, time.monotonic_ns(), *[0] * 9, *[1 << 21] * 8, *[0] * 8)
        write(slots.usage_file(name), row * 1024, asks=True)
    monkeypatch.setattr(pages, "ProcessUsage", None)
    Rooms(card_rooms(slots, Pods()).cards).step()
    for name in ("one", "two"):
        parking = read_policy(slots.policy_file(name)).parking
        assert parking is not None
        assert parking.is_shared


def write(usage: Path, rows: bytes, *, asks: bool, now: float | None = None) -> None:
    """Write rows, and whether the slice waits for room."""
    asked_ns = (time.monotonic_ns() if now is None else int(now * 1e9)) * asks
    with usage.open("r+b") as file:
        file.seek(USAGE_HEADER.size)
        file.write(USAGE_DEVICE.pack(1 << 30, 0, 0, 0, 0, asked_ns, 0, 0, 0, 0, 0))
        file.seek(USAGE_ROWS_OFFSET)
        file.write(rows)


def test_memory_that_the_driver_never_sees_keeps_no_room_from_others(tmp_path: Path) -> None:
    """A container may say that it has memory which cannot leave the card, and have none."""
    slots, now, started = Slots(tmp_path / "slots"), 0.0, time.monotonic()
    slot(slots, "liar", 900, 60)
    slot(slots, "honest", 600, 60)
    us = (SLOT_LIVE, 0, os.getpid(), 0, start_time(os.getpid()), proc.pid_namespace(os.getpid()))
    said = USAGE_ROW.pack(*us, *[0] * 10, *[0] * 7, 900 * MIB, *[0] * 8)
    write(slots.usage_file("liar"), said, asks=False)
    rooms = Rooms(card_rooms(slots, Pods()).cards, driver_bytes=lambda key, uuid: 0, clock=lambda: now)
    for tenths in range(60):
        now = started + tenths / 10
        waits = USAGE_ROW.pack(*us, 0, 500 * MIB, *[0] * 8, 500 * MIB, *[0] * 15)
        write(slots.usage_file("honest"), waits, asks=True, now=now)
        rooms.step()
    parking = read_policy(slots.policy_file("honest")).parking
    assert parking is not None
    assert parking.room_bytes >= 500 * MIB


US = (SLOT_LIVE, 0, os.getpid(), 0, start_time(os.getpid()), proc.pid_namespace(os.getpid()))
WAITS = USAGE_ROW.pack(*US, 0, 500 * MIB, *[0] * 8, 500 * MIB, *[0] * 15)
"""A process with 500 MiB that are not on the card."""


def a_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "1000"])


class Keeper:
    """A slice of 600 MiB that holds 500 MiB and says nothing of it, beside an honest one that waits for 500 MiB.

    The card has 880 MiB for both: it is not enough."""

    def __init__(self, root: Path, *, patience: float = 0.0) -> None:
        self.slots, self.started = Slots(root / "slots"), time.monotonic()
        self.now = self.started
        slot(self.slots, "plain", 120)
        slot(self.slots, "keeper", 600, 60, patience=patience)
        slot(self.slots, "honest", 600, 60)
        self.api, self.driver = FakeAPI(), Driver(keeper=500 * MIB, honest=0)
        self.recorder = EventRecorder(self.api.client(), component="test")
        pods = Pods(keeper=pod("keeper"), honest=pod("honest"))
        self.overstays = OverstayEvents(
            self.slots, cast(Any, pods), self.recorder, self.driver.holders, clock=lambda: self.now
        )
        self.seen: list[Overstay] = []
        cards = CardRooms(self.slots, cast(Any, pods), self.recorder, self.driver).cards
        self.rooms = Rooms(
            cards, driver_bytes=self.driver.driver_bytes, clock=lambda: self.now, overstays=self._see
        )  # fmt: skip
        write(self.slots.usage_file("keeper"), b"", asks=False)

    def _see(self, one: Overstay) -> None:
        self.seen.append(one)
        self.overstays.see(one)

    def step(self, seconds: float, *, waits: bool = True) -> None:
        self.now = self.started + seconds
        if waits:
            write(self.slots.usage_file("honest"), WAITS, asks=True, now=self.now)
        self.rooms.step()

    def room(self, name: str) -> int:
        parking = read_policy(self.slots.policy_file(name)).parking
        assert parking is not None
        return parking.room_bytes


def test_memory_that_only_the_driver_tells_of_is_on_the_card(tmp_path: Path) -> None:
    """A false total in a usage file hides the overhead, and rows that say nothing hide the rest."""
    keeper = Keeper(tmp_path)
    for tenths in range(60):
        keeper.step(tenths / 10, waits=tenths > 30)
    assert keeper.room("honest") + 500 * MIB <= 880 * MIB, "nobody is promised what the liar has"
    keeper.driver.held["keeper"] = 0
    for tenths in range(60, 70):
        keeper.step(tenths / 10)
    assert keeper.room("honest") >= 500 * MIB, "it is free"


async def test_a_pod_that_keeps_its_memory_from_others_is_told_and_counted(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path)
    for second in range(200):
        keeper.step(second, waits=second > 3)
        await keeper.overstays.step()
    events = [one for one in keeper.api.all("events") if one["reason"] == KEPT]
    assert {one["involvedObject"]["name"] for one in events} == {"keeper"}
    assert 2 <= len(events) <= 3, "one a minute"
    assert "while pod honest waits" in events[0]["message"]
    assert "the class sets no parkingPatience" in events[0]["message"]
    assert 150 <= keeper.rooms.totals.overstayed_seconds["keeper", 1] <= 200
    assert not any(one.is_over for one in keeper.seen), "its class has no patience that could end"


async def test_a_program_that_keeps_its_memory_for_longer_than_its_class_allows_is_ended(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, patience=90.0)
    with a_process() as child:
        keeper.driver.processes["keeper"] = (Process.of(child.pid),)
        for second in range(80):
            keeper.step(second, waits=second > 3)
            await keeper.overstays.step()
        assert child.poll() is None
        assert "they are ended after 90 s" in keeper.api.all("events")[0]["message"]
        for second in range(80, 105):
            keeper.step(second, waits=second > 3)
            await keeper.overstays.step()
        assert child.wait(timeout=30) == -signal.SIGKILL
    ended = [one for one in keeper.api.all("events") if one["reason"] == ENDED]
    assert [one["involvedObject"]["name"] for one in ended] == ["keeper"]
    over = [one.seconds for one in keeper.seen if one.is_over]
    assert all(later - earlier >= AGAIN_SECONDS for earlier, later in itertools.pairwise(over))
    keeper.driver.held["keeper"] = 0
    for second in range(105, 115):
        keeper.step(second, waits=second > 3)
    assert keeper.room("honest") >= 500 * MIB
    assert keeper.rooms.totals.overstayed_seconds["keeper", 1] < 80
