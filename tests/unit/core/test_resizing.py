"""Another size of a running slice: what may be asked, what is counted meanwhile, and when it is in force."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, ContainerDemand, PodAllocation
from egpu.api.objects import SliceInForce
from egpu.api.quotas import ResourceQuota, ResourceQuotaStatus
from egpu.core.placement.ledger import Card, Holder, Ledger, NodeCards
from egpu.core.quotas import beyond_counted, check_quotas
from egpu.core.resizing import (
    Size,
    asked_within,
    check_room,
    demanded,
    is_in_force,
    ordered,
    parse_size,
    settled,
    size_text,
    sized,
)
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import DoesNotFit, InvalidDemand, NotSupported, Refused

SHARE = CardShare(uuid="GPU-0", index=0, minor=0, core=30, memory_mib=1024)
SLICE = ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=(SHARE,))


def share(core: int, memory_mib: int) -> tuple[CardShare, ...]:
    return (replace(SHARE, core=core, memory_mib=memory_mib),)


def ledger(*, healthy: bool = True) -> Ledger:
    books = Ledger()
    card = Card(
        uuid="GPU-0",
        index=0,
        minor=0,
        memory_mib=16384,
        model="T4",
        healthy=healthy,
        why_not="" if healthy else "is sick",
    )
    books.set_node(NodeCards("n0", (card,)))
    return books


def pod(container: ContainerAllocation) -> PodAllocation:
    return PodAllocation(node="n0", containers={"app": container})


def test_a_size_is_read() -> None:
    assert parse_size("core=40, memory=8Gi", "f") == Size(40, 8192)
    assert parse_size("memory=512", "f") == Size(None, 512)
    assert parse_size(" core=100 ", "f") == Size(100, None)


@pytest.mark.parametrize(
    "text", ["", "40", "core=0", "core=101", "core=4.5", "core=40,core=50", "memory=none", "disk=3", "memory=17Ti"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidDemand, match=r"^f: "):
        parse_size(text, "f")


def test_how_long_giving_back_may_take() -> None:
    assert asked_within({}) is None
    assert asked_within({names.SHRINK_WITHIN: "30"}) == 30
    for text in ("-1", "soon", str(names.MAX_SHRINK_SECONDS + 1)):
        with pytest.raises(InvalidDemand, match="number of seconds"):
            asked_within({names.SHRINK_WITHIN: text})


def test_what_has_no_size_cannot_be_resized() -> None:
    with pytest.raises(NotSupported, match="whole cards"):
        sized(replace(SLICE, mode="exclusive"), Size(50))
    with pytest.raises(NotSupported, match="fixed sizes"):
        sized(replace(SLICE, provisioner=names.PHYSICAL), Size(50))


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 16384), st.booleans()), max_size=8))
def test_what_was_ever_allowed_counts_until_less_is_in_force(steps: list[tuple[int, int, bool]]) -> None:
    """Of orders that follow one another, settled in between or not."""
    container, allowed = SLICE, [(30, 1024)]
    for core, memory_mib, settles in steps:
        before = container.revision
        container = ordered(container, share(core, memory_mib), None)
        assert container.revision == before + 1
        allowed.append((core, memory_mib))
        if settles:
            container, allowed = settled(container), [(core, memory_mib)]
        (counted,) = container.counted
        assert (counted.core, counted.memory_mib) == (max(c for c, _ in allowed), max(m for _, m in allowed))
        assert container.cards == share(core, memory_mib)


def test_growing_holds_nothing_back_and_shrinking_does() -> None:
    assert ordered(SLICE, share(50, 2048), None).held == ()
    assert ordered(SLICE, share(50, 512), 5.0).held == share(50, 1024)
    assert ordered(SLICE, share(50, 512), 5.0).within_seconds == 5.0
    assert size_text(ordered(SLICE, share(50, 512), None)) == "50 % and 512 MiB of card 0"


def test_it_is_in_force_when_the_node_of_every_card_says_so_and_nothing_is_over() -> None:
    container = ordered(SLICE, share(10, 512), None)
    said = SliceInForce(pod="p", container="app", revision=1)
    user = ("p", "app")
    assert is_in_force(container, user, [[said]])
    assert is_in_force(container, user, [[replace(said, revision=2)]])
    assert not is_in_force(container, user, [[replace(said, revision=0)]])
    assert not is_in_force(container, user, [[replace(said, over_mib=1)]])
    assert not is_in_force(container, ("q", "app"), [[said]])
    assert not is_in_force(container, user, [[said], []])


def test_there_is_room_for_what_the_others_leave_and_the_numbers_are_said() -> None:
    books = ledger()
    me, other = Holder("pod", "me"), Holder("pod", "other")
    books.hold(me, pod(SLICE))
    books.hold(other, pod(replace(SLICE, cards=share(40, 8192))))
    check_room(books, me, pod(replace(SLICE, cards=share(60, 8192))))
    with pytest.raises(DoesNotFit, match="card 0 of node n0 has 60 % and 8192 MiB for it, 61 % and 1024 MiB are asked"):
        check_room(books, me, pod(replace(SLICE, cards=share(61, 1024))))
    with pytest.raises(DoesNotFit, match="60 % and 8193 MiB are asked"):
        check_room(books, me, pod(replace(SLICE, cards=share(60, 8193))))


def test_a_sick_card_gives_no_more_and_takes_back() -> None:
    books = ledger(healthy=False)
    me = Holder("pod", "me")
    books.hold(me, pod(SLICE))
    check_room(books, me, pod(replace(SLICE, cards=share(20, 512))))
    with pytest.raises(DoesNotFit, match="card 0 of node n0 is sick"):
        check_room(books, me, pod(replace(SLICE, cards=share(31, 1024))))
    books.remove_node("n0")
    with pytest.raises(DoesNotFit, match="is missing"):
        check_room(books, me, pod(replace(SLICE, cards=share(31, 1024))))


def test_a_demand_is_counted_on_the_cards_that_are_had() -> None:
    ask = ContainerDemand(provisioner=names.VCUDA, core=50)
    assert demanded(SLICE, ask, ledger(), "n0") == share(50, 8192)  # memory in proportion
    with pytest.raises(DoesNotFit, match="missing"):
        demanded(SLICE, ask, Ledger(), "n0")
    with pytest.raises(DoesNotFit, match="never has as much"):
        demanded(SLICE, replace(ask, memory_mib=16385), ledger(), "n0")
    with pytest.raises(NotSupported, match="1 shared cards"):
        demanded(SLICE, replace(ask, cards=2), ledger(), "n0")


def test_a_quota_counts_what_grew() -> None:
    hard, used = {f"requests.{names.GPU_CORE}": 100}, {f"requests.{names.GPU_CORE}": "60"}
    quota = ResourceQuota(metadata=ObjectMeta(name="q"), status=ResourceQuotaStatus(hard=dict(hard), used=dict(used)))
    before, after = {names.GPU_CORE: 10, names.GPU_MEMORY: 0}, {names.GPU_CORE: 40, names.GPU_MEMORY: 9}
    check_quotas([quota], before=before, after=after)
    with pytest.raises(Refused, match=r"60 of 100 .* are used, and 10 more by slices that grew .*; 31 more"):
        check_quotas([quota], before=before, after={**after, names.GPU_CORE: 41})
    check_quotas([quota], before={**before, names.GPU_CORE: 50}, after={**after, names.GPU_CORE: 50})


def counted_pod(**limits: str) -> Pod:
    resources = {"limits": {f"{names.GROUP}/{key}": value for key, value in limits.items()}}
    container = {"name": "app", "resources": resources}
    return msgspec.convert({"metadata": {"name": "p"}, "spec": {"containers": [container]}}, Pod)


def test_what_a_pod_was_never_counted_with_counts_once_it_is_given():
    """Who asked for memory alone has no compute; who asked for compute has the memory that comes with it."""
    of_card = replace(SHARE, card_memory_mib=10_000)

    def beyond(pod: Pod, core: int, memory_mib: int, *, revision: int = 1) -> tuple[int, int]:
        given = replace(SLICE, cards=(replace(of_card, core=core, memory_mib=memory_mib),), revision=revision)
        found = beyond_counted([(pod, PodAllocation(node="n", containers={"app": given}))])
        return found[names.GPU_CORE], found[names.GPU_MEMORY]

    memory_alone, core_alone = counted_pod(**{"gpu-memory": "1000"}), counted_pod(**{"gpu-core": "30"})
    assert beyond(memory_alone, 0, 1000, revision=0) == (0, 0)
    assert beyond(memory_alone, 100, 1000) == (100, 0)
    assert beyond(core_alone, 30, 3000) == (0, 0)
    assert beyond(core_alone, 30, 9000) == (0, 6000)
    assert beyond(core_alone, 40, 4000) == (10, 0)


@pytest.mark.parametrize("digits", [4, 40, 5000])
def test_numbers_of_any_length_are_refused_by_field(digits: int):
    with pytest.raises(InvalidDemand, match="is not a share of one card"):
        parse_size("core=" + "9" * digits, "f")
    with pytest.raises(InvalidDemand, match="is not a number of seconds"):
        asked_within({names.SHRINK_WITHIN: "9" * max(digits, 7)})
