"""Policy pages and usage files: one layout in C and Python, safe against torn writes and hostile bytes."""

import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpu.adapters.slices import pages
from egpu.adapters.slices.asking import ask_to_park, set_room
from egpu.adapters.slices.pages import (
    USAGE_ROW,
    USAGE_ROWS_OFFSET,
    USAGE_SIZE,
    DevicePolicy,
    Mode,
    UsageReader,
    decode_usage,
    read_policy,
    write_policy,
)
from egpu.adapters.slices.parked import parked_bytes
from egpu.adapters.slices.rows import memory_of, rows_of
from egpu.adapters.slices.usage import ParkAnswer, ProcessParking
from egpu_base.errors import CorruptData, InvalidInput

INCLUDE = Path(__file__).parents[2] / "native" / "include"

PRINT_LAYOUT = r"""
#include "egpu_abi.h"
#include <stdio.h>
#include <string.h>
#define O(type, field) printf(#type "." #field " %zu\n", offsetof(struct type, field))
int main(int argc, char **argv) {
    O(egpu_policy, generation); O(egpu_policy, banks);
    O(egpu_policy_bank, checksum); O(egpu_policy_bank, device_count); O(egpu_policy_bank, devices);
    O(egpu_policy_device, minor); O(egpu_policy_device, mode); O(egpu_policy_device, core_ppm);
    O(egpu_policy_device, weight); O(egpu_policy_device, contention_ppm); O(egpu_policy_device, memory_limit_bytes);
    O(egpu_policy_device, grant_ppm); O(egpu_policy_device, spill_limit_bytes); O(egpu_policy_device, overhead_bytes);
    O(egpu_policy_device, window_epoch_ns); O(egpu_policy_device, window_period_us);
    O(egpu_policy_device, window_start_us);
    O(egpu_policy_device, window_length_us); O(egpu_policy_device, work); O(egpu_policy_device, kind);
    O(egpu_usage, coverage); O(egpu_usage, slots);
    static struct egpu_usage u;
    u = (struct egpu_usage){.magic = EGPU_USAGE_MAGIC, .abi_version = EGPU_ABI_VERSION, .size = EGPU_USAGE_SIZE,
        .slot_count = EGPU_USAGE_SLOTS, .device_capacity = EGPU_MAX_DEVICES};
    u.devices[1] = (struct egpu_usage_device){.memory_bytes = 1, .peak_bytes = 2, .refusals = 3, .reaped_bytes = 4,
        .spill_bytes = 44, .room_asked_ns = 45,
        .bucket_ns = -5, .bucket_time_ns = 6, .gpu_ns = 7, .throttled_ns = 8, .launches = 9};
    u.slots[1023] = (struct egpu_usage_slot){.state = EGPU_SLOT_LIVE, .device = 1, .pid = 10, .start_time = 11,
        .pid_namespace = 12, .heartbeat_ns = 13, .sequence = 99,
        .park_answer = EGPU_PARK_PINNED, .parked_bytes = 21, .parks = 22, .wakes = 23,
        .wake_wait_ns = 24, .park_answered = 25, .gpu_ns = 14, .throttled_ns = 15,
        .launches = 16, .reserved_bytes = {100, 200, 300, 400, 500, 600, 700, 800},
        .released_bytes = {1, 2, 3, 4, 5, 6, 7, 8}};
    FILE *f = fopen(argv[1], "wb"); fwrite(&u, sizeof u, 1, f); fclose(f);
    static struct egpu_policy p;
    f = fopen(argv[2], "rb"); if (fread(&p, sizeof p, 1, f) != 1) return 1;
    struct egpu_policy_bank *b = &p.banks[p.generation & 1];
    printf("checksum_ok %d\n", b->checksum == egpu_policy_checksum(b) && b->generation == p.generation);
    printf("parkable %d\n", b->flags == EGPU_POLICY_PARKABLE);
    printf("request %lu\n", (unsigned long)b->park_request);
    printf("room %lu\n", (unsigned long)b->room_bytes);
    printf("until %lu\n", (unsigned long)b->room_until_ns);
    printf("hold %lu\n", (unsigned long)b->park_hold_ns);
    printf("last_answer %d\n", EGPU_PARK_NO_ROOM);
    printf("limit %lu\n", (unsigned long)b->devices[1].memory_limit_bytes);
    printf("uuid_ok %d\n", strcmp(b->devices[1].uuid, "GPU-two") == 0 && b->device_count == 2);
    return 0;
}
"""


def device(
    uuid: str = "GPU-one", memory: int = 2 << 30, core_ppm: int = 300_000, mode: Mode = Mode.CAP
) -> DevicePolicy:
    return DevicePolicy(uuid=uuid, minor=3, mode=mode, core_ppm=core_ppm, memory_limit_bytes=memory)


