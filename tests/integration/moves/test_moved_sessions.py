"""Sessions that move between executors while their programs run."""

import contextlib
import itertools
import os
import random
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path
from typing import Final

import pytest

from egpu.adapters.native import path
from egpu_sim.machines.machine import Machine
from support.mixed_load import COUNT
from support.moving import Control, Refused, movable
from support.simulated_gpu import STORE_SEVEN, Program, environment, machine
from support.waiting import DEADLINE_SECONDS

CARDS = ("T4", 2)
MOVES: Final = int(os.environ.get("EGPU_TEST_MOVES", "12"))
"""50 in a long run: `EGPU_TEST_MOVES=50`."""

PREPARED: Final = struct.pack("<QQQQQ512x", 1, 0, 0, 0, 0)
"""A target says that it is ready for the sessions (struct moves_report)."""

SEVEN: Final = STORE_SEVEN.replace("sm_80", "sm_70")

STOPPED: Final = (6 << 20) + 5000
"""Bytes of a move of WORK: those before the session stops (6 MiB of memory, 2,592 besides), and some of those after it.
They are 4,500 at least, and 2 MiB more if its counters have changed meanwhile."""
WORK: Final = f"""
    context()
    import hashlib, select
    u32 = ctypes.c_uint32
    f, g = function({COUNT!r}, "count"), function(VECTOR_ADD, "add")
    chance = np.random.default_rng(7)
    counter, launched, right = upload(np.zeros(1, np.uint32)), 0, True
    x, y = (chance.random(1000, np.float32) for _ in range(2))
    px, py, pz = upload(x), upload(y), ok(d.cuMemAlloc(x.nbytes))
    big = np.arange(1 << 20, dtype=np.uint32)
    pb = upload(big)
    s, e = ok(d.cuStreamCreate(1)), ok(d.cuEventCreate(0))
    said = hashlib.sha256()
    say("begun")
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(20):
            ok(launch(f, 1, 1, counter, (1, u32), stream=s))
        launched += 20
        ok(d.cuEventRecord(e, s))
        ok(d.cuEventSynchronize(e))
        right = right and int(download(counter, np.zeros(1, np.uint32))[0]) == launched
        ok(launch(g, 8, 128, px, py, pz, (1000, u32)))
        right = right and bool((download(pz, x) == x + y).all())
        small = [upload(np.full(n, n % 251, np.uint8)) for n in (1, 600, 70_000)]
        for p, n in zip(small, (1, 600, 70_000)):
            right = right and bool((download(p, np.zeros(n, np.uint8)) == n % 251).all())
        for p in small:
            ok(d.cuMemFree(p))
        if launched % 200 == 0:
            right = right and bool((download(pb, big) == big).all())
            t, u = ok(d.cuStreamCreate(1)), ok(d.cuEventCreate(0))
            ok(d.cuStreamDestroy(t)); ok(d.cuEventDestroy(u))
    say([right, launched, int(download(counter, np.zeros(1, np.uint32))[0])])
"""


@pytest.mark.parametrize("shared", [False, True], ids=["bridge", "shared"])
def test_a_program_counts_on_through_moves_between_cards(sim: Machine, tmp_path: Path, shared: bool) -> None:
    chance = random.Random(int(os.environ.get("EGPU_TEST_SEED", "35")))
    with movable(sim, tmp_path, shared=shared) as moved, Program(moved.client, WORK) as program:
        assert program.hear() == "begun"
        for _ in range(MOVES):
            time.sleep(chance.random() / 4)
            assert moved.move(sim)["bytes"] > 4 << 20
        program.go()
        right, launched, counted = program.hear()
        assert right
        assert launched == counted > 0


def test_a_program_moves_between_machines_and_back(sim: Machine, tmp_path: Path) -> None:
    with (
        machine(tmp_path / "other", "T4", 2) as other,
        movable(sim, tmp_path / "lease") as moved,
        Program(moved.client, WORK) as program,
    ):
        assert program.hear() == "begun"
        for there in (other, sim, other):
            time.sleep(0.2)
            moved.move(there)
        program.go()
        right, launched, counted = program.hear()
        assert right
        assert launched == counted > 0


