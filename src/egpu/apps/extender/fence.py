"""Why two extenders can never give out the same card twice.

The ledger of one process cannot double-book. The danger is another extender process: an old one that was killed, paused
or cut off. Its writes may still be under way, and its next decision rests on an old ledger. Kubernetes accepts bindings
of two *different* pods to one card, so three rules together prevent it:

1. Every write of a placement carries the uid and the resourceVersion of the pod or claim *as read before* the question
   of rule 2. The API server refuses the write if the object has changed since.
2. Between that read and that write, the process asks the API server (not its own clock) whether it still has the lease.
3. A process that takes over the lease first touches every claim, and every pod that waits for a placement or asks for
   another size: it writes a new value into the annotation `elasticgpu.io/fence`. Then it lists everything, then serves.
   Of the ResourceClaims of resource.k8s.io it touches those with that annotation.

Take any write W of an old process, of an object read at version r. The old process was told that it has the lease (2)
after r was read, so r is older than the takeover, and older than the touch (3). If W arrives after the touch, its
version r is stale: 409, and nothing happens. If W arrives before the touch, the new process lists the object as placed,
because it lists after the touch. There is no third case, and no clock is compared. The argument covers a killed process
whose request is still in a socket buffer, and one that was frozen for an hour.

An object that is too large to be touched is skipped: W is larger than a touch, so it is refused as well. No object can
keep an extender from leading.

A ResourceClaim is allocated only at a version r that has the annotation (and the finalizer). The webhook has added both
to most claims at their creation (`egpu.core.dra.marking`). To another claim, the extender adds them by a write of its
own, at the version as read, and the answer has the version r. In both cases rule 2 comes after r was read, and before
the allocation W. So the annotation is older than the takeover, and the new process finds the claim by it: it need not
touch the claims of other drivers. A claim that gets the annotation later, or is created later, is never allocated by
the old process, which is told no. Whoever removes the annotation changes the version, and W is refused.

kube-scheduler allocates claims, too, but never a card of a node with `elasticgpu.io/allocator=priced`: the devices have
a taint, a claim that tolerates it is never prepared, and so it does not count (`egpu.core.dra.held`). If both allocate
one claim, the API server refuses the second write. When a node changes between kube-scheduler and the extender, nothing
may have its cards in between (`egpu.apps.agent.dra.allocator`).

A pod or claim created after the takeover's list of waiting objects needs no touch: an old process that reads it asks
about the lease even later, and is told no.

An extender that follows its kube-scheduler's Lease (`FollowingElection`) still takes its own Lease, and all of the
above is about that one. The followed Lease only decides *who* takes it, at once: the extender beside the leading
kube-scheduler. So nothing is assumed about kube-scheduler's clock, nor about the end of an extender that was killed in
the same pod: each process has its own identity. Rule 2 asks about both Leases, so an extender also refuses to act for a
kube-scheduler that another one has replaced.

Rule 2 does not limit the age of the answer: one question covers every object that had been read when it was sent. Of a
crowd of waiting pods, only the first asks. The others wait for its answer, or have it already."""

import asyncio
import math
import time
from collections.abc import Iterable
from typing import Final, TypeVar

import structlog

from egpu.api import names
from egpu.api.objects import ElasticGPUClaim
from egpu.core.dra.kept import kept_claim
from egpu.core.dra.marking import is_marked
from egpu.core.kept_claims import kept_gpu_claim
from egpu.core.kept_pods import kept, kept_of_large
from egpu.core.placement.requests import awaits_placement
from egpu_base.api.devices import ResourceClaim
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import Conflict, NotFound, Refused, RetryableError
from egpu_base.kubernetes import Client, LeaseElection
from egpu_base.runtime.coalescing import Coalescer

TOUCHES_AT_ONCE: Final = 32
RETRY_SECONDS = 1.0

Touchable = Pod | ElasticGPUClaim | ResourceClaim
T = TypeVar("T", bound=Touchable)

