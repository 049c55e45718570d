"""What Kubernetes's own programs are started with, and what happens where they are not there or do not start."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from egpu_base.errors import InvalidInput, Unavailable
from egpu_base.system.processes import Process, start_time
from egpu_sim.cluster import kubernetes
from egpu_sim.cluster.apiserver.access.identities import node_user, service_account
from egpu_sim.cluster.cluster import ClusterConfig, Components
from egpu_sim.cluster.kubernetes import PROGRAMS, check, control_plane
from egpu_sim.cluster.ports import Ports, ports

SAYS = """#!/bin/sh
echo $$ >> {told}/pids
echo "$@" > {told}/{name}
echo {name} cannot go on >&2
exec sleep 600
"""
USERS = {
    "webhook": service_account("there", "elastic-gpu-webhook"),
    "kubelet-node-1": node_user("node-1"),
    "agent-node-1": service_account("there", "elastic-gpu-agent", node="node-1"),
}


def scheduler_config(kubeconfig: str) -> dict[str, Any]:
    return Components().scheduler_config(kubeconfig) | {"extenders": [{"urlPrefix": "https://127.0.0.1:1"}]}


@pytest.fixture
def taken() -> Iterator[Ports]:
    with ports() as taken:
        yield taken


def programs_in(folder: Path, names: tuple[str, ...] = PROGRAMS) -> Path:
    """Programs that note what they are asked, and answer nobody."""
    folder.mkdir()
    for name in names:
        program = folder / name
        program.write_text(SAYS.format(told=folder, name=name))
        program.chmod(0o755)
    return folder


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    programs = programs_in(tmp_path / "bin", ("etcd", "kube-scheduler"))
    (programs / "kube-apiserver").write_text("not a program")
    with pytest.raises(InvalidInput, match="has no program kube-apiserver, kube-controller-manager;"):
        ClusterConfig(kubernetes=programs).check()
    check(programs_in(tmp_path / "all"))


async def test_a_server_that_never_answers_is_reported_with_its_log_and_nothing_stays(
    tmp_path: Path, taken: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "START_SECONDS", 1.0)
    programs, state = programs_in(tmp_path / "bin"), tmp_path / "state"
    with pytest.raises(
        Unavailable, match="kube-apiserver was not ready within 1 s; its log ends:\nkube-apiserver cannot"
    ):
        async with control_plane(
            programs, state, USERS, taken, scheduler_config=scheduler_config, pid_dir=state / "pids"
        ):
            pytest.fail("it answers nobody")
    pids = [int(line) for line in (programs / "pids").read_text().split()]
    assert len(pids) == 2, "the others are not started before it answers"
    for pid in pids:
        assert not _runs(pid)
    assert not list((state / "pids").iterdir())


def _runs(pid: int) -> bool:
    try:
        return Process(pid, start_time(pid)).is_alive()
    except (OSError, ValueError):
        return False


def known_by_token(file: Path) -> dict[str, list[str]]:
    """Rows of the file by their uid, which is the name of a kubeconfig; nobody but its owner reads it."""
    assert file.stat().st_mode & 0o077 == 0
    return {row[2]: row for row in csv.reader(file.read_text().splitlines())}


async def test_everything_authenticates_and_listens_on_loopback(
    tmp_path: Path, taken: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "START_SECONDS", 1.0)
    programs, state = programs_in(tmp_path / "bin"), tmp_path / "state"
    with pytest.raises(Unavailable):
        async with control_plane(
            programs, state, USERS, taken, scheduler_config=scheduler_config, pid_dir=state / "pids"
        ):
            pass
    asked = {
        name: dict(flag.removeprefix("--").split("=", 1) for flag in (programs / name).read_text().split())
        for name in ("etcd", "kube-apiserver")
    }
    etcd, server = asked["etcd"], asked["kube-apiserver"]
    assert etcd["client-cert-auth"] == etcd["peer-client-cert-auth"] == "true"
    assert etcd["listen-client-urls"].startswith("https://127.0.0.1:")
    assert etcd["listen-peer-urls"].startswith("https://127.0.0.1:")
    assert server["bind-address"] == "127.0.0.1"
    assert server["anonymous-auth"] == "false"
    assert server["etcd-servers"] == etcd["listen-client-urls"]
    files = [Path(value) for flags in (etcd, server) for value in flags.values() if value.endswith((".crt", ".key"))]
    assert len(files) > 10
    assert [str(file) for file in files if not file.is_file() or file.stat().st_mode & 0o077] == []
    rows = known_by_token(Path(server["token-auth-file"]))
    assert rows["kubelet-node-1"][1:] == ["system:node:node-1", "kubelet-node-1", "system:nodes,system:authenticated"]
    assert rows["admin"][3].split(",")[0] == "system:masters"
    assert "agent-node-1" not in rows, "a token that says a node is not made before the node is there"
    assert len({row[0] for row in rows.values()}) == len(rows)
    scheduler = yaml.safe_load((state / "kubernetes" / "scheduler.yaml").read_text())
    assert scheduler["extenders"][0]["urlPrefix"] == "https://127.0.0.1:1"
    assert Path(scheduler["clientConnection"]["kubeconfig"]) == state / "scheduler.kubeconfig"
