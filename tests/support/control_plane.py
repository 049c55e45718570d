"""The simulated API server with our CRDs, and control-plane processes run inside the test against it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx2
import yaml

from egpu.api.objects import ElasticGPU
from egpu.apps.controller import Controller, ControllerConfig, webhooks
from egpu.apps.extender import Extender, ExtenderConfig
from egpu.apps.webhook import Webhook, WebhookConfig
from egpu.laptop.credentials import ExtenderCredentials, extender_credentials
from egpu.laptop.installation import install
from egpu_base.api.kubernetes import Node
from egpu_base.api.objects import ObjectMeta
from egpu_base.kubernetes import Client
from egpu_base.runtime.supervisor import Supervisor
from egpu_sim.cluster import apiserver
from support.objects import card
from support.ports import free_port
from support.waiting import DEADLINE_SECONDS, until

SYSTEM = "elastic-gpu-system"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
CONFIGURATIONS = (webhooks.mutating(), webhooks.validating())


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
    server: apiserver.ServerHandle
    credentials: ExtenderCredentials
    services: dict[str, tuple[str, int]]
    """What is behind the Services of the installation."""

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
    services: dict[str, tuple[str, int]] = {}
    config = apiserver.Config(directory=directory, resolve_service=lambda _namespace, name, _port: services.get(name))
    async with (
        apiserver.serve(config) as server,
        Client.from_kubeconfig(server.kubeconfig) as client,
    ):
        await install(client)
        for configuration in CONFIGURATIONS:  # there is no webhook yet
            await client.delete(type(configuration), configuration.name)
        credentials = extender_credentials(directory / "extender-pki")
        yield ControlPlane(client, server.kubeconfig, server, credentials, services)


async def everything_in(admin: Client, namespace: str, user: str) -> None:
    """A role with every verb on every resource of a namespace."""
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "owner"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    base = f"{RBAC}/namespaces/{namespace}"
    await admin.raw("POST", f"{base}/roles", body={"metadata": {"name": "owner"}, "rules": [rule]})
    binding = {"metadata": {"name": "owner"}, "roleRef": reference, "subjects": [subject]}
    await admin.raw("POST", f"{base}/rolebindings", body=binding)


@asynccontextmanager
async def admission(plane: ControlPlane) -> AsyncGenerator[tuple[Controller, Webhook]]:
    """Controller and webhook together: the controller makes the certificate and configures the API server."""
    port = free_port()
    plane.services["elastic-gpu-webhook"] = "127.0.0.1", port
    for configuration in CONFIGURATIONS:
        await plane.client.create(type(configuration), configuration)
    controller = Controller(
        ControllerConfig(listen="127.0.0.1:0", webhook_service="elastic-gpu-webhook:443"), plane.client
    )
    webhook = Webhook(WebhookConfig(listen="127.0.0.1:0", webhook_listen=f"127.0.0.1:{port}"), plane.client)
    async with running(controller), running(webhook):
        yield controller, webhook


@asynccontextmanager
async def extender(plane: ControlPlane, **config: Any) -> AsyncGenerator[tuple[Extender, httpx2.AsyncClient]]:
    """The extender, and kube-scheduler's way to it."""
    one = Extender(extender_config(plane, **config), plane.client)
    async with running(one), asking(f"https://{one.address}", plane.credentials) as http:
        yield one, http


def extender_config(plane: ControlPlane, **config: Any) -> ExtenderConfig:
    """On free ports, with certificates."""
    usual: dict[str, Any] = {"listen": "127.0.0.1:0", "health_listen": "127.0.0.1:0", **plane.credentials.config()}
    return ExtenderConfig(**{**usual, **config})


def reading(url: str, kubeconfig: Path) -> httpx2.AsyncClient:
    """A client of health, metrics and explanations, with a user's token."""
    token = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
    headers = {"Authorization": f"Bearer {token}"}
    return httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=DEADLINE_SECONDS)


def asking(url: str, credentials: ExtenderCredentials) -> httpx2.AsyncClient:
    """A client with kube-scheduler's certificate."""
    tls = credentials.client_context()
    return httpx2.AsyncClient(base_url=url, verify=tls, trust_env=False, timeout=DEADLINE_SECONDS)


def binding(pod: dict[str, Any], node: str) -> dict[str, str]:
    meta = pod["metadata"]
    return {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}


async def scheduled(http: httpx2.AsyncClient, pod: dict[str, Any], node: str) -> dict[str, str]:
    """What a bind answers that follows a filter with this node, as kube-scheduler's do."""
    await http.post("/filter", json={"Pod": pod, "NodeNames": [node]})
    return (await http.post("/bind", json=binding(pod, node))).json()


async def nodes_known(one: Extender, count: int) -> None:
    await until(lambda: len(one.view.cache.ledger.nodes()) == count)
