"""OpenAPI definitions of the built-in kinds, made from lightkube's models at start.

The models give names, types and the text of `kubectl explain`. This module adds the element type of maps, and the merge
keys of strategic merge patch (facts of the Kubernetes API, `x-kubernetes-patch-*` of its OpenAPI).
"""

import functools
import importlib
import re
from typing import Any, get_args

import msgspec

from egpu_sim.cluster.trees import Json

PREFIX = "io.k8s.api."
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_MODULE_PREFIXES = {
    "meta_v1": _META,
    "apiextensions_v1": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.",
    "runtime": "io.k8s.apimachinery.pkg.runtime.",
}

_SCALARS: dict[str, Json] = {
    "str": {"type": "string"},
    "int": {"type": "integer", "format": "int64"},
    "float": {"type": "number", "format": "double"},
    "bool": {"type": "boolean"},
    "Any": {},
    "dict": {"type": "object", "additionalProperties": {"type": "string"}},
    "IntOrString": {"type": "string", "format": "int-or-string"},
    "Quantity": {"type": "string"},
    "Time": {"type": "string", "format": "date-time"},
    "MicroTime": {"type": "string", "format": "date-time"},
    "FieldsV1": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    "RawExtension": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    "JSON": {},
    "JSONSchemaPropsOrBool": {},
    "JSONSchemaPropsOrArray": {},
    "JSONSchemaPropsOrStringArray": {},
}

QUANTITY_NAME = "io.k8s.apimachinery.pkg.api.resource.Quantity"
QUANTITY: Json = {"$ref": f"#/definitions/{QUANTITY_NAME}"}

_QUANTITY_MAPS = frozenset(
    {"limits", "requests", "capacity", "allocatable", "hard", "used", "overhead", "allocatedResources", "default",
     "defaultRequest", "max", "min", "maxLimitRequestRatio", "consumedCapacity"}
)  # fmt: skip
_STRUCT_MAPS = {
    ("Device", "attributes"): "DeviceAttribute",
    ("Device", "capacity"): "DeviceCapacity",
    ("CounterSet", "counters"): "Counter",
    ("DeviceCounterConsumption", "counters"): "Counter",
}
"""Maps from names to structs of the same module."""
_UNSERVED = frozenset(
    {("Device", "nodeAllocatableResources"), ("DeviceCounterConsumption", "compatibilityGroups"),
     ("DeviceRequestAllocationResult", "skipNodeOperations"), ("DeviceSubRequest", "derivedAttributes"),
     ("ExactDeviceRequest", "derivedAttributes"), ("ResourceSliceSpec", "partitionTypeAttribute"),
     ("ResourceSliceSpec", "skipNodeOperations")}
)  # fmt: skip
"""Fields of releases after 1.36."""
_SCHEMA_MAPS = frozenset({"properties", "patternProperties", "definitions", "dependencies"})

_MERGE_KEYS: dict[str, dict[str, str]] = {
    "PodSpec": {
        "containers": "name", "initContainers": "name", "ephemeralContainers": "name", "volumes": "name",
        "imagePullSecrets": "name", "hostAliases": "ip", "topologySpreadConstraints": "topologyKey",
        "schedulingGates": "name", "resourceClaims": "name",
    },
    "Container": {"env": "name", "ports": "containerPort", "volumeMounts": "mountPath", "volumeDevices": "devicePath"},
    "EphemeralContainer": {
        "env": "name", "ports": "containerPort", "volumeMounts": "mountPath", "volumeDevices": "devicePath",
    },
    "PodStatus": {"conditions": "type", "podIPs": "ip", "hostIPs": "ip", "resourceClaimStatuses": "name"},
    "ObjectMeta": {"ownerReferences": "uid", "finalizers": ""},
    "NodeSpec": {"podCIDRs": ""},
    "NodeStatus": {"addresses": "type", "conditions": "type"},
    "NamespaceStatus": {"conditions": "type"},
    "ServiceSpec": {"ports": "port"},
    "ServiceStatus": {"conditions": "type"},
    "ServiceAccount": {"secrets": "name"},
    "DeploymentStatus": {"conditions": "type"},
    "ReplicaSetStatus": {"conditions": "type"},
    "DaemonSetStatus": {"conditions": "type"},
    "StatefulSetStatus": {"conditions": "type"},
    "JobStatus": {"conditions": "type"},
    "PodDisruptionBudgetStatus": {"conditions": "type"},
    "MutatingWebhookConfiguration": {"webhooks": "name"},
    "ValidatingWebhookConfiguration": {"webhooks": "name"},
    "MutatingWebhook": {"matchConditions": "name"},
    "ValidatingWebhook": {"matchConditions": "name"},
    "ResourceClaimStatus": {"reservedFor": "uid"},
}  # fmt: skip
_APPLY_KEYS: dict[tuple[str, str], list[str]] = {
    ("Container", "ports"): ["containerPort", "protocol"],
    ("EphemeralContainer", "ports"): ["containerPort", "protocol"],
    ("ServiceSpec", "ports"): ["port", "protocol"],
    ("PodSpec", "topologySpreadConstraints"): ["topologyKey", "whenUnsatisfiable"],
}
"""Lists whose keys differ between server-side apply and strategic merge patch."""
_APPLY_ONLY: dict[tuple[str, str], list[str]] = {
    ("ResourceClaimStatus", "devices"): ["driver", "device", "pool", "shareID"],
    ("ResourceRequirements", "claims"): ["name"],
}
"""Lists that strategic merge patch replaces."""
_KEY_DEFAULTS = {("ContainerPort", "protocol"): "TCP", ("ServicePort", "protocol"): "TCP"}
_ATOMIC_MODELS = frozenset(
    {"LabelSelector", "NodeSelector", "NodeSelectorTerm", "SecretKeySelector", "ConfigMapKeySelector", "OwnerReference",
     "ObjectFieldSelector", "ResourceFieldSelector", "LocalObjectReference", "ObjectReference", "SecretReference",
     "TypedLocalObjectReference", "TopologySelectorTerm"}
)  # fmt: skip
"""Structs that are one field for server-side apply."""
_ATOMIC_MAPS = frozenset({("ServiceSpec", "selector"), ("PodSpec", "nodeSelector")})
_RETAIN_KEYS = {("PodSpec", "volumes"), ("PodSpec", "resourceClaims")}


