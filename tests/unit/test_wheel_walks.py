"""How the steps of a walk end, what counts as refused, and what the documents say of it."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import walk_records
from generate_walks_table import functions, summary
from walk_records import Walk
from wheel_walks import outcomes, refusals, verdict, version_of, walked

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
    inside = "egpu: this program needs what is not there: /usr/lib/site-packages/runtime.so has it inside"
    found = refusals(f"{line}\nsomething: not supported\n{line}\n{more}\n{inside}\n")
    assert found == [
        line,
        "egpu-sim: this program needs compiled kernels: use PTX",
        "egpu: this program needs what is not there: …/runtime.so has it inside",
    ]


BARE = Walk({"a": "through", "b": "E: a | b"}, Counter({"cuInit": 1, "cuLibraryLoadData": 2000, "kernels": 5}))
POOL = Walk(
    {"a": "through"}, Counter(), [(10, 3 << 20, 1 << 20, 1, 2), (1, 0, 0, 0, 0)], ["egpu: cuX is not supported"]
)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty record, of which a program gets two places, one after the other."""
    monkeypatch.setattr(walk_records, "RECORDED", tmp_path / "recorded.json")
    walk_records.store("it", version="1", date="2026-01-01", found={"bare": BARE})
    walk_records.store("it", version="2", date="2026-01-02", found={"pool": POOL})


@pytest.mark.usefixtures("record")
def test_what_was_recorded_comes_back() -> None:
    places = walk_records.read_text()["it"]["places"]
    assert {place: walk_records.walk_of(one) for place, one in places.items()} == {"bare": BARE, "pool": POOL}


@pytest.mark.usefixtures("record")
def test_documents_have_the_figures_of_each_place_and_all_that_did_not_work() -> None:
    programs = {name: {"title": "It"} | one for name, one in walk_records.read_text().items()}
    lines = summary(programs).splitlines()
    assert "| It 2 | bare | 1 of 2 | 2 | 2,001 |  | 2,000 | 5 | 2026-01-01 |" in lines
    assert "| It 2 | pool | 1 of 1 |  | 11 | 4.0 MiB | 1 | 2 | 2026-01-02 |" in lines
    assert "| It | bare | `E: a \\| b` | b |" in lines
    assert "| It | `egpu: cuX is not supported` | pool |" in lines
    assert functions(programs).splitlines()[2:] == ["| `cuInit` | 1 |", "| `cuLibraryLoadData` | 2,000 |", ""]


def test_versions_of_packages_of_python_and_npm(tmp_path: Path) -> None:
    (file := tmp_path / "package.json").write_text('{"name": "it", "version": "3.1"}')
    assert version_of(str(file), Path(sys.executable)) == "3.1"
    assert version_of("pytest", Path(sys.executable)) == pytest.__version__


def test_no_step_that_went_through_may_fail(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"bare": Walk({"a": "through"}), "pool": Walk({"a": "RuntimeError: no"})}
    assert verdict(found, ()) == 0
    assert verdict(found, ("a",)) == 1
    assert "pool: went through before, and do not now: a" in capsys.readouterr().err
