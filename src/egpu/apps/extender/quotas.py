"""Asks the quotas of a namespace before cards are given that Kubernetes did not count (`egpu.core.quotas`).

Quotas are listed first and checked later, because nothing may be awaited between a choice of cards and its assumption.
"""

from collections.abc import Iterable, Mapping, Sequence

from egpu.api.allocation import ContainerAllocation, PodAllocation
from egpu.api.quotas import ResourceQuota
from egpu.apps.extender.view import View
from egpu.core.dra.choosing import Choice
from egpu.core.host_quotas import by_claim, check_host_memory
from egpu.core.quotas import beyond_counted, check_quotas, counted_claims, counted_of, of_claims, uncounted
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client
from egpu_base.runtime.coalescing import Coalescer


class Quotas:
    """Knows the pods and claims of each namespace by the extender's view."""

    def __init__(self, client: Client, view: View) -> None:
        self._client = client
        self._view = view
        self._lists: dict[str, Coalescer[Sequence[ResourceQuota]]] = {}
        """Lists under way, by namespace."""

    async def listed(self, namespace: str) -> Sequence[ResourceQuota]:
        """Return the quotas of a namespace, as they are now. Raises Unavailable."""
        found = self._lists.get(namespace)
        if found is None:
            found = Coalescer(lambda: self._client.list(ResourceQuota, namespace=namespace))
            self._lists[namespace] = found
        try:
            return await found.answer()
        finally:
            if found.idle:
                self._lists.pop(namespace, None)

    async def for_pods(self, namespace: str) -> Sequence[ResourceQuota]:
        """Return the quotas that new pods of a namespace must be checked against: none without claims, because then
        Kubernetes counted everything. Raises Unavailable."""
        claims = any(claim.namespace == namespace for claim in self._view.claims)
        return await self.listed(namespace) if claims or self._view.cache.device_claims.held_in(namespace) else ()

    def check_device_claims(self, quotas: Sequence[ResourceQuota], namespace: str, choices: Iterable[Choice]) -> None:
        """Check that ResourceClaims may have the allocations that they carry. Raises Refused."""
        if quotas:
            before, book = self._beyond(namespace), self._view.cache.device_claims
            claims = [(choice.node, claim) for choice in choices for claim in choice.claims]
            new = of_claims(one for node, claim in claims for one in book.given(claim, node))
            after = {resource: amount + new[resource] for resource, amount in before.items()}
            check_quotas(quotas, before=before, after=after)

    def _device_claims(self, namespace: str) -> list[ContainerAllocation]:
        """Return what the ResourceClaims of a namespace have. Kubernetes counts these by class, not in our units."""
        book = self._view.cache.device_claims
        held = [book.allocation(uid) for uid in book.held_in(namespace)]
        return [one for allocation in held if allocation is not None for one in allocation.containers.values()]

    def check_pods(
        self, quotas: Sequence[ResourceQuota], pods: Sequence[Pod], waiting: Mapping[str, ContainerAllocation]
    ) -> None:
        """Check that new pods of a namespace may have cards, with the claims (by name) that get theirs for them.

        Raises Refused."""
        if not quotas:
            return
        namespace, counted = pods[0].namespace, {name for pod in pods for name in counted_claims(pod)}
        shared = of_claims(allocation for name, allocation in waiting.items() if name not in counted)
        before = self._beyond(namespace)
        after = {resource: amount + shared[resource] for resource, amount in before.items()}
        amounts = [counted_of(pod) for pod in pods]
        asked = {resource: sum(one[resource] for one in amounts) for resource in before}
        check_quotas(quotas, before=before, after=after, counted=asked)
        check_host_memory(quotas, self._host_memory(namespace), waiting)

    def check(
        self,
        quotas: Sequence[ResourceQuota],
        namespace: str,
        *,
        pods: Mapping[str, PodAllocation] | None = None,
        claims: Mapping[str, ContainerAllocation] | None = None,
    ) -> None:
        """Check that pods and claims (by UID) may have these allocations. Raises Refused."""
        if quotas:
            check_quotas(quotas, before=self._beyond(namespace), after=self._beyond(namespace, pods, claims))
            of_uids = {claim.uid: claim.name for claim in self._view.claims if claim.namespace == namespace}
            new = {of_uids[uid]: one for uid, one in (claims or {}).items() if uid in of_uids}
            check_host_memory(quotas, self._host_memory(namespace), new)

    def _host_memory(self, namespace: str) -> dict[str, int]:
        """Return what parked slices of a namespace may need of nodes' memory, by claim."""
        pods = [pod.uid for pod in self._view.pods if pod.namespace == namespace and not pod.finished]
        given = [one for uid in pods if (one := self._view.cache.pod_allocation(uid)) is not None]
        return by_claim([claim for claim in self._view.claims if claim.namespace == namespace], given)

    def _beyond(
        self,
        namespace: str,
        pods: Mapping[str, PodAllocation] | None = None,
        claims: Mapping[str, ContainerAllocation] | None = None,
    ) -> dict[str, int]:
        """Return what Kubernetes did not count, if these pods and claims have what is given here."""
        here = [pod for pod in self._view.pods if pod.namespace == namespace]
        held = {pod.uid: self._view.cache.pod_allocation(pod.uid) for pod in here} | dict(pods or {})
        grown = beyond_counted([(pod, given) for pod in here if (given := held[pod.uid]) is not None])
        alone = uncounted([claim for claim in self._view.claims if claim.namespace == namespace], here)
        of_alone = of_claims([*(alone | dict(claims or {})).values(), *self._device_claims(namespace)])
        return {resource: amount + of_alone[resource] for resource, amount in grown.items()}
