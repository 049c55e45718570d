"""Every policy on clusters small enough to decide by hand."""

import pytest

from egpu.core.policies.fgd import Fgd
from egpu.core.policies.fleet import Fleet, Placement
from egpu.core.policies.placer import Placer
from egpu.core.policies.price import Price
from egpu.core.policies.prices import compute_prices
from egpu.core.policies.registry import NAMES, Setting, canonical, make_policy
from egpu.core.policies.reserve import FINENESS, Reserve
from egpu.core.policies.shapes import Machine, Mix, Shape
from egpu_base.errors import InvalidInput

HALF = Shape(cpu_milli=1000, ram_mib=1000, cards=1, core_milli=500)
WHOLE = Shape(cpu_milli=1000, ram_mib=1000, cards=1, core_milli=1000)
PAIR = Shape(cpu_milli=1000, ram_mib=1000, cards=2, core_milli=1000)
QUAD = Shape(cpu_milli=1000, ram_mib=1000, cards=4, core_milli=1000)
CPU_ONLY = Shape(cpu_milli=1000, ram_mib=1000)


def nodes(*cards: int, cpu_milli: int = 64_000, model: str = "A") -> Fleet:
    return Fleet([Machine(f"n{at}", cpu_milli, 256_000, count, model) for at, count in enumerate(cards)])


def place(policy: str, fleet: Fleet, shape: Shape, mix: Mix | None = None) -> Placement | None:
    return Placer(fleet, make_policy(policy, Setting(fleet, mix or Mix.of([HALF, WHOLE, PAIR])))).find(shape)


def test_best_fit_takes_the_node_with_least_left() -> None:
    fleet = nodes(8, 2)
    assert place("best-fit", fleet, WHOLE) == Placement(1, (0,))


def test_gpu_packing_prefers_cards_in_use_then_nodes_in_use() -> None:
    fleet = nodes(2, 2, 2)
    fleet.take(HALF, Placement(2, (1,)))
    assert place("gpu-packing", fleet, HALF) == Placement(2, (1,))
    assert place("gpu-packing", fleet, WHOLE) == Placement(2, (0,))


def test_dot_product_takes_the_node_that_points_away() -> None:
    fleet = nodes(8, 8)
    fleet.take(QUAD, Placement(1, (0, 1, 2, 3)))
    assert place("dot-product", fleet, WHOLE) == Placement(1, (4,))


def test_spread_and_binpack_are_opposites() -> None:
    fleet = nodes(2, 2)
    fleet.take(HALF, Placement(0, (0,)))
    assert place("binpack", fleet, HALF) == Placement(0, (0,))
    assert place("spread", fleet, HALF) == Placement(1, (0,))


def test_fgd_counts_what_the_mix_cannot_use() -> None:
    """A mix of halves and wholes, one in two: what a half leaves is for halves only, so half of it is fragmented."""
    fleet = nodes(1)
    mix = Mix({HALF: 1.0, WHOLE: 1.0})
    gauge = Fgd(mix, fleet.models)
    assert gauge.fragments(fleet).tolist() == [0.0]
    fleet.take(HALF, Placement(0, (0,)))
    assert gauge.fragments(fleet).tolist() == [250.0]


def test_fgd_completes_a_card_before_it_opens_another() -> None:
    fleet = nodes(2, 2)
    fleet.take(HALF, Placement(1, (1,)))
    assert place("fgd", fleet, HALF, Mix({HALF: 1.0, WHOLE: 1.0})) == Placement(1, (1,))


def test_fgd_without_its_rounding_is_another_policy() -> None:
    """A tenth more of either card is taken from what some cannot use anyway: one job in ten on the first, two on the
    second. Both round to a score of 50, so the first row is taken; unrounded, the second is better."""
    fleet = nodes(1, 1)
    small, half, most = (Shape(cards=1, core_milli=core) for core in (100, 500, 960))
    fleet.take(small, Placement(0, (0,)))
    fleet.take(Shape(cards=1, core_milli=600), Placement(1, (0,)))
    mix = Mix({small: 8.0, half: 1.0, most: 1.0})
    assert place("fgd", fleet, small, mix) == Placement(0, (0,))
    assert place("fgd-exact", fleet, small, mix) == Placement(1, (0,))


def test_fgd_without_cpu_all_that_is_free_is_fragmented() -> None:
    fleet = nodes(2, cpu_milli=1500)
    gauge = Fgd(Mix({WHOLE: 1.0}), fleet.models)
    fleet.take(CPU_ONLY, Placement(0, ()))
    assert gauge.fragments(fleet).tolist() == [2000.0]


def test_price_completes_a_card_before_it_opens_another() -> None:
    fleet = nodes(4, 4)
    fleet.take(HALF, Placement(1, (2,)))
    assert place("price-known", fleet, HALF) == Placement(1, (2,))


