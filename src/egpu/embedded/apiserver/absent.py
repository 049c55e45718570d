"""What kubectl users look for by habit, and the embedded cluster does not have: named in discovery, so that kubectl
asks for it and prints our answer in place of a riddle."""

from egpu.embedded.apiserver.calls import Call
from egpu.embedded.apiserver.resources import Resource
from egpu.embedded.apiserver.status import refused
from egpu.errors import RequestRefused

_SPDY = "kubectl has to speak WebSockets, which it does from version 1.31 on"
_SUBRESOURCES = {
    "exec": ("exec by SPDY", _SPDY),
    "attach": ("attach by SPDY", _SPDY),
    "portforward": (
        "port-forward by SPDY",
        f"{_SPDY}. What a pod listens on is at 127.0.0.1, at the same port, already",
    ),
    "ephemeralcontainers": (
        "debugging by an ephemeral container",
        "kubectl exec -it {name} -- sh runs a shell of this machine inside the pod's slice",
    ),
}
"""What it is called, and what to do instead."""

_KINDS = (
    ("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, "pvc"),
    ("", "v1", "persistentvolumes", "PersistentVolume", False, "pv"),
    ("", "v1", "replicationcontrollers", "ReplicationController", True, "rc"),
    ("apps", "v1", "controllerrevisions", "ControllerRevision", True, ""),
    ("batch", "v1", "cronjobs", "CronJob", True, "cj"),
    ("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True, "hpa"),
    ("networking.k8s.io", "v1", "ingresses", "Ingress", True, "ing"),
    ("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, "netpol"),
    ("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, "sc"),
)


def resources() -> list[Resource]:
    """Kinds of which every request is refused, by name."""
    return [
        Resource(group, version, plural, kind, namespaced, "", kind.lower(), tuple(filter(None, [short])),
                 verbs=("create", "get", "list", "patch", "delete"),
                 model=(f"{group.partition('.')[0] or 'core'}_{version}", kind))
        for group, version, plural, kind, namespaced, short in _KINDS
    ]  # fmt: skip


def check_kind(call: Call) -> None:
    """Raises RequestRefused for a kind that is only known by name."""
    resource = call.resource
    if any(resource.plural == plural and resource.group == group for group, _, plural, *_ in _KINDS):
        raise not_here(resource.kind)


def of_subresource(call: Call) -> RequestRefused:
    """The refusal of one that is known by name only, or not in the way in which it was asked for."""
    what, instead = _SUBRESOURCES[call.subresource]
    return not_here(what, instead.format(name=call.name))


def not_here(what: str, instead: str = "") -> RequestRefused:
    """405, with details: kubectl reads those of some refusals without looking whether there are any."""
    message = f"{what} is not in the embedded cluster" + (f": {instead}" if instead else "")
    return refused(405, "MethodNotAllowed", message, details={"name": "embedded cluster"})
