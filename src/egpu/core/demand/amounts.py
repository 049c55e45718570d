"""The numbers of one container or claim: resource names and values → cards, percent, MiB, TFLOPS.

The rules are the same for pods and claims; only the units of memory differ (`egpu_base.api.quantities`).
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerDemand
from egpu.api.vocabularies import BY_RESOURCE, VOCABULARIES, ZEROS, Vocabulary, Zero
from egpu_base.api.kubernetes import Container
from egpu_base.api.quantities import Quantity, is_zero, memory_advice, parse_count, parse_pod_memory
from egpu_base.errors import InvalidDemand, InvalidQuantity

_RESOURCES: Final = {one.name: frozenset(one.resources()) for one in VOCABULARIES}
"""The names that pods may request, by the name of the vocabulary."""


def count_or_none(value: Quantity) -> int | None:
    """Return a count, which may be zero, or None if the value is not a count."""
    try:
        return 0 if is_zero(value) else parse_count(value, field="")
    except InvalidQuantity:
        return None


def gpu_names(container: Container) -> Collection[str]:
    """Return the GPU resources that a container names, with any amount."""
    needs = container.resources
    return () if needs is None else ((needs.limits or {}).keys() | (needs.requests or {}).keys()) & BY_RESOURCE.keys()


def asked_amounts(container: Container, path: str) -> dict[str, Quantity]:
    """Return the GPU resources of a container, zeros too: limits, or requests if only those are given."""
    requirements = container.resources
    limits = dict(requirements.limits or {}) if requirements else {}
    requests = dict(requirements.requests or {}) if requirements else {}
    for resource, value in requests.items():
        if resource not in BY_RESOURCE:
            continue
        if resource in limits and count_or_none(limits[resource]) != count_or_none(value):
            raise InvalidDemand(
                f"{path}.requests[{resource}]", f"{value} is not the limit {limits[resource]}; give the limit only"
            )
        limits.setdefault(resource, value)
    for vocabulary in VOCABULARIES:
        if vocabulary.node_only and not is_zero((requests | limits).get(vocabulary.node_only, 0)):
            raise InvalidDemand(
                f"{path}.limits[{vocabulary.node_only}]", f"counts a node's cards; ask for {vocabulary.memory} instead"
            )
    return {resource: value for resource, value in limits.items() if resource in BY_RESOURCE}


def without_zeros(asked: Mapping[str, Quantity], vocabularies: Collection[str] = ()) -> dict[str, Quantity]:
    """Return the amounts that ask for something, as `ZEROS` tells: none of a vocabulary whose count of cards is zero.

    `vocabularies`: the optional ones that are turned on.
    """
    zeros = {resource for resource, value in asked.items() if is_zero(value)}
    rest = {resource: value for resource, value in asked.items() if resource not in zeros}
    no_gpu = {resource for resource in zeros if ZEROS[resource] is Zero.NO_GPU}
    if not rest and not no_gpu:
        unlimited = [BY_RESOURCE[resource] for resource in zeros if ZEROS[resource] is Zero.NO_LIMIT]
        return {one.cards: 1 for one in unlimited if one.name in vocabularies}
    return {} if any(no_gpu & known and rest.keys() <= known for known in _RESOURCES.values()) else rest


def one_vocabulary(asked: Mapping[str, Quantity], path: str, spoken: Collection[str] = ()) -> Vocabulary:
    """Return the vocabulary that has all names of `asked`; one that takes names over only if it is `spoken` here.
    Raises InvalidDemand naming two that do not mix."""
    having = [vocabulary for vocabulary in VOCABULARIES if asked.keys() <= _RESOURCES[vocabulary.name]]
    meant = next(
        (one for one in having if one.takes_over and one.name in spoken),
        next((one for one in having if not one.takes_over), None),
    )
    if meant is None:
        spoken = {BY_RESOURCE[resource].name: resource for resource in sorted(asked)}
        both = " and ".join(spoken.values())
        raise InvalidDemand(path, f"{both} belong to two vocabularies; use the names of one")
    return meant


def pod_memory_mib(value: Quantity, field: str, vocabulary: Vocabulary) -> int:
    """Return the MiB of a container's memory resource, a multiple of the vocabulary's unit. Raises InvalidQuantity."""
    return parse_pod_memory(value, field=field, unit_mib=vocabulary.memory_unit_mib, most_mib=names.MAX_MEMORY_MIB)


def in_units(amounts: Mapping[str, Quantity], vocabulary: Vocabulary) -> dict[str, Quantity]:
    """Return the memory that a pod wrote in bytes ("4Gi") as the count that nodes publish; nothing for other pods."""
    value = amounts.get(vocabulary.memory, 0)
    if is_zero(value):
        return {}
    count = pod_memory_mib(value, "", vocabulary) // vocabulary.memory_unit_mib
    return {} if count == count_or_none(value) else {vocabulary.memory: str(count)}


def _count(value: Quantity, field: str, unit: str) -> int:
    try:
        return parse_count(value, field=field)
    except InvalidQuantity as error:
        raise InvalidQuantity(field, f"{error.reason}. It counts {unit}") from error


def normalise(
    asked: Mapping[str, tuple[Quantity, str]],
    vocabulary: Vocabulary,
    memory_of: Callable[[Quantity, str], int],
    *,
    base: ContainerDemand,
) -> ContainerDemand:
    """Return `base` with its amounts filled in. `asked`: resource → value and its field."""

    def count(resource: str, unit: str) -> int:
        return _count(*asked[resource], unit) if resource in asked else 0

    def field(resource: str) -> str:
        return asked[resource][1]

    part = 100 // vocabulary.parts if vocabulary.parts else 0
    try:
        cards, core = count(vocabulary.cards, "cards"), part or count(vocabulary.core, "percent of a card, such as 50")
        tflops = count(vocabulary.tflops, "TFLOPS, such as 10")
        memory = memory_of(*asked[vocabulary.memory]) if vocabulary.memory in asked else 0
        memory_percent = part or count(vocabulary.memory_percent, "percent of a card's memory, such as 50")
    except InvalidQuantity as error:
        raise InvalidDemand(error.field, error.reason) from error
    if tflops and core:
        raise InvalidDemand(field(vocabulary.tflops), f"{vocabulary.core} already sets the compute share; keep one")
    if memory_percent and memory:
        raise InvalidDemand(field(vocabulary.memory_percent), f"{vocabulary.memory} already sets the memory; keep one")
    if memory_percent > 100:
        raise InvalidDemand(
            field(vocabulary.memory_percent), f"{memory_percent} percent of a card's memory; the most is 100"
        )
    if core > 100 and vocabulary.per_card:
        raise InvalidDemand(field(vocabulary.core), f"asks for {core} percent of each card; the most is 100")
    if core > 100 and core % 100:
        raise InvalidDemand(
            field(vocabulary.core),
            f"{asked[vocabulary.core][0]} percent is neither up to 100 (a share of one card) nor a multiple of 100 "
            "(whole cards)",
        )
    if core > 100 and cards:
        raise InvalidDemand(
            field(vocabulary.core), f"is the share of each card with {vocabulary.cards}; the most is 100"
        )
    exclusive = core >= 100 or not (core or memory or memory_percent or tflops or vocabulary.profile)
    if vocabulary.per_card and not (memory or memory_percent or exclusive):
        memory_percent = 100
    amount = cards or (core // 100 if core >= 100 else 1)
    # A program can use one MIG instance, and one MPS server.
    most = 1 if vocabulary.single else names.MAX_CARDS_PER_CONTAINER
    what = "instances" if vocabulary.profile else "slices" if vocabulary.single else "cards"
    if amount > most:
        culprit = vocabulary.cards if cards else vocabulary.core
        raise InvalidDemand(field(culprit), f"asks for {amount} {what} in one container; the most is {most}")
    if exclusive and not cards and memory:
        memory = -(-memory // amount)
    if memory > names.MAX_MEMORY_MIB:
        raise InvalidDemand(
            field(vocabulary.memory),
            f"{asked[vocabulary.memory][0]} is too much: no card has more than {names.MAX_MEMORY_MIB // 1024**2} TiB; "
            f"{memory_advice(vocabulary.memory_unit_mib)}",
        )
    if tflops > names.MAX_TFLOPS:
        raise InvalidDemand(field(vocabulary.tflops), f"{tflops} TFLOPS of one card; the most is {names.MAX_TFLOPS}")
    whole = exclusive and vocabulary.cards in asked and not core and not base.class_name
    return replace(
        base,
        provisioner=names.PHYSICAL if whole else base.provisioner,
        cards=amount,
        core=100 if exclusive else core,
        memory_mib=memory,
        memory_percent=0 if exclusive else memory_percent,
        exclusive=exclusive,
        tflops=tflops,
        core_limit=0 if exclusive else base.core_limit,
    )
