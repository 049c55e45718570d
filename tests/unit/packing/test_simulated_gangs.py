"""Gangs in a trace: they come, are placed or refused, are cloned and go as a whole."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from egpu.adapters.traces import read_gangs, read_pods, write_nodes, write_pods
from egpu.api import names
from egpu.cli.app import app
from egpu.core.policies.shapes import Machine, Mix, Shape
from egpu.core.replay.export import trace_of
from egpu.core.replay.run import Outcome, run
from egpu.core.replay.workload import Lifetime, Workload, churn, published_arrivals
from support.objects import cluster, container, gang_pod, pod

WHOLE, HALF = Shape(1000, 1000, 1, 1000), Shape(1000, 1000, 1, 500)


def machines(nodes: int, cards: int) -> list[Machine]:
    return [Machine(f"n{at}", 64_000, 64_000, cards) for at in range(nodes)]


def replay(workload: Workload, nodes: int, cards: int, policy: str = "best-fit") -> Outcome:
    mix = Mix.of(list(workload.shapes))
    return run(policy, machines(nodes, cards), workload, mix, clock=lambda: 0.0, keep_placements=True)


def test_a_gang_that_does_not_fit_whole_leaves_its_room_to_others() -> None:
    shapes = [WHOLE] * 5
    gangs = np.array([0, 0, 0, 1, 1])  # the first needs three of two cards
    outcome = replay(Workload(shapes, np.arange(5), np.arange(1), gangs=gangs), 1, 2)
    assert [outcome.placements[at] is not None for at in range(5)] == [False, False, False, True, True]
    assert (outcome.refused_pods, outcome.refused_gpu_percent) == (3, 60)


def test_without_gangs_nothing_changes() -> None:
    pods = [WHOLE, HALF, HALF]
    plain = published_arrivals(pods, nodes=4, capacity_milli=8000, load=1.3, seed=3)
    same = published_arrivals(pods, nodes=4, capacity_milli=8000, load=1.3, seed=3, gangs=["", "", ""])
    assert list(plain.shapes) == list(same.shapes)
    assert np.array_equal(plain.node_order, same.node_order)
    assert plain.gangs is None


sizes = st.lists(
    st.tuples(st.sampled_from([WHOLE, HALF]), st.sampled_from(["", "a", "b", "c"])), min_size=2, max_size=9
)


@settings(max_examples=60, deadline=None)
@given(sizes, st.integers(1, 4), st.integers(0, 9), st.booleans(), st.sampled_from(["best-fit", "price", "spread"]))
def test_all_of_a_gang_or_none_whatever_comes_and_goes(
    pods: list[tuple[Shape, str]], nodes: int, seed: int, departing: bool, policy: str
) -> None:
    shapes, gangs = [shape for shape, _ in pods], [gang for _, gang in pods]
    capacity = 2000 * nodes
    if departing:
        stay = Lifetime("exp", 1.0)
        workload = churn(
            shapes, nodes=nodes, capacity_milli=capacity, load=1.0, lifetime=stay, lifetimes=3, warm_up=1, seed=seed,
            gangs=gangs,
        )  # fmt: skip
    else:
        workload = published_arrivals(shapes, nodes=nodes, capacity_milli=capacity, load=1.5, seed=seed, gangs=gangs)
    if not any(event >= 0 for event in workload.events.tolist()):
        return
    outcome = replay(workload, nodes, 2, policy)
    together: dict[int, set[bool]] = {}
    numbers = workload.gangs if workload.gangs is not None else np.full(len(workload.shapes), -1)
    for at, place in outcome.placements.items():
        if numbers[at] >= 0:
            together.setdefault(int(numbers[at]), set()).add(place is not None)
    assert all(len(verdicts) == 1 for verdicts in together.values())
    free = {(row, card): 1000 for row in range(nodes) for card in range(2)}
    for event in workload.events.tolist():
        at = event if event >= 0 else ~event
        if (place := outcome.placements.get(at)) is None:
            continue
        for card in place.cards:
            free[place.row, card] += -workload.shapes[at].core_milli if event >= 0 else workload.shapes[at].core_milli
            assert 0 <= free[place.row, card] <= 1000


def test_a_gang_column_is_written_and_read(tmp_path: Path) -> None:
    write_pods(tmp_path / "pods.csv", [WHOLE, HALF, HALF], ["1", "", "1"])
    assert read_gangs(tmp_path / "pods.csv") == ["1", "", "1"]
    assert read_pods(tmp_path / "pods.csv") == [WHOLE, HALF, HALF]
    write_pods(tmp_path / "none.csv", [WHOLE])
    assert read_gangs(tmp_path / "none.csv") == []


def test_an_exported_trace_numbers_the_gangs_and_does_not_name_them() -> None:
    plain, cpu_only = pod("p", container("app", {names.GPU_CORE: 100})), pod("c", container("app"))
    members = [gang_pod("a", "secret"), gang_pod("b", "other"), gang_pod("d", "secret")]
    shapes, gangs = trace_of(cluster(), [*members, plain, cpu_only])
    assert len(shapes) == 5
    assert gangs == ["1", "2", "", "1", ""]  # in order of name: a, b, c, d, p


def simulate(tmp_path: Path, *arguments: str) -> dict[str, float]:
    """Allocated percent by policy, of `egpu simulate` on the trace in the folder."""
    out = tmp_path / "out.json"
    files = ("--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv"), "--out", str(out))
    done = CliRunner().invoke(app, ["simulate", *files, "--policy", "best-fit", "--load", "1.0", *arguments])
    assert done.exit_code == 0, done.output
    return {one["policy"]: one["alloc"]["100"] for one in json.loads(out.read_text())}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Four nodes of two cards, and pods that ask for one card and half a node's CPU each."""
    nodes = [Machine(f"n{at}", 4000, 64_000, 2, "T4" if at else "V100", 16384) for at in range(4)]
    write_nodes(tmp_path / "nodes.csv", nodes)
    write_pods(tmp_path / "pods.csv", [Shape(2000, 1000, 1, 1000, 0)] * 8)
    return tmp_path


