"""What an allocation takes of a card: amounts at the worst moment, and the mode that its containers make of it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, PodAllocation
from egpu.core.placement.card_usage import (
    CONFLICT,
    EXCLUSIVE,
    FREE,
    CardKey,
    Usage,
    card_usage,
    mode_name,
    overcommit,
    shared_mode,
)
from egpu.core.provisioners import PROVISIONERS

VCUDA, GPUSHARE = shared_mode(names.VCUDA), shared_mode(names.GPUSHARE)


def sharing(provisioner: str, core: int = 10, memory_mib: int = 100) -> ContainerAllocation:
    share = CardShare(uuid="u", index=0, minor=0, core=core, memory_mib=memory_mib)
    return ContainerAllocation(provisioner=provisioner, mode="shared", cards=(share,))


def owning(core: int = 100, memory_mib: int = 1000) -> ContainerAllocation:
    share = CardShare(uuid="u", index=0, minor=0, core=core, memory_mib=memory_mib)
    return ContainerAllocation(provisioner=names.PHYSICAL, mode="exclusive", cards=(share,))


def usage(*, init: Sequence[str] = (), sidecars: Sequence[str] = (), **containers: ContainerAllocation) -> Usage:
    """Of the one card that all of them are on, without limits of compute."""
    allocation = PodAllocation(node="n", containers=containers, init=tuple(init), sidecars=tuple(sidecars))
    return replace(card_usage(allocation)[CardKey("n", "u")], core_limit=0)


# --- modes ----------------------------------------------------------------------------------------------------------


def test_each_technology_has_a_mode_of_its_own_and_the_name_leads_back() -> None:
    modes = [shared_mode(name) for name in PROVISIONERS]
    assert len({FREE, EXCLUSIVE, CONFLICT, *modes}) == 3 + len(modes)
    assert [mode_name(mode) for mode in modes] == list(PROVISIONERS)
    assert [mode_name(mode) for mode in (FREE, EXCLUSIVE, CONFLICT)] == ["", "exclusive", "conflict"]


def test_a_technology_that_does_not_exist_is_a_conflict() -> None:
    assert shared_mode("acme.com/gpu") == CONFLICT


# --- one pod --------------------------------------------------------------------------------------------------------


def test_containers_of_one_technology_add_up() -> None:
    assert usage(a=sharing(names.VCUDA, 10, 100), b=sharing(names.VCUDA, 25, 300)) == Usage(35, 400, VCUDA)


@pytest.mark.parametrize(
    ("one", "other", "sums"),
    [
        (sharing(names.VCUDA, 10, 100), sharing(names.GPUSHARE, 25, 300), (35, 400)),
        (owning(), sharing(names.VCUDA, 10, 100), (110, 1100)),
        (sharing(names.VCUDA, 10, 100), owning(), (110, 1100)),
        (owning(), owning(), (200, 2000)),
    ],
    ids=["two technologies", "owned, then shared", "shared, then owned", "owned twice"],
)
def test_containers_that_cannot_be_on_a_card_at_once_are_a_conflict(
    one: ContainerAllocation, other: ContainerAllocation, sums: tuple[int, int]
) -> None:
    assert usage(a=one, b=other) == Usage(*sums, CONFLICT)


def test_containers_that_run_in_turn_take_the_most_that_one_of_them_does() -> None:
    warm, app = sharing(names.VCUDA, 40, 100), sharing(names.VCUDA, 10, 300)
    assert usage(warm=warm, app=app, init=["warm"]) == Usage(40, 300, VCUDA)


def test_a_sidecar_runs_beside_every_other_container() -> None:
    side, warm, app = (sharing(names.VCUDA, core, memory) for core, memory in ((5, 50), (40, 100), (10, 300)))
    assert usage(side=side, warm=warm, app=app, init=["warm"], sidecars=["side"]) == Usage(45, 350, VCUDA)


def test_a_sidecar_does_not_run_beside_an_init_container_declared_before_it() -> None:
    side, warm, app = (sharing(names.VCUDA, core, memory) for core, memory in ((30, 50), (20, 600), (10, 300)))
    assert usage(warm=warm, side=side, app=app, init=["warm"], sidecars=["side"]) == Usage(40, 600, VCUDA)


def test_a_card_that_an_init_container_owns_is_owned_for_the_pods_life() -> None:
    assert usage(warm=owning(), app=sharing(names.VCUDA), init=["warm"]) == Usage(100, 1000, EXCLUSIVE)


def test_another_technology_in_an_init_container_is_a_conflict() -> None:
    found = usage(warm=sharing(names.GPUSHARE, 10, 100), app=sharing(names.VCUDA, 5, 200), init=["warm"])
    assert found == Usage(10, 200, CONFLICT)


def test_beside_one_that_owns_the_card_init_containers_of_any_technology_are_guests() -> None:
    found = usage(
        first=sharing(names.VCUDA), second=sharing(names.GPUSHARE), third=owning(), init=["first", "second", "third"]
    )
    assert found == Usage(100, 1000, EXCLUSIVE)


def test_an_init_container_without_a_card_takes_nothing() -> None:
    assert usage(app=sharing(names.VCUDA), init=["fetch"]) == Usage(10, 100, VCUDA)


# --- several holders ------------------------------------------------------------------------------------------------

SHARE, OWNED = Usage(50, 500, VCUDA), Usage(100, 1000, EXCLUSIVE)


@pytest.mark.parametrize(
    ("held", "total_mib"),
    [((), 0), ((SHARE, SHARE), 1000), ((OWNED,), 1000), ((Usage(0, 9000, VCUDA),), None)],
    ids=["nothing", "all of it", "all of it to one", "of a card that is away"],
)
def test_what_a_card_can_give(held: tuple[Usage, ...], total_mib: int | None) -> None:
    assert overcommit(held, total_mib) is None


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        ((SHARE, Usage(51, 0, VCUDA)), "has 100 % of compute, 101 % are allocated"),
        ((SHARE, Usage(0, 501, VCUDA)), "has 1000 MiB, 1001 MiB are allocated"),
        ((OWNED, OWNED), "is allocated whole to 2 holders"),
        ((SHARE, Usage(1, 1, CONFLICT)), "is held in two modes, or by a technology that does not exist"),
        (
            (SHARE, Usage(1, 1, GPUSHARE), OWNED),
            f"is held in several modes at once: {', '.join(sorted(['exclusive', names.GPUSHARE, names.VCUDA]))}",
        ),
    ],
    ids=["compute", "memory", "owners", "conflict", "modes"],
)
def test_what_is_more_than_a_card_can_give(held: tuple[Usage, ...], reason: str) -> None:
    assert overcommit(held, 1000) == reason
