"""A client that writes into shared memory while the executor reads it: headers, lengths, the ring's own words."""

import contextlib
import ctypes
import mmap
import os
import random
import socket
import struct
import threading
from pathlib import Path
from typing import Final

import pytest

from egpu_sim.machines.machine import Machine
from support.raw_session import OPS, Raw, hello
from support.remote_gpu import remote
from support.waiting import DEADLINE_SECONDS, wait_until

CARDS = ("A100-80G", 1)

PAGE: Final = 4096
REQUEST_TAIL, REQUEST_BESIDE, REQUEST_SHORT, REQUEST_HEAD, EXECUTOR_SLEEPS = 128, 136, 144, 256, 384
SHARED: Final = 4  # the feature
HEADER: Final = struct.Struct("<HHIQ")
FRAMES: Final = 400
SYS_FUTEX, FUTEX_WAKE = 202, 1


class Shared:
    """A session over shared memory that writes what it likes into it."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DEADLINE_SECONDS)
        self.socket.connect(str(path))
        said = bytearray(hello())
        struct.pack_into("<I", said, HEADER.size + 12, SHARED)
        self.socket.sendall(said)
        data, descriptors, _, _ = socket.recv_fds(self.socket, 65536, 4)
        op, _, length, _ = HEADER.unpack_from(data)
        while len(data) < HEADER.size + length:
            data += self.socket.recv(65536)
        assert (op, struct.unpack_from("<I", data, HEADER.size)[0]) == (2, 0)
        (descriptor,) = descriptors
        self.memory = mmap.mmap(descriptor, 0)
        os.close(descriptor)
        self.socket.sendall(HEADER.pack(9, 0, 8, 0) + struct.pack("<II", 1, 0))

    def word(self, at: int) -> int:
        return struct.unpack_from("<Q", self.memory, at)[0]

    def fill(self, count: int) -> list[int]:
        """Write `count` harmless calls into the ring, without saying so; where their headers are."""
        payload = struct.pack("<Q", 1) + bytes(8)
        places: list[int] = []
        at = PAGE
        for number in range(count):
            frame = HEADER.pack(OPS["cuModuleGetLoadingMode"], 1, 8, number + 1) + payload
            self.memory[at : at + len(frame)] = frame
            places.append(at)
            at += len(frame)
        self.tail = at - PAGE
        return places

    def publish(self, tail: int) -> None:
        struct.pack_into("<Q", self.memory, REQUEST_TAIL, tail)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory, EXECUTOR_SLEEPS))
        ctypes.CDLL(None).syscall(SYS_FUTEX, ctypes.c_void_p(address), FUTEX_WAKE, 1, None, None, 0)

    def ended(self) -> bool:
        self.socket.setblocking(False)
        try:
            return not self.socket.recv(65536)
        except BlockingIOError:
            return False
        except OSError:
            return True


def test_headers_changed_while_they_are_read_cost_their_own_session_only(sim: Machine, tmp_path: Path) -> None:
    chance = random.Random(5)
    with remote(sim, tmp_path, "shm") as (client, executor, _):
        neighbour = Raw(client / "lease.sock")
        for _ in range(24):
            session = Shared(client / "lease.sock")
            places = session.fill(FRAMES)
            aimed = chance.sample(places[FRAMES // 4 :], 40)
            kept = {place: bytes(session.memory[place : place + 8]) for place in aimed}
            wild = struct.pack("<HHI", chance.choice([65535, 40, *OPS.values()]), 1, chance.choice([7, 1 << 20, 2**31]))
            stop = threading.Event()

            def flip(
                session: Shared = session,
                aimed: list[int] = aimed,
                kept: dict[int, bytes] = kept,
                wild: bytes = wild,
                stop: threading.Event = stop,
            ) -> None:
                while not stop.is_set():
                    for place in aimed:
                        session.memory[place : place + 8] = wild
                        session.memory[place : place + 8] = kept[place]

            flipping = threading.Thread(target=flip)
            flipping.start()
            try:
                session.publish(session.tail)
                wait_until(lambda session=session: session.word(REQUEST_HEAD) == session.tail or session.ended())
            finally:
                stop.set()
                flipping.join()
                session.socket.close()
        assert executor.process.poll() is None, executor.stderr()
        wait_until(lambda: len([one for one in executor.events if one.get("state") == "closed"]) == 24)
        reasons = {one["reason"] for one in executor.events if one.get("state") == "closed"}
        assert reasons <= {"violation", "client gone", "goodbye"}, reasons
        assert neighbour.call("cuModuleGetLoadingMode", struct.pack("<Q", 1))[0] in (0, 801)


def test_a_short_frame_that_changes_beside_the_tail_costs_its_own_session_only(sim: Machine, tmp_path: Path) -> None:
    chance = random.Random(6)
    with remote(sim, tmp_path, "shm") as (client, executor, _):
        neighbour = Raw(client / "lease.sock")
        for _ in range(12):
            session = Shared(client / "lease.sock")
            good = HEADER.pack(OPS["cuModuleGetLoadingMode"], 1, 8, 1) + struct.pack("<Q", 1) + bytes(8)
            lengths = (0, 7, 8, 24, 32, 40, 48, 1 << 20, 2**32 - 1)
            frames = [good] + [HEADER.pack(chance.randrange(300), 1, length, 1) + bytes(16) for length in lengths]
            stop = threading.Event()

            def write(session: Shared = session, frames: list[bytes] = frames, stop: threading.Event = stop) -> None:
                while not stop.is_set():
                    for frame in frames:
                        session.memory[REQUEST_SHORT : REQUEST_SHORT + len(frame)] = frame

            session.memory[PAGE : PAGE + 32] = good
            struct.pack_into("<Q", session.memory, REQUEST_BESIDE, 32)
            writing = threading.Thread(target=write)
            writing.start()
            try:
                session.publish(32)
                wait_until(lambda session=session: session.word(REQUEST_HEAD) == 32 or session.ended())
            finally:
                stop.set()
                writing.join()
                session.socket.close()
        assert executor.process.poll() is None, executor.stderr()
        wait_until(lambda: len([one for one in executor.events if one.get("state") == "closed"]) == 12)
        assert neighbour.call("cuModuleGetLoadingMode", struct.pack("<Q", 1))[0] in (0, 801)


@pytest.mark.parametrize("tail", [1 << 40, 8, (1 << 20) + 16, 2**64 - 16], ids=hex)
def test_a_tail_that_cannot_be_costs_its_own_session_only(sim: Machine, tmp_path: Path, tail: int) -> None:
    with remote(sim, tmp_path, "shm") as (client, executor, _):
        neighbour, session = Raw(client / "lease.sock"), Shared(client / "lease.sock")
        session.fill(4)
        session.publish(tail)
        with contextlib.suppress(AssertionError):
            wait_until(session.ended, seconds=3)
        session.socket.close()
        closed = executor.wait_for("session", "closed")
        assert closed["reason"] in ("violation", "client gone"), closed
        assert neighbour.call("cuModuleGetLoadingMode", struct.pack("<Q", 1))[0] in (0, 801)
