"""Pods as other projects make them, with a slice in place of a card: they are placed and run, and what they set holds.

The pods have the shapes that the projects' documentation and charts show: their init containers, sidecars, variables
and volumes. A probe runs in place of each server, because simulated nodes have no images. (`tests/neighbours` has
rendered charts.)"""

import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from egpu.api import names
from egpu.api.allocation import CardShare, decode_allocation
from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.kubernetes import Client
from support.neighbour_programs import of_page
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
Json = dict[str, Any]
NAMESPACE = "/api/v1/namespaces/default"
PODS = f"{NAMESPACE}/pods"
PROBE = (Path(__file__).parents[1] / "cluster" / "probe.py").read_text()
SAY = """
import os, sys, time
paths = {path: os.path.isdir(path) and os.listdir(path) for path in sys.argv[1:]}
kinds = [line.split()[2] for line in open("/proc/self/mounts") if line.split()[1] == "/dev/shm"]
print(json.dumps({"environment": dict(os.environ), "paths": paths, "shared_memory": kinds}), flush=True)
time.sleep(1000)
"""
SLICE = {names.GPU_CORE: "30", names.GPU_MEMORY: "4096"}
SHARED_MEMORY: Json = {"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Cluster]:
    async with cluster(ClusterConfig(nodes=1, cards_per_node=2, pool=False)) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def client(running: Cluster) -> AsyncIterator[Client]:
    async with running.client() as one:
        yield one


async def test_without_the_pool_a_node_offers_what_its_cards_have(client: Client):
    """As the chart installs it. Autoscalers add these amounts up."""

    async def offered() -> dict[str, str]:
        (node,) = await client.list(Node)
        room = {name: str(amount) for name, amount in (node.status.allocatable or {}).items()}
        return room if names.GPU_CORE in room else {}

    room = await until(offered, seconds=60)
    assert (room[names.GPU], room[names.GPU_CORE]) == ("2", "200")
    assert not [name for name in room if "pool" in name]


def server(name: str, *paths: str, environment: Mapping[str, str] | None = None, **more: Any) -> Json:
    """The container that has the slice. It says what it finds at the `paths`."""
    variables = [{"name": key, "value": text} for key, text in (environment or {}).items()]
    return {
        "name": name,
        "image": "any",
        "command": [sys.executable, "-c", f"{PROBE}{SAY}", *paths],
        "env": variables,
        "resources": {"limits": {"cpu": "1", "memory": "2Gi", **SLICE}, "requests": {"cpu": "1", "memory": "2Gi"}},
        **more,
    }


def helper(name: str, script: str, **more: Any) -> Json:
    """A container without a GPU."""
    return {"name": name, "image": "any", "command": ["sh", "-c", script], **more}


def body(name: str, spec: Json, *, labels: Mapping[str, str], annotations: Mapping[str, str] | None = None) -> Json:
    metadata = {"name": name, "labels": dict(labels), "annotations": dict(annotations or {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"terminationGracePeriodSeconds": 0, **spec},
    }


async def run(client: Client, pod: Json, container: str) -> tuple[CardShare, Sequence[Json], Json]:
    """Run the pod; return its share, the cards that the container sees, and what it says of itself."""
    await client.raw("POST", PODS, body=pod)
    name, lines = pod["metadata"]["name"], list[str]()

    async def spoken() -> bool:
        found = await client.get(Pod, name, namespace="default")
        if found.status.phase != "Running":
            return False
        text = await client.text(f"{PODS}/{name}/log", params={"container": container})
        lines[:] = [line for line in text.splitlines() if line.startswith(("[", "{"))]
        return len(lines) >= 2

    await until(spoken, what=lambda: str(lines), seconds=120)
    placed = await client.get(Pod, name, namespace="default")
    given = decode_allocation(placed.annotations[names.ALLOCATION]).containers
    assert list(given) == [container], "the others have no card"
    (share,) = given[container].cards
    await client.delete(Pod, name, namespace="default", grace_period_seconds=0)
    return share, json.loads(lines[0]), json.loads(lines[1])


def assert_slice(share: CardShare, seen: Sequence[Json]) -> None:
    assert (share.core, share.memory_mib) == (30, 4096)
    assert [(one["uuid"], one["total_mib"], one["limit"]) for one in seen] == [(share.uuid, 4096, True)]


async def test_kserve_predictor(client: Client):
    """An InferenceService without Knative: the model is fetched first, into a volume that the server reads.
    Configuration and credentials are files."""
    meta = {"name": "files"}
    await client.raw("POST", f"{NAMESPACE}/configmaps", body={"metadata": meta, "data": {"server.yaml": "batch: 8"}})
    await client.raw("POST", f"{NAMESPACE}/secrets", body={"metadata": meta, "stringData": {"token": "t"}})
    files = [{"name": "config", "mountPath": "/etc/server"}, {"name": "credentials", "mountPath": "/etc/credentials"}]
    mount = [{"name": "kserve-provision-location", "mountPath": "/mnt/models"}]
    variables = {"PROTOCOL": "v1", "LMCACHE_USE_EXPERIMENTAL": "True"}
    shared = [{"name": "devshm", "mountPath": "/dev/shm"}]
    spec = {
        "initContainers": [helper("storage-initializer", "touch /mnt/models/config.json", volumeMounts=mount)],
        "containers": [
            server(
                "kserve-container",
                "/mnt/models",
                "/etc/server",
                "/etc/credentials",
                environment=variables,
                volumeMounts=[*mount, *shared, *files],
            )
        ],
        "volumes": [
            {"name": "kserve-provision-location", "emptyDir": {}},
            {"name": "devshm", **SHARED_MEMORY},
            {"name": "config", "configMap": {"name": "files"}},
            {"name": "credentials", "secret": {"secretName": "files"}},
        ],
        "hostIPC": False,
    }
    pod = body("llm-predictor", spec, labels={"serving.kserve.io/inferenceservice": "llm"})
    share, seen, said = await run(client, pod, "kserve-container")
    assert_slice(share, seen)
    assert said["paths"] == {
        "/mnt/models": ["config.json"], "/etc/server": ["server.yaml"], "/etc/credentials": ["token"],
    }  # fmt: skip
    assert variables.items() <= said["environment"].items()
    assert said["environment"]["NVIDIA_VISIBLE_DEVICES"] == share.uuid


async def test_kuberay_worker(client: Client):
    """The operator's init container waits for the head. Ray counts its GPUs by --num-gpus of the start command."""
    variables = {"RAY_PORT": "6379", "RAY_ADDRESS": "head-svc:6379", "CUDA_VISIBLE_DEVICES": "0"}
    mounts = [{"name": "shared-mem", "mountPath": "/dev/shm"}, {"name": "log-volume", "mountPath": "/tmp/ray"}]
    spec = {
        "initContainers": [helper("wait-gcs-ready", "true")],
        "containers": [server("ray-worker", "/tmp/ray", environment=variables, volumeMounts=mounts)],
        "volumes": [{"name": "shared-mem", **SHARED_MEMORY}, {"name": "log-volume", "emptyDir": {}}],
    }
    pod = body("r-worker", spec, labels={"ray.io/cluster": "r", "ray.io/node-type": "worker"})
    share, seen, said = await run(client, pod, "ray-worker")
    assert_slice(share, seen)
    assert variables.items() <= said["environment"].items()
    assert said["paths"] == {"/tmp/ray": []}


async def test_jupyterhub_single_user_server(client: Client):
    """Pods of users have no token. `singleuser.extraResource.limits` of the chart has the names of a slice."""
    variables = {"JUPYTERHUB_USER": "ada", "JUPYTERHUB_SERVICE_PREFIX": "/user/ada/", "NVIDIA_DRIVER_CAPABILITIES": ""}
    spec = {
        "automountServiceAccountToken": False,
        "initContainers": [helper("block-cloud-metadata", "true")],
        "containers": [
            server("notebook", "/srv/jovyan", environment=variables,
                   volumeMounts=[{"name": "home", "mountPath": "/srv/jovyan"}])
        ],
        "volumes": [{"name": "home", "emptyDir": {}}],
        "restartPolicy": "OnFailure",
        "securityContext": {"fsGroup": 100},
    }  # fmt: skip
    pod = body("jupyter-ada", spec, labels={"app": "jupyterhub", "component": "singleuser-server"})
    share, seen, said = await run(client, pod, "notebook")
    assert_slice(share, seen)
    assert variables.items() <= said["environment"].items()
    assert said["paths"] == {"/srv/jovyan": []}


async def test_kubeflow_notebook(client: Client):
    """The controller sets NB_PREFIX, and the form adds shared memory."""
    mounts = [{"name": "dshm", "mountPath": "/dev/shm"}, {"name": "workspace", "mountPath": "/srv/jovyan"}]
    spec = {
        "containers": [
            server("nb", "/srv/jovyan", environment={"NB_PREFIX": "/notebook/default/nb"}, volumeMounts=mounts)
        ],
        "volumes": [{"name": "dshm", "emptyDir": {"medium": "Memory"}}, {"name": "workspace", "emptyDir": {}}],
    }
    pod = body("nb-0", spec, labels={"notebook-name": "nb", "statefulset": "nb"})
    share, seen, said = await run(client, pod, "nb")
    assert_slice(share, seen)
    assert said["environment"]["NB_PREFIX"] == "/notebook/default/nb"
    assert said["paths"] == {"/srv/jovyan": []}


async def test_argo_workflow_step(client: Client):
    """A step is `main`. Beside it `wait` keeps its results, and before it `init` puts its arguments into a volume."""
    (workflow,) = of_page("argo")
    (template,) = workflow["spec"]["templates"]
    assert template["container"]["resources"]["limits"] == SLICE
    argo = [{"name": "var-run-argo", "mountPath": "/var/run/argo"}]
    spec = {
        "initContainers": [helper("init", "touch /var/run/argo/template", volumeMounts=argo)],
        "containers": [
            helper("wait", "sleep 1000", volumeMounts=argo),
            server("main", "/var/run/argo", environment={"ARGO_CONTAINER_NAME": "main"}, volumeMounts=argo),
        ],
        "volumes": [{"name": "var-run-argo", "emptyDir": {}}],
        "restartPolicy": "Never",
    }
    labels = {"workflows.argoproj.io/workflow": "steps", "workflows.argoproj.io/completed": "false"}
    share, seen, said = await run(client, body("steps-1", spec, labels=labels), "main")
    assert_slice(share, seen)
    assert said["paths"] == {"/var/run/argo": ["template"]}


async def test_triton_server(client: Client):
    """Its shared memory is as large as the pod says, and its variables are CUDA's."""
    mounts = [{"name": "dshm", "mountPath": "/dev/shm"}]
    variables = {"CUDA_MODULE_LOADING": "LAZY", "CUDA_VISIBLE_DEVICES": "0"}
    spec = {
        "containers": [server("triton", environment=variables, volumeMounts=mounts)],
        "volumes": [{"name": "dshm", **SHARED_MEMORY}],
    }
    share, seen, said = await run(client, body("triton", spec, labels={"app": "triton"}), "triton")
    assert_slice(share, seen)
    assert variables.items() <= said["environment"].items()
