"""Features that kubectl users expect and the simulated cluster lacks. Discovery names them, so that kubectl asks for
them and prints this server's explanation."""

from egpu_base.errors import RequestRefused
from egpu_sim.cluster.apiserver.calls import Call
from egpu_sim.cluster.apiserver.kinds.resources import Resource
from egpu_sim.cluster.apiserver.status import refused

_SPDY = "use kubectl 1.31 or later, which speaks WebSockets"
_SUBRESOURCES = {
    "exec": ("exec by SPDY", _SPDY),
    "attach": ("attach by SPDY", _SPDY),
    "portforward": (
        "port-forward by SPDY",
        f"{_SPDY}. A pod's ports are already ports of 127.0.0.1",
    ),
    "ephemeralcontainers": (
        "debugging by an ephemeral container",
        "kubectl exec -it {name} -- sh runs a shell of this machine inside the pod's slice",
    ),
}
"""Names, and advice."""

_KINDS = (
    ("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, "pvc"),
    ("", "v1", "persistentvolumes", "PersistentVolume", False, "pv"),
    ("", "v1", "replicationcontrollers", "ReplicationController", True, "rc"),
    ("apps", "v1", "controllerrevisions", "ControllerRevision", True, ""),
    ("batch", "v1", "cronjobs", "CronJob", True, "cj"),
    ("autoscaling", "v1", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True, "hpa"),
    ("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True, "hpa"),
    ("networking.k8s.io", "v1", "ingresses", "Ingress", True, "ing"),
    ("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, "netpol"),
    ("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, "sc"),
)

_INSTEAD = {
    "CronJob": "kubectl create job makes one Job",
    "HorizontalPodAutoscaler": "nothing scales by itself; kubectl scale sets the number of pods",
}


def resources() -> list[Resource]:
    """Return the kinds of which every request is refused, by name."""
    return [
        Resource(group, version, plural, kind, namespaced, "", kind.lower(), tuple(filter(None, [short])),
                 verbs=("create", "get", "list", "patch", "delete"),
                 model=(f"{group.partition('.')[0] or 'core'}_{version}", kind))
        for group, version, plural, kind, namespaced, short in _KINDS
    ]  # fmt: skip


def check_kind(call: Call) -> None:
    """Raise RequestRefused for a kind that has only a name here."""
    resource = call.resource
    if any(resource.plural == plural and resource.group == group for group, _, plural, *_ in _KINDS):
        raise not_here(resource.kind, _INSTEAD.get(resource.kind, ""))


def of_subresource(call: Call) -> RequestRefused:
    """Return the refusal of a subresource that has only a name here, or of the way in which it was requested."""
    what, instead = _SUBRESOURCES[call.subresource]
    return not_here(what, instead.format(name=call.name))


def not_here(what: str, instead: str = "") -> RequestRefused:
    """Return 405 with details: kubectl reads the details of some refusals without checking for them."""
    message = f"{what} is not in the simulated cluster" + (f": {instead}" if instead else "")
    return refused(405, "MethodNotAllowed", message, details={"name": "simulated cluster"})
