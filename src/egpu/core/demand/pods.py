"""What a pod or a claim asks for, in whichever vocabulary, as one normal demand.

Source of the vocabularies and units: `egpu.api.vocabularies`. Every refusal is an InvalidDemand naming the field as
kubectl users write it, such as `spec.containers[app].resources.limits[docker.com/vcuda-core]`.
"""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerDemand, PodDemand
from egpu.api.kubernetes import Container, Pod
from egpu.api.objects import ElasticGPUClaim, ElasticGPUClass
from egpu.api.quantities import parse_claim_memory, parse_count
from egpu.api.vocabularies import ALIYUN, BY_RESOURCE, GIB, GPUSHARE, MIB, VOCABULARIES, Vocabulary
from egpu.core.demand.amounts import asked_amounts, count_or_none, normalise, one_vocabulary
from egpu.core.links import LEAST
from egpu.core.provisioners import provisioner
from egpu.core.provisioners.oversubscription import MEMORY_OVERSUBSCRIPTION, memory_limit_percent
from egpu.errors import InvalidDemand, InvalidQuantity, UnknownProvisioner

MEMORY_UNIT: Final = "memoryUnit"
"""Class parameter: what the gpushare vocabularies count, "GiB" (the default) or "MiB"."""
PRECISION: Final = "precision"
"""Class parameter: which TFLOPS figure counts, "fp32" by default."""
COMPUTE_MODE: Final = "computeMode"
"""Class parameter: "cap" (never above the share, the default) or "share" (idle compute may be used)."""
LINKS: Final = "links"
"""Class parameter: what joins every two of several cards, at the least; without it the fastest links are preferred."""
PARAMETER_VALUES: Final = {
    MEMORY_UNIT: ("GiB", "MiB"),
    PRECISION: ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"),
    COMPUTE_MODE: ("cap", "share"),
    LINKS: tuple(LEAST),
}


LINKS_FIELD: Final = f"metadata.annotations[{names.LINKS}]"


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
    and one claim named by two containers (a claim is used by one container at a time).
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


def pod_demand(
    pod: Pod,
    claims: Mapping[str, ElasticGPUClaim],
    classes: Mapping[str, ElasticGPUClass],
    *,
    largest_mib: int | None = None,
) -> PodDemand:
    """What `pod` asks for. `claims` are those of its namespace, by name; `classes` by name.

    `largest_mib` is the memory of the largest card known, or None when none is known yet: more than that is refused.
    Raises InvalidDemand naming the field and the reason (the first one found).
    """
    demand, problems = read_pod(pod, claims, classes, largest_mib=largest_mib)
    if problems:
        raise problems[0]
    return demand


def read_pod(
    pod: Pod,
    claims: Mapping[str, ElasticGPUClaim],
    classes: Mapping[str, ElasticGPUClass],
    *,
    largest_mib: int | None = None,
) -> tuple[PodDemand, list[InvalidDemand]]:
    """As `pod_demand`, with every problem instead of the first: at most one for the annotations and one a container."""
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
                demand = container_demand(pod, container)
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
    init, sidecars = init_names(pod)
    return PodDemand(
        containers=containers,
        init=tuple(name for name in init if name in containers),
        sidecars=tuple(name for name in sidecars if name in containers),
    ), problems


def container_demand(pod: Pod, container: Container) -> ContainerDemand | None:
    """What a container asks for by its own resources, or None. Raises InvalidDemand."""
    path = container_field(pod, container.name) + ".resources"
    asked = asked_amounts(container, path)
    if not asked:
        return None
    vocabulary = one_vocabulary(asked, f"{path}.limits")
    demand = normalise(
        {resource: (value, f"{path}.limits[{resource}]") for resource, value in asked.items()},
        vocabulary,
        lambda value, field: parse_count(value, field=field) * vocabulary.memory_unit_mib,
        base=ContainerDemand(provisioner=vocabulary.provisioner, vocabulary=vocabulary.name),
    )
    return _links(pod, _core_limit(pod, demand, vocabulary))


