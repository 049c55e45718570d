"""`egpu run` on a simulated machine: every place a program can look shows the slice, and nothing gets out of it."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from egpu.adapters import native
from egpu.adapters.slices.pages import PPM, DevicePolicy, read_policy
from egpu.core.backoff import Backoff
from egpu_sim.machines import machine as simulator
from support import forked_commands
from support.waiting import DEADLINE_SECONDS, wait_until

EGPU = [sys.executable, "-c", "from egpu.cli import main; main()"]
GIB = 1 << 30

LOOK = """
    import json
    import pynvml as nvml
    from cuda.bindings import driver

    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    driver.cuInit(0)
    _, device = driver.cuDeviceGet(0)
    _, context = driver.cuDevicePrimaryCtxRetain(device)
    driver.cuCtxSetCurrent(context)
    _, pointer = driver.cuMemAlloc(256 << 20)
    _, free, total = driver.cuMemGetInfo()
    _, whole = driver.cuDeviceTotalMem(device)
    one, two = nvml.nvmlDeviceGetMemoryInfo(handle), nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    held = [pointer]
    while True:
        error, more = driver.cuMemAlloc(1 << 20)
        if error != driver.CUresult.CUDA_SUCCESS:
            break
        held.append(more)
    print(json.dumps({
        "cards": nvml.nvmlDeviceGetCount(), "free": free, "total": total, "whole": whole,
        "nvml": [one.total, one.used, one.free], "nvml2": [two.total, two.used, two.free],
        "processes": [[p.pid, p.usedGpuMemory] for p in processes], "mebibytes": len(held) - 1, "error": error.name,
    }))
"""

BURN = """
    import sys, time
    from cuda.bindings import driver

    def must(result):
        assert result[0] == driver.CUresult.CUDA_SUCCESS, result
        return result[1] if len(result) == 2 else None

    microseconds, seconds = float(sys.argv[1]), float(sys.argv[2])
    ptx = f'''.version 8.0
    .target sm_80
    .address_size 64
    .visible .entry spin()
    {{
        .pragma "egpu.duration_us {microseconds:g}";
        ret;
    }}'''
    must(driver.cuInit(0))
    driver.cuCtxSetCurrent(must(driver.cuDevicePrimaryCtxRetain(0)))
    spin = must(driver.cuModuleGetFunction(must(driver.cuModuleLoadData(ptx.encode() + b"\\0")), b"spin"))
    start, launches = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        must(driver.cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0))
        launches += 1
    must(driver.cuCtxSynchronize())
    print(launches * microseconds / 1e6, time.monotonic() - start)
"""


FORGE = """
    import mmap, os, sys, time
    from cuda.bindings import driver

    made, ready, children = os.pipe(), os.pipe(), []
    while len(children) < 4 and (child := os.fork()):  # each for itself: none asks for more than the limit
        children.append(child)
    if len(children) == 4:
        for _ in children:
            os.read(made[0], 1)
        os.write(ready[1], bytes(4))
        print(sorted(os.waitpid(child, 0)[1] for child in children))
        sys.exit()
    driver.cuInit(0)
    driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
    os.write(made[1], bytes(1))
    os.read(ready[0], 1)
    path = next(line.split()[-1] for line in open("/proc/self/maps") if line.rstrip().endswith("/usage"))
    with open(path, "r+b") as file:
        usage = mmap.mmap(file.fileno(), 0)
    for _ in range(15):
        usage[64:72] = bytes(8)
        driver.cuMemAlloc(64 << 20)
    time.sleep(60)
"""


TWO = """
    import json
    from cuda.bindings import driver

    driver.cuInit(0)
    found = []
    for index in range(2):
        driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(index)[1])
        given = 0
        while driver.cuMemAlloc(1 << 20)[0] == driver.CUresult.CUDA_SUCCESS:
            given += 1
        found.append([driver.cuDeviceGetCount()[1], given, driver.cuMemGetInfo()[2] >> 20])
    print(json.dumps(found))
