"""What a pod asks for, in whichever vocabulary, as one normal demand.

Source of the vocabularies and units: `egpu.api.vocabularies`. Every refusal is an InvalidDemand naming the field as
kubectl users write it, such as `spec.containers[app].resources.limits[docker.com/vcuda-core]`.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerDemand, PodDemand, decode_demand
from egpu.api.kubernetes import Container, Pod
from egpu.api.quantities import Quantity, parse_count
from egpu.api.vocabularies import BY_NAME, Vocabulary
from egpu.core.attributes import parse_selector, preference
from egpu.core.demand.amounts import asked_amounts, count_or_none, normalise, one_vocabulary
from egpu.core.demand.claims import Claims, Classes, claim_class, claim_demand, claim_resources
from egpu.core.demand.counted import COUNTED, as_asked
from egpu.core.links import LEAST
from egpu.core.provisioners import provisioner
from egpu.errors import CorruptData, InvalidDemand, InvalidQuantity

LINKS_FIELD: Final = f"metadata.annotations[{names.LINKS}]"
_SAID: Final = (names.DEMAND, names.VCUDA_CORE_LIMIT, names.LINKS, names.CARD_SELECTOR, names.CARD_PREFERENCE)
"""Annotations that have a say in what each container asks for."""
TEMPLATES_LIMIT: Final = 512
"""Containers, but for what does not matter here, of which it is known what they ask for; with one pod of each."""


def container_field(pod: Pod, container: str) -> str:
    """The path of a container: `spec.containers[app]` or `spec.initContainers[fetch]`."""
    kind = "initContainers" if any(c.name == container for c in pod.init_containers) else "containers"
    return f"spec.{kind}[{container}]"


def init_names(pod: Pod) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the plain init containers, and of the restartable ones (sidecars)."""
    sidecars = tuple(c.name for c in pod.init_containers if c.restart_policy == "Always")
    return tuple(c.name for c in pod.init_containers if c.name not in sidecars), sidecars


def claims_by_container(pod: Pod) -> dict[str, str]:
    """Claims that a pod's annotations name: container → claim of the pod's own namespace.

    Raises InvalidDemand for a container that does not exist, a claim of another namespace, two spellings that disagree,
    and one claim named by two containers (of a pod, one container uses a claim).
    """
    known = {container.name for container in pod.all_containers}
    found: dict[str, str] = {}
    users: dict[str, str] = {}
    for prefix in names.CLAIM_PREFIXES:
        for key, claim in sorted(pod.annotations.items()):
            if not key.startswith(prefix):
                continue
            field, container = f"metadata.annotations[{key}]", key.removeprefix(prefix)
            if container not in known:
                listed = ", ".join(sorted(known))
                raise InvalidDemand(field, f"the pod has no container {container!r}; its containers are {listed}")
            if "/" in claim:
                namespace, _, _ = claim.partition("/")
                raise InvalidDemand(
                    field, f"{claim!r} names a claim of namespace {namespace!r}; a pod can use claims of its own only"
                )
            if not claim:
                raise InvalidDemand(field, "names no claim; write the name of an ElasticGPUClaim of this namespace")
            if found.get(container, claim) != claim:
                raise InvalidDemand(field, f"container {container} already names the claim {found[container]!r}")
            if users.get(claim, container) != container:
                raise InvalidDemand(
                    field, f"the claim {claim!r} is named by container {users[claim]} too; one container can use it"
                )
            found[container], users[claim] = claim, container
    return found


