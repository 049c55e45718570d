"""The demand of a claim: its amounts, by the parameters of its class and the rules of the class's technology.

Each problem is an InvalidDemand that names the field as kubectl users write it, such as `spec.resources.requests[…]`.
"""

from collections.abc import Mapping, Set
from typing import Final

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerDemand
from egpu.api.objects import ElasticGPUClaim, ElasticGPUClass
from egpu.api.vocabularies import BY_RESOURCE, VGPU_PROFILES
from egpu.core.attributes import Select, requirement
from egpu.core.demand import limits
from egpu.core.demand.amounts import normalise, one_vocabulary, without_zeros
from egpu.core.demand.bounds import check_bounds
from egpu.core.demand.classes import (
    CARD_PREFERENCE,
    LINKS,
    PRECISION,
    ClassTerms,
    Parameters,
    class_selector,
    class_terms,
)
from egpu.core.provisioners import Profile, Provisioner, isolation, provisioner
from egpu.core.provisioners.oversubscription import MEMORY_OVERSUBSCRIPTION
from egpu.core.provisioners.parking import parking_problem, resident_mib
from egpu.core.spelling import did_you_mean
from egpu_base.api.quantities import Quantity, parse_claim_memory, parse_count
from egpu_base.errors import InvalidDemand, InvalidQuantity, UnknownProvisioner

Claims = Mapping[str, ElasticGPUClaim]
"""The claims of one namespace, by name."""
Classes = Mapping[str, ElasticGPUClass]
"""The classes of the cluster, by name."""

_REQUESTS: Final = "spec.resources.requests"


def claim_demand(claim: ElasticGPUClaim, klass: ElasticGPUClass) -> ContainerDemand:
    """Return what a claim asks for, served by the technology of its class. Raises InvalidDemand."""
    return demand_under(claim, claim_terms(claim, klass))


def claim_class(claim: ElasticGPUClaim, classes: Classes) -> ElasticGPUClass:
    """Return the class that a claim names. Raises InvalidDemand for none, several, and one that does not exist."""
    spec = claim.spec
    if not spec.class_name:
        raise InvalidDemand("spec.elasticGPUClassName", "names no class; set it to the name of an ElasticGPUClass")
    if len(spec.class_names) > 1:
        listed = ", ".join(spec.class_names)
        raise InvalidDemand("spec", f"names several classes ({listed}) under different spellings; keep one")
    if spec.class_name not in classes:
        known, meant = ", ".join(sorted(classes)[:10]) or "none", did_you_mean(spec.class_name, classes)
        raise InvalidDemand(
            f"spec.{_class_field(claim)}",
            f"ElasticGPUClass {spec.class_name!r} does not exist{meant}; existing classes: {known}",
        )
    return classes[spec.class_name]


def claim_terms(claim: ElasticGPUClaim, klass: ElasticGPUClass) -> ClassTerms:
    """Read the class of a claim. Raises InvalidDemand, naming the claim's field, for a class that is not valid."""
    try:
        return class_terms(klass)
    except (UnknownProvisioner, InvalidDemand) as error:
        raise InvalidDemand(f"spec.{_class_field(claim)}", f"class {klass.name}: {error}") from error


def demand_under(claim: ElasticGPUClaim, terms: ClassTerms) -> ContainerDemand:
    """Return what a claim asks for under the terms of its class. Raises InvalidDemand."""
    demand = _amounts(claim, terms)
    if demand.exclusive and terms.memory_limit_percent:
        reason = f"class {terms.name} sets {MEMORY_OVERSUBSCRIPTION}, which does not apply to whole cards"
        raise InvalidDemand(_REQUESTS, f"{reason}; ask for a share of a card, or use another class")
    if terms.parking.parkable and (problem := parking_problem(demand)):
        raise InvalidDemand(_REQUESTS, f"class {terms.name} {problem}, or use another class")
    if problem := terms.technology.problem(demand):
        raise InvalidDemand(_REQUESTS, problem)
    demand = terms.technology.of_class(demand, terms.parameters)
    check_bounds(demand, terms.bounds, class_name=terms.name, field=_REQUESTS)
    limits.check_max_core_limits(demand, _REQUESTS)
    return _with_cards(claim, demand, terms)


def _amounts(claim: ElasticGPUClaim, terms: ClassTerms) -> ContainerDemand:
    """Read how much a claim asks for: by a profile of its class, or by resource names."""
    asked, beyond = limits.split(claim.spec.resources.requests, claim.spec.resources.limits)
    parameters = terms.parameters
    base = ContainerDemand(
        provisioner=terms.technology.name,
        class_name=terms.name,
        claim=claim.name,
        shared_claim=claim.uid if terms.shareable else "",
        precision=parameters.get(PRECISION, "fp32"),
        core_limit=limits.of_mode(parameters.get(limits.COMPUTE_MODE, limits.CAP)),
        max_core_limits=terms.max_core_limits,
        latency=terms.latency,
        memory_limit_percent=terms.memory_limit_percent,
        parkable=terms.parking.parkable,
        resident_percent=terms.parking.resident_percent,
        park_idle_seconds=terms.parking.idle_seconds,
        park_stays=terms.parking.stays_on_request,
        park_patience_seconds=terms.parking.patience_seconds,
    )
    profiles = terms.technology.profiles(parameters)
    if asked.keys() & profiles.keys():
        return _of_profile(asked, profiles, base)
    return limits.of_claim(_of_resources(asked, parameters, base), beyond, parameters)


