"""The interposer on a driver made for it: limits that hold, information that agrees, processes that share and die."""

import re
import signal
import subprocess
import time

import pytest

from egpu.adapters import native
from support.slices import (
    LIBRARY,
    LIMIT,
    MIB,
    NOT_PERMITTED,
    OUT_OF_MEMORY,
    SOURCES,
    Slice,
)
from support.waiting import DEADLINE_SECONDS, wait_until


def test_memory_information_is_the_slice(box: Slice) -> None:
    assert box.run("info") == [["info", str(LIMIT), str(LIMIT), str(LIMIT)]]
    assert box.run("halves") == [["halves", str(LIMIT), str(LIMIT), "0"]], "with one output left out, too"


@pytest.mark.parametrize("step", [MIB, 512, 3 * MIB + 512, LIMIT])
def test_an_allocation_over_the_limit_is_refused_exactly_there(box: Slice, step: int) -> None:
    limit = min(LIMIT, step * 5000)
    box.limit(limit)
    held = limit // step * step
    assert box.run("fill", step) == [["fill", str(held), str(OUT_OF_MEMORY)]]
    totals = box.usage().devices[0]
    assert (totals.memory_bytes, totals.peak_bytes, totals.refusals) == (held, held, 1)


def test_every_family_is_charged_and_given_back(box: Slice) -> None:
    assert box.run("paths") == [
        ["alloc", "512", "512"],
        ["managed", "1024", "1024"],
        ["async", str(2 * MIB), str(2 * MIB)],  # what the pool reserves, until a synchronisation
        ["kept", str(4 * MIB), "0"],
        ["trimmed", "0", str(4 * MIB)],
        ["array", "65536", "65536"],
        ["graph", str(4 * MIB), str(4 * MIB)],
        ["captured", "0", "0"],
        ["pitch", "5120", "5120"],
        ["create", str(2 * MIB), str(2 * MIB)],
        ["mapped", str(4 * MIB), "0"],  # released, and still mapped
        ["unmapped", str(4 * MIB)],
        ["unknown", "1"],
        ["reset", "0"],
    ]


@pytest.mark.parametrize("neighbour", [0, 16 * MIB, 100 * MIB])
@pytest.mark.parametrize("bytes_", [2 * MIB, 200 * MIB])
def test_a_load_is_charged_what_it_takes_and_not_what_a_neighbour_takes_meanwhile(
    box: Slice, bytes_: int, neighbour: int
) -> None:
    free, total = str(LIMIT), str(LIMIT)
    assert box.run("load", bytes_, neighbour) == [
        ["load", "0"],
        ["info", str(LIMIT - bytes_), total, total],
        ["info", free, total, total],
    ]
    assert box.run("load", LIMIT + 512, neighbour)[:2] == [["load", str(OUT_OF_MEMORY)], ["info", free, total, total]]
    assert box.usage().devices[0].refusals == 1


def test_a_load_is_charged_in_full_while_another_thread_s_free_is_half_way(box: Slice) -> None:
    """Off the card and still in the count, it made the load look as if it had taken nothing."""
    free = str(LIMIT - 16 * MIB)
    said = box.run("load-beside-free", 16 * MIB, FAKE_MEETING="1")
    assert said == [["load", "0"], ["info", free, str(LIMIT), str(LIMIT)]]


def test_what_is_allocated_beside_the_reset_of_a_primary_context_is_counted_once_and_stays_counted(box: Slice) -> None:
    """It went out of the count with the last context's memory; or was counted, and had gone with it."""
    both = str(2 * 3 * MIB)
    assert box.run("reset-beside", FAKE_RESET_MS="200") == [["reset", "0", "0", "0"], ["counted", both], ["held", both]]


def test_a_pointer_from_cu_get_proc_address_is_inside_too(box: Slice) -> None:
    success, used, same, unknown, status = box.run("proc")[0][1:]
    assert (success, int(used), same) == ("0", MIB, "1")
    assert (unknown, status) == ("500", "1"), "the driver's own answer about what it does not have"


def test_dlsym_stays_itself_for_everybody_else(box: Slice) -> None:
    assert box.run("next") == [["next", "1", "1", "absent"]]


def test_a_library_that_is_linked_with_the_driver_is_inside_too(box: Slice) -> None:
    assert box.run("linked") == [["linked", "0", str(LIMIT)]]


def test_a_driver_that_a_program_closes_stays_where_it_is(box: Slice) -> None:
    """What the interposer remembers are addresses in it."""
    assert box.run("closed") == [["closed", "there"]]


def test_a_forked_child_has_its_own_account(box: Slice) -> None:
    child, parent = box.run("fork")
    assert int(child[1]) == LIMIT - 3 * MIB
    assert int(parent[1]) == LIMIT - MIB, "the child's bytes came back when it ended, the parent's stayed"


