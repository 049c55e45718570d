"""What pods ask for in a storm of every technology: whole cards, slices, fixed profiles, replicas, instances of MIG.

Each demand says in words what may lie on one card with it: those that say the same. The storm's witness goes by these
words, which the product does not know, and not by what the product wrote down.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from egpu.api import names

Json = dict[str, Any]

BESIDE: Final = "storm.example/beside"
"""Annotation of a pod (by container, as JSON) and of a claim: what may lie beside it."""
WHOLE: Final = "nothing"


@dataclass(frozen=True)
class Demand:
    """`amounts` by resource name; `klass`: asked for by a claim of that class, else by the container itself."""

    beside: str
    amounts: Mapping[str, int | str]
    klass: str = ""


EQUAL, LONG, STRICT, CUT, AS_IT_IS, AT_ONCE = "equal", "long", "strict", "cut", "as-it-is", "at-once"
_CLASSES: Final = {
    EQUAL: (names.VGPU, {"vgpuMode": "equal-size"}),
    LONG: (names.TIMESLICE, {"timeSlice": "long", "replicas": "8"}),
    STRICT: (names.VCUDA, {"memoryIsolation": "driver"}),
    CUT: (names.MIG, {}),
    AS_IT_IS: (names.MIG, {"repartition": "never"}),
    AT_ONCE: (names.MIG, {}),
}


def classes() -> list[Json]:
    return [
        {
            "apiVersion": "elasticgpu.io/v1alpha1",
            "kind": "ElasticGPUClass",
            "metadata": {"name": name},
            "provisioner": provisioner,
            "parameters": parameters,
            "eGPUBindingMode": "Immediate" if name == AT_ONCE else "WaitForFirstConsumer",
        }
        for name, (provisioner, parameters) in _CLASSES.items()
    ]


def demand(rng: random.Random, profiles: list[str]) -> Demand:
    """One of any technology; `profiles` are names of MIG's."""
    core, memory = rng.choice((5, 10, 25, 40, 60)), rng.choice((512, 2048, 6144, 12288))
    parts = rng.choice((2, 3, 4, 8))
    instance = {names.MIG_PREFIX + rng.choice(profiles).replace("+", "."): 1}
    amounts: dict[str, int | str] = {names.GPU_CORE: core, names.GPU_MEMORY: memory}
    return rng.choice(
        (
            Demand(WHOLE, {names.NVIDIA_GPU: 1}),
            Demand(WHOLE, {names.NVIDIA_GPU: 2}),
            Demand("vcuda", amounts),
            Demand("vcuda", {names.DOCKER_VCUDA_CORE: core, names.DOCKER_VCUDA_MEMORY: memory // 256}),
            Demand("vcuda", amounts, STRICT),
            Demand("qgpu", {names.QGPU_CORE: core, names.QGPU_MEMORY: max(memory // 1024, 1)}),
            Demand("gpushare", {names.ALIYUN_GPU_MEM: max(memory // 1024, 1)}),
            Demand("vgpu", {f"{names.VGPU}-{parts}": 1}),
            Demand(f"vgpu of 1/{parts} only", {f"{names.VGPU}-{parts}": 1}, EQUAL),
            Demand("timeslice", {names.NVIDIA_GPU_SHARED: 1}),
            Demand("timeslice, long", {names.NVIDIA_GPU_SHARED: 1}, LONG),
            *[Demand("mig", instance)] * 3,
            *(Demand("mig", instance, klass) for klass in (CUT, AS_IT_IS, AT_ONCE)),
            Demand("mig", {names.GPU_CORE: rng.choice((10, 14, 28)), names.GPU_MEMORY: "4Gi"}, CUT),
        )
    )


def claim(name: str, asked: Demand) -> Json:
    return {
        "apiVersion": "elasticgpu.io/v1alpha1",
        "kind": "ElasticGPUClaim",
        "metadata": {"name": name, "namespace": "ns", "annotations": {BESIDE: asked.beside}},
        "spec": {"elasticGPUClassName": asked.klass, "resources": {"requests": dict(asked.amounts)}},
    }


def pod(name: str, asked: Mapping[str, Demand], claims: Mapping[str, str]) -> Json:
    """A container for each demand; `claims` by container, for those that use one."""
    annotations = {
        names.DEMAND: '{"version":1,"containers":{}}',
        BESIDE: json.dumps({container: one.beside for container, one in asked.items()}),
        **{names.CLAIM_PREFIXES[0] + container: used for container, used in claims.items()},
    }
    containers = [
        {"name": container, "image": "any", "resources": {} if one.klass else {"limits": dict(one.amounts)}}
        for container, one in asked.items()
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "annotations": annotations},
        "spec": {"containers": containers},
        "status": {"phase": "Pending"},
    }
