"""The embedded API server with our CRDs, and control-plane processes run inside the test against it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx2
import yaml

from egpu.adapters.kubernetes import Client
from egpu.api.kubernetes import Namespace, Node
from egpu.api.objects import ElasticGPU, ObjectMeta
from egpu.apps.controller import Controller, ControllerConfig
from egpu.apps.extender import Extender, ExtenderConfig
from egpu.apps.webhook import Webhook, WebhookConfig
from egpu.embedded import apiserver
from egpu.runtime.supervisor import Supervisor
from support.objects import card
from support.ports import free_port
from support.waiting import DEADLINE_SECONDS, until

SYSTEM = "elastic-gpu-system"
CRDS = Path(__file__).parents[2] / "deploy" / "crds"


class App(Protocol):
    async def run(self, supervisor: Supervisor) -> None: ...
    def not_ready(self) -> str | None: ...


@asynccontextmanager
async def running(app: App) -> AsyncGenerator[asyncio.Task[None]]:
    """The app, ready; on leaving it is cancelled at once, which is as near to SIGKILL as one process gets."""
    task = asyncio.create_task(app.run(Supervisor(signals=())))
    try:
        await until(lambda: task.done() or app.not_ready() is None)
        if task.done():
            task.result()
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@dataclass
class ControlPlane:
    client: Client
    kubeconfig: Path

    async def node(self, name: str, cards: int = 1, memory_mib: int = 16384) -> None:
        await self.client.create(Node, Node(metadata=ObjectMeta(name=name)))
        for index in range(cards):
            await self.client.create(ElasticGPU, physical(name, index, memory_mib))

    async def apply(self, text: str) -> None:
        """Creates every object of a YAML text, in order, as `kubectl create` would."""
        for obj in yaml.safe_load_all(text):
            await self.create(obj)

    async def create(self, obj: dict[str, Any]) -> dict[str, Any]:
        plural = {
            "Pod": "pods",
            "ElasticGPUClass": "elasticgpuclasses",
            "ElasticGPUClaim": "elasticgpuclaims",
            "ElasticGPU": "elasticgpus",
        }[obj["kind"]]
        group = obj["apiVersion"]
        base = f"/apis/{group}" if "/" in group else f"/api/{group}"
        namespaced = obj["kind"] in ("Pod", "ElasticGPUClaim")
        namespace = obj["metadata"].get("namespace", "default")
        path = f"{base}/namespaces/{namespace}/{plural}" if namespaced else f"{base}/{plural}"
        return await self.client.raw("POST", path, body=obj)


def physical(node: str, index: int, memory_mib: int = 16384) -> ElasticGPU:
    return card(node, index, memory_mib=memory_mib)


@asynccontextmanager
async def control_plane(directory: Path) -> AsyncGenerator[ControlPlane]:
    async with (
        apiserver.serve(apiserver.Config(directory=directory)) as server,
        Client.from_kubeconfig(server.kubeconfig) as client,
    ):
        await install(client)
        yield ControlPlane(client, server.kubeconfig)


async def install(client: Client) -> None:
    """Our namespace and CRDs."""
    await client.create(Namespace, Namespace(metadata=ObjectMeta(name=SYSTEM)))
    for file in sorted(CRDS.glob("elasticgpu*.yaml")):
        definition = yaml.safe_load(file.read_text())
        await client.raw("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body=definition)

    async def served() -> bool:
        return list(await client.list(ElasticGPU)) == []

    await until(served)


@asynccontextmanager
async def admission(plane: ControlPlane) -> AsyncGenerator[tuple[Controller, Webhook]]:
    """Controller and webhook together: the controller makes the certificate and configures the API server."""
    port = free_port()
    controller = Controller(
        ControllerConfig(listen="127.0.0.1:0", webhook_url=f"https://127.0.0.1:{port}"), plane.client
    )
    webhook = Webhook(WebhookConfig(listen="127.0.0.1:0", webhook_listen=f"127.0.0.1:{port}"), plane.client)
    async with running(controller), running(webhook):
        yield controller, webhook


@asynccontextmanager
async def extender(plane: ControlPlane, **config: Any) -> AsyncGenerator[tuple[Extender, httpx2.AsyncClient]]:
    one = Extender(ExtenderConfig(listen="127.0.0.1:0", **config), plane.client)
    async with (
        running(one),
        httpx2.AsyncClient(base_url=f"http://{one.address}", trust_env=False, timeout=DEADLINE_SECONDS) as http,
    ):
        yield one, http


def binding(pod: dict[str, Any], node: str) -> dict[str, str]:
    meta = pod["metadata"]
    return {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}


async def nodes_known(one: Extender, count: int) -> None:
    await until(lambda: len(one.view.cache.ledger.nodes()) == count)
