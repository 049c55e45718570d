"""ReplicaSets: as many pods as are wanted."""

import asyncio
import time

from egpu.adapters.kubernetes import Client
from egpu.adapters.kubernetes.events import EventRecorder
from egpu.api.kubernetes import Pod
from egpu.api.wire import rfc3339
from egpu.embedded.apiserver.objects import as_object
from egpu.embedded.controllers import pods
from egpu.embedded.controllers.kinds import ReplicaSet
from egpu.errors import Refused
from egpu.runtime.reconcile import DONE, Result

AGAIN_SECONDS = 5.0
"""Until a refused pod (a quota, a webhook) is tried again."""


class ReplicaSets:
    """Not meant to run twice on one cluster."""

    kind = ReplicaSet

    def __init__(self, client: Client, events: EventRecorder) -> None:
        self._client = client
        self._events = events

    async def reconcile(self, key: str) -> Result:
        namespace, _, name = key.partition("/")
        owner = await self._client.find(ReplicaSet, name, namespace=namespace)
        if owner is None or owner.metadata.deletion_timestamp is not None:
            return DONE
        mine = [pod for pod in await pods.claimed(self._client, owner, Pod) if pods.is_active(pod)]
        refusal = ""
        missing = owner.replicas - len(mine)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(missing, pods.MOST_AT_ONCE)):
                    group.create_task(pods.make(self._client, owner))
        except* Refused as errors:
            refusal = str(errors.exceptions[0])
            await self._events.warn(owner, "FailedCreate", f"Error creating: {refusal}")
        if missing < 0:
            await pods.end(self._client, pods.first_to_go(mine)[:-missing])
        await self._tell(owner, mine, refusal)
        if refusal:
            return Result(again_after_seconds=AGAIN_SECONDS)
        wait = int(owner.spec.get("minReadySeconds") or 0)
        pending = any(pods.ready_since(pod) is not None and not pods.is_available(pod, wait) for pod in mine)
        return Result(again_after_seconds=1.0) if pending else DONE

    async def _tell(self, owner: ReplicaSet, mine: list[Pod], refusal: str) -> None:
        wait = int(owner.spec.get("minReadySeconds") or 0)
        wanted = as_object(as_object(owner.template.get("metadata")).get("labels"))
        failure = owner.condition("ReplicaFailure")
        if refusal and failure.get("message") != refusal:
            failure = {
                "type": "ReplicaFailure",
                "status": "True",
                "reason": "FailedCreate",
                "message": refusal,
                "lastTransitionTime": rfc3339(time.time()),
            }
        status = {
            "fullyLabeledReplicas": sum(wanted.items() <= (pod.metadata.labels or {}).items() for pod in mine),
            "readyReplicas": sum(pods.ready_since(pod) is not None for pod in mine),
            "availableReplicas": sum(pods.is_available(pod, wait) for pod in mine),
            "conditions": [failure] if refusal else [],
        }
        await pods.write_status(self._client, owner, {"replicas": len(mine), **status})
