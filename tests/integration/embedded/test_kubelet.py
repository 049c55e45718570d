"""The simulated kubelet alone: what Kubernetes users expect of a node, and what survives SIGKILL."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from egpu.api import names
from egpu_base.api.kubernetes import Event, Lease, Node
from support.local_node import NODE, LocalNode, ended, local_node, restarts, shell
from support.process_table import with_command
from support.waiting import until


@pytest_asyncio.fixture
async def node() -> AsyncGenerator[LocalNode]:
    with tempfile.TemporaryDirectory(prefix="egn-") as directory:
        async with local_node(Path(directory), agent=False) as here:
            yield here


def plain(name: str, script: str, **more: Any) -> dict[str, Any]:
    return shell(name, script, gpu=False, **more)


async def events(node: LocalNode, pod: str) -> dict[str, str]:
    found = await node.client.list(Event, namespace="default")
    return {each.reason: each.message for each in found if each.involved_object.name == pod}


async def test_the_node_is_ready_and_renews_its_lease(node: LocalNode) -> None:
    async def ready() -> Node | None:
        try:
            found = await node.client.get(Node, NODE)
        except Exception:
            return None
        return found if any(c.type == "Ready" and c.status == "True" for c in found.status.conditions or []) else None

    found = await until(ready, "node ready")
    assert (found.status.capacity or {})["cpu"] == "8"

    async def leased() -> bool:
        return bool(await node.client.find(Lease, NODE, namespace="kube-node-lease"))

    await until(leased, "lease")


async def test_output_exit_code_and_events(node: LocalNode) -> None:
    pod = await node.create("talks", [plain("main", "echo hello; echo oops >&2; exit 4")])
    pod = await node.phase("talks", "Failed")
    assert (ended(pod).exit_code, ended(pod).reason) == (4, "Error")
    assert node.log(pod, "main") == "hello\noops\n"
    assert await node.client.text("/api/v1/namespaces/default/pods/talks/log") == "hello\noops\n"

    async def told() -> bool:
        return {"Created", "Started"} <= (await events(node, "talks")).keys()

    await until(told, "events")


async def test_on_failure_runs_until_it_succeeds(node: LocalNode) -> None:
    script = "echo $$ >> /s/tries; test $(wc -l < /s/tries) -ge 3"
    volumes = [{"name": "s", "emptyDir": {}}]
    one = plain("main", script, volumeMounts=[{"name": "s", "mountPath": "/s"}])
    await node.create("tries", [one], restartPolicy="OnFailure", volumes=volumes)
    pod = await node.phase("tries", "Succeeded")
    assert restarts(pod) == 2
    assert not os.path.exists("/s"), "its mount point is its own"  # noqa: ASYNC240
    volume = node.kubelet_dir / "volumes" / pod.uid / "s"
    assert (volume / "tries").read_text().count("\n") == 3
    await node.client.delete(type(pod), "tries", namespace="default")
    await until(lambda: not volume.parent.exists(), "its volumes gone")


@pytest.mark.parametrize(
    "paths",
    [
        ["/dev/shm"],
        ["/tmp"],
        ["/run", "/var"],
        ["/dev"],
        ["/tmp/a/b", "/tmp"],
        ["/tmp", "/dev/shm", "/opt", "/home", "/mnt", "/srv"],
    ],
    ids="+".join,
)
async def test_volumes_at_any_path(node: LocalNode, paths: list[str]) -> None:
    """The directories of the node and of its runs are below /tmp."""
    volumes = [{"name": f"v{i}", "emptyDir": {"medium": "Memory"} if i % 2 else {}} for i, _ in enumerate(paths)]
    mounts = [{"name": f"v{i}", "mountPath": path} for i, path in enumerate(paths)]
    script = "; ".join(f"echo {path}=$(ls {path})$(ls -d {path}); echo $? > {path}/mine" for path in paths)
    pod = await node.create("v", [plain("main", script, volumeMounts=mounts)], volumes=volumes)
    await node.phase("v", "Succeeded", "Failed")
    shown = {path: "a" if path == "/tmp" and "/tmp/a/b" in paths else "" for path in paths}
    assert node.log(pod, "main").split() == [f"{path}={shown[path]}{path}" for path in paths]
    assert not written_outside(paths), "it is written into the volume"


def written_outside(paths: list[str]) -> list[str]:
    return [path for path in paths if Path(path, "mine").exists()]


async def test_a_container_that_cannot_start_fails_as_its_policy_says(node: LocalNode) -> None:
    where = {"volumeMounts": [{"name": "v", "mountPath": "/proc"}]}
    volumes = [{"name": "v", "emptyDir": {}}]
    await node.create("never", [plain("main", "true", **where)], volumes=volumes, restartPolicy="Never")
    pod = await node.phase("never", "Running", "Failed")
    assert pod.status.phase == "Failed"
    assert (ended(pod).exit_code, ended(pod).reason, restarts(pod)) == (128, "StartError", 0)

    async def told() -> bool:
        return "cannot mount at /proc" in (await events(node, "never")).get("Failed", "")

    await until(told, "the event")

    await node.create("always", [plain("main", "true", **where)], volumes=volumes, restartPolicy="Always")

    async def waits() -> Any:
        pod = await node.read("always")
        assert pod.status.phase in ("", "Pending", "Running")
        assert not any(one.ready for one in pod.status.container_statuses or [])
        return pod if pod.status.container_statuses and restarts(pod) else None

    pod = await until(waits, "it was tried twice")
    (status,) = pod.status.container_statuses or []
    assert status.state.waiting.reason == "RunContainerError"
    assert "cannot mount at /proc" in status.state.waiting.message


async def test_an_image_nobody_knows(node: LocalNode) -> None:
    await node.create("unknown", [{"name": "main", "image": "nobody/knows:1"}])

    async def said() -> str:
        statuses = (await node.read("unknown")).status.container_statuses or []
        state = statuses[0].state if statuses else None
        return state.waiting.message if state and state.waiting and "Image" in state.waiting.reason else ""

    assert "nobody/knows:1" in await until(said, "ErrImagePull")


async def test_sidecars_start_before_and_end_after(node: LocalNode) -> None:
    where = [{"name": "s", "mountPath": "/s"}]
    sidecar = plain("side", "touch /s/up; exec sleep 765432", restartPolicy="Always", volumeMounts=where)
    main = plain("main", "for i in $(seq 100); do test -e /s/up && exit 0; sleep 0.1; done; exit 1", volumeMounts=where)
    await node.create("pair", [main], inits=[sidecar], volumes=[{"name": "s", "emptyDir": {}}])
    pod = await node.phase("pair", "Succeeded", "Failed")
    assert pod.status.phase == "Succeeded"
    await until(lambda: not with_command("sleep 765432"), "the sidecar has ended")


async def test_a_pod_too_many_is_turned_away(node: LocalNode) -> None:
    needs = {"limits": {"cpu": "5", "memory": "1Gi"}}
    await node.create("first", [plain("main", "sleep 100", resources=needs)])
    await node.phase("first", "Running")
    await node.create("second", [plain("main", "sleep 100", resources=needs)])
    pod = await node.phase("second", "Failed")
    assert pod.status.reason == "OutOfcpu"
    assert "requested: 5000, used: 5000, capacity: 8000" in pod.status.message


async def test_a_term_that_is_ignored_becomes_a_kill(node: LocalNode) -> None:
    stubborn = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    pod = await node.create("stubborn", [plain("main", stubborn)], terminationGracePeriodSeconds=1)
    await node.phase("stubborn", "Running")
    await until(lambda: node.log(pod, "main"), "trap set")
    await node.client.delete(type(pod), "stubborn", namespace="default")
    await node.gone("stubborn")
    await until(lambda: not (node.kubelet_dir / "run" / pod.uid).exists(), "directory gone")


async def test_forced_deletion_ends_the_process_too(node: LocalNode) -> None:
    pod = await node.create("forced", [plain("main", "exec sleep 654322")])
    await node.phase("forced", "Running")
    await node.client.delete(type(pod), "forced", namespace="default", grace_period_seconds=0)
    await until(lambda: not with_command("sleep 654322"), "process gone")
    await until(lambda: not (node.kubelet_dir / "run" / pod.uid).exists(), "directory gone")


async def test_pods_deleted_while_the_kubelet_is_away(node: LocalNode) -> None:
    mounts = [{"name": "v", "mountPath": "/v"}]
    one = plain("main", "exec sleep 543222", volumeMounts=mounts)
    pod = await node.create("orphan", [one], volumes=[{"name": "v", "emptyDir": {}}])
    await node.phase("orphan", "Running")
    assert (node.kubelet_dir / "volumes" / pod.uid).exists()
    await node.kill_kubelet()
    await node.client.delete(type(pod), "orphan", namespace="default", grace_period_seconds=0)
    assert with_command("sleep 543222")
    await node.start_kubelet()
    await until(lambda: not with_command("sleep 543222"), "process gone")
    await until(lambda: not (node.kubelet_dir / "run" / pod.uid).exists(), "directory gone")
    await until(lambda: not (node.kubelet_dir / "volumes" / pod.uid).exists(), "volumes gone")


async def test_killed_again_and_again_nothing_runs_twice(node: LocalNode) -> None:
    """Each container appends a line when it starts: exactly one line each, whatever happens to the kubelet."""
    tally = node.directory / "tally"
    tally.mkdir()
    chance = random.Random(7)
    for number in range(12):
        script = f"echo run >> {tally}/{number}; sleep 1; exit {number % 2}"
        await node.create(f"t-{number}", [plain("main", script)])
        if number % 4 == 3:
            await asyncio.sleep(chance.uniform(0.1, 0.8))
            await node.kill_kubelet(signal.SIGKILL)
            await node.start_kubelet()
    for number in range(12):
        pod = await node.phase(f"t-{number}", "Failed" if number % 2 else "Succeeded")
        assert restarts(pod) == 0
    assert [(tally / str(number)).read_text() for number in range(12)] == ["run\n"] * 12


async def test_a_resource_that_no_plugin_registered_is_not_allocated(node: LocalNode) -> None:
    """As in a real kubelet: it is the scheduler that does not send such a pod here."""
    pod = await node.create("early", [shell("main", "ls /opt/egpu; true")])
    pod = await node.phase("early", "Succeeded")
    assert "No such file" in node.log(pod, "main")
    assert names.SLOT not in ((await node.client.get(Node, NODE)).status.capacity or {})
