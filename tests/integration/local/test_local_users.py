"""What another user of this machine can do to slices and simulated machines of ours: nothing but be named."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from egpu.adapters import native
from egpu.adapters.local.book import Book
from egpu.adapters.local.run import default_root
from egpu_base.errors import Unavailable
from egpu_sim.machines import machine as simulator
from egpu_sim.machines.machine import Machine
from egpu_sim.machines.shared_memory import list_machines
from support.simulated_gpu import environment, machine, run
from support.strangers import STRANGER, as_stranger, library_that_tells, only_root, owned_by_stranger
from support.waiting import wait_until

PROFILE = "T4"
EGPU = (sys.executable, "-m", "egpu")


@pytest.fixture
def shared() -> Iterator[Path]:
    """In memory, open to everybody, where nobody can take away another's names: as /dev/shm itself."""
    path = Path(tempfile.mkdtemp(prefix="egpu-test-", dir="/dev/shm"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory of ours that has nothing to do with slices."""
    path = tmp_path / "victim"
    path.mkdir()
    (path / "precious").touch()
    return path


def forged_holder(below: Path, victim: Path) -> None:
    """A record of a dead holder whose directory is said to be elsewhere, as records once said it."""
    record = {"name": "1-a", "uuid": "GPU-0", "core": 1, "memory_mib": 1, "command": "", "processes": []}
    (below / "1-a.holder").write_bytes(msgspec.json.encode({**record, "directory": str(victim)}))


def egpu(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*EGPU, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "EGPU_POOL_SECRET_FILE": "/dev/null"},
    )  # fmt: skip


def test_a_record_names_no_directory_to_remove(tmp_path: Path, victim: Path) -> None:
    book = Book(tmp_path / "book")
    forged_holder(tmp_path / "book", victim)
    (tmp_path / "book" / "1-a.slice").symlink_to(victim)
    with book.locked():
        assert book.holders() == []
    assert not (tmp_path / "book" / "1-a.holder").exists()
    assert (victim / "precious").exists()


@only_root
def test_a_record_that_somebody_left_where_ours_would_be_is_neither_believed_nor_touched(
    shared: Path, victim: Path
) -> None:
    place = shared / "egpu" / PROFILE
    place.mkdir(parents=True)
    forged_holder(place, victim)
    owned_by_stranger(shared / "egpu")
    done = egpu("run", "--state-dir", shared / "egpu", "--simulate", PROFILE, "--", "true")
    assert done.returncode == 125
    assert f"{shared}/egpu belongs to user {STRANGER}" in done.stderr
    assert (victim / "precious").exists()
    assert [path.name for path in place.iterdir()] == ["1-a.holder"]


@only_root
@pytest.mark.parametrize("command", ["run", "serve"])
def test_a_library_that_somebody_left_where_ours_would_be_is_not_loaded(
    shared: Path, tmp_path: Path, command: str
) -> None:
    library, told = library_that_tells(tmp_path)
    below = {"run": shared / "egpu" / PROFILE, "serve": shared / "egpu"}[command]
    forged = simulator.create_machine(below / "machine", PROFILE, 1, "forged", persistent=True)
    try:
        nvml = forged.driver_dir / "libnvidia-ml.so.1"
        nvml.unlink()
        shutil.copy(library, nvml)
        for path in (forged.state, shared / "egpu"):
            owned_by_stranger(path)
        asked = {"run": ["--", "true"], "serve": ["--name", "forged"]}[command]
        done = egpu(command, "--state-dir", shared / "egpu", "--simulate", PROFILE, *asked)
    finally:
        forged.state.unlink()
    assert not told.exists()
    assert done.returncode == {"run": 125, "serve": 1}[command]
    assert f"{shared}/egpu belongs to user {STRANGER}" in done.stderr


@only_root
def test_nobody_else_can_take_the_place_of_root_s_own() -> None:
    assert "Permission denied" in as_stranger("mkdir", f"{default_root()}-of-{os.getpid()}").stderr


@only_root
def test_the_state_of_a_machine_that_somebody_else_made_is_none(shared: Path, tmp_path: Path) -> None:
    """Shared memory is everybody's: after a restart of the computer anybody may make the file that a machine names."""
    made = simulator.create_machine(tmp_path / "m", PROFILE, 1, shared_memory=shared)
    assert [found.path for found in list_machines(shared)] == [made.state]
    os.chown(made.state, STRANGER, STRANGER)
    with pytest.raises(Unavailable, match="is gone, or of another version"):
        simulator.open_machine(made.directory)
    assert list_machines(shared) == ()
    try_it = "say(name(d.cuInit(0)))"
    assert run(made, try_it) == "NO_DEVICE"
    os.chown(made.state, 0, 0)
    assert run(made, try_it) == "SUCCESS"


def test_what_is_no_file_of_a_machine_holds_nobody_up(shared: Path) -> None:
    os.mkfifo(shared / "egpu-sim-pipe")
    look = "import sys; from pathlib import Path; from egpu_sim.machines import shared_memory as m; "
    look += "print(m.sweep(Path(sys.argv[1])), m.list_machines(Path(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", look, shared], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "() ()\n", done.stderr


@only_root
def test_a_slice_s_files_are_its_user_s_alone(shared: Path) -> None:
    """Whoever knows the path, from `ps` say, finds nothing that can be written; the interposer can be loaded by all."""
    state = shared / "egpu"
    look = f'd=$(dirname {state}/{PROFILE}/*.slice/policy); stat -c "%a %U %n" $d $d/policy $d/usage; echo $d'
    done = egpu("run", "--state-dir", state, "--simulate", PROFILE, "--", "sh", "-c", look)
    assert done.returncode == 0, done.stderr
    *found, directory = done.stdout.splitlines()
    assert [line.split()[:2] for line in found] == [["711", "root"], ["644", "root"], ["600", "root"]], directory
    simulator.destroy(simulator.open_machine(state / PROFILE / "machine"))


@only_root
def test_a_command_that_becomes_another_user_gets_no_gpu(shared: Path) -> None:
    """Rather than all of it: an interposer that this user could not open would be left out by the loader."""
    state = shared / "egpu"
    assert egpu("run", "--state-dir", state, "--simulate", PROFILE, "--", "true").returncode == 0
    made = simulator.open_machine(state / PROFILE / "machine")
    made.state.chmod(0o666)  # a real card is everybody's
    become = "import os, sys; os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1])); "
    become += "os.execv(sys.argv[2], sys.argv[2:])"
    program = [sys.executable, "-c", become, str(STRANGER), native.path("samples/egpu-sample-vectoradd")]
    done = egpu("run", "--state-dir", state, "--simulate", PROFILE, "--", *program)
    simulator.destroy(made)
    assert done.returncode != 0, done.stdout
    assert "this process may not use the GPU" in done.stderr
    assert "usage: Permission denied" in done.stderr


def on_real_cards(sim: Machine, state: Path) -> subprocess.CompletedProcess[str]:
    """`egpu run` where the simulated driver is the machine's own, so that its cards count as real."""
    command = [*EGPU, "run", "--state-dir", str(state), "--core", "10", "--memory", "1GiB", "--", "true"]
    env = environment(sim.driver_dir)
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)


