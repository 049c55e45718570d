"""What a claim asks for: its numbers, by the parameters of its class and the rules of the class's technology.

Every refusal is an InvalidDemand naming the field as kubectl users write it, such as `spec.resources.requests[…]`.
"""

from collections.abc import Mapping, Set
from typing import Final

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerDemand
from egpu.api.objects import ElasticGPUClaim, ElasticGPUClass
from egpu.api.quantities import Quantity, parse_claim_memory, parse_count
from egpu.api.vocabularies import BY_RESOURCE, VGPU_PROFILES
from egpu.core.attributes import MEMORY_ISOLATION, PREFERENCES, Select, parse_selector, requirement
from egpu.core.demand.amounts import normalise, one_vocabulary
from egpu.core.demand.bounds import check_bounds, class_bounds
from egpu.core.links import LEAST
from egpu.core.provisioners import PROVISIONERS, Profile, isolation, provisioner
from egpu.core.provisioners.oversubscription import MEMORY_OVERSUBSCRIPTION, memory_limit_percent
from egpu.core.provisioners.sharing import SHAREABLE, VALUES, is_shareable
from egpu.errors import InvalidDemand, InvalidQuantity, UnknownProvisioner

Claims = Mapping[str, ElasticGPUClaim]
"""Those of one namespace, by name."""
Classes = Mapping[str, ElasticGPUClass]
"""By name."""

PRECISION: Final = "precision"
"""Class parameter: which TFLOPS figure counts, "fp32" by default."""
COMPUTE_MODE: Final = "computeMode"
"""Class parameter: "cap" (never above the share, the default) or "share" (idle compute may be used)."""
LINKS: Final = "links"
"""Class parameter: what joins every two of several cards, at the least; without it the fastest links are preferred."""
CARD_SELECTOR: Final = "cardSelector"
"""Class parameter: what the cards must be, such as "model in (A100, H100), memory > 40Gi"."""
CARD_PREFERENCE: Final = "cardPreference"
"""Class parameter: "strongest" or "weakest" of the cards that fit; a claim may say otherwise."""


def parameter_values() -> dict[str, tuple[str, ...]]:
    """What a class may write for each parameter that has a fixed set of values."""
    own = {
        PRECISION: ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"),
        COMPUTE_MODE: ("cap", "share"),
        LINKS: tuple(LEAST),
        CARD_PREFERENCE: PREFERENCES,
        SHAREABLE: VALUES,
        MEMORY_ISOLATION: isolation.VALUES,
    }
    for technology in PROVISIONERS.values():
        own |= technology.parameters
    return own


def claim_class(claim: ElasticGPUClaim, classes: Classes) -> ElasticGPUClass:
    """The class that a claim names. Raises InvalidDemand when it names none, several, or one that does not exist."""
    spec = claim.spec
    if not spec.class_name:
        raise InvalidDemand("spec.elasticGPUClassName", "names no class; write the name of an ElasticGPUClass")
    if len(spec.class_names) > 1:
        listed = ", ".join(spec.class_names)
        raise InvalidDemand("spec", f"names several classes ({listed}) under different spellings; keep one")
    if spec.class_name not in classes:
        known = ", ".join(sorted(classes)[:10]) or "none"
        raise InvalidDemand(
            f"spec.{_class_field(claim)}", f"no ElasticGPUClass is called {spec.class_name!r}; there are: {known}"
        )
    return classes[spec.class_name]


def claim_demand(claim: ElasticGPUClaim, klass: ElasticGPUClass) -> ContainerDemand:
    """What a claim asks for, served by its class's technology. Raises InvalidDemand."""
    try:
        technology = provisioner(klass.provisioner)
        memory_limit = memory_limit_percent(klass)
        bounds = class_bounds(klass)
        shared_claim = claim.uid if is_shareable(klass) else ""
        isolated = isolation.memory_isolation(klass)
    except (UnknownProvisioner, InvalidDemand) as error:
        raise InvalidDemand("spec." + _class_field(claim), f"class {klass.name}: {error}") from error
    requests, limits = claim.spec.resources.requests, claim.spec.resources.limits
    for resource, value in limits.items():
        if resource in requests and str(requests[resource]) != str(value):
            field = f"spec.resources.limits[{resource}]"
            raise InvalidDemand(field, f"{value} is not the {requests[resource]} of requests; give requests only")
    path = "spec.resources.requests"
    parameters = klass.parameters or {}
    base = ContainerDemand(
        provisioner=technology.name,
        class_name=klass.name,
        claim=claim.name,
        shared_claim=shared_claim,
        precision=parameters.get(PRECISION, "fp32"),
        core_limit=100 if parameters.get(COMPUTE_MODE) == "share" else 0,
        memory_limit_percent=memory_limit,
    )
    profiles = technology.profiles(parameters)
    if (limits | requests).keys() & profiles.keys():
        demand = _of_profile(limits | requests, profiles, base, path)
    else:
        demand = _of_amounts(limits | requests, parameters, base, path)
    if demand.exclusive and memory_limit:
        reason = (
            f"class {klass.name} has {MEMORY_OVERSUBSCRIPTION}, which whole cards have no limit for; ask for a share"
        )
        raise InvalidDemand(path, f"{reason}, or use another class")
    if problem := technology.problem(demand):
        raise InvalidDemand(path, problem)
    demand = technology.of_class(demand, parameters)
    check_bounds(demand, bounds, class_name=klass.name, field=path)
    if (links := parameters.get(LINKS)) and demand.cards > 1:
        if technology.anywhere:
            raise InvalidDemand(path, f"class {klass.name} says {LINKS}; links are not looked at for {technology.name}")
        demand = replace(demand, links=links)
    prefer = claim.spec.card_preference or parameters.get(CARD_PREFERENCE, "")
    select = class_selector(klass) + _own_selector(claim)
    if isolated and not demand.exclusive:
        demand, select = replace(demand, memory_isolation=isolated), (isolation.REQUIRED, *select)
    return replace(demand, select=select, prefer=prefer)


