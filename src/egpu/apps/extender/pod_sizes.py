"""The sizes of a pod's own slices, as its annotations ask, and of those that it has of claims, as the claims say.

A node reads pods and no claims, so a pod carries a copy of what its claim was given, which is made to follow. A write
that got no answer is in doubt, as in `egpu.apps.extender.binding`: the pod is touched, and shows what it has; until
then the ledger counts the larger.
"""

from collections.abc import Mapping

import structlog
from msgspec.structs import replace

from egpu.adapters.kubernetes import Client
from egpu.adapters.kubernetes.events import EventRecorder
from egpu.api import names
from egpu.api.allocation import ContainerAllocation, PodAllocation, decode_allocation, encode
from egpu.api.kubernetes import Pod
from egpu.api.objects import SliceInForce
from egpu.api.quotas import ResourceQuota
from egpu.apps.extender.claim_writer import ClaimWriter
from egpu.apps.extender.fence import touch
from egpu.apps.extender.view import View
from egpu.core import resizing
from egpu.core.placement.ledger import Holder
from egpu.core.quotas import beyond_counted, check_quotas
from egpu.core.resizing import Size
from egpu.errors import (
    CorruptData,
    DoesNotFit,
    ElasticGPUError,
    InvalidDemand,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    Refused,
    TerminalError,
)

RETRY_SECONDS = 10.0

log = structlog.get_logger(__name__)


