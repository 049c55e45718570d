"""What one user may list. The API server says so, resource by resource; the dashboard itself lists everything."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from egpu.adapters.kubernetes import Client
from egpu.adapters.kubernetes.reviews import Asker, Remembered, Reviews
from egpu.api import names

MAX_REMEMBERED: Final = 4096
MAX_NAMESPACES: Final = 256
"""Somebody who may not list a kind in all namespaces is asked about in so many of them, the first by name."""


@dataclass(frozen=True)
class Sight:
    """What `user` may list. `pods` and `claims`: in which namespaces; None: in all."""

    user: str
    nodes: bool
    cards: bool
    pods: frozenset[str] | None
    claims: frozenset[str] | None

    def pod(self, namespace: str) -> bool:
        """Whether he may list the pods of a namespace."""
        return self.pods is None or namespace in self.pods

    def claim(self, namespace: str) -> bool:
        """Likewise its claims."""
        return self.claims is None or namespace in self.claims

    @property
    def everything(self) -> bool:
        """Whether nothing is kept from him."""
        return self.nodes and self.cards and self.pods is None and self.claims is None


class Gatekeeper:
    """From a bearer token to what its owner may list."""

    def __init__(self, client: Client) -> None:
        self._reviews = Reviews(client)
        self._askers = Remembered[Asker | None](MAX_REMEMBERED)
        self._answers = Remembered[bool](MAX_REMEMBERED)

    async def sight(self, token: str, namespaces: Iterable[str]) -> Sight | None:
        """None where the token is nobody's. Raises what the API server answers, and Unavailable."""
        asker = await self._askers.get(token, lambda: self._reviews.asker(token))
        if asker is None:
            return None
        some = sorted(namespaces)[:MAX_NAMESPACES]
        nodes, cards, pods, claims = await asyncio.gather(
            self._may_list(asker, "", "nodes"),
            self._may_list(asker, names.GROUP, "elasticgpus"),
            self._where(asker, "", "pods", some),
            self._where(asker, names.GROUP, "elasticgpuclaims", some),
        )
        return Sight(asker.name, nodes, cards, pods, claims)

    async def _where(self, asker: Asker, group: str, resource: str, namespaces: list[str]) -> frozenset[str] | None:
        if await self._may_list(asker, group, resource):
            return None
        found = set[str]()
        for namespace in namespaces:  # one after the other: nobody's page takes all the places for questions
            if await self._may_list(asker, group, resource, namespace):
                found.add(namespace)
        return frozenset(found)

    async def _may_list(self, asker: Asker, group: str, resource: str, namespace: str = "") -> bool:
        wanted: Mapping[str, str] = {"verb": "list", "group": group, "resource": resource, "namespace": namespace}
        key = repr((asker.spec, sorted(wanted.items())))
        return await self._answers.get(key, lambda: self._reviews.may(asker, resourceAttributes=wanted))
