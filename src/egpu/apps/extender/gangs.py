"""What becomes of a gang of which only a part is bound.

The bind of one member binds them all (`egpu.apps.extender.binding`): they are chosen and assumed at once, and none is
sent before all are. So no gang holds cards while it waits for more, and two gangs never wait for each other. What is
left are the few milliseconds in which the bindings are sent: an extender killed there, an API server gone there, or
later a member that is lost and made again. Kubernetes has no binding of several pods, so this can be repaired only:

- the members that wait are touched, so that the scheduler asks about them again, and go where there is room;
- when the gang has been bound in part for its time limit, the bound members are deleted. Whoever made them (a Job, a
  StatefulSet) makes them again, and the gang waits as a whole. Kubernetes' own preemption takes pods away likewise.

Nothing is written down for this: pods say who belongs together and who is bound. The time counts from when this process
first saw the gang so; a new process counts anew.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from egpu.adapters.kubernetes import Client
from egpu.adapters.kubernetes.events import EventRecorder
from egpu.api.kubernetes import Pod
from egpu.apps.extender.fence import Fence, touch
from egpu.apps.extender.view import View
from egpu.core.gangs.membership import Gang
from egpu.errors import Conflict, ElasticGPUError, NotFound, Refused

LOOK_SECONDS = 1.0
TOUCH_SECONDS = 10.0

log = structlog.get_logger(__name__)


class GangController:
    """`look` once in a while. `clock` counts seconds."""

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
                log.warning("gangs not looked after", reason=str(error))

    async def look(self) -> None:
        """Completes or undoes what is bound in part. Raises what the API server refuses."""
        partial = {gang.key: gang for gang in self._view.cache.gangs.partial()}
        for known in (self._since, self._touched):
            for key in known.keys() - partial.keys():
                del known[key]
        now = self._clock()
        for key, gang in partial.items():
            if now - self._since.setdefault(key, now) >= gang.terms.timeout_seconds:
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
                continue  # another pod by now

    async def _touch(self, gang: Gang) -> None:
        for pod in gang.waiting:
            try:
                await touch(self._client, pod, "gang")
            except (Conflict, NotFound, Refused):
                continue  # nobody else's gang waits for it
