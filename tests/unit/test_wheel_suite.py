"""What the steps of a wheel on a card come to."""

import pytest
from package_suites import SuiteError
from wheel_suite import outcomes, table, verdict

OUTPUT = "a warning: of somebody's\nstep out of memory: passed\nstep graph: RuntimeError: no\n"
FOUND = {"slice": {"graph": "passed", "zeros": "passed"}, "pool": {"graph": "Error: no", "zeros": "passed"}}


def test_the_steps_say_how_they_went() -> None:
    assert outcomes(OUTPUT, 0) == {"out of memory": "passed", "graph": "RuntimeError: no"}


@pytest.mark.parametrize(("output", "status"), [(OUTPUT, 139), ("", 0)])
def test_a_process_that_ended_before_its_last_step_is_an_error(output: str, status: int) -> None:
    with pytest.raises(SuiteError, match=f"status {status}"):
        outcomes(output, status)


def test_a_table_has_a_row_for_each_step_and_the_reasons_below() -> None:
    rows = ["| step | slice | pool |", "|---|---|---|", "| graph | yes | no |", "| zeros | yes | yes |"]
    assert table(FOUND) == [*rows, "", "pool: graph: Error: no"]


def test_no_step_that_passed_may_fail() -> None:
    assert verdict(FOUND, {"slice": ["graph"], "pool": ["zeros"]}, "it.yaml") == 0
    assert verdict(FOUND, {"slice": ["graph"], "pool": ["graph"]}, "it.yaml") == 1
    assert verdict(FOUND, {"slice": ["cudnn"]}, "it.yaml") == 1
