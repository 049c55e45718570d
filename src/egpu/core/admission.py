"""The webhook's decisions: what a pod is changed to, and what is refused and why.

Every refusal names the field as a kubectl user would write it. Not here: HTTP, certificates, who may call.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from egpu.api import foreign, names
from egpu.api.admission import JSONPatch
from egpu.api.allocation import ContainerDemand, PodDemand, encode
from egpu.api.kubernetes import Binding, Container, Pod, ResourceRequirements
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.api.quantities import Quantity
from egpu.api.vocabularies import BY_RESOURCE
from egpu.core.demand.amounts import count_or_none
from egpu.core.demand.bounds import class_bounds
from egpu.core.demand.claims import (
    Claims,
    Classes,
    claim_class,
    claim_demand,
    claim_resources,
    class_profiles,
    class_selector,
    names_of_class,
    parameter_values,
)
from egpu.core.demand.counted import counted
from egpu.core.demand.pods import container_field, read_pod
from egpu.core.gangs.membership import disagreement
from egpu.core.policies.registry import CLUSTER_NAMES
from egpu.core.provisioners import PROVISIONERS, CardTotals, provisioner
from egpu.core.provisioners.base import Variable
from egpu.core.provisioners.isolation import memory_isolation
from egpu.core.provisioners.oversubscription import memory_limit_percent
from egpu.core.provisioners.sharing import is_shareable
from egpu.core.resizing import check_edit, refused_size, unsized
from egpu.errors import InvalidDemand, UnknownProvisioner

_OURS: Final = (names.ALLOCATION, names.CARDS_PREFIX)
"""Annotations that only a Binding writes."""
_ASKED: Final = (
    names.VCUDA_CORE_LIMIT,
    names.GANG,
    names.LINKS,
    names.CARD_SELECTOR,
    names.CARD_PREFERENCE,
    *names.CLAIM_PREFIXES,
)
FIXED_ANNOTATIONS: Final = (*_OURS, names.DEMAND, *_ASKED)
"""Beginnings of annotations that stay as they were when the pod was made, but for what its Binding writes."""


@dataclass(frozen=True)
class Violation:
    """One thing that is wrong: where, and why."""

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
) -> list[Violation]:
    """What is wrong with a new pod; nothing when it may be made. Holds for a pod before and after `mutate_pod`.

    `claims` are those of the pod's namespace, by name. `largest_mib`: memory of the largest card, None when unknown.
    `gang`: the pods of the gang that it names, if it names one. `vocabularies`: the optional ones that are turned on.
    """
    if unserved := [one for container in pod.all_containers for one in _foreign_names(pod, container, vocabularies)]:
        return unserved  # beside them nothing means what it says
    demand, problems = read_pod(pod, claims, classes, largest_mib=largest_mib, vocabularies=vocabularies)
    found = [Violation(problem.field, problem.reason) for problem in problems]
    found += _brought_annotations(pod, demand, complete=not problems)
    for container in pod.all_containers:
        found += _brought_slot(pod, container, asks=container.name in demand.containers or bool(problems))
    found += [Violation(one.field, one.reason) for one in refused_size(None, pod)]
    if demand.containers and pod.spec.node_name:
        reason = "a pod that asks for a GPU is placed by the scheduler; use a nodeSelector to choose the node"
        found.append(Violation("spec.nodeName", reason))
    return found + _brought_gang(pod, gang, asks=bool(demand.containers or problems))


def _foreign_names(pod: Pod, container: Container, vocabularies: Collection[str]) -> list[Violation]:
    had = container.resources or ResourceRequirements()
    field = container_field(pod, container.name) + ".resources"
    given = dict.fromkeys(had.requests or {}, "requests") | dict.fromkeys(had.limits or {}, "limits")
    return [
        Violation(f"{field}.{kind}[{resource}]", reason)
        for resource, kind in sorted(given.items())
        if (reason := foreign.refused(resource, vocabularies)) is not None
    ]


def _brought_gang(pod: Pod, others: Iterable[Pod], *, asks: bool) -> list[Violation]:
    try:
        problem = disagreement(pod, others)
    except InvalidDemand as error:
        problem = error
    if problem is not None:
        return [Violation(problem.field, problem.reason)]
    if names.GANG in pod.annotations and not asks:
        reason = "the pod asks for no GPU: it is placed by the scheduler alone, and cannot wait for the others"
        return [Violation(f"metadata.annotations[{names.GANG}]", reason)]
    return []


def _brought_annotations(pod: Pod, demand: PodDemand, *, complete: bool) -> list[Violation]:
    found = [
        Violation(f"metadata.annotations[{key}]", "is written by the scheduler when it places the pod; remove it")
        for key in sorted(pod.annotations)
        if key.startswith((*_OURS, names.RESERVATION))
    ]
    brought = pod.annotations.get(names.DEMAND)
    if brought is not None and complete and brought != (encode(demand) if demand.containers else None):
        reason = "is written by the webhook and is not what this pod asks for; remove it"
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
        return [Violation(field, f"{brought[names.SLOT]} slots; a container has exactly 1, and the webhook adds it")]
    return []


def validate_pod_update(old: Pod, new: Pod, *, username: str = "", trusted: Collection[str] = ()) -> list[Violation]:
    """Annotations that were changed and must not be: what a pod was given changes by the hand that gave it alone
    (`trusted`, user names), which resizes it. And what cannot be a size to be resized to."""
    given = {names.ALLOCATION} if username in trusted else set[str]()
    changed = sorted(
        key
        for key in old.annotations.keys() | new.annotations.keys()
        if key.startswith(FIXED_ANNOTATIONS)
        and old.annotations.get(key) != new.annotations.get(key)
        and not (key in given and key in old.annotations and key in new.annotations)
    )
    reason = "cannot be changed once the pod is made; make another pod"
    fixed = [Violation(f"metadata.annotations[{key}]", reason) for key in changed]
    return fixed + [Violation(one.field, one.reason) for one in refused_size(old, new)]


def validate_binding(
    binding: Binding, *, username: str, groups: Collection[str], trusted: Collection[str]
) -> list[Violation]:
    """Annotations of a Binding that this caller must not write: cards are given out by the scheduler's own account
    (`trusted` user names) and by cluster administrators, however wide somebody's right to bind pods is."""
    if username in trusted or "system:masters" in groups:
        return []
    return [
        Violation(f"metadata.annotations[{key}]", f"{username} is not the scheduler; only it gives out cards")
        for key in sorted(binding.annotations)
        if key.startswith(FIXED_ANNOTATIONS)
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
) -> JSONPatch:
    """The JSON patch that makes a pod schedulable: its demand as one annotation, per GPU container one slot and what a
    quota counts (`kinds` as in `counted`), requests equal to limits, and the environment by reference to what the
    Binding will write; its gang as a label. Containers beside those that ask are told to see no card, also in pods
    without any demand where variables from elsewhere might say otherwise. Empty for other pods without GPU demand, and
    for one that was patched already.

    Raises InvalidDemand with everything that `validate_pod_create` finds.
    """
    if found := validate_pod_create(
        pod, claims, classes, largest_mib=largest_mib, gang=gang, vocabularies=vocabularies
    ):
        raise InvalidDemand(found[0].field, "; ".join([found[0].reason, *map(str, found[1:])]))
    demand, _ = read_pod(pod, claims, classes, vocabularies=vocabularies)
    if not demand.containers:
        return _cover(pod, [one.name for one in pod.all_containers if one.env_from])
    patch = _cover(pod, [one.name for one in pod.all_containers if one.name not in demand.containers])
    if pod.metadata.annotations is None:
        patch.append(_add({}, "metadata", "annotations"))
    text = encode(demand)
    if pod.annotations.get(names.DEMAND) != text:
        patch.append(_add(text, "metadata", "annotations", names.DEMAND))
    patch += _patch_label(pod)
    for kind, containers in (("initContainers", pod.init_containers), ("containers", pod.containers)):
        for position, container in enumerate(containers):
            if (asked := demand.containers.get(container.name)) is not None:
                patch += _patch_container(("spec", kind, str(position)), container, asked, kinds)
    return patch


