"""What was told lately is not told again, and is forgotten in the end."""

from egpu.apps.agent.limits.seldom import MOST, Seldom


def test_a_key_is_due_at_first_and_again_after_its_time() -> None:
    now = 0.0
    seldom = Seldom(60.0, lambda: now)
    assert seldom.is_due("a"), "at the clock's beginning, too"
    seldom.told("a")
    now = 59.0
    assert not seldom.is_due("a")
    assert seldom.is_due("b")
    now = 60.0
    assert seldom.is_due("a")


def test_only_so_many_keys_are_remembered_the_latest() -> None:
    seldom = Seldom(60.0, lambda: 0.0)
    for key in range(MOST):
        seldom.told(key)
    seldom.told(0)
    seldom.told(MOST)
    assert seldom.is_due(1)
    assert [key for key in (0, 2, MOST) if seldom.is_due(key)] == []
