"""Names of other projects on a pod (`egpu.api.foreign`): read as a card selection, or refused with what to write."""

from collections.abc import Collection

from egpu.api import foreign
from egpu.api.allocation import CardRequirement
from egpu.api.foreign import FRACTIONS, NO_USE_TYPE, USE_TYPE, Place
from egpu.core.attributes import MODEL_TEXT, Select, requirement
from egpu_base.api.kubernetes import Container, Pod, ResourceRequirements
from egpu_base.errors import InvalidDemand

_OPERATORS = {USE_TYPE: "In", NO_USE_TYPE: "NotIn"}


def others_selector(pod: Pod) -> Select:
    """Return the cards that a pod selects by annotations of other projects. Raises InvalidDemand."""
    return tuple(
        _model_text(pod.annotations[annotation], operator, f"metadata.annotations[{annotation}]")
        for annotation, operator in _OPERATORS.items()
        if annotation in pod.annotations
    )


def _model_text(text: str, operator: str, field: str) -> CardRequirement:
    texts = [word.strip() for word in text.split(",") if word.strip()]
    if not texts:
        raise InvalidDemand(field, "names no model; write for example A100,V100, or remove it")
    return requirement(MODEL_TEXT, operator, texts, field=field)


def unserved_resources(container: Container, field: str, vocabularies: Collection[str]) -> list[InvalidDemand]:
    """Return a problem for each resource that is not supported. `field`: the container's path."""
    had = container.resources or ResourceRequirements()
    asked = dict.fromkeys(had.requests or {}, "requests") | dict.fromkeys(had.limits or {}, "limits")
    amounts = (had.requests or {}) | (had.limits or {})
    return [
        InvalidDemand(f"{field}.resources.{kind}[{resource}]", reason)
        for resource, kind in sorted(asked.items())
        if (reason := foreign.refused(resource, vocabularies, amounts[resource])) is not None
    ]


def others_problems(pod: Pod, asking: Collection[str]) -> list[InvalidDemand]:
    """Return a problem for each annotation, label and variable of another project that is not supported.

    `asking`: the containers that ask for a GPU. A pod without any has problems only with annotations that ask for one.
    """
    said = [(Place.ANNOTATION, f"metadata.annotations[{name}]", name, value) for name, value in pod.annotations.items()]
    if not asking:
        said = [one for one in said if one[2].startswith(FRACTIONS)]
    else:
        labels = (pod.metadata.labels or {}).items()
        said += [(Place.LABEL, f"metadata.labels[{name}]", name, value) for name, value in labels]
        for kind, containers in (("initContainers", pod.init_containers), ("containers", pod.containers)):
            said += [
                (Place.VARIABLE, f"spec.{kind}[{one.name}].env[{variable.name}]", variable.name, variable.value or "")
                for one in containers
                if one.name in asking
                for variable in one.env or []
            ]
    return [
        InvalidDemand(field, reason)
        for place, field, name, value in said
        if (reason := foreign.objection(place, name, value)) is not None
    ]
