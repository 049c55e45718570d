"""Would it fit? Explains a demand from a form as `egpu explain` explains a pod. Creates nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from egpu.api import names
from egpu.api.allocation import encode
from egpu.core.admission import validate_pod_create
from egpu.core.demand.pods import read_pod
from egpu.core.explain import Explanation
from egpu.core.preemption.explaining import explain_with_preemption
from egpu.core.preemption.scene import Scene
from egpu_base.api.kubernetes import Container, Pod, PodSpec, ResourceRequirements
from egpu_base.api.objects import ObjectMeta
from egpu_base.api.quantities import Quantity

CONTAINER: Final = "app"
NAMESPACE: Final = "default"
POD: Final = "would-it-fit"
MAX_FIELD_CHARACTERS: Final = 256


@dataclass(frozen=True)
class Kind:
    """A way of asking: the resources for the form's fields; "" for fields that it does not use."""

    label: str
    core: str = ""
    memory: str = ""
    memory_unit: str = ""
    cards: str = ""
    tflops: str = ""


KINDS: Final[Mapping[str, Kind]] = {
    "vcuda": Kind("a slice (vcuda)", names.GPU_CORE, names.GPU_MEMORY, "MiB", tflops=names.TFLOPS),
    "qgpu": Kind("an isolated slice (qgpu)", names.QGPU_CORE, names.QGPU_MEMORY, "GiB"),
    "gpushare": Kind("memory only (gpushare)", memory=names.ALIYUN_GPU_MEM, memory_unit="GiB"),
    "pool": Kind("a slice from any node (pool)", names.POOL_CORE, names.POOL_MEMORY, "MiB"),
    "cards": Kind("whole cards", cards=names.NVIDIA_GPU),
}


@dataclass(frozen=True)
class Form:
    """The fields as typed; `kind` is one of KINDS."""

    kind: str = "vcuda"
    core: str = ""
    memory: str = ""
    cards: str = ""
    tflops: str = ""
    select: str = ""

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "Form":
        """Read a page's query; too long or unknown values count as missing."""
        typed = {one.name: query.get(one.name, "").strip() for one in fields(cls)}
        kept = {name: value for name, value in typed.items() if value and len(value) <= MAX_FIELD_CHARACTERS}
        if kept.get("kind") not in KINDS:
            kept.pop("kind", None)
        return cls(**kept)

    @property
    def resources(self) -> dict[str, Quantity]:
        """Return the fields as a pod's limits."""
        kind = KINDS[self.kind]
        return {
            resource: value
            for resource, value in (
                (kind.core, self.core),
                (kind.memory, self.memory),
                (kind.cards, self.cards),
                (kind.tflops, self.tflops),
            )
            if resource and value
        }


@dataclass(frozen=True)
class Answer:
    """The answer. `problems`: errors in the input, in sentences; else the result of the placement code."""

    problems: tuple[str, ...] = ()
    explanation: Explanation | None = None
    limits: Mapping[str, Quantity] = field(default_factory=dict[str, Quantity])


def would_fit(form: Form, scene: Callable[[], Scene], *, largest_mib: int | None) -> Answer | None:
    """Return the answer, or None without a question. `largest_mib`: memory of the largest card, None without cards."""
    limits = form.resources
    if not limits:
        return None
    pod = _pod(limits, form.select)
    found = validate_pod_create(pod, {}, {}, largest_mib=largest_mib)
    if found:
        return Answer(tuple(map(str, found)), limits=limits)
    demand, _ = read_pod(pod, {}, {})
    asked = _pod(limits, form.select, {names.DEMAND: encode(demand)})
    return Answer(explanation=explain_with_preemption(asked, scene()), limits=limits)


def _pod(limits: dict[str, Quantity], select: str, annotations: Mapping[str, str] | None = None) -> Pod:
    selected = {names.CARD_SELECTOR: select} if select else {}
    return Pod(
        metadata=ObjectMeta(name=POD, namespace=NAMESPACE, uid=POD, annotations={**selected, **(annotations or {})}),
        spec=PodSpec(containers=[Container(name=CONTAINER, resources=ResourceRequirements(limits=limits))]),
    )
