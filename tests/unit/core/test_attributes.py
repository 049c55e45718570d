"""Cards selected by what they are and preferred by how strong, in annotations, claims and classes."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardRequirement, PodAllocation
from egpu.api.objects import CardExpression, CardSelector, ElasticGPU, ElasticGPUClaim, Link
from egpu.core.admission import Violation, mutate_pod, validate_claim, validate_class, validate_pod_create
from egpu.core.attributes import CardKind, mismatch, parse_selector, requirement, selects
from egpu.core.links import link_domains
from egpu.core.placement.cache import SchedulerCache, rebuild
from egpu.core.placement.ledger import Card, PoolNode
from egpu.core.policies.registry import Policies
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import InvalidDemand
from support.objects import BINPACK, SPREAD, card, claim, claim_pod, container, gpu_class, pod

A100 = CardKind("NVIDIA A100-SXM4-80GB", 81920, "8.0", (("fp16", 312.0), ("fp32", 19.5)), 0, 2)
T4 = CardKind("Tesla T4", 15360, "7.5", (("fp32", 8.1),))
BLANK = CardKind("", 1024)


@pytest.mark.parametrize(
    ("text", "a100", "t4"),
    [
        ("model = A100", True, False),
        ("model in (H100, a100-sxm4)", True, False),
        ("model = NVIDIA-A100-SXM4-80GB", True, False),
        ("model = A10", False, False),
        ("model == SXM4-A100", False, False),
        ("model != A100", False, True),
        ("model notin (T4, P4)", True, False),
        ("memory > 40Gi", True, False),
        ("memory > 80Gi", False, False),
        ("memory < 80Gi", False, True),
        ("memory < 81921", True, True),
        ("memory in (80Gi)", True, False),
        ("computeCapability > 7.5", True, False),
        ("computeCapability < 8.10", True, True),
        ("computeCapability = 8", True, False),
        ("tflops > 8.1", True, False),
        ("tflops < 19.5", False, True),
        ("tflops.fp16 > 100", True, False),
        ("tflops.fp16", True, False),
        ("!tflops.fp16", False, True),
        ("numa = 0", True, False),
        ("numa != 0", False, True),
        ("numa > 0", False, False),
        ("!numa", False, True),
        ("linkDomain", True, False),
        ("linkDomain < 3, model = A100", True, False),
        ("linkDomain, model = T4", False, False),
        ("model", True, True),
    ],
)
def test_a_selector_is_read_as_kubectl_reads_them(text: str, a100: bool, t4: bool) -> None:
    wanted = parse_selector(text, "f")
    assert (selects(wanted, A100), selects(wanted, T4)) == (a100, t4)
    for kind, suits in ((A100, a100), (T4, t4)):
        assert (mismatch(wanted, kind) is None) == suits


def test_what_is_not_known_of_a_card_is_not_there() -> None:
    for text in ("model", "computeCapability", "tflops", "numa", "linkDomain", "tflops > 0", "model = A"):
        assert not selects(parse_selector(text, "f"), BLANK)
        assert not selects(parse_selector(text, "f"), replace_kind(numa=-1))


def replace_kind(**changed: Any) -> CardKind:
    return BLANK._replace(**changed)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has 0 requirements; write 1 to 16, or remove it"),
        ("colour = red", "cards have no attribute 'colour'; they have model, memory,"),
        ("model > A100", "model Gt takes one number, and a numeric attribute"),
        ("memory > 40Qi", "'40Qi' is not a valid memory; write for example 40Gi, or 40960 (MiB)"),
        ("memory = ", "'' is not a valid memory"),
        ("numa in ()", "'' is not a valid numa"),
        ("numa = -1", "'-1' is not a valid numa; write for example 0"),
        ("computeCapability > eight", "'eight' is not a valid computeCapability; write for example 8.0"),
        ("model in (A100, )", "'' is not a valid model; write for example A100"),
        ("model = A100; numa = 0", "'model = A100; numa = 0' is not understood"),
        ("model like A100", "'model like A100' is not understood; write for example: model in (A100, H100)"),
        (",".join(["model"] * 17), "17 requirements"),
    ],
)
def test_what_is_no_selector_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidDemand) as refused:
        parse_selector(text, "here")
    assert refused.value.field == "here"
    assert reason in refused.value.reason


@pytest.mark.parametrize(
    ("operator", "values", "reason"),
    [
        ("Exists", ["1"], "takes no values"),
        ("DoesNotExist", ["1"], "takes no values"),
        ("In", [], "takes 1 to 64 values"),
        ("NotIn", ["1"] * 65, "takes 1 to 64 values"),
        ("Gt", ["1", "2"], "takes one number"),
        ("Lt", [], "takes one number"),
        ("Near", ["1"], "'Near' is not one of In, NotIn, Gt, Lt, Exists, DoesNotExist"),
    ],
)
def test_operators_take_what_kubernetes_has_them_take(operator: str, values: list[str], reason: str) -> None:
    with pytest.raises(InvalidDemand, match=reason):
        requirement("numa", operator, values, field="f")


def test_findings_name_the_attribute() -> None:
    for text, finding in (
        ("model in (H100, L40)", "model is not H100 or L40"),
        ("model != A100", "model is A100"),
        ("memory > 80Gi", "memory is not above 80Gi"),
        ("memory < 8Gi", "memory is not below 8Gi"),
        ("tflops.fp8", "tflops.fp8 is not known"),
        ("!numa", "numa is present"),
        ("model = A100, numa > 3", "numa is not above 3"),
    ):
        assert mismatch(parse_selector(text, "f"), A100) == finding


def linked(index: int, *others: int) -> Card:
    kinds = {f"GPU-{other}": "NV12" for other in others}
    return Card(uuid=f"GPU-{index}", index=index, minor=index, memory_mib=1, links=kinds | {"GPU-9": "PIX"})


def test_cards_that_nvlink_joins_are_one_domain_also_over_others() -> None:
    cards = [linked(0), linked(1, 3), linked(2), linked(3, 1, 4), linked(4, 3), linked(5, 6), linked(6, 5)]
    assert link_domains(cards) == [-1, 1, -1, 1, 1, 5, 5]
    assert link_domains([linked(0, 7)]) == [-1], "the other card is away"


# --- pods, claims and classes -----------------------------------------------------------------------------------------


def mixed(nodes: dict[str, list[str]]) -> SchedulerCache:
    sizes = {"T4": (15360, 8.0), "A100": (81920, 19.5), "H100": (81920, 67.0)}
    gpus = [
        card(node, index, model=f"NVIDIA {model}", memory_mib=sizes[model][0], tflops=sizes[model][1])
        for node, models in nodes.items()
        for index, model in enumerate(models)
    ]
    return rebuild(gpus, [], [])


def slice_on(selector: str = "", prefer: str = "", *, cards: int = 1, name: str = "p") -> Pod:
    said = {names.CARD_SELECTOR: selector, names.CARD_PREFERENCE: prefer}
    asks: dict[str, int | str] = {names.GPU: cards, names.GPU_CORE: 30, names.GPU_MEMORY: 1024}
    return pod(name, container("app", asks), annotations={key: text for key, text in said.items() if text})


def placed_on(cache: SchedulerCache, what: Pod, node: str) -> list[int]:
    allocation = cache.ranking.choose(cache.request(what), node, BINPACK)
    return [share.index for share in allocation.containers["app"].cards]


def test_a_pod_gets_a_card_that_it_selects() -> None:
    cache = mixed({"n0": ["T4", "A100", "H100"], "n1": ["T4", "T4"]})
    what = slice_on("model in (A100)")
    filtered = cache.filter(cache.request(what), ["n0", "n1"])
    assert filtered.fits == ("n0",)
    assert placed_on(cache, what, "n0") == [1]
    assert filtered.refusals()["n1"].text() == (
        "container app asks for 30 % and 1024 MiB of a card with model A100, 0 of 2 cards can take it, "
        "2 of 2 cards: model is not A100"
    )
    assert not filtered.refusals()["n1"].resolvable, "nobody's leaving makes it another card"
    two = cache.filter(cache.request(slice_on("memory > 40Gi", cards=2)), ["n0", "n1"])
    assert two.fits == ("n0",)
    assert placed_on(cache, slice_on("memory > 40Gi", cards=2), "n0") == [1, 2]


def test_a_card_that_suits_and_is_full_is_named_by_itself() -> None:
    cache = mixed({"n0": ["T4", "A100"]})
    cache.assume_pod(slice_on("model = A100", name="q"), allocation_of(cache, "model = A100", "q"))
    cache.assume_pod(slice_on("model = A100", name="r"), allocation_of(cache, "model = A100", "r"))
    cache.assume_pod(slice_on("model = A100", name="s"), allocation_of(cache, "model = A100", "s"))
    refusal = cache.filter(cache.request(slice_on("model = A100")), ["n0"]).refusals()["n0"]
    assert refusal.text().endswith("1 of 2 cards: model is not A100: card 1 has 10 % of compute free, 30 % needed")
    assert refusal.resolvable
    assert [one.index for one in refusal.cards] == [0, 1], "card by card for who asks"


def allocation_of(cache: SchedulerCache, selector: str, name: str) -> PodAllocation:
    return cache.ranking.choose(cache.request(slice_on(selector, name=name)), "n0", BINPACK)


@pytest.mark.parametrize("policies", [BINPACK, SPREAD])
def test_the_strongest_or_the_weakest_that_fits(policies: Policies) -> None:
    cache = mixed({"n0": ["T4", "A100"], "n1": ["H100", "T4"], "n2": ["T4"]})
    nodes = ["n0", "n1", "n2"]
    for prefer, selector, best, index in (
        ("strongest", "", "n1", 0),
        ("strongest", "model != H100", "n0", 1),
        ("weakest", "model != T4", "n0", 1),
        ("weakest", "model = H100", "n1", 0),
    ):
        what = slice_on(selector, prefer)
        scores = cache.ranking.scores(cache.request(what), nodes, policies)
        assert max(scores, key=lambda node: scores[node]) == best, (prefer, selector, scores)
        others = [score for node, score in scores.items() if node != best]
        assert scores[best] >= 0.9
        assert max(others) <= 0.3
        allocation = cache.ranking.choose(cache.request(what), best, policies)
        assert [share.index for share in allocation.containers["app"].cards] == [index]


def test_a_preference_refuses_nobody() -> None:
    cache = mixed({"n0": ["T4"]})
    assert cache.filter(cache.request(slice_on(prefer="strongest")), ["n0"]).fits == ("n0",)
    scores = cache.ranking.scores(cache.request(slice_on("model = H100", "strongest")), ["n0"], BINPACK)
    assert scores == {"n0": 0.0}


def test_whole_cards_are_selected_too() -> None:
    cache = mixed({"n0": ["T4", "A100", "T4"]})
    whole = pod("p", container("app", {names.NVIDIA_GPU: 1}), annotations={names.CARD_SELECTOR: "memory > 40Gi"})
    assert placed_on(cache, whole, "n0") == [1]


def test_a_pooled_pod_selects_among_the_cards_of_others() -> None:
    cache = mixed({"n0": ["T4"], "n1": ["A100"], "n2": ["H100"]})
    for node in ("n0", "n1", "n2"):
        cache.ledger.pool[node] = pool_member()
    asks: dict[str, int | str] = {names.POOL_CORE: 30, names.POOL_MEMORY: 1024}
    for said, server in (
        ({names.CARD_SELECTOR: "model = A100"}, "n1"),
        ({names.CARD_PREFERENCE: "strongest"}, "n2"),
        ({names.CARD_PREFERENCE: "weakest"}, "n0"),
    ):
        what = pod("p", container("app", asks), annotations=said)
        chosen = cache.ranking.choose(cache.request(what), "n1", BINPACK).containers["app"]
        assert chosen.cards_node("n1") == server
    both = mixed({"n0": ["T4", "H100", "A100"]})
    both.ledger.pool["n0"] = pool_member()
    for prefer, index in (("strongest", 1), ("weakest", 0)):
        what = pod("p", container("app", asks), annotations={names.CARD_PREFERENCE: prefer})
        (share,) = both.ranking.choose(both.request(what), "n0", BINPACK).containers["app"].cards
        assert share.index == index, "among the cards of the node that serves it"
    nothing = pod("p", container("app", asks), annotations={names.CARD_SELECTOR: "model = L4"})
    refusal = cache.filter(cache.request(nothing), ["n0"]).refusals()["n0"]
    assert "card 0 of n1 model is not L4" in refusal.text()


def pool_member() -> PoolNode:
    return PoolNode(1000, True)


def selecting(*expressions: CardExpression, prefer: Any = None) -> ElasticGPUClaim:
    one = claim("c")
    selector = CardSelector(match_expressions=list(expressions))
    return replace(one, spec=replace(one.spec, selector=selector, card_preference=prefer))


MEMORY = CardExpression(key="memory", operator="Gt", values=["40Gi"])
CLASS = gpu_class(parameters={"cardSelector": "model notin (H100)", "cardPreference": "strongest"})


def test_a_claim_and_its_class_select_together() -> None:
    cache = mixed({"n0": ["T4", "A100", "H100"]})
    cache.class_changed(CLASS)
    wanted = selecting(MEMORY)
    demand = cache.claim_request(wanted).demand.containers["claim"]
    assert [one.key for one in demand.select] == ["model", "memory"]
    assert demand.prefer == "strongest"
    assert cache.claim_request(selecting(MEMORY, prefer="weakest")).demand.containers["claim"].prefer == "weakest"
    chosen = cache.ranking.choose(cache.claim_request(wanted), "n0", BINPACK)
    assert [share.index for share in chosen.containers["claim"].cards] == [1]


def test_values_may_be_numbers() -> None:
    wanted = msgspec.json.decode(
        b'{"kind":"ElasticGPUClaim","apiVersion":"elasticgpu.io/v1alpha1","metadata":{"name":"c"},"spec":{'
        b'"storageClassName":"shared","resources":{"requests":{"elasticgpu.io/gpu-core":30}},'
        b'"selector":{"matchExpressions":[{"key":"numa","operator":"In","values":[0,"1"]}]}}}',
        type=ElasticGPUClaim,
    )
    cache = mixed({"n0": ["T4"]})
    cache.class_changed(gpu_class())
    demand = cache.claim_request(wanted).demand.containers["claim"]
    assert demand.select == (CardRequirement(key="numa", operator="In", values=("0", "1")),)


def test_admission_names_the_field() -> None:
    classes = {"shared": gpu_class()}
    unknown = CardExpression(key="colour", operator="Exists")
    (found,) = validate_claim(selecting(MEMORY, unknown), None, classes)
    assert found.field == "spec.selector.matchExpressions[1]"
    assert "cards have no attribute 'colour'" in found.reason
    bad = gpu_class(parameters={"cardSelector": "colour", "cardPreference": "best"})
    assert {one.field for one in validate_class(bad, None)} == {
        "parameters[cardSelector]",
        "parameters[cardPreference]",
    }
    assert validate_class(CLASS, None) == []
    for said, reason in (
        ({names.CARD_SELECTOR: "colour"}, "cards have no attribute 'colour'"),
        ({names.CARD_PREFERENCE: "best"}, "'best' is not one of strongest, weakest"),
    ):
        what = pod("p", container("app", {names.GPU_CORE: 30}), annotations=said)
        (found,) = validate_pod_create(what, {}, {})
        assert found.field == f"metadata.annotations[{next(iter(said))}]"
        assert reason in found.reason


def test_a_pod_says_nothing_of_the_cards_of_its_claims() -> None:
    one = claim_pod("p", "c")
    what = replace(one, metadata=replace(one.metadata, annotations=one.annotations | {names.CARD_SELECTOR: "model"}))
    (found,) = validate_pod_create(what, {"c": claim("c")}, {"shared": gpu_class()})
    assert found == Violation(
        f"metadata.annotations[{names.CARD_SELECTOR}]",
        "no container of the pod asks for a GPU by its own resources; remove it, or set it in the claim",
    )
    nothing = pod("p", container("app"), annotations={names.CARD_SELECTOR: "model"})
    assert [one.reason for one in validate_pod_create(nothing, {}, {})] == [found.reason]


def test_the_demand_annotation_says_what_is_selected() -> None:
    (demand,) = [
        step["value"]
        for step in mutate_pod(slice_on("memory > 40Gi", "weakest"), {}, {})
        if step["path"].endswith("demand")
    ]
    assert '"select":[{"key":"memory","operator":"Gt","values":["40Gi"]}],"prefer":"weakest"' in demand


def test_cards_say_what_they_are() -> None:
    one = card("n0", 0, model="NVIDIA A100-SXM4-80GB", memory_mib=81920, tflops=19.5)
    assert one.spec.physical_gpu is not None
    physical = replace(
        one.spec.physical_gpu, compute_capability="8.0", numa=1, links=[Link(uuid="GPU-n0-1", kind="NV12")]
    )
    other = card("n0", 1, model="NVIDIA A100-SXM4-80GB", memory_mib=81920, tflops=19.5)
    first = ElasticGPU(metadata=one.metadata, spec=replace(one.spec, physical_gpu=physical), status=one.status)
    cache = rebuild([first, other], [], [])
    ledger = cache.ledger
    assert ledger.kinds[int(ledger.kind[0, 0])] == CardKind(
        "NVIDIA A100-SXM4-80GB", 81920, "8.0", (("fp32", 19.5),), 1, 0
    )
    for text, index in (("computeCapability = 8.0", 0), ("numa = 1", 0), ("!numa", 1)):
        assert placed_on(cache, slice_on(text), "n0") == [index]
