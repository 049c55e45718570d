"""Executors in control groups of the real kernel, and as another user."""

import asyncio
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from egpu.adapters import native
from egpu.adapters.executors import networks
from egpu.adapters.executors import record as records
from egpu.adapters.executors.confinement import Confinement, ConfinementConfig
from egpu.adapters.executors.leftovers import processes_of
from egpu.adapters.executors.parents import ThisProcess
from egpu.adapters.executors.process import Executor, find
from egpu.adapters.executors.record import ExecutorRecord
from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.api.allocation import CardShare
from egpu.apps.agent.serving.slot_executors import link_into
from egpu.apps.agent.slots.directories import Slots
from egpu_base.errors import Unavailable
from egpu_sim.machines.machine import Machine
from support.remote_gpu import client_dir
from support.simulated_gpu import environment, machine
from support.strangers import as_stranger, only_root
from support.waiting import DEADLINE_SECONDS

CARDS = ("T4", 1)

#: In a mount namespace of its own. This machine's controllers may all be v1's, so the limits are files that every v2
#: group has; tests/unit/test_cgroups.py has the real ones.
SCRIPT = """
import os, subprocess, sys
from pathlib import Path
from egpu.adapters.executors.cgroups import DAEMON, Group, Hierarchy, Limits
from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.executors.process import find
from support.waiting import wait_until
from test_confinement import Owner, sample, start, supervisor

class Plain(Limits):
    def files(self):
        return {"cgroup.max.descendants": "3"}

class Grouped(Confinement):
    def limits(self, cards):
        return Plain(memory_bytes=0, cpu_weight=1, cpus=0, processes=0)

mount, state, driver = map(Path, sys.argv[1:])
root = mount / f"egpu-test-{os.getpid()}"
root.mkdir()
try:
    Group(root).path.joinpath("cgroup.procs").write_text("0")
    confinement = Grouped()
    confinement.hierarchy = Hierarchy(root, ())
    confinement.hierarchy.take()
    assert Group(root).processes() == [] and Group(root / DAEMON).processes() == [os.getpid()]

    executors = supervisor(state / "leases", driver, confinement)
    executor = start(executors, "one")
    group = root / "leases-one"
    assert (group / "cgroup.max.descendants").read_text() == "3\\n"
    assert Group(group).processes() == [executor.process.pid]
    assert "0 wrong: ok" in sample(executor, state / "client")
    sleeper = subprocess.Popen(["sleep", "1000"])  # whatever got in goes with the lease
    group.joinpath("cgroup.procs").write_text(str(sleeper.pid))
    executor.end()
    assert sleeper.wait() == -9 and not group.exists()

    # A daemon that starts again keeps what runs, and ends what its lease has left.
    kept = start(executors, "kept")
    left = confinement.hierarchy.create("leases-left", confinement.limits(()))
    sleeper = subprocess.Popen(["sleep", "1000"])
    left.path.joinpath("cgroup.procs").write_text(str(sleeper.pid))
    other = confinement.hierarchy.create("served-other", confinement.limits(()))
    (again,) = find(state / "leases", Owner, confinement)
    assert again.is_alive() and again.process == kept.process
    assert sleeper.wait() == -9 and not left.path.exists() and other.path.exists()
    again.end()
    other.end()
    assert not (root / "leases-kept").exists()
finally:
    for child in root.iterdir():
        if child.is_dir() and child.name != DAEMON:
            Group(child).end()
    mount.joinpath("cgroup.procs").write_text("0")
    for child in (root / DAEMON, root):
        if child.exists():
            child.rmdir()
"""


class Owner(msgspec.Struct, frozen=True):
    """Nobody in particular."""


def supervisor(
    directory: Path, driver_dir: Path, confinement: Confinement, *, private: bool = False
) -> ExecutorSupervisor[Owner]:
    return ExecutorSupervisor(directory, Owner, parent=ThisProcess(driver_dir, confinement), private=private)


def start(executors: ExecutorSupervisor[Owner], name: str) -> Executor[Owner]:
    """An executor that is ready; the card is the simulated machine's only one, whatever it is called."""
    card = os.environ["EGPU_TEST_CARD"]
    cards = (CardShare(uuid=card, index=0, minor=0, core=100, memory_mib=1024),)
    return asyncio.run(executors.start(ExecutorRecord(name=name, owner=Owner(), cards=cards, minors={card: 0})))


