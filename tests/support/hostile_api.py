"""A cluster's API server with the admission policies of deploy/, and tenants who own their namespaces and want more.

Everybody has the rights that a real cluster gives. What must not change is compared as the API server has it.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUClaim
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.errors import Refused, Unavailable
from egpu_base.kubernetes import Client
from egpu_sim.cluster.apiserver import User, service_account
from support.control_plane import SYSTEM, ControlPlane, control_plane, everything_in
from support.objects import card

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/elasticgpu.io/v1alpha1/namespaces/default/elasticgpuclaims"
CARDS = "/apis/elasticgpu.io/v1alpha1/elasticgpus"
NODES = "/api/v1/nodes"
FORGED = {names.ALLOCATION: '{"version":1,"node":"node-2","containers":{}}'}
BINDING = {"metadata": {"name": "p", "annotations": FORGED}, "target": {"kind": "Node", "name": "node-1"}}
SEES_ALL = {"name": "app", "image": "x", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
BOUND = {"status": {"phase": "Bound", "allocation": {"node": "node-1"}}}

TRIES = 30
TRY_SECONDS = 2.0
"""Of one attack, until the API server answers. After an outage its client takes no refusal for final for a while."""

Attempt = Callable[[Client], Awaitable[object]]


def _patch(kind: type[Any], name: str, patch: dict[str, Any], subresource: str | None = "status") -> Attempt:
    namespace = "default" if kind in (Pod, ElasticGPUClaim) else None
    return lambda client: client.patch(kind, name, patch, namespace=namespace, subresource=subresource)


ATTACKS: dict[str, Attempt] = {
    "an allocation of its own": _patch(Pod, "p", {"metadata": {"annotations": FORGED}}, None),
    "the same by the status": _patch(Pod, "p", {"metadata": {"annotations": FORGED}}),
    "no allocation any more": _patch(Pod, "p", {"metadata": {"annotations": {names.ALLOCATION: None}}}),
    "a pod that has ended": _patch(Pod, "p", {"status": {"phase": "Succeeded"}}),
    "a claim that is bound": _patch(ElasticGPUClaim, "c", BOUND),
    "a card that is broken": _patch(ElasticGPU, "node-1-card0", {"status": {"phase": "Failed"}}),
    "a node with nine cards": _patch(Node, "node-1", {"status": {"capacity": {names.GPU: "9"}}}),
    "a node without taints": _patch(Node, "node-1", {"spec": {"taints": None}}, None),
    "no card": lambda client: client.delete(ElasticGPU, "node-1-card0"),
    "a binding": lambda client: client.raw("POST", f"{PODS}/p/binding", body=BINDING),
    "every card": lambda client: client.raw(
        "POST", PODS, body={"metadata": {"name": "all"}, "spec": {"containers": [SEES_ALL]}}
    ),
    "others' secrets": lambda client: client.raw("GET", "/api/v1/namespaces/other/secrets"),
}
"""What neither the tenant may do nor the agent of node-2."""


@dataclass
class Api:
    """`attack` it; `state` is what nobody of the tenants may change."""

    plane: ControlPlane
    tenant: Client
    neighbour: Client
    """The agent of another node, taken over."""

    async def state(self) -> list[Any]:
        found = [await self.plane.client.raw("GET", path) for path in (NODES, CARDS, f"{PODS}/p", f"{CLAIMS}/c")]
        return [one.get("items", one) for one in found]

    async def attack(self, chance: random.Random) -> list[str]:
        """What was let through that should not be."""
        what = chance.choice(list(ATTACKS))
        who = chance.choice(("tenant", "neighbour"))
        for left in reversed(range(TRIES)):
            try:
                await ATTACKS[what]({"tenant": self.tenant, "neighbour": self.neighbour}[who])
            except Refused:
                return []
            except Unavailable:  # it was not even connected: fifty tenants keep the machine busy
                if not left:
                    raise
                await asyncio.sleep(TRY_SECONDS)
            else:
                return [f"{who} could write {what}"]
        raise AssertionError("unreachable")


@contextlib.asynccontextmanager
async def api(directory: Path) -> AsyncGenerator[Api]:
    """Two nodes with a card each, a pod that holds one, a claim; a tenant who owns their namespace."""
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(control_plane(directory))
        users = {
            "tenant": User("tenant"),
            "neighbour": service_account(SYSTEM, "elastic-gpu-agent", node="node-2"),
            "extender": service_account(SYSTEM, "elastic-gpu-extender"),
        }
        clients = {
            name: await stack.enter_async_context(Client.from_kubeconfig(plane.server.add_user(name, user)))
            for name, user in users.items()
        }
        for node in ("node-1", "node-2"):
            await plane.client.raw("POST", NODES, body={"metadata": {"name": node}})
            await plane.client.create(ElasticGPU, card(node, 0))
        await everything_in(plane.client, "default", "tenant")
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "app", "image": "x"}]}}
        await clients["tenant"].raw("POST", PODS, body=pod)
        uid = (await plane.client.get(Pod, "p", namespace="default")).uid
        given = {names.ALLOCATION: '{"version":1,"node":"node-1","containers":{}}'}
        await clients["extender"].bind("p", "node-1", namespace="default", uid=uid, annotations=given)
        spec = {"elasticGPUClassName": "c", "resources": {"requests": {names.GPU_CORE: "10"}}}
        await clients["tenant"].raw("POST", CLAIMS, body={"metadata": {"name": "c"}, "spec": spec})
        yield Api(plane, clients["tenant"], clients["neighbour"])