def read_pod(
    pod: Pod,
    claims: Claims,
    classes: Classes,
    *,
    largest_mib: int | None = None,
    vocabularies: Collection[str] | None = None,
) -> tuple[PodDemand, list[InvalidDemand]]:
    """What `pod` asks for, and what is wrong with it: at most one problem for the annotations and one a container.

    `claims` are those of its namespace, by name; `classes` by name. `largest_mib` is the memory of the largest card
    known, or None when none is known yet: more than that is refused. `vocabularies`: the optional ones that are turned
    on; None: as it was when the pod was admitted.
    """
    problems: list[InvalidDemand] = []
    try:
        named = claims_by_container(pod)
    except InvalidDemand as error:
        named = {}
        problems.append(error)
    containers: dict[str, ContainerDemand] = {}
    for container in pod.all_containers:
        try:
            if container.name in named:
                demand = _claimed(pod, container, named[container.name], claims, classes)
            else:
                demand = container_demand(pod, container, vocabularies)
            if demand:
                _check_largest(demand, largest_mib, _memory_field(pod, container, demand))
        except InvalidDemand as error:
            problems.append(error)
            continue
        if demand:
            containers[container.name] = demand
    if names.LINKS in pod.annotations and not problems and not any(one.links for one in containers.values()):
        reason = "no container of the pod asks for several cards by its own resources; remove it"
        problems.append(InvalidDemand(LINKS_FIELD, reason))
    for annotation in (names.CARD_SELECTOR, names.CARD_PREFERENCE):
        if annotation in pod.annotations and not problems and all(one.claim for one in containers.values()):
            reason = "no container of the pod asks for a GPU by its own resources; a claim has a selector of its own"
            problems.append(InvalidDemand(_field(annotation), reason))
    init, sidecars = init_names(pod)
    return PodDemand(
        containers=containers,
        init=tuple(name for name in init if name in containers),
        sidecars=tuple(name for name in sidecars if name in containers),
    ), problems


def container_demand(
    pod: Pod, container: Container, vocabularies: Collection[str] | None = None
) -> ContainerDemand | None:
    """What a container asks for by its own resources, or None. `vocabularies`: as of `read_pod`. Raises
    InvalidDemand."""
    needs = container.resources
    if needs is None:
        return None
    amounts = tuple((name, type(value), value) for one in (needs.limits, needs.requests) for name, value in _pairs(one))
    known = None if vocabularies is None else frozenset(vocabularies)
    said = (container.name, *map(pod.annotations.get, _SAID), len(needs.limits or {}), amounts, known)
    return _demand_of(_Asking(said, pod, container, known))


@dataclasses.dataclass(frozen=True)
class _Asking:
    """`said` is all that a container's demand follows from. Of the pod more is needed only to say what is wrong."""

    said: tuple[object, ...]
    pod: Pod = dataclasses.field(compare=False)
    container: Container = dataclasses.field(compare=False)
    vocabularies: Collection[str] | None = dataclasses.field(compare=False)


@lru_cache(maxsize=TEMPLATES_LIMIT)
def _demand_of(asking: _Asking) -> ContainerDemand | None:
    """Worked out once for all pods of one template."""
    pod, container, vocabularies = asking.pod, asking.container, asking.vocabularies
    path = container_field(pod, container.name) + ".resources"
    asked = asked_amounts(container, path)
    told = _told(pod, container)
    if asked and told is not None:
        asked = as_asked(asked, told)
    if not asked:
        return None
    if vocabularies is None:
        vocabularies = () if told is None else (told.vocabulary,)
    vocabulary = one_vocabulary(asked, f"{path}.limits", vocabularies)
    demand = normalise(
        {resource: (value, f"{path}.limits[{resource}]") for resource, value in asked.items()},
        vocabulary,
        lambda value, field: parse_count(value, field=field) * vocabulary.memory_unit_mib,
        base=ContainerDemand(provisioner=vocabulary.provisioner, vocabulary=vocabulary.name),
    )
    return _selected(pod, _links(pod, _core_limit(pod, demand, vocabulary)))


def _pairs(amounts: Mapping[str, Quantity] | None) -> Iterable[tuple[str, Quantity]]:
    return (amounts or {}).items()


def _told(pod: Pod, container: Container) -> ContainerDemand | None:
    """What the pod's demand annotation says of a container: admission has been here, and its resources are counted."""
    text = pod.annotations.get(names.DEMAND)
    try:
        return decode_demand(text).containers.get(container.name) if text is not None else None
    except CorruptData:
        return None  # admission refuses it: it is not what the pod asks for


