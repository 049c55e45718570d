"""What the API server knows about pods: defaults, validation, the few mutable fields, graceful deletion."""

import re
from typing import Any

from egpu.api.quantities import canonical_quantity, parse_quantity
from egpu.embedded.apiserver.names import label_problem, label_problem_or_none, qualified_name_problem
from egpu.embedded.apiserver.objects import Json, as_list, as_object, at, copy, metadata, name_of, now, objects_at
from egpu.embedded.apiserver.status import Cause, duplicate, forbidden_field, invalid, required, unsupported
from egpu.errors import InvalidQuantity

CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")
DEFAULT_GRACE_SECONDS = 30
_ENV_NAME = re.compile(r"^[ -<>-~]+$")
_OPTIONAL_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_NATIVE = frozenset({"cpu", "memory", "storage", "ephemeral-storage", "pods"})


def is_extended(resource: str) -> bool:
    """Whether a resource is counted in whole units: neither a native one nor in the kubernetes.io domain."""
    if "/" not in resource:
        return False
    domain = resource.partition("/")[0]
    return not (domain == "kubernetes.io" or domain.endswith(".kubernetes.io"))


def set_defaults(pod: Json) -> None:
    """Fill in what the real server fills in, in place. Quantities become canonical."""
    tree = as_object(pod.get("spec"))
    if not tree:
        return
    for key, value in (
        ("restartPolicy", "Always"),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
        ("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS),
        ("serviceAccountName", tree.get("serviceAccount") or "default"),
        ("enableServiceLinks", True),
        ("preemptionPolicy", "PreemptLowerPriority"),
        ("priority", 0),
    ):
        tree.setdefault(key, value)
    tree.setdefault("serviceAccount", tree["serviceAccountName"])
    tree.setdefault("securityContext", {})
    for kind in CONTAINER_LISTS:
        for container in objects_at(tree, kind):
            _default_container(container)
    for volume in objects_at(tree, "volumes"):
        if volume.keys() <= {"name"}:
            volume["emptyDir"] = {}
        _default_volume(volume)
    status = as_object(pod.setdefault("status", {}))
    status.setdefault("phase", "Pending")
    status["qosClass"] = qos_class(tree)


def _default_container(container: Json) -> None:
    image = str(container.get("image") or "")
    untagged = ":" not in image.rpartition("/")[2] and "@" not in image
    container.setdefault("imagePullPolicy", "Always" if untagged or image.endswith(":latest") else "IfNotPresent")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("resources", {})
    for port in objects_at(container, "ports"):
        port.setdefault("protocol", "TCP")
    for variable in objects_at(container, "env"):
        if (reference := at(variable, "valueFrom", "fieldRef")) is not None:
            as_object(reference).setdefault("apiVersion", "v1")
    resources = as_object(container["resources"])
    for amounts in ("limits", "requests"):
        for name, value in as_object(resources.get(amounts)).items():
            resources[amounts][name] = canonical(value)
    limits = as_object(resources.get("limits"))
    if limits:
        requests = as_object(resources.setdefault("requests", {}))
        for name, value in limits.items():
            requests.setdefault(name, value)


def canonical(value: Any) -> Any:
    """The canonical spelling of a quantity; anything else unchanged."""
    try:
        return canonical_quantity(value)
    except InvalidQuantity:
        return value  # validation reports it by its field


def _default_volume(volume: Json) -> None:
    for source in ("configMap", "secret", "downwardAPI", "projected"):
        if isinstance(volume.get(source), dict):
            as_object(volume[source]).setdefault("defaultMode", 0o644)
    if isinstance(volume.get("hostPath"), dict):
        as_object(volume["hostPath"]).setdefault("type", "")


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
    """Guaranteed, Burstable or BestEffort, by cpu and memory alone."""
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
    """Everything wrong with a new pod."""
    tree = as_object(pod.get("spec"))
    causes: list[Cause] = []
    if not as_list(tree.get("containers")):
        causes.append(required("spec.containers"))
    volumes = {str(volume.get("name")) for volume in objects_at(tree, "volumes")}
    names: set[str] = set()
    for kind in CONTAINER_LISTS:
        for index, container in enumerate(objects_at(tree, kind)):
            causes += _validate_container(container, f"spec.{kind}[{index}]", names, volumes)
    for index, volume in enumerate(objects_at(tree, "volumes")):
        causes += _name_causes(volume, f"spec.volumes[{index}].name")
    causes += _choice(tree, "spec.restartPolicy", ["Always", "OnFailure", "Never"])
    causes += _choice(tree, "spec.dnsPolicy", ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"])
    grace = tree.get("terminationGracePeriodSeconds")
    if isinstance(grace, int) and grace < 0:
        causes.append(invalid("spec.terminationGracePeriodSeconds", grace, "must be greater than or equal to 0"))
    return causes


def _choice(tree: Json, field: str, choices: list[str]) -> list[Cause]:
    value = tree.get(field.rpartition(".")[2])
    return [] if value is None or value in choices else [unsupported(field, value, sorted(choices))]


def _name_causes(item: Json, field: str) -> list[Cause]:
    name = str(item.get("name") or "")
    if not name:
        return [required(field)]
    return label_problem(field, name)


def _validate_container(container: Json, path: str, names: set[str], volumes: set[str]) -> list[Cause]:
    causes = _name_causes(container, f"{path}.name")
    name = str(container.get("name") or "")
    if name and name in names:
        causes.append(duplicate(f"{path}.name", name))
    names.add(name)
    if not container.get("image"):
        causes.append(required(f"{path}.image"))
    causes += _choice(container, f"{path}.imagePullPolicy", ["Always", "IfNotPresent", "Never"])
    for index, variable in enumerate(objects_at(container, "env")):
        variable_name = str(variable.get("name") or "")
        where = f"{path}.env[{index}].name"
        if not variable_name:
            causes.append(required(where))
        elif not _ENV_NAME.match(variable_name):
            causes.append(
                invalid(where, variable_name, "a valid environment variable name is printable ASCII without =")
            )
    for index, mount in enumerate(objects_at(container, "volumeMounts")):
        if mount.get("name") not in volumes:
            causes.append(Cause("FieldValueNotFound", f"{path}.volumeMounts[{index}].name",
                                f'Not found: "{mount.get("name")}"'))  # fmt: skip
        if not mount.get("mountPath"):
            causes.append(required(f"{path}.volumeMounts[{index}].mountPath"))
    return causes + _validate_resources(as_object(container.get("resources")), f"{path}.resources")


def _validate_resources(resources: Json, path: str) -> list[Cause]:
    causes: list[Cause] = []
    limits, requests = as_object(resources.get("limits")), as_object(resources.get("requests"))
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name, value in amounts.items():
            causes += validate_amount(name, value, f"{path}.{kind}[{name}]", f"{path}.{kind}")
    if causes:
        return causes
    for name, value in requests.items():
        field = f"{path}.requests"
        if name not in limits:
            if is_extended(name):
                causes.append(required(f"{path}.limits", "Limit must be set for non overcommitable resources"))
        elif is_extended(name) and parse_quantity(value) != parse_quantity(limits[name]):
            causes.append(invalid(field, value, f"must be equal to {name} limit of {limits[name]}"))
        elif parse_quantity(value) > parse_quantity(limits[name]):
            causes.append(invalid(field, value, f"must be less than or equal to {name} limit of {limits[name]}"))
    return causes


def validate_amount(name: str, value: Any, field: str, owner: str) -> list[Cause]:
    """What is wrong with one entry of a resource list."""
    if (problem := qualified_name_problem(name)) is not None:
        return [invalid(owner, name, problem)]
    if "/" not in name and name not in _NATIVE and not name.startswith("hugepages-"):
        return [invalid(owner, name, "must be a standard resource type or fully qualified")]
    try:
        amount = parse_quantity(value)
    except InvalidQuantity as error:
        return [invalid(field, value, error.reason)]
    if amount < 0:
        return [invalid(field, value, "must be greater than or equal to 0")]
    if is_extended(name) and amount.denominator != 1:
        return [invalid(field, value, "must be an integer")]
    return []


def validate_update(old: Json, new: Json) -> list[Cause]:
    """Only images, activeDeadlineSeconds, terminationGracePeriodSeconds, added tolerations and lifted scheduling
    gates may change."""
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
                "pod updates may not change fields other than `spec.containers[*].image`, "
                "`spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, "
                "`spec.terminationGracePeriodSeconds`, `spec.tolerations` (only additions) and "
                f"`spec.schedulingGates` (only removals); changed: {', '.join(changed_fields)}",
            )
        )
    return causes


def _align(mine: Json, theirs: Json, field: str) -> None:
    mine.pop(field, None)
    if field in theirs:
        mine[field] = theirs[field]


def grace_seconds(pod: Json, asked: int | None) -> int:
    """Seconds a deleted pod may take to end: none when it never reached a node or has ended already."""
    if not at(pod, "spec", "nodeName") or at(pod, "status", "phase") in ("Succeeded", "Failed"):
        return 0
    if asked is not None:
        return max(asked, 0)
    configured = at(pod, "spec", "terminationGracePeriodSeconds")
    return configured if isinstance(configured, int) else DEFAULT_GRACE_SECONDS


def bind(pod: Json, binding: Json) -> Json:
    """The pod as a Binding makes it: on a node, with the Binding's annotations merged in."""
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
    """What is wrong with a Binding for the pod of that name."""
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
