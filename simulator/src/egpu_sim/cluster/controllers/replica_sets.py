"""ReplicaSets: the wanted number of pods."""

import time

from egpu_base.api.kubernetes import Pod
from egpu_base.api.wire import rfc3339
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.reconcile import DONE, Result
from egpu_sim.cluster.controllers import pods
from egpu_sim.cluster.controllers.kinds import ReplicaSet
from egpu_sim.cluster.controllers.making import Maker, Wanted
from egpu_sim.cluster.trees import as_object


class ReplicaSets:
    kind = ReplicaSet

    def __init__(self, client: Client, events: EventRecorder) -> None:
        self._client = client
        self._maker = Maker(client, events)

    async def reconcile(self, key: str) -> Result:
        namespace, _, name = key.partition("/")
        owner = await self._client.find(ReplicaSet, name, namespace=namespace)
        if owner is None or owner.metadata.deletion_timestamp is not None:
            return DONE
        found = await pods.claimed(self._client, owner, Pod)
        mine = [pod for pod in found if pods.is_active(pod)]
        leaving = sum(not pod.finished for pod in found) - len(mine)
        missing = owner.replicas - len(mine)
        refusal = await self._maker.make(owner, [Wanted()] * missing)
        if missing < 0:
            await pods.end(self._client, pods.first_to_go(mine)[:-missing])
        await self._tell(owner, mine, leaving, "" if refusal is None else refusal.reason)
        if refusal is not None:
            return Result(again_after_seconds=refusal.wait_seconds)
        wait = int(owner.spec.get("minReadySeconds") or 0)
        pending = any(pods.ready_since(pod) is not None and not pods.is_available(pod, wait) for pod in mine)
        return Result(again_after_seconds=1.0) if pending else DONE

    async def _tell(self, owner: ReplicaSet, mine: list[Pod], leaving: int, refusal: str) -> None:
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
            "terminatingReplicas": leaving,
            "conditions": [failure] if refusal else [],
        }
        await pods.write_status(self._client, owner, {"replicas": len(mine), **status})
