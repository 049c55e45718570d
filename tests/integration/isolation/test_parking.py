"""Parking on the simulated card: the memory of an idle program leaves the card, others use the room, and its next call
finds every byte where it was."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from egpu.adapters.slices.asking import ask_to_park
from egpu.adapters.slices.pages import UsageReader
from egpu.adapters.slices.usage import ParkAnswer
from egpu_sim.machines.machine import Machine
from support.long import or_long
from support.parking_slices import MIB, Slice, filler, used
from support.simulated_gpu import STORE
from support.waiting import wait_until

CARDS = ("A100-40G", 1)


@pytest.fixture
def make(sim: Machine, tmp_path: Path) -> Iterator[Callable[..., Slice]]:
    """Makes slices; afterwards nothing may be left on the card."""
    made: list[Slice] = []

    def new(limit: int = 64 * MIB, *, parkable: bool = True) -> Slice:
        made.append(Slice(sim, tmp_path / f"slice-{len(made)}", limit=limit, parkable=parkable))
        return made[-1]

    yield new
    assert used(sim) == 0, "nothing is left on the card"


# Keeps what frameworks keep: pointers, a function, a stream, an executable graph. Each line that it hears is a step.
WORKER = """
ADD = function(VECTOR_ADD, "add")
N = 3 * MIB
stream = ok(d.cuStreamCreate(d.CUstream_flags.CU_STREAM_NON_BLOCKING))
a, b = [np.arange(k, N + k, dtype=np.float32) for k in (0, 7)]
A, B, C = upload(a), upload(b), ok(d.cuMemAlloc(a.nbytes))
little = numbers(3, 100)
SMALL = upload(little)
ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
ok(launch(ADD, N // 256, 256, A, B, C, (N, ctypes.c_uint32), stream=stream))
graph = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(stream)), 0))

def work():
    ok(d.cuGraphLaunch(graph, stream))
    ok(d.cuStreamSynchronize(stream))

def right():
    return [bool((download(p, want) == want).all()) for p, want in ((A, a), (B, b), (C, a + b), (SMALL, little))]
"""


def test_memory_leaves_the_card_and_returns_with_the_next_call(sim: Machine, make: Callable[..., Slice]) -> None:
    mine, other = make(40 * MIB), make(36 * MIB, parkable=False)
    big = 36 * MIB  # three arrays of 12 MiB
    allocate = "say(name(d.cuMemAlloc(36 * MIB)))"
    code = WORKER + "say(ok(d.cuMemGetInfo())); wait(); say(ok(d.cuMemGetInfo())); wait(); work(); say(right())"
    with filler(sim, big + 8 * MIB) as full, mine.start(code) as program:
        info = program.hear()
        before = used(sim)
        assert other.run(allocate) == "OUT_OF_MEMORY"

        assert mine.ask(park=True) is ParkAnswer.DONE
        assert mine.state() == (big, 1, 0)
        assert used(sim) == before - big, "the card has the room"
        assert UsageReader(mine.directory / "usage").read().devices[0].memory_bytes >= big, "and the slice its charge"
        program.go()
        assert program.hear() == info, "what the program sees of its memory stays"
        assert mine.state() == (big, 1, 0), "and to ask for it wakes nothing"

        with other.start("ok(d.cuMemAlloc(36 * MIB)); say('has it'); wait()") as tenant:
            assert tenant.hear() == "has it"
            program.go()  # its call finds the card full, and waits
            time.sleep(0.3)
            assert mine.state() == (big, 1, 0)
        assert program.hear() == [True] * 4
        assert mine.state() == (0, 1, 1)
        assert mine.parking().wait_ns >= 0.2e9, "while the other had the room"
        assert full.process.poll() is None


def test_asked_to_wake(make: Callable[..., Slice]) -> None:
    mine = make()
    with mine.start(WORKER + "work(); say(0); wait(); say(right())") as program:
        program.hear()
        assert mine.ask(park=True) is ParkAnswer.DONE
        assert mine.ask(park=True) is ParkAnswer.DONE, "it is parked"
        assert mine.ask(park=False) is ParkAnswer.WOKEN
        assert mine.state() == (0, 1, 1)
        program.go()
        assert program.hear() == [True] * 4
        assert mine.state() == (0, 1, 1)


def test_a_slice_that_is_not_parkable_has_the_drivers_own_allocations(make: Callable[..., Slice]) -> None:
    code = "p = ok(d.cuMemAlloc(4 * MIB)); say(name(d.cuIpcGetMemHandle(p)))"
    assert make(parkable=False).run(code) == "SUCCESS"
    assert make(parkable=True).run(code) == "NOT_SUPPORTED"


def test_the_limit_is_exact(make: Callable[..., Slice]) -> None:
    assert make(64 * MIB).run(
        """
        first = ok(d.cuMemAlloc(32 * MIB))
        second = ok(d.cuMemAlloc(32 * MIB))
        said = [name(d.cuMemAlloc(2 * MIB)), ok(d.cuMemGetInfo())]
        ok(d.cuMemFree(first)), ok(d.cuMemFree(second))
        say([*said, ok(d.cuMemGetInfo()), name(d.cuMemFree(first))])
        """
    ) == ["OUT_OF_MEMORY", [0, 64 * MIB], [64 * MIB, 64 * MIB], "INVALID_VALUE"]


SHOWN = """
context_now = ok(d.cuCtxGetCurrent())
P = d.CUpointer_attribute
def look(p):
    asked = P.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, P.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, P.CU_POINTER_ATTRIBUTE_RANGE_SIZE
    said = [ok(d.cuPointerGetAttribute(a, p)) for a in asked]
    said += [int(ok(d.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_CONTEXT, p))) == int(context_now)]
    base, size = ok(d.cuMemGetAddressRange(int(p) + 100))
    several = ok(d.cuPointerGetAttributes(2, [asked[2], asked[0]], p))
    return [*map(int, said), int(base) == int(p), size, *map(int, several)]