def test_a_program_that_calls_exec_leaves_nothing_behind(box: Slice) -> None:
    assert box.run("exec", 100 * MIB) == [["fill", str(LIMIT), str(OUT_OF_MEMORY)]]


def test_threads_that_race_and_children_forked_among_them(box: Slice) -> None:
    box.limit(core=60)
    (line,) = box.run("threads", 6, 100)
    assert line[1] == str(LIMIT), "whatever they took came back, exactly; and no child hung or was let in"
    assert all(process.memory_bytes == 0 for process in box.usage().processes)


def test_two_processes_share_one_quota(box: Slice) -> None:
    holder = box.start("hold", 200 * MIB)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "hold 0\n"
    assert box.run("fill", MIB) == [["fill", str(56 * MIB), str(OUT_OF_MEMORY)]]


def test_processes_that_race_for_memory_get_exactly_the_limit_together(box: Slice) -> None:
    racers = [box.start("fillhold", 64 * 1024) for _ in range(4)]
    lines = [racer.stdout.readline().split() for racer in racers if racer.stdout]
    assert sum(int(held) for _fill, held, _error in lines) == LIMIT
    assert {error for _fill, _held, error in lines} == {str(OUT_OF_MEMORY)}
    assert box.usage().devices[0].memory_bytes == LIMIT
    assert sum(process.memory_bytes for process in box.usage().processes) == LIMIT


def test_the_bytes_of_a_killed_process_come_back(box: Slice) -> None:
    holder = box.start("hold", 200 * MIB)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "hold 0\n"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert box.run("fill", MIB) == [["fill", str(LIMIT), str(OUT_OF_MEMORY)]]
    assert box.usage().devices[0].reaped_bytes >= 200 * MIB


def test_nothing_drifts_when_processes_are_killed_anywhere(box: Slice) -> None:
    for victim in range(12):
        churning = [box.start("churn", 4096) for _ in range(2)]
        wait_until(lambda: len([p for p in box.usage().processes if p.device_bytes or p.start_time]) >= 2)
        time.sleep(0.003 * victim)  # so that the signal meets each of them somewhere else
        for child in churning:
            child.kill()
            child.wait()
        assert box.run("info")[0][1] == str(LIMIT), "whatever they held, exactly that came back"
    assert box.run("fill", MIB) == [["fill", str(LIMIT), str(OUT_OF_MEMORY)]]


def test_devices_are_told_apart_by_uuid(box: Slice) -> None:
    assert box.run("fill", MIB, PROBE_DEVICE="0")[0][1] == str(LIMIT)
    # the other card is not in the policy: nothing of it may be used, whatever its ordinal
    assert box.run("fill", MIB, PROBE_DEVICE="1")[0][1:] == ["0", str(OUT_OF_MEMORY)]
    assert box.run("fill", MIB, PROBE_DEVICE="0", FAKE_SWAP="1")[0][1:] == ["0", str(OUT_OF_MEMORY)]
    assert box.run("fill", MIB, PROBE_DEVICE="1", FAKE_SWAP="1")[0][1] == str(LIMIT)


def test_beyond_the_limit_only_where_the_policy_says_so_and_never_silently(box: Slice) -> None:
    box.limit(16 * MIB, spill=8 * MIB)
    assert box.run("info")[0][1:] == [str(24 * MIB), str(24 * MIB), str(24 * MIB)]
    holder = box.start("fillhold", MIB)
    assert holder.stdout is not None
    assert holder.stdout.readline().split() == ["fill", str(24 * MIB), str(OUT_OF_MEMORY)]
    totals = box.usage().devices[0]
    assert (totals.memory_bytes, totals.spill_bytes, totals.refusals) == (16 * MIB, 8 * MIB, 1)
    (process,) = box.usage().processes
    assert (process.device_bytes, process.spill_bytes) == (16 * MIB, 8 * MIB)
    holder.kill()
    holder.wait()
    assert box.run("fill", MIB)[0][1] == str(24 * MIB), "both come back"


def test_what_the_agent_sees_beyond_the_count_is_taken_off(box: Slice) -> None:
    box.limit(16 * MIB, overhead_bytes=6 * MIB)
    assert box.run("info") == [["info", str(10 * MIB), str(16 * MIB), str(16 * MIB)]], "in use, not gone"
    assert box.run("fill", MIB)[0][1] == str(10 * MIB)
    box.limit(16 * MIB, overhead_bytes=20 * MIB)
    assert box.run("info") == [["info", "0", str(16 * MIB), str(16 * MIB)]]


