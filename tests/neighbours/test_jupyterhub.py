"""Zero to JupyterHub: the pod that its spawner makes for a user, by the chart's own configuration, runs with a slice.

EGPU_NEIGHBOURS/charts/jupyterhub is the chart, and EGPU_NEIGHBOURS/jupyterhub/pod DIRECTORY USER a program that prints
the pod: it runs KubeSpawner with the chart's jupyterhub_config.py and values, which lie in DIRECTORY."""

import asyncio
import json
import os
import sys
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart

from egpu.laptop.cluster import Cluster
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import ElasticGPUError
from egpu_base.kubernetes import Client
from support.neighbour_programs import ENVIRONMENT, Json, chart, of_page
from support.pod_groups import given, gone, run
from support.probed_servers import SCRIPT, said

pytestmark = pytest.mark.asyncio(loop_scope="package")
PODS = "/api/v1/namespaces/default/pods"
LABEL = "hub.jupyter.org/username=ada"


def written(directory: Path, values: Json) -> None:
    """Render the chart, and lay out what the hub's container has of it."""
    with Chart.load(chart("jupyterhub")) as one:
        texts = one.render(values, name="r", namespace="default")
    manifests = [text for path, text in texts.items() if path.endswith(".yaml")]
    for document in (one for text in manifests for one in yaml.safe_load_all(text) if one):
        if document["metadata"]["name"] == "hub" and document["kind"] in ("ConfigMap", "Secret"):
            _files(directory, document)


def _files(directory: Path, document: Mapping[str, Any]) -> None:
    secret = document["kind"] == "Secret"
    folder = directory / ("secret" if secret else "config")
    folder.mkdir(parents=True)
    for name, text in document["data"].items():
        content = b64decode(text) if secret else text.encode()
        (folder / name).write_bytes(content)
        if name.endswith(".py"):
            (directory / name).write_bytes(content)


async def spawned(running: Cluster, directory: Path, values: Json) -> Json:
    """Return the pod of the user `ada`, with a probe in place of the notebook server."""
    given_directory = os.environ.get(ENVIRONMENT, "")
    program = Path(given_directory) / "jupyterhub" / "pod"
    if not given_directory or not os.access(program, os.X_OK):
        pytest.skip(f"{ENVIRONMENT} has no program jupyterhub/pod")
    written(directory, values)
    asked = await asyncio.create_subprocess_exec(
        program,
        directory,
        "ada",
        env={"KUBECONFIG": str(running.plane.kubeconfig), "PATH": os.environ["PATH"]},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complaints = await asyncio.wait_for(asked.communicate(), 120)
    assert asked.returncode == 0, complaints.decode()[-2000:]
    pod: Json = json.loads(said)
    pod["spec"]["terminationGracePeriodSeconds"] = 0
    for one in pod["spec"]["initContainers"]:
        one["command"] = ["true"]  # it calls iptables of its image
    (container,) = pod["spec"]["containers"]
    container |= {"command": [sys.executable, "-c", SCRIPT], "args": []}
    return pod


def values(*, own_scheduler: bool) -> Json:
    """The values of the page, without a disk."""
    (found,) = of_page("jupyterhub")
    found["singleuser"]["storage"] = {"type": "none"}
    found["scheduling"]["userScheduler"]["enabled"] |= own_scheduler
    return found


async def test_a_users_server_has_its_slice(running: Cluster, client: Client, tmp_path: Path):
    """By the values `singleuser.extraResource.limits` and `scheduling.userScheduler.enabled`."""
    await client.raw("POST", PODS, body=await spawned(running, tmp_path / "hub", values(own_scheduler=False)))
    (placed,) = await run(client, LABEL, 1)
    assert list(given([placed]).values()) == [30]
    (card,), variables, _ = await said(client, placed.name, "notebook")
    assert (card["uuid"], card["total_mib"]) == (next(iter(given([placed]))), 4096)
    assert variables["NVIDIA_VISIBLE_DEVICES"] == card["uuid"]
    assert variables["JUPYTERHUB_USER"] == "ada"
    await client.delete(Pod, placed.name, namespace="default", grace_period_seconds=0)
    await gone(client, LABEL)


async def test_the_charts_own_scheduler_knows_no_cards(running: Cluster, client: Client, tmp_path: Path):
    """By default the chart gives its users' pods a scheduler of its own, which does not ask the extender."""
    pod = await spawned(running, tmp_path / "hub", values(own_scheduler=True))
    with pytest.raises(ElasticGPUError, match="'r-user-scheduler', which does not ask Elastic GPU's extender"):
        await client.raw("POST", PODS, body=pod)
