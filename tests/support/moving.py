"""Executors whose sessions can be moved: their control sockets, and a move from one to the next."""

import contextlib
import json
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any

from support.remote_gpu import Bridge, Executor, HasDriver, client_dir
from support.waiting import DEADLINE_SECONDS


class Refused(Exception):
    """The executor refused a move; the text says why."""


class MovableExecutor(Executor):
    """An executor with a control socket, at first or as the target of a move."""

    def __init__(self, machine: HasDriver, folder: Path, *arguments: str, restores: bool = False) -> None:
        folder.mkdir(parents=True)
        self.socket = folder / "executor.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "move.sock"))
            listener.listen(4)
            flags = ["--listen", str(self.socket), "--movable", "--moves-fd", str(listener.fileno())]
            passed = [listener.fileno()]
            self.source, child = socket.socketpair()
            """What is written here is restored."""
            if restores:
                flags += ["--restore-fd", str(child.fileno())]
                passed.append(child.fileno())
            with child:
                super().__init__(
                    machine, folder, *flags, *arguments, pass_fds=passed, begins_with=None if restores else "ready"
                )

    def stop(self) -> None:
        self.source.close()
        super().stop()


class Control:
    """A connection to an executor's control socket."""

    def __init__(self, executor: MovableExecutor) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DEADLINE_SECONDS)
        self.socket.connect(str(executor.folder / "move.sock"))
        self.lines = self.socket.makefile("r")

    def order(self, what: str) -> None:
        self.socket.sendall(json.dumps({"do": what}).encode() + b"\n")

    def answer(self) -> dict[str, Any]:
        return json.loads(self.lines.readline() or '{"state": "gone"}')

    def ask(self, what: str) -> dict[str, Any]:
        self.order(what)
        return self.answer()

    def send(self, target: socket.socket) -> dict[str, Any]:
        socket.send_fds(self.socket, [b'{"do": "send"}\n'], [target.fileno()])
        return self.answer()

    def close(self) -> None:
        self.lines.close()
        self.socket.close()


class Way:
    """The socket of new programs, on the machine of the executor: they share memory with it."""

    def __init__(self, listen: Path, target: Path) -> None:
        self.listen = listen
        self.target = target

    @property
    def target(self) -> Path:
        """The executor's socket."""
        return self.listen.readlink()

    @target.setter
    def target(self, target: Path) -> None:
        fresh = self.listen.with_suffix(".new")
        fresh.symlink_to(target)
        fresh.replace(self.listen)

    def close(self) -> None:
        """Do nothing: the symbolic link goes with its folder."""


class Movable:
    """A client's driver directory, a bridge, and the executor where its sessions are now."""

    def __init__(self, machine: HasDriver, folder: Path, *arguments: str, shared: bool) -> None:
        self.folder = folder
        self.arguments = arguments
        self.client = client_dir(folder / "client")
        self.executor = MovableExecutor(machine, folder / "0", *arguments)
        self.executors = [self.executor]
        self.bridge = (Way if shared else Bridge)(self.client / "lease.sock", self.executor.socket)

    def target(self, machine: HasDriver) -> MovableExecutor:
        made = MovableExecutor(machine, self.folder / str(len(self.executors)), *self.arguments, restores=True)
        self.executors.append(made)
        return made

    def move(self, machine: HasDriver) -> dict[str, Any]:
        """Move all sessions to a new executor on this machine, and lead the client there."""
        control, target = Control(self.executor), self.target(machine)
        try:
            said = control.send(target.source)
            if said["state"] != "restored":
                raise Refused(said.get("why", said["state"]) + target.stderr())
            target.wait_for("restored")
            self.bridge.target = target.socket
            left = control.ask("finish")
            assert left == {"state": "left"}, left
        finally:
            control.close()
        assert self.executor.process.wait(DEADLINE_SECONDS) == 0
        self.executor.stop()
        self.executor = target
        return said

    def close(self) -> None:
        self.bridge.close()
        for executor in self.executors:
            executor.stop()


@contextlib.contextmanager
def movable(machine: HasDriver, folder: Path, *arguments: str, shared: bool = False) -> Generator[Movable]:
    """Yield a client whose programs move: from another machine, or `shared` memory with their executor."""
    made = Movable(machine, folder, *arguments, shared=shared)
    try:
        yield made
    finally:
        made.close()
