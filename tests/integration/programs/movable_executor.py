"""Stands in for an `egpu-executor` whose sessions can move. A session is a name and a counter. Its program sends lines
"NAME NUMBER": the executor counts each number once, whatever its repetitions, and answers "NUMBER COUNT".

`--restore-fd` and `move.sock` are as in `egpu.adapters.executors.moving`. A file `hindrance` beside the policy prevents
moves; a file `slow` in the directory of a target's leases delays its answer until it is removed."""

import argparse
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

arguments = argparse.ArgumentParser()
for flag in ("--slice", "--driver", "--listen", "--grace", "--sessions", "--lease", "--user"):
    arguments.add_argument(flag)
arguments.add_argument("--moves-fd", type=int, default=-1)
arguments.add_argument("--restore-fd", type=int, default=-1)
arguments.add_argument("--probe", action="store_true")
given, _confinement = arguments.parse_known_args()
if given.probe:
    print(json.dumps({"view": "not in this stand-in", "landlock": 0, "movable": 1}))
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
sessions: dict[str, list[int]] = {}
"""The last number, and the count, of each session."""
HERE = Path(given.slice)


def say(**event: object) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


def receive_all(stream: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        part = stream.recv(65536)
        if not part:
            sys.exit("the stream ended before all sessions were there")
        data += part
    return data


class Executor:
    def __init__(self) -> None:
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(given.listen)
        self.listening.listen()
        self.programs: dict[socket.socket, bytes] = {}
        self.moves = socket.socket(fileno=given.moves_fd) if given.moves_fd >= 0 else None
        self.control: socket.socket | None = None
        self.said = b""
        self.stream: socket.socket | None = None
        self.restored = False

    def run(self) -> None:
        while True:
            watched = [self.listening, *self.programs, self.moves, self.control, self.stream]
            ready, _, _ = select.select([one for one in watched if one is not None], [], [])
            if self.moves in ready:  # before the control connection: a new one replaces it, unread
                self.moved_on()
                assert self.moves is not None
                self.control, _ = self.moves.accept()
                continue
            if self.stream in ready:
                self.target_said()
            if self.control in ready:
                self.obey()
            if self.listening in ready:
                program, _ = self.listening.accept()
                self.programs[program] = b""
            for program in [one for one in ready if one in self.programs]:
                if self.stream is None:  # otherwise all sessions are stopped
                    self.serve(program)

    def serve(self, program: socket.socket) -> None:
        try:
            data = program.recv(65536)
        except OSError:
            data = b""
        if not data:
            del self.programs[program]
            program.close()
            return
        *lines, self.programs[program] = (self.programs[program] + data).split(b"\n")
        for line in lines:
            name, number = line.decode(errors="replace").rsplit("\0", 1)[-1].split()
            if name not in sessions and int(number) != 1:
                program.sendall(f"{number} unknown\n".encode())  # its sessions are elsewhere, or lost
                continue
            state = sessions.setdefault(name, [0, 0])
            if int(number) == state[0] + 1:
                state[0], state[1] = int(number), state[1] + 1
            program.sendall(f"{number} {state[1]}\n".encode())

    def moved_on(self) -> None:
        """The control connection has ended: everything goes on here."""
        if self.stream is not None:
            self.stream.close()
        if self.control is not None:
            self.control.close()
        self.stream, self.control, self.restored, self.said = None, None, False, b""

    def obey(self) -> None:
        assert self.control is not None
        try:
            data, descriptors, _, _ = socket.recv_fds(self.control, 65536, 4)
        except OSError:
            data, descriptors = b"", []
        if not data:
            self.moved_on()
            return
        *lines, self.said = (self.said + data).split(b"\n")
        for line in lines:
            self.carry_out(json.loads(line)["do"], descriptors)

    def carry_out(self, what: str, descriptors: list[int]) -> None:
        hindered = (HERE / "hindrance").exists()
        if what == "look":
            prevents = ["a hindrance: remove it"] if hindered else []
            found = [{"session": name, "bytes": 8, "prevents": prevents} for name in sessions]
            self.answer(movable=not hindered, bytes=8 * len(sessions), sessions=found)
        elif what == "send":
            self.stream = socket.socket(fileno=descriptors[0])
            try:
                self.stream.sendall(json.dumps(sessions).encode() + b"\n")
            except OSError as error:
                self.refuse(str(error))
        elif what == "finish" and self.restored:
            say(event="moved")
            for program in self.programs:
                program.close()
            self.listening.close()
            self.answer(state="left")
            os._exit(0)
        else:
            self.refuse(f"{what} makes no sense now")

    def target_said(self) -> None:
        assert self.stream is not None
        try:
            data = self.stream.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.refuse("the target is gone")
        elif data == b"ok\n" and self.control is not None:
            self.restored = True
            self.answer(state="restored", bytes=8 * len(sessions), quiesced_ns=1, copied_ns=1)

    def refuse(self, why: str) -> None:
        control, self.control = self.control, None
        self.moved_on()
        self.control = control
        self.answer(state="refused", why=why)

    def answer(self, **words: Any) -> None:
        if self.control is not None:
            try:
                self.control.sendall(json.dumps(words).encode() + b"\n")
            except OSError:
                self.moved_on()


executor = Executor()
if given.restore_fd >= 0:
    kept = socket.socket(fileno=given.restore_fd)  # for as long as we live: its end tells the source that we died
    say(event="waiting")
    sessions.update(json.loads(receive_all(kept)))
    while (HERE.parent / "slow").exists():
        time.sleep(0.01)
    say(event="restored", sessions=len(sessions))
    say(event="ready", lease=given.lease, listen=given.listen)
    kept.sendall(b"ok\n")
else:
    say(event="ready", lease=given.lease, listen=given.listen)
executor.run()