say(look(ok(d.cuMemAlloc(5 * MIB + 512))))
"""


def test_a_mapping_answers_as_an_allocation(make: Callable[..., Slice]) -> None:
    answers = [make(parkable=parkable).run(SHOWN) for parkable in (True, False)]
    assert answers[0] == answers[1]
    assert 5 * MIB + 512 in answers[0]


SLOW = STORE.replace("DURATION", "6000000")

REFUSALS = {
    "a kernel runs": ("ok(launch(SLOW, 1, 1, A, (1, ctypes.c_uint32)))", ParkAnswer.BUSY),
    "a capture is open": (
        "ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))",
        ParkAnswer.CAPTURING,
    ),
    "memory was handed out": ("ok(d.cuMemRetainAllocationHandle(int(A)))", ParkAnswer.PINNED),
    "memory is for a network card": (
        "ok(d.cuPointerSetAttribute(1, d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, A))",
        ParkAnswer.PINNED,
    ),
    "everything was freed": ("ok(d.cuMemFree(A)), ok(d.cuMemFree(B)), ok(d.cuMemFree(C))", ParkAnswer.NOTHING),
}
"""Why a slice is not parked, by its name."""


@pytest.mark.parametrize("why", list(REFUSALS))
def test_refusals(make: Callable[..., Slice], why: str) -> None:
    code, answer = REFUSALS[why]
    mine = make()
    with mine.start(WORKER + f"SLOW = function({SLOW!r}, 'store')\n{code}\nsay(0); wait()") as program:
        program.hear()
        assert mine.ask(park=True) is answer
        assert mine.state() == (0, 0, 0)


def test_a_busy_program_goes_on(make: Callable[..., Slice]) -> None:
    """Calls keep coming: it is not parked, or was in a pause between two of them and is back at once."""
    mine = make()
    fill = """
import threading
done = []
def fill():
    context()
    while len(done) < 20000: done.append(ok(d.cuMemsetD8(A, 1, 4096)))
thread = threading.Thread(target=fill)
thread.start()
say(0)
thread.join()
"""
    rest = "say(len(done)); ok(d.cuMemcpyHtoD(A, a.ctypes.data, a.nbytes)); work(); say(right()); wait()"
    with mine.start(WORKER + fill + rest) as program:
        program.hear()
        answer = mine.ask(park=True)
        assert program.hear() == 20000
        assert program.hear() == [True] * 4
        parked, parks, wakes = mine.state()
        assert (parked, wakes) == (0, parks)
        assert answer in (ParkAnswer.BUSY, ParkAnswer.DONE)


def test_threads_wait_for_the_memory_together(make: Callable[..., Slice]) -> None:
    mine = make()
    code = (
        WORKER
        + """
work()
say(0)
wait()
from concurrent.futures import ThreadPoolExecutor
def each(k):
    context()
    return bool((download(A, a) == a).all())
with ThreadPoolExecutor(16) as pool:
    say([*pool.map(each, range(64)), *right()])