def test_c_and_python_agree_on_every_offset(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "a C compiler is part of the build"
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text(PRINT_LAYOUT)
    subprocess.run([compiler, "-std=c11", f"-I{INCLUDE}", "-o", program, source], check=True)
    lines = [device(), device("GPU-two", memory=77 << 20)]
    write_policy(tmp_path / "policy", lines, parking=pages.Parking())
    assert ask_to_park(tmp_path / "policy", park=True) == 1
    assert set_room(tmp_path / "policy", room_bytes=5, until_ns=6, park_hold_ns=7) == 3
    write_policy(tmp_path / "policy", lines)  # keeps all of it

    output = subprocess.run(
        [program, tmp_path / "usage", tmp_path / "policy"], check=True, capture_output=True, text=True
    ).stdout
    found = {name: int(value) for name, value in (line.split() for line in output.splitlines())}
    assert found == {
        "egpu_policy.generation": 16,
        "egpu_policy.banks": 64,
        "egpu_policy_bank.checksum": 8,
        "egpu_policy_bank.device_count": 16,
        "egpu_policy_bank.devices": 64,
        "egpu_policy_device.minor": 48,
        "egpu_policy_device.mode": 52,
        "egpu_policy_device.core_ppm": 56,
        "egpu_policy_device.weight": 60,
        "egpu_policy_device.contention_ppm": 64,
        "egpu_policy_device.memory_limit_bytes": 72,
        "egpu_policy_device.grant_ppm": 68,
        "egpu_policy_device.spill_limit_bytes": 80,
        "egpu_policy_device.overhead_bytes": 88,
        "egpu_policy_device.window_epoch_ns": 96,
        "egpu_policy_device.window_period_us": 104,
        "egpu_policy_device.window_start_us": 108,
        "egpu_policy_device.window_length_us": 112,
        "egpu_policy_device.work": 116,
        "egpu_policy_device.kind": 120,
        "egpu_usage.coverage": 4096,
        "egpu_usage.slots": 4096 + 16 * 1024,
        "checksum_ok": 1,
        "parkable": 1,
        "request": 3,
        "room": 5,
        "until": 6,
        "hold": 7,
        "last_answer": max(ParkAnswer),
        "limit": 77 << 20,
        "uuid_ok": 1,
    }
    usage = UsageReader(tmp_path / "usage").read()
    assert usage.problem == ""
    assert usage.devices[1] == pages.DeviceUsage(
        memory_bytes=1,
        peak_bytes=2,
        refusals=3,
        reaped_bytes=4,
        spill_bytes=44,
        room_asked_ns=45,
        bucket_ns=-5,
        refilled_ns=6,
        gpu_ns=7,
        throttled_ns=8,
        launches=9,
    )
    assert UsageReader(tmp_path / "usage", devices=2).read_totals() == pages.Usage(usage.devices[:2])
    assert parked_bytes(UsageReader(tmp_path / "usage").content(USAGE_SIZE)) == {1: 21}
    (process,) = usage.processes
    assert process == pages.ProcessUsage(
        device=1,
        pid=10,
        start_time=11,
        pid_namespace=12,
        heartbeat_ns=13,
        device_bytes=99,
        managed_bytes=198,
        pool_bytes=297,
        physical_bytes=396,
        array_bytes=495,
        graph_bytes=594,
        spill_bytes=693,
        module_bytes=792,
        gpu_ns=14,
        throttled_ns=15,
        launches=16,
        parking=ProcessParking(parked_bytes=21, parks=22, wakes=23, wait_ns=24, answer=ParkAnswer.PINNED, answered=25),
    )
    assert process.memory_bytes == 99 + 198 + 297 + 396 + 495 + 594 + 792


def test_requests_to_park_are_numbered_and_survive_new_limits(tmp_path: Path) -> None:
    path = tmp_path / "policy"
    write_policy(path, [device()], parking=pages.Parking())
    numbers = [ask_to_park(path, park=park) for park in (True, True, False, False, True)]
    assert numbers == [1, 3, 4, 6, 7]
    write_policy(path, [device(memory=5 << 20)])
    pages.amend_policy(path, "GPU-one", grant_ppm=1)
    assert read_policy(path).parking == pages.Parking(7)
    assert read_policy(path).devices == (replace(device(memory=5 << 20), grant_ppm=1),)


def test_a_slice_that_is_not_parkable_is_not_asked(tmp_path: Path) -> None:
    write_policy(tmp_path / "policy", [device()])
    with pytest.raises(InvalidInput, match="parking"):
        ask_to_park(tmp_path / "policy", park=True)


def test_a_policy_reads_back_and_changes_in_place(tmp_path: Path) -> None:
    path = tmp_path / "policy"
    assert write_policy(path, [device()]) == 1
    inode = path.stat().st_ino
    assert read_policy(path).devices == (device(),)
    for generation in range(2, 6):
        changed = device(memory=generation << 20, mode=Mode.SHARE)
        assert write_policy(path, [changed]) == generation
        assert read_policy(path) == pages.Policy(generation, (changed,))
    assert path.stat().st_ino == inode, "live readers have the old file mapped"


def test_a_writer_killed_before_the_generation_leaves_the_old_limits(tmp_path: Path) -> None:
    path = tmp_path / "policy"
    write_policy(path, [device()])
    content = bytearray(path.read_bytes())
    inactive = 64  # bank 0, while generation 1 is active
    content[inactive : inactive + 1000] = bytes([0xAA]) * 1000
    path.write_bytes(content)
    assert read_policy(path).devices == (device(),)


@pytest.mark.parametrize(
    "damage",
    [b"", b"short", bytes(8192), b"EGPUPOL1" + bytes(8184)],
    ids=["empty", "short", "zeros", "magic only"],
)
def test_a_damaged_policy_is_refused(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "policy"
    path.write_bytes(damage)
    with pytest.raises(CorruptData):
        read_policy(path)


@given(position=st.integers(64, 64 + 2 * 2112 - 1), flip=st.integers(1, 255))
def test_no_flipped_bit_of_the_active_bank_goes_unnoticed(
    tmp_path_factory: pytest.TempPathFactory, position: int, flip: int
) -> None:
    path = tmp_path_factory.mktemp("flip") / "policy"
    write_policy(path, [device()])
    content = bytearray(path.read_bytes())
    content[position] ^= flip
    path.write_bytes(content)
    active = position >= 64 + 2112
    if active:
        with pytest.raises(CorruptData):
            read_policy(path)
    else:
        assert read_policy(path).devices == (device(),)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("uuid", ""),
        ("uuid", "x" * 48),
        ("core_ppm", 0),
        ("core_ppm", 1_000_001),
        ("memory_limit_bytes", -1),
        ("memory_limit_bytes", 2**64),
        ("weight", 0),
        ("contention_ppm", 0),
    ],
)
def test_a_policy_that_means_nothing_cannot_be_made(field: str, value: object) -> None:
    values = {"uuid": "GPU-one", "minor": 0, "mode": Mode.CAP, "core_ppm": 1, "memory_limit_bytes": 1, field: value}
    with pytest.raises(InvalidInput, match=field):
        DevicePolicy(**values)  # type: ignore[arg-type]


