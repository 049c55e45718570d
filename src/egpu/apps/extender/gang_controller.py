"""Repairs gangs of which only a part is bound.

Binding one member binds them all (`egpu.apps.extender.binder`): the extender chooses and assumes all cards before it
sends the first binding. So no gang holds cards while it waits for more, and two gangs never wait for each other. A gang
can still be bound in part: the extender or the API server may fail during the few milliseconds in which the bindings
are sent, or a member is lost later and created again. Kubernetes cannot bind several pods at once, so this can only be
repaired:

- the waiting members are touched, so that the scheduler asks about them again, and go where there is room;
- if the gang stays bound in part for its time limit, the bound members are deleted. Their owner (a Job, a StatefulSet)
  creates them again, and the gang waits as a whole. Kubernetes' own preemption also deletes pods. Groups of neighbours
  have no time limit by default: their controllers decide which pods end.

Nothing is stored for this: pods say which gang they belong to and whether they are bound. The time counts from when
this process first saw the gang bound in part; a new process starts again."""

import asyncio
import math
import time
from collections.abc import Callable

import structlog

from egpu.apps.extender.fence import Fence, touch
from egpu.apps.extender.view import View
from egpu.core.gangs.membership import Gang
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import Conflict, ElasticGPUError, NotFound, Refused
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.events import EventRecorder

LOOK_SECONDS = 1.0
TOUCH_SECONDS = 10.0

log = structlog.get_logger(__name__)


class GangController:
    """Looks at all gangs from time to time. `clock` returns seconds."""

    def __init__(
        self,
        client: Client,
        view: View,
        fence: Fence,
        events: EventRecorder,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._view = view
        self._fence = fence
        self._events = events
        self._clock = clock
        self._since: dict[str, float] = {}
        self._touched: dict[str, float] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except ElasticGPUError as error:
                log.warning("gangs not checked", reason=str(error))

    async def look(self) -> None:
        """Complete or undo gangs that are bound in part, and end old promises. Raises the API server's errors."""
        if self._view.cache.promises.expire(time.monotonic()):
            self._view.made_room()
        partial = {gang.key: gang for gang in self._view.cache.gangs.partial()}
        for known in (self._since, self._touched):
            for key in known.keys() - partial.keys():
                del known[key]
        now = self._clock()
        for key, gang in partial.items():
            limit = gang.terms.timeout_seconds
            if now - self._since.setdefault(key, now) >= (math.inf if limit is None else limit):
                await self._undo(gang)
                del self._since[key]
            elif now - self._touched.setdefault(key, now) >= TOUCH_SECONDS:
                self._touched[key] = now
                await self._touch(gang)

    async def _undo(self, gang: Gang) -> None:
        await self._fence.check()
        log.warning("gang undone", gang=gang.key, bound=len(gang.bound), waiting=len(gang.waiting))
        for pod in (pod for pod in gang.bound if pod.spec.node_name):
            message = (
                f"gang {gang.terms.name}: {len(gang.waiting)} of {gang.terms.size} members found no room within"
                f" {gang.terms.timeout_seconds} s; all or none run, so this one is deleted"
            )
            await self._events.warn(pod, "GangUndone", message)
            try:
                await self._client.delete(Pod, pod.name, namespace=pod.namespace, uid=pod.uid)
            except (Conflict, NotFound):
                continue  # deleted, or replaced by another pod

    async def _touch(self, gang: Gang) -> None:
        for pod in gang.waiting:
            try:
                await touch(self._client, pod, "gang")
            except (Conflict, NotFound, Refused):
                continue  # the other gangs do not wait for it
