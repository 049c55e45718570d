"""What a ResourceQuota counts of a pod: percent and MiB over all its cards, in whatever words it asks."""

import copy
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import PodDemand, encode
from egpu.apps.agent.cards.capacity import node_capacity
from egpu.core.admission import mutate_pod, validate_pod_create
from egpu.core.demand.claims import Claims, Classes
from egpu.core.demand.pods import read_pod
from egpu.core.provisioners import CardTotals
from egpu_base.api.kubernetes import Container, Pod, ResourceRequirements
from egpu_base.api.resources import effective_requests
from egpu_base.errors import InvalidDemand
from support.local_node import Cards
from support.objects import claim, claim_pod, container, gpu_class, pod

KINDS = CardTotals(np.array([16384, 81920]), {"fp32": np.array([8.0, 20.0])})
"""A T4 and an A100, about."""
CLAIMS = {"c": claim("c"), "pooled": claim("pooled", class_name="pooled")}
CLASSES = {"shared": gpu_class(), "pooled": gpu_class("pooled", provisioner=names.POOL)}


def admitted(what: Pod, claims: Claims = CLAIMS, classes: Classes = CLASSES, kinds: CardTotals | None = KINDS) -> Pod:
    """The pod as the webhook leaves it; asked again, it changes nothing, and finds nothing wrong."""
    given = patched(what, claims, classes, kinds)
    assert patched(given, claims, classes, kinds) == given
    assert validate_pod_create(given, claims, classes, vocabularies=["hami"]) == []
    return given


def patched(what: Pod, claims: Claims, classes: Classes, kinds: CardTotals | None) -> Pod:
    document: dict[str, Any] = copy.deepcopy(msgspec.to_builtins(what))
    for step in mutate_pod(what, claims, classes, kinds=kinds, vocabularies=["hami"]):
        *way, last = [part.replace("~1", "/") for part in step["path"].split("/")[1:]]
        target: Any = document
        for part in way:
            target = target[int(part)] if isinstance(target, list) else target[part]
        if isinstance(target, list):
            cast("list[Any]", target).append(step["value"])
        else:
            target[last] = step["value"]
    return msgspec.convert(document, Pod)


def counts(what: Pod) -> tuple[int, int]:
    found = effective_requests(what)
    return int(found.get(names.GPU_CORE, 0)), int(found.get(names.GPU_MEMORY, 0))


def asking(**amounts: int | str) -> dict[str, int | str]:
    known = {"gpu": names.GPU, "core": names.GPU_CORE, "memory": names.GPU_MEMORY, "tflops": names.TFLOPS}
    return {known[name]: amount for name, amount in amounts.items()}


EVERY_WORD = [
    ({names.TENCENT_VCUDA_CORE: 90}, (90, 0)),
    ({names.DOCKER_VCUDA_CORE: 20, names.DOCKER_VCUDA_MEMORY: 10}, (20, 2560)),
    ({names.TENCENT_VCUDA_CORE: 200}, (200, 0)),
    ({names.QGPU_CORE: 30, names.QGPU_MEMORY: 4}, (30, 4096)),
    ({names.GPUSHARE_MEMORY: 3}, (0, 3072)),
    ({names.ALIYUN_GPU_MEM: 8}, (0, 8192)),
    ({names.POOL_CORE: 30, names.POOL_MEMORY: 4096}, (30, 4096)),
    ({names.NVIDIA_GPU: 2}, (200, 0)),
    (asking(core=30, memory="4k"), (30, 4000)),
    (asking(core=300, memory=30000), (300, 30000)),
    (asking(gpu=2), (200, 0)),
    (asking(gpu=2, core=100), (200, 0)),
    (asking(gpu=2, memory=40000), (0, 80000)),
    (asking(gpu=2, core=30, memory=1000), (60, 2000)),
    (asking(tflops=5), (25, 0)),
    (asking(tflops=5, gpu=2, memory=1000), (50, 2000)),
    (asking(tflops=10), (50, 0)),
    ({names.NVIDIA_GPU: 2, names.HAMI_MEMORY: 3000, names.HAMI_CORES: 30}, (60, 6000)),
    ({names.NVIDIA_GPU: 1, names.HAMI_MEMORY_PERCENT: 50}, (0, 8192)),
    ({names.VOLCANO_NUMBER: 2, names.VOLCANO_CORES: 40}, (80, 32768)),
]


