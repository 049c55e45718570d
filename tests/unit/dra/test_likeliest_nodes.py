"""The likeliest node is tried first for claims: the choice is the one that a look at all nodes gives."""

import random
from unittest import mock

import msgspec
import pytest

from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUClass
from egpu.core.dra import asking
from egpu.core.dra.asking import KnownAsks, asked
from egpu.core.dra.choosing import Choice, Wish, choose
from egpu.core.dra.classes import device_class
from egpu.core.dra.kept import TOO_LARGE
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.ranking import Ranking
from egpu.core.policies.registry import Policies
from egpu.core.preemption.population import Population
from egpu.core.preemption.scene import Scene
from egpu_base.api.devices import ResourceClaim
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import DoesNotFit, NotSupported
from support.fake_api import Json
from support.priced import CLASS, WHOLE, a_card, a_claim, a_node, a_pod, selecting

CLASSES = {
    name: ElasticGPUClass(metadata=ObjectMeta(name=name, uid=f"uid-{name}"), provisioner=provisioner)
    for name, provisioner in ((CLASS, names.VCUDA), (WHOLE, names.PHYSICAL))
}
MADE = {name: device_class(klass) for name, klass in CLASSES.items()}


def scene(draw: random.Random, policy: str) -> Scene:
    """Nodes of two cards with different memory; some have too little CPU, and one is not priced."""
    cache = SchedulerCache()
    for klass in CLASSES.values():
        cache.class_changed(klass)
    nodes: dict[str, Node] = {}
    for number in range(draw.randint(1, 6)):
        name = f"n{number}"
        nodes[name] = msgspec.convert(a_node(name, cpu=draw.choice((1, 8, 64))), Node)
        cache.node_changed(nodes[name])
        sizes = [draw.choice((8192, 16384)) for _ in range(2)]
        allocator = names.PRICED if number != 2 else names.DRA
        cards = [a_card(name, at, memory_mib=size, allocator=allocator) for at, size in enumerate(sizes)]
        cache.gpu_changed(*(msgspec.convert(card, ElasticGPU) for card in cards))
    running: dict[str, Pod] = {}
    return Scene(cache, nodes, Population(running.get), (), Policies.named(policy, policy))


def wish(draw: random.Random, number: int) -> Wish:
    claims: list[Json] = []
    for at in range(draw.choice((1, 1, 2))):
        name = f"c{number}-{at}"
        exactly: Json = {"count": draw.choice((1, 1, 1, 2))}
        if draw.random() < 0.2:
            larger = 'device.capacity["gpu.elasticgpu.io"].memory.compareTo(quantity("10Gi")) > 0'
            exactly["selectors"] = selecting(larger)
        amounts = draw.choice(((30, 4096, CLASS), (10, 0, CLASS), (60, 9000, CLASS), (0, 0, WHOLE)))
        claims.append(a_claim(name, cores=amounts[0], mib=amounts[1], klass=amounts[2], **exactly))
    pod = msgspec.convert(
        a_pod(f"p{number}", *(one["metadata"]["name"] for one in claims), cpu=draw.choice((0, 3))), Pod
    )
    found = [asked(typed(one), CLASSES, MADE.get) for one in claims]
    return Wish(pod, [one for one in found if one is not None], {})


def typed(claim: Json) -> ResourceClaim:
    return msgspec.convert(
        {**claim, "metadata": {**claim["metadata"], "uid": claim["metadata"]["name"]}}, ResourceClaim
    )


def places(choice: Choice | str) -> object:
    """Return the devices, or why there are none."""
    if isinstance(choice, str):
        return choice
    found = [one.status.allocation for one in choice.claims]
    return [
        [(one.pool, one.device, one.consumed_capacity) for one in each.devices.results or ()] for each in found if each
    ]


def chosen(wish: Wish, scene: Scene) -> Choice | str:
    try:
        return choose(wish, scene)
    except DoesNotFit as error:
        return str(error)


@pytest.mark.parametrize("policy", ["default", "binpack", "spread", "fgd"])
def test_the_choice_is_that_of_a_look_at_all_nodes(policy: str) -> None:
    served = 0
    for seed in range(8):
        draw = random.Random(seed)
        there = scene(draw, policy)
        for number in range(12):
            one = wish(draw, number)
            found = chosen(one, there)
            with mock.patch.object(Ranking, "likeliest", return_value=None):
                assert places(found) == places(chosen(one, there))
            if isinstance(found, Choice):
                served += 1
                for claim in found.claims:
                    there.cache.device_claims.assume(claim)
                there.cache.hosts.pod_placed(one.pod, found.node)
    assert served > 20


def test_the_other_nodes_are_not_looked_at_if_the_likeliest_one_takes_the_pod() -> None:
    there = scene(random.Random(1), "default")
    with mock.patch.object(SchedulerCache, "filter", side_effect=AssertionError):
        assert isinstance(chosen(wish_for_one_card(), there), Choice)


def wish_for_one_card() -> Wish:
    found = asked(typed(a_claim("c", cores=30)), CLASSES, MADE.get)
    assert found is not None
    return Wish(msgspec.convert(a_pod("p", "c"), Pod), [found], {})


def test_equal_claims_are_read_once_until_the_classes_change() -> None:
    known = KnownAsks(CLASSES, MADE.get)
    with mock.patch.object(asking, "asked", side_effect=asked) as reads:
        first, second = (known.of(typed(a_claim(name, cores=30))) for name in ("a", "b"))
        assert first is not None
        assert second is not None
        assert (first.demands, second.claim.name) == (second.demands, "b")
        known.of(typed(a_claim("c", cores=31)))
        assert reads.call_count == 2
        known.forget()
        known.of(typed(a_claim("d", cores=30)))
        assert reads.call_count == 3


def test_a_claim_of_which_only_a_part_is_kept_is_no_equal_of_others() -> None:
    known = KnownAsks(CLASSES, MADE.get)
    assert known.of(typed(a_claim("a"))) is not None
    large = a_claim("b")
    large["metadata"]["annotations"] = {TOO_LARGE: ""}
    with pytest.raises(NotSupported, match="32 KiB"):
        known.of(typed(large))