class PodSizes:
    """`look` at a pod by its UID."""

    def __init__(self, client: Client, view: View, writer: ClaimWriter, events: EventRecorder) -> None:
        self._client = client
        self._view = view
        self._writer = writer
        self._events = events
        self._doubts: dict[str, Pod] = {}

    async def look(self, uid: str) -> bool:
        """Takes the next step with a pod; False where it waits for room."""
        await self._resolve(uid)
        pod = self._view.pods.by_uid(uid)
        if pod is None or pod.finished or not pod.spec.node_name:
            return True
        try:
            given = decode_allocation(pod.annotations.get(names.ALLOCATION, ""))
        except CorruptData:
            return True  # not ours; `SchedulerCache.problems` says so
        if (settled := self._settled(pod, self._followed(pod, given))) != given:
            # The claim counts already what its pod is told, and what was given back is not allowed any more: nothing
            # is to be counted before it is written.
            await self._writer.check()
            await self._write(pod, settled, {})
            return True
        try:
            sizes = resizing.asked_sizes(pod)
            within = resizing.asked_within(pod.annotations)
        except InvalidDemand as error:
            await self._events.warn(pod, "CannotBeResized", str(error))
            return True
        waits = False
        for name, size in sizes.items():
            try:
                ordered = await self._ordered(pod, given, name, size, within)
            except (NotSupported, DoesNotFit, Refused) as error:
                waits |= isinstance(error, DoesNotFit | Refused)
                await self._answer(pod, name, str(error))
                await self._events.warn(pod, "NotResized", f"container {name}: {error}")
                continue
            if ordered is not None:
                size_text = resizing.size_text(ordered.containers[name])
                await self._write(pod, ordered, {f"{names.RESIZED_PREFIX}{name}": size_text})
                log.info("container resized", pod=pod.key, container=name, size=size_text)
                await self._events.note(pod, "Resized", f"container {name}: has {size_text}")
                return True  # its change brings the pod again, for the next container
            await self._answer(pod, name, resizing.size_text(given.containers[name]))
        return not waits

    def said_of(self, node: str, container: ContainerAllocation) -> list[list[SliceInForce]]:
        """What the node of the cards says of its slices, card by card of the container."""
        cards = {
            card.spec.physical_gpu.uuid: card.status.in_force
            for card in self._view.cards(node)
            if card.spec.physical_gpu is not None
        }
        return [cards.get(share.uuid, []) for share in container.cards]

    async def check_quota(self, namespace: str, after: Mapping[str, PodAllocation]) -> None:
        """Whether pods (by UID) may have what they would have then. Raises Refused."""
        cache = self._view.cache
        pods = [pod for pod in self._view.pods if pod.namespace == namespace and cache.pod_allocation(pod.uid)]
        now = [(pod, given) for pod in pods if (given := cache.pod_allocation(pod.uid)) is not None]
        then = [(pod, after.get(pod.uid, given)) for pod, given in now]
        before, wanted = beyond_counted(now), beyond_counted(then)
        if any(wanted[resource] > before[resource] for resource in wanted):
            quotas = await self._client.list(ResourceQuota, namespace=namespace)
            check_quotas(quotas, before=before, after=wanted)

    # --- what it is to have -------------------------------------------------------------------------------------------

    def _followed(self, pod: Pod, given: PodAllocation) -> PodAllocation:
        """With the sizes that its claims have."""
        containers = dict(given.containers)
        for name, container in given.containers.items():
            claim = self._view.claims.get(container.claim, pod.namespace) if container.claim else None
            held = claim.status.allocation if claim is not None else None
            if held is None or held.node != container.cards_node(given.node):
                continue
            of = held.container
            if of.revision >= container.revision and [s.uuid for s in of.cards] == [s.uuid for s in container.cards]:
                containers[name] = replace(
                    container, cards=of.cards, held=of.held, revision=of.revision, within_seconds=of.within_seconds
                )
        return replace(given, containers=containers)

    def _settled(self, pod: Pod, given: PodAllocation) -> PodAllocation:
        """Without what its programs have given back."""
        containers = dict(given.containers)
        for name, container in given.containers.items():
            if container.held and not container.claim:
                said = self.said_of(container.cards_node(given.node), container)
                if resizing.is_in_force(container, (pod.uid, name), said):
                    containers[name] = resizing.settled(container)
        return replace(given, containers=containers)

    async def _ordered(
        self, pod: Pod, given: PodAllocation, name: str, size: Size, within_seconds: float | None
    ) -> PodAllocation | None:
        """The allocation with the container's new size; None where it has it. Raises NotSupported, DoesNotFit, Refused.

        Nothing is awaited between its look at the ledger and its return.
        """
        container = given.containers.get(name)
        if container is None:
            raise NotSupported("it has no GPU")
        if container.claim:
            raise NotSupported(f"it uses the claim {container.claim}; edit the claim's request")
        shares = resizing.sized(container, size)
        if shares == container.cards:
            return None
        wanted = resizing.ordered(container, shares, within_seconds)
        ordered = replace(given, containers={**given.containers, name: wanted})
        await self._writer.check()
        await self.check_quota(pod.namespace, {pod.uid: ordered})
        own = self._view.cache.held_by_pod(pod.namespace, ordered)
        resizing.check_room(self._view.cache.ledger, Holder("pod", pod.uid), own)
        return ordered

    # --- writing ------------------------------------------------------------------------------------------------------

    async def _answer(self, pod: Pod, name: str, said: str) -> None:
        """Writes what the owner is told of a container that asks."""
        key = f"{names.RESIZED_PREFIX}{name}"
        if pod.annotations.get(key) != said:
            await self._patch(pod, {key: said})

    async def _write(self, pod: Pod, allocation: PodAllocation, told: Mapping[str, str]) -> None:
        """Counts the allocation if it is an order for another size, then writes it. Raises what the API server says."""
        before = self._view.cache.pod_allocation(pod.uid)
        if before is not None and _counts_more(allocation, before):
            self._view.cache.assume_resize(pod, allocation)
            self._doubts[pod.uid] = pod
        try:
            await self._patch(pod, {names.ALLOCATION: encode(allocation), **told})
        except TerminalError:  # it was not done, and will not be
            if self._doubts.pop(pod.uid, None) and before is not None and self._view.cache.pod_allocation(pod.uid):
                self._view.cache.assume_resize(pod, before)
            raise
        self._doubts.pop(pod.uid, None)

    async def _patch(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        version = pod.metadata.resource_version
        patch = {"metadata": {"uid": pod.uid, "resourceVersion": version, "annotations": annotations}}
        self._view.pods.absorb(await self._client.patch(Pod, pod.name, patch, namespace=pod.namespace))

    async def _resolve(self, uid: str) -> None:
        """Finds out about a write that failed or got no answer. Raises OutcomeUnknown while nobody can be asked."""
        pod = self._doubts.get(uid)
        if pod is None:
            return
        try:
            fresh = await touch(self._client, pod, "settle")
        except (NotFound, Refused):
            fresh = None  # deleted, or another pod has the name: its watch says so
        except ElasticGPUError as error:
            raise OutcomeUnknown(f"pod {pod.key}: another size is still in doubt: {error}") from error
        del self._doubts[uid]
        if fresh is not None and self._view.cache.pod_allocation(uid) is not None:
            self._view.pods.absorb(fresh)
            self._view.cache.assume_resize(fresh, decode_allocation(fresh.annotations.get(names.ALLOCATION, "")))


def _counts_more(one: PodAllocation, other: PodAllocation) -> bool:
    """Whether anything of `one` is a later order than of `other`: the ledger must count it before it is written."""
    return any(
        container.revision > other.containers[name].revision
        for name, container in one.containers.items()
        if name in other.containers
    )
