"""How the steps of a walk end, and what counts as refused."""

from collections import Counter
from collections.abc import Sequence

import pytest
from wheel_walks import Walk, outcomes, refusals, rows, verdict, walked

OUTPUT = """
{"begins": "copies"}
{"step": "copies", "ok": true}
{"begins": "sums"}
{"step": "sums", "ok": false, "error": "AssertionError: nan away"}
not a line of a step
{"begins": "graph"}
{"step": "graph", "ok": false, "error": "RuntimeError: operation not supported"}
"""


def test_wrong_numbers_go_through_and_errors_do_not() -> None:
    found = outcomes(OUTPUT, 0)
    assert found == {"copies": "through", "sums": "through", "graph": "RuntimeError: operation not supported"}


@pytest.mark.parametrize(
    ("output", "status", "last"),
    [
        (OUTPUT + '{"begins": "end"}\n', 139, ("end", "the process ended with status 139")),
        ("", 1, ("start", "the process ended with status 1")),
        ('{"step": "copies", "ok": true}\n', 3, ("start", "the process ended with status 3")),
    ],
)
def test_a_process_that_ends_early(output: str, status: int, last: tuple[str, str]) -> None:
    assert list(outcomes(output, status).items())[-1] == last


def test_a_walk_goes_on_behind_the_step_that_ended_the_process() -> None:
    given: list[Sequence[str]] = []
    parts = [
        Walk({"a": "through", "b": "the process ended with status 139"}, Counter({"cuInit": 1}), [], ["x"]),
        Walk({"c": "through"}, Counter({"cuInit": 2}), [], ["x", "y"]),
    ]

    def run(program: Sequence[str]) -> Walk:
        given.append(program)
        return parts[len(given) - 1]

    whole = walked(run, ["program"], again=True)
    assert given == [["program"], ["program", "--after", "b"]]
    assert list(whole.steps) == ["a", "b", "c"]
    assert (whole.calls["cuInit"], whole.refused) == (3, ["x", "y"])


def test_refused_calls_are_named_once() -> None:
    line = "egpu: cuLogsRegisterCallback is not supported on a remote GPU"
    more = "egpu-sim: this program needs compiled kernels: use PTX (EGPU_SIM_VERBOSE=0 hides this line)"
    found = refusals(f"{line}\nsomething: not supported\n{line}\n{more}\n")
    assert found == [line, "egpu-sim: this program needs compiled kernels: use PTX"]


def test_a_row_has_the_figures_of_its_place() -> None:
    bare = Walk({"a": "through", "b": "error"}, Counter({"cuInit": 1, "cuLibraryLoadData": 2, "kernels": 5}))
    pool = Walk({"a": "through"}, Counter(), [(10, 300, 200, 1, 2), (1, 30, 20, 0, 0)])
    assert rows("it", {"bare": bare, "pool": pool}) == [
        "| it | bare | 1 of 2 | 2 | 3 |  | 2 | 5 |",
        "| it | pool | 1 of 1 |  | 11 | 550 | 1 | 2 |",
    ]


def test_no_step_that_went_through_may_fail(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"bare": Walk({"a": "through"}), "pool": Walk({"a": "RuntimeError: no"})}
    assert verdict(found, ()) == 0
    assert verdict(found, ("a",)) == 1
    assert "pool: went through before, and do not now: a" in capsys.readouterr().err
