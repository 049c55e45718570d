"""How many pods of a neighbour's group must be placed at once, by the object that describes the group.

Each function is total: objects come from other projects, in versions that we have never seen. A field of another type
counts as absent. What it means that a field is absent is the neighbour's own default."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeGuard

from egpu.api import names
from egpu_base.api.kubernetes import Pod

LWS: Final = "leaderworkerset.sigs.k8s.io"
TRAINING: Final = "training.kubeflow.org"
_RAY_GANG: Final = "ray.io/gang-scheduling-enabled"
_EXCLUSIVE: Final = ("alpha.jobset.sigs.k8s.io/exclusive-topology",)
_LWS_EXCLUSIVE: Final = (f"{LWS}/exclusive-topology", f"{LWS}/subgroup-exclusive-topology")

Body = Mapping[str, Any]
_NOTHING: Final[Body] = {}


class Verdict(NamedTuple):
    """The number of pods that are placed at once, or 0 and why the group is not a gang. `impossible`: a pod that asks
    for a gang cannot get one, because the group's pods wait for each other."""

    size: int
    reason: str = ""
    impossible: bool = False


class _Named(Protocol):
    @property
    def part(self) -> str: ...


def asked_for(pod: Pod) -> bool:
    """Return whether the pod's author asks that the pod's group be a gang."""
    return pod.annotations.get(names.GANG_FROM) == names.GANG_FROM_OWNER


def native_group(body: Body, pod: Pod, named: _Named) -> Verdict:
    return _policy(_at(body, "spec", "schedulingPolicy"))


def workload(body: Body, pod: Pod, named: _Named) -> Verdict:
    wanted = str((pod.spec.workload_ref or {}).get("podGroup"))
    groups = [one for one in _each(_at(body, "spec").get("podGroups")) if one.get("name") == wanted]
    return _policy(_at(groups[0], "policy")) if groups else Verdict(0, f"has no group {wanted}")


def _policy(policy: Body) -> Verdict:
    count = _count(_at(policy, "gang").get("minCount"), 0)
    return Verdict(count) if count else Verdict(0, "has the policy `basic`, so its pods are placed one by one")


def min_member(body: Body, pod: Pod, named: _Named) -> Verdict:
    """Read a PodGroup of scheduler-plugins or Volcano. Without minMember, both place one pod at a time."""
    return Verdict(max(1, _count(_at(body, "spec").get("minMember"), 1)))


def leader_worker_set(body: Body, pod: Pod, named: _Named) -> Verdict:
    """Read one group: a leader and its workers. It is a gang if it lives and dies as a whole (`restartPolicy`) and all
    of its pods are made at once."""
    template, annotations = _at(body, "spec", "leaderWorkerTemplate"), _at(body, "metadata", "annotations")
    if any(key in annotations for key in _LWS_EXCLUSIVE):
        return Verdict(0, "has an exclusive topology, so its workers are made after the leader is placed", True)
    if _at(body, "spec").get("startupPolicy", "LeaderCreated") != "LeaderCreated":
        return Verdict(0, "has the startupPolicy LeaderReady, so its workers are made after the leader is ready", True)
    written = pod.annotations.get(f"{LWS}/size", "")
    size = int(written) if written.isascii() and written.isdigit() and len(written) < 7 else 0
    size = size or _count(template.get("size"), 1)
    policy = template.get("restartPolicy", "RecreateGroupOnPodRestart")
    if str(policy).startswith("RecreateGroup") or asked_for(pod):
        return Verdict(size)
    return Verdict(0, f"has the restartPolicy {policy}, so each pod lives for itself")


def job_set(body: Body, pod: Pod, named: _Named) -> Verdict:
    """Read all Jobs of a JobSet. Its pods are often independent, and no field says otherwise."""
    spec = _at(body, "spec")
    jobs = list(_each(spec.get("replicatedJobs")))
    templates = [_at(job, "template", "metadata", "annotations") for job in jobs]
    if any(key in one for key in _EXCLUSIVE for one in (_at(body, "metadata", "annotations"), *templates)):
        return Verdict(0, "has an exclusive topology, so its pods are made after the first of each Job is placed", True)
    if _at(spec, "startupPolicy").get("startupPolicyOrder") == "InOrder" or any(job.get("dependsOn") for job in jobs):
        return Verdict(0, "starts its Jobs in order, so they cannot be placed at once", True)
    if not asked_for(pod):
        return _unasked("a JobSet has no field for it")
    return Verdict(sum(_count(job.get("replicas"), 1) * _parallel(_at(job, "template", "spec")) for job in jobs))


def _parallel(spec: Body) -> int:
    parallel = _count(spec.get("parallelism"), 1)
    return min(parallel, _count(spec.get("completions"), parallel))


def training_job(body: Body, pod: Pod, named: _Named) -> Verdict:
    """Read a job of Kubeflow's training operator or MPI operator."""
    spec = _at(body, "spec")
    replicas = next((_at(spec, key) for key in spec if key.endswith("ReplicaSpecs")), _NOTHING)
    late = spec.get("launcherCreationPolicy") == "WaitForWorkersReady"
    total = sum(
        _count(_at(replicas, role).get("replicas"), 1) for role in replicas if not (late and role == "Launcher")
    )
    least = _count(_at(spec, "runPolicy", "schedulingPolicy").get("minAvailable"), 0)
    if least:
        return Verdict(min(least, total) if total else least)
    if not asked_for(pod):
        return _unasked("its runPolicy.schedulingPolicy has no minAvailable")
    return Verdict(total)


def ray_cluster(body: Body, pod: Pod, named: _Named) -> Verdict:
    """Read a Ray cluster: its head, and the workers that it starts with."""
    spec = _at(body, "spec")
    if str(_at(body, "metadata", "labels").get(_RAY_GANG)).lower() != "true" and not asked_for(pod):
        return _unasked(f"it has no label {_RAY_GANG}: true")
    least = "minReplicas" if spec.get("enableInTreeAutoscaling") is True else "replicas"
    workers = [one for one in _each(spec.get("workerGroupSpecs")) if one.get("suspend") is not True]
    return Verdict(1 + sum(_ray_replicas(one, least) * _count(one.get("numOfHosts"), 1) for one in workers))


def _ray_replicas(group: Body, key: str) -> int:
    return _count(group.get(key), _count(group.get("minReplicas"), 0))


def _unasked(why: str) -> Verdict:
    return Verdict(0, f"does not ask to be placed all at once: {why}")


def _at(body: Any, *path: str) -> Body:
    """Return the object at the path; an empty one where there is none."""
    for part in path:
        body = body.get(part) if _is_object(body) else None
    return body if _is_object(body) else _NOTHING


def _each(found: Any) -> Iterator[Body]:
    if _is_list(found):
        yield from (_at(one) for one in found)


def _is_object(found: Any) -> TypeGuard[Body]:
    return isinstance(found, Mapping)


def _is_list(found: Any) -> TypeGuard[list[Any]]:
    return isinstance(found, list)


def _count(found: Any, default: int) -> int:
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else default
