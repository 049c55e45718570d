"""The access of one user. The API server decides for each resource; the dashboard itself lists everything."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from egpu.api import names
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.reviews import Asker, Remembered, Reviews

MAX_REMEMBERED: Final = 4096
MAX_NAMESPACES: Final = 256
"""Most namespaces that are checked for a user who may not list a kind in all namespaces; the first by name."""


@dataclass(frozen=True)
class Access:
    """The objects that `user` may list. `pods` and `claims`: the namespaces; None: all."""

    user: str
    nodes: bool
    cards: bool
    pods: frozenset[str] | None
    claims: frozenset[str] | None

    def pod(self, namespace: str) -> bool:
        """Return whether the user may list the pods of a namespace."""
        return self.pods is None or namespace in self.pods

    def claim(self, namespace: str) -> bool:
        """Return whether the user may list the claims of a namespace."""
        return self.claims is None or namespace in self.claims

    @property
    def everything(self) -> bool:
        """True if the user may list everything."""
        return self.nodes and self.cards and self.pods is None and self.claims is None


class Gatekeeper:
    """Finds out what the owner of a bearer token may list."""

    def __init__(self, client: Client) -> None:
        self._reviews = Reviews(client)
        self._askers = Remembered[Asker | None](MAX_REMEMBERED)
        self._answers = Remembered[bool](MAX_REMEMBERED)

    async def access(self, token: str, namespaces: Iterable[str]) -> Access | None:
        """Return the access of the token's owner, or None for an unknown token. Raises the API server's errors, and
        Unavailable."""
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
        return Access(asker.name, nodes, cards, pods, claims)

    async def _where(self, asker: Asker, group: str, resource: str, namespaces: list[str]) -> frozenset[str] | None:
        if await self._may_list(asker, group, resource):
            return None
        found = set[str]()
        for namespace in namespaces:  # one after the other, so that one page does not take all places for requests
            if await self._may_list(asker, group, resource, namespace):
                found.add(namespace)
        return frozenset(found)

    async def _may_list(self, asker: Asker, group: str, resource: str, namespace: str = "") -> bool:
        wanted: Mapping[str, str] = {"verb": "list", "group": group, "resource": resource, "namespace": namespace}
        key = repr((asker.spec, sorted(wanted.items())))
        return await self._answers.get(key, lambda: self._reviews.may(asker, resourceAttributes=wanted))