def _cover(pod: Pod, covered: Collection[str]) -> JSONPatch:
    """Where these containers do not say what they see of the node's cards, nothing: a variable of the container's own
    counts more than one of its image or from elsewhere."""
    patch: JSONPatch = []
    for kind, containers in (("initContainers", pod.init_containers), ("containers", pod.containers)):
        for position, container in enumerate(containers):
            said = {variable.name for variable in container.env or []}
            if container.name in covered and names.NVIDIA_VISIBLE_DEVICES not in said:
                path = ("spec", kind, str(position), "env")
                nothing = {"name": names.NVIDIA_VISIBLE_DEVICES, "value": names.NO_DEVICES}
                patch += [] if container.env is not None else [_add([], *path)]
                patch.append(_add(nothing, *path, "-"))
    return patch


def _patch_label(pod: Pod) -> JSONPatch:
    """The gang as a label: by it a gang's pods are listed, annotations cannot be."""
    gang, labels = pod.annotations.get(names.GANG), pod.metadata.labels
    if gang is None or (labels or {}).get(names.GANG) == gang:
        return []
    made = [_add({}, "metadata", "labels")] if labels is None else []
    return [*made, _add(gang, "metadata", "labels", names.GANG)]


def _patch_container(
    path: tuple[str, ...], container: Container, demand: ContainerDemand, kinds: CardTotals | None
) -> JSONPatch:
    had = container.resources or ResourceRequirements()
    if demand.claim:
        wanted: dict[str, Quantity] = {resource: str(value) for resource, value in claim_resources(demand).items()}
    else:
        asked = {**(had.requests or {}), **(had.limits or {})}
        wanted = {resource: value for resource, value in asked.items() if resource in BY_RESOURCE}
    for resource, amount in counted(demand, kinds).items():
        if resource not in wanted or count_or_none(wanted[resource]) != amount:
            wanted[resource] = str(amount)
    wanted[names.SLOT] = "1"
    patch = [] if container.resources else [_add({}, *path, "resources")]
    for key, present in (("limits", had.limits), ("requests", had.requests)):
        if present is None:
            patch.append(_add({}, *path, "resources", key))
        for resource, value in wanted.items():
            if str((present or {}).get(resource)) != str(value):
                patch.append(_add(value, *path, "resources", key, resource))
    return patch + _patch_environment(path, container, demand)