@pytest.mark.parametrize(
    ("what_if", "percent"),
    [
        ((), 100.0),
        (("--add", "1:H200:4:1000:64000"), 8 / 12 * 100),  # more cards, and no CPU to use them
        (("--add", "1:H200:4:8000:64000"), 100.0),
        (("--remove", "n1", "--remove", "V100:1"), 100.0),
        (("--change", "T4:cpu_milli=2000"), 5 / 8 * 100),  # another limit: one pod a node
        (("--change", "n1:cards=4"), 8 / 10 * 100),  # other cards
        (("--change", "T4:ram_mib=1500", "--change", "V100:ram_mib=500"), 3 / 8 * 100),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_if_flags_change_the_cluster(trace: Path, what_if: tuple[str, ...], percent: float) -> None:
    (found,) = simulate(trace, *what_if).values()
    assert found == pytest.approx(percent)


def test_what_if_by_model_is_seen_by_pods_bound_to_it(trace: Path) -> None:
    write_pods(trace / "pods.csv", [Shape(2000, 1000, 1, 1000, 0, ("V100",))] * 8)
    assert simulate(trace) == {"best-fit": 25.0}
    assert simulate(trace, "--change", "n1:model=V100") == {"best-fit": 50.0}


def test_gangs_of_a_trace_are_simulated_as_such(trace: Path) -> None:
    with (trace / "pods.csv").open() as file:
        rows = list(csv.DictReader(file))
    for at, row in enumerate(rows):
        row["gang"] = "one" if at < 6 else ""
    with (trace / "pods.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert simulate(trace) == {"best-fit": 100.0}
    alone = simulate(trace, "--remove", "T4:2")  # four cards: the gang of six fits nowhere
    assert alone["best-fit"] in (0.0, 25.0, 50.0)


def test_one_more_node_of_each_kind_says_which_helps(trace: Path) -> None:
    """Pods that accept the model V100 alone: another T4 helps none, another V100 helps two of eight."""
    write_pods(trace / "pods.csv", [Shape(2000, 1000, 1, 1000, 0, ("V100",))] * 8)
    simulate(trace, "--one-more")
    refused = {one["policy"]: one["refused_gpu_percent"] for one in json.loads((trace / "out.json").read_text())}
    assert refused == {"best-fit": 75.0, "best-fit + 1 like n1": 75.0, "best-fit + 1 like n0": 50.0}
