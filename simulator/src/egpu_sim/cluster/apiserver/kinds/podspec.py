"""Defaults and validation of the spec of a pod or of a template.

`path` is the path of the spec (`spec`, `spec.template.spec`), so that an error names the field that was sent.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from egpu_base.api.quantities import canonical_quantity, parse_quantity
from egpu_base.errors import InvalidQuantity
from egpu_sim.cluster.apiserver.kinds import podclaims, podspreads
from egpu_sim.cluster.apiserver.kinds.names import is_subdomain, label_problem, qualified_name_problem
from egpu_sim.cluster.apiserver.status import Cause, duplicate, forbidden_field, invalid, required, unsupported
from egpu_sim.cluster.trees import Json, as_list, as_object, at, objects_at

CONTAINER_LISTS: Final = ("initContainers", "containers", "ephemeralContainers")
DEFAULT_GRACE_SECONDS: Final = 30
_ENV_NAME: Final = re.compile(r"^[ -<>-~]+$")
_PORT_NAME: Final = re.compile(r"^(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?$")
_NATIVE: Final = frozenset({"cpu", "memory", "storage", "ephemeral-storage", "pods"})
_EFFECTS: Final = ["NoSchedule", "PreferNoSchedule", "NoExecute"]


def is_extended(resource: str) -> bool:
    """Return whether a resource is counted in whole units: neither native nor in the kubernetes.io domain."""
    if "/" not in resource:
        return False
    domain = resource.partition("/")[0]
    return not (domain == "kubernetes.io" or domain.endswith(".kubernetes.io"))


def set_defaults(spec: Json) -> None:
    """Fill in the real server's defaults, in place. Quantities become canonical."""
    for key, value in (
        ("restartPolicy", "Always"),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
        ("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS),
    ):
        spec.setdefault(key, value)
    spec.setdefault("securityContext", {})
    for kind in CONTAINER_LISTS:
        for container in objects_at(spec, kind):
            _default_container(container)
    for volume in objects_at(spec, "volumes"):
        if volume.keys() <= {"name"}:
            volume["emptyDir"] = {}
        _default_volume(volume)


def _default_container(container: Json) -> None:
    image = str(container.get("image") or "")
    untagged = ":" not in image.rpartition("/")[2] and "@" not in image
    container.setdefault("imagePullPolicy", "Always" if untagged or image.endswith(":latest") else "IfNotPresent")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    resources = as_object(container.setdefault("resources", {}))
    for port in objects_at(container, "ports"):
        port.setdefault("protocol", "TCP")
    for variable in objects_at(container, "env"):
        if (reference := at(variable, "valueFrom", "fieldRef")) is not None:
            as_object(reference).setdefault("apiVersion", "v1")
    for amounts in ("limits", "requests"):
        for name, value in as_object(resources.get(amounts)).items():
            resources[amounts][name] = canonical(value)


def request_the_limits(spec: Json) -> None:
    """Set a container's missing requests to its limits: for pods, not for templates."""
    for kind in CONTAINER_LISTS:
        for container in objects_at(spec, kind):
            resources = as_object(container.get("resources"))
            if limits := as_object(resources.get("limits")):
                requests = as_object(resources.setdefault("requests", {}))
                for name, value in limits.items():
                    requests.setdefault(name, value)


def canonical(value: Any) -> Any:
    """Return the canonical spelling of a quantity; anything else unchanged."""
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


def validate(spec: Json, path: str = "spec") -> list[Cause]:
    causes = list(_volumes(objects_at(spec, "volumes"), f"{path}.volumes"))
    if not as_list(spec.get("containers")):
        causes.append(required(f"{path}.containers"))
    volumes = {str(volume.get("name")) for volume in objects_at(spec, "volumes")}
    names: set[str] = set()
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        for index, container in enumerate(objects_at(spec, kind)):
            causes += _validate_container(container, f"{path}.{kind}[{index}]", names, volumes)
    causes += choice(spec, f"{path}.restartPolicy", ["Always", "OnFailure", "Never"])
    causes += choice(spec, f"{path}.dnsPolicy", ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"])
    for key, value in as_object(spec.get("nodeSelector")).items():
        if (problem := qualified_name_problem(key)) is not None:
            causes.append(invalid(f"{path}.nodeSelector", key, problem))
        elif len(str(value)) > 63:
            causes.append(invalid(f"{path}.nodeSelector", value, "must be no more than 63 characters"))
    for field in ("serviceAccountName", "nodeName"):
        if spec.get(field) and not is_subdomain(str(spec[field])):
            causes.append(invalid(f"{path}.{field}", spec[field], "must be a lowercase RFC 1123 subdomain"))
    deadline = spec.get("activeDeadlineSeconds")
    if isinstance(deadline, int) and not 1 <= deadline < 1 << 31:
        causes.append(invalid(f"{path}.activeDeadlineSeconds", deadline, "must be between 1 and 2147483647, inclusive"))
    grace = spec.get("terminationGracePeriodSeconds")
    if isinstance(grace, int) and grace < 0:
        causes.append(invalid(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than or equal to 0"))
    for index, toleration in enumerate(objects_at(spec, "tolerations")):
        causes += _toleration(toleration, f"{path}.tolerations[{index}]")
    return [*causes, *podclaims.validate(spec, path), *podspreads.validate(spec, path)]


def choice(tree: Json, field: str, choices: list[str]) -> list[Cause]:
    """Return the error for a value outside of an enumeration; choices are in Kubernetes' order."""
    value = tree.get(field.rpartition(".")[2])
    return [] if value is None or value in choices else [unsupported(field, value, choices)]


def _name_causes(item: Json, field: str) -> list[Cause]:
    name = str(item.get("name") or "")
    return label_problem(field, name) if name else [required(field)]


def _volumes(volumes: list[Json], path: str) -> Iterator[Cause]:
    seen: set[str] = set()
    for index, volume in enumerate(volumes):
        where, name = f"{path}[{index}]", str(volume.get("name") or "")
        yield from _name_causes(volume, f"{where}.name")
        if name in seen:
            yield duplicate(f"{where}.name", name)
        seen.add(name)
        sources = [key for key in volume if key != "name"]
        if not sources:
            yield required(where, "must specify a volume type")
        for extra in sources[1:]:
            yield forbidden_field(f"{where}.{extra}", "may not specify more than 1 volume type")


def _toleration(toleration: Json, path: str) -> Iterator[Cause]:
    key, operator = toleration.get("key"), toleration.get("operator") or "Equal"
    if key and (problem := qualified_name_problem(str(key))) is not None:
        yield invalid(f"{path}.key", key, problem)
    if not key and operator != "Exists":
        message = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield invalid(f"{path}.operator", operator, message)
    if operator not in ("Equal", "Exists"):
        yield unsupported(f"{path}.operator", operator, ["Equal", "Exists"])
    elif operator == "Exists" and toleration.get("value"):
        yield invalid(f"{path}.operator", toleration["value"], "value must be empty when `operator` is 'Exists'")
    if toleration.get("effect") and toleration["effect"] not in _EFFECTS:
        yield unsupported(f"{path}.effect", toleration["effect"], _EFFECTS)
    if toleration.get("tolerationSeconds") is not None and toleration.get("effect") != "NoExecute":
        message = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield invalid(f"{path}.effect", toleration.get("effect") or "", message)


def _validate_container(container: Json, path: str, names: set[str], volumes: set[str]) -> list[Cause]:
    causes = _name_causes(container, f"{path}.name")
    name = str(container.get("name") or "")
    if name and name in names:
        causes.append(duplicate(f"{path}.name", name))
    names.add(name)
    if not container.get("image"):
        causes.append(required(f"{path}.image"))
    elif str(container["image"]).strip() != container["image"]:
        causes.append(invalid(f"{path}.image", container["image"], "must not have leading or trailing whitespace"))
    causes += choice(container, f"{path}.imagePullPolicy", ["Always", "IfNotPresent", "Never"])
    causes += _ports(objects_at(container, "ports"), f"{path}.ports")
    causes += _environment(objects_at(container, "env"), f"{path}.env")
    causes += _mounts(objects_at(container, "volumeMounts"), f"{path}.volumeMounts", volumes)
    return causes + _validate_resources(as_object(container.get("resources")), f"{path}.resources")


def _ports(ports: list[Json], path: str) -> Iterator[Cause]:
    seen: set[str] = set()
    for index, port in enumerate(ports):
        where, name = f"{path}[{index}]", str(port.get("name") or "")
        if name and not _PORT_NAME.match(name):
            message = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-), at most 15 of them"
            yield invalid(f"{where}.name", name, message)
        if name and name in seen:
            yield duplicate(f"{where}.name", name)
        seen.add(name)
        number, host = port.get("containerPort"), port.get("hostPort")
        if not number:
            yield required(f"{where}.containerPort")
        for field, value in (("containerPort", number), ("hostPort", host)):
            if isinstance(value, int) and value and not 1 <= value <= 65535:
                yield invalid(f"{where}.{field}", value, "must be between 1 and 65535, inclusive")
        yield from choice(port, f"{where}.protocol", ["SCTP", "TCP", "UDP"])


def _environment(variables: list[Json], path: str) -> Iterator[Cause]:
    for index, variable in enumerate(variables):
        name, where = str(variable.get("name") or ""), f"{path}[{index}]"
        if not name:
            yield required(f"{where}.name")
        elif not _ENV_NAME.match(name):
            message = "a valid environment variable name must consist only of printable ASCII characters other than '='"
            yield invalid(f"{where}.name", name, message)
        source = as_object(variable.get("valueFrom"))
        if source and variable.get("value"):
            yield invalid(f"{where}.valueFrom", "", "may not be specified when `value` is not empty")
        if variable.get("valueFrom") is not None and len(source) != 1:
            choices = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
            several = "may not have more than one field specified at a time"
            message = several if source else f"must specify one of: {choices}"
            yield invalid(f"{where}.valueFrom", "", message)


def _mounts(mounts: list[Json], path: str, volumes: set[str]) -> Iterator[Cause]:
    seen: set[str] = set()
    for index, mount in enumerate(mounts):
        where, target = f"{path}[{index}]", str(mount.get("mountPath") or "")
        if not mount.get("name"):
            yield required(f"{where}.name")
        elif mount["name"] not in volumes:
            yield Cause("FieldValueNotFound", f"{where}.name", f'Not found: "{mount["name"]}"')
        if not target:
            yield required(f"{where}.mountPath")
        elif target in seen:
            yield invalid(f"{where}.mountPath", target, "must be unique")
        seen.add(target)


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
