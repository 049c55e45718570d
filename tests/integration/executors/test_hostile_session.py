"""Code of somebody else runs in an executor's session, as if the driver had been taken over: what it gets of the
machine, of other processes and of its neighbours, where the daemon is root and where it is not."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from egpu.adapters.executors.confinement import probe
from support.repository import ROOT
from support.waiting import DEADLINE_SECONDS

NOBODY = 65534
HOSTILE = ROOT / "tests/integration/programs/hostile_driver.c"

#: Run by whoever the daemon is to be: two leases, one of them with a driver that attacks.
SCRIPT = """
import concurrent.futures.thread, os, subprocess, sys
from pathlib import Path
from egpu.adapters.executors import images
from egpu.adapters.executors.confinement import Confinement, ConfinementConfig
from support.raw_session import Raw
from support.repository import ROOT
from support.simulated_gpu import machine
from support.waiting import wait_until
from test_image_store import Leases, digest, is_asked_for, keeper, send

state, source, user, network = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "network"
images._IN_MEMORY = ()  # the directory is in memory, for every user may pass through it there
ours, others = b"i" * 40000, b"n" * 40000
if os.geteuid() == 0 and user:  # after everything is imported: the interpreter may be root's alone
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
secret = state / "secret"
secret.write_text("what a neighbour wrote")
secret.chmod(0o600)
victim = subprocess.Popen(["sleep", "1000"])
started = []
try:
    with machine(state, "T4", 1) as sim:
        os.environ["EGPU_TEST_CARD"] = sim.cards[0].uuid
        confinement = Confinement(ConfinementConfig(network=network))
        leases = Leases(sim, state, confinement)
        started = leases.started
        neighbour, honest = leases.start("theirs", "bob"), leases.start("honest", "ann")
        send(Raw(neighbour.socket), others)
        send(Raw(honest.socket), ours)
        hostile = sim.driver_dir.with_name("hostile")
        hostile.mkdir()
        for entry in sim.driver_dir.iterdir():
            called = "libcuda-real.so" if entry.name == "libcuda.so.1" else entry.name
            (hostile / called).symlink_to(os.readlink(entry))
        values = {"SECRET": secret, "FORBIDDEN": state / "new", "SLICE": state / "leases" / "mine",
                  "NEIGHBOUR_DIRECTORY": neighbour.directory,
                  "IMAGE": digest(ours).hex(), "NEIGHBOUR_IMAGE": digest(others).hex()}
        stub = ["-xc", "/dev/null", "-Wl,-soname,libcuda-real.so", "-o", state / "stub.so"]
        subprocess.run(["cc", "-shared", *stub], check=True)
        subprocess.run(
            ["cc", "-O1", "-shared", "-fPIC", *(f'-D{name}="{value}"' for name, value in values.items()),
             f"-DIMAGE_BYTES={len(ours)}", f"-DKEEPER={keeper(neighbour)}",
             *(f"-I{ROOT / 'native' / part}" for part in ("", "wire")), f"-DVICTIM={victim.pid}",
             f"-DNEIGHBOUR={neighbour.process.pid}", source, "-Wl,--no-as-needed",
             state / "stub.so", "-Wl,-rpath,$ORIGIN", "-o", hostile / "libcuda.so.1"], check=True)
        leases.driver_dir = hostile
        leases.restart()
        mine = leases.start("mine", "ann")
        raw = Raw(mine.socket)
        assert raw.status == 0, (mine.directory / "log").read_text()
        log = mine.directory / "log"
        wait_until(lambda: "hostile end" in log.read_text())
        print(log.read_text())
        print("told", confinement.told)
        assert is_asked_for(Raw(honest.socket), ours)  # what was put in its place is not loaded
        send(Raw(honest.socket), ours)
        assert not is_asked_for(Raw(neighbour.socket), others)
        for executor in (neighbour, mine):
            print("uid", Path(f"/proc/{executor.process.pid}/status").read_text().split("Uid:")[1].split()[0])
finally:
    for executor in started:
        executor.end()
    victim.kill()
"""


@pytest.fixture(params=["alone", "network"])
def network(request: pytest.FixtureRequest) -> str:
    """Whether sessions have a network of their own, where ranks of NCCL meet."""
    return str(request.param)


@pytest.fixture(params=[0, NOBODY], ids=["root", "nobody"])
def attack(request: pytest.FixtureRequest, network: str) -> Iterator[str]:
    """What the attacker said, and the daemon."""
    user = int(request.param)
    if os.geteuid() != 0 and user != os.geteuid():
        pytest.skip("only root can be both")
    holds = probe()
    if holds.view or holds.landlock < 6:
        pytest.skip(f"this kernel has Landlock {holds.landlock} (6 is needed), a view: {holds.view or 'yes'}")
    state = Path("/dev/shm") / f"egpu-hostile-{os.getpid()}-{user}"  # every user may pass through it
    state.mkdir(mode=0o700)
    os.chown(state, user, user)
    try:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(state), str(HOSTILE), str(user), network],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=2 * DEADLINE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        yield done.stdout
    finally:
        shutil.rmtree(state, ignore_errors=True)


def test_code_in_a_session_gets_nothing_but_its_lease(attack: str, network: str) -> None:
    said = [line.removeprefix("hostile ").rsplit(" ", 1) for line in attack.splitlines() if line.startswith("hostile ")]
    assert len(said) > 60, attack
    had = {what for what, how in said if how == "had" and not what.startswith("honest: ")}
    of_network = {"connect", "a socket of its network"} if network == "network" else set()
    assert had == {"end"} | of_network, attack
    assert {what for what, how in said if how == "refused" and what.startswith("honest: ")} == set(), attack
    users = [line.split()[1] for line in attack.splitlines() if line.startswith("uid ")]
    if "no users of their own" not in attack:
        assert len({*users, "0"}) == 3, attack
