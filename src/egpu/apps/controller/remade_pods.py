"""Makes GPU pods again that a kubelet refused for lack of room, if nobody else would: see `egpu.core.remaking`."""

import time
from contextlib import suppress
from typing import Any, Final

import structlog

from egpu.apps.controller.owed_pods import OwedPod, OwedPods
from egpu.core.remaking import delay_seconds, is_refused, remade
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import AlreadyExists, Conflict, NotFound, Refused
from egpu_base.kubernetes import Change, Client, Reflector
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.reconcile import DONE, Loop, Result

RETRY_SECONDS: Final = 10.0
"""Pause after admission refused the new pod, or while the old one is still being deleted."""
MOST_OWED: Final = 4
"""Of one namespace at the same time: a finalizer keeps a deleted pod, and its place in the record."""
_RECOVER: Final = ("", "")
"""The key of what an earlier controller left unfinished."""

log = structlog.get_logger(__name__)


class RemadePods:
    """One loop, over pods by namespace and name.

    A dry run asks first whether the new pod would be admitted. Then the pod is written down (`owed_pods`), the old one
    is deleted, the new one is made, and the record is removed. A controller that ends in between leaves the record to
    the next one, which begins with it."""

    def __init__(self, client: Client, events: EventRecorder, *, pods: Reflector[Pod], namespace: str) -> None:
        self._client = client
        self._events = events
        self._pods = pods
        self._record = OwedPods(client, namespace)
        self._due: dict[str, float] = {}
        """When a refused pod is made again, by UID and `time.monotonic`."""
        self._owed: dict[tuple[str, str], OwedPod] = {}
        """Pods to make, whose predecessors are deleted."""
        self.loop: Loop[tuple[str, str]] = Loop("remade pods", self.reconcile, workers=1)
        self.loop.queue.add(_RECOVER)
        pods.on_change(self._pod)

    def _pod(self, change: Change[Pod]) -> None:
        if change.new is None:
            self._due.pop(change.subject.uid, None)
        elif is_refused(change.new):
            self.loop.queue.add((change.new.namespace, change.new.name))

    async def reconcile(self, key: tuple[str, str]) -> Result:
        if key == _RECOVER:
            return await self._recover()
        if key in self._owed:
            return await self._make(self._owed[key])
        namespace, name = key
        pod = self._pods.get(name, namespace)
        if pod is None or not is_refused(pod):
            return DONE
        now = time.monotonic()
        due = self._due.setdefault(pod.uid, now + delay_seconds(pod))
        if due > now:
            return Result(again_after_seconds=due - now)
        if sum(owed.namespace == namespace for owed in self._owed.values()) >= MOST_OWED:
            return Result(again_after_seconds=RETRY_SECONDS)
        return await self._replace(pod)

    async def _recover(self) -> Result:
        """Take over what an earlier controller wrote down."""
        for owed in await self._record.all():
            self._owed[owed.key] = owed
            self.loop.queue.add(owed.key)
        return DONE

    async def _replace(self, pod: Pod) -> Result:
        path = f"/api/v1/namespaces/{pod.namespace}/pods"
        try:
            found: dict[str, Any] = await self._client.raw("GET", f"{path}/{pod.name}")
        except NotFound:
            return DONE
        if found["metadata"]["uid"] != pod.uid:
            return DONE
        owed = _owed(pod, found)
        try:
            with suppress(AlreadyExists):  # admission has passed, and the old pod has the name
                await self._client.raw("POST", path, body=owed.body, params={"dryRun": "All"})
            await self._record.note(owed)
        except Refused as error:
            await self._events.warn(pod, "NotRemade", f"the kubelet had no room, and a new pod is refused: {error}")
            return Result(again_after_seconds=RETRY_SECONDS)
        self._owed[owed.key] = owed
        try:
            await self._delete(owed)
        except (NotFound, Conflict):  # somebody else deleted it
            return await self._settled(owed)
        return await self._make(owed)

    async def _delete(self, owed: OwedPod) -> None:
        await self._client.delete(Pod, owed.name, namespace=owed.namespace, uid=owed.uid, grace_period_seconds=0)

    async def _settled(self, owed: OwedPod) -> Result:
        await self._record.forget(owed.uid)
        del self._owed[owed.key]
        return DONE

    async def _make(self, owed: OwedPod) -> Result:
        """Make the pod that is owed, unless somebody else took its name."""
        namespace, name = owed.key
        try:
            made: dict[str, Any] = await self._client.raw(
                "POST", f"/api/v1/namespaces/{namespace}/pods", body=owed.body
            )
        except AlreadyExists:
            there = await self._client.find(Pod, name, namespace=namespace)
            if there is None or there.uid == owed.uid:
                if there is not None and there.metadata.deletion_timestamp is None:
                    await self._delete(owed)  # the deletion failed, or an earlier controller ended before it
                return Result(again_after_seconds=RETRY_SECONDS)
            log.info("the name of a refused pod is taken by another", pod=f"{namespace}/{name}")
        except NotFound:
            log.info("the namespace of a refused pod is gone", pod=f"{namespace}/{name}")
        except Refused as error:
            log.warning("refused pod not made again yet", pod=f"{namespace}/{name}", reason=str(error))
            return Result(again_after_seconds=RETRY_SECONDS)
        else:
            log.info("refused pod made again", pod=f"{namespace}/{name}", reason=owed.because)
            new = await self._client.find(Pod, name, namespace=namespace)
            if new is not None and new.uid == made["metadata"]["uid"]:
                await self._events.note(new, "Remade", owed.because)
        return await self._settled(owed)


def _owed(refused: Pod, found: dict[str, Any]) -> OwedPod:
    """Return what is to be made in the place of a refused pod. `found`: the same pod, as the API server has it."""
    node, status = refused.spec.node_name, refused.status
    because = f"made again, because the kubelet of {node} had no room for it ({status.reason}): {status.message}"
    return OwedPod(uid=refused.uid, namespace=refused.namespace, name=refused.name, because=because, body=remade(found))