"""
    )
    with mine.start(code) as program:
        program.hear()
        assert mine.ask(park=True) is ParkAnswer.DONE
        program.go()
        assert program.hear() == [True] * 68
        assert mine.state() == (0, 1, 1)


def test_two_that_wake_never_hold_half_of_the_room_each(sim: Machine, make: Callable[..., Slice]) -> None:
    """Each has three arrays, and the card has room for one of them. Whoever is first ends, and the other goes on."""
    slices = [make(), make()]
    code = WORKER + "work(); say(0); wait(); say(right()); wait()"
    with slices[0].start(code) as one, slices[1].start(code) as two:
        programs = (one, two)
        for program, mine in zip(programs, slices, strict=True):
            program.hear()
            assert mine.ask(park=True) is ParkAnswer.DONE
        with filler(sim, 40 * MIB):
            for program in programs:
                program.go()
            wait_until(lambda: any(mine.state() == (0, 1, 1) for mine in slices), "one is awake")
            first = 0 if slices[0].state()[0] == 0 else 1
            assert slices[1 - first].state() == (36 * MIB, 1, 0)
            assert programs[first].hear() == [True] * 4
            programs[first].go()
            programs[first].process.wait(30)
            assert programs[1 - first].hear() == [True] * 4


def test_killed_while_parked_it_leaves_nothing(sim: Machine, make: Callable[..., Slice]) -> None:
    mine = make()
    with mine.start(WORKER + "say(0); wait()") as program:
        program.hear()
        assert mine.ask(park=True) is ParkAnswer.DONE
        program.kill()
        assert used(sim) == 0
    assert mine.run("say(ok(d.cuMemGetInfo()))") == [64 * MIB, 64 * MIB]


def test_a_child_of_a_parked_program_has_its_own_memory(make: Callable[..., Slice]) -> None:
    mine = make()
    child = "import subprocess; ok(d.cuInit(0)); pid = os.fork(); pid or os._exit(0); say(os.waitpid(pid, 0)[1])"
    with mine.start(WORKER + f"work(); say(0); wait(); {child}; wait(); say(right())") as program:
        program.hear()
        assert mine.ask(park=True) is ParkAnswer.DONE
        program.go()
        assert program.hear() == 0
        program.go()
        assert program.hear() == [True] * 4


def test_what_ends_ends_parked_or_not(make: Callable[..., Slice]) -> None:
    """Memory goes with its context, and a slice that was parked before is as one that was not."""
    mine = make()
    with mine.start(
        WORKER + "say(0); wait(); ok(d.cuDevicePrimaryCtxReset(0)); context(); say(ok(d.cuMemGetInfo()))"
    ) as program:
        program.hear()
        assert mine.ask(park=True) is ParkAnswer.DONE
        program.go()
        assert program.hear() == [64 * MIB, 64 * MIB]


def test_to_end_needs_no_room_on_the_card(sim: Machine, make: Callable[..., Slice]) -> None:
    """What a program frees, and its exit, wake nothing: it would wait for a card that is full."""
    mine = make()
    ends = "ok(d.cuMemFree(A)); say(ok(d.cuMemGetInfo())[1]); wait(); ok(d.cuDevicePrimaryCtxReset(0)); say(0)"
    with mine.start(WORKER + f"say(0); wait(); {ends}") as program:
        program.hear()
        assert mine.ask(park=True) is ParkAnswer.DONE
        with filler(sim, 8 * MIB):
            program.go()
            program.hear()
            assert mine.state() == (24 * MIB, 1, 0)
            program.go()
            program.hear()
            assert program.process.wait(30) == 0


MIX = """
import hashlib, random, threading
random.seed(SEED)
ADD = function(VECTOR_ADD, "add")
N = 1 << 19
streams = [ok(d.cuStreamCreate(d.CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in range(3)]
held = [(upload(numbers(k, N).astype(np.float32)), N) for k in range(5)]
host = np.zeros(N, dtype=np.float32)

def step(k):
    kind, stream = random.randrange(7), random.choice(streams)
    (a, n), (b, _), (c, _) = random.sample(held, 3)
    if kind == 0: ok(launch(ADD, n // 256, 256, a, b, c, (n, ctypes.c_uint32), stream=stream))
    if kind == 1: ok(d.cuMemsetD32Async(a, k, n // 2, stream))
    if kind == 2: ok(d.cuMemcpyDtoDAsync(a, b, 4 * n, stream))
    if kind == 3: ok(d.cuMemcpyHtoD(int(a) + 4096, host.ctypes.data, 4096))
    if kind == 4: held.append((ok(d.cuMemAlloc(4 * N)), N)); ok(d.cuMemcpyDtoD(held[-1][0], a, 4 * N))
    if kind == 5 and len(held) > 5: ok(d.cuMemFree(held.pop(random.randrange(len(held)))[0]))
    if kind == 6:
        ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        ok(launch(ADD, n // 256, 256, a, b, c, (n, ctypes.c_uint32), stream=stream))
        graph = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(stream)), 0))
        ok(d.cuGraphLaunch(graph, stream))
        ok(d.cuStreamSynchronize(stream))
        ok(d.cuGraphExecDestroy(graph))
    ok(d.cuStreamSynchronize(stream))

for k in range(STEPS):
    step(k)
    if k % 2 == 0: time.sleep(random.random() * PAUSE)
digest = hashlib.sha256()
for pointer, n in held: digest.update(download(pointer, np.zeros(n, dtype=np.float32)).tobytes())
say(digest.hexdigest())
"""


def test_parked_at_random_points_it_computes_the_same_bits(make: Callable[..., Slice]) -> None:
    wanted, seed = or_long(4, 100), 7
    mix = MIX.replace("SEED", str(seed)).replace("STEPS", str(8 * wanted))
    plain = make(256 * MIB, parkable=False).run(mix.replace("PAUSE", "0"))
    mine = make(256 * MIB)
    answers: list[ParkAnswer] = []
    with mine.start(mix.replace("PAUSE", "0.2")) as program:
        said = threading.Thread(target=lambda: answers.append(program.hear()))
        wait_until(lambda: UsageReader(mine.directory / "usage").read().processes, "a process")
        said.start()
        while said.is_alive():
            ask_to_park(mine.directory / "policy", park=True)
            time.sleep(0.05)
        parks = mine.parking().parks
    assert answers == [plain]
    assert parks >= wanted, f"{parks} parks"
