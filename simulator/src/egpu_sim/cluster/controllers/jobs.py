"""Jobs: pods until enough of them have succeeded, or too many have failed."""

import time
from typing import Any, Final

from egpu_base.api.kubernetes import Pod
from egpu_base.api.wire import rfc3339
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.reconcile import DONE, Result
from egpu_sim.cluster.controllers import pods
from egpu_sim.cluster.controllers.kinds import Job
from egpu_sim.cluster.controllers.making import Maker, Wanted
from egpu_sim.cluster.trees import as_list, as_object

INDEX: Final = "batch.kubernetes.io/job-completion-index"
OURSELVES: Final = "kubernetes.io/job-controller"
"""The value of `managedBy` that names Kubernetes' own controller. Another one leaves the Job to that controller."""
BACKOFF_SECONDS: Final = 1.0
MOST_BACKOFF_SECONDS: Final = 60.0
"""Pause before a failed pod is made anew, doubled with each failure. Kubernetes waits ten times as long."""


class Jobs:
    kind = Job

    def __init__(self, client: Client, events: EventRecorder) -> None:
        self._client = client
        self._events = events
        self._maker = Maker(client, events)

    async def reconcile(self, key: str) -> Result:
        namespace, _, name = key.partition("/")
        job = await self._client.find(Job, name, namespace=namespace)
        if job is None or job.metadata.deletion_timestamp is not None:
            return DONE
        if job.spec.get("managedBy", OURSELVES) != OURSELVES:
            return DONE
        if _ended(job):
            return await self._sweep(job)
        mine = await pods.claimed(self._client, job, Pod)
        active = [pod for pod in mine if pods.is_active(pod)]
        succeeded = _succeeded(job, mine)
        failed = max(sum(pod.status.phase == "Failed" for pod in mine), job.number("failed"))
        status: dict[str, Any] = {
            "succeeded": max(len(succeeded), job.number("succeeded")),
            "failed": failed,
            "startTime": job.status.get("startTime") or (None if job.spec.get("suspend") else _now()),
            "completedIndexes": _ranges(succeeded) if _indexed(job) else None,
        }
        verdict = _verdict(job, active, status)
        if verdict is not None or job.spec.get("suspend"):
            await pods.end(self._client, active)
            active = []
        again = DONE
        if verdict is None and not job.spec.get("suspend"):
            again = await self._supply(job, mine, active, status, succeeded)
        await self._tell(job, status, verdict, active)
        return again

    async def _supply(
        self, job: Job, mine: list[Pod], active: list[Pod], status: dict[str, Any], succeeded: set[int]
    ) -> Result:
        """Make the pods that are missing, or end surplus ones."""
        completions, parallel = job.spec.get("completions"), int(job.spec.get("parallelism", 1))
        left = parallel if completions is None else int(completions) - status["succeeded"]
        if completions is None and status["succeeded"]:
            left = len(active)  # A work queue is empty once any pod has succeeded.
        missing = min(parallel, left) - len(active)
        if missing < 0:
            await pods.end(self._client, pods.first_to_go(active)[:-missing])
        wait = _backoff(mine, status["failed"]) if missing > 0 else 0.0
        if wait > 0:
            return Result(again_after_seconds=wait)
        free = iter(_free_indexes(job, active, succeeded))
        new = [_indexed_pod(job, next(free, 0)) if _indexed(job) else Wanted() for _ in range(missing)]
        refusal = await self._maker.make(job, new)
        until = _until_deadline(job, status)
        if refusal is None:
            return until
        seconds = refusal.wait_seconds
        return Result(again_after_seconds=min(seconds, until.again_after_seconds or seconds))

    async def _tell(
        self, job: Job, status: dict[str, Any], verdict: tuple[str, str, str] | None, active: list[Pod]
    ) -> None:
        status["active"] = len(active)
        status["ready"] = sum(pods.ready_since(pod) is not None for pod in active)
        if verdict is not None:
            kind, reason, message = verdict
            before = "SuccessCriteriaMet" if kind == "Complete" else "FailureTarget"
            status["conditions"] = [_condition(each, reason, message) for each in (before, kind)]
            if kind == "Complete":
                status["completionTime"] = _now()
            await self._events.note(job, "Completed" if kind == "Complete" else reason, message)
        elif bool(job.spec.get("suspend")) != bool(job.condition("Suspended").get("status") == "True"):
            suspended = bool(job.spec.get("suspend"))
            reason, message = ("JobSuspended", "Job suspended") if suspended else ("JobResumed", "Job resumed")
            status["conditions"] = [{**_condition("Suspended", reason, message), "status": str(suspended)}]
        told = {key: value for key, value in status.items() if value is not None}
        changed = {key: value for key, value in told.items() if (job.status.get(key) or 0) != value}
        if changed:
            body = {"metadata": {"uid": job.uid}, "status": changed}
            await self._client.patch(Job, job.name, body, namespace=job.namespace, subresource="status")

    async def _sweep(self, job: Job) -> Result:
        """Delete an ended job when its time to live is over."""
        life = job.spec.get("ttlSecondsAfterFinished")
        if life is None:
            return DONE
        left = float(life) - pods.age_seconds(_ended(job).get("lastTransitionTime"))
        if left > 0:
            return Result(again_after_seconds=left)
        await self._client.delete(Job, job.name, namespace=job.namespace, uid=job.uid)
        return DONE


