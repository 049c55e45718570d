"""Data sources of `egpu top`: the whole cluster, or one namespace for users with fewer rights."""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.apps.dashboard import DashboardConfig
from egpu.apps.dashboard.knowledge import Knowledge
from egpu.cli.top_rows import Row, own_rows, rows
from egpu.cli.top_screen import State, in_short
from egpu.core.preemption.explaining import explain_with_preemption
from egpu.core.preemption.objections import last_word
from egpu.core.view import ClusterView
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.objects import Object
from egpu_base.kubernetes import Caches, Client

REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
KINDS: Final[Sequence[type[Object]]] = (Node, ElasticGPU, ElasticGPUClass, ElasticGPUClaim, Pod)


class Source(Protocol):
    """A source of rows. `run` never returns. Call the others after `synced`. `listed` shows the last `refresh`."""

    async def run(self) -> None: ...

    async def synced(self) -> None: ...

    def refresh(self) -> None: ...

    def listed(self, state: State) -> list[Row]: ...

    @property
    def summary(self) -> str: ...

    def explained(self, namespace: str, name: str) -> list[str]: ...


class WholeCluster:
    """The source for nodes, cards and slices. It makes the lines again only for a new view, order or search."""

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
        return in_short(self._view.totals, waiting=len(self._view.pending))

    def explained(self, namespace: str, name: str) -> list[str]:
        pod = self._known.pods.get(name, namespace)
        if pod is None:
            return [f"pod {namespace}/{name} does not exist any more"]
        return explain_with_preemption(pod, self._known.scene()).lines()


class OneNamespace:
    """The source for the pods of one namespace, from their own objects."""

    def __init__(self, client: Client, namespace: str, *, unseen: str) -> None:
        """Follow the namespace. `unseen`: the reason for not showing the rest."""
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
            return [f"pod {namespace}/{name} does not exist any more"]
        said = [row.name + ": " + row.note for row in own_rows([pod])]
        return [*said, last_word(pod), "reasons card by card need the right to list nodes, cards and all pods"]


async def not_listed(client: Client, *verbs: str) -> list[str]:
    """Return the kinds for which this user lacks one of the verbs in the whole cluster."""
    asked = [(kind.resource, verb) for kind in KINDS for verb in verbs]
    answers = await asyncio.gather(*(_may(client, verb, one.group, one.plural) for one, verb in asked))
    return sorted({one.plural for (one, _), may in zip(asked, answers, strict=True) if not may})


async def _may(client: Client, verb: str, group: str, resource: str) -> bool:
    attributes = {"verb": verb, "group": group, "resource": resource}
    answer = await client.raw("POST", REVIEWS, body={"spec": {"resourceAttributes": attributes}})
    return bool(answer["status"].get("allowed"))
