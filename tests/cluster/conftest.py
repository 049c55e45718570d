"""One cluster for all of these tests: the simulated one, or with EGPU_TEST_KUBECONFIG a real one, unchanged by them.

    EGPU_TEST_KUBECONFIG   a real cluster with Elastic GPU installed (`make test-cluster` takes it from KUBECONFIG)
    EGPU_TEST_IMAGE        an image with Python; by default the one that the agents run
    EGPU_TEST_PYTHON       Python inside that image

A namespace of its own holds everything that a test makes, and is removed in the end.
"""

import os
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from egpu.api.vocabularies import BY_NAME, OPTIONAL
from egpu.laptop.cluster import ClusterConfig, cluster
from egpu_base.kubernetes import Client
from support import forked_commands
from support.target import Target

IMAGE_PYTHON = "/opt/elastic-gpu/bin/python"


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def target() -> AsyncIterator[Target]:
    """The cluster to test."""
    given = os.environ.get("EGPU_TEST_KUBECONFIG")
    if given:
        async with Client.from_kubeconfig(Path(given)) as client:
            image = os.environ.get("EGPU_TEST_IMAGE") or await _image_of_the_agents(client)
            python = os.environ.get("EGPU_TEST_PYTHON", IMAGE_PYTHON)
            namespace = f"egpu-test-{uuid.uuid4().hex[:8]}"
            path = "/api/v1/namespaces"
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            await client.raw("POST", path, body=body)
            try:
                yield Target(client, namespace, image, python, real=True)
            finally:
                await client.raw("DELETE", f"{path}/{namespace}")
        return
    # A name that means a whole card goes on meaning one.
    vocabularies = tuple(name for name in OPTIONAL if not BY_NAME[name].takes_over)
    config = ClusterConfig(nodes=2, cards_per_node=2, profiles=("A100-80G", "T4"), vocabularies=vocabularies)
    with forked_commands.imported_once():
        async with cluster(config) as running, running.client() as client:
            yield Target(client, "default", "any", sys.executable, real=False)


async def _image_of_the_agents(client: Client) -> str:
    found: Any = await client.raw("GET", "/apis/apps/v1/daemonsets")
    for daemons in found["items"]:
        if daemons["metadata"]["name"] == "elastic-gpu-agent":
            return str(daemons["spec"]["template"]["spec"]["containers"][0]["image"])
    raise AssertionError(
        "no DaemonSet elastic-gpu-agent: install Elastic GPU first, or name an image with Python in EGPU_TEST_IMAGE"
    )