def _now() -> str:
    return rfc3339(time.time())


def _condition(kind: str, reason: str, message: str) -> dict[str, Any]:
    now = _now()
    return {"type": kind, "status": "True", "reason": reason, "message": message,
            "lastProbeTime": now, "lastTransitionTime": now}  # fmt: skip


def _ended(job: Job) -> dict[str, Any]:
    found = [job.condition(kind) for kind in ("Complete", "Failed")]
    return next((one for one in found if one.get("status") == "True"), as_object(None))


def _indexed(job: Job) -> bool:
    return job.spec.get("completionMode") == "Indexed"


def _index(pod: Pod) -> int:
    return int(pod.annotations.get(INDEX) or 0)


def _indexed_pod(job: Job, index: int) -> Wanted:
    spec = as_object(job.template.get("spec"))
    number = {"name": "JOB_COMPLETION_INDEX", "value": str(index)}
    containers = [
        {**one, "env": [*as_list(one.get("env")), number]} for one in map(as_object, as_list(spec.get("containers")))
    ]
    mark = {INDEX: str(index)}
    hostname = {"containers": containers, "hostname": f"{job.name}-{index}"}
    return Wanted(labels=mark, annotations=mark, spec=hostname)


def _succeeded(job: Job, mine: list[Pod]) -> set[int]:
    """Return one number per success: the index where the job has indexes, so that no index counts twice."""
    done = [pod for pod in mine if pod.status.phase == "Succeeded"]
    return {_index(pod) for pod in done} if _indexed(job) else set(range(len(done)))


def _free_indexes(job: Job, active: list[Pod], succeeded: set[int]) -> list[int]:
    held = {_index(pod) for pod in active} | succeeded
    return [index for index in range(int(job.spec.get("completions") or 0)) if index not in held]


def _ranges(indexes: set[int]) -> str | None:
    """Return `0-2,5`, the status's form."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}{'-' if len(run) > 2 else ','}{run[-1]}" for run in runs]
    return ",".join(texts) or None


def _verdict(job: Job, active: list[Pod], status: dict[str, Any]) -> tuple[str, str, str] | None:
    """Return (condition, reason, message) once a job has ended."""
    completions = job.spec.get("completions")
    restarts = sum(one.restart_count for pod in active for one in pod.status.container_statuses or [])
    if status["failed"] + restarts > int(job.spec.get("backoffLimit", 6)):
        return "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    deadline = job.spec.get("activeDeadlineSeconds")
    if deadline is not None and status["startTime"] and pods.age_seconds(status["startTime"]) >= float(deadline):
        return "Failed", "DeadlineExceeded", "Job was active longer than specified deadline"
    enough = status["succeeded"] and not active if completions is None else status["succeeded"] >= int(completions)
    return ("Complete", "CompletionsReached", "Reached expected number of succeeded pods") if enough else None


def _backoff(mine: list[Pod], failed: int) -> float:
    """Return the seconds until a pod may be made after the latest failure."""
    ends = [
        pods.age_seconds(one.state.terminated.finished_at)
        for pod in mine
        if pod.status.phase == "Failed"
        for one in pod.status.container_statuses or []
        if one.state is not None and one.state.terminated is not None
    ]
    if not ends:
        return 0.0
    return min(BACKOFF_SECONDS * 2 ** min(failed - 1, 10), MOST_BACKOFF_SECONDS) - min(ends)


def _until_deadline(job: Job, status: dict[str, Any]) -> Result:
    deadline = job.spec.get("activeDeadlineSeconds")
    if deadline is None:
        return DONE
    return Result(again_after_seconds=max(float(deadline) - pods.age_seconds(status["startTime"]), 0.1))
