"""Where `egpu top` has its lines from: the whole cluster, or one namespace for who may not list all of that."""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from egpu.adapters.kubernetes import Caches, Client
from egpu.api.kubernetes import Node, Pod
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass, Object
from egpu.apps.dashboard import DashboardConfig
from egpu.apps.dashboard.knowledge import Knowledge
from egpu.cli.top_rows import Row, own_rows, rows
from egpu.cli.top_screen import State, in_short
from egpu.core.preemption.explaining import explain_with_preemption
from egpu.core.preemption.objections import last_word
from egpu.core.view import ClusterView

REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
KINDS: Final[Sequence[type[Object]]] = (Node, ElasticGPU, ElasticGPUClass, ElasticGPUClaim, Pod)


class Source(Protocol):
    """`run` for ever; the others when `synced` has returned. `listed` is as of the last `refresh`."""

    async def run(self) -> None: ...

    async def synced(self) -> None: ...

    def refresh(self) -> None: ...

    def listed(self, state: State) -> list[Row]: ...

    @property
    def summary(self) -> str: ...

    def explained(self, namespace: str, name: str) -> list[str]: ...


class WholeCluster:
    """Nodes, cards and slices. Lines are made once for all keys that choose nothing else."""

    def __init__(self, client: Client, config: DashboardConfig) -> None:
        self._known = Knowledge(client, config)
        self._view = ClusterView()
        self._listed = list[Row]()
        self._listed_for: tuple[str, str, bool] | None = None

    async def run(self) -> None:
        await self._known.run()

    async def synced(self) -> None:
        await self._known.caches.synced()
        self.refresh()

    def refresh(self) -> None:
        self._view, self._listed_for = self._known.view, None

    def listed(self, state: State) -> list[Row]:
        chosen = state.order, state.search, state.tree
        if chosen != self._listed_for:
            self._listed = rows(self._view, order=state.order, search=state.search, tree=state.tree)
            self._listed_for = chosen
        return self._listed

    @property
    def summary(self) -> str:
        return in_short(self._view.totals)

    def explained(self, namespace: str, name: str) -> list[str]:
        pod = self._known.pods.get(name, namespace)
        if pod is None:
            return [f"there is no pod {namespace}/{name} any more"]
        return explain_with_preemption(pod, self._known.scene()).lines()


class OneNamespace:
    """The pods of one namespace, by what they say themselves."""

    def __init__(self, client: Client, namespace: str, *, unseen: str) -> None:
        """`unseen`: what is not shown, in words."""
        self._caches = Caches(client)
        self._pods = self._caches.add(Pod, namespace=namespace)
        self._listed: Sequence[Pod] = ()
        self.summary = f"pods of {namespace}; {unseen}"

    async def run(self) -> None:
        await self._caches.run()

    async def synced(self) -> None:
        await self._caches.synced()
        self.refresh()

    def refresh(self) -> None:
        self._listed = list(self._pods)

    def listed(self, state: State) -> list[Row]:
        return own_rows(self._listed, search=state.search, tree=state.tree)

    def explained(self, namespace: str, name: str) -> list[str]:
        pod = self._pods.get(name, namespace)
        if pod is None:
            return [f"there is no pod {namespace}/{name} any more"]
        said = [row.name + ": " + row.note for row in own_rows([pod])]
        return [*said, last_word(pod), "why, card by card, is for those who may list nodes, cards and all pods"]


async def not_listed(client: Client, *verbs: str) -> list[str]:
    """The kinds that this user may not list (or what else `verbs` say) in the whole cluster."""
    asked = [(kind.resource, verb) for kind in KINDS for verb in verbs]
    answers = await asyncio.gather(*(_may(client, verb, one.group, one.plural) for one, verb in asked))
    return sorted({one.plural for (one, _), may in zip(asked, answers, strict=True) if not may})


async def _may(client: Client, verb: str, group: str, resource: str) -> bool:
    attributes = {"verb": verb, "group": group, "resource": resource}
    answer = await client.raw("POST", REVIEWS, body={"spec": {"resourceAttributes": attributes}})
    return bool(answer["status"].get("allowed"))
