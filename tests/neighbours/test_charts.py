"""Public Helm charts with slices in place of cards: their Deployments are placed, and what they set is honoured.

EGPU_NEIGHBOURS/charts/NAME is the unpacked chart. Simulated nodes have no images, so the containers run a probe instead
of their server; everything else is as the chart renders it."""

import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from helm_python import Chart

from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client
from support.neighbour_programs import chart, of_page
from support.pod_groups import gone, run
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")
PATH = "/apis/apps/v1/namespaces/default/deployments"
PROBE = (Path(__file__).parents[1] / "cluster" / "probe.py").read_text()
SCRIPT = f"""{PROBE}
import os, sys, time
print(json.dumps({{"visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "cards": os.environ["NVIDIA_VISIBLE_DEVICES"]}}))
sys.stdout.flush()
time.sleep(1000)
"""
Json = dict[str, Any]


def rendered(name: str, values: Json) -> list[Json]:
    """Return the chart's Deployments that ask for a GPU."""
    with Chart.load(chart(name)) as one:
        texts = one.render(values, name="r", namespace="default")
    documents = [document for text in texts.values() for document in yaml.safe_load_all(text) if document]
    return [document for document in documents if document["kind"] == "Deployment" and _limits(document)]


def _limits(deployment: Json) -> Json:
    (first, *_) = deployment["spec"]["template"]["spec"]["containers"]
    limits = cast(Json, (first.get("resources") or {}).get("limits") or {})
    return {key: amount for key, amount in limits.items() if key.startswith(("elasticgpu.io/", "nvidia.com/"))}


async def place(client: Client, deployment: Json) -> Pod:
    """Run the Deployment with the probe; return its pod."""
    spec = deployment["spec"]["template"]["spec"]
    spec["terminationGracePeriodSeconds"] = 0
    spec.pop("serviceAccountName", None)
    (container,) = spec["containers"]
    for key in ("livenessProbe", "readinessProbe", "startupProbe", "args"):
        container.pop(key, None)
    container["command"] = [sys.executable, "-c", SCRIPT]
    labels = ",".join(f"{key}={text}" for key, text in deployment["spec"]["selector"]["matchLabels"].items())
    await client.raw("POST", PATH, body=deployment)
    (pod,) = await run(client, labels, 1)
    return pod


async def said(client: Client, pod: Pod) -> tuple[list[Json], Json]:
    """Return what the container sees of its cards, and what of its variables."""
    lines: list[str] = []

    async def spoken() -> bool:
        lines[:] = (await client.text(f"/api/v1/namespaces/default/pods/{pod.name}/log")).splitlines()
        return len(lines) >= 2

    await until(spoken, what=lambda: str(lines), seconds=120)
    return json.loads(lines[-2]), json.loads(lines[-1])


async def end(client: Client, deployment: Json) -> None:
    await client.raw("DELETE", f"{PATH}/{deployment['metadata']['name']}", params={"propagationPolicy": "Background"})
    labels = deployment["spec"]["selector"]["matchLabels"]
    await gone(client, ",".join(f"{key}={text}" for key, text in labels.items()))


def share(pod: Pod) -> Any:
    (container,) = decode_allocation(pod.annotations[names.ALLOCATION]).containers.values()
    (one,) = container.cards
    return one


async def test_vllm_production_stack_by_its_own_values(client: Client):
    """The chart has a value for the name of the GPU resource."""
    (values,) = of_page("vllm")
    (model,) = values["servingEngineSpec"]["modelSpec"]
    model["env"] = [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]
    off = {"enabled": False}
    (deployment,) = rendered("production-stack", {**values, "kube-prometheus-stack": off, "prometheus-adapter": off})
    assert _limits(deployment) == {names.GPU_MEMORY: "8192"}
    assert [volume["name"] for volume in deployment["spec"]["template"]["spec"]["volumes"]] == ["shm"]
    pod = await place(client, deployment)
    ((card,), variables) = await said(client, pod)
    assert (card["uuid"], card["total_mib"]) == (share(pod).uuid, 8192)
    assert share(pod).core == 0, "memory only"
    assert variables == {"visible": "0", "cards": share(pod).uuid}
    await end(client, deployment)


def kustomized(deployment: Json) -> None:
    """Change the manifest as the page's kustomization does."""
    (kustomization,) = of_page("triton")
    (patch,) = kustomization["patches"]
    assert patch["target"] == {"kind": deployment["kind"]}
    for change in yaml.safe_load(patch["patch"]):
        *way, last = change["path"].strip("/").split("/")
        place: Any = deployment
        for step in way:
            place = place[int(step) if isinstance(place, list) else step]
        assert (change["op"], last in place) == ("replace", True)
        place[last] = change["value"]


async def test_triton_with_a_slice_in_place_of_its_card(client: Client):
    """The chart writes nvidia.com/gpu, so its rendered manifest is changed."""
    (deployment,) = rendered("triton", {"tags": {"loadBalancing": False, "autoscaling": False}})
    spec = deployment["spec"]["template"]["spec"]
    assert _limits(deployment) == {names.NVIDIA_GPU: 1}
    kustomized(deployment)
    spec["volumes"] = [{"name": "models", "emptyDir": {}}]  # there is no file server
    pod = await place(client, deployment)
    ((card,), variables) = await said(client, pod)
    assert (share(pod).core, share(pod).memory_mib) == (30, 4096)
    assert (card["uuid"], card["total_mib"]) == (share(pod).uuid, 4096)
    assert variables["cards"] == share(pod).uuid
    await end(client, deployment)


async def test_triton_as_it_is_gets_a_whole_card(client: Client):
    (deployment,) = rendered("triton", {"tags": {"loadBalancing": False, "autoscaling": False}})
    deployment["spec"]["template"]["spec"]["volumes"] = [{"name": "models", "emptyDir": {}}]
    pod = await place(client, deployment)
    ((card,), _) = await said(client, pod)
    assert (card["uuid"], card["total_mib"] > 75_000) == (share(pod).uuid, True)
    await end(client, deployment)
