"""What a tenant writes takes webhook and extender little time and memory. They serve all tenants, one request after the
other."""

import gc
import time
import tracemalloc
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUSpec, Link, PhysicalGPU
from egpu.core.admission import mutate_pod
from egpu.core.attributes import MAX_SELECTOR_CHARACTERS, MAX_VALUE_CHARACTERS, parse_selector, requirement
from egpu.core.demand.pods import container_demand
from egpu.core.demand.selection import Selection
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.published import kept_gpu
from egpu.core.preemption.budgets import Budgets, kept_budget
from egpu.core.preemption.objections import objections
from egpu.core.preemption.population import Population
from egpu.core.preemption.sums import MAX_REQUIREMENTS, Sums, only_the_scheduler_can_tell
from egpu_base.api import quantities
from egpu_base.api.disruption import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from egpu_base.api.kubernetes import Container, LabelSelector, Node, Pod, PodSpec, PodStatus
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import InvalidDemand, InvalidQuantity
from support.objects import container, pod

SOON_SECONDS = 1.0
"""Far above what the work takes on a busy machine, and far below what it took."""
KEPT_BYTES = 64 * 1024
ASKS = {names.GPU_MEMORY: 1024}


@contextmanager
def soon() -> Generator[None]:
    started = time.process_time()
    yield
    assert time.process_time() - started < SOON_SECONDS


@pytest.mark.parametrize(
    "text",
    ["model=" + " " * 600 + "(", "model" + " " * 4000 + "x", "model in (a)" + " " * 4000 + "x", "!" + " " * 4000 + "("],
)
def test_a_selector_that_almost_matches_is_refused_at_once(text: str) -> None:
    with soon(), pytest.raises(InvalidDemand, match="is not understood"):
        parse_selector(text, "field")


def test_long_selectors_and_values_are_refused() -> None:
    text = "model in (" + ",".join(["A100"] * 1000) + ")"
    assert len(text) > MAX_SELECTOR_CHARACTERS
    with pytest.raises(InvalidDemand, match="the most is 4096"):
        parse_selector(text, "field")
    with pytest.raises(InvalidDemand, match="the most is 128"):
        requirement("model", "In", ["x" * (MAX_VALUE_CHARACTERS + 1)], field="field")


def test_a_pod_with_thousands_of_containers_is_refused_at_once() -> None:
    asking = pod("p", container("app", ASKS))
    many = [Container(name=f"i{at}") for at in range(20_000)]
    for spec in (
        replace(asking.spec, init_containers=many),
        replace(asking.spec, containers=[*asking.containers, *many]),
    ):
        with soon(), pytest.raises(InvalidDemand, match="has 20001 containers; the most is 512"):
            mutate_pod(replace(asking, spec=spec), {}, {})


class Watched(str):
    """A text that shows whether something keeps it."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("large", [False, True])
def test_no_cache_keeps_the_pods_that_were_read(large: bool) -> None:
    """An API server asks the webhook about pods of 3 MiB, also those that it refuses afterwards."""
    said = {names.CARD_PREFERENCE: "strongest"}
    text = Watched("x" * 1000)
    kept = weakref.ref(text)
    resources = {**ASKS} | ({f"example.com/{at}": 1 for at in range(2000)} if large else {})
    made = pod("p", container(f"c-{large}", resources), annotations={"note": text, **said})
    assert container_demand(made, made.containers[0]) is not None
    del made, text
    gc.collect()
    assert kept() is None


def test_no_cache_keeps_long_quantities() -> None:
    cached = vars(quantities)["_parse_short"]
    before = cached.cache_info().currsize
    for at in range(10):
        with pytest.raises(InvalidQuantity):
            quantities.parse_memory_mib("9" * 1000 + str(at))
        assert quantities.quantity_or_zero("8" * 1000 + str(at)) == 0
        with pytest.raises(InvalidQuantity):
            quantities.canonical_quantity("7" * 1000 + str(at))
    assert cached.cache_info().currsize == before


# --- a pod that selects nodes by tens of thousands of requirements ----------------------------------------------------


def choosy(*, terms: int = 1, values: int = 1) -> Pod:
    listed = [f"v{at}" for at in range(values)]
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": listed}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term] * terms}}
    affinity: dict[str, Any] = {"nodeAffinity": required}
    return Pod(metadata=ObjectMeta(name="p", namespace="ns", uid="p"), spec=PodSpec(affinity=affinity))


NODES = {f"n{at}": Node(metadata=ObjectMeta(name=f"n{at}", labels={"zone": "a"})) for at in range(500)}
CHOOSY = [choosy(terms=10_000), choosy(values=100_000)]


@pytest.mark.parametrize("asking", CHOOSY)
def test_a_selection_of_many_requirements_is_left_to_the_scheduler(asking: Pod) -> None:
    selection = Selection()
    for name, node in NODES.items():
        selection.node_changed(node)
        selection.cards_changed(name, "A100")
    with soon():
        assert selection.models(asking) == ()
        assert selection.of(asking, list(NODES)) == list(NODES)
    assert selection.of(choosy(), list(NODES)) == []


@pytest.mark.parametrize("asking", CHOOSY)
def test_no_node_is_explained_by_thousands_of_requirements(asking: Pod) -> None:
    sums = Sums(NODES, Population(lambda _: None))
    with soon():
        assert objections(asking, NODES, sums) == {}
    assert set(objections(choosy(), NODES, sums)) == set(NODES)


@pytest.mark.parametrize("asking", CHOOSY)
def test_no_pod_is_evicted_for_a_pod_of_thousands_of_requirements(asking: Pod) -> None:
    assert f"more than {MAX_REQUIREMENTS}" in only_the_scheduler_can_tell(asking)
    assert only_the_scheduler_can_tell(choosy()) == ""


def published(node: str, number: int, **fields: Any) -> ElasticGPU:
    """A card as an agent publishes it."""
    uuid = f"GPU-{number:08x}-0000-0000-0000-{node}"
    physical = PhysicalGPU(uuid=uuid, index=number, minor=number, memory_mib=16384, model="T4", **fields)
    meta = ObjectMeta(name=f"{node}-{number:08x}", uid=uuid)
    return ElasticGPU(metadata=meta, spec=ElasticGPUSpec(node_name=node, physical_gpu=physical))


def test_an_agent_that_publishes_thousands_of_cards_costs_the_cluster_a_few() -> None:
    """Root of one node has its agent's account, which may publish cards of that node."""
    cache = SchedulerCache()
    cache.gpu_changed(published("good", 0))
    with soon():
        for number in range(3000):
            cache.gpu_changed(published("bad", number))
    assert cache.ledger.present.shape[1] == names.MAX_CARDS_PER_NODE
    assert len(cache.ledger.cards("bad")) == names.MAX_CARDS_PER_NODE
    assert "node bad publishes more than 64 cards" in "".join(cache.problems())
    for number in reversed(range(3000)):
        cache.gpu_deleted(published("bad", number).name)
    assert (cache.ledger.nodes(), cache.problems()) == (["good"], [])