"""


HOG = """
    import time
    from cuda.bindings import driver

    driver.cuInit(0)
    driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
    print(driver.cuMemAlloc(5 << 30)[0].name.removeprefix("CUDA_"), flush=True)
    time.sleep(60)
"""


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A directory for slices and machines of this test alone."""
    directory = tmp_path / "state"
    yield directory
    for description in directory.glob("*/machine/machine.json"):
        simulator.destroy(simulator.open_machine(description.parent))


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    def write(source: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(source))
        return path

    return write


def command(state: Path, *arguments: object) -> list[str]:
    return [*EGPU, "run", "--state-dir", str(state), "--simulate", "A100-80G", *map(str, arguments)]


def run(state: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    _, _, _, *given = command(state, *arguments)
    return forked_commands.run(given, env=os.environ, timeout=120)


def leftovers(state: Path) -> list[str]:
    return [p.name for p in (state / "A100-80G").iterdir() if p.name not in ("lock", "arbiter.lock", "machine")]


CLEARED = ("env", "-i", f"PYTHONPATH={os.pathsep.join(p for p in sys.path if p)}", "/bin/sh", "-c")


def mounts_allowed() -> bool:
    return subprocess.run([native.path("egpu-enter"), "--probe"], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("cleared", [False, True], ids=["plain", "env -i sh -c"])
def test_every_view_shows_the_slice_and_the_limit_is_exact(
    state: Path, program: Callable[[str], Path], cleared: bool
) -> None:
    if cleared and not mounts_allowed():
        pytest.skip("no private mounts on this machine: egpu run says so, and what is weaker")
    inner = [sys.executable, str(program(LOOK))]
    asked = [*CLEARED, " ".join(inner)] if cleared else inner
    done = run(state, "--core", 30, "--memory", "2GiB", "--", *asked)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    used = 256 << 20
    assert seen["cards"] == 1
    assert (seen["free"], seen["total"], seen["whole"]) == (2 * GIB - used, 2 * GIB, 2 * GIB)
    assert seen["nvml"] == seen["nvml2"] == [2 * GIB, used, 2 * GIB - used]
    assert [size for _pid, size in seen["processes"]] == [used]
    assert (seen["mebibytes"], seen["error"]) == (2048 - 256, "CUDA_ERROR_OUT_OF_MEMORY")
    assert leftovers(state) == []


def test_without_private_mounts_it_still_works_and_says_what_is_weaker(
    state: Path, program: Callable[[str], Path], tmp_path: Path
) -> None:
    # A stand-in for egpu-enter on a machine that forbids mounts: it refuses the probe and does the rest.
    refusing = tmp_path / "native" / "egpu-enter"
    refusing.parent.mkdir()
    refusing.write_text(
        f'#!/bin/sh\n[ "$1" = --probe ] && {{ echo "no private mounts: forbidden"; exit 1; }}\n'
        f'exec {native.path("egpu-enter")} "$@"\n'
    )
    refusing.chmod(0o755)
    patched = (
        "import pathlib; from egpu_base.native import Artefacts as n; before = n.directories; "
        f"n.directories = lambda self: (pathlib.Path({str(refusing.parent)!r}), *before(self)); "
        "from egpu.cli import main; main()"
    )
    arguments = command(state, "--core", "30", "--memory", "1GiB", "--", sys.executable, program(LOOK))
    done = subprocess.run(
        [sys.executable, "-c", patched, *arguments[len(EGPU) :]],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert json.loads(done.stdout)["total"] == GIB, done.stderr
    said = " ".join(done.stderr.split())
    assert "weaker isolation: no private mounts: forbidden" in said
    assert "clears its environment" in said


@pytest.mark.parametrize(("core", "kernel_us"), [(30, 100), (60, 1000)])
def test_the_share_of_compute_time_holds(
    state: Path, program: Callable[[str], Path], core: int, kernel_us: int
) -> None:
    done = run(
        state, "--core", core, "--memory", "1GiB", "-o", "json", "--", sys.executable, program(BURN), kernel_us, 1
    )
    assert done.returncode == 0, done.stderr
    busy, elapsed = map(float, done.stdout.split())
    assert 0 < busy / elapsed <= core / 100 * 1.02 + 0.03  # late wake-ups on a busy machine only take time away
    told = json.loads(done.stderr.splitlines()[-1])
    assert told["exitStatus"] == 0
    assert told["launches"] == round(busy * 1e6 / kernel_us)
    assert told["gpuSeconds"] >= busy * 0.98
    assert told["throttledSeconds"] > 0


def test_what_is_not_timed_is_not_told_as_nothing(state: Path, program: Callable[[str], Path]) -> None:
    """Without a limit of compute, programs run untimed: the figures are unknown, not zero."""
    arguments = ("--core", 100, "--memory", "1GiB", "-o", "json", "--", sys.executable, program(BURN), 1000, 0.1)
    done = run(state, *arguments)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stderr.splitlines()[-1])
    assert (told["launches"], told["gpuSeconds"], told["throttledSeconds"]) == (None, None, 0)


def lines(state: Path) -> list[DevicePolicy]:
    """What every run may use now."""
    return [read_policy(page).devices[0] for page in sorted((state / "A100-80G").glob("*.slice/policy"))]


@pytest.fixture
def spinning(state: Path, program: Callable[[str], Path]) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts runs that keep the GPU busy; they are ended."""
    children: list[subprocess.Popen[bytes]] = []

    def start(core: int, *more: str) -> subprocess.Popen[bytes]:
        arguments = command(state, "--core", core, "--memory", "1GiB", *more)
        children.append(subprocess.Popen([*arguments, "--", sys.executable, str(program(BURN)), "200", "600"]))
        return children[-1]

    yield start
    for child in children:
        child.terminate()
        child.wait()


def test_runs_at_once_have_windows_and_one_takes_over_from_another(
    state: Path, spinning: Callable[..., subprocess.Popen[bytes]]
) -> None:
    first = spinning(30)
    wait_until(lambda: len(lines(state)) == 1)
    spinning(70)
    wait_until(lambda: [line.window is not None for line in lines(state)] == [True, True])
    first.terminate()  # which has shared out the time so far; its command ends with it
    first.wait()
    wait_until(lambda: [line.window for line in lines(state)] == [None])


def test_idle_time_is_used_without_an_agent(state: Path, spinning: Callable[..., subprocess.Popen[bytes]]) -> None:
    spinning(30, "--mode", "share")
    wait_until(lambda: [line.grant_ppm for line in lines(state)] == [PPM])
    spinning(40)
    shares = [40 * PPM // 100, 60 * PPM // 100]
    wait_until(lambda: sorted(line.grant_ppm or line.core_ppm for line in lines(state)) == shares)


def test_a_command_that_forges_its_account_loses_what_holds_the_memory(
    state: Path, program: Callable[[str], Path]
) -> None:
    """Eight bytes of the usage file, set back by each of four processes: 5632 MiB in a slice of 2048."""
    done = run(state, "--memory", "2GiB", "--", sys.executable, program(FORGE))
    assert done.stdout == "[9, 9, 9, 9]\n"
    assert done.returncode == 0, "the command itself holds nothing"
    assert "of the slice were ended: it holds" in done.stderr
    assert "may hold 2048 MiB, and was over that for" in done.stderr
    assert leftovers(state) == ["overruns"]
    (wait,) = state.rglob("overruns")
    wait.write_bytes(msgspec.json.encode(Backoff().again(time.time() + 600)))  # a slow machine may be through with it
    again = run(state, "--memory", "1GiB", "--", "true")
    assert again.returncode == 125
    assert "a slice of yours exceeded its GPU memory limit and was terminated once; try again in" in again.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="covers a file, as root in a container may")
@pytest.mark.skipif(not mounts_allowed(), reason="a slice without private mounts is carried by the environment")
def test_a_command_that_leaves_the_interposer_and_its_parent_behind_is_found_all_the_same(
    state: Path, tmp_path: Path, program: Callable[[str], Path]
) -> None:
    """Its programs load no interposer any more, nothing of it has the policy page, and it is nobody's child."""
    pid = tmp_path / "pid"
    leave = f"""
        driver=$(dirname $(grep -m1 libcuda.so /etc/ld.so.preload))
        mount --bind /dev/null /etc/ld.so.preload
        LD_LIBRARY_PATH=$driver exec {sys.executable} {program(HOG)}
    """
    (tmp_path / "leave.sh").write_text(leave)
    script = (
        f"(unshare -m sh {tmp_path}/leave.sh & echo $! > {pid}); while kill -0 $(cat {pid}) 2>&-; do sleep 0.1; done"
    )
    done = run(state, "--memory", "1GiB", "--", "sh", "-c", script)
    assert done.stdout == "SUCCESS\n", done.stderr
    assert f"processes {pid.read_text().strip()} of the slice were ended: it holds" in done.stderr


def test_a_run_says_what_its_slice_gets(state: Path) -> None:
    done = run(state, "--core", 30, "--mode", "share", "--work", "latency", "-o", "json", "--", "true")
    words = "Burstable: 30 % of the card's time and up to 100 % while others are idle, latency work"
    assert words in done.stderr.splitlines()
    told = json.loads(done.stderr.splitlines()[-1])
    assert (told["qos"], told["coreLimitPercent"], told["work"]) == ("Burstable", 100, "latency")
    plain = run(state, "--core", 30, "-o", "json", "--", "true")
    assert "Guaranteed: " not in plain.stderr
    assert json.loads(plain.stderr.splitlines()[-1])["qos"] == "Guaranteed"


def test_two_runs_never_share_more_than_a_card(state: Path) -> None:
    holder = subprocess.Popen(
        command(state, "--core", "60", "--memory", "40GiB", "--", "sh", "-c", "echo in; exec sleep 1000"),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "in\n"
        second = run(state, "--core", "60", "--memory", "1GiB", "--", "true")
        assert second.returncode == 125
        assert "no card has 60 % and 1024 MiB free now" in second.stderr
        assert "(sh): 60 % and 40960 MiB. Ask for less, or wait with --wait SECONDS" in second.stderr
        assert second.stderr.count("\n") == 1, "one line"
        whole = run(state, "--memory", "1GiB", "--", "true")
        assert "MiB. --core is 100 by default. Give less to share a card, or wait with --wait" in whole.stderr
        short = run(state, "--memory", "1GiB", "--wait", "0.1", "--", "true")
        assert short.returncode == 125
        assert short.stderr.startswith("waiting up to 0.1 s (--wait): no card has 100 %")
        assert run(state, "--core", "10", "--memory", "41GiB", "--", "true").returncode == 125
        assert run(state, "--core", "40", "--memory", "40GiB", "--", "true").returncode == 0
    finally:
        holder.send_signal(signal.SIGTERM)
        assert holder.wait(DEADLINE_SECONDS) == 128 + signal.SIGTERM
    assert leftovers(state) == []


def test_a_run_waits_for_room(state: Path) -> None:
    waiting = ["--wait", str(DEADLINE_SECONDS), "--memory", "1GiB", "--"]
    with subprocess.Popen(
        command(state, "--memory", "1GiB", "--", "sh", "-c", "echo in; read line"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "in\n"
        with subprocess.Popen(command(state, *waiting, "echo", "my turn"), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as second:  # fmt: skip
            assert second.stdout is not None
            assert second.stderr is not None
            assert "no card has 100 %" in second.stderr.readline()
            holder.stdin.close()
            assert second.stdout.read() == "my turn\n"
    assert (holder.returncode, second.returncode) == (1, 0)
    assert leftovers(state) == []


def test_a_slice_of_two_cards_is_limited_on_each(state: Path, program: Callable[[str], Path]) -> None:
    done = run(state, "--gpus", 2, "--core", 30, "--memory", "1GiB", "-o", "json", "--", sys.executable, program(TWO))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[2, 1024, 1024]] * 2
    told = json.loads(done.stderr.splitlines()[-1])
    assert (told["gpu"], [one["gpu"] for one in told["moreGpus"]]) == (0, [1])
    assert (told["peakMemoryBytes"], told["refusedAllocations"]) == (2 * GIB, 2)


def test_a_killed_run_s_share_returns_when_its_command_ends(state: Path, tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    script = f"echo $$ > {marker}.new; mv {marker}.new {marker}; exec sleep 1000"
    holder = subprocess.Popen(command(state, "--core", "100", "--memory", "1GiB", "--", "sh", "-c", script))
    wait_until(marker.exists)
    # the book names the command shortly after it started
    wait_until(
        lambda: any(len(json.loads(p.read_text())["processes"]) == 2 for p in (state / "A100-80G").glob("*.holder"))
    )
    holder.kill()
    holder.wait()
    assert run(state, "--core", "1", "--memory", "1GiB", "--", "true").returncode == 125, "the command still runs"
    os.kill(int(marker.read_text()), signal.SIGKILL)
    wait_until(lambda: run(state, "--core", "100", "--memory", "1GiB", "--", "true").returncode == 0)
    assert leftovers(state) == []


def test_a_slice_without_room_for_a_context_is_told_so(state: Path) -> None:
    done = run(state, "--core", 10, "--memory", 100, "--", "true")
    assert (done.returncode, done.stdout) == (0, "")
    assert "100 MiB has no room for a CUDA context, which takes about 448 MiB of a card" in done.stderr


def test_output_and_status_are_the_command_s_own(state: Path) -> None:
    done = run(state, "--core", 10, "--memory", 1000, "--", "sh", "-c", "cat; echo out; exit 42")
    assert (done.returncode, done.stdout, done.stderr) == (42, "out\n", "")
    assert run(state, "--core", 10, "--memory", 1000, "--", "sh", "-c", "kill -9 $$").returncode == 137
    missing = run(state, "--core", 10, "--memory", 1000, "--", "nonesuch")
    assert (missing.returncode, "nonesuch" in missing.stderr) == (127, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_command_and_everything_is_cleaned_up(state: Path, number: signal.Signals) -> None:
    script = f"trap 'exit 7' {number.name[3:]}; echo ready; while :; do sleep 0.01; done"
    child = subprocess.Popen(
        # A signal that is ignored, as SIGHUP is under nohup, would stay ignored.
        [
            "env",
            f"--default-signal={number.name[3:]}",
            *command(state, "--core", 10, "--memory", 1000),
            "--",
            "sh",
            "-c",
            script,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(number)
    assert child.wait(DEADLINE_SECONDS) == 7
    assert leftovers(state) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--core", "0"], "--core: 0 is not a share of one card"),
        (["--core", "101"], "--core: 101 is not a share of one card"),
        (["--core", "x"], "--core"),
        (["--core", "10", "--memory", "0"], "--memory"),
        (["--core", "10", "--memory", "-1GiB"], "--memory"),
        (["--core", "10", "--memory", "2 parsecs"], "--memory"),
        (["--core", "10", "--memory", "81GiB"], "is more than a card has: GPU 0"),
        (["--core", "10", "--memory", "1GiB", "--gpu", "5"], "this machine has no GPU 5; it has 0"),
        (["--core", "10", "--memory", "1GiB", "--simulate", "Voodoo2"], "no profile 'Voodoo2'; there are A100-40G"),
    ],
)
def test_bad_input_is_refused_with_field_and_reason(
    state: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = run(state, *arguments, "--", "touch", tmp_path / "ran")
    assert done.returncode == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "ran").exists()
