"""A remote GPU: an executor on a simulated machine, and a driver directory with the remote client in it."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from egpu.adapters.native import path
from egpu.adapters.pool import authority, messages
from egpu.adapters.pool import bridge as pool
from egpu.adapters.pool.bridge import GONE
from egpu.adapters.pool.connection import Connection
from egpu.adapters.pool.listener import Listener
from egpu.core.provisioners.preparation import REMOTE_LIBRARIES
from support.waiting import DEADLINE_SECONDS

Transport = Literal["shm", "tcp", "bridge", "tls"]
"""To the executor: shared memory, a loopback port, bytes copied by a bridge, TLS between two relays."""


class HasDriver(Protocol):
    """A simulated machine, or whatever else has a driver."""

    @property
    def driver_dir(self) -> Path: ...


class Executor:
    """An `egpu-executor` of one lease, and what it says."""

    def __init__(
        self,
        machine: HasDriver,
        folder: Path,
        *arguments: str,
        env: dict[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        begins_with: str | None = "ready",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.events: list[dict[str, Any]] = []
        self.errors = (folder / "stderr").open("w")
        self.process = subprocess.Popen(
            [str(path("egpu-executor")), "--driver", str(machine.driver_dir / "libcuda.so.1"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**{k: v for k, v in os.environ.items() if not k.startswith(("LD_", "CUDA_"))}, **(env or {})},
            text=True,
            pass_fds=pass_fds,
        )
        self.arrived = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.ready = self.wait_for(begins_with) if begins_with else {}

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            with self.arrived:
                self.events.append(json.loads(line))
                self.arrived.notify_all()

    def wait_for(self, event: str, state: str | None = None, after: int = 0) -> dict[str, Any]:
        """The first such event."""

        def find() -> dict[str, Any] | None:
            for said in self.events[after:]:
                if said["event"] == event and (state is None or said.get("state") == state):
                    return said
            return None

        with self.arrived:
            assert self.arrived.wait_for(find, DEADLINE_SECONDS), (
                f"no {event} {state or ''} among {self.events}; {self.stderr()}"
            )
            found = find()
            assert found
            return found

    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def children(self) -> list[int]:
        """The sessions' processes."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in listed]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(DEADLINE_SECONDS)
        self.reader.join(DEADLINE_SECONDS)
        if self.process.stdout:
            self.process.stdout.close()
        self.errors.close()
        assert "runtime error:" not in self.stderr(), self.stderr()  # a sanitizer's, of a session


class Bridge:
    """Copies bytes between a unix socket and a target, as a node's daemon does; may be cut at any time."""

    def __init__(self, listen: Path, target: Path | int, *, delay_seconds: float = 0) -> None:
        self.target = target
        self.delay = delay_seconds
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(listen))
        self.listener.listen(64)
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self.lock = threading.Lock()
        self.carried = 0
        self.answers = 0
        """How often the executor has said something after the client had: the round trips, when one thread asks."""
        self._client_spoke = False
        self.cut_after: int | None = None
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _connect(self) -> socket.socket:
        if isinstance(self.target, int):
            made = socket.create_connection(("127.0.0.1", self.target))
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made
        made = socket.socket(socket.AF_UNIX)
        made.connect(str(self.target))
        return made

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = self._connect()
            except OSError:
                with contextlib.suppress(OSError):
                    near.sendall(GONE)
                near.close()
                continue
            with self.lock:
                self.pairs.append((near, far))
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(one, other, one is near), daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket, from_client: bool) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 18):
                if self.cut_after is not None:
                    with self.lock:
                        self.cut_after -= len(data)
                        now = self.cut_after
                    if now <= 0:
                        other.sendall(data[: max(0, len(data) + now)])  # at any byte
                        self.cut()
                        return
                with self.lock:
                    self.answers += self._client_spoke and not from_client
                    self._client_spoke = from_client
                other.sendall(data)
                self.carried += len(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Break every connection now."""
        with self.lock:
            broken, self.pairs, self.cut_after = self.pairs, [], None
            self.cuts += 1
        for pair in broken:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def close(self) -> None:
        self.listener.close()
        self.cut()


def client_dir(folder: Path) -> Path:
    """A driver directory with the remote libraries in it, and no lease yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, artefact in REMOTE_LIBRARIES.items():
        shutil.copy(path(artefact).resolve(), folder / name)
    return folder


@contextlib.contextmanager
def relayed(client: Path, executor: Path, pki: Path) -> Generator[None]:
    """lease0.sock in `client`, joined to the executor's socket through a bridge, TLS and a door, as between nodes."""
    server, ann = (authority.issue(pki, role, "test") for role in ("server", "client"))
    up, over = threading.Event(), threading.Event()

    async def come_in(connection: Connection, _: messages.Hello) -> None:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
            sock.connect(str(executor))
            await connection.hand_over(sock, last=messages.Welcome(name=connection.peer))

    async def serve() -> None:
        listener = Listener(server, "127.0.0.1:0", come_in, max_connections=64, relayed=True)
        await listener.open()
        part = messages.PartView(server="test", address=str(listener.address), host="another", socket="", cards=1)

        async def take() -> pool.Target:
            return pool.Target("lease", (part,), "")

        bridge = pool.Bridge(client, ann, take)
        await bridge.open()
        serving = asyncio.create_task(listener.serve())
        up.set()
        await asyncio.to_thread(over.wait)
        await bridge.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert up.wait(DEADLINE_SECONDS), "no relay"
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def remote(
    machine: HasDriver, folder: Path, transport: Transport, *arguments: str, env: dict[str, str] | None = None
) -> Generator[tuple[Path, Executor, Bridge | None]]:
    """The driver directory of a client, its executor, and the bridge between them if there is one."""
    client = client_dir(folder / "client")
    flags: Sequence[str] = ("--listen-tcp", "0") if transport == "tcp" else ("--listen", str(folder / "executor.sock"))
    executor = Executor(machine, folder / "executor", *flags, *arguments, env=env)
    bridge = None
    stack = contextlib.ExitStack()
    try:
        if transport == "tls":
            stack.enter_context(relayed(client, folder / "executor.sock", folder / "pki"))
        elif transport == "tcp":
            (client / "lease.addr").write_text(f"127.0.0.1:{executor.ready['port']}\n")
        elif transport == "bridge":
            bridge = Bridge(client / "lease.sock", folder / "executor.sock")
        else:
            (client / "lease.sock").symlink_to(folder / "executor.sock")
        yield client, executor, bridge
    finally:
        stack.close()
        if bridge:
            bridge.close()
        executor.stop()
