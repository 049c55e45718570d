"""The webhook's decisions: how a pod is changed, and what is refused and why.

Each problem names the field as a kubectl user would write it. Not here: HTTP, certificates, who may call.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from egpu.api import foreign, names
from egpu.api.admission import JSONPatch
from egpu.api.allocation import ContainerDemand, PodDemand, encode
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.api.vocabularies import BY_NAME, BY_RESOURCE
from egpu.core.demand.amounts import count_or_none, in_units
from egpu.core.demand.claims import Claims, Classes, claim_class, claim_demand, claim_resources, names_of_class
from egpu.core.demand.classes import POLICY, checks_of, parameter_values
from egpu.core.demand.counted import counted
from egpu.core.demand.others import others_problems, unserved_resources
from egpu.core.demand.pods import container_field, read_pod
from egpu.core.demand.templates import template_problems, with_named_claims
from egpu.core.demand.typos import mistyped_annotations, unknown_parameters
from egpu.core.gangs.membership import disagreement
from egpu.core.hiding import hide_cards, may_show_cards
from egpu.core.json_patch import add, annotations, pointer
from egpu.core.neighbours.reading import with_annotations
from egpu.core.policies.registry import CLUSTER_NAMES
from egpu.core.provisioners import PROVISIONERS, CardTotals, provisioner
from egpu.core.provisioners.base import Variable
from egpu.core.resizing import check_edit, refused_size, unsized
from egpu.core.schedulers import ANY, Schedulers
from egpu_base.api.kubernetes import MIRROR, Binding, Container, Pod, ResourceRequirements
from egpu_base.api.quantities import Quantity, memory_advice
from egpu_base.errors import InvalidDemand, UnknownProvisioner

_OURS: Final = (names.ALLOCATION, names.CARDS_PREFIX)
"""Annotations that only a Binding may write."""
WRITTEN_LATER: Final = (*_OURS, *names.ANSWERS, names.RESERVATION)
"""Prefixes of annotations that no new pod has."""
_ASKED: Final = (
    names.GPU_CORE_LIMIT, names.VCUDA_CORE_LIMIT, names.GANG, names.LINKS, names.CARD_SELECTOR, names.CARD_PREFERENCE,
    foreign.USE_TYPE, foreign.NO_USE_TYPE, *names.CLAIM_PREFIXES, names.CLAIM_TEMPLATE_PREFIX,
)  # fmt: skip
FIXED_ANNOTATIONS: Final = (*_OURS, names.DEMAND, *_ASKED)
"""Prefixes of annotations that cannot change after the pod is created, except by its Binding."""


@dataclass(frozen=True)
class Violation:
    """A problem of an object: the field, and the reason."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


# --- pods -----------------------------------------------------------------------------------------------------------


def validate_pod_create(
    pod: Pod,
    claims: Claims,
    classes: Classes,
    *,
    largest_mib: int | None = None,
    gang: Iterable[Pod] = (),
    vocabularies: Collection[str] = (),
    schedulers: Schedulers = ANY,
) -> list[Violation]:
    """Return the problems of a new pod. Holds for a pod before and after `mutate_pod`.

    `claims`: those of the pod's namespace, by name. `largest_mib`: memory of the largest card, None if unknown. `gang`:
    the other pods of the pod's gang. `vocabularies`: the optional ones that are turned on. `schedulers`: those that may
    place the pod.
    """
    if (count := len(pod.init_containers) + len(pod.containers)) > names.MAX_CONTAINERS:
        return [Violation("spec.containers", f"the pod has {count} containers; the most is {names.MAX_CONTAINERS}")]
    if unserved := [
        Violation(one.field, one.reason)
        for container in pod.all_containers
        for one in unserved_resources(container, container_field(pod, container.name), vocabularies)
    ]:
        return _as_told(pod, unserved)  # further problems would be misleading
    demand, problems = read_pod(pod, claims, classes, largest_mib=largest_mib, vocabularies=vocabularies)
    problems += template_problems(pod, claims, classes) + others_problems(pod, demand.containers)
    problems += mistyped_annotations(pod)
    found = [Violation(problem.field, problem.reason) for problem in problems]
    found += _brought_annotations(pod, demand, complete=not problems)
    for container in pod.all_containers:
        found += _brought_slot(pod, container, asks=container.name in demand.containers or bool(problems))
    found += [Violation(one.field, one.reason) for one in refused_size(None, pod)]
    if demand.containers and pod.spec.node_name:
        reason = "a pod that asks for a GPU is placed by the scheduler; use a nodeSelector to choose the node"
        found.append(Violation("spec.nodeName", reason))
    if demand.containers and (objection := schedulers.objection(pod)) is not None:
        found.append(Violation("spec.schedulerName", objection))
    return _as_told(pod, found + _brought_gang(pod, gang, asks=bool(demand.containers or problems)))


