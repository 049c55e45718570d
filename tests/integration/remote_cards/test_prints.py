"""What kernels print goes to the program's standard output when it synchronises, wherever the card is."""

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, get_args

import pytest

from egpu_sim.machines.machine import Machine
from support.remote_gpu import Executor, Transport, remote
from support.simulated_gpu import environment, source
from support.waiting import DEADLINE_SECONDS

CARDS = ("A100-80G", 1)
REMOTE = [one for one in get_args(Transport) if one != "bridge"]

# Prints `count` lines for each thread, and an assertion of the first thread's fails where the count is 0.
PTX = r"""
.version 8.0
.target sm_70
.address_size 64
.extern .func (.param .b32 returned) vprintf(.param .b64 format, .param .b64 list);
.extern .func __assertfail(.param .b64 what, .param .b64 file, .param .b32 at, .param .b64 function, .param .b64 size);
.global .align 1 .b8 words[30] = {WORDS};
.global .align 1 .b8 what[9] = {99, 111, 117, 110, 116, 32, 62, 32, 0};
.visible .entry prints(.param .u32 count, .param .u32 number)
{
    .local .align 8 .b8 list[16];
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .b64 %d<4>;
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [number];
    mov.u32 %r3, %tid.x;
    mov.u64 %d1, list;
    cvta.local.u64 %d1, %d1;
    mov.u64 %d2, words;
    cvta.global.u64 %d2, %d2;
    mov.u64 %d3, what;
    cvta.global.u64 %d3, %d3;
    setp.ne.u32 %p, %r1, 0;
    @%p bra BEGIN;
    {
    .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
    st.param.b64 [a], %d3;
    st.param.b64 [b], %d3;
    st.param.b32 [c], 12;
    st.param.b64 [d], %d3;
    st.param.b64 [e], 1;
    call.uni __assertfail, (a, b, c, d, e);
    }
BEGIN:
    mov.u32 %r4, 0;
NEXT:
    st.u32 [%d1], %r2;
    st.u32 [%d1+4], %r3;
    st.u32 [%d1+8], %r4;
    {
    .param .b64 a; .param .b64 b; .param .b32 c;
    st.param.b64 [a], %d2;
    st.param.b64 [b], %d1;
    call.uni (c), vprintf, (a, b);
    }
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p, %r4, %r1;
    @%p bra NEXT;
    ret;
}
""".replace("WORDS", ", ".join(str(byte) for byte in b"launch %d thread %d line %d\n\0"))

PROGRAM = f"""
ctx = context()
PTX = {PTX!r}
def prints(number, count=1, threads=1):
    ok(launch(f, 1, threads, (count, ctypes.c_uint32), (number, ctypes.c_uint32)))
def done():
    while d.cuStreamQuery(0)[0] == d.CUresult.CUDA_ERROR_NOT_READY: time.sleep(0.001)
def host(text):
    os.write(1, text.encode() + b"\\n")  # what Python prints waits in Python
"""
LOAD = 'f = function(PTX, "prints")\n'


def run(driver_dir: Path, code: str, *, begin: str = LOAD) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", source(PROGRAM + begin + code)],
        env=environment(driver_dir), capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module", params=["here", *REMOTE])
def way(request: pytest.FixtureRequest, sim: Machine, tmp_path_factory: pytest.TempPathFactory) -> Generator[Any]:
    """A driver directory, and the executor, if there is one."""
    if request.param == "here":
        yield sim.driver_dir, None
        return
    transport: Transport = request.param
    with remote(sim, tmp_path_factory.mktemp(transport), transport) as (client, executor, _):
        yield client, executor


def line(launch: int, thread: int = 0, number: int = 0) -> str:
    return f"launch {launch} thread {thread} line {number}"