def sample(executor: Executor[Owner], folder: Path) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    client = client_dir(folder)
    (client / "lease.sock").symlink_to(executor.socket)
    command = [str(native.path("samples/egpu-sample-vectoradd"))]
    done = subprocess.run(
        command, env=environment(client), capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    log = (executor.directory / "log").read_text()
    assert done.returncode == 0, done.stdout + done.stderr + log
    return done.stdout


def test_a_lease_is_a_group_that_ends_with_it(sim: Machine, tmp_path: Path) -> None:
    mount = tmp_path / "cgroup2"
    mount.mkdir()
    allowed = subprocess.run(
        ["unshare", "-m", "mount", "-t", "cgroup2", "none", str(mount)], capture_output=True, text=True, check=False
    )
    if allowed.returncode:
        pytest.skip(f"no cgroup2 can be mounted here: {allowed.stderr.strip()}")
    script = [sys.executable, "-c", SCRIPT, str(mount), str(tmp_path), str(sim.driver_dir)]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", 'mount -t cgroup2 none "$0" && exec "$@"', str(mount), *script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "EGPU_TEST_CARD": sim.cards[0].uuid},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_group_that_is_not_there_is_an_error(sim: Machine, tmp_path: Path) -> None:
    """Never beside its group, rather than in it."""
    command = [str(native.path("egpu-executor")), "--driver", str(sim.driver_dir / "libcuda.so.1")]
    for flags in (("--cgroup", str(tmp_path)), ("--user", "0:0"), ("--user", "you")):
        done = subprocess.run(
            [*command, "--listen", str(tmp_path / "s"), *flags], capture_output=True, text=True, check=False
        )
        assert done.returncode == 6, done
        assert flags[1] in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start an executor as somebody else")
def test_an_executor_is_somebody_of_its_own(sim: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under directories that nobody else may pass through."""
    monkeypatch.setenv("EGPU_TEST_CARD", sim.cards[0].uuid)
    confinement = Confinement()
    if confinement.users is None:
        pytest.skip(confinement.told)
    executors = supervisor(tmp_path / "leases", sim.driver_dir, confinement, private=True)
    one, other = (start(executors, name) for name in ("one", "other"))
    try:
        assert one.record.uid != other.record.uid
        status = Path(f"/proc/{one.process.pid}/status").read_text()
        for what in ("Uid", "Gid"):
            assert f"{what}:" + f"\t{one.record.uid}" * 4 in status
        assert f"Groups:\t{confinement.users.first} \n" in status  # the simulated card's
        assert "NoNewPrivs:\t1" in status
        assert [line for line in status.splitlines() if line.startswith("Cap")] == [
            f"Cap{which}:\t{'0' * 16}" for which in ("Inh", "Prm", "Eff", "Bnd", "Amb")
        ]
        limits = Path(f"/proc/{one.process.pid}/limits").read_text()
        assert "Max core file size        0                    0" in limits
        usage = (one.directory / "usage").stat()
        assert (usage.st_uid, usage.st_mode & 0o777) == (one.record.uid, 0o600)
        assert "0 wrong: ok" in sample(one, tmp_path / "client")
        # A daemon that starts again gives neither of them to anybody.
        (again, still) = find(tmp_path / "leases", Owner, Confinement())
        assert {again.record.uid, still.record.uid} == {one.record.uid, other.record.uid}
        third = start(supervisor(tmp_path / "leases", sim.driver_dir, Confinement(), private=True), "third")
        assert third.record.uid not in (one.record.uid, other.record.uid)
        third.end()
    finally:
        one.end()
        other.end()


FOUND = """
import os, sys
from pathlib import Path
from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.executors.parents import ThisProcess
from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.adapters.cards.nvml import NvmlInventory
from test_confinement import Owner, sample, start

(card,) = NvmlInventory().read()
os.environ["EGPU_TEST_CARD"] = card.uuid
state = Path(sys.argv[1])
executor = start(ExecutorSupervisor(state / "leases", Owner, parent=ThisProcess(None, Confinement())), "one")
try:
    print(sample(executor, state / "client"))
finally:
    executor.end()
"""


def test_what_cannot_be_noted_does_not_run(sim: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor that has started when its record cannot be written, or that never enters its network."""
    monkeypatch.setenv("EGPU_TEST_CARD", sim.cards[0].uuid)
    started: list[int] = []
    write = records.write

    def full(directory: Path, record: ExecutorRecord[Owner]) -> None:
        if record.pid:
            started.append(record.pid)
            raise OSError(errno.ENOSPC, "no room")
        write(directory, record)

    monkeypatch.setattr(records, "write", full)
    executors = supervisor(tmp_path / "leases", sim.driver_dir, Confinement(ConfinementConfig(cgroup="none")))
    with pytest.raises(Unavailable, match="no room"):
        start(executors, "one")
    monkeypatch.setattr(records, "write", write)
    monkeypatch.setattr(networks, "_ENTER_SECONDS", 0.0)

    def never(status: os.stat_result) -> bool:
        return bool(status)

    monkeypatch.setattr(networks, "_is_ours", never)
    confinement = Confinement(ConfinementConfig(cgroup="none", network=True))
    with pytest.raises(Unavailable, match="did not enter its network in time"):
        start(supervisor(tmp_path / "others", sim.driver_dir, confinement), "two")
    assert not Path(f"/proc/{started[0]}").exists()
    for below in ("leases", "others"):
        assert list((tmp_path / below).iterdir()) == []
        assert processes_of(tmp_path / below / "two") == []


def test_the_driver_is_found_where_nvml_was(sim: Machine, tmp_path: Path) -> None:
    """A daemon that finds both through its LD_LIBRARY_PATH alone, which executors are not given."""
    done = subprocess.run(
        [sys.executable, "-c", FOUND, str(tmp_path)],
        env={**environment(sim.driver_dir), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert "0 wrong: ok" in done.stdout, done.stdout + done.stderr


@only_root
def test_what_an_executor_counts_with_is_out_of_reach_of_other_users(
    state_dir: Path, executor_that_runs_nothing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path is in `ps` for everybody."""
    monkeypatch.setenv("EGPU_TEST_CARD", "GPU-0")
    state_dir.chmod(0o755)
    executor = start(supervisor(state_dir / "leases", state_dir, Confinement(ConfinementConfig(cgroup="none"))), "one")
    try:
        files = [executor.directory / name for name in ("usage", "policy", "executor.json")]
        append = ("sh", "-c", 'for each; do (: >> "$each") 2>&1; done', "sh", *files)
        assert as_stranger(*append).stdout.count("Permission denied") == 3
        assert as_stranger("ls", state_dir / "leases").returncode != 0
        assert (executor.directory / "usage").stat().st_mode & 0o777 == 0o600
    finally:
        executor.end()


CONNECT = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for path in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(path)
            print("connected")
        except PermissionError:
            print("refused")
"""
DROP = "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534); os.execv(sys.argv[1], sys.argv[1:])"
#: The slot, as a container has it: read-only at a place of its own. What follows runs there.
IN_A_CONTAINER = 'mount -o bind "$0" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a container as somebody else")
@pytest.mark.parametrize("users", ["", "none"])
def test_a_container_that_is_not_root_reaches_its_executor_and_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, users: str
) -> None:
    """A qGPU slot: by its own mount as any user, by the node's paths not at all."""
    state = Path("/dev/shm") / f"egpu-test-{os.getpid()}"  # everybody may pass through it
    (state / "opt").mkdir(parents=True)
    slots = Slots(state / "slots")
    confinement = Confinement(ConfinementConfig(cgroup="none", users=users))
    executors: list[Executor[Owner]] = []
    try:
        with machine(state, "T4", 1) as sim:
            monkeypatch.setenv("EGPU_TEST_CARD", sim.cards[0].uuid)
            kept = supervisor(state / "executors", sim.driver_dir, confinement, private=True)
            for name in ("mine", "theirs"):
                executors.append(start(kept, name))
                link_into(client_dir(slots.path(name)), executors[-1])
            outside = [str(slots.path(name) / "lease.sock") for name in ("mine", "theirs")]
            outside += [str(executor.socket) for executor in executors]
            inside = str(state / "opt" / "lease.sock")
            contained = ["unshare", "-m", "sh", "-c", IN_A_CONTAINER, str(slots.path("mine")), str(state / "opt")]
            asked = [sys.executable, "-c", CONNECT, inside, *outside]
            done = subprocess.run([*contained, *asked], capture_output=True, text=True, check=False)
            if "mount" in done.stderr:
                pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
            assert done.stdout.split() == ["connected", *["refused"] * 4], done.stderr
            program = [sys.executable, "-c", DROP, str(native.path("samples/egpu-sample-vectoradd"))]
            env = environment(state / "opt")
            done = subprocess.run([*contained, *program], env=env, capture_output=True, text=True, check=False)
            assert "0 wrong: ok" in done.stdout, done.stderr
            for executor in executors:
                executor.end()
    finally:
        for executor in executors:
            executor.end()
        shutil.rmtree(state, ignore_errors=True)
