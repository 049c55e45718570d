"""NCCL: what a server's own is asked to do, in groups and without, and who may ask it."""

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Final, Literal

import msgspec
import pytest

from egpu.adapters.executors.confinement import Confinement, ConfinementConfig
from egpu.adapters.executors.parents import ThisProcess
from egpu.adapters.executors.process import Executor
from egpu.adapters.executors.record import ExecutorRecord
from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.api.allocation import CardShare
from egpu_sim.machines.machine import Machine
from support.nccl_programs import ANSWERS, LOSES, RANK, START
from support.remote_gpu import client_dir, remote
from support.sanitizers import KIND
from support.simulated_gpu import Program, run
from support.waiting import wait_until

CARDS = ("A100-80G", 2)
NATIVE: Final = Path(__file__).resolve().parents[3] / "native"


def with_nccl(sim: Machine, folder: Path, source: str, *flags: str) -> Machine:
    """The machine with another NCCL."""
    for item in sim.driver_dir.iterdir():
        if item.name != "libnccl.so.2":
            (folder / item.name).symlink_to(item.resolve())
    flags = (*flags, "-shared", "-fPIC", "-I", str(NATIVE / "wire"))
    built = folder / "libnccl.so.2"
    subprocess.run(["cc", *flags, "-o", str(built), str(NATIVE / "tests" / "libraries" / source)], check=True)
    return Machine(sim.node_name, sim.directory, folder, sim.device_dir, sim.state, sim.cards)


