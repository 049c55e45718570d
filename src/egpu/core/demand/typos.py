"""Mistyped names of ours: annotations of a pod, and parameters of a class. Without a refusal they would do nothing."""

from collections.abc import Iterable, Mapping
from typing import Final

from egpu.api import names
from egpu.api.vocabularies import BY_RESOURCE
from egpu.core.demand.classes import own_parameters, shared_parameters
from egpu.core.provisioners import PROVISIONERS, Provisioner
from egpu.core.spelling import did_you_mean, near
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import InvalidDemand

_PREFIXES: Final = (*names.CLAIM_PREFIXES, names.CLAIM_TEMPLATE_PREFIX, *names.RESIZE_PREFIXES)
"""Annotations that an author writes for one container, whose name follows."""
_NAMES: Final = (
    names.GPU_CORE_LIMIT, names.GANG, names.GANG_SIZE, names.GANG_TIMEOUT, names.GANG_FROM, names.LINKS,
    names.CARD_SELECTOR, names.CARD_PREFERENCE, names.PRELOAD, names.SHRINK_WITHIN, names.PARK_REQUEST,
    names.STAY_RESIDENT,
)  # fmt: skip
"""The other annotations of a pod that its author writes."""
_WRITTEN: Final = (names.ALLOCATION, names.CARDS_PREFIX, names.DEMAND, names.RESERVATION, names.REMADE, *names.ANSWERS)
"""Prefixes of annotations that our own components write."""


def mistyped_annotations(pod: Pod) -> Iterable[InvalidDemand]:
    """Yield a problem for each annotation that is like one of ours, and is none."""
    for key in sorted(pod.annotations):
        if not _is_strange(key):
            continue
        containers = [one.name for one in pod.all_containers if key.endswith(one.name)]
        known = [*_NAMES, *(prefix + name for prefix in _PREFIXES for name in containers)]
        own = {_own_part(name): name for name in known}
        if meant := [own[part] for part in near(_own_part(key), own)]:
            reason = f"is not an annotation of Elastic GPU; did you mean {' or '.join(meant)}?"
            yield InvalidDemand(f"metadata.annotations[{key}]", reason)


def _is_strange(key: str) -> bool:
    """Return whether an annotation is in our domain, and is none that we know. Names of resources have their own error
    (`others_problems`)."""
    domain = key.partition("/")[0]
    ours = domain == names.GROUP or domain.endswith(f".{names.GROUP}")
    return ours and key not in BY_RESOURCE and key not in _NAMES and not key.startswith((*_PREFIXES, *_WRITTEN))


def _own_part(key: str) -> str:
    """Return an annotation without our domain, in which all are alike."""
    return key.replace(names.GROUP, "", 1)


def unknown_parameters(parameters: Mapping[str, str], technology: Provisioner) -> Iterable[InvalidDemand]:
    """Yield a problem for each parameter of a class that its technology does not have."""
    known = sorted(shared_parameters() | own_parameters(technology))
    for name in sorted(parameters.keys() - known):
        others = [one.name for one in PROVISIONERS.values() if name in own_parameters(one)]
        reason = f"is a parameter of {' and '.join(others)}, not of {technology.name}; remove it"
        if not others:
            reason = f"does not exist{did_you_mean(name, known)}; {technology.name} has {', '.join(known)}"
        yield InvalidDemand(f"parameters[{name}]", reason)
