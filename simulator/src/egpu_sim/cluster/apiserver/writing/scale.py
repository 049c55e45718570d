"""The scale subresource (autoscaling/v1): the number of replicas of any kind that has one, in one shape."""

from egpu_sim.cluster.apiserver.calls import Call
from egpu_sim.cluster.apiserver.kinds.resources import ScalePaths
from egpu_sim.cluster.apiserver.status import invalid, invalid_object
from egpu_sim.cluster.apiserver.storage.store import Stored
from egpu_sim.cluster.trees import Json, as_object, at, copy


def shown(call: Call, item: Stored) -> Json:
    paths, obj = _paths(call), call.resource.served(item)
    meta = as_object(obj.get("metadata"))
    status: Json = {"replicas": at(obj, *paths.status) or 0}
    if paths.selector and (selector := at(obj, *paths.selector)):
        status["selector"] = selector if isinstance(selector, str) else _selector_text(as_object(selector))
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": at(obj, *paths.spec) or 0},
        "status": status,
    }


def scaled(call: Call, obj: Json, scale: Json) -> Json:
    """Return the object with the replicas of a Scale. Raises RequestRefused."""
    replicas = at(scale, "spec", "replicas") or 0
    if not isinstance(replicas, int) or replicas < 0:
        cause = invalid("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid_object("autoscaling", "Scale", call.name, [cause])
    new = copy(obj)
    tree = new
    for key in _paths(call).spec[:-1]:
        tree = as_object(tree.setdefault(key, {}))
    tree[_paths(call).spec[-1]] = replicas
    if version := at(scale, "metadata", "resourceVersion"):
        as_object(new["metadata"])["resourceVersion"] = version
    return new


def _paths(call: Call) -> ScalePaths:
    assert call.resource.scale is not None
    return call.resource.scale


def _selector_text(selector: Json) -> str:
    terms = [f"{key}={value}" for key, value in as_object(selector.get("matchLabels")).items()]
    return ",".join(terms)
