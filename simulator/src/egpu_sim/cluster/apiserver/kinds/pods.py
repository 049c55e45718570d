"""Rules of pods: defaults, validation, the few mutable fields, graceful deletion."""

from egpu_sim.cluster.apiserver.kinds import podspec
from egpu_sim.cluster.apiserver.kinds.names import label_problem_or_none
from egpu_sim.cluster.apiserver.status import Cause, forbidden_field, invalid, required, unsupported
from egpu_sim.cluster.trees import (
    Json,
    as_list,
    as_object,
    at,
    copy,
    metadata,
    name_of,
    now,
    objects_at,
)

_OPTIONAL_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def set_defaults(pod: Json) -> None:
    """Fill in the real server's defaults, in place. Quantities become canonical."""
    tree = as_object(pod.get("spec"))
    if not tree:
        return
    podspec.set_defaults(tree)
    podspec.request_the_limits(tree)
    tree.setdefault("enableServiceLinks", True)
    tree.setdefault("serviceAccountName", tree.get("serviceAccount") or "default")
    tree.setdefault("serviceAccount", tree["serviceAccountName"])
    status = as_object(pod.setdefault("status", {}))
    status.setdefault("phase", "Pending")
    status["qosClass"] = qos_class(tree)


def admit_tolerations(pod: Json) -> None:
    """Let a pod stay five minutes on a node that is not ready, as the DefaultTolerationSeconds plugin does."""
    spec = as_object(pod.get("spec"))
    tolerations = as_list(spec.setdefault("tolerations", []))
    present = {as_object(item).get("key") for item in tolerations}
    if any(not as_object(item).get("key") and as_object(item).get("operator") == "Exists" for item in tolerations):
        return
    for taint in _OPTIONAL_TAINTS:
        if taint not in present:
            tolerations.append({"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})


def qos_class(spec: Json) -> str:
    """Return Guaranteed, Burstable or BestEffort, by cpu and memory alone."""
    containers = objects_at(spec, "initContainers") + objects_at(spec, "containers")
    any_set, guaranteed = False, True
    for container in containers:
        limits = as_object(at(container, "resources", "limits"))
        requests = as_object(at(container, "resources", "requests"))
        for name in ("cpu", "memory"):
            any_set |= name in limits or name in requests
            guaranteed &= name in limits and requests.get(name, limits[name]) == limits[name]
    return "BestEffort" if not any_set else "Guaranteed" if guaranteed else "Burstable"


def validate(pod: Json) -> list[Cause]:
    return podspec.validate(as_object(pod.get("spec")))


def validate_update(old: Json, new: Json) -> list[Cause]:
    """Return errors of a changed pod. Only images, activeDeadlineSeconds, terminationGracePeriodSeconds, added
    tolerations and lifted scheduling gates may change."""
    causes = validate(new)
    mine, theirs = as_object(copy(new).get("spec")), as_object(copy(old).get("spec"))
    for kind in ("containers", "initContainers"):
        if len(as_list(mine.get(kind))) != len(as_list(theirs.get(kind))):
            return [*causes, forbidden_field(f"spec.{kind}", "pod updates may not add or remove containers")]
        for changed, original in zip(objects_at(mine, kind), objects_at(theirs, kind), strict=True):
            changed["image"] = original.get("image")
    for field in ("activeDeadlineSeconds", "terminationGracePeriodSeconds"):
        _align(mine, theirs, field)
    kept = [item for item in as_list(mine.get("tolerations")) if item in as_list(theirs.get("tolerations"))]
    if kept == as_list(theirs.get("tolerations")):
        _align(mine, theirs, "tolerations")
    gates = as_list(theirs.get("schedulingGates"))
    if all(gate in gates for gate in as_list(mine.get("schedulingGates"))):
        _align(mine, theirs, "schedulingGates")
    if mine != theirs:
        changed_fields = sorted(key for key in {*mine, *theirs} if mine.get(key) != theirs.get(key))
        causes.append(
            forbidden_field(
                "spec",
                "pod updates may not change fields other than `spec.containers[*].image`,"
                "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
                "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
                "previously negative)\n"
                f"changed: {', '.join(changed_fields)}",
            )
        )
    return causes


def _align(mine: Json, theirs: Json, field: str) -> None:
    mine.pop(field, None)
    if field in theirs:
        mine[field] = theirs[field]


def grace_seconds(pod: Json, asked: int | None) -> int:
    """Return the seconds that a deleted pod may take to end: none if it never reached a node or has ended."""
    if not at(pod, "spec", "nodeName") or at(pod, "status", "phase") in ("Succeeded", "Failed"):
        return 0
    if asked is not None:
        return max(asked, 0)
    configured = at(pod, "spec", "terminationGracePeriodSeconds")
    return configured if isinstance(configured, int) else podspec.DEFAULT_GRACE_SECONDS


def bind(pod: Json, binding: Json) -> Json:
    """Return the pod with a Binding: on a node, with the Binding's annotations merged in."""
    bound = copy(pod)
    as_object(bound["spec"])["nodeName"] = at(binding, "target", "name")
    if extra := as_object(at(binding, "metadata", "annotations")):
        meta = metadata(bound)
        meta["annotations"] = {**as_object(meta.get("annotations")), **extra}
    status = as_object(bound.setdefault("status", {}))
    conditions = [c for c in objects_at(status, "conditions") if c.get("type") != "PodScheduled"]
    status["conditions"] = [
        *conditions,
        {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now()},
    ]
    return bound


def validate_binding(binding: Json, pod: str) -> list[Cause]:
    causes: list[Cause] = []
    if name_of(binding) not in ("", pod):
        causes.append(invalid("metadata.name", name_of(binding), f"must match the pod {pod}"))
    if at(binding, "target", "kind") not in (None, "", "Node"):
        causes.append(unsupported("target.kind", at(binding, "target", "kind"), ["Node", "<empty>"]))
    node = at(binding, "target", "name")
    if not node:
        causes.append(required("target.name"))
    elif label_problem_or_none(str(node).split(".")[0]):
        causes.append(invalid("target.name", node, "is not a node name"))
    return causes
