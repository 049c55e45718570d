"""Images of modules are sent once for a caller, not once for a program: what is asked for, by whom, and after what."""

import asyncio
import hashlib
import os
import random
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_confinement import Owner

from egpu.adapters.executors.confinement import Confinement, ConfinementConfig
from egpu.adapters.executors.images import Images
from egpu.adapters.executors.parents import ThisProcess
from egpu.adapters.executors.process import Executor
from egpu.adapters.executors.record import ExecutorRecord
from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.api.allocation import CardShare
from egpu_base.system.processes import start_time
from egpu_sim.machines.machine import Machine
from support.local_pool import LocalPool, local_pool
from support.raw_session import Raw
from support.remote_gpu import remote
from support.simulated_gpu import environment
from support.waiting import DEADLINE_SECONDS, wait_until

CARDS = ("T4", 1)
PIECE = 128 * 1024
MODULE = random.Random(7).randbytes(1_000_001)
"""Longer than what comes along unasked, and no whole number of pages."""


def digest(image: bytes) -> bytes:
    return hashlib.sha256(image).digest()


def is_asked_for(raw: Raw, image: bytes, *, under: bytes | None = None) -> bool:
    """Whether the executor wants it sent. There is no context, so it is not loaded in either case."""
    named = (under or digest(image)) + struct.pack("<QQII", len(image), 0, 0, 0)
    result, reply = raw.call("MODULE_LOAD", named)
    known = struct.unpack_from("<I", reply)[0]
    assert (result == 0) == (known == 0), (result, known)
    return known == 0


def send(raw: Raw, image: bytes) -> None:
    post(raw, image)
    assert not is_asked_for(raw, image)


def post(raw: Raw, image: bytes) -> None:
    named = digest(image)
    for at in range(0, len(image), PIECE):
        part = image[at : at + PIECE]
        head = named + struct.pack("<QQII", len(image), at, len(part), 0)
        raw.post("IMAGE", head + part + bytes(-len(part) % 8), flags=0)


class Leases:
    """Leases of one server's only card."""

    def __init__(self, sim: Machine, state: Path, confinement: Confinement) -> None:
        self.card = sim.cards[0].uuid
        self.driver_dir = sim.driver_dir
        self.state = state
        self.confinement = confinement
        self.started: list[Executor[Owner]] = []
        self.restart()

    def restart(self, *, total_mib: int = 512) -> None:
        self.images = Images(self.state / "images", total_mib)
        parent = ThisProcess(self.driver_dir, self.confinement, self.images)
        self.executors = ExecutorSupervisor(self.state / "leases", Owner, parent=parent, private=True)

    def start(self, name: str, caller: str) -> Executor[Owner]:
        cards = (CardShare(uuid=self.card, index=0, minor=0, core=30, memory_mib=512),)
        record = ExecutorRecord(name=name, owner=Owner(), cards=cards, minors={self.card: 0}, caller=caller)
        self.started.append(asyncio.run(self.executors.start(record)))
        return self.started[-1]

    def files(self, *, drafts: bool = False) -> list[Path]:
        pattern = "images/*/new-*" if drafts else "images/*/[0-9a-f]*"
        return [path for path in self.state.glob(pattern) if drafts or len(path.name) == 64]


@pytest.fixture(params=["", "none"], ids=["a user each", "the daemon's user"])
def leases(request: pytest.FixtureRequest, sim: Machine, tmp_path: Path) -> Iterator[Leases]:
    confinement = Confinement(ConfinementConfig(cgroup="none", users=request.param))
    if not request.param and confinement.users is None:
        pytest.skip(confinement.told)
    made = Leases(sim, tmp_path, confinement)
    if "in memory" in made.images.told:
        pytest.skip(made.images.told)
    try:
        yield made
    finally:
        for executor in made.started:
            executor.end()


def keeper(executor: Executor[Owner]) -> int:
    """The process that keeps its caller's images."""
    children = Path(f"/proc/{executor.process.pid}/task/{executor.process.pid}/children").read_text().split()
    (found,) = (int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() == "egpu-images\n")
    return found