def test_a_new_limit_takes_effect_while_programs_run(box: Slice) -> None:
    holder = box.start("hold", 100 * MIB)
    assert holder.stdout is not None
    holder.stdout.readline()
    box.limit(50 * MIB)
    assert box.run("info") == [["info", "0", str(50 * MIB), str(50 * MIB)]], "clamped, never negative"
    assert box.run("fill", MIB)[0][1] == "0"
    box.limit(120 * MIB)
    assert box.run("fill", MIB)[0][1] == str(20 * MIB)


@pytest.mark.parametrize("damaged", ["policy", "usage"])
@pytest.mark.parametrize("how", ["missing", "empty", "garbage"])
def test_without_a_sound_slice_nothing_may_be_used(box: Slice, damaged: str, how: str) -> None:
    path = box.directory / damaged
    size = path.stat().st_size
    path.unlink()
    if how != "missing":
        path.write_bytes(b"" if how == "empty" else b"\xa5" * size)
    child = box.start("info")
    output, errors = child.communicate(timeout=DEADLINE_SECONDS)
    assert output == f"init {NOT_PERMITTED}\n"
    assert errors.startswith(f"egpu: this process may not use the GPU: {path}: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(("core", "kernel_us"), [(30, 20), (30, 1000), (70, 200), (10, 5000)])
def test_a_cap_on_compute_time_holds_for_short_and_long_kernels(box: Slice, core: int, kernel_us: int) -> None:
    box.limit(core=core)
    got = float(box.run("burn", kernel_us, 1.0)[0][1])
    burst = 0.02 * core / 100
    # Late wake-ups on a busy machine can only take time away; above the cap nothing is forgiven.
    assert got <= core / 100 + burst + 2 * kernel_us / 1e6 + 0.02
    assert got > 0
    assert box.usage().devices[0].throttled_ns > 0


def test_an_uncapped_slice_is_not_held_back(box: Slice) -> None:
    box.limit(core=100)
    assert float(box.run("burn", 1000, 0.5)[0][1]) > 0
    assert box.usage().devices[0].throttled_ns == 0


def test_two_processes_share_one_cap(box: Slice) -> None:
    box.limit(core=40)
    # Long enough for what both launch before either has timed its kernels to be paid back.
    first, second = box.start("burn", 500, 5.0), box.start("burn", 500, 5.0)
    got = sum(float(child.communicate(timeout=DEADLINE_SECONDS)[0].split()[1]) for child in (first, second))
    assert 0 < got <= 0.40 + 0.04


def test_nothing_of_ours_is_recorded_into_a_capture(box: Slice) -> None:
    box.limit(core=30)
    assert [line[0] for line in box.run("captured")] == ["burn", "burn"]  # the driver aborts otherwise


def test_our_calls_spoil_no_capture_that_begins_at_that_moment(box: Slice) -> None:
    box.limit(core=30)
    done = box.run("burn", 100, 0.2, FAKE_CAPTURES="1")  # the driver aborts otherwise
    assert [line[0] for line in done] == ["burn"]


@pytest.mark.parametrize("us", [100, 2000])
def test_fills_and_copies_within_the_card_are_of_the_share(box: Slice, us: int) -> None:
    box.limit(core=30)
    got = float(box.run("transfer", us, 1.0)[0][1])
    assert 0 < got <= 0.30 + 0.04


def test_copies_from_the_host_are_not(box: Slice) -> None:
    box.limit(core=90)
    kernels = 30
    box.run("feed", kernels)
    charged_ms = box.usage().devices[0].gpu_ns / 1e6
    assert charged_ms == pytest.approx(kernels * 0.2, rel=0.3)


def hooked() -> set[str]:
    text = (SOURCES.parents[1] / "interposer" / "hooks.def").read_text()
    return set(re.findall(r"^(?:DRIVER|ENDING|OPEN|GATED|NVML)\((\w+)\)", text, re.MULTILINE))


def test_no_function_that_allocates_informs_or_launches_is_overlooked() -> None:
    table = (SOURCES.parents[1] / "driver" / "generated" / "driver_table.inc").read_text()
    listed = re.findall(r"EGPU_DRIVER_FUNCTION\((\w+), \w+, \d+, \w+, (\w+),", table)
    assert len(listed) > 500
    wanted = {symbol for symbol, group in listed if group in ("ALLOC", "FREE", "INFO", "LAUNCH")}
    # 32-bit frees: nothing allocates for them
    assert wanted - hooked() == {"cuMemFree"}


def test_only_declared_symbols_are_exported() -> None:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", native.path(LIBRARY)], check=True, capture_output=True, text=True
    ).stdout
    exported = {line.split()[-1] for line in listing.splitlines()}
    assert exported == hooked() | {"dlsym"}
