"""Control groups of executors, on a directory tree that looks like cgroup v2's."""

import os
from pathlib import Path

import pytest

from egpu.adapters.executors import cgroups
from egpu.adapters.executors.cgroups import DAEMON, Hierarchy, delegated
from egpu.adapters.executors.confinement import Confinement, ConfinementConfig
from egpu.api.allocation import CardShare
from egpu_base.errors import InvalidInput, NotSupported

SHARES = tuple(
    CardShare(uuid=uuid, index=0, minor=0, core=core, memory_mib=mib)
    for uuid, core, mib in (("GPU-1", 30, 4096), ("GPU-2", 0, 1024))
)


def tree(root: Path, controllers: str = "cpuset cpu io memory pids", *pids: int) -> Path:
    root.mkdir(parents=True)
    (root / "cgroup.controllers").write_text(controllers + "\n")
    (root / "cgroup.subtree_control").write_text("")
    (root / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return root


def proc(directory: Path, own: str, *mounts: str) -> Path:
    directory.mkdir()
    (directory / "cgroup").write_text(f"4:memory:/elsewhere\n{own}\n")
    (directory / "mountinfo").write_text("".join(f"{line}\n" for line in mounts))
    return directory


def test_the_own_group_is_found_through_the_mount(tmp_path: Path) -> None:
    other = "22 1 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw"
    whole = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
    assert delegated(proc(tmp_path / "a", "0::/system.slice/serve.service", other, whole)) == Path(
        "/sys/fs/cgroup/system.slice/serve.service"
    )
    # a container that sees its part of the tree, and a daemon that came back into its own leaf
    part = "30 23 0:26 /kube/pod7 /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw"
    assert delegated(proc(tmp_path / "b", "0::/kube/pod7/agent", part)) == Path("/sys/fs/cgroup/agent")
    assert delegated(proc(tmp_path / "c", f"0::/serve.service/{DAEMON}", whole)) == Path("/sys/fs/cgroup/serve.service")
    for name, own, mount in (("d", "1:name=systemd:/", whole), ("e", "0::/", other), ("f", "0::/other", part)):
        with pytest.raises(NotSupported, match="cgroup v2"):
            delegated(proc(tmp_path / name, own, mount))


def test_the_daemon_moves_into_a_leaf_and_turns_the_controllers_on(tmp_path: Path) -> None:
    root = tree(tmp_path / "service", "cpu memory pids", os.getpid())
    Hierarchy(root).take()
    assert (root / DAEMON / "cgroup.procs").read_text() == str(os.getpid())
    assert (root / "cgroup.subtree_control").read_text() == "+memory +cpu +pids"


def test_a_container_out_of_memory_loses_one_executor_and_not_all(tmp_path: Path) -> None:
    root = tree(tmp_path / "container")
    (root / "memory.oom.group").write_text("1")  # as kubelet leaves it
    Hierarchy(root).take()
    assert (root / "memory.oom.group").read_text() == "0"


def test_what_is_not_delegated_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match=r"no controller memory, cpu, pids .*it has hugetlb"):
        Hierarchy(tree(tmp_path / "v1", "hugetlb")).take()
    shared = tree(tmp_path / "shared", "cpu memory pids", os.getpid(), 4711)
    with pytest.raises(NotSupported, match=r"other processes than this daemon \(4711"):
        Hierarchy(shared).take()
    assert not (shared / DAEMON).exists()
    with pytest.raises(InvalidInput, match="no controller pids"):  # asked for, so that it is an error
        Confinement(ConfinementConfig(cgroup=str(tree(tmp_path / "few", "cpu memory"))))


def test_without_a_hierarchy_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: object = None) -> Path:
        raise NotSupported("this machine has no cgroup v2")

    monkeypatch.setattr(cgroups, "delegated", none)
    confinement = Confinement(ConfinementConfig(users="none"))
    assert confinement.told.startswith("no cgroup: this machine has no cgroup v2; no users of their own: not asked")
    assert confinement.lacks[:2] == ("cgroup", "user")
    assert confinement.enter("leases-one", SHARES) == []
    confinement.end("leases-one")
    confinement.sweep("leases-", set())


def test_a_lease_gets_what_its_shares_may_need(tmp_path: Path) -> None:
    root = tree(tmp_path / "service")
    confinement = Confinement(ConfinementConfig(cgroup=str(root)))
    arguments = confinement.enter("leases-one", SHARES)
    group = root / "leases-one"
    assert arguments == ["--cgroup", str(group)]
    assert {path.name: path.read_text() for path in group.iterdir()} == {
        "memory.max": str((2048 + 4096 + 1024) << 20),
        "cpu.weight": "130",
        "cpu.max": "max 100000",
        "pids.max": "8192",
    }
    fixed = Confinement(ConfinementConfig(cgroup=str(root), memory_mib=100, cpus=1.5)).limits(SHARES)
    assert (fixed.memory_bytes, fixed.files()["cpu.max"]) == (100 << 20, "150000 100000")


def test_what_an_earlier_run_left_is_ended_and_nobody_elses(tmp_path: Path) -> None:
    root = tree(tmp_path / "service")
    confinement = Confinement(ConfinementConfig(cgroup=str(root)))
    for name in ("leases-old", "leases-kept", "served-other", DAEMON):
        (root / name).mkdir(exist_ok=True)
    # A file, as cgroupfs does not have it, keeps a plain directory from being removed: what is removed is empty.
    confinement.sweep("leases-", {"leases-kept"})
    assert sorted(path.name for path in root.iterdir() if path.is_dir()) == [DAEMON, "leases-kept", "served-other"]
