"""Programs of `egpu run --parkable --parking-resident` that together have much more memory than the card."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support import forked_commands
from support.long import or_long

EGPU = [sys.executable, "-c", "from egpu.cli import main; main()"]
CARD_MIB = 15360
SLICE_MIB = 64
OWN_MIB = 7
ROOM_MIB = SLICE_MIB * 4 // 3
"""Each slice has three quarters of what the filler leaves."""

FILLER = """
    import sys
    from cuda.bindings import driver

    driver.cuInit(0)
    _, context = driver.cuDevicePrimaryCtxRetain(0)
    driver.cuCtxSetCurrent(context)
    error, _ = driver.cuMemAlloc((int(sys.argv[1]) - 16) << 20)
    print(error.name, flush=True)
    sys.stdin.read()
"""

PROGRAM = """
    import random
    import sys
    import time
    import numpy as np
    from cuda.bindings import driver

    SEED, TURNS = int(sys.argv[1]), int(sys.argv[2])
    PART = 14 << 20

    def ok(result):
        if int(result[0]) != 0:
            raise SystemExit(f"driver call failed: {result[0].name}")
        return result[1] if len(result) > 1 else None

    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
    random.seed(SEED)
    host = [np.random.default_rng(4 * SEED + k).integers(0, 1 << 32, PART // 4, dtype=np.uint32) for k in range(4)]
    device = [ok(driver.cuMemAlloc(PART)) for _ in host]
    for pointer, data in zip(device, host):
        ok(driver.cuMemcpyHtoD(pointer, data.ctypes.data, PART))
    for turn in range(TURNS):
        to, of = random.sample(range(4), 2)
        ok(driver.cuMemcpyDtoD(device[to], device[of], PART // 2))
        host[to][: PART // 8] = host[of][: PART // 8]
        ok(driver.cuCtxSynchronize())
        print(turn, flush=True)
        time.sleep(random.random() / 2)
    back = np.zeros_like(host[0])
    for pointer, data in zip(device, host):
        ok(driver.cuMemcpyDtoH(back.ctypes.data, pointer, PART))
        if not (back == data).all():
            raise SystemExit("wrong bytes")
    print("right", flush=True)
    sys.stdin.read()  # it keeps its memory until all are right
"""


def start(state: Path, program: str, arguments: list[str], *options: str) -> "subprocess.Popen[str]":
    command = [*EGPU, "run", "--simulate", "T4", "--state-dir", str(state), "--core", "5", *options]
    return subprocess.Popen(
        [*command, "--", sys.executable, "-c", textwrap.dedent(program), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def start_sharing(state: Path, seed: int, turns: int) -> "subprocess.Popen[str]":
    options = ("--memory", f"{SLICE_MIB}MiB", "--parkable", "--parking-resident", "10%", "--parking-idle", "1s")
    return start(state, PROGRAM, [str(seed), str(turns)], *options)


def start_filler(state: Path, left_mib: int) -> "subprocess.Popen[str]":
    memory_mib = CARD_MIB - left_mib
    filler = start(state, FILLER, [str(memory_mib)], "--memory", f"{memory_mib}MiB")
    assert filler.stdout
    assert filler.stdout.readline() == "CUDA_SUCCESS\n"
    return filler


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    forked_commands.run(["sim", "rm", "--all", "--state-dir", str(tmp_path)], env=os.environ, timeout=120)


def test_programs_of_three_quarters_of_a_card_run_beside_each_other(state: Path) -> None:
    """The run that arbitrates is killed in the middle; the others go on, and every byte is right."""
    count, turns = or_long(4, 10), or_long(4, 20)
    with ExitStack() as stack:
        filler = stack.enter_context(start_filler(state, ROOM_MIB + (count + 1) * OWN_MIB))
        stack.callback(filler.kill)
        first = stack.enter_context(start_sharing(state, 99, 1000))
        stack.callback(first.kill)
        assert first.stdout
        assert first.stdout.readline() == "0\n", "it is the arbiter, or follows the filler's run"
        programs = [stack.enter_context(start_sharing(state, seed, turns)) for seed in range(count)]
        for program in programs:
            stack.callback(program.kill)
            assert program.stdout
            assert program.stdout.readline() == "0\n"
        for arbiter in (filler, first):
            arbiter.kill()
            arbiter.wait()
        for program in programs:
            assert program.stdout
            assert [program.stdout.readline() for _ in range(turns)][-1] == "right\n"
        for program in programs:
            assert program.stdin
            program.stdin.close()
            assert program.wait(60) == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--parking-resident", "3%"), "--parking-resident needs --parkable"),
        (("--parkable", "--parking-idle", "60s"), "--parking-idle needs --parking-resident"),
        (("--parkable", "--parking-resident", "100%"), "'100%' is not a percentage from 1% to 99%"),
        (("--parkable", "--parking-resident", "3%", "--parking-idle", "soon"), "'soon' is not a time"),
        (("--pool", "127.0.0.1:1", "--memory", "1GiB", "--parking-memory", "5"), "--pool excludes"),
        (("--pool", "127.0.0.1:1", "--memory", "1GiB", "--parkable"), "with --pool needs --parking-resident"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(state: Path, options: tuple[str, ...], why: str) -> None:
    done = forked_commands.run(["run", *options, "--", "true"], env=os.environ, timeout=120)
    assert (done.returncode, why in done.stderr) == (2, True), done.stderr
