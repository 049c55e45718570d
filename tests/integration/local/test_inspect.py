"""`egpu inspect` on directories that were really made: what it shows is what is in the files, and nothing changes."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from egpu.adapters.executors import process
from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.executors.record import ExecutorRecord
from egpu.adapters.slices.pages import DevicePolicy, Mode, Window, create_usage, write_policy
from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.apps.agent.serving.slot_executors import link_into
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.apps.serve.owners import LeaseExecutor, LeaseOwner
from egpu.cli.app import app
from egpu.core.leasing.records import LeaseRecord
from support.slices import MIB, Slice, uuid
from support.waiting import wait_until

CARD = CardShare(uuid=uuid("1"), index=0, minor=0, core=30, memory_mib=1024)


@pytest.fixture
def box(driver: Path, state_dir: Path) -> Iterator[Slice]:
    """A slice as `egpu run` makes them, below `state_dir`."""
    directory = state_dir / "A100-80G" / "7-abc.slice"
    directory.mkdir(parents=True)
    directory.with_suffix(".holder").write_text(json.dumps({"name": "7-abc", "command": "probe hold", "processes": []}))
    box = Slice(driver, directory)
    yield box
    box.close()


@pytest.fixture
def executor(state_dir: Path, executor_that_runs_nothing: None) -> Iterator[LeaseExecutor]:
    """One of a lease, ready; a stand-in that says what a real one says."""
    record = LeaseRecord(lease="lease-1", holder="ann", peer="p", request="1", key="k", part=0, parts=1, cards=(CARD,))
    kept = ExecutorRecord(name=record.lease, owner=LeaseOwner.of(record), cards=record.cards, minors={CARD.uuid: 0})
    (state_dir / "executors").mkdir()
    started = process.start(state_dir / "executors", kept, None, Confinement())
    wait_until(lambda: started.follow() or started.ready)
    yield started
    started.end()


def slot_record(slots: Slots, slot_id: str) -> SlotRecord:
    return SlotRecord(
        slot_id=slot_id,
        namespace="team",
        pod="train",
        pod_uid="u1",
        container="main",
        generation=slots.next_generation(),
        boot_id="b",
        allocation=ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=(CARD,)),
        minors={CARD.uuid: 0},
    )


def inspect(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def inspected(*arguments: object) -> Any:
    result = inspect(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_local_slice_with_its_limits_its_use_and_its_processes(box: Slice) -> None:
    box.limit(
        512 * MIB,
        core=25,
        grant_ppm=400_000,
        window=Window(epoch_ns=0, period_us=20_000, start_us=5_000, length_us=10_000),
    )
    holder = box.start("hold", 200 * MIB)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "hold 0\n"
    found = inspected("7-abc", "--state-dir", box.directory.parents[1])
    assert (found["kind"], found["owner"], found["problems"]) == ("local slice", "probe hold", {})
    assert found["policy"]["generation"] == 2
    (line,) = found["policy"]["devices"]
    assert (line["uuid"], line["mode"], line["corePpm"], line["grantPpm"]) == (uuid("1"), "cap", 250_000, 400_000)
    assert line["memoryLimitBytes"] == 512 * MIB
    assert line["window"] == {"epochNs": 0, "periodUs": 20_000, "startUs": 5_000, "lengthUs": 10_000}
    (used,) = found["usage"]["devices"]
    assert (used["memoryBytes"], used["peakBytes"], used["refusals"]) == (200 * MIB, 200 * MIB, 0)
    (process,) = found["processes"]
    assert (process["pid"], process["pidHere"]) == (holder.pid, holder.pid)
    assert process["program"] == f"probe hold {200 * MIB}"
    assert process["memoryBytesByClass"]["device"] == 200 * MIB

    shown = inspect(box.directory).stdout
    assert "cap    25 %   40 %    512 MiB" in shown
    assert "10 ms from 5 of every 20 ms" in shown
    assert "device 200 MiB" in shown


def test_a_process_that_died_and_left_its_place_is_gone(box: Slice) -> None:
    holder = box.start("hold", MIB)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "hold 0\n"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    (process,) = inspected(box.directory)["processes"]
    assert (process["pid"], process["pidHere"], process["memoryBytes"]) == (holder.pid, None, MIB)


def test_looking_changes_nothing(box: Slice, executor: LeaseExecutor) -> None:
    root = box.directory.parents[1]

    def seen() -> dict[Path, tuple[int, int]]:
        return {path: (path.lstat().st_mtime_ns, path.lstat().st_mode) for path in root.rglob("*")}

    before = seen()
    inspected("--state-dir", root)
    inspected(box.directory)
    inspected(executor.directory)
    assert seen() == before


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("policy", b"EGPUPOL1" + bytes(100), "a policy page has 8192"),
        ("policy", b"nonsense".ljust(8192, b"\0"), "is not a policy page of ABI"),
        ("usage", b"short", "5 bytes"),
        ("usage", None, "cannot read: No such file"),
        ("../7-abc.holder", b"{half", "cannot be read"),
    ],
)
def test_a_damaged_file_is_shown_as_such(box: Slice, file: str, content: bytes | None, reason: str) -> None:
    damaged = box.directory / file
    damaged.unlink()
    if content is not None:
        damaged.write_bytes(content)
    assert reason in inspected(box.directory)["problems"][damaged.name]
    result = inspect(box.directory)
    assert f"damaged: {damaged.name}: " in result.stderr
    (row,) = inspect("--state-dir", box.directory.parents[1]).stdout.splitlines()[1:]
    assert row.endswith(f"damaged: {damaged.name}")


def test_a_policy_page_with_a_wrong_checksum_says_so(box: Slice) -> None:
    page = bytearray((box.directory / "policy").read_bytes())
    page[64 + 2112 + 64] ^= 1  # in the active bank, its first device's uuid
    (box.directory / "policy").write_bytes(page)
    assert "wrong checksum" in inspected(box.directory)["problems"]["policy"]


def test_an_executor_that_runs_and_one_that_is_gone(executor: LeaseExecutor) -> None:
    found = inspected(executor.directory)
    assert (found["kind"], found["owner"], found["problems"]) == ("executor", "ann", {})
    state = found["executor"]
    assert (state["pid"], state["running"], state["ready"], state["sessions"]) == (executor.process.pid, True, True, 0)
    (executor.directory / "log").write_text("egpu-executor: no such driver\n")
    os.kill(executor.process.pid, signal.SIGKILL)
    wait_until(lambda: not executor.is_alive())
    state = inspected(executor.directory)["executor"]
    assert (state["running"], state["lastWords"]) == (False, "egpu-executor: no such driver")
    assert "executor gone" in inspect("--state-dir", executor.directory.parents[1]).stdout


def test_a_slot_shows_what_limits_it_and_its_executor(state_dir: Path, executor: LeaseExecutor) -> None:
    slots = Slots(state_dir / "slots")

    def fill(slot: Path) -> None:
        link_into(slot, executor)
        (slot / "dev").mkdir()
        (slot / "dev" / "nvidia0").symlink_to("/nonexistent/nvidia0")

    slots.replace(slot_record(slots, "3"), fill)
    found = inspected("3", "--state-dir", state_dir)
    assert (found["kind"], found["owner"]) == ("slot", "pod team/train, container main")
    assert found["policy"]["file"] == "executor-policy"
    assert found["policy"]["devices"][0]["memoryLimitBytes"] == 1024 * MIB
    assert found["executor"]["pid"] == executor.process.pid
    assert found["executor"]["directory"] == str(executor.directory)
    assert found["files"]["dev/nvidia0"] == "→ /nonexistent/nvidia0 (target is missing)"
    assert found["files"]["executor-policy"] == "8192 bytes, 2 names"


def test_a_slot_of_a_technology_that_limits_nothing_is_sound(state_dir: Path) -> None:
    slots = Slots(state_dir / "slots")
    slots.replace(slot_record(slots, "4"), lambda slot: None)
    found = inspected("4", "--state-dir", state_dir)
    assert (found["problems"], found["policy"]["devices"], found["executor"]) == ({}, [], None)


def test_all_slices_at_a_glance(box: Slice, state_dir: Path, executor: LeaseExecutor) -> None:
    slots = Slots(state_dir / "slots")

    def fill(slot: Path) -> None:
        write_policy(
            slot / "policy", [DevicePolicy(uuid=uuid("1"), minor=0, mode=Mode.CAP, core_ppm=1, memory_limit_bytes=1)]
        )
        create_usage(slot / "usage")

    slots.replace(slot_record(slots, "3"), fill)
    rows = inspected("--state-dir", state_dir)
    assert [(row["kind"], row["gpus"], row["problems"]) for row in rows] == [
        ("local slice", 1, {}),
        ("executor", 1, {}),
        ("slot", 1, {}),
    ]


def test_what_is_not_there_is_said_with_its_exit_code(box: Slice, tmp_path: Path) -> None:
    root = box.directory.parents[1]
    absent = inspect("nobody", "--state-dir", root)
    assert (absent.exit_code, absent.stdout) == (1, "")
    assert f"no slice is called 'nobody' below {root}" in absent.stderr
    other = inspect(tmp_path)
    assert other.exit_code == 1
    assert "is not the directory of a slice" in other.stderr
    gone = inspect(tmp_path / "nowhere")
    assert gone.exit_code == 1
    assert f"there is no directory {tmp_path / 'nowhere'}" in gone.stderr
    nowhere = inspect("--state-dir", tmp_path / "nowhere")
    assert nowhere.exit_code == 2
    assert "there is no directory" in nowhere.stderr
    empty = inspect("--state-dir", tmp_path)
    assert (empty.exit_code, empty.stdout) == (0, "")


def test_a_name_of_several_is_refused(box: Slice, state_dir: Path) -> None:
    slots = Slots(state_dir / "slots")
    slots.replace(slot_record(slots, "7-abc"), lambda slot: None)
    result = inspect("7-abc", "--state-dir", state_dir)
    assert result.exit_code == 1
    assert "is the name of several" in result.stderr