def _claimed(pod: Pod, container: Container, name: str, claims: Claims, classes: Classes) -> ContainerDemand:
    field = _claim_field(pod, container)
    claim = claims.get(name)
    if claim is None:
        raise InvalidDemand(field, f"namespace {pod.namespace!r} has no ElasticGPUClaim {name!r}; create it first")
    try:
        demand = claim_demand(claim, claim_class(claim, classes))
    except InvalidDemand as error:
        raise InvalidDemand(field, f"claim {name}: {error}") from error
    path = container_field(pod, container.name) + ".resources"
    wanted = claim_resources(demand)
    known = COUNTED if _told(pod, container) is not None else ()
    for resource, value in asked_amounts(container, path).items():
        if resource in known:
            continue
        # The webhook's own additions come back when the pod is validated; anything else asks a second time.
        if resource not in wanted or count_or_none(value) != wanted[resource]:
            raise InvalidDemand(
                f"{path}.limits[{resource}]",
                f"container {container.name} uses the claim {name}, which says what it gets",
            )
    return demand


def _core_limit(pod: Pod, demand: ContainerDemand, vocabulary: Vocabulary) -> ContainerDemand:
    """gpu-manager's annotation: idle compute may be used up to this percent."""
    text = pod.annotations.get(names.VCUDA_CORE_LIMIT)
    if text is None or vocabulary.core != names.TENCENT_VCUDA_CORE or demand.exclusive:
        return demand
    field = f"metadata.annotations[{names.VCUDA_CORE_LIMIT}]"
    try:
        limit = parse_count(text, field=field)
    except InvalidQuantity as error:
        raise InvalidDemand(field, error.reason) from error
    if not demand.core <= limit <= 100:
        raise InvalidDemand(field, f"{limit} is not between the share of {demand.core} and 100 percent")
    return replace(demand, core_limit=limit)


def _links(pod: Pod, demand: ContainerDemand) -> ContainerDemand:
    """The pod's own word on links, for its containers that ask for several cards themselves."""
    text = pod.annotations.get(names.LINKS)
    if text is None or demand.cards < 2:
        return demand
    if text not in LEAST:
        raise InvalidDemand(LINKS_FIELD, f"{text!r} is not one of {', '.join(LEAST)}")
    if provisioner(demand.provisioner).anywhere:
        raise InvalidDemand(LINKS_FIELD, f"links are not looked at for {demand.provisioner}; remove it")
    return replace(demand, links=text)


def _selected(pod: Pod, demand: ContainerDemand) -> ContainerDemand:
    """The pod's own word on which cards it takes, for its containers that ask themselves."""
    text, liked = pod.annotations.get(names.CARD_SELECTOR), pod.annotations.get(names.CARD_PREFERENCE)
    if text is not None:
        demand = replace(demand, select=parse_selector(text, _field(names.CARD_SELECTOR)))
    if liked is not None:
        demand = replace(demand, prefer=preference(liked, field=_field(names.CARD_PREFERENCE)))
    return demand


def _field(annotation: str) -> str:
    return f"metadata.annotations[{annotation}]"


def _memory_field(pod: Pod, container: Container, demand: ContainerDemand) -> str:
    if demand.claim:
        return _claim_field(pod, container)
    return f"{container_field(pod, container.name)}.resources.limits[{BY_NAME[demand.vocabulary].memory}]"


def _claim_field(pod: Pod, container: Container) -> str:
    keys = (prefix + container.name for prefix in names.CLAIM_PREFIXES)
    return f"metadata.annotations[{next(key for key in keys if key in pod.annotations)}]"


def _check_largest(demand: ContainerDemand, largest_mib: int | None, field: str) -> None:
    if largest_mib is not None and demand.memory_mib > largest_mib:
        raise InvalidDemand(field, f"{demand.memory_mib} MiB is more than the largest card has ({largest_mib} MiB)")
