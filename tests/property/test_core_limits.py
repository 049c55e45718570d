"""The sum of limits of compute on a card: no class's bound is exceeded, whatever comes, goes and grows."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from egpu.api import names
from egpu.api.allocation import ContainerDemand, PodAllocation, PodDemand
from egpu.core.placement.fit import choose, filter_nodes
from egpu.core.placement.ledger import Holder, Ledger
from egpu.core.placement.requests import Request
from egpu.core.resizing import check_room, ordered
from egpu_base.errors import DoesNotFit
from support.long import or_long
from support.objects import cluster

NODE = "n0"
CARDS = 2
BOUNDS = (0, 0, 100, 150, 200, 300)
cores = st.sampled_from((0, 5, 10, 20))
limits = st.sampled_from((0, 20, 50, 100))


def demand(core: int, limit: int, bound: int, cards: int = 1) -> ContainerDemand:
    limit = limit if core and limit >= core else 0
    return ContainerDemand(
        provisioner=names.VCUDA, core=core, memory_mib=256, core_limit=limit, max_core_limits=bound, cards=cards
    )


demands = st.builds(demand, cores, limits, st.sampled_from(BOUNDS), st.sampled_from((1, 1, 1, 2)))


@st.composite
def requests(draw: st.DrawFn) -> Request:
    containers = {f"c{at}": one for at, one in enumerate(draw(st.lists(demands, min_size=1, max_size=3)))}
    listed = [*containers]
    kinds = draw(st.lists(st.sampled_from(("app", "app", "init", "sidecar")), min_size=3, max_size=3))
    init = tuple(name for name, kind in zip(listed, kinds, strict=False) if kind == "init")
    sidecars = tuple(name for name, kind in zip(listed, kinds, strict=False) if kind == "sidecar")
    return Request(PodDemand(containers=containers, init=init, sidecars=sidecars))


def on_card(pod: PodAllocation, uuid: str) -> dict[str, tuple[int, int]]:
    """The limit and the bound of each container on a card, by hand."""
    return {
        name: ((max(share.core, one.core_limit) if share.core else 100), one.max_core_limits)
        for name, one in pod.containers.items()
        for share in one.cards
        if share.uuid == uuid
    }


def sums(ledger: Ledger) -> Iterator[tuple[int, int]]:
    """The sum of limits of each card, and its bound."""
    for card in ledger.cards(NODE):
        together, bounds = 0, [1 << 30]
        for pod in ledger.holders().values():
            own = on_card(pod, card.uuid)
            phases = [[name for name in own if name not in pod.init]]
            phases += [[name, *pod.beside(name)] for name in own if name in pod.init]
            together += max(sum(own[name][0] for name in phase if name in own) for phase in phases)
            bounds += [bound for _, bound in own.values() if bound]
        yield together, min(bounds)


def fits_alone(ledger: Ledger, one: ContainerDemand) -> bool:
    """Whether a container alone has room, looked up card by card."""
    row = ledger.row(NODE)
    assert row is not None
    limit = max(one.core, one.core_limit) if one.core else 100
    able = [
        together + limit <= min(bound, one.max_core_limits or bound) and int(ledger.core_free[row, at]) >= one.core
        for at, (together, bound) in enumerate(sums(ledger))
    ]
    return sum(able) >= one.cards


@settings(max_examples=or_long(150, 3000), deadline=None)
@given(st.lists(requests() | st.integers(0, 20) | st.tuples(st.integers(0, 20), limits), max_size=25))
def test_limits_on_a_card_never_add_up_to_more_than_a_class_allows(
    steps: list[Request | int | tuple[int, int]],
) -> None:
    ledger = cluster(cards=CARDS).ledger
    held: list[Holder] = []
    for number, step in enumerate(steps):
        if isinstance(step, Request):
            ok = bool(filter_nodes(step, ledger, [NODE]).ok[0])
            if len(step.demand.containers) == 1:
                (one,) = step.demand.containers.values()
                assert ok == fits_alone(ledger, one)
            if ok:
                held.append(Holder("pod", str(number)))
                ledger.hold(held[-1], choose(step, ledger, NODE))
            else:
                assert filter_nodes(step, ledger, [NODE]).refusal(NODE).text()
        elif held and isinstance(step, int):
            ledger.release(held.pop(step % len(held)))
        elif held and isinstance(step, tuple):
            _grow(ledger, held[step[0] % len(held)], step[1])
        for together, bound in sums(ledger):
            assert together <= bound
        assert not ledger.overcommits()


def _grow(ledger: Ledger, holder: Holder, limit: int) -> None:
    """Give the first container another limit, if there is room."""
    before = ledger.holding(holder)
    assert before is not None
    (name, first), *rest = before.containers.items()
    if not all(share.core for share in first.cards):
        return
    after = ordered(first, first.cards, None, core_limit=limit)
    wanted = PodAllocation(
        node=NODE, containers={name: after, **dict(rest)}, init=before.init, sidecars=before.sidecars
    )
    try:
        check_room(ledger, holder, wanted)
    except DoesNotFit:
        return
    ledger.hold(holder, wanted)
