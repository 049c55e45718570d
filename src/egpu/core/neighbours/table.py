"""The table of neighbours. An entry reads the labels, annotations and fields that the neighbour documents for its pods,
and the object that it keeps for a group."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, NamedTuple

from egpu.core.neighbours import sizes
from egpu.core.neighbours.sizes import Verdict
from egpu_base.api.kubernetes import Pod
from egpu_base.api.wire import Resource

Body = Mapping[str, Any]

_POD_GROUP: Final = "scheduling.x-k8s.io/pod-group"
_VOLCANO: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_LWS: Final = f"{sizes.LWS}/name"
_JOBSET: Final = "jobset.sigs.k8s.io/jobset-name"
_TRAINING: Final = f"{sizes.TRAINING}/job-name"
_RAY: Final = "ray.io/cluster"
_MARKS: Final = frozenset({_POD_GROUP, *_VOLCANO, _LWS, _JOBSET, _TRAINING, _RAY})
"""Labels and annotations of which a pod of a group has one, if no field of its spec names the group."""
_LONGEST_NAME: Final = 63
"""A gang's name is the value of a label."""
_HASH: Final = 8


class Named(NamedTuple):
    """What a pod says of its group: the object, and which of the object's groups (`part`)."""

    object: str
    part: str = ""


@dataclass(frozen=True)
class Neighbour:
    """A kind of group. `versions` are tried in turn. `named` reads a pod; `judge` reads the object, and the pod."""

    name: str
    """The first part of the names of its gangs."""
    kind: str
    group: str
    versions: tuple[str, ...]
    plural: str
    named: Callable[[Pod], Named | None]
    judge: Callable[[Body, Pod, Named], Verdict]
    explicit: bool = False
    """The object exists for nothing but gangs: its pods are made after it, and wait without it."""
    on_wish: bool = False
    """Only pods that ask for a gang get one, so the object is not read for others."""

    @property
    def field(self) -> str:
        """The place in a pod that names the group, as it is told to users."""
        return f"{self.kind}.{self.group}"

    def resources(self) -> list[Resource]:
        """Return where the object may be, newest version first."""
        return [Resource(self.group, version, self.plural, namespaced=True) for version in self.versions]


class Group(NamedTuple):
    """A pod's group."""

    neighbour: Neighbour
    named: Named

    @property
    def gang(self) -> str:
        """The name of the group's gang. A long name ends in a hash."""
        name = ".".join(part for part in (self.neighbour.name, *self.named) if part)
        if len(name) <= _LONGEST_NAME:
            return name
        return f"{name[: _LONGEST_NAME - _HASH - 1].rstrip('-._')}-{sha256(name.encode()).hexdigest()[:_HASH]}"

    def __str__(self) -> str:
        return f"{self.neighbour.kind} {self.named.object}"


def group_of(pod: Pod) -> Group | None:
    """Return the group that the pod names, or None. The first entry of the table counts: a PodGroup made for a job
    says more than the job."""
    spec, labels = pod.spec, pod.metadata.labels
    marked = (labels and not _MARKS.isdisjoint(labels)) or not _MARKS.isdisjoint(pod.annotations)
    if not (marked or spec.scheduling_group or spec.workload_ref):
        return None  # most pods, and every change of each comes here
    for neighbour in NEIGHBOURS:
        named = neighbour.named(pod)
        if named is not None:
            return Group(neighbour, named)
    return None


def _by_label(*keys: str) -> Callable[[Pod], Named | None]:
    def named(pod: Pod) -> Named | None:
        labels = pod.metadata.labels or {}
        return next((Named(labels[key]) for key in keys if labels.get(key)), None)

    return named


def _by_annotation(*keys: str) -> Callable[[Pod], Named | None]:
    return lambda pod: next((Named(pod.annotations[key]) for key in keys if pod.annotations.get(key)), None)


def _native(pod: Pod) -> Named | None:
    name = (pod.spec.scheduling_group or {}).get("podGroupName")
    return Named(name) if isinstance(name, str) and name else None


def _workload(pod: Pod) -> Named | None:
    """Read Kubernetes 1.35's reference, which names the group inside a Workload."""
    found = pod.spec.workload_ref or {}
    name, group, replica = (str(found.get(key) or "") for key in ("name", "podGroup", "podGroupReplicaKey"))
    return Named(name, "-".join(part for part in (group, replica) if part)) if name and group else None


def _leader_worker_set(pod: Pod) -> Named | None:
    labels = pod.metadata.labels or {}
    name, index = labels.get(_LWS), labels.get(f"{sizes.LWS}/group-index")
    return Named(name, index) if name and index else None


def _job_of(operator: str) -> Callable[[Pod], Named | None]:
    def named(pod: Pod) -> Named | None:
        labels = pod.metadata.labels or {}
        name = labels.get(_TRAINING)
        return Named(name) if name and labels.get(f"{sizes.TRAINING}/operator-name") == operator else None

    return named


def _training(kind: str, *, version: str = "v1", operator: str = "") -> Neighbour:
    lower = kind.lower()
    operator = operator or f"{lower}-controller"
    return Neighbour(lower, kind, "kubeflow.org", (version,), f"{lower}s", _job_of(operator), sizes.training_job)


NEIGHBOURS: Final = (
    Neighbour(
        "podgroup",
        "PodGroup",
        "scheduling.k8s.io",
        ("v1beta1", "v1alpha2"),
        "podgroups",
        _native,
        sizes.native_group,
        explicit=True,
    ),
    Neighbour(
        "workload",
        "Workload",
        "scheduling.k8s.io",
        ("v1alpha1",),
        "workloads",
        _workload,
        sizes.workload,
        explicit=True,
    ),
    Neighbour(
        "pod-group",
        "PodGroup",
        "scheduling.x-k8s.io",
        ("v1alpha1",),
        "podgroups",
        _by_label(_POD_GROUP),
        sizes.min_member,
        explicit=True,
    ),
    Neighbour(
        "volcano",
        "PodGroup",
        "scheduling.volcano.sh",
        ("v1beta1",),
        "podgroups",
        _by_annotation(*_VOLCANO),
        sizes.min_member,
        explicit=True,
    ),
    Neighbour(
        "lws",
        "LeaderWorkerSet",
        "leaderworkerset.x-k8s.io",
        ("v1",),
        "leaderworkersets",
        _leader_worker_set,
        sizes.leader_worker_set,
    ),
    Neighbour(
        "jobset",
        "JobSet",
        "jobset.x-k8s.io",
        ("v1alpha2",),
        "jobsets",
        _by_label(_JOBSET),
        sizes.job_set,
        on_wish=True,
    ),
    _training("PyTorchJob"),
    _training("TFJob"),
    _training("XGBoostJob"),
    _training("PaddleJob"),
    _training("JAXJob"),
    _training("MPIJob", version="v2beta1", operator="mpi-operator"),
    Neighbour("ray", "RayCluster", "ray.io", ("v1",), "rayclusters", _by_label(_RAY), sizes.ray_cluster),
)
"""PodGroups stand before the jobs for which they are made."""