def test_an_agent_that_names_thousands_of_precisions_and_links_costs_the_cluster_a_few() -> None:
    """The ledger has an array of all cards of the cluster for each precision."""
    cache = SchedulerCache()
    figures = {f"p{number}": 1.0 for number in range(20_000)} | {"fp32": 8.1, "fp16": 65.0}
    links = [Link(uuid=f"GPU-{number}", kind="NVLink") for number in range(20_000)]
    with soon():
        cache.gpu_changed(published("bad", 0, tflops=figures, links=links))
    assert {*cache.ledger.tflops} <= {"fp32", "fp16"}
    (card,) = cache.ledger.cards("bad")
    assert card.tflops == {"fp32": 8.1, "fp16": 65.0}
    assert len(card.links) == names.MAX_CARDS_PER_NODE


def objects_bytes(make: Callable[[], object], *, count: int = 5) -> float:
    """The memory of one object that `make` returns."""
    gc.collect()
    tracemalloc.start()
    try:
        kept = [make() for _ in range(count)]
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / len(kept)
    finally:
        tracemalloc.stop()


def stuffing() -> dict[str, str]:
    return {f"a{number}": str(number) for number in range(5_000)}


def test_a_stuffed_budget_takes_little_memory_and_allows_nothing() -> None:
    """The extender keeps the budgets of all tenants."""

    def budget(**selector: Any) -> PodDisruptionBudget:
        meta = ObjectMeta(name="b", namespace="ns", labels=stuffing(), annotations=stuffing(), generation=3)
        status = PodDisruptionBudgetStatus(disruptions_allowed=5, observed_generation=3, disrupted_pods=stuffing())
        spec = PodDisruptionBudgetSpec(selector=LabelSelector(**selector))
        return kept_budget(PodDisruptionBudget(metadata=meta, spec=spec, status=status))

    assert objects_bytes(lambda: budget(match_labels={"app": "a"})) < KEPT_BYTES
    assert objects_bytes(lambda: budget(match_labels=stuffing())) < KEPT_BYTES
    meta = ObjectMeta(name="p", namespace="ns", labels={"app": "a"})
    running = replace(pod("p"), metadata=meta, status=PodStatus(phase="Running"))
    assert Budgets([budget(match_labels={"app": "a"})]).allow({"ns/b": 5})
    large = Budgets([budget(match_labels=stuffing())])
    assert large.charges(running) == ("ns/b",)
    assert not large.allow({"ns/b": 1})


def test_a_stuffed_card_takes_little_memory_and_no_work() -> None:
    """Its agent may be the attacker's. A usual card is kept whole."""
    usual = published("n", 0, links=[Link(uuid=f"GPU-{number}", kind="NVLink") for number in range(63)])
    assert kept_gpu(usual) is usual
    long = {"mps": "x" * 100_000, "links": [Link(uuid=f"GPU-{number}", kind="PIX") for number in range(20_000)]}
    stuffed = published("n", 0, **long)
    stuffed = replace(stuffed, metadata=replace(stuffed.metadata, labels=stuffing()))
    assert objects_bytes(lambda: kept_gpu(stuffed)) < KEPT_BYTES
    cache = SchedulerCache()
    cache.gpu_changed(kept_gpu(stuffed))
    (card,) = cache.ledger.cards("n")
    assert (card.healthy, card.why_not) == (False, "is unhealthy (its object has more than 64 KiB)")