def test_it_is_there_when_the_call_returns_that_synchronises(way: tuple[Path, Executor | None]) -> None:
    calls = {
        "context": "ok(d.cuCtxSynchronize())",
        "stream": "ok(d.cuStreamSynchronize(0))",
        "event": "e = ok(d.cuEventCreate(0)); ok(d.cuEventRecord(e, 0)); ok(d.cuEventSynchronize(e))",
        "copy": "download(at, np.zeros(1, np.uint32))",
        "large copy": "download(at, np.zeros(1 << 20, np.uint32))",
        "module": "ok(d.cuModuleUnload(ok(d.cuModuleLoadData(PTX.encode() + bytes(1)))))",
        "reset": "ok(d.cuDevicePrimaryCtxReset(0))",
    }
    code = "at = ok(d.cuMemAlloc(1 << 22))\n"
    for number, (name, call) in enumerate(calls.items()):
        code += f"prints({number})\ndone()\nhost('before {name}')\n{call}\nhost('after {name}')\n"
    done = run(way[0], code)
    assert (done.returncode, done.stderr) == (0, "")
    expected = [[f"before {name}", line(number), f"after {name}"] for number, name in enumerate(calls)]
    assert done.stdout.splitlines() == [each for three in expected for each in three]


def test_it_is_not_there_at_the_end_of_a_program_that_does_not_synchronise(way: tuple[Path, Executor | None]) -> None:
    done = run(way[0], "prints(1)\ndone()\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_launch_shows_what_was_printed_before_it(way: tuple[Path, Executor | None]) -> None:
    """So what is kept begins anew with each: at its end there is all of it, and each thread's in its order."""
    done = run(way[0], "for n in range(3): prints(n, 4000, 2); done()\nok(d.cuCtxSynchronize())\n")
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    assert len(said) == 3 * 2 * 4000
    for launch in range(3):
        for thread in range(2):
            own = [each for each in said if each.startswith(f"launch {launch} thread {thread} ")]
            assert own == [line(launch, thread, number) for number in range(4000)]


def test_of_more_than_there_is_room_for_the_oldest_lines_are_lost(way: tuple[Path, Executor | None]) -> None:
    limit = "ok(d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE, 4096))\n"
    late = "say(name(d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE, 8192)))\n"
    done = run(way[0], "prints(1, 1000)\nok(d.cuCtxSynchronize())\n" + late, begin=limit + LOAD)
    assert (done.returncode, done.stderr) == (0, "")
    *said, answer = done.stdout.splitlines()
    assert said == [line(1, 0, number) for number in range(1000 - len(said), 1000)]
    assert 3000 < sum(len(each) + 1 for each in said) <= 4096
    assert answer == '"INVALID_VALUE"', "the buffer is in use"


def test_of_more_than_an_executor_keeps_the_oldest_is_lost(way: tuple[Path, Executor | None]) -> None:
    limit = "ok(d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE, 16 << 20))\n"
    done = run(way[0], "prints(1, 180000)\nok(d.cuCtxSynchronize())\n", begin=limit + LOAD)
    assert (done.returncode, done.stderr) == (0, "")
    everything = "".join(line(1, 0, number) + "\n" for number in range(180000))
    if way[1] is None:
        assert done.stdout == everything
    else:
        assert done.stdout == everything[-(4 << 20) :]
        assert "more than is kept" in way[1].stderr()


def test_a_failed_assertion_says_where_it_was_and_is_the_context_s_error(way: tuple[Path, Executor | None]) -> None:
    """What it says is on the standard error of the process that has the card."""
    code = "ok(launch(f, 1, 2, (0, ctypes.c_uint32), (0, ctypes.c_uint32)))\n"
    done = run(way[0], code + "for _ in range(2): host(name(d.cuCtxSynchronize()))\nhost(name(d.cuMemAlloc(4)))\n")
    assert (done.returncode, done.stdout) == (0, "ASSERT\n" * 3)
    message = "count > :12: count > : block: [0,0,0], thread: [0,0,0] Assertion `count > ` failed.\n"
    assert message in (way[1].stderr() if way[1] else done.stderr)