def _as_told(pod: Pod, found: list[Violation]) -> list[Violation]:
    """Return one problem for a static pod's mirror: kubelet sends it again and again, and logs each answer."""
    one = Violation(f"metadata.annotations[{MIRROR}]", foreign.NO_STATIC_PODS)
    return [one] if found and pod.is_mirror else found


def _brought_gang(pod: Pod, others: Iterable[Pod], *, asks: bool) -> list[Violation]:
    try:
        problem = disagreement(pod, others)
    except InvalidDemand as error:
        problem = error
    if problem is not None:
        return [Violation(problem.field, problem.reason)]
    if names.GANG in pod.annotations and not asks:
        reason = "the pod asks for no GPU, so it cannot be a member of a gang; remove the annotation"
        return [Violation(f"metadata.annotations[{names.GANG}]", reason)]
    return []


def _brought_annotations(pod: Pod, demand: PodDemand, *, complete: bool) -> list[Violation]:
    found = [
        Violation(f"metadata.annotations[{key}]", "is written by the scheduler when it places the pod; remove it")
        for key in sorted(pod.annotations)
        if key.startswith(WRITTEN_LATER)
    ]
    brought = pod.annotations.get(names.DEMAND)
    if brought is not None and complete and brought != (encode(demand) if demand.containers else None):
        reason = "does not match what this pod asks for; remove it, the webhook writes it"
        found.append(Violation(f"metadata.annotations[{names.DEMAND}]", reason))
    return found


def _brought_slot(pod: Pod, container: Container, *, asks: bool) -> list[Violation]:
    if container.resources is None:
        return []
    brought = (container.resources.limits or {}) | (container.resources.requests or {})
    if names.SLOT not in brought:
        return []
    field = f"{container_field(pod, container.name)}.resources.limits[{names.SLOT}]"
    if not asks:
        reason = f"is added by the webhook to containers that ask for a GPU; ask for {names.GPU_MEMORY} or {names.GPU}"
        return [Violation(field, reason)]
    if str(brought[names.SLOT]) != "1":
        return [Violation(field, f"asks for {brought[names.SLOT]} slots; a container has 1, which the webhook adds")]
    return []


def validate_pod_update(old: Pod, new: Pod, *, username: str = "", trusted: Collection[str] = ()) -> list[Violation]:
    """Return the annotations that must not change, and invalid sizes of a resize. Only `trusted` users, by name, may
    change an allocation, to resize it."""
    changeable = {names.ALLOCATION} if username in trusted else set[str]()
    changed = sorted(
        key
        for key in old.annotations.keys() | new.annotations.keys()
        if key.startswith(FIXED_ANNOTATIONS)
        and old.annotations.get(key) != new.annotations.get(key)
        and not (key in changeable and key in old.annotations and key in new.annotations)
    )
    reason = "cannot change after the pod is created; create another pod"
    fixed = [Violation(f"metadata.annotations[{key}]", reason) for key in changed]
    return fixed + [Violation(one.field, one.reason) for one in refused_size(old, new)]


def validate_binding(
    binding: Binding, *, username: str, groups: Collection[str], trusted: Collection[str]
) -> list[Violation]:
    """Return the annotations of a Binding that this caller must not write. Only `trusted` users, by name, and cluster
    administrators allocate cards, whoever else may bind pods."""
    if username in trusted or "system:masters" in groups:
        return []
    return [
        Violation(f"metadata.annotations[{key}]", f"{username} may not write it; only the scheduler allocates cards")
        for key in sorted(binding.annotations)
        if key.startswith((*FIXED_ANNOTATIONS, *names.ANSWERS))
    ]


