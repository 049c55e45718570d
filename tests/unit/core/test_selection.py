"""The models that a pod accepts, by the nodes that it selects, and what the learned mix makes of them."""

from typing import Any

import numpy as np
from msgspec.structs import replace

from egpu.api import names
from egpu.api.kubernetes import Node, Pod
from egpu.api.objects import ObjectMeta
from egpu.core.placement.cache import Feed, rebuild
from egpu.core.policies.learning import LearnedMix
from egpu.core.simulation.export import shapes_of
from support.objects import card, container, pod

ALL = np.ones(4, dtype=np.bool_)
MODELS = {"n0": "A100", "n1": "A100", "n2": "T4", "n3": "V100"}


def cluster() -> Feed:
    feed = rebuild([card(node, 0, model=model) for node, model in MODELS.items()], [], [])
    for node, model in MODELS.items():
        feed.node_changed(Node(metadata=ObjectMeta(name=node, labels={"gpu": model, "site": "a"})))
    return feed


def selecting(name: str = "p", affinity: dict[str, Any] | None = None, **labels: str) -> Pod:
    one = pod(name, container("app", {names.GPU_CORE: 50}))
    return replace(one, spec=replace(one.spec, node_selector=labels or None, affinity=affinity))


def models(feed: Feed, what: Pod) -> tuple[str, ...]:
    return feed.request(what).models


def test_a_selector_that_leaves_some_models_says_which() -> None:
    feed = cluster()
    assert models(feed, selecting()) == ()
    assert models(feed, selecting(gpu="A100")) == ("A100",)
    assert models(feed, selecting(gpu="T4", site="a")) == ("T4",)
    assert models(feed, selecting(site="a")) == (), "all models: no model"
    assert models(feed, selecting(site="b")) == (), "no node: nothing is known"


def test_node_affinity_counts_like_a_selector() -> None:
    feed = cluster()
    term = {"matchExpressions": [{"key": "gpu", "operator": "NotIn", "values": ["A100"]}]}
    required = {"nodeSelectorTerms": [term]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert models(feed, selecting(affinity=affinity)) == ("T4", "V100")


def test_nodes_and_cards_that_come_and_go_change_the_answer() -> None:
    feed = cluster()
    wanted = selecting(gpu="new")
    assert models(feed, wanted) == ()
    feed.node_changed(Node(metadata=ObjectMeta(name="n4", labels={"gpu": "new"})))
    assert models(feed, wanted) == (), "a node without cards"
    feed.gpu_changed(card("n4", 0, model="H200"))
    assert models(feed, wanted) == ("H200",)
    feed.node_changed(Node(metadata=ObjectMeta(name="n4", labels={"gpu": "old"})))
    assert models(feed, wanted) == ()
    feed.gpu_deleted("n4-card0")
    feed.node_deleted("n4")
    assert models(feed, selecting(gpu="old")) == ()


def test_the_mix_learns_pods_of_a_model_as_such_and_keeps_them() -> None:
    feed = cluster()
    for number in range(6):
        bound = selecting(f"b{number}", gpu="A100")
        feed.packer.see(bound.uid, feed.request(bound))
    free = selecting("free")
    feed.packer.see(free.uid, feed.request(free))
    kept = LearnedMix.load(feed.packer.learned.dump()).mix().weights
    assert {shape.models: weight for shape, weight in kept.items()} == {("A100",): 6, (): 1}


def test_a_model_that_others_are_bound_to_is_left_to_them() -> None:
    """Where most pods need an A100, one that does not care goes elsewhere; where nobody does, it may go there."""

    def places(*, learn: bool) -> dict[str, float]:
        feed = cluster()
        for number in range(20 if learn else 0):
            bound = selecting(f"b{number}", gpu="A100")
            feed.packer.see(bound.uid, feed.request(bound))
        found = feed.packer.scores("price", feed.request(selecting()), list(MODELS), ALL)
        assert found is not None
        return dict(zip(MODELS, found.tolist(), strict=True))

    assert max(places(learn=True)["n0"], places(learn=True)["n1"]) < places(learn=True)["n2"]
    assert places(learn=False)["n0"] == max(places(learn=False).values())


def test_an_exported_trace_names_the_models() -> None:
    feed = cluster()
    assert [shape.models for shape in shapes_of(feed, [selecting("a", gpu="T4"), selecting("b")])] == [("T4",), ()]