def test_an_image_is_sent_once_for_a_caller_and_once_for_every_caller(leases: Leases) -> None:
    one, other, strange = (leases.start(name, caller) for name, caller in (("a", "ann"), ("b", "ann"), ("c", "bob")))
    first = Raw(one.socket)
    assert is_asked_for(first, MODULE)
    send(first, MODULE)
    assert not is_asked_for(Raw(one.socket), MODULE)  # another program of the lease
    assert not is_asked_for(Raw(other.socket), MODULE)  # another lease
    theirs = Raw(strange.socket)
    assert is_asked_for(theirs, MODULE)  # another caller learns nothing
    send(theirs, MODULE)
    assert len(leases.files()) == 2
    assert {path.stat().st_nlink for path in leases.files()} == {1}
    assert {path.stat().st_mode & 0o777 for path in leases.files()} == {0o400}
    for executor in leases.started:
        executor.end()
    leases.restart()
    assert not is_asked_for(Raw(leases.start("d", "ann").socket), MODULE)  # the next lease, of the next daemon
    assert is_asked_for(Raw(leases.start("e", "nobody knows").socket), MODULE)


def test_small_images_and_leases_of_nobody_leave_nothing(leases: Leases) -> None:
    raw = Raw(leases.start("a", "").socket)
    send(raw, MODULE)
    assert is_asked_for(Raw(leases.started[0].socket), MODULE)
    small = Raw(leases.start("b", "ann").socket)
    send(small, MODULE[:30_000])
    assert not leases.files()


def test_what_does_not_have_its_digest_is_not_loaded_and_is_replaced(leases: Leases) -> None:
    executor = leases.start("a", "ann")
    send(Raw(executor.socket), MODULE)
    (file,) = leases.files()
    for wrong in (MODULE[:-1] + b"x\0", MODULE + b"x", MODULE, b""):
        file.chmod(0o600)
        file.write_bytes(wrong)
        raw = Raw(executor.socket)
        assert is_asked_for(raw, MODULE), wrong[-2:]
        send(raw, MODULE)
        assert file.read_bytes() == MODULE + b"\0"
        assert not is_asked_for(Raw(executor.socket), MODULE)


def test_a_loaded_image_stays_with_its_session_when_its_file_goes(leases: Leases) -> None:
    executor = leases.start("a", "ann")
    raw = Raw(executor.socket)
    send(raw, MODULE)
    leases.files()[0].unlink()
    assert not is_asked_for(raw, MODULE)
    assert is_asked_for(Raw(executor.socket), MODULE)


def test_without_its_keeper_a_session_has_its_own(leases: Leases) -> None:
    executor = leases.start("a", "ann")
    before = Raw(executor.socket)
    send(before, MODULE)
    os.kill(keeper(executor), signal.SIGKILL)
    wait_until(lambda: "the keeper of images has ended" in (executor.directory / "log").read_text())
    assert not is_asked_for(before, MODULE)
    for raw in (before, Raw(executor.socket)):
        assert is_asked_for(raw, MODULE[1:])
        send(raw, MODULE[1:])


def test_whatever_is_killed_while_an_image_is_kept_nothing_is_left(leases: Leases) -> None:
    """The keeper is stopped, so that the session is in the middle of it; then either is killed."""
    for name, victim in (("a", "keeper"), ("b", "executor")):
        executor = leases.start(name, "ann")
        raw, stopped = Raw(executor.socket), keeper(executor)
        assert is_asked_for(raw, MODULE[2:])
        os.kill(stopped, signal.SIGSTOP)
        post(raw, MODULE[2:])
        os.kill(stopped if victim == "keeper" else executor.process.pid, signal.SIGKILL)
        executor.end()
        assert start_time(stopped) == 0  # nothing of it runs
        assert not leases.files()
    draft = next(leases.state.glob("images/*")) / "new-1-0"
    draft.write_bytes(b"what a killed writer has left")
    send(Raw(leases.start("c", "ann").socket), MODULE)
    assert len(leases.files()) == 1
    assert not leases.files(drafts=True)


