"""Tells kube-scheduler to look again at pods that wait for cards, when there may be room for them.

kube-scheduler sets a refused pod aside until a pod or a node changes. It knows nothing of cards, claims and slices.
When a claim is bound, a retained slice is released, or a card recovers, a waiting pod would stay aside until some other
change, or for five minutes. When a pod ends, kube-scheduler may also hear of it before the extender does, ask, and be
refused for the last time. So the waker remembers refused pods, and changes an annotation of a pod once there is room.
kube-scheduler notices any change of a waiting pod.

It wakes only pods that would fit, no more than there is room for, and a bounded number per second. A pod is woken once,
and remembered again if it is refused again. Nothing of this must survive a restart: a new leader touches every waiting
pod (`egpu.apps.extender.fence`), and so is asked about all of them."""

import asyncio
import time

import structlog

from egpu.apps.extender.fence import touch
from egpu.apps.extender.metrics import Metrics
from egpu.apps.extender.view import View
from egpu.core.placement.requests import awaits_placement
from egpu.core.policies.registry import Policies
from egpu.core.rests import Rests
from egpu.core.waking import would_fit
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import Conflict, ElasticGPUError, NotFound, Refused
from egpu_base.kubernetes import Client

GATHER_SECONDS = 0.05
"""Room seldom appears alone (all slices of a pod, all cards of a node): changes within this time are one look."""
WAKES_PER_SECOND = 50
WOKEN_SECONDS = 5.0
"""The time for which a woken pod counts as about to take its room, so that no other pod is woken for it."""
RETRY_SECONDS = 1.0

log = structlog.get_logger(__name__)


class Waker:
    """Wakes pods. `answered` records kube-scheduler's answers. `rests`: of namespaces, after long looks at gangs."""

    def __init__(self, client: Client, view: View, policies: Policies, metrics: Metrics, rests: Rests) -> None:
        self._client = client
        self._view = view
        self._policies = policies
        self._metrics = metrics
        self._rests = rests
        self._refused: set[str] = set()
        self._woken: dict[str, float] = {}
        """Pods woken recently that kube-scheduler has not asked about since, and when."""
        self._room = asyncio.Event()
        self._again: asyncio.TimerHandle | None = None
        """Looks when a namespace has rested."""
        view.on_room(self._room.set)

    def answered(self, uid: str, *, room: bool) -> None:
        """Record whether any offered node has room for the pod. If none has, kube-scheduler sets the pod aside."""
        self._woken.pop(uid, None)
        if room:
            self._refused.discard(uid)
        else:
            self._refused.add(uid)
            if (pod := self._view.pods.by_uid(uid)) is not None:
                self._look_after(self._rests.seconds(pod.namespace))

    def _look_after(self, seconds: float) -> None:
        """Look when that is over, because room that was there before is no news then. 0: nobody rests."""
        if seconds and self._again is None:
            self._again = asyncio.get_running_loop().call_later(seconds, self.rested)

    def rested(self) -> None:
        """Look again: a namespace has rested."""
        self._again = None
        self._room.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._room.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._room.clear()
            try:
                await self.look()
            except ElasticGPUError as error:
                log.warning("waiting pods not woken; trying again", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                self._room.set()

    async def look(self) -> None:
        """Wake the pods that would fit now. Raises the API server's errors."""
        now = time.monotonic()
        self._woken = {uid: at for uid, at in self._woken.items() if now - at < WOKEN_SECONDS}
        known = {uid: self._view.pods.by_uid(uid) for uid in (*self._refused, *self._woken)}
        waiting = {
            uid: pod
            for uid, pod in known.items()
            if pod is not None and awaits_placement(pod) and not self._has_cards(pod)
        }
        self._refused &= waiting.keys()
        if not waiting:
            return
        nodes = self._view.usable_nodes()
        fitting = would_fit(waiting.values(), self._view.cache, nodes, self._policies, self._rests)
        rests = (self._rests.seconds(namespace) for namespace in self._rests.left_out)
        self._look_after(min(filter(None, rests), default=0.0))
        for pod in fitting:
            if pod.uid not in self._woken and not self._has_cards(pod):
                await self._wake(pod)
                await asyncio.sleep(1 / WAKES_PER_SECOND)

    def _has_cards(self, pod: Pod) -> bool:
        """Return whether the pod's binding is under way: a touch would make the API server refuse it, and it would be
        sent again."""
        return self._view.cache.pod_allocation(pod.uid) is not None

    async def _wake(self, pod: Pod) -> None:
        self._refused.discard(pod.uid)
        self._woken[pod.uid] = time.monotonic()
        try:
            # Shown at once: the bind that follows must not use the pod's old version.
            self._view.pods.absorb(await touch(self._client, pod, "room"))
        except (Conflict, NotFound, Refused):
            return  # replaced, deleted, or too large to be touched; no other pod waits for it
        except ElasticGPUError:
            self.answered(pod.uid, room=False)
            raise
        self._metrics.pods_woken.inc()
        log.info("pod woken: there is room for it", pod=pod.key)
