"""Callers of a supervised command (native/enter/attach.h): they see what it says, and type for it."""

import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from egpu_sim import native
from egpu_sim.cluster.kubelet.attachment import BEFORE, PACKET_BYTES, SOCKET, TYPED_BYTES, call
from egpu_sim.cluster.streams import CLOSE, RESIZE, STDERR, STDIN, STDOUT
from support.waiting import DEADLINE_SECONDS, wait_until

Start = Callable[..., Path]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a script under a supervisor with these options; answers the directory of the run."""
    directories: list[Path] = []

    def begin(script: str, *options: str) -> Path:
        directory = tmp_path / f"run-{len(directories)}"
        command = [native.path("egpu-enter"), *options, "--supervise", directory, "--", "sh", "-c", script]
        subprocess.run(command, check=True, timeout=DEADLINE_SECONDS)
        directories.append(directory)
        return directory

    yield begin
    for directory in directories:
        end(directory)


def end(directory: Path) -> None:
    if not (directory / "exit").exists():
        os.kill(int((directory / "pid").read_text().split()[2]), signal.SIGTERM)
        wait_until((directory / "exit").exists)


class Caller:
    def __init__(self, directory: Path) -> None:
        self.socket = call(directory)
        self.socket.settimeout(DEADLINE_SECONDS)
        self.said: dict[int, bytes] = {STDOUT: b"", STDERR: b""}
        self.before: list[tuple[int, bytes]] = []
        """Bytes of the log, and the begun line, for stdout and stderr."""

    def send(self, channel: int, payload: bytes = b"") -> None:
        self.socket.send(bytes([channel]) + payload)

    def take(self) -> bool:
        """One packet; False when there are no more."""
        packet = self.socket.recv(PACKET_BYTES)
        if packet[:1] == bytes([BEFORE]):
            self.before.append((int.from_bytes(packet[1:9], sys.byteorder), packet[9:]))
        elif packet:
            self.said[packet[0]] += packet[1:]
        return bool(packet)

    def hear(self, text: bytes, channel: int = STDOUT) -> None:
        while text not in self.said[channel]:
            assert self.take(), self.said

    def hear_all(self) -> dict[int, bytes]:
        while self.take():
            pass
        return self.said


def test_a_caller_is_told_how_much_was_said_before(start: Start) -> None:
    """The log's length, and the lines without an end: together with what follows, nothing is lost or doubled."""
    directory = start("echo one; printf two; printf wrong >&2; read word; echo $word", "--input")
    first = Caller(directory)
    first.hear(b"")
    wait_until(lambda: (directory / "log").read_bytes().endswith(b" one\n"))

    def told() -> list[tuple[int, bytes]]:
        caller = Caller(directory)
        caller.socket.settimeout(DEADLINE_SECONDS)
        while len(caller.before) < 2:
            assert caller.take()
        caller.socket.close()
        return caller.before

    size = (directory / "log").stat().st_size
    wait_until(lambda: told() == [(size, b"two"), (size, b"wrong")])
    first.send(STDIN, b"three\n")
    first.hear(b"three\n")


def test_all_callers_see_what_any_of_them_types_for_it(start: Start) -> None:
    directory = start("sed -u 's/^/said: /'; echo over >&2", "--input")
    one, other = Caller(directory), Caller(directory)
    one.send(STDIN, b"first\n")
    other.hear(b"said: first\n")
    other.send(STDIN, b"second\n")
    one.hear(b"said: second\n")
    one.send(CLOSE)
    assert one.hear_all() == other.hear_all() == {STDOUT: b"said: first\nsaid: second\n", STDERR: b"over\n"}
    assert (directory / "exit").read_text().startswith("0 0 ")
    assert [line.split(" ", 3)[1:] for line in (directory / "log").read_text().splitlines()] == [
        ["stdout", "F", "said: first"], ["stdout", "F", "said: second"], ["stderr", "F", "over"],
    ]  # fmt: skip


def test_it_goes_on_without_them(start: Start) -> None:
    directory = start("while read line; do echo $line; done", "--input")
    for text in (b"one\n", b"two\n"):
        caller = Caller(directory)
        caller.send(STDIN, text)
        caller.hear(text)
        caller.socket.close()
    assert not (directory / "exit").exists()


