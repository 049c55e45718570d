"""StatefulSets: pods with numbers, made lowest first and ended highest first."""

from typing import Any, Final

from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.reconcile import DONE, Result
from egpu_sim.cluster.controllers import pods
from egpu_sim.cluster.controllers.kinds import StatefulSet
from egpu_sim.cluster.controllers.making import Maker, Refusal, Wanted
from egpu_sim.cluster.controllers.revisions import revision_of
from egpu_sim.cluster.trees import as_object

HASH: Final = "controller-revision-hash"


class StatefulSets:
    kind = StatefulSet

    def __init__(self, client: Client, events: EventRecorder) -> None:
        self._client = client
        self._maker = Maker(client, events)

    async def reconcile(self, key: str) -> Result:
        namespace, _, name = key.partition("/")
        owner = await self._client.find(StatefulSet, name, namespace=namespace)
        if owner is None or owner.metadata.deletion_timestamp is not None:
            return DONE
        found = {ordinal(pod): pod for pod in await pods.claimed(self._client, owner, Pod) if ordinal(pod) is not None}
        first = int(as_object(owner.spec.get("ordinals")).get("start") or 0)
        wanted = range(first, first + owner.replicas)
        revision = f"{owner.name}-{revision_of(owner.template)}"
        held = {number: pod for number, pod in found.items() if number is not None}
        refusal = await self._step(owner, held, wanted, revision)
        await self._tell(owner, held, wanted, revision)
        return DONE if refusal is None else Result(again_after_seconds=refusal.wait_seconds)

    async def _step(self, owner: StatefulSet, held: dict[int, Pod], wanted: range, revision: str) -> Refusal | None:
        """Make or end one pod, or make all missing ones where no order is required."""
        parallel = owner.spec.get("podManagementPolicy") == "Parallel"
        wait = int(owner.spec.get("minReadySeconds") or 0)
        missing: list[Wanted] = []
        for number in wanted:
            pod = held.get(number)
            if pod is None:
                missing.append(_numbered(owner, number, revision))
            elif pod.finished and pod.metadata.deletion_timestamp is None:
                await pods.end(self._client, [pod])
            elif pods.is_available(pod, wait):
                continue
            if not parallel:
                break
        else:
            await self._shrink(owner, held, wanted, revision)
        return await self._maker.make(owner, missing)

    async def _shrink(self, owner: StatefulSet, held: dict[int, Pod], wanted: range, revision: str) -> None:
        """End surplus pods. Without any, update one."""
        parallel = owner.spec.get("podManagementPolicy") == "Parallel"
        wait = int(owner.spec.get("minReadySeconds") or 0)
        surplus = sorted((number for number in held if number not in wanted), reverse=True)
        going = [held[number] for number in surplus if held[number].metadata.deletion_timestamp is None]
        if going:
            await pods.end(self._client, going if parallel else going[:1])
        elif not surplus and all(number in held and pods.is_available(held[number], wait) for number in wanted):
            await self._update(owner, held, wanted, revision)

    async def _update(self, owner: StatefulSet, held: dict[int, Pod], wanted: range, revision: str) -> None:
        """End the highest pod of an old template, down to the partition."""
        strategy = as_object(owner.spec.get("updateStrategy"))
        if strategy.get("type") == "OnDelete":
            return
        partition = int(as_object(strategy.get("rollingUpdate")).get("partition") or 0)
        for number in reversed(wanted):
            if number - wanted.start >= partition and not _is_of(held[number], revision):
                await pods.end(self._client, [held[number]])
                return

    async def _tell(self, owner: StatefulSet, held: dict[int, Pod], wanted: range, revision: str) -> None:
        mine = [pod for number, pod in held.items() if number in wanted and pods.is_active(pod)]
        updated = [pod for pod in mine if _is_of(pod, revision)]
        wait = int(owner.spec.get("minReadySeconds") or 0)
        before = owner.status.get("currentRevision") or revision
        done = len(updated) == owner.replicas and all(pods.is_available(pod, wait) for pod in updated)
        status: dict[str, Any] = {
            "replicas": len(mine),
            "readyReplicas": sum(pods.ready_since(pod) is not None for pod in mine),
            "availableReplicas": sum(pods.is_available(pod, wait) for pod in mine),
            "updatedReplicas": len(updated),
            "currentReplicas": sum(_is_of(pod, revision if done else before) for pod in mine),
            "updateRevision": revision,
            "currentRevision": revision if done else before,
        }
        await pods.write_status(self._client, owner, status)


def _numbered(owner: StatefulSet, number: int, revision: str) -> Wanted:
    name = f"{owner.name}-{number}"
    labels = {
        HASH: revision,
        "statefulset.kubernetes.io/pod-name": name,
        "apps.kubernetes.io/pod-index": str(number),
    }
    return Wanted(name=name, labels=labels, spec={"hostname": name, "subdomain": owner.spec.get("serviceName") or ""})


def ordinal(pod: Pod) -> int | None:
    """Return a pod's number; None where its name has none."""
    number = pod.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else None


def _is_of(pod: Pod, revision: str) -> bool:
    return (pod.metadata.labels or {}).get(HASH) == revision
