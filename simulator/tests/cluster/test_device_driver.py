"""A small driver of dynamic resource allocation on a node of the simulated cluster: registered, asked, and obeyed."""

import contextlib
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from egpu_base.api.kubernetes import Event, Pod
from egpu_base.errors import Unavailable
from egpu_base.kubelet.dra import (
    PLUGINS,
    REGISTRY,
    ClaimName,
    PluginInfo,
    PreparedDevice,
    serve_driver,
    serve_registration,
)
from egpu_base.kubernetes import Client
from egpu_sim.cluster.cluster import Cluster, ClusterConfig, Components, started
from egpu_sim.cluster.dynamic.kinds import ResourceClaim
from support.waiting import until

DRIVER = "toy.example.com"
ROOT = "/apis/resource.k8s.io/v1"
PODS = "/api/v1/namespaces/default/pods"
NODE = "node-1"


class Toy:
    """Gives each claim one CDI device, whose variable names the claim."""

    def __init__(self, home: Path) -> None:
        self._cdi = home / "cdi"
        self.prepared: list[str] = []
        self.unprepared: list[str] = []
        self.troubles = 0
        """Calls that fail before one succeeds."""

    async def prepare(self, claim: ClaimName) -> tuple[PreparedDevice, ...]:
        if self.troubles:
            self.troubles -= 1
            raise Unavailable("the toy is tired")
        self._cdi.mkdir(exist_ok=True)
        device = {"name": claim.uid, "containerEdits": {"env": [f"TOY=of {claim.name}"]}}
        spec = {"cdiVersion": "0.5.0", "kind": "example.com/toy", "devices": [device]}
        (self._cdi / f"toy-{claim.uid}.json").write_text(json.dumps(spec))
        self.prepared.append(claim.uid)
        return (PreparedDevice(("toy",), NODE, "toy-0", (f"example.com/toy={claim.uid}",)),)

    async def unprepare(self, claim: ClaimName) -> None:
        (self._cdi / f"toy-{claim.uid}.json").unlink(missing_ok=True)
        self.unprepared.append(claim.uid)


@contextlib.asynccontextmanager
async def serving(toy: Toy, kubelet_dir: Path) -> AsyncGenerator[list[str]]:
    """Serve the driver, and yield what kubelet tells it."""
    told = list[str]()
    socket = kubelet_dir / PLUGINS / DRIVER / "dra.sock"
    servers = [
        await serve_driver(toy, socket),
        await serve_registration(PluginInfo(DRIVER, str(socket)), kubelet_dir / REGISTRY / "toy.sock", told.append),
    ]
    try:
        yield told
    finally:
        for server in servers:
            await server.stop(None)


@pytest.fixture
async def cluster() -> AsyncGenerator[Cluster[Components]]:
    config = ClusterConfig(nodes=1, cards_per_node=0, kubernetes=None, log_level="warning")
    async with started(config, Components()) as running:
        yield running


async def publish(client: Client) -> None:
    """Make the class `toy`, a slice with one toy that claims share, and a template that takes half of it."""
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    await client.raw(
        "POST", f"{ROOT}/deviceclasses", body={"metadata": {"name": "toy"}, "spec": {"selectors": selectors}}
    )
    device = {"name": "toy-0", "allowMultipleAllocations": True, "capacity": {"fun": {"value": "2"}}}
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": [device]}
    await client.raw("POST", f"{ROOT}/resourceslices", body={"metadata": {"name": "toys"}, "spec": spec})
    exactly = {"deviceClassName": "toy", "capacity": {"requests": {"fun": "1"}}}
    wanted = {"devices": {"requests": [{"name": "toy", "exactly": exactly}]}}
    body = {"metadata": {"name": "half"}, "spec": {"spec": wanted}}
    await client.raw("POST", f"{ROOT}/namespaces/default/resourceclaimtemplates", body=body)


async def make_pod(client: Client, name: str, script: str) -> None:
    def container(called: str, **more: Any) -> dict[str, Any]:
        return {"name": called, "image": "x", "command": ["sh", "-c", script], **more}

    containers = [container("with", resources={"claims": [{"name": "mine"}]}), container("without")]
    claims = [{"name": "mine", "resourceClaimTemplateName": "half"}]
    spec = {"containers": containers, "resourceClaims": claims, "restartPolicy": "Never"}
    await client.raw(
        "POST", PODS, body={"metadata": {"name": name}, "spec": {**spec, "terminationGracePeriodSeconds": 1}}
    )


async def events(client: Client, pod: str) -> str:
    found = await client.list(Event, namespace="default")
    return "\n".join(f"{one.reason}: {one.message}" for one in found if one.involved_object.name == pod)


async def phase(client: Client, pod: str, wanted: str) -> Pod:
    async def look() -> Pod | None:
        found = await client.get(Pod, pod, namespace="default")
        return found if found.status.phase == wanted else None

    return await until(look, f"{pod} {wanted}")


async def no_claims(client: Client) -> None:
    async def none() -> bool:
        return not await client.list(ResourceClaim, namespace="default")

    await until(none, "no claims")


async def test_a_driver_prepares_the_claims_of_pods_and_undoes_it(cluster: Cluster[Components]) -> None:
    home = cluster.node_dir(NODE)
    toy = Toy(home)
    async with cluster.client() as client:
        await publish(client)
        await make_pod(client, "p", 'echo "toy: $TOY"')

        async def waits() -> bool:
            return f"DRA driver {DRIVER} is not registered" in await events(client, "p")

        await until(waits, "no driver yet")
        await phase(client, "p", "Pending")

        async def told_why() -> bool:
            found = await client.get(Pod, "p", namespace="default")
            states = [one.state for one in found.status.container_statuses or []]
            reasons = [one.waiting.reason for one in states if one is not None and one.waiting is not None]
            return reasons == ["ContainerCreating", "ContainerCreating"]

        await until(told_why, "the containers wait")  # kubelet tells the event first, then the status
        toy.troubles = 1
        async with serving(toy, home / "kubelet") as told:
            await phase(client, "p", "Succeeded")
            assert told == [""]
            assert "Failed to prepare dynamic resources: prepare dynamic resources:" in await events(client, "p")
            assert "the toy is tired" in await events(client, "p")
            (uid,) = toy.prepared
            outputs = {
                name: await client.text(f"{PODS}/p/log", params={"container": name}) for name in ("with", "without")
            }
            assert outputs["with"].startswith("toy: of p-mine-")
            assert outputs["without"] == "toy: \n"
            assert toy.unprepared == [uid], "before the pod's phase was written"
            await no_claims(client)

            # A kubelet that is killed knows the claims of its pods when it returns.
            await make_pod(client, "q", "sleep 1000")
            await phase(client, "q", "Running")
            cluster.fleet.children[f"kubelet-{NODE}"].kill()
            await client.delete(Pod, "q", namespace="default")
            await no_claims(client)
            assert len(toy.prepared) == 2
            assert toy.unprepared == toy.prepared
