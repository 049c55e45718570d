"""The demand of a pod, from any vocabulary.

Source of the vocabularies and units: `egpu.api.vocabularies`. Each problem is an InvalidDemand that names the field as
kubectl users write it, such as `spec.containers[app].resources.limits[docker.com/vcuda-core]`.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerDemand, PodDemand, decode_demand
from egpu.api.foreign import NO_USE_TYPE, USE_TYPE
from egpu.api.vocabularies import BY_NAME, OPTIONAL, Vocabulary
from egpu.core.attributes import parse_selector, preference
from egpu.core.demand import limits
from egpu.core.demand.amounts import (
    asked_amounts,
    count_or_none,
    normalise,
    one_vocabulary,
    pod_memory_mib,
    without_zeros,
)
from egpu.core.demand.claims import Claims, Classes, claim_class, claim_resources, claim_terms, demand_under
from egpu.core.demand.counted import COUNTED, as_asked
from egpu.core.demand.others import others_selector
from egpu.core.links import LEAST
from egpu.core.provisioners import Provisioner, provisioner
from egpu_base.api.kubernetes import Container, Pod
from egpu_base.api.objects import is_object_name
from egpu_base.api.quantities import Quantity, memory_advice
from egpu_base.errors import CorruptData, InvalidDemand

_ONE_CARD: Final = "no container of the pod asks for several cards by its own resources; remove it"
_NO_SHARE: Final = "no container of the pod asks for a percent of a card by its own resources; remove it"
_SAID: Final = (
    names.DEMAND,
    names.GPU_CORE_LIMIT,
    names.VCUDA_CORE_LIMIT,
    names.LINKS,
    names.CARD_SELECTOR,
    names.CARD_PREFERENCE,
    USE_TYPE,
    NO_USE_TYPE,
)
"""Annotations that change the demand of each container."""
_SHOWN: Final = 64
"""Characters of a wrong name that its message repeats."""
TEMPLATES_LIMIT: Final = 512
"""Different containers whose demands are cached."""
_MOST_SAID: Final = 16_384
"""Characters of what a demand depends on, up to which it is cached: tenants write them."""


def container_field(pod: Pod, container: str) -> str:
    """Return the path of a container: `spec.containers[app]` or `spec.initContainers[fetch]`."""
    kind = "initContainers" if any(c.name == container for c in pod.init_containers) else "containers"
    return f"spec.{kind}[{container}]"


def pod_demand(pod: Pod, containers: dict[str, ContainerDemand]) -> PodDemand:
    """Return the demand of a pod whose containers ask for `containers`, by name."""
    init = [container for container in pod.init_containers if container.name in containers]
    return PodDemand(
        containers=containers,
        init=tuple(one.name for one in init if one.restart_policy != "Always"),
        sidecars=tuple(one.name for one in init if one.restart_policy == "Always"),
    )


def claims_by_container(pod: Pod) -> dict[str, str]:
    """Return the claims that a pod's annotations name: container → claim of the pod's own namespace.

    Raises InvalidDemand for a container that does not exist, a claim of another namespace, two spellings that disagree,
    and one claim named by two containers (only one container of a pod can use a claim).
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
                    field, f"{claim!r} is in namespace {namespace!r}; a pod can only use claims of its own"
                )
            if not claim:
                raise InvalidDemand(field, "names no claim; write the name of an ElasticGPUClaim of this namespace")
            if not is_object_name(claim):
                raise InvalidDemand(
                    field,
                    f"{claim[:_SHOWN]!r} is not the name of an object; write lower-case letters, digits, '-' and '.', "
                    "at most 253",
                )
            if found.get(container, claim) != claim:
                raise InvalidDemand(field, f"container {container} already names the claim {found[container]!r}")
            if users.get(claim, container) != container:
                raise InvalidDemand(
                    field, f"container {users[claim]} names the claim {claim!r} too; only one container can use it"
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
    """Return what `pod` asks for, and what is wrong with it: one problem at most for the annotations and a container.

    `claims` are those of its namespace, by name; `classes` by name. `largest_mib`: the memory of the largest known
    card; a larger demand is a problem. None: no card is known yet. `vocabularies`: the optional vocabularies that are
    turned on; None: those of the pod's admission.
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
            if demand is not None:
                _check_largest(pod, container, demand, largest_mib)
                containers[container.name] = demand
        except InvalidDemand as error:
            problems.append(error)
    if len(containers) > names.MAX_GPU_CONTAINERS:
        reason = f"{len(containers)} containers ask for a GPU; a pod may have {names.MAX_GPU_CONTAINERS}: use more pods"
        problems.append(InvalidDemand("spec.containers", reason))
    return pod_demand(pod, containers), problems or _without_effect(pod, containers.values())


def _without_effect(pod: Pod, demands: Collection[ContainerDemand]) -> list[InvalidDemand]:
    """Return a problem for the first annotation about cards that applies to no container of the pod."""
    own = not all(one.claim for one in demands)
    alone = "no container of the pod asks for a GPU by its own resources; remove it, or set it in the claim"
    for annotation, applies, reason in (
        (names.GPU_CORE_LIMIT, any(one.core and not (one.exclusive or one.claim) for one in demands), _NO_SHARE),
        (names.LINKS, any(one.links for one in demands), _ONE_CARD),
        (names.CARD_SELECTOR, own, alone),
        (names.CARD_PREFERENCE, own, alone),
        (USE_TYPE, own or not demands, alone),
        (NO_USE_TYPE, own or not demands, alone),
    ):
        if annotation in pod.annotations and not applies:
            return [InvalidDemand(_field(annotation), reason)]
    return []


def container_demand(
    pod: Pod, container: Container, vocabularies: Collection[str] | None = None
) -> ContainerDemand | None:
    """Return what a container asks for by its own resources, or None; see `read_pod`. Raises InvalidDemand."""
    needs = container.resources
    if needs is None:
        return None
    amounts = tuple((name, type(value), value) for one in (needs.limits, needs.requests) for name, value in _pairs(one))
    known = None if vocabularies is None else frozenset(vocabularies)
    texts = tuple(map(pod.annotations.get, _SAID))
    said = (container.name, *texts, len(needs.limits or {}), amounts, known)
    characters = sum(len(text or "") for text in texts) + sum(len(name) + len(str(one)) for name, _, one in amounts)
    if characters > _MOST_SAID:
        return _new_demand(pod, container, known)
    asking = _Asking(said, (pod, container, known))
    try:
        return _demand_of(asking)
    finally:
        asking.source = None


@dataclasses.dataclass(unsafe_hash=True, slots=True)
class _Asking:
    """The key of a container's demand: `said` is everything that it depends on. `source` is what it is computed from,
    until then: the cache must not hold whole pods."""

    said: tuple[object, ...]
    source: tuple[Pod, Container, Collection[str] | None] | None = dataclasses.field(compare=False)


@lru_cache(maxsize=TEMPLATES_LIMIT)
def _demand_of(asking: _Asking) -> ContainerDemand | None:
    """Compute a demand once for all pods of one template."""
    assert asking.source is not None
    return _new_demand(*asking.source)


def _new_demand(pod: Pod, container: Container, vocabularies: Collection[str] | None) -> ContainerDemand | None:
    path = container_field(pod, container.name) + ".resources"
    told = _told(pod, container)
    asked = asked_amounts(container, path)
    if asked and told is not None:
        asked = as_asked(asked, told)
    asked = without_zeros(asked, (vocabularies or ()) if told is None else OPTIONAL)
    if not asked:
        return None
    if vocabularies is None:
        vocabularies = () if told is None else (told.vocabulary,)
    vocabulary = one_vocabulary(asked, f"{path}.limits", vocabularies)
    demand = normalise(
        {resource: (value, f"{path}.limits[{resource}]") for resource, value in asked.items()},
        vocabulary,
        lambda value, field: pod_memory_mib(value, field, vocabulary),
        base=ContainerDemand(provisioner=vocabulary.provisioner, vocabulary=vocabulary.name),
    )
    return _annotated(pod, demand, vocabulary)


def _pairs(amounts: Mapping[str, Quantity] | None) -> Iterable[tuple[str, Quantity]]:
    return (amounts or {}).items()


def _told(pod: Pod, container: Container) -> ContainerDemand | None:
    """Return a container's demand in the pod's annotation: admission has seen and counted the container."""
    text = pod.annotations.get(names.DEMAND)
    try:
        return decode_demand(text).containers.get(container.name) if text is not None else None
    except CorruptData:
        return None  # admission refuses it, as it does not match the request


def _claimed(pod: Pod, container: Container, name: str, claims: Claims, classes: Classes) -> ContainerDemand:
    field = _claim_field(pod, container)
    claim = claims.get(name)
    if claim is None:
        raise InvalidDemand(field, f"namespace {pod.namespace!r} has no ElasticGPUClaim {name!r}; create it first")
    try:
        terms = claim_terms(claim, claim_class(claim, classes))
        demand = demand_under(claim, terms)
    except InvalidDemand as error:
        # The name of a pod's own claim is new each time, and the same problem should have the same text.
        own = field.startswith(_field(names.CLAIM_TEMPLATE_PREFIX)[:-1])
        raise InvalidDemand(field, str(error) if own else f"claim {name}: {error}") from error
    path = container_field(pod, container.name) + ".resources"
    wanted = claim_resources(demand, terms.technology)
    known = COUNTED if _told(pod, container) is not None else ()
    for resource, value in without_zeros(asked_amounts(container, path)).items():
        if resource in known:
            continue
        # Validation sees the webhook's own additions again; anything else is a second request.
        if resource not in wanted or count_or_none(value) != wanted[resource]:
            raise InvalidDemand(
                f"{path}.limits[{resource}]",
                f"container {container.name} uses the claim {name}, which sets its GPU resources; remove it",
            )
    return demand


def _annotated(pod: Pod, demand: ContainerDemand, vocabulary: Vocabulary) -> ContainerDemand:
    """Apply the pod's annotations to a container that asks by its own resources."""
    said, more = pod.annotations, dict[str, Any]()
    for key in (names.VCUDA_CORE_LIMIT, names.GPU_CORE_LIMIT):
        if key in said and demand.core and not demand.exclusive and _speaks(vocabulary, key):
            demand = limits.with_limit(demand, said[key], _field(key))
    if names.LINKS in said and demand.cards > 1:
        more["links"] = _links(said[names.LINKS], provisioner(demand.provisioner))
    select = others_selector(pod)
    if names.CARD_SELECTOR in said:
        select = parse_selector(said[names.CARD_SELECTOR], _field(names.CARD_SELECTOR)) + select
    if select:
        more["select"] = select
    if names.CARD_PREFERENCE in said:
        more["prefer"] = preference(said[names.CARD_PREFERENCE], field=_field(names.CARD_PREFERENCE))
    return replace(demand, **more)


def _speaks(vocabulary: Vocabulary, limit: str) -> bool:
    """Return whether containers of a vocabulary heed this limit of compute: gpu-manager's is for its own names."""
    return limit == names.GPU_CORE_LIMIT or vocabulary.core == names.TENCENT_VCUDA_CORE


def _links(text: str, technology: Provisioner) -> str:
    if text not in LEAST:
        raise InvalidDemand(_field(names.LINKS), f"{text!r} is not one of {', '.join(LEAST)}")
    if technology.anywhere:
        raise InvalidDemand(_field(names.LINKS), f"{technology.name} does not support links; remove it")
    return text


def _field(annotation: str) -> str:
    return f"metadata.annotations[{annotation}]"


def _claim_field(pod: Pod, container: Container) -> str:
    prefixes = (names.CLAIM_TEMPLATE_PREFIX, *names.CLAIM_PREFIXES)
    keys = (prefix + container.name for prefix in prefixes)
    return f"metadata.annotations[{next(key for key in keys if key in pod.annotations)}]"


def _check_largest(pod: Pod, container: Container, demand: ContainerDemand, largest_mib: int | None) -> None:
    if largest_mib is None or demand.memory_mib <= largest_mib:
        return
    vocabulary = BY_NAME[demand.vocabulary]
    reason = f"{demand.memory_mib} MiB is more than the largest card has ({largest_mib} MiB); ask for less"
    if demand.claim:
        raise InvalidDemand(_claim_field(pod, container), reason)
    field = f"{container_field(pod, container.name)}.resources.limits[{vocabulary.memory}]"
    raise InvalidDemand(field, f"{reason}: {memory_advice(vocabulary.memory_unit_mib)}")