@pytest.mark.parametrize("shared", [False, True], ids=["bridge", "shared"])
def test_programs_of_one_lease_move_together(sim: Machine, tmp_path: Path, shared: bool) -> None:
    with (
        movable(sim, tmp_path, shared=shared) as moved,
        Program(moved.client, WORK) as one,
        Program(moved.client, WORK) as two,
    ):
        assert (one.hear(), two.hear()) == ("begun", "begun")
        for _ in range(3):
            moved.move(sim)
        for program in (one, two):
            program.go()
            right, launched, counted = program.hear()
            assert right
            assert launched == counted > 0


@pytest.mark.parametrize("flags", [("saxpy",), ("matmul", "--n=48"), ("reduce", "--n=30003")])
def test_samples_say_the_same_while_they_come_and_go_and_move(
    sim: Machine, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    command = [str(path(f"samples/egpu-sample-{flags[0]}")), *flags[1:]]

    def run_sample(driver_dir: Path) -> tuple[int, str]:
        done = subprocess.run(
            command,
            env=environment(driver_dir),
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        return done.returncode, done.stdout

    expected = run_sample(sim.driver_dir)
    said: list[tuple[int, str]] = []
    has_moved, deadline = threading.Event(), time.monotonic() + DEADLINE_SECONDS
    with movable(sim, tmp_path) as moved:

        def run_samples() -> None:
            """Four at least, and more as long as each try met the end of one."""
            for number in itertools.count():
                if number >= 4 and (has_moved.is_set() or time.monotonic() > deadline):
                    return
                said.append(run_sample(moved.client))

        runs = [threading.Thread(target=run_samples) for _ in range(2)]
        for thread in runs:
            thread.start()
        moves = 0
        while any(thread.is_alive() for thread in runs):
            with contextlib.suppress(Refused):  # a session has ended meanwhile
                moved.move(sim)
                moves += 1
                has_moved.set()
        for thread in runs:
            thread.join()
    assert moves > 0
    assert len(said) >= 8
    assert said == [expected] * len(said)


def test_what_a_program_has_is_there_after_a_move(sim: Machine, tmp_path: Path) -> None:
    code = f"""
        first = context()
        second = ok(d.cuCtxCreate(None, 0, ok(d.cuDeviceGet(1))))
        ok(d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_STACK_SIZE, 4096))
        other = upload(np.arange(1000, dtype=np.uint32))
        ok(d.cuCtxSetCurrent(first))
        f = function({SEVEN!r}, "k")
        attribute = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        ok(d.cuFuncSetAttribute(f, attribute, 8192))
        library = ok(d.cuLibraryLoadData({SEVEN!r}.encode() + b"\\0", [], [], 0, [], [], 0))
        kernel = ok(d.cuLibraryGetKernel(library, b"k"))
        p = [upload(np.full(n, n % 251, np.uint8)) for n in (1, 511, 513, 1 << 20, (1 << 20) + 1, 5 << 20)]
        s = ok(d.cuStreamCreateWithPriority(1, -1))
        begun, ended = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
        ok(d.cuEventRecord(begun, s)); time.sleep(0.05); ok(d.cuEventRecord(ended, s)); ok(d.cuStreamSynchronize(s))
        before = ok(d.cuEventElapsedTime(begun, ended))
        ranges = [int(x) for q in p for x in ok(d.cuMemGetAddressRange(q))]
        say("ready"); wait()
        heard = {{}}
        heard["memory"] = all((download(q, np.zeros(n, np.uint8)) == n % 251).all()
                              for q, n in zip(p, (1, 511, 513, 1 << 20, (1 << 20) + 1, 5 << 20)))
        heard["ranges"] = ranges == [int(x) for q in p for x in ok(d.cuMemGetAddressRange(q))]
        heard["attribute"] = ok(d.cuFuncGetAttribute(attribute, f)) == 8192
        heard["priority"] = ok(d.cuStreamGetPriority(s)) == -1
        heard["time"] = abs(ok(d.cuEventElapsedTime(begun, ended)) - before) < 0.01
        ok(d.cuEventRecord(ended, s)); ok(d.cuStreamSynchronize(s))
        heard["later"] = ok(d.cuEventElapsedTime(begun, ended)) > before
        ok(d.cuEventRecord(begun, s)); ok(d.cuEventRecord(ended, s)); ok(d.cuStreamSynchronize(s))
        heard["again"] = 0 <= ok(d.cuEventElapsedTime(begun, ended)) < before
        for k in (f, ok(d.cuKernelGetFunction(kernel)), kernel):
            q = upload(np.zeros(1, np.uint32))
            ok(launch(k, 1, 1, q))
            heard[f"kernel {{len(heard)}}"] = int(download(q, np.zeros(1, np.uint32))[0]) == 7
        ok(d.cuCtxSetCurrent(second))
        heard["limit"] = ok(d.cuCtxGetLimit(d.CUlimit.CU_LIMIT_STACK_SIZE)) == 4096
        heard["second card"] = bool((download(other, np.zeros(1000, np.uint32)) == np.arange(1000)).all())
        ok(d.cuCtxDestroy(second)); ok(d.cuCtxSetCurrent(first))
        for q in p:
            ok(d.cuMemFree(q))
        say([k for k, right in heard.items() if not right])
    """
    with movable(sim, tmp_path) as moved, Program(moved.client, code) as program:
        assert program.hear() == "ready"
        moved.move(sim)
        moved.move(sim)
        program.go()
        assert program.hear() == []


def test_handles_of_libraries_keep_their_settings(sim: Machine, tmp_path: Path) -> None:
    code = """
        context()
        blas, nn = ctypes.CDLL("libcublas.so.13"), ctypes.CDLL("libcudnn.so.9")
        at = lambda pointer: ctypes.c_void_p(int(pointer))
        def call(of, name, *arguments):
            got = of[name](*arguments)
            assert got == 0, (name, got)
        def made(of, name):
            object = ctypes.c_void_p()
            call(of, name, ctypes.byref(object))
            return object
        chance = np.random.default_rng(3)
        s, t = ok(d.cuStreamCreate(1)), ok(d.cuStreamCreate(1))
        a, b = (chance.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
        pa, pb, pc = upload(a), upload(b), ok(d.cuMemAlloc(a.nbytes))
        alpha, beta = upload(np.array([1.5], np.float32)), upload(np.array([0], np.float32))
        blas_handle, nn_handle = made(blas, "cublasCreate_v2"), made(nn, "cudnnCreate")
        call(blas, "cublasSetStream_v2", blas_handle, at(t))
        call(blas, "cublasSetStream_v2", blas_handle, at(s))
        call(blas, "cublasSetPointerMode_v2", blas_handle, 1)
        call(nn, "cudnnSetStream", nn_handle, at(s))
        tensor, pooling = made(nn, "cudnnCreateTensorDescriptor"), made(nn, "cudnnCreatePoolingDescriptor")
        small = made(nn, "cudnnCreateTensorDescriptor")
        call(nn, "cudnnSetTensor4dDescriptor", tensor, 0, 0, 1, 1, 64, 64)
        call(nn, "cudnnSetTensor4dDescriptor", small, 0, 0, 1, 1, 8, 8)
        call(nn, "cudnnSetTensor4dDescriptor", small, 0, 0, 1, 1, 32, 32)
        call(nn, "cudnnSetPooling2dDescriptor", pooling, 0, 0, 2, 2, 0, 0, 2, 2)
        ok(d.cuStreamDestroy(t))
        one, none = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
        def step():
            matrices = at(alpha), at(pa), 64, at(pb), 64, at(beta), at(pc), 64
            call(blas, "cublasSgemm_v2", blas_handle, 0, 0, 64, 64, 64, *matrices)
            call(nn, "cudnnPoolingForward", nn_handle, pooling, one, tensor, at(pc), none, small, at(pa))
            ok(d.cuStreamSynchronize(s))
            answer = download(pc, a).tobytes() + download(pa, a).tobytes()
            ok(d.cuMemcpyHtoD(pa, a.ctypes.data, a.nbytes))
            return answer
        first = step()
        right = np.allclose(np.frombuffer(first[: a.nbytes], np.float32).reshape(64, 64), 1.5 * b @ a, atol=1e-3)
        say("ready")
        for _ in range(3):
            wait()
            say(bool(right) and step() == first)
    """
    with movable(sim, tmp_path) as moved, Program(moved.client, code) as program:
        assert program.hear() == "ready"
        for _ in range(3):
            moved.move(sim)
            program.go()
            assert program.hear() is True


PREVENTED: Final = {
    "variables": (
        'm = ok(d.cuModuleLoadData((".version 8.0\\n.target sm_70\\n.address_size 64\\n.global .u32 x;\\n'
        '.global .u64 place = x;\\n.visible .entry k() { ret; }\\n").encode() + b"\\0"))',
        "ok(d.cuModuleUnload(m))",
        "module: its image stays: its variables hold addresses",
    ),
    "pools": (
        "p = ok(d.cuMemAllocAsync(100, 0))",
        "ok(d.cuMemFreeAsync(p, 0)); ok(d.cuCtxSynchronize())",
        "cuMemAllocAsync: memory of the driver's",
    ),
    "graphs": ("g = ok(d.cuGraphCreate(0))", "ok(d.cuGraphDestroy(g))", "graph: not carried"),
    "physical memory": (
        "prop = d.CUmemAllocationProp(); prop.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED\n"
        "        prop.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; prop.location.id = 0\n"
        "        h = ok(d.cuMemCreate(2 << 20, prop, 0))",
        "ok(d.cuMemRelease(h))",
        "cuMemCreate: not carried",
    ),
    "arrays": (
        "a = d.CUDA_ARRAY_DESCRIPTOR(); a.Width = 16; a.Height = 16; a.NumChannels = 1\n"
        "        a.Format = d.CUarray_format.CU_AD_FORMAT_FLOAT; h = ok(d.cuArrayCreate(a))",
        "ok(d.cuArrayDestroy(h))",
        "cuArrayCreate_v2: not carried",
    ),
}


@pytest.mark.parametrize("what", PREVENTED)
def test_what_is_not_carried_prevents_a_move_by_name_as_long_as_it_lives(
    sim: Machine, tmp_path: Path, what: str
) -> None:
    begins, ends, why = PREVENTED[what]
    code = f"""
        context()
        p0 = upload(np.arange(1000, dtype=np.uint32))
        {begins}
        say("ready"); wait()
        right = bool((download(p0, np.zeros(1000, np.uint32)) == np.arange(1000)).all())
        {ends}
        say(right); wait()
        say(bool((download(p0, np.zeros(1000, np.uint32)) == np.arange(1000)).all()))
    """
    with movable(sim, tmp_path) as moved, Program(moved.client, code) as program:
        assert program.hear() == "ready"
        control = Control(moved.executor)
        looked = control.ask("look")
        control.close()
        assert not looked["movable"]
        assert [s["prevents"] for s in looked["sessions"]] == [[why]]
        with pytest.raises(Refused, match=why):
            moved.move(sim)
        program.go()
        assert program.hear() is True
        assert moved.move(sim)["state"] == "restored"
        program.go()
        assert program.hear() is True


@pytest.mark.parametrize("shared", [False, True], ids=["bridge", "shared"])
@pytest.mark.parametrize("how", ["cancel", "hang up", "target ends"])
def test_a_move_that_is_given_up_goes_on_at_the_source(sim: Machine, tmp_path: Path, how: str, shared: bool) -> None:
    with movable(sim, tmp_path, shared=shared) as moved, Program(moved.client, WORK) as program:
        assert program.hear() == "begun"
        control, target = Control(moved.executor), moved.target(sim)
        assert control.send(target.source)["state"] == "restored"
        target.wait_for("restored")
        if how == "cancel":
            control.order("cancel")
        elif how == "target ends":
            target.source.close()
            target.process.kill()
            target.process.wait()
            assert control.ask("finish")["state"] == "refused"
        control.close()
        time.sleep(0.1)
        moved.move(sim)
        program.go()
        right, launched, counted = program.hear()
        assert right
        assert launched == counted > 0


def test_a_target_that_dies_while_it_is_written_to_costs_nothing(sim: Machine, tmp_path: Path) -> None:
    with movable(sim, tmp_path) as moved, Program(moved.client, WORK) as program:
        assert program.hear() == "begun"
        for after in (0, 1000, 100_000, 3_000_000, STOPPED):
            control, (ours, theirs) = Control(moved.executor), socket.socketpair()
            socket.send_fds(control.socket, [b'{"do": "send"}\n'], [theirs.fileno()])
            theirs.close()
            if after:
                ours.sendall(PREPARED * 2)  # what it says when its processes run, and when it has what comes ahead
            left = after
            while left > 0 and (got := len(ours.recv(min(left, 1 << 16)))):
                left -= got
            assert left <= 0
            ours.close()
            assert control.answer()["state"] == "refused"
            control.close()
        moved.move(sim)
        program.go()
        right, launched, counted = program.hear()
        assert right
        assert launched == counted > 0