def _patch_environment(path: tuple[str, ...], container: Container, demand: ContainerDemand) -> JSONPatch:
    cards = Variable(names.NVIDIA_VISIBLE_DEVICES, annotation=names.cards_annotation(container.name))
    told = [variable for technology in PROVISIONERS.values() for variable in technology.environment(demand)]
    patch: JSONPatch = []
    if container.env is None:
        patch.append(_add([], *path, "env"))
    places = {variable.name: (place, variable) for place, variable in enumerate(container.env or [])}
    for variable in (cards, *told):
        named = f"metadata.annotations['{variable.annotation}']" if variable.annotation else None
        source = {"valueFrom": {"fieldRef": {"fieldPath": named}}} if named else {"value": variable.value}
        wanted = {"name": variable.name, **source}
        if variable.name not in places:
            patch.append(_add(wanted, *path, "env", "-"))
            continue
        place, there = places[variable.name]
        reference = there.value_from.field_ref.field_path if there.value_from and there.value_from.field_ref else None
        if (reference, there.value) != (named, variable.value):
            # The author's own value would show the container cards that are not its own.
            patch.append({"op": "replace", "path": _pointer(*path, "env", str(place)), "value": wanted})
    return patch


def _add(value: object, *path: str) -> dict[str, Any]:
    return {"op": "add", "path": _pointer(*path), "value": value}


