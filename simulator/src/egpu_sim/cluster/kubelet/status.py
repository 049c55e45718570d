"""A pod's status, made from its containers' records. Pure: same records and time, same status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from egpu_base.api.wire import rfc3339
from egpu_sim.cluster.kubelet.containers import ContainerRecord, Run
from egpu_sim.cluster.kubelet.objects import Pod

# CPU and memory requests decide the class; device plugin resources do not.
_QOS_RESOURCES = ("cpu", "memory")


def phase(pod: Pod, inits: Sequence[ContainerRecord], apps: Sequence[ContainerRecord]) -> str:
    """Return Pending, Running, Succeeded or Failed, by Kubernetes' rules."""
    for record in inits:
        last = record.last_begun
        if record.container.restartable or not record.finished or last is None:
            continue
        if last.exit is not None and last.exit.code != 0:
            return "Failed"
    runs = [record.last_begun for record in apps]
    if not any(run is not None for run in runs):
        return "Pending"
    if all(record.finished for record in apps):
        exits = [run.exit for run in runs if run is not None]
        return "Succeeded" if all(ended is not None and ended.code == 0 for ended in exits) else "Failed"
    return "Running"


def build(
    pod: Pod,
    *,
    inits: Sequence[ContainerRecord],
    apps: Sequence[ContainerRecord],
    node_ip: str,
    started_at: float,
    now: float,
    ended: bool = False,
) -> dict[str, Any]:
    """Return the status to write. `ended`: the pod is terminating and nothing of it runs any more."""
    found = phase(pod, inits, apps)
    if ended and found in ("Pending", "Running"):
        exits = [last.exit for record in apps if (last := record.last_begun) is not None]
        found = "Succeeded" if exits and all(each is not None and each.code == 0 for each in exits) else "Failed"
    initialized = all(_initialized(record) for record in inits)
    running = [_running(record) for record in (*(r for r in inits if r.container.restartable), *apps)]
    ready = found == "Running" and initialized and all(running)
    reason = "PodCompleted" if found == "Succeeded" else "ContainersNotReady"
    conditions = {
        "PodReadyToStartContainers": (found in ("Pending", "Running"), ""),
        "Initialized": (initialized or found == "Succeeded", "" if initialized else "ContainersNotInitialized"),
        "Ready": (ready, "" if ready else reason),
        "ContainersReady": (ready, "" if ready else reason),
    }
    return {
        "phase": found,
        "hostIP": node_ip,
        "hostIPs": [{"ip": node_ip}],
        "podIP": node_ip,
        "podIPs": [{"ip": node_ip}],
        "startTime": pod.status.start_time or rfc3339(started_at),
        "qosClass": qos_class(pod),
        "conditions": merge_conditions(pod, conditions, now=now),
        "initContainerStatuses": [_container(record, ended=ended, now=now) for record in inits],
        "containerStatuses": [_container(record, ended=ended, now=now) for record in apps],
    }


def rejected(reason: str, message: str, *, now: float) -> dict[str, Any]:
    return {"phase": "Failed", "reason": reason, "message": f"Pod was rejected: {message}", "startTime": rfc3339(now)}


def merge_conditions(pod: Pod, wanted: dict[str, tuple[bool, str]], *, now: float) -> list[dict[str, Any]]:
    """Merge `wanted`, by type as (status, reason), into conditions of others. Transition times change with the
    status."""
    before: dict[str, dict[str, Any]] = {
        condition.type: msgspec.to_builtins(condition) for condition in pod.status.conditions or []
    }
    merged = {kind: condition for kind, condition in before.items() if kind not in wanted}
    for kind, (holds, reason) in wanted.items():
        text = "True" if holds else "False"
        same = before.get(kind, {}).get("status") == text
        since = before[kind].get("lastTransitionTime") if same else None
        merged[kind] = {"type": kind, "status": text, "lastTransitionTime": since or rfc3339(now)}
        if reason:
            merged[kind]["reason"] = reason
    return list(merged.values())


def qos_class(pod: Pod) -> str:
    containers = [*pod.init_containers, *pod.containers]
    needs = [container.resources for container in containers]
    named = [
        quantities
        for need in needs
        if need is not None
        for quantities in (need.limits, need.requests)
        if quantities and any(resource in quantities for resource in _QOS_RESOURCES)
    ]
    if not named:
        return "BestEffort"
    for need in needs:
        limits = {} if need is None else need.limits or {}
        requests = {} if need is None else need.requests or {}
        if any(resource not in limits for resource in _QOS_RESOURCES):
            return "Burstable"
        if any(requests.get(resource, limits[resource]) != limits[resource] for resource in _QOS_RESOURCES):
            return "Burstable"
    return "Guaranteed"


def _initialized(record: ContainerRecord) -> bool:
    last = record.last_begun
    if last is None:
        return False
    ended = last.exit
    return record.container.restartable or (ended is not None and ended.code == 0)


def _running(record: ContainerRecord) -> bool:
    last = record.last_begun
    return last is not None and last.exit is None


def _container(record: ContainerRecord, *, ended: bool, now: float) -> dict[str, Any]:
    runs = [run for run in record.runs() if run.begun]
    last = runs[-1] if runs else None
    status: dict[str, Any] = {
        "name": record.name,
        "image": record.container.image,
        "imageID": record.container.image,
        "restartCount": 0 if last is None else last.number,
        "ready": _running(record),
        "started": _running(record),
        "lastState": {},
    }
    if last is not None:
        status["containerID"] = container_id(last)
    previous = last if last is not None and _waits(record, last, ended=ended) else runs[-2] if len(runs) > 1 else None
    if previous is not None and previous.exit is not None:
        status["lastState"] = {"terminated": _terminated(previous)}
    status["state"] = _state(record, last, ended=ended)
    return status


def container_id(run: Run) -> str:
    """Return an id unique per run: pod UID, container, number of the run."""
    uid, container = run.directory.parent.parent.name, run.directory.parent.name
    return f"egpu://{uid}-{container}-{run.number}"


def _waits(record: ContainerRecord, last: Run, *, ended: bool) -> bool:
    return last.exit is not None and not record.finished and not ended


def _state(record: ContainerRecord, last: Run | None, *, ended: bool) -> dict[str, Any]:
    if last is not None and last.exit is None:
        return {"running": {"startedAt": rfc3339(last.began_at)}}
    if last is not None and not _waits(record, last, ended=ended):
        return {"terminated": _terminated(last)}
    reason, message = record.waiting
    return {"waiting": {"reason": reason, "message": message} if message else {"reason": reason}}


def _terminated(run: Run) -> dict[str, Any]:
    ended = run.exit
    assert ended is not None
    failure = run.start_error
    state: dict[str, Any] = {
        "exitCode": ended.code,
        "reason": "StartError" if failure else "Completed" if ended.code == 0 else "Error",
        "startedAt": rfc3339(run.began_at),
        "finishedAt": rfc3339(ended.finished_at),
        "containerID": container_id(run),
    }
    if failure:
        state["message"] = failure
    if ended.signal:
        state["signal"] = ended.signal
    return state
