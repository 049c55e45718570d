"""Makes GPU pods again that a kubelet refused for lack of room, if nobody else would: see `egpu.core.remaking`."""

import time
from typing import Any, Final

import structlog

from egpu.core.remaking import delay_seconds, is_refused, remade
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import AlreadyExists, NotFound, Refused
from egpu_base.kubernetes import Change, Client, Reflector
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.reconcile import DONE, Loop, Result

RETRY_SECONDS: Final = 10.0
"""Pause after admission refused the new pod, or while the old one is still being deleted."""

log = structlog.get_logger(__name__)


class RemadePods:
    """One loop, over pods by namespace and name.

    A dry run asks first whether the new pod would be admitted. Then the old pod is deleted and the new one made. A
    controller that ends between these two calls loses the pod: nothing else remembers it."""

    def __init__(self, client: Client, events: EventRecorder, *, pods: Reflector[Pod]) -> None:
        self._client = client
        self._events = events
        self._pods = pods
        self._due: dict[str, float] = {}
        """When a refused pod is made again, by UID and `time.monotonic`."""
        self._owed: dict[tuple[str, str], tuple[Pod, dict[str, Any]]] = {}
        """Deleted pods, and those to make in their place."""
        self.loop: Loop[tuple[str, str]] = Loop("remade pods", self.reconcile, workers=1)
        pods.on_change(self._pod)

    def _pod(self, change: Change[Pod]) -> None:
        if change.new is None:
            self._due.pop(change.subject.uid, None)
        elif is_refused(change.new):
            self.loop.queue.add((change.new.namespace, change.new.name))

    async def reconcile(self, key: tuple[str, str]) -> Result:
        if key in self._owed:
            return await self._make(key)
        namespace, name = key
        pod = self._pods.get(name, namespace)
        if pod is None or not is_refused(pod):
            return DONE
        now = time.monotonic()
        due = self._due.setdefault(pod.uid, now + delay_seconds(pod))
        if due > now:
            return Result(again_after_seconds=due - now)
        return await self._replace(pod)

    async def _replace(self, pod: Pod) -> Result:
        path = f"/api/v1/namespaces/{pod.namespace}/pods"
        try:
            found: dict[str, Any] = await self._client.raw("GET", f"{path}/{pod.name}")
        except NotFound:
            return DONE
        if found["metadata"]["uid"] != pod.uid:
            return DONE
        body = remade(found)
        try:
            await self._client.raw("POST", path, body=body, params={"dryRun": "All"})
        except AlreadyExists:
            pass  # admission has passed, and the old pod has the name
        except Refused as error:
            await self._events.warn(pod, "NotRemade", f"the kubelet had no room, and a new pod is refused: {error}")
            return Result(again_after_seconds=RETRY_SECONDS)
        await self._client.delete(Pod, pod.name, namespace=pod.namespace, uid=pod.uid, grace_period_seconds=0)
        key = pod.namespace, pod.name
        self._owed[key] = pod, body
        return await self._make(key)

    async def _make(self, key: tuple[str, str]) -> Result:
        """Make the pod that is owed, unless somebody else took its name."""
        namespace, name = key
        refused, body = self._owed[key]
        try:
            made: dict[str, Any] = await self._client.raw("POST", f"/api/v1/namespaces/{namespace}/pods", body=body)
        except AlreadyExists:
            there = await self._client.find(Pod, name, namespace=namespace)
            if there is None or there.uid == refused.uid:
                return Result(again_after_seconds=RETRY_SECONDS)
            log.info("the name of a refused pod is taken by another", pod=refused.key)
        except Refused as error:
            log.warning("refused pod not made again yet", pod=refused.key, reason=str(error))
            return Result(again_after_seconds=RETRY_SECONDS)
        else:
            node, status = refused.spec.node_name, refused.status
            log.info("refused pod made again", pod=refused.key, node=node, reason=status.reason)
            text = f"made again, because the kubelet of {node} had no room for it ({status.reason}): {status.message}"
            new = await self._client.find(Pod, name, namespace=namespace)
            if new is not None and new.uid == made["metadata"]["uid"]:
                await self._events.note(new, "Remade", text)
        del self._owed[key]
        return DONE