def claim_demand(claim: ElasticGPUClaim, klass: ElasticGPUClass) -> ContainerDemand:
    """What a claim asks for, served by its class's technology. Raises InvalidDemand."""
    try:
        technology = provisioner(klass.provisioner)
        memory_limit = memory_limit_percent(klass)
    except (UnknownProvisioner, InvalidDemand) as error:
        raise InvalidDemand("spec." + _class_field(claim), f"class {klass.name}: {error}") from error
    requests, limits = claim.spec.resources.requests, claim.spec.resources.limits
    for resource, value in limits.items():
        if resource in requests and str(requests[resource]) != str(value):
            field = f"spec.resources.limits[{resource}]"
            raise InvalidDemand(field, f"{value} is not the {requests[resource]} of requests; give requests only")
    asked = {resource: value for resource, value in (limits | requests).items() if resource in BY_RESOURCE}
    path = "spec.resources.requests"
    if not asked:
        given = ", ".join(sorted(limits | requests)) or "nothing"
        raise InvalidDemand(
            path, f"asks for no GPU ({given}); name for instance {names.GPU_CORE} and {names.GPU_MEMORY}"
        )
    if unknown := sorted((limits | requests).keys() - asked.keys()):
        raise InvalidDemand(f"{path}[{unknown[0]}]", "is not a GPU resource that this project knows")
    vocabulary = one_vocabulary(asked, path)
    parameters = klass.parameters or {}
    unit = vocabulary.memory_unit_mib
    if vocabulary in (ALIYUN, GPUSHARE):
        unit = MIB if parameters.get(MEMORY_UNIT) == "MiB" else GIB
    demand = normalise(
        {resource: (value, f"{path}[{resource}]") for resource, value in asked.items()},
        vocabulary,
        lambda value, field: parse_claim_memory(value, field=field, unit_mib=unit),
        base=ContainerDemand(
            provisioner=technology.name,
            vocabulary=vocabulary.name,
            class_name=klass.name,
            claim=claim.name,
            precision=parameters.get(PRECISION, "fp32"),
            core_limit=100 if parameters.get(COMPUTE_MODE) == "share" else 0,
            memory_limit_percent=memory_limit,
        ),
    )
    if demand.exclusive and memory_limit:
        reason = (
            f"class {klass.name} has {MEMORY_OVERSUBSCRIPTION}, which whole cards have no limit for; ask for a share"
        )
        raise InvalidDemand(path, f"{reason}, or use another class")
    if problem := technology.problem(demand):
        raise InvalidDemand(path, problem)
    if (links := parameters.get(LINKS)) and demand.cards > 1:
        if technology.anywhere:
            raise InvalidDemand(path, f"class {klass.name} says {LINKS}; links are not looked at for {technology.name}")
        demand = replace(demand, links=links)
    return demand


def _class_field(claim: ElasticGPUClaim) -> str:
    spec = claim.spec
    if spec.elastic_gpu_class_name:
        return "elasticGPUClassName"
    return "egpuClassName" if spec.egpu_class_name else "storageClassName"


def claim_class(claim: ElasticGPUClaim, classes: Mapping[str, ElasticGPUClass]) -> ElasticGPUClass:
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


def _claimed(
    pod: Pod,
    container: Container,
    name: str,
    claims: Mapping[str, ElasticGPUClaim],
    classes: Mapping[str, ElasticGPUClass],
) -> ContainerDemand:
    key = next(p + container.name for p in names.CLAIM_PREFIXES if p + container.name in pod.annotations)
    field = f"metadata.annotations[{key}]"
    claim = claims.get(name)
    if claim is None:
        raise InvalidDemand(field, f"namespace {pod.namespace!r} has no ElasticGPUClaim {name!r}; create it first")
    try:
        demand = claim_demand(claim, claim_class(claim, classes))
    except InvalidDemand as error:
        raise InvalidDemand(field, f"claim {name}: {error}") from error
    path = container_field(pod, container.name) + ".resources"
    wanted = claim_resources(demand)
    for resource, value in asked_amounts(container, path).items():
        # The webhook's own additions come back when the pod is validated; anything else is a second wish.
        if resource not in wanted or count_or_none(value) != wanted[resource]:
            raise InvalidDemand(
                f"{path}.limits[{resource}]",
                f"container {container.name} uses the claim {name}, which says what it gets",
            )
    return demand


def claim_resources(demand: ContainerDemand) -> dict[str, int]:
    """The resources that the webhook writes on a container which uses a claim, totals over its cards."""
    core, memory = (100 if demand.exclusive else demand.core) * demand.cards, demand.memory_mib * demand.cards
    if provisioner(demand.provisioner).anywhere:
        written = {names.POOL_CORE: core, names.POOL_MEMORY: memory}
    else:
        written = {names.GPU_CORE: core, names.GPU_MEMORY: memory, names.TFLOPS: demand.tflops * demand.cards}
    return {resource: value for resource, value in written.items() if value}


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


def _memory_field(pod: Pod, container: Container, demand: ContainerDemand) -> str:
    if demand.claim:
        key = next(p + container.name for p in names.CLAIM_PREFIXES if p + container.name in pod.annotations)
        return f"metadata.annotations[{key}]"
    resource = next(v.memory for v in VOCABULARIES if v.name == demand.vocabulary)
    return f"{container_field(pod, container.name)}.resources.limits[{resource}]"


def _check_largest(demand: ContainerDemand, largest_mib: int | None, field: str) -> None:
    if largest_mib is not None and demand.memory_mib > largest_mib:
        raise InvalidDemand(field, f"{demand.memory_mib} MiB is more than the largest card has ({largest_mib} MiB)")