@pytest.mark.parametrize("accepted", [True, False])
def test_who_types_and_leaves_without_listening_is_heard(start: Start, accepted: bool) -> None:
    """`kubectl attach -i` leaves at the end of a piped input. What it was told stands unread then."""
    directory = start("echo said; read word; exit 7", "--input")
    supervisor = int((directory / "pid").read_text().split()[2])
    caller = Caller(directory) if accepted else None
    if caller is not None:
        assert select.select([caller.socket], [], [], DEADLINE_SECONDS)[0], "it is told what was said before"
    os.kill(supervisor, signal.SIGSTOP)
    try:
        caller = caller or Caller(directory)
        caller.send(STDIN, b"word\n")
        caller.socket.close()
    finally:
        os.kill(supervisor, signal.SIGCONT)
    wait_until((directory / "exit").exists)
    assert (directory / "exit").read_text().startswith("7 0 ")


def test_a_terminal_is_its_own_and_has_the_caller_s_size(start: Start) -> None:
    directory = start("tty; while read line; do stty size; test $line != end || exit 5; done", "--terminal")
    caller = Caller(directory)
    caller.send(RESIZE, struct.pack("=2H", 47, 101))
    caller.send(CLOSE)  # which is nothing to a terminal
    caller.send(STDIN, b"more\nend\n")
    said = caller.hear_all()
    assert said[STDOUT].count(b"47 101\r\n") == 2
    assert b"more\r\n" in said[STDOUT], "it shows what is typed"
    assert b"/dev/pts/" in (directory / "log").read_bytes()
    assert (directory / "exit").read_text().startswith("5 0 ")


def test_a_key_interrupts_what_runs_on_a_terminal(start: Start) -> None:
    directory = start("trap 'echo caught; exit 3' INT; echo up; while :; do sleep 0.05; done", "--terminal")
    caller = Caller(directory)
    wait_until(lambda: "up" in (directory / "log").read_text())
    caller.send(STDIN, b"\x03")
    caller.hear_all()
    assert b"caught" in caller.said[STDOUT]
    assert (directory / "exit").read_text().startswith("3 0 ")


def test_who_is_slow_loses_nothing(start: Start) -> None:
    """More than all buffers between them hold; what comes last is there after the command's end, too."""
    size = 3_000_000
    directory = start(f"read line; head -c {size} /dev/zero | tr '\\0' x", "--input")
    slow, quick = Caller(directory), Caller(directory)
    quick.send(STDIN, b"go\n")
    quick.hear(b"x" * 100_000)
    assert not (directory / "exit").exists(), "nobody has taken the rest"
    quick.socket.close()
    assert slow.hear_all()[STDOUT] == b"x" * size


def test_what_is_typed_ahead_waits_until_it_is_read(start: Start) -> None:
    lines = b"".join(b"%d\n" % number for number in range(200_000))
    caller = Caller(start("sleep 0.3; cat", "--input"))

    def type_all() -> None:
        for at in range(0, len(lines), TYPED_BYTES):
            caller.send(STDIN, lines[at : at + TYPED_BYTES])
        caller.send(CLOSE)

    with ThreadPoolExecutor() as threads:
        typing = threads.submit(type_all)
        assert caller.hear_all()[STDOUT] == lines
        typing.result()


def test_who_takes_nothing_does_not_keep_it_from_ending(start: Start) -> None:
    directory = start("read line; exec cat /dev/zero", "--input")
    stuck = Caller(directory)
    stuck.send(STDIN, b"go\n")
    sizes = [0]

    def held_up() -> bool:
        sizes.append((directory / "log").stat().st_size)
        return sizes[-1] == sizes[-20:][0] > 0

    wait_until(held_up)
    end(directory)
    assert (directory / "exit").read_text().startswith(f"{128 + signal.SIGTERM} ")


def test_what_is_typed_for_one_that_takes_no_input_is_lost(start: Start) -> None:
    directory = start("cat; echo nothing; while :; do sleep 0.05; done")
    caller = Caller(directory)
    caller.send(STDIN, b"lost\n")
    wait_until(lambda: "nothing" in (directory / "log").read_text())
    assert "lost" not in (directory / "log").read_text()


def test_nobody_else_can_call(start: Start) -> None:
    assert (start("sleep 1000") / SOCKET).stat().st_mode & 0o777 == 0o600
