"""Resizes the slices of pods: their own, as annotations ask, and those of claims, as the claims say.

A node reads pods but no claims, so a pod has a copy of its claim's allocation, which is updated here. As in
`egpu.apps.extender.binder`, a write may have an unknown outcome. The pod is then touched, and shows its allocation;
until then the ledger counts the larger one."""

from collections.abc import Mapping

import structlog
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, PodAllocation, decode_allocation, encode
from egpu.api.objects import SliceInForce
from egpu.apps.extender.claim_writer import ClaimWriter
from egpu.apps.extender.fence import touch
from egpu.apps.extender.view import View
from egpu.core import resizing
from egpu.core.placement.ledger import Holder
from egpu.core.resizing import Size
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import (
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
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.events import EventRecorder

RETRY_SECONDS = 10.0

log = structlog.get_logger(__name__)


class PodSizes:
    """Looks at pods by their UID."""

    def __init__(self, client: Client, view: View, writer: ClaimWriter, events: EventRecorder) -> None:
        self._client = client
        self._view = view
        self._writer = writer
        self._events = events
        self._doubts: dict[str, Pod] = {}

    async def look(self, uid: str) -> bool:
        """Take the next step with a pod. Returns False if it waits for room."""
        await self._resolve(uid)
        pod = self._view.pods.by_uid(uid)
        if pod is None or pod.finished or not pod.spec.node_name:
            return True
        try:
            given = decode_allocation(pod.annotations.get(names.ALLOCATION, ""))
        except CorruptData:
            return True  # not written by us; `SchedulerCache.problems` reports it
        if (settled := self._settled(pod, self._followed(pod, given))) != given:
            # The claim already counts its pod's new size, and the old size is not allowed any more. So nothing needs
            # to be counted before the write.
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
                await self._write(pod, ordered, {names.resized_annotation(name): size_text})
                log.info("container resized", pod=pod.key, container=name, size=size_text)
                await self._events.note(pod, "Resized", f"container {name}: has {size_text}")
                return True  # this change brings the pod again, for the next container
            await self._answer(pod, name, resizing.size_text(given.containers[name]))
        return not waits

    def said_of(self, node: str, container: ContainerAllocation) -> list[list[SliceInForce]]:
        """Return the sizes that the cards' node reports for the container's slices, card by card."""
        cards = {
            card.spec.physical_gpu.uuid: card.status.in_force
            for card in self._view.cards(node)
            if card.spec.physical_gpu is not None
        }
        return [cards.get(share.uuid, []) for share in container.cards]

    # --- what it is to have -------------------------------------------------------------------------------------------

    def _followed(self, pod: Pod, given: PodAllocation) -> PodAllocation:
        """Return the allocation with the sizes of the pod's claims."""
        containers = dict(given.containers)
        for name, container in given.containers.items():
            claim = self._view.claims.get(container.claim, pod.namespace) if container.claim else None
            held = claim.status.allocation if claim is not None else None
            if held is None or held.node != container.cards_node(given.node):
                continue
            of = held.container
            if of.revision >= container.revision and [s.uuid for s in of.cards] == [s.uuid for s in container.cards]:
                containers[name] = replace(
                    container,
                    cards=of.cards,
                    core_limit=of.core_limit,
                    held=of.held,
                    revision=of.revision,
                    within_seconds=of.within_seconds,
                )
        return replace(given, containers=containers)

    def _settled(self, pod: Pod, given: PodAllocation) -> PodAllocation:
        """Return the allocation without what its programs have given back."""
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
        """Return the allocation with the container's new size, or None if it has it. Raises NotSupported, DoesNotFit,
        Refused.

        Does not await between reading the ledger and returning."""
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
        quotas = self._writer.quotas
        quotas.check(await quotas.listed(pod.namespace), pod.namespace, pods={pod.uid: ordered})
        own = self._view.cache.held_by_pod(pod.namespace, ordered)
        resizing.check_room(self._view.cache.ledger, Holder("pod", pod.uid), own)
        return ordered

    # --- writing ------------------------------------------------------------------------------------------------------

    async def _answer(self, pod: Pod, name: str, said: str) -> None:
        """Write the answer for a container that asks for a size."""
        key = names.resized_annotation(name)
        if pod.annotations.get(key) != said:
            await self._patch(pod, {key: said})

    async def _write(self, pod: Pod, allocation: PodAllocation, answers: Mapping[str, str]) -> None:
        """Write the allocation. An order for another size is counted first. Raises the API server's errors."""
        before = self._view.cache.pod_allocation(pod.uid)
        if before is not None and _counts_more(allocation, before):
            self._view.cache.assume_resize(pod, allocation)
            self._doubts[pod.uid] = pod
        try:
            await self._patch(pod, {names.ALLOCATION: encode(allocation), **answers})
        except TerminalError:  # it was not written, and will not be
            if self._doubts.pop(pod.uid, None) and before is not None and self._view.cache.pod_allocation(pod.uid):
                self._view.cache.assume_resize(pod, before)
            raise
        self._doubts.pop(pod.uid, None)

    async def _patch(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        version = pod.metadata.resource_version
        patch = {"metadata": {"uid": pod.uid, "resourceVersion": version, "annotations": annotations}}
        self._view.pods.absorb(await self._client.patch(Pod, pod.name, patch, namespace=pod.namespace))

    async def _resolve(self, uid: str) -> None:
        """Find out about a write that failed or got no answer. Raises OutcomeUnknown while the API server does not
        answer."""
        pod = self._doubts.get(uid)
        if pod is None:
            return
        try:
            fresh = await touch(self._client, pod, "settle")
        except (NotFound, Refused):
            fresh = None  # deleted, or replaced by a pod of the same name; the watch shows it
        except ElasticGPUError as error:
            raise OutcomeUnknown(f"pod {pod.key}: the outcome of its resize is still unknown: {error}") from error
        del self._doubts[uid]
        if fresh is not None and self._view.cache.pod_allocation(uid) is not None:
            self._view.pods.absorb(fresh)
            self._view.cache.assume_resize(fresh, decode_allocation(fresh.annotations.get(names.ALLOCATION, "")))


def _counts_more(one: PodAllocation, other: PodAllocation) -> bool:
    """Return whether `one` has a later order than `other` in a container: the ledger must count it before the write."""
    return any(
        container.revision > other.containers[name].revision
        for name, container in one.containers.items()
        if name in other.containers
    )
