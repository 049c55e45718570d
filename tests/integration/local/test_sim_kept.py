"""Simulated machines that stay: seen, removed, made good again, and small."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import egpu_sim.native
from egpu.cli.app import app
from egpu.laptop.machines import Simulated, find_machine
from egpu_base.system import mounts
from egpu_sim.machines import machine as simulator
from egpu_sim.machines.machine import LIBRARIES, Machine
from egpu_sim.machines.shared_memory import list_machines
from support.simulated_gpu import Program

HOLD = "context(); say('on it'); wait()"


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Machine]:
    """The machine of `egpu run`, in a place of its own."""
    found = find_machine("T4", root=tmp_path / "state").simulated
    assert isinstance(found, Simulated)
    yield found.machine
    found.destroy()


def listed(machine: Machine) -> tuple[str, str] | None:
    """What `egpu sim list` calls a machine, and its state; None where it does not show it."""
    done = CliRunner().invoke(app, ["sim", "list", "-o", "json"])
    assert done.exit_code == 0
    found = [(one["machine"], one["state"]) for one in json.loads(done.stdout) if one["file"] == str(machine.state)]
    return found[0] if found else None


def remove(*names: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["sim", "rm", *names])
    return done.exit_code, done.stderr


def test_a_machine_is_removed_unless_something_runs_on_it(kept: Machine) -> None:
    name = kept.state.name.removeprefix("egpu-sim-")
    assert listed(kept) == (name, "kept")
    with Program(kept, HOLD) as program:
        assert program.hear() == "on it"
        assert listed(kept) == (name, "in use")
        assert remove(name) == (1, f"{name}: kept, a program uses it\n")
        assert kept.state.exists()
    assert remove(name) == (0, f"{name}: removed\n")
    assert listed(kept) is None
    assert remove(name) == (2, f"error: no machine is named {name!r}. `egpu sim list` shows all names\n")
    assert remove() == (2, "error: no machine is named. Name one or more, or use --all\n")


def test_a_machine_that_was_removed_is_made_anew(kept: Machine, tmp_path: Path) -> None:
    remove(kept.state.name.removeprefix("egpu-sim-"))
    again = find_machine("T4", root=tmp_path / "state").simulated
    assert isinstance(again, Simulated)
    assert again.machine.cards == kept.cards
    assert simulator.open_machine(kept.directory).state.exists()
    again.destroy()


def test_a_machine_whose_directory_is_gone_is_removed_when_the_next_one_is_made(tmp_path: Path) -> None:
    """As of a run whose --state-dir was thrown away; or whose directory has another machine by now."""
    memory = tmp_path / "memory"
    memory.mkdir()

    def made(name: str) -> Machine:
        return simulator.create_machine(tmp_path / name, "T4", 1, name, persistent=True, shared_memory=memory)

    def states() -> dict[Path, str]:
        return {one.path: one.state for one in list_machines(memory)}

    gone, other, stays = made("gone"), made("other"), made("stays")
    shutil.rmtree(gone.directory)
    (other.driver_dir / "machine").unlink()
    (other.driver_dir / "machine").symlink_to(stays.state)
    assert states() == {gone.state: "left", other.state: "left", stays.state: "kept"}
    simulator.use_our_libraries(stays)
    after = made("after")
    assert states() == {stays.state: "kept", after.state: "kept"}


def test_the_next_run_on_any_machine_removes_those_without_a_directory(kept: Machine, tmp_path: Path) -> None:
    """As of a run whose EGPU_RUN_DIR was removed, when all later runs find their machine made."""
    gone = find_machine("T4", root=tmp_path / "other").simulated
    assert isinstance(gone, Simulated)
    shutil.rmtree(tmp_path / "other")
    find_machine("T4", root=tmp_path / "state")
    assert (gone.machine.state.exists(), kept.state.exists()) == (False, True)


def test_a_machine_gets_the_libraries_of_this_build(kept: Machine, tmp_path: Path) -> None:
    """Those of the build that made it may be gone with the directory it was in."""
    links = [kept.driver_dir / name for name in LIBRARIES]
    gone, other = links[:2]
    gone.unlink()
    other.unlink()
    other.symlink_to(tmp_path / "an earlier build" / other.name)
    find_machine("T4", root=tmp_path / "state")
    assert [link.readlink() for link in links] == [egpu_sim.native.path(f"sim/{name}") for name in LIBRARIES]


def test_the_shared_memory_that_docker_gives_is_enough_for_a_cluster(tmp_path: Path) -> None:
    memory = tmp_path / "shm"
    memory.mkdir()
    if not mounts.allowed(tmp_path):
        pytest.skip("nothing can be mounted here")
    mounts.mount_tmpfs(memory, size_bytes=64 << 20, files=16)
    try:
        for node in ("one", "two", "three"):
            simulator.create_machine(tmp_path / node, "A100-80G", 8, node, shared_memory=memory)
    finally:
        mounts.unmount(memory)