LISTED = """
    n.nvmlInit()
    say([process.pid for process in n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(0))])
"""


@only_root
def test_a_real_card_on_which_another_user_computes_is_not_sliced(shared: Path, tmp_path: Path) -> None:
    with machine(shared, PROFILE, 1) as sim:
        for path in (sim.state, sim.directory, *sim.directory.rglob("*")):  # a real card's files are everybody's
            path.chmod(0o777)
        program = [native.path("samples/egpu-sample-memory"), "--hold", "1000"]
        answers: dict[int, str] = {}
        for user in (os.geteuid(), STRANGER):
            holder = subprocess.Popen(
                program, user=user, group=user, extra_groups=(), env=environment(sim.driver_dir), cwd="/"
            )
            try:
                wait_until(lambda pid=holder.pid: run(sim, LISTED) == [pid])
                done = on_real_cards(sim, tmp_path / "state")
                answers[user] = f"{done.returncode} {done.stderr}".replace(str(holder.pid), "PID")
            finally:
                holder.kill()
                holder.wait()
        assert answers[os.geteuid()].startswith("0 ")
        assert answers[STRANGER].startswith("125 ")
        assert f"user {STRANGER} computes on it (pid PID); users share a card through a pool" in answers[STRANGER]
        assert on_real_cards(sim, tmp_path / "state").returncode == 0