def definition_name(module: str, name: str) -> str:
    """Return the definition's name: `core_v1`, `Pod` → `io.k8s.api.core.v1.Pod`."""
    if module in _MODULE_PREFIXES:
        return _MODULE_PREFIXES[module] + name
    group, version = module.rsplit("_", 1)
    return f"{PREFIX}{group}.{version}.{name}"


@functools.cache
def _model(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"lightkube.models.{module}"), name, None)


def definitions_for(roots: list[tuple[str, str]]) -> dict[str, Json]:
    """Return definitions (OpenAPI v2 `definitions` with `$ref`s) of models and of all that they mention, by full
    name."""
    found: dict[str, Json] = {
        QUANTITY_NAME: {
            "type": "string",
            "description": "Quantity is a fixed-point number with an optional suffix (m, k, M, G, Ki, Mi, Gi, …).",
        }
    }
    pending = list(roots)
    while pending:
        module, name = pending.pop()
        full = definition_name(module, name)
        if full not in found:
            found[full], mentioned = _definition(module, name)
            pending += mentioned
    return found


@functools.cache
def _definition(module: str, name: str) -> tuple[Json, tuple[tuple[str, str], ...]]:
    """Return a model's definition, which nobody changes, and the models that it mentions."""
    model, pending = _model(module, name), list[tuple[str, str]]()
    summary, descriptions = _read_docstring(model.__doc__ or "")
    properties: Json = {}
    required: list[str] = []
    wire_names = dict(zip(model.__struct_fields__, model.__struct_encode_fields__, strict=True))
    for attribute, hint in model.__annotations__.items():
        wire = str(wire_names.get(attribute) or attribute)
        if (name, wire) in _UNSERVED:
            continue
        optional, inner = _strip("Optional", str(hint))
        schema = _property(module, wire, inner, pending)
        if (struct := _STRUCT_MAPS.get((name, wire))) is not None:
            schema = {"type": "object", "additionalProperties": _property(module, "", struct, pending)}
        if text := descriptions.get(attribute):
            schema = {"description": text, **schema}
        _add_merge_key(name, wire, schema)
        properties[wire] = schema
        if not optional:
            required.append(wire)
    definition: Json = {"type": "object", "description": summary, "properties": properties}
    if required:
        definition["required"] = required
    if name in _ATOMIC_MODELS:
        definition["x-kubernetes-map-type"] = "atomic"
    return definition, tuple(pending)


def _add_merge_key(model: str, field: str, schema: Json) -> None:
    """Add a list's merge strategy: for strategic merge patch, and for server-side apply."""
    if (model, field) in _ATOMIC_MAPS:
        schema["x-kubernetes-map-type"] = "atomic"
    if (default := _KEY_DEFAULTS.get((model, field))) is not None:
        schema["default"] = default
    if (keys := _APPLY_ONLY.get((model, field))) is not None:
        schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys}
    key = _MERGE_KEYS.get(model, {}).get(field)
    if key is None:
        return
    schema["x-kubernetes-list-type"] = "map" if key else "set"
    if key:
        schema["x-kubernetes-list-map-keys"] = _APPLY_KEYS.get((model, field), [key])
    schema["x-kubernetes-patch-strategy"] = "merge,retainKeys" if (model, field) in _RETAIN_KEYS else "merge"
    if key:
        schema["x-kubernetes-patch-merge-key"] = key


def _strip(wrapper: str, hint: str) -> tuple[bool, str]:
    if hint.startswith(f"{wrapper}[") and hint.endswith("]"):
        return True, hint[len(wrapper) + 1 : -1]
    return False, hint


def _property(module: str, field: str, hint: str, pending: list[tuple[str, str]]) -> Json:
    is_list, inner = _strip("List", hint)
    if is_list:
        return {"type": "array", "items": _property(module, "", inner, pending)}
    if inner == "dict" and field in _QUANTITY_MAPS:
        return {"type": "object", "additionalProperties": dict(QUANTITY)}
    if inner == "dict" and field in _SCHEMA_MAPS:
        return {"type": "object", "additionalProperties": {"type": "object"}}
    home, _, short = inner.rpartition(".")
    if short == "Quantity":
        return dict(QUANTITY)
    if short in _SCALARS:
        return dict(_SCALARS[short])
    target = home or module
    model = _model(target, short)
    if not isinstance(model, type) or not issubclass(model, msgspec.Struct):
        # an alias such as `Union[...]`: any of several scalars, which the wire does not tell apart
        return {} if get_args(model) else {"type": "object"}
    pending.append((target, short))
    return {"$ref": f"#/definitions/{definition_name(target, short)}"}


_ENTRY = re.compile(r"^\* \*\*(\w+)\*\* ``[^`]*`` - ?(.*)$")


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    summary, _, parameters = text.partition("**parameters**")
    descriptions: dict[str, str] = {}
    current = ""
    for line in map(str.strip, parameters.splitlines()):
        if match := _ENTRY.match(line):
            current = match[1]
            descriptions[current] = match[2]
        elif current and line:
            descriptions[current] += f" {line}"
    return " ".join(summary.split()), descriptions
