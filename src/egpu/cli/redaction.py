"""What a report may have: listed fields of objects, and texts without what looks like a secret.

Fields that are not listed are left out, so a new field of Kubernetes is no risk. Messages are texts of many authors.
Those of kubelet and of users' containers may quote a command, and are kept only if they are about a slice.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

from egpu.api import names
from egpu.api.vocabularies import BY_RESOURCE

Json = dict[str, Any]

REMOVED: Final = "[removed]"
MAX_TEXT: Final = 4096
"""Characters of one text, or of one line of a log."""
MAX_ITEMS: Final = 512
"""Items of one list."""

_TELLING_NAME: Final = (
    r"\b[\w.-]{0,64}(?:token|secret|passw(?:or)?d|passphrase|pwd|credential|authorization|cookie|session"
    r"|api[_-]?key|access[_-]?key|private[_-]?key|signing[_-]?key|client-key|certificate-data|authority-data)"
    r"[\w.-]{0,64}"
)
_PATTERNS: Final = tuple(
    (re.compile(pattern, flags), replacement)
    for pattern, flags, replacement in (
        (r"\b(Bearer|Basic|Negotiate)\s+[^\s\"',;]+", re.IGNORECASE, rf"\1 {REMOVED}"),
        (r"\beyJ[\w-]{8,}(?:\.[\w-]+)*", 0, REMOVED),
        (r"(\b\w{1,16}://)[^\s/@:]{1,256}(?::[^\s/@]{0,1024})?@", 0, rf"\1{REMOVED}@"),
        (rf"(--?(?=\w){_TELLING_NAME})[ =]\S+", re.IGNORECASE, rf"\1 {REMOVED}"),
        (
            rf"(\\?[\"']?{_TELLING_NAME}\\?[\"']?\s*[:=]\s*)"
            r"(?:\\?\"(?:[^\"\\]|\\[^\"])*\\?\"|'[^']*'|(?:Bearer|Basic) \S+|[^\s,;}&]+)",
            re.IGNORECASE,
            rf"\1{REMOVED}",
        ),
        (r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b|\bgh[a-z]_\w{20,}|\bglpat-[\w-]{16,}|\bxox[a-z]-[\w-]{10,}", 0, REMOVED),
        (
            r"(?<![\w+/-])(?!GPU-|MIG-)(?=[\w+/-]*[A-Z])(?=[\w+/-]*[a-z])(?=[\w+/-]*\d)[\w+-][\w+/-]{31,}={0,2}",
            0,
            REMOVED,
        ),
    )
)
"""In this order: headers, JWTs, users of URLs, options, fields, well-known keys, and long mixed words."""

_PEM: Final = re.compile(r"-----BEGIN [^-\n]{1,64}-----.*?(?:-----END [^-\n]{1,64}-----|\Z)", re.DOTALL)
_TELLING: Final = re.compile(_TELLING_NAME, re.IGNORECASE)

_ABOUT_SLICES: Final = re.compile(
    r"elasticgpu\.io|PreStartContainer|CDI device|Allocate failed|device plugin|pod [\w./-]+, container [\w-]+:"
)


def scrubbed(text: str) -> str:
    """Return a text without what looks like a secret, cut to `MAX_TEXT` characters."""
    return without_secrets(text[:MAX_TEXT])[:MAX_TEXT]


def without_secrets(text: str) -> str:
    """Return a text of any length without what looks like a secret. Lines are cut to `MAX_TEXT` characters, because the
    time for one grows with the square of its length."""
    return "\n".join(_line(one[:MAX_TEXT]) for one in _PEM.sub(REMOVED, text).split("\n"))


def _line(text: str) -> str:
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


class _About:
    """A message that is kept only if it is about a slice."""


ABOUT: Final = _About()
WHOLE: Final = object()
"""A value whose fields are all ours."""

_OURS_WRITTEN: Final = frozenset({
    names.ALLOCATION, names.RESERVATION, names.DEMAND, names.ISOLATION, names.INJECTION, names.POOL_LINK, names.GANG,
    names.GANG_SIZE, names.GANG_TIMEOUT, names.LINKS, names.CARD_SELECTOR, names.CARD_PREFERENCE, names.PRELOAD,
    names.SHRINK_WITHIN, names.GPU_CORE_LIMIT, names.VCUDA_CORE_LIMIT,
})  # fmt: skip
_OUR_PREFIXES: Final = (names.CARDS_PREFIX, *names.CLAIM_PREFIXES, *names.RESIZE_PREFIXES, *names.RESIZED_PREFIXES)
_LABELS: Final = (
    f"{names.GROUP}/", "app.kubernetes.io/", "kubernetes.io/arch", "kubernetes.io/os", "node-role.kubernetes.io/",
    "topology.kubernetes.io/", "nvidia.com/",
)  # fmt: skip

_CONDITIONS: Final = [{"type": WHOLE, "status": WHOLE, "reason": WHOLE, "message": WHOLE, "lastTransitionTime": WHOLE}]
_METADATA: Final[Json] = {
    "name": WHOLE, "namespace": WHOLE, "uid": WHOLE, "generation": WHOLE, "creationTimestamp": WHOLE,
    "deletionTimestamp": WHOLE, "finalizers": WHOLE, "ownerReferences": [{"kind": WHOLE, "name": WHOLE}],
}  # fmt: skip
_STATE: Final[Json] = {
    "running": {"startedAt": WHOLE},
    "waiting": {"reason": WHOLE, "message": ABOUT},
    "terminated": {"exitCode": WHOLE, "signal": WHOLE, "reason": WHOLE, "startedAt": WHOLE, "finishedAt": WHOLE},
}
_CONTAINERS: Final = [
    {"name": WHOLE, "image": WHOLE, "restartPolicy": WHOLE, "resources": {"limits": WHOLE, "requests": WHOLE}}
]
_STATUSES: Final = [{
    "name": WHOLE, "ready": WHOLE, "started": WHOLE, "restartCount": WHOLE, "imageID": WHOLE,
    "state": _STATE, "lastState": _STATE,
}]  # fmt: skip
_POD: Final[Json] = {
    "spec": {
        "nodeName": WHOLE, "schedulerName": WHOLE, "priority": WHOLE, "runtimeClassName": WHOLE, "restartPolicy": WHOLE,
        "schedulingGates": WHOLE, "containers": _CONTAINERS, "initContainers": _CONTAINERS,
        "resourceClaims": [{"name": WHOLE, "resourceClaimName": WHOLE, "resourceClaimTemplateName": WHOLE}],
    },
    "status": {
        "phase": WHOLE, "reason": WHOLE, "message": ABOUT, "startTime": WHOLE, "nominatedNodeName": WHOLE,
        "conditions": _CONDITIONS, "containerStatuses": _STATUSES, "initContainerStatuses": _STATUSES,
        "resourceClaimStatuses": [{"name": WHOLE, "resourceClaimName": WHOLE}],
    },
}  # fmt: skip
_NODE: Final[Json] = {
    "spec": {"unschedulable": WHOLE, "taints": [{"key": WHOLE, "effect": WHOLE}]},
    "status": {
        "conditions": _CONDITIONS,
        "nodeInfo": {
            "kubeletVersion": WHOLE, "containerRuntimeVersion": WHOLE, "kernelVersion": WHOLE, "osImage": WHOLE,
            "architecture": WHOLE,
        },
    },
}  # fmt: skip
_OURS: Final[Json] = {
    "spec": WHOLE, "status": WHOLE, "provisioner": WHOLE, "parameters": WHOLE, "reclaimPolicy": WHOLE,
    "eGPUBindingMode": WHOLE, "egpuBindingMode": WHOLE,
}  # fmt: skip
_EVENT: Final[Json] = {
    "type": WHOLE, "reason": WHOLE, "count": WHOLE, "firstTimestamp": WHOLE, "lastTimestamp": WHOLE, "eventTime": WHOLE,
    "reportingComponent": WHOLE, "source": {"component": WHOLE},
    "involvedObject": {"kind": WHOLE, "namespace": WHOLE, "name": WHOLE, "uid": WHOLE},
}  # fmt: skip
_DEVICE_REQUESTS: Final = [{
    "name": WHOLE,
    "exactly": {"deviceClassName": WHOLE, "count": WHOLE, "allocationMode": WHOLE, "adminAccess": WHOLE,
                "selectors": WHOLE, "tolerations": WHOLE, "capacity": WHOLE},
}]  # fmt: skip
_CLAIM: Final[Json] = {
    "spec": {"devices": {"requests": _DEVICE_REQUESTS, "constraints": WHOLE}},
    "status": {
        "reservedFor": WHOLE,
        "allocation": {
            "allocationTimestamp": WHOLE, "nodeSelector": WHOLE,
            "devices": {"results": [{
                "request": WHOLE, "driver": WHOLE, "pool": WHOLE, "device": WHOLE, "shareID": WHOLE,
                "consumedCapacity": WHOLE, "tolerations": WHOLE, "adminAccess": WHOLE,
            }]},
        },
    },
}  # fmt: skip
"""Without opaque configuration, whose meaning only its driver knows; ours is kept."""
_BY_KIND: Final[Mapping[str, Json]] = {
    "pods": _POD, "nodes": _NODE, "events": _EVENT, "resourceclaims": _CLAIM, "resourceslices": {"spec": WHOLE},
    "deviceclasses": {"spec": {"selectors": WHOLE}},
}  # fmt: skip


def _is_mapping(value: Any) -> TypeGuard[Json]:
    return isinstance(value, dict)


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def mapping(value: Any, *path: str) -> Json:
    """Return the mapping at a path of a JSON value; an empty one if there is none."""
    for key in path:
        value = value.get(key) if _is_mapping(value) else None
    return value if _is_mapping(value) else {}


def listed(value: Any, *path: str) -> Sequence[Json]:
    """Return the mappings of the list at a path of a JSON value; none if there is no list."""
    found = mapping(value, *path[:-1]).get(path[-1])
    return [mapping(one) for one in found] if _is_list(found) else []


def redacted(plural: str, value: Json) -> Json:
    """Return the part of an object that a report may have. `plural`: pods, nodes, events, or a kind of ours."""
    kept: Json = {"metadata": _kept(mapping(value, "metadata"), _METADATA) | _annotated(value)}
    kept |= _kept(value, _BY_KIND.get(plural, _OURS))
    if plural in {"resourceclaims", "deviceclasses"}:
        kept["configuration"] = _own_configuration(value)
    if plural == "nodes":
        amounts = {one: _amounts(mapping(value, "status", one)) for one in ("capacity", "allocatable")}
        kept["status"] = mapping(kept, "status") | amounts
    if plural == "events":
        message = str(value.get("message", ""))
        kept["message"] = scrubbed(message) if _is_trusted(value) else _about(message)
    return kept


def _own_configuration(value: Json) -> list[Any]:
    """Return the configuration for our driver, of a claim, of its allocation, or of a class."""
    paths = ("spec",), ("spec", "devices"), ("status", "allocation", "devices")
    found = [mapping(one, "opaque") for path in paths for one in listed(value, *path, "config")]
    return [clean(one.get("parameters")) for one in found if one.get("driver") == names.DRIVER][:MAX_ITEMS]


def _annotated(value: Json) -> Json:
    """Return annotations and labels that our components write or check, and labels that describe a node."""
    annotations = mapping(value, "metadata", "annotations")
    labels = mapping(value, "metadata", "labels")
    return {
        "annotations": {
            key: scrubbed(str(text))
            for key, text in annotations.items()
            if key in _OURS_WRITTEN or key.startswith(_OUR_PREFIXES)
        },
        "labels": {key: scrubbed(str(text)) for key, text in labels.items() if key.startswith(_LABELS)},
    }


def _amounts(amounts: Json) -> Json:
    """Return the amounts of GPUs, and of what each pod takes."""
    ours = (f"{names.GROUP}/", "nvidia.com/")
    return {
        key: value
        for key, value in amounts.items()
        if key in BY_RESOURCE or key in {"cpu", "memory", "pods"} or key.startswith(ours)
    }


def _is_trusted(event: Json) -> bool:
    """Return whether an event comes from a component that quotes no commands."""
    component = str(event.get("reportingComponent") or mapping(event, "source").get("component") or "")
    return component.startswith("elastic-gpu-") or component == "default-scheduler"


def _about(text: str) -> str:
    if not text:
        return ""
    return scrubbed(text) if _ABOUT_SLICES.search(text) else f"{REMOVED}: it may quote a command"


def _kept(value: Any, wanted: Any) -> Any:
    """Return the wanted part of a value: listed fields of a mapping, each item of a list, or a whole value of ours."""
    if _is_list(wanted):
        return [_kept(one, wanted[0]) for one in value[:MAX_ITEMS]] if _is_list(value) else []
    if _is_mapping(wanted):
        there = mapping(value)
        return {key: _kept(there[key], of) for key, of in wanted.items() if key in there}
    return _about(str(value)) if wanted is ABOUT else clean(value)


def clean(value: Any) -> Any:
    """Return a JSON value without what looks like a secret, and without the texts of telling names."""
    if isinstance(value, str):
        return scrubbed(value)
    if _is_mapping(value):
        return {
            scrubbed(key): REMOVED if isinstance(one, str) and _TELLING.fullmatch(key) else clean(one)
            for key, one in value.items()
        }
    if _is_list(value):
        return [clean(one) for one in value[:MAX_ITEMS]]
    return value
