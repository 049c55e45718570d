"""The numbers of one container or claim: resource names and values → cards, percent, MiB, TFLOPS.

The rules are the same for pods and claims; only how memory is read differs (`egpu.api.quantities`).
"""

from collections.abc import Callable, Collection, Mapping

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerDemand
from egpu.api.kubernetes import Container
from egpu.api.quantities import Quantity, parse_count
from egpu.api.vocabularies import BY_RESOURCE, VOCABULARIES, Vocabulary
from egpu.errors import InvalidDemand, InvalidQuantity


def count_or_none(value: Quantity) -> int | None:
    """A count, or None for what is none."""
    try:
        return parse_count(value, field="")
    except InvalidQuantity:
        return None


def asked_amounts(container: Container, path: str) -> dict[str, Quantity]:
    """GPU resources of a container: limits, or requests where only those are given."""
    requirements = container.resources
    limits = dict(requirements.limits or {}) if requirements else {}
    requests = dict(requirements.requests or {}) if requirements else {}
    for vocabulary in VOCABULARIES:
        if vocabulary.node_only and vocabulary.node_only in limits | requests:
            raise InvalidDemand(
                f"{path}.limits[{vocabulary.node_only}]", f"is what a node has; ask for {vocabulary.memory} instead"
            )
    for resource, value in requests.items():
        if resource not in BY_RESOURCE:
            continue
        if resource in limits and count_or_none(limits[resource]) != count_or_none(value):
            raise InvalidDemand(
                f"{path}.requests[{resource}]", f"{value} is not the limit {limits[resource]}; give the limit only"
            )
        limits.setdefault(resource, value)
    return {resource: value for resource, value in limits.items() if resource in BY_RESOURCE}


def one_vocabulary(asked: Mapping[str, Quantity], path: str, spoken: Collection[str] = ()) -> Vocabulary:
    """The vocabulary that all names of `asked` belong to; of those that take names over, only one that is `spoken`
    here. Raises InvalidDemand naming two that do not mix."""
    having = [vocabulary for vocabulary in VOCABULARIES if asked.keys() <= set(vocabulary.resources())]
    meant = next(
        (one for one in having if one.takes_over and one.name in spoken),
        next((one for one in having if not one.takes_over), None),
    )
    if meant is None:
        spoken = {BY_RESOURCE[resource].name: resource for resource in sorted(asked)}
        both = " and ".join(spoken.values())
        raise InvalidDemand(path, f"{both} are two vocabularies for one thing; use one of them")
    return meant


def normalise(
    asked: Mapping[str, tuple[Quantity, str]],
    vocabulary: Vocabulary,
    memory_of: Callable[[Quantity, str], int],
    *,
    base: ContainerDemand,
) -> ContainerDemand:
    """`asked`: resource → value and its field. Returns `base` with the amounts filled in."""

    def count(resource: str) -> int:
        return parse_count(asked[resource][0], field=asked[resource][1]) if resource in asked else 0

    def field(resource: str) -> str:
        return asked[resource][1]

    part = 100 // vocabulary.parts if vocabulary.parts else 0
    try:
        cards, core, tflops = count(vocabulary.cards), part or count(vocabulary.core), count(vocabulary.tflops)
        memory = memory_of(*asked[vocabulary.memory]) if vocabulary.memory in asked else 0
        memory_percent = part or count(vocabulary.memory_percent)
    except InvalidQuantity as error:
        raise InvalidDemand(error.field, error.reason) from error
    if tflops and core:
        raise InvalidDemand(field(vocabulary.tflops), f"{vocabulary.core} says the compute share already; keep one")
    if memory_percent and memory:
        raise InvalidDemand(
            field(vocabulary.memory_percent), f"{vocabulary.memory} says how much memory already; keep one"
        )
    if memory_percent > 100:
        raise InvalidDemand(field(vocabulary.memory_percent), f"{memory_percent} percent of the memory of one card")
    if core > 100 and vocabulary.per_card:
        raise InvalidDemand(field(vocabulary.core), f"{core} percent of one card; it is the share of each card")
    if core > 100 and core % 100:
        raise InvalidDemand(
            field(vocabulary.core),
            f"{core} is neither up to 100 (a share of one card) nor a multiple of 100 (whole cards)",
        )
    if core > 100 and cards:
        raise InvalidDemand(
            field(vocabulary.core), f"with {vocabulary.cards} it is the share of each card, at most 100"
        )
    exclusive = core >= 100 or not (core or memory or memory_percent or tflops or vocabulary.profile)
    if vocabulary.per_card and not (memory or memory_percent or exclusive):
        memory_percent = 100
    amount = cards or (core // 100 if core >= 100 else 1)
    # A program sees one instance of MIG, and finds one server of MPS.
    most = 1 if vocabulary.single else names.MAX_CARDS_PER_CONTAINER
    what = "instances" if vocabulary.profile else "slices" if vocabulary.single else "cards"
    if amount > most:
        culprit = vocabulary.cards if cards else vocabulary.core
        raise InvalidDemand(field(culprit), f"{amount} {what} in one container; the most is {most}")
    if exclusive and not cards and memory:
        memory = -(-memory // amount)
    if memory > names.MAX_MEMORY_MIB:
        raise InvalidDemand(
            field(vocabulary.memory), f"{memory} MiB of one card; no card has more than {names.MAX_MEMORY_MIB} MiB"
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
