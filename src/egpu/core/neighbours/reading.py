"""A neighbour's group as the annotations of a gang."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from egpu.api import names
from egpu.core.neighbours.sizes import asked_for
from egpu.core.neighbours.table import Group, group_of
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import InvalidDemand


class Asked(NamedTuple):
    """A pod's group whose object must be read."""

    group: Group
    required: bool
    """The pod's author asks that it be a gang: then it is one, or the pod is refused."""


def to_read(pod: Pod) -> Asked | None:
    """Return the group of the pod that may be a gang; None if the pod has none, or names a gang itself.

    Raises InvalidDemand if the pod asks for the gang of an owner, and has none that can be read."""
    wish = pod.annotations.get(names.GANG_FROM)
    if wish is not None and wish != names.GANG_FROM_OWNER:
        raise InvalidDemand(_FIELD, f"is {wish!r}; the only value is {names.GANG_FROM_OWNER}")
    if names.GANG in pod.annotations:
        return None
    group = group_of(pod)
    if group is None:
        if wish is not None:
            reason = f"the pod has no owner whose groups can be read; write {names.GANG} and {names.GANG_SIZE}"
            raise InvalidDemand(_FIELD, reason)
        return None
    if group.neighbour.on_wish and not asked_for(pod):
        return None
    return Asked(group, asked_for(pod))


def gang_annotations(asked: Asked, body: Mapping[str, Any], pod: Pod) -> dict[str, str]:
    """Return the annotations of the pod's gang; empty if the group is not a gang.

    A gang that was read may have more members than its size, and is not undone unless the pod has a time limit: the
    neighbour decides which of its pods end. Raises InvalidDemand if the pod asks for a gang that cannot be, or for one
    that is too large."""
    group = asked.group
    verdict = group.neighbour.judge(body, pod, group.named)
    if verdict.impossible and asked.required:
        raise InvalidDemand(_FIELD, f"the {group} {verdict.reason}; remove the annotation")
    if verdict.size > names.MAX_GANG_SIZE:
        reason = f"the {group} places {verdict.size} pods at once; the most is {names.MAX_GANG_SIZE}"
        raise InvalidDemand(group.neighbour.field, reason)
    if verdict.size < 2:
        return {}
    return {
        names.GANG: group.gang,
        names.GANG_SIZE: f"{verdict.size}{names.GANG_OR_MORE}",
        names.GANG_TIMEOUT: pod.annotations.get(names.GANG_TIMEOUT, names.GANG_NEVER),
    }


def missing(asked: Asked) -> InvalidDemand | None:
    """Return why a pod whose object does not exist is refused; None for one that is no gang without it."""
    if not asked.required and not asked.group.neighbour.explicit:
        return None
    return InvalidDemand(asked.group.neighbour.field, f"the {asked.group} does not exist; create it before its pods")


def unreadable(asked: Asked, why: str) -> str:
    """Return a warning for a pod whose object cannot be read. Raises InvalidDemand if the pod asks for a gang."""
    if asked.required:
        raise InvalidDemand(_FIELD, f"the {asked.group} cannot be read: {why}; remove the annotation")
    return f"the pods of the {asked.group} are placed one by one: {why}"


def too_large(asked: Asked, most_kib: int) -> str:
    """Return a warning for a pod whose object is too large to be read. Raises InvalidDemand if it must be a gang."""
    why = f"it has more than {most_kib} KiB"
    if asked.group.neighbour.explicit:
        raise InvalidDemand(asked.group.neighbour.field, f"the {asked.group} cannot be read: {why}; make it smaller")
    return unreadable(asked, why)


def with_annotations(pod: Pod, annotations: Mapping[str, str] | None) -> Pod:
    """Return the pod with these annotations, such as those of its gang."""
    if not annotations:
        return pod
    return replace(pod, metadata=replace(pod.metadata, annotations={**pod.annotations, **annotations}))


_FIELD = f"metadata.annotations[{names.GANG_FROM}]"
