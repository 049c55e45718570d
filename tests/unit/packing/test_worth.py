"""Prices of remainders against cases worked out by hand."""

import numpy as np
import pytest

from egpu.core.policies.chances import use_of_remainders
from egpu.core.policies.patterns import Share, worth_of_remainders


def test_halves_and_what_fits_beside_them() -> None:
    worth = worth_of_remainders([Share(500, 0, 1000.0)]).table[:, 0]
    assert worth[499] == 0
    assert worth[500] == pytest.approx(0.5)
    assert worth[999] == pytest.approx(0.5)
    assert worth[1000] == pytest.approx(1.0)


def test_a_share_that_always_fits_beside_a_larger_one_is_free() -> None:
    worth = worth_of_remainders([Share(800, 0, 1000.0), Share(200, 0, 500.0)]).table[:, 0]
    assert worth[200] == pytest.approx(0)  # more 800s than 200s: no card is ever opened for a 200
    assert worth[800] == pytest.approx(1.0)


def test_scarce_partners_share_the_card_between_them() -> None:
    worth = worth_of_remainders([Share(600, 0, 500.0), Share(400, 0, 2000.0)]).table[:, 0]
    assert worth[400] == pytest.approx(0.5)
    assert worth[600] == pytest.approx(0.5)


def test_memory_decides_where_compute_would_do() -> None:
    worth = worth_of_remainders([Share(100, 16, 1000.0)], 32).table
    assert worth[1000, 15] == 0
    assert worth[1000, 16] == pytest.approx(0.5)
    assert worth[100, 32] == pytest.approx(0.5)
    assert worth[200, 32] == pytest.approx(1.0)


def test_memory_alone_is_priced() -> None:
    worth = worth_of_remainders([Share(0, 8, 1000.0)], 32).table
    assert worth[0, 8] == pytest.approx(0.25)
    assert worth[1000, 31] == pytest.approx(0.75)


def test_worth_grows_with_the_remainder() -> None:
    random = np.random.default_rng(1)
    drawn = random.integers(1, 30, (20, 3))
    shares = [Share(int(core) * 10, int(memory), 1.0 + weight) for core, memory, weight in drawn]
    for worth in (worth_of_remainders(shares, 32), use_of_remainders(shares, 0.2, 32)):
        assert (np.diff(worth.table, axis=0) >= -1e-9).all()
        assert (np.diff(worth.table, axis=1) >= -1e-9).all()
        assert worth.table[-1, -1] == pytest.approx(1.0)


def test_nobody_asks_for_shares() -> None:
    for worth in (worth_of_remainders([]), use_of_remainders([], 0.2)):
        assert worth.table[999, 0] == 0
        assert worth.table[1000, 0] == 1


def test_use_is_the_discounted_chance_of_being_asked_for() -> None:
    # Half of the pods want 500, half a whole card; V(500) = 0.5 * 0.5 / (1 + 0.5) = 1/6,
    # V(1000) = (0.5 * (0.5 + 1/6) + 0.5 * 1) / (1 + 1) = 5/12.
    use = use_of_remainders([Share(500, 0, 1.0), Share(1000, 0, 1.0)], 1.0).table[:, 0]
    assert use[500] == pytest.approx((1 / 6) / (5 / 12))
    assert use[499] == 0


def test_few_pods_say_little_about_which_share_is_scarce() -> None:
    """Five 400s seen and four 600s: the 600s are the scarce ones, or the next pods say otherwise. So both have a price,
    nearer to the middle than by the same proportion of many."""
    few, many = (
        worth_of_remainders([Share(600, 0, 4.0 * times), Share(400, 0, 5.0 * times)]).table[:, 0] for times in (1, 1000)
    )
    assert many[600] == pytest.approx(0.5)
    assert few[600] > many[600]
    assert np.array_equal(few, worth_of_remainders([Share(600, 0, 4.0), Share(400, 0, 5.0)]).table[:, 0])
