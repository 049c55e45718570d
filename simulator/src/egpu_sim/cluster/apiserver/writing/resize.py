"""The resize subresource of pods: cpu and memory may change in place, nothing else, and the QoS class stays."""

from egpu_sim.cluster.apiserver.kinds import podspec
from egpu_sim.cluster.apiserver.kinds.pods import qos_class
from egpu_sim.cluster.apiserver.status import Cause, forbidden_field, invalid
from egpu_sim.cluster.trees import Json, as_object, at, copy, objects_at

_RESIZABLE = ("cpu", "memory")


def validate(old: Json, new: Json) -> list[Cause]:
    before, after = as_object(old.get("spec")), as_object(new.get("spec"))
    causes = podspec.validate(after)
    if qos_class(after) != qos_class(before):
        message = "Pod QOS Class may not change as a result of resizing"
        return [*causes, invalid("spec", qos_class(before), message)]
    if _fixed(before) != _fixed(after):
        causes.append(forbidden_field("spec", "only cpu and memory resources are mutable"))
    return causes


def _fixed(spec: Json) -> Json:
    """Return a spec without the fields that a resize may change."""
    rest = copy(spec)
    for kind in ("containers", "initContainers"):
        for container in objects_at(rest, kind):
            for amounts in ("limits", "requests"):
                held = as_object(at(container, "resources", amounts))
                for name in _RESIZABLE:
                    held.pop(name, None)
            container["resources"] = {k: v for k, v in as_object(container.get("resources")).items() if v}
    return rest
