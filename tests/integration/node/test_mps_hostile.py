"""Programs in MPS slices that attack their daemon, the agent, or each other by the files that they share."""

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from egpu.adapters.cards.mps import CLIENTS, MEMORY, PIPES, PROGRAM, MpsControl
from egpu.apps.agent.cards.mps_servers import MEMORY_FILES, MpsServers
from egpu.apps.agent.slots.directories import Slots
from egpu.core.provisioners.preparation import ServedSlice
from egpu_base.errors import NotSupported
from egpu_base.system import mounts
from egpu_base.system.processes import Process
from egpu_sim import native as simulated
from support.mps import COMMAND, asked, control, joins, pid, sends

PID_FILE = f"{PROGRAM}.pid"
GIB = 1 << 30


class Driver(MpsControl):
    """The real daemons, of cards that have no modes."""

    def set_exclusive(self, uuid: str, exclusive: bool) -> None:
        pass


@contextlib.contextmanager
def served(directory: Path) -> Generator[Path]:
    """The directory of a card whose programs are limited to a quarter."""
    driver = Driver()
    driver.start(directory, directory.name)
    driver.hold(directory, 25, 1024)
    daemon = driver.find(directory)
    assert daemon is not None
    try:
        yield directory
    finally:
        control(directory / PIPES, "quit -t 0")


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PATH", str(simulated.path(f"tools/{PROGRAM}").parent), prepend=":")
    with served(tmp_path / "GPU-a") as directory:
        yield directory


@pytest.mark.parametrize("command", ["set_default_active_thread_percentage 100", "quit -t 0", "get_server_list"])
def test_a_program_sends_no_command(card: Path, command: str) -> None:
    clients, daemon = card / CLIENTS, Process.of(pid(card / PIPES))
    assert control(clients, command).returncode == 1
    assert not sends(clients, COMMAND, command), "the daemon closes the connection"
    assert asked(card / PIPES, "get_default_active_thread_percentage") == ["25.0"]
    assert daemon.is_alive()
    assert joins(clients)


def test_a_program_sees_no_name_of_the_daemons_own(card: Path) -> None:
    assert [each.name for each in (card / CLIENTS).iterdir()] == ["control"]
    assert (card / PIPES / "control_privileged").stat().st_mode & 0o777 == 0o600


def test_connections_of_programs_leave_room_for_commands(card: Path) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stream = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            stream.connect(str(card / CLIENTS / "control"))
        assert asked(card / PIPES, "get_default_active_thread_percentage") == ["25.0"]


def test_the_pid_of_another_cards_daemon_ends_only_this_cards(card: Path) -> None:
    with served(card.with_name("GPU-b")) as neighbour:
        other = Process.of(pid(neighbour / PIPES))
        (card / PIPES / PID_FILE).write_text(f"{other.pid}\n")
        assert Driver().find(card) is None
        Driver().end(card)
        assert other.is_alive()
        assert Driver().find(neighbour) == other


def test_another_program_that_was_started_for_the_directory_is_no_daemon(card: Path) -> None:
    with subprocess.Popen(["sleep", "600"], env={"CUDA_MPS_PIPE_DIRECTORY": str(card / PIPES)}) as program:
        try:
            (card / PIPES / PID_FILE).write_text(f"{program.pid}\n")
            assert Driver().find(card) is None
            Driver().end(card)
            assert program.poll() is None
        finally:
            program.kill()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, GIB)


def link(path: Path) -> None:
    path.with_name("elsewhere").write_text("1")
    path.symlink_to(path.with_name("elsewhere"))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("made", [fifo, sparse, link, device])
def test_what_stands_in_the_place_of_the_pid_neither_blocks_nor_fills_memory(
    card: Path, made: Callable[[Path], None]
) -> None:
    place = card / PIPES / PID_FILE
    place.unlink()
    made(place)
    assert Driver().find(card) is None


@pytest.mark.parametrize("name", [PID_FILE, "control_lock", "control.log"])
def test_a_daemon_writes_through_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("PATH", str(simulated.path(f"tools/{PROGRAM}").parent), prepend=":")
    kept = tmp_path / "kept"
    kept.write_text("mine")
    place = tmp_path / "GPU-a" / ("log" if name == "control.log" else PIPES) / name
    place.parent.mkdir(parents=True)
    place.symlink_to(kept)
    started = control(tmp_path / "GPU-a" / PIPES, option="-d").returncode == 0
    assert started == (name == PID_FILE), "a link in the place of its pid is replaced"
    if started:
        control(tmp_path / "GPU-a" / PIPES, "quit -t 0")
    assert kept.read_text() == "mine"


def touched(directory: Path, count: int) -> None:
    for number in range(count):
        (directory / str(number)).touch()


def device_of(path: Path | str) -> int:
    return os.stat(path).st_dev


async def test_a_cards_programs_share_a_memory_of_limited_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not mounts.allowed(tmp_path):
        pytest.skip("this machine allows no mounts")
    monkeypatch.setenv("PATH", str(simulated.path(f"tools/{PROGRAM}").parent), prepend=":")
    slots, driver = Slots(tmp_path / "slots"), Driver()
    here = MpsServers(slots, tmp_path / "mps", driver, events=None, memory_mib=1)
    async with here.while_made(ServedSlice("GPU-a", 25, 1024)) as shown:
        memory = tmp_path / "mps/GPU-a" / MEMORY
        assert shown.memory == memory
        daemon = driver.find(tmp_path / "mps/GPU-a")
        assert daemon is not None
        seen = Path("/proc", str(daemon.pid), "root", "dev", "shm")
        assert device_of(seen) == device_of(memory) != device_of("/dev/shm")
        with pytest.raises(OSError, match="No space left"):
            (memory / "all").write_bytes(bytes(1 << 21))
        (memory / "all").unlink()
        with pytest.raises(OSError, match="No space left"):
            touched(memory, MEMORY_FILES + 1)
    await here.step()
    assert not list((tmp_path / "mps").iterdir())
    assert not memory.is_mount()


def test_a_shim_that_does_not_see_the_memory_starts_no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(simulated.path(f"tools/{PROGRAM}").parent), prepend=":")
    (tmp_path / "GPU-a" / MEMORY).mkdir(parents=True)
    with pytest.raises(NotSupported, match="mountPropagation HostToContainer"):
        Driver().start(tmp_path / "GPU-a", "GPU-a")
    assert Driver().find(tmp_path / "GPU-a") is None


async def test_a_daemon_that_shares_no_memory_goes_on_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of an earlier agent, with programs that share none either."""
    monkeypatch.setenv("PATH", str(simulated.path(f"tools/{PROGRAM}").parent), prepend=":")
    slots, driver, served_slice = Slots(tmp_path / "slots"), Driver(), ServedSlice("GPU-a", 25, 1024)
    async with MpsServers(slots, tmp_path / "mps", driver, events=None).while_made(served_slice):
        before = driver.find(tmp_path / "mps/GPU-a")
        later = MpsServers(slots, tmp_path / "mps", driver, events=None, memory_mib=1)
        async with later.while_made(served_slice) as shown:
            assert shown.memory is None
        assert driver.find(tmp_path / "mps/GPU-a") == before
    await later.step()
    assert before is not None
    assert not before.is_alive()
