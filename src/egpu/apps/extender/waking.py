"""Tells kube-scheduler to look again at pods that wait for cards, when there may be room for them.

kube-scheduler puts a pod that we refused aside until something happens to a pod or a node. It knows nothing of cards,
claims and slices: when a claim is bound, a retained slice is given up, or a card gets well, a waiting pod would stay
where it is until something else happens, or for five minutes. And where a pod ends, kube-scheduler may hear of it
before we do, ask, and be refused for the last time. So whoever we refused is remembered, and changed (an annotation, of
which kube-scheduler takes note as of any change of a waiting pod) once there is room.

Only pods that would fit are told, no more of them than there is room for, and a bounded number per second. A pod is
told once; it is remembered again if we refuse it again. Nothing of this has to survive a restart: whoever takes over
touches every waiting pod (`egpu.apps.extender.fence`), and so is asked about all of them.
"""

import asyncio
import time

import structlog

from egpu.adapters.kubernetes import Client
from egpu.api.kubernetes import Pod
from egpu.apps.extender.fence import touch
from egpu.apps.extender.metrics import Metrics
from egpu.apps.extender.view import View
from egpu.core.placement.requests import awaits_placement
from egpu.core.policies.registry import Policies
from egpu.core.waking import would_fit
from egpu.errors import Conflict, ElasticGPUError, NotFound, Refused

GATHER_SECONDS = 0.05
"""Room seldom comes alone (all slices of a pod, all cards of a node): what comes within this time is one look."""
WAKES_PER_SECOND = 50
TOLD_SECONDS = 5.0
"""For so long a pod that was woken counts as one that is about to take its room, and the next one is not told of it."""
RETRY_SECONDS = 1.0

log = structlog.get_logger(__name__)


class Waker:
    """`answered` tells it what kube-scheduler was told."""

    def __init__(self, client: Client, view: View, policies: Policies, metrics: Metrics) -> None:
        self._client = client
        self._view = view
        self._policies = policies
        self._metrics = metrics
        self._refused: set[str] = set()
        self._told: dict[str, float] = {}
        """Pods woken of late about which nobody has asked since, and when."""
        self._room = asyncio.Event()
        view.on_room(self._room.set)

    def answered(self, uid: str, *, room: bool) -> None:
        """Whether any of the nodes that kube-scheduler offered has room for the pod; if none has, it will be put
        aside."""
        self._told.pop(uid, None)
        if room:
            self._refused.discard(uid)
        else:
            self._refused.add(uid)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._room.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._room.clear()
            try:
                await self.look()
            except ElasticGPUError as error:
                log.warning("waiting pods not woken; tried again", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                self._room.set()

    async def look(self) -> None:
        """Wakes who would fit now. Raises what the API server refuses."""
        now = time.monotonic()
        self._told = {uid: at for uid, at in self._told.items() if now - at < TOLD_SECONDS}
        known = {uid: self._view.pods.by_uid(uid) for uid in (*self._refused, *self._told)}
        waiting = {
            uid: pod
            for uid, pod in known.items()
            if pod is not None and awaits_placement(pod) and not self._has_cards(pod)
        }
        self._refused &= waiting.keys()
        if not waiting:
            return
        for pod in would_fit(waiting.values(), self._view.cache, self._view.usable_nodes(), self._policies):
            if pod.uid not in self._told and not self._has_cards(pod):
                await self._wake(pod)
                await asyncio.sleep(1 / WAKES_PER_SECOND)

    def _has_cards(self, pod: Pod) -> bool:
        """Whether its binding is on its way: a touch would only make the API server refuse it, and have it sent
        again."""
        return self._view.cache.pod_allocation(pod.uid) is not None

    async def _wake(self, pod: Pod) -> None:
        self._refused.discard(pod.uid)
        self._told[pod.uid] = time.monotonic()
        try:
            # Shown at once: the bind that follows must not be sent for the pod as it was before.
            self._view.pods.absorb(await touch(self._client, pod, "room"))
        except (Conflict, NotFound, Refused):
            return  # another pod by now, or none, or one that cannot be told; nobody else waits for it
        except ElasticGPUError:
            self.answered(pod.uid, room=False)
            raise
        self._metrics.pods_woken.inc()
        log.info("woken: there is room for it", pod=pod.key)