@pytest.mark.parametrize(("asks", "counted"), EVERY_WORD)
def test_every_vocabulary_is_counted_in_percent_and_mib(asks: dict[str, int | str], counted: tuple[int, int]) -> None:
    what = pod("p", container("app", asks))
    given = admitted(what)
    assert counts(given) == counted
    demand, problems = read_pod(what, {}, {})
    assert problems == []
    assert read_pod(given, {}, {}) == (demand, []), "what is counted changes nothing of what is asked for"
    (app,) = given.all_containers
    assert app.resources is not None
    assert app.resources.requests == app.resources.limits, "an extended resource that is counted has both"


def test_a_container_without_a_gpu_is_not_counted() -> None:
    given = admitted(pod("p", container("app", asking(core=30)), container("log", {"cpu": "1"})))
    assert counts(given) == (30, 0)


def test_an_unknown_cluster_counts_what_is_named() -> None:
    assert counts(admitted(pod("p", container("app", asking(tflops=5))), kinds=None)) == (0, 0)
    assert counts(admitted(pod("p", container("app", asking(core=5))), kinds=None)) == (5, 0)


def test_tflops_that_no_card_has_are_counted_as_named() -> None:
    assert counts(admitted(pod("p", container("app", asking(tflops=500, memory=10))))) == (0, 10)


def test_a_claim_is_counted_once_by_the_pod_that_uses_it() -> None:
    """In the claim's own words and, where those are the pool's, in those that are counted."""
    core, memory = counts(admitted(claim_pod("p", "c")))
    assert (core, memory) == counts(admitted(claim_pod("p", "pooled")))
    assert core + memory > 0
    (app,) = admitted(claim_pod("p", "pooled")).all_containers
    assert app.resources is not None
    assert app.resources.limits is not None
    assert set(app.resources.limits) >= {names.POOL_CORE, names.GPU_CORE}


def resized(what: Pod, resource: str, value: str) -> Pod:
    (app,) = what.all_containers
    assert app.resources is not None
    limits = {**(app.resources.limits or {}), resource: value}
    changed = Container(name=app.name, image=app.image, resources=ResourceRequirements(limits=limits), env=app.env)
    return replace(what, spec=replace(what.spec, containers=[changed]))


def test_what_somebody_counted_is_counted_again() -> None:
    given = admitted(pod("p", container("app", {names.TENCENT_VCUDA_CORE: 90})))
    less = resized(given, names.GPU_CORE, "1")
    assert counts(admitted(less)) == (90, 0)


def test_two_vocabularies_are_still_two() -> None:
    both = pod("p", container("app", {names.TENCENT_VCUDA_CORE: 90, names.GPU_CORE: 90}))
    with pytest.raises(InvalidDemand, match="belong to two vocabularies"):
        mutate_pod(both, {}, {})
    forged = replace(both, metadata=replace(both.metadata, annotations={names.DEMAND: "no JSON"}))
    with pytest.raises(InvalidDemand, match="belong to two vocabularies"):
        mutate_pod(forged, {}, {})


def test_a_demand_that_is_not_what_the_words_say_is_refused() -> None:
    asked, _ = read_pod(pod("p", container("app", {names.TENCENT_VCUDA_CORE: 90})), {}, {})
    lies = encode(PodDemand(containers={"app": replace(asked.containers["app"], core=10)}))
    brought = pod("p", container("app", {names.TENCENT_VCUDA_CORE: 90}), annotations={names.DEMAND: lies})
    with pytest.raises(InvalidDemand, match="does not match what this pod asks for"):
        mutate_pod(brought, {}, {})


def test_a_node_has_as_much_as_is_counted_on_it() -> None:
    cards = Cards(3).read()
    alone = node_capacity(cards, 0)
    assert (alone[names.GPU_CORE], alone[names.GPU_MEMORY]) == ("300", str(sum(one.memory_mib for one in cards)))
    pooled = node_capacity(cards, 48)
    for word, counted in ((names.POOL_CORE, names.GPU_CORE), (names.POOL_MEMORY, names.GPU_MEMORY)):
        assert int(pooled[counted]) == int(pooled[word]) + int(alone[counted]), "the node's own cards, and the pool's"
    assert int(node_capacity((), 48)[names.GPU_CORE]) > 0, "a node of the pool that has no card itself"