def _of_profile(
    asked: Mapping[str, Quantity], profiles: Mapping[str, Profile], base: ContainerDemand
) -> ContainerDemand:
    """Fill in the amounts of the one profile that a claim asks for."""
    if len(asked) > 1:
        raise InvalidDemand(_REQUESTS, f"{' and '.join(sorted(asked))}: a claim has one profile; create another claim")
    ((resource, value),) = asked.items()
    field = f"{_REQUESTS}[{resource}]"
    try:
        cards = parse_count(value, field=field)
    except InvalidQuantity as error:
        raise InvalidDemand(field, error.reason) from error
    if not 0 < cards <= names.MAX_CARDS_PER_CONTAINER:
        raise InvalidDemand(field, f"asks for {cards} cards; ask for 1 to {names.MAX_CARDS_PER_CONTAINER}")
    size = profiles[resource]
    return replace(base, vocabulary=VGPU_PROFILES.name, cards=cards, core=size.core, memory_mib=size.memory_mib)


def _of_resources(asked: Mapping[str, Quantity], parameters: Parameters, base: ContainerDemand) -> ContainerDemand:
    """Fill in the amounts that a claim asks for by the resource names of one vocabulary."""
    named = {resource: value for resource, value in asked.items() if resource in BY_RESOURCE}
    known = without_zeros(named)
    if not known:
        listed = ", ".join(f"{one}: 0" if one in named else one for one in sorted(asked)) or "nothing"
        example = f"ask for example for {names.GPU_CORE} and {names.GPU_MEMORY}"
        field = f"{_REQUESTS}[{min(named)}]" if named else _REQUESTS
        raise InvalidDemand(field, f"asks for no GPU ({listed}); {example}")
    if unknown := sorted(asked.keys() - named.keys()):
        raise InvalidDemand(f"{_REQUESTS}[{unknown[0]}]", "is not a known GPU resource; remove it")
    vocabulary = one_vocabulary(known, _REQUESTS)
    if vocabulary.profile and base.provisioner != vocabulary.provisioner:
        reason = f"class {base.class_name} has the provisioner {base.provisioner}, which does not support MIG instances"
        field = f"{_REQUESTS}[{vocabulary.cards}]"
        raise InvalidDemand(field, f"{reason}; use a class with {vocabulary.provisioner}")
    unit = provisioner(vocabulary.provisioner).memory_unit_mib(vocabulary, parameters)
    return normalise(
        {resource: (value, f"{_REQUESTS}[{resource}]") for resource, value in known.items()},
        vocabulary,
        lambda value, field: parse_claim_memory(value, field=field, unit_mib=unit),
        base=replace(base, vocabulary=vocabulary.name),
    )


def _with_cards(claim: ElasticGPUClaim, demand: ContainerDemand, terms: ClassTerms) -> ContainerDemand:
    """Add which cards class and claim select and prefer, and how several cards must be linked."""
    links = terms.parameters.get(LINKS, "") if demand.cards > 1 else ""
    if links and terms.technology.anywhere:
        reason = f"class {terms.name} sets {LINKS}, which {terms.technology.name} does not support"
        raise InvalidDemand(_REQUESTS, f"{reason}; ask for one card, or use another class")
    isolated = "" if demand.exclusive else terms.memory_isolation
    select = class_selector(terms.parameters) + _own_selector(claim)
    return replace(
        demand,
        links=links,
        memory_isolation=isolated,
        select=(isolation.REQUIRED, *select) if isolated else select,
        prefer=claim.spec.card_preference or terms.parameters.get(CARD_PREFERENCE, ""),
    )


def names_of_class(claim: ElasticGPUClaim, classes: Classes) -> Set[str]:
    """Return the resource names that the claim's class defines; none for a class that `claim_demand` refuses."""
    try:
        klass = claim_class(claim, classes)
        return provisioner(klass.provisioner).profiles(klass.parameters or {}).keys()
    except (InvalidDemand, UnknownProvisioner):
        return frozenset()


def _own_selector(claim: ElasticGPUClaim) -> Select:
    expressions = claim.spec.selector.match_expressions if claim.spec.selector is not None else []
    return tuple(
        requirement(
            one.key, one.operator, [str(value) for value in one.values], field=f"spec.selector.matchExpressions[{at}]"
        )
        for at, one in enumerate(expressions)
    )


def claim_resources(demand: ContainerDemand, technology: Provisioner) -> dict[str, int]:
    """Return the resources that the webhook writes on a container which uses a claim, totals over its cards.

    None for a claim that several pods may use: each pod would be counted with all of it.
    """
    if demand.shared_claim:
        return {}
    vocabulary = technology.claim_vocabulary
    core = 100 if demand.exclusive else demand.core
    # Kubernetes counts what is always on the card.
    memory = (resident_mib(demand, demand.memory_mib) or demand.memory_mib) // vocabulary.memory_unit_mib
    each = {vocabulary.core: core, vocabulary.memory: memory, vocabulary.tflops: demand.tflops}
    return {resource: amount * demand.cards for resource, amount in each.items() if resource and amount}


def _class_field(claim: ElasticGPUClaim) -> str:
    spec = claim.spec
    if spec.elastic_gpu_class_name:
        return "elasticGPUClassName"
    return "egpuClassName" if spec.egpu_class_name else "storageClassName"