def class_profiles(klass: ElasticGPUClass) -> Mapping[str, Profile]:
    """What the class has names of its own for, by resource name. Raises InvalidDemand and UnknownProvisioner."""
    return provisioner(klass.provisioner).profiles(klass.parameters or {})


def names_of_class(claim: ElasticGPUClaim, classes: Classes) -> Set[str]:
    """The resource names that the claim's class has a meaning for; none where that cannot be read, which `claim_demand`
    says."""
    try:
        return class_profiles(claim_class(claim, classes)).keys()
    except (InvalidDemand, UnknownProvisioner):
        return frozenset()


def _of_profile(
    given: Mapping[str, Quantity], profiles: Mapping[str, Profile], base: ContainerDemand, path: str
) -> ContainerDemand:
    """What a claim asks for by a name of its class."""
    if len(given) > 1:
        raise InvalidDemand(path, f"{' and '.join(sorted(given))}: a claim has one profile; make another claim")
    ((resource, value),) = given.items()
    field = f"{path}[{resource}]"
    try:
        cards = parse_count(value, field=field)
    except InvalidQuantity as error:
        raise InvalidDemand(field, error.reason) from error
    if not 0 < cards <= names.MAX_CARDS_PER_CONTAINER:
        raise InvalidDemand(field, f"{cards} cards; give 1 to {names.MAX_CARDS_PER_CONTAINER}")
    size = profiles[resource]
    return replace(base, vocabulary=VGPU_PROFILES.name, cards=cards, core=size.core, memory_mib=size.memory_mib)


def _of_amounts(
    given: Mapping[str, Quantity], parameters: Mapping[str, str], base: ContainerDemand, path: str
) -> ContainerDemand:
    """What a claim asks for by names that everybody knows."""
    asked = {resource: value for resource, value in given.items() if resource in BY_RESOURCE}
    if not asked:
        listed = ", ".join(sorted(given)) or "nothing"
        raise InvalidDemand(
            path, f"asks for no GPU ({listed}); name for instance {names.GPU_CORE} and {names.GPU_MEMORY}"
        )
    if unknown := sorted(given.keys() - asked.keys()):
        raise InvalidDemand(f"{path}[{unknown[0]}]", "is not a GPU resource that this project knows")
    vocabulary = one_vocabulary(asked, path)
    if vocabulary.profile and base.provisioner != vocabulary.provisioner:
        reason = f"class {base.class_name} is of {base.provisioner}, which has no instances of MIG"
        raise InvalidDemand(f"{path}[{vocabulary.cards}]", f"{reason}; use one of {vocabulary.provisioner}")
    unit = provisioner(vocabulary.provisioner).memory_unit_mib(vocabulary, parameters)
    return normalise(
        {resource: (value, f"{path}[{resource}]") for resource, value in asked.items()},
        vocabulary,
        lambda value, field: parse_claim_memory(value, field=field, unit_mib=unit),
        base=replace(base, vocabulary=vocabulary.name),
    )


def class_selector(klass: ElasticGPUClass) -> Select:
    """What the cards of a class must be. Raises InvalidDemand."""
    text = (klass.parameters or {}).get(CARD_SELECTOR)
    return () if text is None else parse_selector(text, f"parameters[{CARD_SELECTOR}]")


def _own_selector(claim: ElasticGPUClaim) -> Select:
    expressions = claim.spec.selector.match_expressions if claim.spec.selector is not None else []
    return tuple(
        requirement(
            one.key, one.operator, [str(value) for value in one.values], field=f"spec.selector.matchExpressions[{at}]"
        )
        for at, one in enumerate(expressions)
    )


def claim_resources(demand: ContainerDemand) -> dict[str, int]:
    """The resources that the webhook writes on a container which uses a claim, totals over its cards. None where
    several pods may use it: each would be counted with all of it."""
    if demand.shared_claim:
        return {}
    vocabulary = provisioner(demand.provisioner).claim_vocabulary
    core = 100 if demand.exclusive else demand.core
    memory = demand.memory_mib // vocabulary.memory_unit_mib
    each = {vocabulary.core: core, vocabulary.memory: memory, vocabulary.tflops: demand.tflops}
    return {resource: amount * demand.cards for resource, amount in each.items() if resource and amount}


def _class_field(claim: ElasticGPUClaim) -> str:
    spec = claim.spec
    if spec.elastic_gpu_class_name:
        return "elasticGPUClassName"
    return "egpuClassName" if spec.egpu_class_name else "storageClassName"
