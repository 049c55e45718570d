"""A card's time between its containers: idle shares are handed out by weight, and nobody's own share is touched."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from egpu.adapters.slices.pages import PPM
from egpu.adapters.slices.shares import LONG_PERIOD_US, PERIOD_US, Tenant, divide


def tenant(
    core: int, *, ceiling: int = 0, weight: int = 0, active: bool = True, wants: int = 100, kernel_ns: int = 0
) -> Tenant:
    return Tenant(
        core_ppm=core * 10_000,
        ceiling_ppm=max(core, ceiling) * 10_000,
        weight=weight or core,
        active=active,
        wants_ppm=wants * 10_000,
        kernel_ns=kernel_ns,
    )


def percents(*tenants: Tenant) -> list[int]:
    return [round(grant.ppm / 10_000) for grant in divide(tenants)]


def test_alone_a_capped_container_keeps_its_cap_and_a_sharing_one_gets_everything() -> None:
    assert percents(tenant(30)) == [30]
    assert percents(tenant(30, ceiling=100)) == [100]
    assert percents(tenant(30, ceiling=60)) == [60]


def test_latency_work_has_no_window_and_leaves_the_windows_of_others_whole() -> None:
    latency, one, two = divide([replace(tenant(30), latency=True), tenant(30), tenant(40)])
    assert (latency.window, latency.ppm) == (None, 300_000)
    assert one.window is not None
    assert two.window is not None
    assert one.window.length_us + two.window.length_us in (PERIOD_US, PERIOD_US - 1)  # turns interrupt them
    assert divide([replace(tenant(30), latency=True), tenant(70, ceiling=100)])[1].ppm == PPM


def test_what_is_idle_goes_to_those_that_share_by_weight() -> None:
    assert percents(tenant(20, ceiling=100), tenant(20, ceiling=100, weight=60), tenant(40, active=False)) == [
        35,
        65,
        40,
    ]
    assert percents(tenant(20, ceiling=100), tenant(30), tenant(50, active=False)) == [70, 30, 50]


def test_who_wants_little_leaves_the_rest_to_others() -> None:
    assert percents(tenant(20, ceiling=100, wants=25), tenant(20, ceiling=100), tenant(60, active=False)) == [
        25,
        75,
        60,
    ]


def test_who_wakes_up_has_its_share_at_once() -> None:
    assert percents(tenant(50, ceiling=100), tenant(50, active=False)) == [100, 50]
    assert percents(tenant(50, ceiling=100), tenant(50)) == [50, 50]


def test_several_active_containers_run_one_after_the_other() -> None:
    first, second, idle = divide([tenant(30), tenant(70), tenant(10, active=False)])
    assert first.window is not None
    assert second.window is not None
    assert (first.window.start_us, first.window.length_us) == (0, PERIOD_US * 30 // 100)
    assert (second.window.start_us, second.window.length_us) == (PERIOD_US * 30 // 100, PERIOD_US * 70 // 100)
    assert idle.window is None
    assert divide([tenant(30), tenant(70, active=False)])[0].window is None
    long = divide([tenant(30, kernel_ns=5_000_000), tenant(70)])[0].window
    assert long is not None
    assert long.period_us == LONG_PERIOD_US


@given(
    st.lists(
        st.builds(
            tenant,
            st.integers(1, 100),
            ceiling=st.integers(0, 100),
            weight=st.integers(1, 10_000),
            active=st.booleans(),
            wants=st.integers(0, 100),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_never_less_than_the_share_never_more_than_the_ceiling_or_the_card(tenants: list[Tenant]) -> None:
    grants = divide(tenants)
    active = [grant.ppm for each, grant in zip(tenants, grants, strict=True) if each.active]
    owed = sum(each.core_ppm for each in tenants if each.active)
    assert sum(active) <= max(PPM, owed)
    for each, grant in zip(tenants, grants, strict=True):
        assert each.core_ppm <= grant.ppm <= each.ceiling_ppm
    ends = [(w.start_us, w.start_us + w.length_us) for w in (grant.window for grant in grants) if w is not None]
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))
