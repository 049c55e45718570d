"""The resize subresource of pods: cpu and memory may change in place, nothing else, and the QoS class stays."""

from egpu.embedded.apiserver import podspec
from egpu.embedded.apiserver.objects import Json, as_object, at, copy, objects_at
from egpu.embedded.apiserver.pods import qos_class
from egpu.embedded.apiserver.status import Cause, forbidden_field, invalid

_RESIZABLE = ("cpu", "memory")


def validate(old: Json, new: Json) -> list[Cause]:
    """What is wrong with a resized pod."""
    before, after = as_object(old.get("spec")), as_object(new.get("spec"))
    causes = podspec.validate(after)
    if qos_class(after) != qos_class(before):
        message = "Pod QOS Class may not change as a result of resizing"
        return [*causes, invalid("spec", qos_class(before), message)]
    if _fixed(before) != _fixed(after):
        causes.append(forbidden_field("spec", "only cpu and memory resources are mutable"))
    return causes


def _fixed(spec: Json) -> Json:
    """A spec without what may be resized."""
    rest = copy(spec)
    for kind in ("containers", "initContainers"):
        for container in objects_at(rest, kind):
            for amounts in ("limits", "requests"):
                held = as_object(at(container, "resources", amounts))
                for name in _RESIZABLE:
                    held.pop(name, None)
            container["resources"] = {k: v for k, v in as_object(container.get("resources")).items() if v}
    return rest
