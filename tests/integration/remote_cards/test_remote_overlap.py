"""Copies to a remote card go through memory of both sides, and do not wait for what their streams do before them."""

from pathlib import Path

from egpu_sim.machines.machine import Machine
from support.remote_gpu import remote
from support.simulated_gpu import run

CARDS = ("T4", 1)

COPIES = """
import threading
ctx, size = context(), 3 << 19
one, other = ok(d.cuStreamCreate(1)), ok(d.cuStreamCreate(1))
def data(seed):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)
def upload_on(stream, seed):
    at, source = ok(d.cuMemAlloc(size)), data(seed)
    ok(d.cuMemcpyHtoDAsync(at, source.ctypes.data, size, stream))
    source.fill(0)
    return at, seed
def right(copied):
    at, seed = copied
    out = np.zeros(size, np.uint8)
    ok(d.cuCtxSynchronize())
    ok(d.cuMemcpyDtoH(out.ctypes.data, at, size))
    return bool((out == data(seed)).all())
"""
SLOW = """
at = ok(d.cuMemAlloc(4))
ok(launch(function(STORE.replace("DURATION", "3000000"), "store"), 1, 1, at, (1, ctypes.c_uint32), stream=one))
"""


def test_a_thread_goes_on_while_its_copy_waits_for_a_kernel(sim: Machine, tmp_path: Path) -> None:
    """And what it copied from is its own again, as is the memory that the copies went through."""
    program = """
first = upload_on(one, 1)
waits = int(d.cuStreamQuery(one)[0])
others = [upload_on(other, seed) for seed in range(2, 8)]
ok(d.cuStreamSynchronize(other))
say([waits, [right(each) for each in [first, *others]], [right(upload_on(one, seed)) for seed in range(8, 12)]])
"""
    with remote(sim, tmp_path, "shm") as (client, _, _):
        assert run(client, COPIES + SLOW + program) == [600, [True] * 7, [True] * 4]


def test_copies_that_wait_leave_room_for_those_of_other_threads(sim: Machine, tmp_path: Path) -> None:
    """The blocked stream goes on once another thread has copied."""
    program = """
go, copied = threading.Event(), []
blocks = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: go.wait())
ok(d.cuLaunchHostFunc(one, d.CUhostFn(ctypes.cast(blocks, ctypes.c_void_p).value), 0))
def copy():
    ok(d.cuCtxSetCurrent(ctx))
    copied.extend(upload_on(other, seed) for seed in range(20, 26))
    ok(d.cuStreamSynchronize(other))
    go.set()
waiting = [upload_on(one, seed) for seed in range(6)]
thread = threading.Thread(target=copy)
thread.start()
thread.join()
ok(d.cuStreamSynchronize(one))
say([right(each) for each in waiting + copied])
"""
    with remote(sim, tmp_path, "shm") as (client, _, _):
        assert run(client, COPIES + program) == [True] * 12


def test_copies_on_the_way_break_no_capture(sim: Machine, tmp_path: Path) -> None:
    """The executor asks for their events while the program captures in the mode that allows nobody to."""
    program = """
GLOBAL = d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
store = function(STORE.replace("DURATION", "1"), "store")
way = upload_on(one, 1)
ok(d.cuStreamBeginCapture(other, GLOBAL))
time.sleep(0.2)
ok(launch(store, 1, 1, at, (1, ctypes.c_uint32), stream=other))
captured = name(d.cuStreamEndCapture(other)[:1])
say([captured, int(d.cuStreamQuery(one)[0]), right(way)])
"""
    with remote(sim, tmp_path, "shm") as (client, _, _):
        assert run(client, COPIES + "import time\n" + SLOW + program) == ["SUCCESS", 600, True]


def test_a_context_that_ends_with_copies_on_the_way_takes_no_room_with_it(sim: Machine, tmp_path: Path) -> None:
    program = """
upload_on(one, 1)
ok(d.cuDevicePrimaryCtxRelease(ok(d.cuDeviceGet(0))))
context()
one = ok(d.cuStreamCreate(1))
say([right(upload_on(one, seed)) for seed in range(12)])
"""
    with remote(sim, tmp_path, "shm") as (client, _, _):
        assert run(client, COPIES + SLOW + program) == [True] * 12