@pytest.fixture(scope="module")
def recording(sim: Machine, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine whose NCCL says what arrives."""
    return with_nccl(
        sim, tmp_path_factory.mktemp("recording"), "recording.c", '-DRECORDING="generated/recording_nccl.h"'
    )


@pytest.fixture(scope="module")
def endless(sim: Machine, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine whose NCCL is never done, and has nobody use a communicator that is gone."""
    return with_nccl(sim, tmp_path_factory.mktemp("endless"), "waiting_nccl.c")


GROUPS: Final = (
    START
    + """
    def comm():
        return ctypes.c_void_p()
    def group(*calls):
        call("ncclGroupStart")
        for each in calls:
            call(*each)
        call("ncclGroupEnd")
    def reduce(of, at):
        long = ctypes.c_size_t
        return ("ncclAllReduce", ctypes.c_void_p(at), ctypes.c_void_p(at), long(4), FLOAT, SUM, of, None)
    unique = Id(bytes(range(1, 129)))
    one, two, three, nobody = comm(), comm(), comm(), ctypes.c_void_p(1)
    call("ncclCommInitRank", ctypes.byref(one), 1, unique, 0)
    group(("ncclCommInitRankConfig", ctypes.byref(two), 3, unique, 2, ctypes.byref(config())))
    call(*reduce(one, 0x1000))  # waits, for it connects
    call(*reduce(one, 0x2000))
    group(reduce(one, 0x3000), reduce(two, 0x4000))
    group()
    call("ncclGroupStart")
    group(reduce(one, 0x5000))  # nothing goes before the outermost ends
    call("ncclGroupEnd")
    call("ncclCommSplit", one, 4, 5, ctypes.byref(three), None)
    call("ncclCommSplit", one, -1, 5, ctypes.byref(nobody), None)
    assert three.value and nobody.value is None
    call("ncclCommShrink", two, (ctypes.c_int * 2)(0, 1), 2, ctypes.byref(three), None, 1)
    call("ncclCommInitRankScalable", ctypes.byref(three), 2, 1, 2, (Id * 2)(unique, unique), None)
    both = (ctypes.c_void_p * 2)()
    call("ncclCommInitAll", both, 2, (ctypes.c_int * 2)(1, 0))
    assert len({one.value, two.value, three.value, *both}) == 5
    said = [nccl.ncclGroupEnd(), nccl.ncclCommInitRank(ctypes.byref(three), 2, unique, 2)]
    for wrong in (config(magic=1), config(size=8)):
        said.append(nccl.ncclCommInitRankConfig(ctypes.byref(three), 1, unique, 0, ctypes.byref(wrong)))
    call("ncclCommDestroy", one)
    said.append(nccl.ncclCommDestroy(one))
    said.append(nccl.ncclAllReduce(*reduce(one, 1)[1:]))
    memory = ctypes.c_uint64()
    call("ncclMemAlloc", ctypes.byref(memory), ctypes.c_size_t(4096))
    assert memory.value
    call("ncclMemFree", memory)
    say(said)
"""
)


def word(value: int) -> str:
    """A word, as the recording says it."""
    return f"w{value.to_bytes(8, 'little').hex()}"


def test_groups_go_together_and_communicators_are_the_servers(recording: Machine, tmp_path: Path) -> None:
    with remote(recording, tmp_path, "shm", "--network") as (client, executor, _):
        assert run(client, GROUPS) == [5, 4, 4, 4, 4, 4]  # ncclInvalidUsage, ncclInvalidArgument
    lines = [line.split()[1:] for line in executor.stderr().splitlines() if line.startswith("recorded ")]
    unique, ours = f"b{bytes(range(1, 129)).hex()}", "b" + "".join(f"{n:02x}000000" for n in (7, 8, 9))
    none, start, end = "b" + "00000080" * 3, ["ncclGroupStart"], ["ncclGroupEnd"]

    def reduced(*addresses: int) -> list[tuple[str, str]]:
        return [("ncclAllReduce", word(at)) for at in addresses]

    said = [(words[0], *words[1:2]) if words[0] == "ncclAllReduce" else words for words in lines]
    assert said[:6] == [
        start, ["ncclCommInitRankConfig", word(1), unique, word(0), none], end,
        start, ["ncclCommInitRankConfig", word(3), unique, word(2), ours], end,
    ]  # fmt: skip
    assert said[6:16] == [
        start, *reduced(0x1000), end, *reduced(0x2000), start, *reduced(0x3000, 0x4000), end, start, *reduced(0x5000),
    ]  # fmt: skip
    made = [words for words in lines[17:] if not words[0].startswith("ncclGroup")]
    one, two = word(0x1000), word(0x2000)
    assert made[:4] == [
        ["ncclCommSplit", one, word(4), word(5), none],
        ["ncclCommSplit", one, word(0xFFFFFFFF), word(5), none],
        ["ncclCommShrink", two, "b0000000001000000", word(1), none],
        ["ncclCommInitRankScalable", word(2), word(1), f"{unique}{unique[1:]}", none],
    ]
    assert made[4][0] == "ncclCommInitAll"
    assert made[4][3] == "b0100000000000000"
    assert [words[0] for words in made[5:]] == ["ncclCommDestroy"]


REFUSED: Final = (
    START
    + """
    made = ctypes.c_void_p(1)
    call("ncclCommInitRank", ctypes.byref(made), 1, Id(b"x"), 0, status=5)
    say(made.value)
"""
)


def test_a_server_that_does_not_allow_it_says_so(recording: Machine, tmp_path: Path) -> None:
    with remote(recording, tmp_path, "shm") as (client, executor, _):
        assert run(client, REFUSED) is None
        assert "ncclCommInitRankConfig" not in executor.stderr()


@pytest.mark.parametrize("where", ["slice", "shm", "tcp"])
def test_ranks_exchange_data(sim: Machine, tmp_path: Path, where: Literal["slice", "shm", "tcp"]) -> None:
    """Over shared memory, of an executor that is held as `egpu serve` holds one."""
    ranks = 3
    held = [*Confinement(ConfinementConfig(cgroup="none", users="none")).show(sim.driver_dir, []), "--network"]
    with contextlib.ExitStack() as stack:
        on: Machine | Path = sim
        if where != "slice":
            on = stack.enter_context(remote(sim, tmp_path, where, *(held if where == "shm" else ["--network"])))[0]
        meet = {"RANKS": str(ranks), "MEET": str(tmp_path / "meet")}
        running = [stack.enter_context(Program(on, ANSWERS, {**meet, "RANK": str(rank)})) for rank in range(ranks)]
        weights = [program.hear() for program in running]
    target = [sum(i % 5 + rank + 1 for rank in range(ranks)) / ranks for i in range(64)]
    assert weights[0] == weights[1] == weights[2]
    assert weights[0] == pytest.approx([(1 - 0.9**20) * value for value in target], rel=1e-4)


SEVERAL: Final = (
    RANK
    + """
    import threading
    devices = [context(ordinal) for ordinal in (0, 1)]
    streams, memory = [], []
    for each, ctx in enumerate(devices):
        ok(d.cuCtxSetCurrent(ctx))
        streams.append(pointer(int(ok(d.cuStreamCreate(1)))))
        memory.append(pointer(int(upload(np.full(5000, each + 1, np.float32)))))
    def reduce(each, comm):
        call("ncclAllReduce", memory[each], memory[each], size(5000), FLOAT, SUM, comm, streams[each])
    def values():
        got = []
        for each, ctx in enumerate(devices):
            ok(d.cuCtxSetCurrent(ctx))
            ok(d.cuStreamSynchronize(streams[each].value))
            got.append(float(download(memory[each].value, np.zeros(5000, np.float32)).mean()))
        return got
    # one thread has both ranks: what would wait is in groups
    both = (pointer * 2)()
    call("ncclCommInitAll", both, 2, None)
    def together():
        call("ncclGroupStart")
        for each, comm in enumerate(both):
            reduce(each, pointer(comm))
        call("ncclGroupEnd")
        return values()
    answers = [together(), together()]
    unique = Id()
    call("ncclGetUniqueId", ctypes.byref(unique))
    made = [pointer(), pointer()]
    call("ncclGroupStart")
    for each, ctx in enumerate(devices):
        ok(d.cuCtxSetCurrent(ctx))
        call("ncclCommInitRank", ctypes.byref(made[each]), 2, unique, each)
    call("ncclGroupEnd")
    both[:] = made
    answers.append(together())
    # a thread for each: one that waits does not keep the other from what it waits for
    call("ncclGetUniqueId", ctypes.byref(unique))
    def work(each):
        ok(d.cuCtxSetCurrent(devices[each]))
        mine = pointer()
        call("ncclCommInitRank", ctypes.byref(mine), 2, unique, each)
        for _ in range(3):
            reduce(each, mine)
        ok(d.cuStreamSynchronize(streams[each].value))
        call("ncclCommDestroy", mine)
        finished.append(each)
    finished = []
    threads = [threading.Thread(target=work, args=(each,)) for each in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(finished) == [0, 1]
    answers.append(values())
    for comm in both:
        call("ncclCommDestroy", pointer(comm))
    say(answers)
"""
)


@pytest.mark.parametrize("where", ["slice", "shm"])
def test_ranks_of_one_process(sim: Machine, tmp_path: Path, where: Literal["slice", "shm"]) -> None:
    with contextlib.ExitStack() as stack:
        on = sim if where == "slice" else stack.enter_context(remote(sim, tmp_path, where, "--network"))[0]
        program = stack.enter_context(Program(on, SEVERAL, {"RANK": "0", "RANKS": "2", "MEET": ""}))
        assert program.hear() == [[3, 3], [6, 6], [12, 12], [96, 96]]


@pytest.mark.parametrize("where", ["slice", "shm", "tcp"])
def test_a_lost_rank_is_an_error_for_the_others(
    sim: Machine, tmp_path: Path, where: Literal["slice", "shm", "tcp"]
) -> None:
    with contextlib.ExitStack() as stack:
        on: Machine | Path = sim
        if where != "slice":
            on = stack.enter_context(remote(sim, tmp_path, where, "--network", "--grace", "0"))[0]
        meet = {"RANKS": "3", "MEET": str(tmp_path / "meet")}
        ranks = [stack.enter_context(Program(on, LOSES, {**meet, "RANK": str(rank)})) for rank in range(3)]
        assert [rank.hear() for rank in ranks] == ["together"] * 3
        for rank in ranks:
            rank.go()
        ranks[2].kill()
        assert [rank.hear() for rank in ranks[:2]] == [6, 6]  # ncclRemoteError
        assert [rank.hear() for rank in ranks[:2]] == ["error", "error"]
        assert [rank.hear() for rank in ranks[:2]] == [4, 4]


class Owner(msgspec.Struct, frozen=True):
    """Nobody in particular."""


def executor_of(
    executors: ExecutorSupervisor[Owner], sim: Machine, name: str, who: str, card: int
) -> tuple[Executor[Owner], Path]:
    """A lease's, and the driver directory of a program in it."""
    uuid = sim.cards[card].uuid
    share = CardShare(uuid=uuid, index=card, minor=card, core=100, memory_mib=1024)
    record = ExecutorRecord(name=name, owner=Owner(), cards=(share,), minors={uuid: card}, network=who)
    executor = asyncio.run(executors.start(record))
    client = client_dir(executor.directory.parent.parent / f"client-{name}")
    (client / "lease.sock").symlink_to(executor.socket)
    return executor, client


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: one executor enters the network of another")
@pytest.mark.skipif(KIND == "address", reason="executors of a daemon are not told to load that runtime first")
def test_leases_of_one_caller_share_a_network(sim: Machine, tmp_path: Path) -> None:
    confinement = Confinement(ConfinementConfig(cgroup="none", network=True))
    executors = ExecutorSupervisor(tmp_path / "leases", Owner, parent=ThisProcess(sim.driver_dir, confinement))
    started = [
        executor_of(executors, sim, name, who, card)
        for name, who, card in (("one", "ann", 0), ("two", "ann", 1), ("three", "bob", 0))
    ]
    try:
        one, two, three = (os.stat(f"/proc/{each.process.pid}/ns/net").st_ino for each, _ in started)
        assert one == two
        assert len({one, three, os.stat("/proc/self/ns/net").st_ino}) == 3
        pair = {"RANKS": "2", "MEET": str(tmp_path / "meet")}
        with contextlib.ExitStack() as stack:
            ranks = [
                stack.enter_context(Program(client, ANSWERS, {**pair, "RANK": str(rank)}))
                for rank, (_, client) in enumerate(started[:2])
            ]
            weights = [rank.hear() for rank in ranks]
        assert weights[0] == weights[1]
        assert run(started[2][1], STRANGER, {**pair, "RANK": "1"}) == [6, 0]  # ncclRemoteError
        pair["MEET"] += "-again"
        with contextlib.ExitStack() as stack:
            stays, goes = (
                stack.enter_context(Program(client, LOSES, {**pair, "RANK": str(rank)}))
                for rank, (_, client) in enumerate(started[:2])
            )
            assert [stays.hear(), goes.hear()] == ["together"] * 2
            stays.go()
            os.killpg(started[1][0].process.pid, signal.SIGKILL)
            assert stays.hear() == 6
    finally:
        for executor, _ in started:
            executor.end()


JOINS: Final = (
    RANK
    + """
    say(error(join(meet, rank, ranks)))
    wait()  # who ends is lost to the other one
"""
)

STRANGER: Final = (
    RANK
    + """
    taken = Id.from_buffer_copy(open(meet, "rb").read())
    made, said = pointer(), []
    said.append(nccl.ncclCommInitRank(ctypes.byref(made), ranks, taken, rank))
    ours = Id()
    call("ncclGetUniqueId", ctypes.byref(ours))
    forged = Id.from_buffer_copy(bytes(taken)[:16] + bytes(ours)[16:])
    call("ncclCommInitRank", ctypes.byref(made), 1, forged, 0)  # it is alone there
    say([*said, error(made)])
"""
)


def test_a_unique_id_lets_no_other_lease_in(sim: Machine, tmp_path: Path) -> None:
    ours, theirs, meet = tmp_path / "ours", tmp_path / "theirs", tmp_path / "meet"
    pair = {"RANKS": "2", "MEET": str(meet)}
    with (
        remote(sim, ours, "shm", "--network", "--grace", "0") as (mine, _, _),
        remote(sim, theirs, "shm", "--network") as (other, _, _),
        Program(mine, JOINS, {**pair, "RANK": "0"}) as waiting,
    ):
        wait_until(meet.exists)
        assert run(other, STRANGER, {**pair, "RANK": "1"}) == [6, 0]  # ncclRemoteError
        with Program(mine, JOINS, {**pair, "RANK": "1"}) as second:
            assert [waiting.hear(), second.hear()] == [0, 0]


WAITS: Final = (
    RANK
    + """
    import threading
    done = []
    def come():
        unique, made = Id(), pointer()
        call("ncclGetUniqueId", ctypes.byref(unique))
        done.append(nccl.ncclCommInitRank(ctypes.byref(made), 2, unique, 0))
    thread = threading.Thread(target=come, daemon=True)
    thread.start()
    at = upload(np.arange(10, dtype=np.float32))  # others go on, and another communicator is made
    alone = join(meet, 0, 1)
    call("ncclAllReduce", pointer(int(at)), pointer(int(at)), size(10), FLOAT, SUM, alone, None)
    say([float(download(at, np.zeros(10, np.float32)).sum()), done])
    wait()
"""
)


def test_a_rank_that_never_comes_keeps_nobody_else(sim: Machine, tmp_path: Path) -> None:
    with remote(sim, tmp_path, "tcp", "--network", "--grace", "0") as (client, executor, _):
        with Program(client, WAITS, {"RANK": "0", "RANKS": "1", "MEET": str(tmp_path / "meet")}) as program:
            assert program.hear() == [45, []]
        wait_until(lambda: executor.children() == [])  # it waits there no longer than its program lives


GIVES_UP: Final = (
    RANK
    + """
    comm = join(meet, rank, ranks)
    at = pointer(int(upload(np.ones(1000, np.float32))))
    call("ncclAllReduce", at, at, size(1000), FLOAT, SUM, comm, None)
    ok(d.cuCtxSynchronize())  # both are there
    if rank == 0:
        for _ in range(2):  # of which the other one takes no part in any
            call("ncclAllReduce", at, at, size(1000), FLOAT, SUM, comm, None)
        call("ncclCommAbort", comm)
        ok(d.cuCtxSynchronize())
    while rank == 1 and error(comm) == 0:
        time.sleep(0.01)
    say(rank == 0 or error(comm))
"""
)


@pytest.mark.parametrize("where", ["slice", "shm"])
def test_who_aborts_waits_for_nobody(sim: Machine, tmp_path: Path, where: Literal["slice", "shm"]) -> None:
    with contextlib.ExitStack() as stack:
        on = sim if where == "slice" else stack.enter_context(remote(sim, tmp_path, where, "--network"))[0]
        pair = {"RANKS": "2", "MEET": str(tmp_path / "meet")}
        ranks = [stack.enter_context(Program(on, GIVES_UP, {**pair, "RANK": str(rank)})) for rank in range(2)]
        assert [rank.hear() for rank in ranks] == [True, 6]  # ncclRemoteError


ENDED: Final = (
    START
    + """
    import threading
    at, long = ctypes.c_void_p(0x1000), ctypes.c_size_t
    def made():
        comm = ctypes.c_void_p()
        call("ncclCommInitRank", ctypes.byref(comm), 1, Id(b"x"), 0)
        return comm
    def threads(*calls):
        said = {}
        def one(number, name, *arguments):
            said[number] = nccl[name](*arguments)
        started = [threading.Thread(target=one, args=(number, *each)) for number, each in enumerate(calls)]
        for thread in started:
            thread.start()
        return started, said
    def reduces(comm, grouped):
        if grouped:
            call("ncclGroupStart")
        said = nccl.ncclAllReduce(at, at, long(4), FLOAT, SUM, comm, None)
        return nccl.ncclGroupEnd() if grouped else said
    answers = []
    for grouped in (False, True):
        comm, said = made(), []
        waiter = threading.Thread(target=lambda: said.append(reduces(comm, grouped)))
        waiter.start()
        error = ctypes.c_int()
        while error.value != 7:  # ncclInProgress: it waits there
            call("ncclCommGetAsyncError", comm, ctypes.byref(error))
        call("ncclCommAbort", comm)
        waiter.join()
        answers.append(said[0] != 0)
    for ends in ("ncclCommDestroy", "ncclCommAbort"):
        comm = made()
        started, said = threads((ends, comm), ("ncclCommDestroy", comm), ("ncclCommAbort", comm))
        for thread in started:
            thread.join()
        answers.append(sorted(said.values()))
    say(answers)
"""
)


def test_a_communicator_is_ended_once_and_used_by_nobody_after(endless: Machine, tmp_path: Path) -> None:
    with remote(endless, tmp_path, "shm", "--network") as (client, _, _):
        assert run(client, ENDED) == [True, True, [0, 4, 4], [0, 4, 4]]
