"""The models that a pod accepts, by the nodes that it selects, and what the learned mix makes of them."""

from typing import Any

from msgspec.structs import replace

from egpu.api import names
from egpu.core.placement.cache import SchedulerCache, rebuild
from egpu.core.policies.learning import LearnedMix
from egpu.core.policies.registry import Policies
from egpu.core.replay.export import shapes_of
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.objects import ObjectMeta
from support.objects import card, container, pod

MODELS = {"n0": "A100", "n1": "A100", "n2": "T4", "n3": "V100"}


def cluster() -> SchedulerCache:
    cache = rebuild([card(node, 0, model=model) for node, model in MODELS.items()], [], [])
    for node, model in MODELS.items():
        cache.node_changed(Node(metadata=ObjectMeta(name=node, labels={"gpu": model, "site": "a"})))
    return cache


def selecting(name: str = "p", affinity: dict[str, Any] | None = None, **labels: str) -> Pod:
    one = pod(name, container("app", {names.GPU_CORE: 50}))
    return replace(one, spec=replace(one.spec, node_selector=labels or None, affinity=affinity))


def models(cache: SchedulerCache, what: Pod) -> tuple[str, ...]:
    return cache.request(what).models


def test_a_selector_that_leaves_some_models_says_which() -> None:
    cache = cluster()
    assert models(cache, selecting()) == ()
    assert models(cache, selecting(gpu="A100")) == ("A100",)
    assert models(cache, selecting(gpu="T4", site="a")) == ("T4",)
    assert models(cache, selecting(site="a")) == (), "all models: no model"
    assert models(cache, selecting(site="b")) == (), "no node: nothing is known"


def test_node_affinity_counts_like_a_selector() -> None:
    cache = cluster()
    term = {"matchExpressions": [{"key": "gpu", "operator": "NotIn", "values": ["A100"]}]}
    required = {"nodeSelectorTerms": [term]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert models(cache, selecting(affinity=affinity)) == ("T4", "V100")


def test_nodes_and_cards_that_come_and_go_change_the_answer() -> None:
    cache = cluster()
    wanted = selecting(gpu="new")
    assert models(cache, wanted) == ()
    cache.node_changed(Node(metadata=ObjectMeta(name="n4", labels={"gpu": "new"})))
    assert models(cache, wanted) == (), "a node without cards"
    cache.gpu_changed(card("n4", 0, model="H200"))
    assert models(cache, wanted) == ("H200",)
    cache.node_changed(Node(metadata=ObjectMeta(name="n4", labels={"gpu": "old"})))
    assert models(cache, wanted) == ()
    cache.gpu_deleted("n4-card0")
    cache.node_deleted("n4")
    assert models(cache, selecting(gpu="old")) == ()


def test_the_mix_learns_pods_of_a_model_as_such_and_keeps_them() -> None:
    cache = cluster()
    for number in range(6):
        bound = selecting(f"b{number}", gpu="A100")
        cache.ranking.see(bound.uid, cache.request(bound))
    free = selecting("free")
    cache.ranking.see(free.uid, cache.request(free))
    kept = LearnedMix.load(cache.ranking.learned.dump()).mix().weights
    assert {shape.models: weight for shape, weight in kept.items()} == {("A100",): 6, (): 1}


def test_a_model_that_others_are_bound_to_is_left_to_them() -> None:
    """Where most pods need an A100, one that does not care goes elsewhere; where nobody does, it may go there."""

    def places(*, learn: bool) -> dict[str, float]:
        cache = cluster()
        for number in range(20 if learn else 0):
            bound = selecting(f"b{number}", gpu="A100")
            cache.ranking.see(bound.uid, cache.request(bound))
        return cache.ranking.scores(cache.request(selecting()), list(MODELS), Policies.named("price", "price"))

    assert max(places(learn=True)["n0"], places(learn=True)["n1"]) < places(learn=True)["n2"]
    assert places(learn=False)["n0"] == max(places(learn=False).values())


def test_an_exported_trace_names_the_models() -> None:
    cache = cluster()
    assert [shape.models for shape in shapes_of(cache, [selecting("a", gpu="T4"), selecting("b")])] == [("T4",), ()]