def test_price_keeps_the_remainder_that_is_worth_more() -> None:
    """320 fits the 350 left by a 650 and the 530 left by a 470, and only the second could take another 470."""
    small, large, middle = (Shape(cards=1, core_milli=core) for core in (320, 650, 470))
    fleet = nodes(1, 1)
    fleet.take(middle, Placement(0, (0,)))
    fleet.take(large, Placement(1, (0,)))
    mix = Mix({small: 2.0, large: 3.0, middle: 8.0})
    assert place("price-known", fleet, small, mix) == Placement(1, (0,))


def test_price_leaves_cpu_where_cards_need_it() -> None:
    fleet = Fleet([Machine("tight", 16_000, 256_000, 2, "A"), Machine("ample", 96_000, 256_000, 2, "A")])
    hungry = Shape(cpu_milli=8000, ram_mib=1000, cards=1, core_milli=1000)
    without = Shape(cpu_milli=8000, ram_mib=1000)
    found = place("price-known", fleet, without, Mix({hungry: 1.0, without: 1.0}))
    assert found is not None
    assert fleet.machines[found.row].name == "ample"


def test_price_keeps_the_last_host_of_a_pod_with_four_cards() -> None:
    fleet = nodes(4, 4)
    fleet.take(WHOLE, Placement(1, (0,)))
    mix = Mix({WHOLE: 10.0, QUAD: 1.0})
    assert place("price-known", fleet, WHOLE, mix) == Placement(1, (1,))
    fleet.take(Shape(cards=3, core_milli=1000), Placement(1, (1, 2, 3)))
    assert place("price-known", fleet, WHOLE, mix) == Placement(0, (0,))  # it never refuses what fits


def test_price_leaves_a_wanted_model_to_those_that_want_it() -> None:
    fleet = Fleet([Machine("b", 64_000, 256_000, 2, "B"), Machine("a", 64_000, 256_000, 2, "A")])
    only_b = Shape(cards=1, core_milli=1000, models=("B",))
    found = place("price-known", fleet, Shape(cards=1, core_milli=1000), Mix({only_b: 1.0, WHOLE: 1.0}))
    assert found is not None
    assert fleet.machines[found.row].name == "a"


def test_price_notices_that_pods_depart() -> None:
    fleet = nodes(4, 4)
    price = Price.of(Mix.of([HALF, WHOLE]), fleet)
    placer = Placer(fleet, price)
    for _ in range(400):
        found = placer.place(HALF)
        assert found is not None
        fleet.release(HALF, found)
    placer.find(HALF)
    assert price.turning


def test_reserve_charges_more_as_hosts_get_fewer() -> None:
    fleet = nodes(*[8] * 40)
    eight = Shape(cpu_milli=1000, ram_mib=1000, cards=8, core_milli=1000)
    reserve = Reserve(Mix({eight: 1.0, WHOLE: 100.0}), fleet, swings=3.0, width=0.5, worth=1.0)
    charged = []
    for row in range(40):
        reserve.attend(fleet)
        charges = reserve.charges()
        charged.append(0.0 if charges is None else float(charges.max()) / FINENESS)
        fleet.take(WHOLE, Placement(row, (0,)))
    assert charged == sorted(charged)
    assert charged[0] < 100 < charged[-1] <= 8000


def test_new_prices_may_know_fewer_kinds_of_hosts() -> None:
    """What was marked on nodes that have filled up since must not be looked up among the charges of now."""
    fleet = nodes(2, 4)
    price = Price.of(Mix({WHOLE: 1.0, PAIR: 9.0, QUAD: 1.0}), fleet)
    placer = Placer(fleet, price)
    assert placer.find(WHOLE) == Placement(0, (0,))
    fleet.take(QUAD, Placement(1, (0, 1, 2, 3)))
    price.use_prices(fleet, compute_prices(Mix({WHOLE: 1.0, PAIR: 9.0}), fleet))
    assert placer.find(WHOLE) == Placement(0, (0,))


def test_scores_that_new_prices_made_void_are_made_anew_when_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = nodes(2, 4)
    price = Price.of(Mix({WHOLE: 1.0, PAIR: 9.0, QUAD: 1.0}), fleet)
    placer = Placer(fleet, price)
    for shape in (HALF, WHOLE, PAIR):
        placer.scores(shape)
    assert not placer.freshen()
    fleet.take(PAIR, Placement(1, (0, 1)))
    price.use_prices(fleet, compute_prices(Mix({WHOLE: 9.0, PAIR: 1.0}), fleet))
    expected = {shape: Placer(fleet, price).scores(shape).tolist() for shape in (HALF, WHOLE, PAIR)}
    assert [placer.freshen() for _ in range(4)] == [True, True, True, False]
    monkeypatch.setattr(Placer, "_refresh", None)
    assert {shape: placer.scores(shape).tolist() for shape in expected} == expected


def test_models_are_hard() -> None:
    fleet = nodes(2, 2)
    for policy in NAMES:
        assert place(policy, fleet, Shape(cards=1, core_milli=500, models=("B",))) is None


def test_names() -> None:
    assert canonical("BestFit") == "best-fit"
    assert canonical("dotprod") == "dot-product"
    assert canonical("default") == "price"
    with pytest.raises(InvalidInput, match="choose one of default, price"):
        canonical("best")