def test_the_same_device_twice_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        write_policy(tmp_path / "policy", [device(), device()])
    assert list(tmp_path.iterdir()) == []


def test_a_new_usage_file_is_empty_and_ours_alone_unless_it_is_a_container_s(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    pages.create_usage(path, mode=0o666)
    assert path.stat().st_mode & 0o777 == 0o666
    pages.create_usage(path)
    assert path.stat().st_mode & 0o777 == 0o600
    usage = UsageReader(path).read()
    assert usage.processes == ()
    assert all(totals.memory_bytes == 0 for totals in usage.devices)


def test_a_usage_file_that_is_gone_or_no_file_says_so(tmp_path: Path) -> None:
    assert UsageReader(tmp_path / "usage").read().problem
    (tmp_path / "usage").symlink_to("/etc/passwd")
    assert UsageReader(tmp_path / "usage").read().problem
    assert UsageReader(tmp_path).read().problem


@given(st.binary(max_size=400))
def test_any_bytes_decode_to_a_problem(content: bytes) -> None:
    assert decode_usage(content).problem


@given(st.lists(st.tuples(st.integers(64, 282_623), st.binary(min_size=1, max_size=64)), max_size=20))
def test_any_body_behind_a_right_header_decodes_within_its_bounds(patches: list[tuple[int, bytes]]) -> None:
    content = bytearray(struct.pack("<8sIIII40x", b"EGPUUSG1", 2, 282_624, 1024, 16).ljust(282_624, b"\0"))
    for offset, patch in patches:
        content[offset : offset + len(patch)] = patch
    usage = decode_usage(bytes(content[:282_624]))
    assert usage.problem == ""
    assert all(process.device < 16 and process.memory_bytes >= 0 for process in usage.processes)


def test_parked_bytes_of_full_rows_are_read_at_once() -> None:
    """At every look of the agent, for every parkable slice. A container writes the file."""
    content = bytearray(struct.pack("<8sIIII40x", b"EGPUUSG1", 2, 282_624, 1024, 16).ljust(USAGE_SIZE, b"\0"))
    rows = (USAGE_SIZE - USAGE_ROWS_OFFSET) // USAGE_ROW.size
    for row in range(rows):
        start = USAGE_ROWS_OFFSET + row * USAGE_ROW.size
        # state, device, pid, answer, start time, namespace, heartbeat, parked
        struct.pack_into("<IIIIQQQQ", content, start, 1 if row else 2, row % 3 if row != 5 else 99, 1, 0, 0, 0, 0, row)
    assert parked_bytes(bytes(content)) == {
        device: sum(row for row in range(1, rows) if row % 3 == device and row != 5) for device in range(3)
    }
    assert parked_bytes("cannot read") == parked_bytes(bytes(100)) == {}
    assert len(rows_of(bytes(content))) == len(decode_usage(bytes(content)).processes) == rows - 2

    def seconds(read: Callable[[bytes], object]) -> float:
        started = time.process_time()
        for _ in range(20):
            read(bytes(content))
        return time.process_time() - started

    assert seconds(parked_bytes) * 4 < seconds(decode_usage)
    assert seconds(memory_of) * 4 < seconds(decode_usage)
