"""Kubeflow's notebook controller: a notebook has its slice, gives it back when it is stopped, and gets one again."""

import sys
from pathlib import Path

import pytest

from egpu.laptop.cluster import Cluster
from egpu_base.kubernetes import Client
from support.neighbour_programs import Json, Neighbour, of_page
from support.pod_groups import given, gone, run
from support.probed_servers import SCRIPT, said

pytestmark = pytest.mark.asyncio(loop_scope="package")
NOTEBOOKS = Neighbour("notebooks", arguments=("--metrics-addr=0", "--probe-addr={health}"))
PATH = "/apis/kubeflow.org/v1beta1/namespaces/default/notebooks"
NAME = "slice"
LABEL = f"notebook-name={NAME}"
STOPPED = "kubeflow-resource-stopped"


def sliced() -> Json:
    """The page's example, with a probe as the server. Beside the slice it has what the documentation's example has, and
    the form's shared memory."""
    (notebook,), (documented,) = of_page("notebooks"), NOTEBOOKS.example("notebook.yaml")
    assert notebook["apiVersion"] == documented["apiVersion"]
    spec = notebook["spec"]["template"]["spec"]
    spec["terminationGracePeriodSeconds"] = 0
    spec["containers"][0] |= {
        "command": [sys.executable, "-c", SCRIPT],
        "workingDir": "/tmp",  # the default is a folder of the image
    }
    return notebook


async def test_a_notebook_has_a_slice_until_it_is_stopped(running: Cluster, client: Client, tmp_path: Path):
    async with NOTEBOOKS.running(running, client, tmp_path):
        await client.raw("POST", PATH, body=sliced())
        pods = await run(client, LABEL, 1)
        assert list(given(pods).values()) == [30]
        (card,), variables, shared_memory = await said(client, pods[0].name, NAME)
        assert (card["uuid"], card["total_mib"]) == (next(iter(given(pods))), 4096)
        assert variables["NB_PREFIX"] == f"/notebook/default/{NAME}"
        assert variables["NVIDIA_VISIBLE_DEVICES"] == card["uuid"]
        assert shared_memory, "the form's shared memory"
        for stopped in ("2026-01-01T00:00:00Z", None):  # as the controller's culling does, and the form's button
            body = {"metadata": {"annotations": {STOPPED: stopped}}}
            await client.raw("PATCH", f"{PATH}/{NAME}", body=body, of="application/merge-patch+json")
            if stopped:
                await gone(client, LABEL)
        pods = await run(client, LABEL, 1)
        assert list(given(pods).values()) == [30]
        await client.raw("DELETE", f"{PATH}/{NAME}", params={"propagationPolicy": "Foreground"})
        await gone(client, LABEL)
