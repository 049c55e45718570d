"""KServe with its own controller: the server of an InferenceService has its slice, and what fetches the model has no
card."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.laptop.cluster import Cluster
from egpu_base.kubernetes import Client
from support.lost_answers import removed
from support.neighbour_programs import Json, Neighbour, of_page
from support.pod_groups import given, gone, run
from support.probed_servers import SCRIPT, said

pytestmark = pytest.mark.asyncio(loop_scope="package")
# The script `manager` takes the folder of the certificate first: the program has no argument for it.
ARGUMENTS = ("{pki}", "--metrics-addr=0", "--webhook-port={port}", "--health-probe-addr={health}")
KSERVE = Neighbour("kserve", arguments=ARGUMENTS)
API = "/apis/serving.kserve.io"
SERVICES = f"{API}/v1beta1/namespaces/default/inferenceservices"
MAPS = "/api/v1/namespaces/default/configmaps"
LABEL = "serving.kserve.io/inferenceservice=slice"


@pytest_asyncio.fixture(loop_scope="package")
async def settings(client: Client) -> AsyncIterator[None]:
    """The project's configuration, without an ingress: nothing here would serve it."""
    (found,) = KSERVE.example("configmap.yaml")
    ingress = json.loads(found["data"]["ingress"]) | {"disableIngressCreation": True, "disableIstioVirtualHost": True}
    found["metadata"]["namespace"] = "default"
    found["data"]["ingress"] = json.dumps(ingress)
    await client.raw("POST", MAPS, body=found)
    yield
    await removed(client, f"{MAPS}/{found['metadata']['name']}")


def service() -> Json:
    """The page's example. Simulated nodes have no images, so a probe runs in place of the server."""
    (found,) = of_page("kserve")
    found["spec"]["predictor"] |= {"terminationGracePeriodSeconds": 0}
    found["spec"]["predictor"]["model"] |= {"command": [sys.executable, "-c", SCRIPT]}
    return found


def storage() -> Json:
    """The project's container that fetches models, with a file in place of a model."""
    (found,) = KSERVE.example("storage.yaml")
    found["spec"]["container"] |= {"command": ["sh", "-c", "touch /mnt/models/config.json"]}
    return found


def runtime() -> Json:
    """The project's runtime, which any user may run here."""
    (found,) = KSERVE.example("runtime.yaml")
    found["spec"]["containers"][0].pop("securityContext")
    return found


async def test_the_server_of_a_model_has_a_slice(running: Cluster, client: Client, settings: None, tmp_path: Path):
    async with KSERVE.running(running, client, tmp_path):
        for kind, body in (("clusterstoragecontainers", storage()), ("clusterservingruntimes", runtime())):
            await client.raw("POST", f"{API}/v1alpha1/{kind}", body=body)
        await client.raw("POST", SERVICES, body=service())
        (pod,) = await run(client, LABEL, 1)
        assert [one.name for one in pod.spec.init_containers or ()] == ["storage-initializer"]
        assert list(decode_allocation(pod.annotations[names.ALLOCATION]).containers) == ["kserve-container"]
        assert list(given([pod]).values()) == [30]
        (card,), variables, shared_memory = await said(client, pod.name, "kserve-container")
        assert (card["uuid"], card["total_mib"]) == (next(iter(given([pod]))), 4096)
        assert variables["NVIDIA_VISIBLE_DEVICES"] == card["uuid"]
        assert variables["LMCACHE_USE_EXPERIMENTAL"] == "True", "the runtime's variable"
        assert shared_memory, "the runtime's volume"
        await removed(client, f"{SERVICES}/slice")
        await gone(client, LABEL)
        await removed(client, f"{API}/v1alpha1/clusterservingruntimes/kserve-huggingfaceserver")
        await removed(client, f"{API}/v1alpha1/clusterstoragecontainers/default")