def mutate_pod(
    pod: Pod,
    claims: Claims,
    classes: Classes,
    *,
    largest_mib: int | None = None,
    kinds: CardTotals | None = None,
    gang: Iterable[Pod] = (),
    vocabularies: Collection[str] = (),
    schedulers: Schedulers = ANY,
    token: str = "",
    joined: Mapping[str, str] | None = None,
) -> JSONPatch:
    """Return the JSON patch that makes a pod schedulable. Raises InvalidDemand: all of `validate_pod_create`.

    The patch names the scheduler, and the claims of templates (by `token`: see `with_named_claims`). It adds the
    annotations `joined` of the gang that the pod's group makes, the demand, the gang as a label, and per GPU container
    one slot, the amounts that a quota counts (`kinds` as in `counted`), requests equal to limits, and the environment
    that refers to what the Binding writes. Other containers get no card if they name a GPU resource with zero, or if
    variables from elsewhere might add cards. A second patch is empty.
    """
    before, pod = pod.metadata.annotations, with_annotations(with_named_claims(pod, token), joined)
    patch: JSONPatch = annotations(before, pod.annotations)
    if found := validate_pod_create(
        pod, claims, classes, largest_mib=largest_mib, gang=gang, vocabularies=vocabularies, schedulers=schedulers
    ):
        raise InvalidDemand(found[0].field, "; ".join([found[0].reason, *map(str, found[1:])]))
    demand, _ = read_pod(pod, claims, classes, vocabularies=vocabularies)
    if not demand.containers:
        # NVIDIA's runtime shows all cards to an image with NVIDIA_VISIBLE_DEVICES=all, also if the pod asks for zero.
        return hide_cards(pod, [one.name for one in pod.all_containers if may_show_cards(one)])
    patch += schedulers.patch(pod)
    patch += hide_cards(pod, [one.name for one in pod.all_containers if one.name not in demand.containers])
    if pod.metadata.annotations is None:
        patch.append(add({}, "metadata", "annotations"))
    text = encode(demand)
    if pod.annotations.get(names.DEMAND) != text:
        patch.append(add(text, "metadata", "annotations", names.DEMAND))
    patch += _patch_label(pod)
    for kind, containers in (("initContainers", pod.init_containers), ("containers", pod.containers)):
        for position, container in enumerate(containers):
            if (asked := demand.containers.get(container.name)) is not None:
                patch += _patch_container(("spec", kind, str(position)), container, asked, kinds)
    return patch


def _patch_label(pod: Pod) -> JSONPatch:
    """Add the gang as a label: pods can be listed by labels, not by annotations."""
    gang, labels = pod.annotations.get(names.GANG), pod.metadata.labels
    if gang is None or (labels or {}).get(names.GANG) == gang:
        return []
    made = [add({}, "metadata", "labels")] if labels is None else []
    return [*made, add(gang, "metadata", "labels", names.GANG)]


def _patch_container(
    path: tuple[str, ...], container: Container, demand: ContainerDemand, kinds: CardTotals | None
) -> JSONPatch:
    had, technology = container.resources or ResourceRequirements(), provisioner(demand.provisioner)
    if demand.claim:
        asked = claim_resources(demand, technology)
        wanted: dict[str, Quantity] = {resource: str(value) for resource, value in asked.items()}
    else:
        written = (had.requests or {}) | (had.limits or {})
        wanted = {resource: value for resource, value in written.items() if resource in BY_RESOURCE}
        wanted |= in_units(wanted, BY_NAME[demand.vocabulary])
    for resource, amount in counted(demand, technology, kinds).items():
        if resource not in wanted or count_or_none(wanted[resource]) != amount:
            wanted[resource] = str(amount)
    wanted[names.SLOT] = "1"
    patch = [] if container.resources else [add({}, *path, "resources")]
    for key, present in (("limits", had.limits), ("requests", had.requests)):
        if present is None:
            patch.append(add({}, *path, "resources", key))
        for resource, value in wanted.items():
            if str((present or {}).get(resource)) != str(value):
                patch.append(add(value, *path, "resources", key, resource))
    return patch + _patch_environment(path, container, demand)


def _patch_environment(path: tuple[str, ...], container: Container, demand: ContainerDemand) -> JSONPatch:
    cards = Variable(names.NVIDIA_VISIBLE_DEVICES, annotation=names.cards_annotation(container.name))
    told = [variable for technology in PROVISIONERS.values() for variable in technology.environment(demand)]
    patch: JSONPatch = []
    if container.env is None:
        patch.append(add([], *path, "env"))
    places = {variable.name: (place, variable) for place, variable in enumerate(container.env or [])}
    for variable in (cards, *told):
        named = f"metadata.annotations['{variable.annotation}']" if variable.annotation else None
        source = {"valueFrom": {"fieldRef": {"fieldPath": named}}} if named else {"value": variable.value}
        wanted = {"name": variable.name, **source}
        if variable.name not in places:
            patch.append(add(wanted, *path, "env", "-"))
            continue
        place, there = places[variable.name]
        reference = there.value_from.field_ref.field_path if there.value_from and there.value_from.field_ref else None
        if (reference, there.value) != (named, variable.value):
            # The author's own value would show the container other cards.
            patch.append({"op": "replace", "path": pointer(*path, "env", str(place)), "value": wanted})
    return patch


# --- our own kinds --------------------------------------------------------------------------------------------------