PROGRAM = """
import ctypes, sys
d = ctypes.CDLL("libcuda.so.1")
def ok(result):
    assert result == 0, result
context, module = ctypes.c_void_p(), ctypes.c_void_p()
ok(d.cuInit(0))
ok(d.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
ok(d.cuCtxPushCurrent_v2(context))
image = open(sys.argv[1], "rb").read()
ok(d.cuModuleLoadData(ctypes.byref(module), image))
print("loaded", flush=True)
sys.stdin.read()
"""
PTX = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n" + b"// long\n" * 20_000


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    with local_pool(tls=True) as made:
        if "in memory" in Images(made.directory / "images").told:
            pytest.skip("the directory for temporary files is in memory")
        made.broker()
        made.serve("one")
        yield made


def test_callers_of_a_pool_are_who_their_certificates_say(pool: LocalPool, tmp_path: Path) -> None:
    module = tmp_path / "module.ptx"
    module.write_bytes(PTX)
    image = PTX + b"\0"

    def run(who: str) -> tuple["subprocess.Popen[str]", Path]:
        before = set(pool.held_lease_directories())
        program = subprocess.Popen(
            pool.run_command([sys.executable, "-c", PROGRAM, str(module)], "--core", "10", who=who),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert program.stdout
        assert program.stdout.readline() == "loaded\n"
        (directory,) = set(pool.held_lease_directories()) - before
        return program, directory / "lease.sock"

    def end(program: "subprocess.Popen[str]") -> None:
        program.communicate()
        assert program.returncode == 0
        wait_until(lambda: not pool.leases())

    empty = tmp_path / "empty.ptx"
    empty.write_bytes(PTX.partition(b"//")[0])
    program, _ = run("ann")
    end(program)
    module = empty  # what follows sends nothing itself
    program, socket = run("ann")
    assert not is_asked_for(Raw(socket), image)
    end(program)
    program, socket = run("bob")
    assert is_asked_for(Raw(socket), image)
    end(program)


LARGE = """
import ctypes, struct, sys
d = ctypes.CDLL("libcuda.so.1")
def ok(result):
    assert result == 0, result
context, module = ctypes.c_void_p(), ctypes.c_void_p()
ok(d.cuInit(0))
ok(d.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
ok(d.cuCtxPushCurrent_v2(context))
head = b"\\x50\\xed\\x55\\xba" + struct.pack("<IQ", 0x00100001, 300 << 20)
print(d.cuModuleLoadData(ctypes.byref(module), head), d.cuLibraryLoadData(ctypes.byref(module), head, 0, 0, 0, 0, 0, 0))
print(d.cuModuleLoad(ctypes.byref(module), sys.argv[1].encode()))
"""


def test_an_image_that_is_too_large_is_refused_and_the_limit_said(sim: Machine, tmp_path: Path) -> None:
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 257 << 20)
    with remote(sim, tmp_path, "shm") as (client, _, _):
        done = subprocess.run(
            [sys.executable, "-c", LARGE, str(tmp_path / "large")],
            env=environment(client), capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True,
        )  # fmt: skip
    assert done.stdout == "801 801\n801\n"  # CUDA_ERROR_NOT_SUPPORTED
    for image in ((300 << 20) + 16, 257 << 20):
        assert f"egpu: an image of {image} bytes is too large for a remote GPU: over 256 MiB" in done.stderr


def test_the_largest_image_is_carried_and_kept(sim: Machine, tmp_path: Path) -> None:
    leases = Leases(sim, tmp_path, Confinement(ConfinementConfig(cgroup="none")))
    if "in memory" in leases.images.told:
        pytest.skip(leases.images.told)
    image = bytes(256 << 20)
    try:
        send(Raw(leases.start("a", "ann").socket), image)
        send(Raw(leases.start("b", "ann").socket), image[1:])  # the share is that of one of them
        raw = Raw(leases.start("c", "ann").socket)
        assert is_asked_for(raw, image)
        assert not is_asked_for(raw, image[1:])
    finally:
        for executor in leases.started:
            executor.end()
