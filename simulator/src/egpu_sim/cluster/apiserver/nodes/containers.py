"""The container of a pod that a request names."""

from collections.abc import Mapping

from egpu_sim.cluster.apiserver.calls import Call
from egpu_sim.cluster.apiserver.status import bad_request
from egpu_sim.cluster.trees import Json, at, objects_at

_LISTS = ("initContainers", "containers")


def container_status(pod: Json, container: str) -> Json:
    """Return a container's status; empty when there is none."""
    lists = ("initContainerStatuses", "containerStatuses")
    found = (s for name in lists for s in objects_at(pod, "status", name) if s.get("name") == container)
    return next(found, Json())


def chosen_container(call: Call, query: Mapping[str, str], pod: Json) -> str:
    """Return the container of a request. Raises RequestRefused for no name among several containers, for a wrong name,
    and for a pod without a node."""
    inits, containers = ([str(c.get("name")) for c in objects_at(pod, "spec", kind)] for kind in _LISTS)
    wanted = query.get("container", "")
    if wanted and wanted not in (*inits, *containers):
        raise bad_request(f"container {wanted} is not valid for pod {call.name}")
    if not wanted and len(containers) != 1:
        choice = f"choose one of: [{' '.join(containers)}]"
        if inits:
            choice += f" or one of the init containers: [{' '.join(inits)}]"
        raise bad_request(f"a container name must be specified for pod {call.name}, {choice}")
    if not at(pod, "spec", "nodeName"):
        raise bad_request(f"pod {call.name} does not have a host assigned")
    return wanted or containers[0]
