"""Networks of executors on several servers of a pool: what a program in one of them can reach."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Final

from egpu.adapters.executors import record as records
from egpu.apps.serve.owners import LeaseOwner
from support.local_pool import LocalPool
from support.waiting import DEADLINE_SECONDS

_ENTERS: Final = """
import ctypes, os, socket, sys
network = os.open(f"/proc/{PID}/ns/net", os.O_RDONLY)
assert ctypes.CDLL(None).setns(network, 0x40000000) == 0
def say(*what):
    print(*what, flush=True)
def joined(address, seconds=20):
    import time
    until = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection((address, 5000), timeout=5)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
def address():
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.connect(("10.255.0.1", 1))
    return made.getsockname()[0]
"""

LISTENS: Final = """
made = socket.socket()
made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
made.bind((address(), 5000))
made.listen()
say(address())
while True:
    one, _ = made.accept()
    try:
        while (got := one.recv(1 << 16)):
            one.sendall(got.upper())
        say("closed")
    except OSError as error:
        say(type(error).__name__)
"""

CALLS: Final = """
one = joined(sys.argv[1])
one.settimeout(None)
one.sendall(b"hello")
say(one.recv(100).decode())
try:
    say(one.recv(100).decode() or "closed")
except OSError as error:
    say(type(error).__name__)
"""

REFUSED: Final = """
try:
    joined(sys.argv[1], seconds=1)
    say("reached")
except OSError as error:
    say(type(error).__name__)
"""

USES_THE_GPU: Final = """
import sys
from cuda.bindings import driver as d
d.cuInit(0)
print("there", flush=True)
sys.stdin.readline()
"""


class InNetwork:
    """A program in the network of a lease's executor, and what it says."""

    def __init__(self, pid: int, source: str, *arguments: str) -> None:
        code = _ENTERS.replace("{PID}", str(pid)) + source
        self.process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __enter__(self) -> InNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def holding(pool: LocalPool, who: str, *options: str) -> Generator[subprocess.Popen[str]]:
    """A program of this caller's that has a lease for as long as it lives."""
    command = pool.run_command([sys.executable, "-c", USES_THE_GPU], "--core", "60", *options, who=who)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def executors(pool: LocalPool, server: str) -> dict[str, int]:
    """By caller the pid of an executor on the server."""
    found: dict[str, int] = {}
    for directory in (pool.directory / server / "leases").glob("lease-*"):
        with contextlib.suppress(Exception):
            record = records.read(directory, LeaseOwner)
            if record.process.is_alive():
                found[record.network] = record.pid
    return found


def executor_of(pool: LocalPool, program: int) -> int:
    """The pid of the executor of a lease that this `egpu run` holds."""
    for directory in pool.held_lease_directories():
        record = records.read(directory, LeaseOwner)
        if f":{program}:" in record.owner.lease.holder:
            return record.pid
    raise AssertionError(f"no executor for {program}")


def link_processes(pool: LocalPool, server: str) -> list[int]:
    """Of a server's daemon."""
    daemon = pool.processes[server].pid
    found: list[int] = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
            if fields["Name"] == "egpu-link" and int(fields["PPid"]) == daemon:
                found.append(int(status.parent.name))
    return found
