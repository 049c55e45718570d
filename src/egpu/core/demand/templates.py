"""Claims from templates: each pod gets a claim of its own, as a generic ephemeral volume gives it a volume of its own.

A template is an annotation of the pod with the spec of a claim. The webhook names the claim, in the annotation for
claims. So all others see a pod that uses a claim. The controller makes the claim, owned by the pod.
"""

from hashlib import sha256
from typing import Final

import msgspec
from msgspec.structs import replace

from egpu.api import names
from egpu.api.objects import ElasticGPUClaim, ElasticGPUClaimSpec
from egpu.core.demand.claims import Claims, Classes
from egpu.core.demand.classes import class_terms
from egpu.core.demand.pods import claims_by_container
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import ObjectMeta, OwnerReference
from egpu_base.errors import InvalidDemand, UnknownProvisioner

_MOST_CHARACTERS: Final = 63
"""Length of a claim's name, so that it fits into a label."""
_DIGITS: Final = 8
_FIELDS: Final = frozenset(field.encode_name for field in msgspec.structs.fields(ElasticGPUClaimSpec))


def claim_templates(pod: Pod) -> dict[str, ElasticGPUClaimSpec]:
    """Return the templates in a pod's annotations: container → spec of its claim.

    Raises InvalidDemand for a container that does not exist, and for a text that is no spec of a claim.
    """
    known = {container.name for container in pod.all_containers}
    found: dict[str, ElasticGPUClaimSpec] = {}
    for key, text in sorted(pod.annotations.items()):
        if not key.startswith(names.CLAIM_TEMPLATE_PREFIX):
            continue
        field, container = f"metadata.annotations[{key}]", key.removeprefix(names.CLAIM_TEMPLATE_PREFIX)
        if container not in known:
            listed = ", ".join(sorted(known))
            raise InvalidDemand(field, f"the pod has no container {container!r}; its containers are {listed}")
        try:
            given = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            found[container] = msgspec.json.decode(text, type=ElasticGPUClaimSpec)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidDemand(field, f"is not the spec of an ElasticGPUClaim in JSON: {error}") from error
        if unknown := sorted(given.keys() - _FIELDS):
            listed = ", ".join(sorted(_FIELDS))
            raise InvalidDemand(field, f"{unknown[0]!r} is not a field of a claim's spec; its fields are {listed}")
    return found


def with_named_claims(pod: Pod, token: str) -> Pod:
    """Return the pod with a claim named for each template that has none yet. `token` differs for each pod.

    Raises InvalidDemand.
    """
    templates, named = claim_templates(pod), claims_by_container(pod)
    base = pod.name or pod.metadata.generate_name.rstrip("-.") or "pod"
    added: dict[str, str] = {}
    for container in templates.keys() - named.keys():
        digest = sha256(f"{token}/{container}".encode()).hexdigest()[:_DIGITS]
        room = _MOST_CHARACTERS - _DIGITS - 1
        added[names.CLAIM_PREFIXES[1] + container] = f"{f'{base}-{container}'[:room].rstrip('-.')}-{digest}"
    if not added:
        return pod
    return replace(pod, metadata=replace(pod.metadata, annotations=pod.annotations | added))


def own_claims(pod: Pod) -> list[ElasticGPUClaim]:
    """Return the claims that the controller makes for a pod, owned by it. Raises InvalidDemand."""
    named = claims_by_container(pod)
    owner = OwnerReference(api_version="v1", kind="Pod", name=pod.name, uid=pod.uid, controller=True)
    claims: list[ElasticGPUClaim] = []
    for container, spec in claim_templates(pod).items():
        if container not in named:
            field = f"metadata.annotations[{names.CLAIM_TEMPLATE_PREFIX}{container}]"
            raise InvalidDemand(field, "the claim has no name yet; the webhook names it when the pod is created")
        metadata = ObjectMeta(name=named[container], namespace=pod.namespace, owner_references=[owner])
        claims.append(ElasticGPUClaim(metadata=metadata, spec=spec))
    return claims


def template_problems(pod: Pod, claims: Claims, classes: Classes) -> list[InvalidDemand]:
    """Return what is wrong with a new pod's templates, apart from what is wrong with such claims. `claims`: those that
    the pod names, with its own."""
    try:
        containers = {name: container for container, name in claims_by_container(pod).items()}
    except InvalidDemand:
        return []  # `read_pod` reports it
    try:
        made = own_claims(pod)
    except InvalidDemand as error:
        return [error]
    problems: list[InvalidDemand] = []
    for own in made:
        container = containers[own.name]
        field = f"metadata.annotations[{names.CLAIM_TEMPLATE_PREFIX}{container}]"
        there, klass = claims.get(own.name), classes.get(own.spec.class_name)
        if there is not None and there.uid:
            reason = f"the claim {own.name} exists; remove its annotation, and the webhook names a new one"
            problems.append(InvalidDemand(field, reason))
        elif klass is not None and _is_shareable(klass.name, classes):
            reason = f"class {klass.name} is shareable, but this claim serves one pod; use a class without shareable"
            problems.append(InvalidDemand(field, reason))
    return problems


def _is_shareable(name: str, classes: Classes) -> bool:
    try:
        return class_terms(classes[name]).shareable
    except (UnknownProvisioner, InvalidDemand):
        return False  # the claim is refused for it