def _pointer(*path: str) -> str:
    """JSON pointer, RFC 6901."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)


# --- our own kinds --------------------------------------------------------------------------------------------------


def validate_claim(
    claim: ElasticGPUClaim,
    old: ElasticGPUClaim | None,
    classes: Classes,
    *,
    largest_mib: int | None = None,
    vocabularies: Collection[str] = (),
) -> list[Violation]:
    """What is wrong with a claim. `old` is None when it is made. A claim keeps its class; what it asks for may change
    while its cards can stay. One that stays as it was is not judged again: its class may have been deleted since."""
    if old is not None and old.spec == claim.spec:
        return []
    if old is not None and old.spec.class_name != claim.spec.class_name:
        return [Violation("spec", f"the claim keeps its class {old.spec.class_name!r}; make another claim")]
    asked = {*claim.spec.resources.limits, *claim.spec.resources.requests} - names_of_class(claim, classes)
    if unserved := [
        Violation(f"spec.resources.requests[{resource}]", reason)
        for resource in sorted(asked)
        if (reason := foreign.refused(resource, vocabularies)) is not None
    ]:
        return unserved
    try:
        demand = claim_demand(claim, claim_class(claim, classes))
        check_edit(claim, old, demand)
    except InvalidDemand as error:
        return [Violation(error.field, error.reason)]
    if largest_mib is not None and demand.memory_mib > largest_mib:
        reason = f"{demand.memory_mib} MiB of one card; the largest card has {largest_mib} MiB"
        named = [f"[{name}]" for name in claim.spec.resources.requests if name.endswith(("memory", "mem"))]
        return [Violation("spec.resources.requests" + (named[0] if len(named) == 1 else ""), reason)]
    return []


def validate_class(klass: ElasticGPUClass, old: ElasticGPUClass | None) -> list[Violation]:
    """What is wrong with a class. As a StorageClass, it never changes what it provides."""
    found: list[Violation] = []
    try:
        provisioner(klass.provisioner)
    except UnknownProvisioner as error:
        found.append(Violation("provisioner", str(error)))
    for parameter, allowed in (parameter_values() | {"policy": CLUSTER_NAMES}).items():
        value = (klass.parameters or {}).get(parameter)
        if value is not None and value not in allowed:
            found.append(Violation(f"parameters[{parameter}]", f"{value!r} is not one of {', '.join(allowed)}"))
    for check in (memory_limit_percent, is_shareable, memory_isolation, class_bounds, class_selector, class_profiles):
        try:
            check(klass)
        except InvalidDemand as error:
            found.append(Violation(error.field, error.reason))
        except UnknownProvisioner:
            pass  # said above
    both = {klass.e_gpu_binding_mode, klass.egpu_binding_mode} - {None}
    if len(both) > 1:
        found.append(Violation("egpuBindingMode", f"{klass.egpu_binding_mode} contradicts eGPUBindingMode; keep one"))
    if old is not None:
        kept = {
            "provisioner": klass.provisioner == old.provisioner,
            "parameters": (klass.parameters or {}) == (old.parameters or {}),
            "eGPUBindingMode": klass.binding_mode == old.binding_mode,
            "reclaimPolicy": klass.reclaim_policy == old.reclaim_policy,
        }
        reason = "a class keeps what it was made with; make another class"
        found += [Violation(field, reason) for field, same in kept.items() if not same]
    return found


def validate_egpu(gpu: ElasticGPU, old: ElasticGPU | None) -> list[Violation]:
    """What is wrong with a card or a slice."""
    spec = gpu.spec
    if (spec.physical_gpu is None) == (spec.slice is None):
        return [Violation("spec", "exactly one of physicalGPU (a card) and slice (a share of one) must be given")]
    found: list[Violation] = []
    if not spec.node_name:
        found.append(Violation("spec.nodeName", "names no node; a card is always in one"))
    if spec.slice is not None:
        if spec.claim_ref is None or not spec.claim_ref.uid:
            found.append(Violation("spec.claimRef", "names no claim (with its uid); a slice always belongs to one"))
        try:
            provisioner(spec.slice.provisioner)
        except UnknownProvisioner as error:
            found.append(Violation("spec.slice.provisioner", str(error)))
        if old is not None and (unsized(old.spec.slice), old.spec.claim_ref) != (unsized(spec.slice), spec.claim_ref):
            reason = "of a slice only the size changes; delete it and let its claim be bound again"
            found.append(Violation("spec", reason))
    if spec.physical_gpu is not None and old is not None and old.spec.physical_gpu is not None:
        if old.spec.physical_gpu.uuid != spec.physical_gpu.uuid:
            found.append(Violation("spec.physicalGPU.uuid", "is what the card is; publish another object"))
        if old.spec.node_name != spec.node_name:
            found.append(Violation("spec.nodeName", "a card does not move; publish another object"))
    return found