def validate_claim(
    claim: ElasticGPUClaim,
    old: ElasticGPUClaim | None,
    classes: Classes,
    *,
    largest_mib: int | None = None,
    vocabularies: Collection[str] = (),
) -> list[Violation]:
    """Return the problems of a claim; `old` is None for a new one. Its class cannot change; its amounts may, as long as
    its cards can stay. An unchanged spec passes: its class may be gone."""
    if old is not None and old.spec == claim.spec:
        return []
    if old is not None and old.spec.class_name != claim.spec.class_name:
        return [Violation("spec", f"the class {old.spec.class_name!r} of a claim cannot change; create another claim")]
    amounts = claim.spec.resources.limits | claim.spec.resources.requests
    if unserved := [
        Violation(f"spec.resources.requests[{resource}]", reason)
        for resource in sorted(amounts.keys() - names_of_class(claim, classes))
        if (reason := foreign.refused(resource, vocabularies, amounts[resource])) is not None
    ]:
        return unserved
    try:
        demand = claim_demand(claim, claim_class(claim, classes))
        check_edit(claim, old, demand)
    except InvalidDemand as error:
        return [Violation(error.field, error.reason)]
    if largest_mib is not None and demand.memory_mib > largest_mib:
        advice = memory_advice(BY_NAME[demand.vocabulary].memory_unit_mib)
        reason = f"asks for {demand.memory_mib} MiB of one card; the largest card has {largest_mib} MiB: {advice}"
        named = [f"[{name}]" for name in claim.spec.resources.requests if name.endswith(("memory", "mem"))]
        return [Violation("spec.resources.requests" + (named[0] if len(named) == 1 else ""), reason)]
    return []


def validate_class(klass: ElasticGPUClass, old: ElasticGPUClass | None) -> list[Violation]:
    """Return the problems of a class. As for a StorageClass, what it provides cannot change."""
    found: list[Violation] = []
    parameters = klass.parameters or {}
    technology = None
    try:
        technology = provisioner(klass.provisioner)
    except UnknownProvisioner as error:
        found.append(Violation("provisioner", str(error)))
    else:
        if old is None:  # an older one must stay changeable
            found += [Violation(one.field, one.reason) for one in unknown_parameters(parameters, technology)]
    for parameter, allowed in (parameter_values() | {POLICY: CLUSTER_NAMES}).items():
        value = parameters.get(parameter)
        if value is not None and value not in allowed:
            found.append(Violation(f"parameters[{parameter}]", f"{value!r} is not one of {', '.join(allowed)}"))
    for check in checks_of(technology):
        try:
            check(parameters)
        except InvalidDemand as error:
            found.append(Violation(error.field, error.reason))
    both = {klass.e_gpu_binding_mode, klass.egpu_binding_mode} - {None}
    if len(both) > 1:
        found.append(Violation("egpuBindingMode", f"{klass.egpu_binding_mode} contradicts eGPUBindingMode; keep one"))
    if old is not None:
        kept = {
            "provisioner": klass.provisioner == old.provisioner,
            "parameters": parameters == (old.parameters or {}),
            "eGPUBindingMode": klass.binding_mode == old.binding_mode,
            "reclaimPolicy": klass.reclaim_policy == old.reclaim_policy,
        }
        reason = "cannot change after the class is created; create another class"
        found += [Violation(field, reason) for field, same in kept.items() if not same]
    return found


def validate_egpu(gpu: ElasticGPU, old: ElasticGPU | None) -> list[Violation]:
    """Return the problems of a card or a slice."""
    spec = gpu.spec
    if (spec.physical_gpu is None) == (spec.slice is None):
        return [Violation("spec", "must have exactly one of physicalGPU (a card) and slice (a share of a card)")]
    found: list[Violation] = []
    if not spec.node_name:
        found.append(Violation("spec.nodeName", "names no node; set it to the node that has the card"))
    if spec.slice is not None:
        if spec.claim_ref is None or not spec.claim_ref.uid:
            found.append(Violation("spec.claimRef", "names no claim; set it to the claim of the slice, with its uid"))
        try:
            provisioner(spec.slice.provisioner)
        except UnknownProvisioner as error:
            found.append(Violation("spec.slice.provisioner", str(error)))
        if old is not None and (unsized(old.spec.slice), old.spec.claim_ref) != (unsized(spec.slice), spec.claim_ref):
            reason = "only the size of a slice can change; delete the slice and let its claim bind again"
            found.append(Violation("spec", reason))
    if spec.physical_gpu is not None and old is not None and old.spec.physical_gpu is not None:
        if old.spec.physical_gpu.uuid != spec.physical_gpu.uuid:
            found.append(Violation("spec.physicalGPU.uuid", "identifies the card; publish another object"))
        if old.spec.node_name != spec.node_name:
            found.append(Violation("spec.nodeName", "the node of a card cannot change; publish another object"))
    return found
