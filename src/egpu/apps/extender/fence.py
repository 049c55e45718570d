"""Why two extenders can never give out the same card twice.

The ledger of one process cannot double-book. The danger is another extender process: an old one that was killed, paused
or cut off, whose writes are still under way, and whose next decision rests on an old ledger. Nothing in Kubernetes
makes bindings of two *different* pods to one card conflict, so three rules together do:

1. Every write of a placement carries the uid and the resourceVersion of the pod or claim *as read before* rule 2's
   question. The API server refuses it when the object has changed since.
2. Between that read and that write the process asks the API server (not its own clock) whether it still
   holds the lease.
3. A process that takes the lease over first touches every claim, and every pod that waits for a placement or asks for
   another size (it writes something new into the annotation `elasticgpu.io/fence`), then lists everything, and only
   then serves.

Take any write W of an old process, of an object read at version r. The old process was told "you hold the lease" (2)
after r was read, so r is older than the takeover, and older than the touch (3). If W reaches the API server after the
touch, its version r is stale: 409, nothing happened. If W comes before the touch, the object is placed when the new
process lists it (the list is later than the touch): it is in the new ledger. There is no third case, no clock is
compared, and it holds for a SIGKILLed process whose request is still in a socket buffer as well as for one that was
frozen for an hour.

An object that cannot even be touched, because it is as large as objects may be, is left out: W is larger than a touch,
and refused as well. Nobody's object keeps an extender from leading.

A pod or claim created after the takeover's list of waiting objects needs no touch: an old process that reads it can
only ask about the lease later still, and is told no.

Nothing of this asks how long ago the answer came: one question does for every object that had been read when it was
sent. Of a crowd of pods that wait, the first one asks.
"""

import asyncio
import math
import time
from collections.abc import Iterable
from typing import Final, TypeVar

import structlog

from egpu.adapters.kubernetes import Client, LeaseElection
from egpu.api import names
from egpu.api.kubernetes import Pod
from egpu.api.objects import ElasticGPUClaim
from egpu.core.placement.requests import awaits_placement
from egpu.errors import Conflict, NotFound, Refused, RetryableError

FENCE: Final = f"{names.GROUP}/fence"
TOUCHES_AT_ONCE: Final = 32
RETRY_SECONDS = 1.0

T = TypeVar("T", bound=Pod | ElasticGPUClaim)

log = structlog.get_logger(__name__)


async def touch(client: Client, one: T, why: str) -> T:
    """Moves the object's resourceVersion on, whatever its author has written into it; returns it as it is then. `why`:
    for people, a few letters.

    The annotation is another each time: what does not change is not written. Annotations have a limit all together,
    which an author may have used up; labels have none. Raises NotFound, Conflict for another object of the name,
    Refused for one that cannot grow.
    """
    mark = f"{why}-{time.time_ns()}"
    try:
        return await _patch(client, one, {"annotations": {FENCE: mark}})
    except Refused:
        return await _patch(client, one, {"labels": {FENCE: mark}})


async def _patch(client: Client, one: T, metadata: dict[str, dict[str, str]]) -> T:
    patch = {"metadata": {"uid": one.uid, **metadata}}
    return await client.patch(type(one), one.name, patch, namespace=one.namespace)


class Fence:
    """Rules 2 and 3. Rule 1 is the binder's."""

    def __init__(self, client: Client, election: LeaseElection) -> None:
        self._client = client
        self._election = election
        self._asked_at = -math.inf
        """When the latest question was sent that was answered well, by `time.monotonic`."""

    async def take_over(self) -> None:
        """Rule 3, for a process that has just got the lease: touches everything that waits for a placement.

        Goes on until all is touched: the webhook, which a touch passes through, may be starting too.
        """
        while True:
            try:
                pods = [pod for pod in await self._client.list(Pod) if awaits_placement(pod) or may_be_resized(pod)]
                claims = await self._client.list(ElasticGPUClaim)
                await self._touch([*pods, *claims])
            except RetryableError as error:
                log.warning("not fenced yet", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                log.info("fenced", pods=len(pods), claims=len(claims))
                return

    async def check(self, read_at: float = math.inf) -> None:
        """Rule 2 for what was read at `read_at`, by `time.monotonic`, or just now. Raises LeadershipLost, or
        Unavailable when nobody can be asked: then nothing may be written."""
        if read_at < self._asked_at:
            return
        asked_at = time.monotonic()
        await self._election.verify()
        self._asked_at = max(self._asked_at, asked_at)

    async def _touch(self, objects: Iterable[Pod | ElasticGPUClaim]) -> None:
        gate = asyncio.Semaphore(TOUCHES_AT_ONCE)

        async def fence(one: Pod | ElasticGPUClaim) -> None:
            async with gate:
                try:
                    await touch(self._client, one, "lead")
                except (NotFound, Conflict):
                    log.debug("gone before it was fenced", object=one.key)  # deleted: no write can place it
                except Refused as error:
                    log.warning("cannot be fenced, nor placed", object=one.key, reason=str(error))

        # Not a TaskGroup: the first error shall be seen as it is. The others' touches do no harm and are repeated.
        await asyncio.gather(*(fence(one) for one in objects))


def may_be_resized(pod: Pod) -> bool:
    """Whether the pod runs and its own annotations ask for a size: what it has of a claim, the claim counts."""
    return bool(pod.spec.node_name) and any(key.startswith(names.RESIZE_PREFIX) for key in pod.annotations)
