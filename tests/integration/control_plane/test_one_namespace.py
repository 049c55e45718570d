"""Commands that read, for a user with the rights of one namespace: what these show, and one line about the rest."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from egpu.adapters.kubernetes.announced_usage import UsageSources
from egpu.api import names
from egpu.api.symptoms import Symptom
from egpu.cli.app import app
from egpu.cli.doctor_pod import Followed, follow_pod
from egpu.cli.findings import State
from egpu.core.following import Passing, finding
from egpu_base.api.kubernetes import Namespace
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import NotAllowed
from egpu_base.kubernetes import Client
from egpu_sim.cluster.apiserver import User
from support.control_plane import (
    ControlPlane,
    admission,
    control_plane,
    everything_in,
    extender,
    nodes_known,
    scheduled,
)

NONE = UsageSources()


def a_pod(name: str, **asked: str) -> dict[str, Any]:
    container = {"name": "app", "image": "x", "resources": {"limits": asked}}
    metadata = {"name": name, "namespace": "team"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


SLICE = {names.DOCKER_VCUDA_CORE: "20", names.DOCKER_VCUDA_MEMORY: "10"}
LARGE = {names.GPU: "4"}


@dataclass
class Team:
    plane: ControlPlane
    client: Client
    """Of a user who may do everything in the namespace `team`, and nothing elsewhere."""
    kubeconfig: Path

    async def follow(self, name: str) -> Followed:
        found = await follow_pod(self.client, "team", name, NONE)
        assert found is not None
        return found

    async def run(self, arguments: str) -> Result:
        """The result of a command line, run in this process."""
        environment = {"KUBECONFIG": str(self.kubeconfig), "COLUMNS": "400"}
        return await asyncio.to_thread(CliRunner().invoke, app, arguments.split(), env=environment)


@pytest.fixture
async def team(tmp_path: Path) -> AsyncGenerator[Team]:
    async with control_plane(tmp_path) as plane, admission(plane), extender(plane) as (one, http):
        await plane.client.create(Namespace, Namespace(metadata=ObjectMeta(name="team")))
        await everything_in(plane.client, "team", "tenant")
        await plane.node("n0")
        await nodes_known(one, 1)
        runs, _ = [await plane.create(one) for one in (a_pod("runs", **SLICE), a_pod("waits", **LARGE))]
        assert not (await scheduled(http, runs, "n0")).get("Error")
        kubeconfig = plane.server.add_user("tenant", User("tenant"))
        config = yaml.safe_load(kubeconfig.read_text())
        config["contexts"][0]["context"]["namespace"] = "team"
        kubeconfig.write_text(yaml.safe_dump(config))
        async with Client.from_kubeconfig(kubeconfig) as client:
            yield Team(plane, client, kubeconfig)


async def test_a_pod_is_followed_with_the_rights_of_its_namespace(team: Team) -> None:
    followed = await team.follow("waits")
    found = finding(followed.stages)
    assert found is not None
    assert (found[0], found[1].component) == ("scheduling", "default-scheduler")
    assert found[1].mend == "egpu explain pod waits -n team"
    assert followed.stages["admission"].said == "added the demand: app 4 whole cards"
    bound = await team.follow("runs")
    assert [name for name, one in bound.stages.items() if one.state is Passing.PASSED] == [
        "admission", "claim", "scheduling", "allocation",
    ]  # fmt: skip
    found = finding(bound.stages)
    assert found is not None
    assert found[1].said == "kubelet of node n0 has not taken the pod"
    assert "usage" in bound.unread

    # Pods that the webhook refused are found by their controllers' events.
    assert await follow_pod(team.client, "team", "trainer", NONE) is None
    message = "admission webhook denied: spec.containers[app]: 200 % is more than a card"
    about = {"kind": "ReplicaSet", "namespace": "team", "name": "trainer-7f9c"}
    event = {"metadata": {"name": "trainer.1"}, "involvedObject": about, "reason": "FailedCreate", "message": message}
    await team.plane.client.raw("POST", "/api/v1/namespaces/team/events", body=event)
    for name in ("trainer-7f9c", "trainer-7f9c-x2x4z"):
        found = finding((await team.follow(name)).stages)
        assert found is not None
        assert message in found[1].said
    assert await follow_pod(team.client, "team", "trainers", NONE) is None
    with pytest.raises(NotAllowed):
        await follow_pod(team.client, "kube-system", "p", NONE)


SHOWN: Mapping[str, Sequence[str]] = {
    "get pods": ["runs", "waits"],
    "get pods -n team -o json": ["runs", "waits"],
    "get gpus": [],
    "explain pod runs": ["pod team/runs: is on node n0", "container app has card 0: 20 %, 2560 MiB"],
    "explain pod waits": ["pod team/waits: waits"],
    "top": ["team/runs", "team/waits"],
}


async def test_commands_show_the_namespace_and_name_what_is_missing(team: Team) -> None:
    for arguments, shown in SHOWN.items():
        done = await team.run(arguments)
        assert done.exit_code == 0, (arguments, done.output, done.exception)
        assert [one for one in shown if one not in done.stdout] == [], (arguments, done.stdout)
        lines = [line for line in done.stderr.splitlines() if line.startswith("not shown: you may not list elasticgpu")]
        assert len(lines) == 1, (arguments, done.stderr)
        if "json" in arguments:
            assert {one["pod"] for one in json.loads(done.stdout)} == {"runs", "waits"}

    done = await team.run("doctor runs")
    assert (done.exit_code, "kubelet of node n0 has not taken the pod" in done.stdout) == (1, True)
    assert f"see: {Symptom.NOT_STARTED.link}" in done.stdout
    done = await team.run("doctor -o json")
    found = {one["check"]: (one["state"], one["found"]) for one in json.loads(done.stdout)}
    assert found["agents"][0] == found["components"][0] == State.UNSEEN.value
    assert "cannot list" in found["agents"][1]
    assert found["API server"][0] == "ok"

    for arguments, why in (("explain node n0", "elastic-gpu-viewer"), ("get pods -n kube-system", "cannot list")):
        done = await team.run(arguments)
        assert (done.stdout, why in str(done.exception)) == ("", True), done.exception
        assert isinstance(done.exception, NotAllowed)
