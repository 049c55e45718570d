"""What the other packages' tests come to, and when that is too little."""

import pytest
from package_suites import SuiteError, Tally, tally, verdict

PYTEST = "..F.s [100%]\n/a.py:1: Error: 3 passed in it\n{}1 failed, 7 passed, 2 skipped, 1 xfailed in 9.41s\n"
UNITTEST = "Ran 18 tests in 2s\n\nFAILED (failures=1, errors=2, skipped=5, expected failures=1)\n"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (PYTEST.format(""), Tally(passed=8, ran=9)),
        (PYTEST.format("===== "), Tally(passed=8, ran=9)),
        ("12 passed, 1 error in 101.28s (0:01:41)\n", Tally(passed=12, ran=13)),
        ("Ran 18 tests in 0.002s\n\nOK\n", Tally(passed=18, ran=18)),
        (UNITTEST, Tally(passed=10, ran=13)),
    ],
)
def test_what_passed_of_what_ran(output: str, expected: Tally) -> None:
    assert tally(output) == expected


def test_a_run_that_was_cut_off_counts_for_nothing() -> None:
    with pytest.raises(SuiteError, match="did not get to their end"):
        tally("....s..")


def test_no_fewer_may_pass_than_did() -> None:
    assert [verdict(Tally(passed=passed, ran=20), 10) for passed in (9, 10, 11)] == [1, 0, 0]