log = structlog.get_logger(__name__)


async def touch(client: Client, one: T, why: str) -> T:
    """Change the object's resourceVersion, whatever its author has written into it, and return the new object. `why`: a
    few letters for people.

    The annotation gets a new value each time, because the API server does not write what does not change. The total
    size of annotations is limited, and the author may have used it up; labels have no such limit. Raises NotFound,
    Conflict for another object of the name, Refused for one that cannot grow."""
    mark = f"{why}-{time.time_ns()}"
    try:
        return await _patch(client, one, {"annotations": {names.FENCE: mark}})
    except Refused:
        return await _patch(client, one, {"labels": {names.FENCE: mark}})


async def _patch(client: Client, one: T, metadata: dict[str, dict[str, str]]) -> T:
    patch = {"metadata": {"uid": one.uid, **metadata}}
    return await client.patch(type(one), one.name, patch, namespace=one.namespace)


class Fence:
    """Rules 2 and 3. Rule 1 is the binder's."""

    def __init__(self, client: Client, election: LeaseElection) -> None:
        self._client = client
        self._election = election
        self._ask = Coalescer(self._asked)
        self._asked_at = -math.inf
        """The time at which the latest question with a good answer was sent, by `time.monotonic`."""
        self._sent_at = -math.inf
        """The time at which the latest question was sent."""

    async def take_over(self) -> None:
        """Apply rule 3 for a process that has just got the lease: touch everything that waits for a placement.

        Repeats until all is touched: the webhook, which sees each touch, may still be starting."""
        while True:
            try:
                listed = await self._client.list(Pod, transform=kept, large=kept_of_large)
                pods = [pod for pod in listed if awaits_placement(pod) or may_be_resized(pod)]
                claims = await self._client.list(ElasticGPUClaim, transform=kept_gpu_claim)
                await self._touch([*pods, *claims, *await self._marked()])
            except RetryableError as error:
                log.warning("takeover not complete yet", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                log.info("fenced", pods=len(pods), claims=len(claims))
                return

    async def _marked(self) -> list[ResourceClaim]:
        """Return the ResourceClaims that an extender may be about to allocate, or to release."""
        try:
            found = await self._client.list(ResourceClaim, transform=kept_claim)
        except NotFound:
            return []  # this API server does not serve them
        return [one for one in found if is_marked(one)]

    async def check(self, read_at: float = math.inf) -> None:
        """Apply rule 2 to what was read at `read_at`, by `time.monotonic`, or just now. Raises LeadershipLost, or
        Unavailable if the API server does not answer: then nothing may be written."""
        if read_at < self._asked_at:
            return
        # One that was sent after the object was read will do.
        await self._ask.answer(or_under_way=read_at < self._sent_at)

    async def _asked(self) -> None:
        sent_at = self._sent_at = time.monotonic()
        await self._election.verify()
        self._asked_at = max(self._asked_at, sent_at)

    async def _touch(self, objects: Iterable[Touchable]) -> None:
        gate = asyncio.Semaphore(TOUCHES_AT_ONCE)

        async def fence(one: Touchable) -> None:
            async with gate:
                try:
                    await touch(self._client, one, "lead")
                except (NotFound, Conflict):
                    log.debug("object deleted before it was touched", object=one.key)  # no write can place it
                except Refused as error:
                    log.warning(
                        "object cannot be touched, so it cannot be placed either", object=one.key, reason=str(error)
                    )

        # Not a TaskGroup: callers must see the first error itself. The other touches do no harm and are repeated.
        await asyncio.gather(*(fence(one) for one in objects))


def may_be_resized(pod: Pod) -> bool:
    """Return whether the pod runs and its own annotations ask for a size. A claim counts what pods have of it."""
    return bool(pod.spec.node_name) and any(key.startswith(names.RESIZE_PREFIXES) for key in pod.annotations)
