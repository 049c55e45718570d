"""Short replays of a twelfth of the trace: what the policies do, pinned; and the protocol's own rules."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from egpu.adapters.traces import read_nodes, read_pods
from egpu.core.policies.shapes import Machine, Mix, Shape
from egpu.core.replay import whatif
from egpu.core.replay.run import Outcome, run
from egpu.core.replay.summary import interval, paired
from egpu.core.replay.workload import Lifetime, Workload, churn, published_arrivals
from egpu_base.errors import InvalidInput

DATA = Path(__file__).parents[3] / "data" / "openb"
PART = 12


def clock() -> float:
    return 0.0


@pytest.fixture(scope="module")
def machines() -> list[Machine]:
    return read_nodes(DATA / "nodes.csv")[::PART]


@pytest.fixture(scope="module")
def pods() -> list[Shape]:
    return read_pods(DATA / "pods.csv")[::PART]


def capacity(machines: list[Machine]) -> int:
    return 1000 * sum(machine.cards for machine in machines)


def replay(policy: str, machines: list[Machine], pods: list[Shape], seed: int) -> Outcome:
    workload = published_arrivals(pods, nodes=len(machines), capacity_milli=capacity(machines), load=1.3, seed=seed)
    return run(policy, machines, workload, Mix.of(pods), seed=seed, clock=clock)


def test_the_trace_is_whole() -> None:
    machines, pods = read_nodes(DATA / "nodes.csv"), read_pods(DATA / "pods.csv")
    assert (len(machines), sum(machine.cards for machine in machines)) == (1213, 6212)
    assert (len(pods), len(set(pods))) == (8152, 151)
    assert round(sum(pod.gpu_milli for pod in pods) / capacity(machines), 2) == 0.98


def test_who_allocates_more(machines: list[Machine], pods: list[Shape]) -> None:
    means = {
        policy: np.mean([replay(policy, machines, pods, seed).allocated_at(130) for seed in (1, 2)])
        for policy in ("price", "fgd", "best-fit", "random")
    }
    assert means["price"] > means["fgd"] + 0.3
    assert means["fgd"] > means["best-fit"] + 0.5
    assert means["best-fit"] > means["random"] + 2


def test_departures_refuse_less_by_price(machines: list[Machine], pods: list[Shape]) -> None:
    refused: dict[str, list[float]] = {}
    for seed, policy in itertools.product((1, 2), ("price", "best-fit")):
        workload = churn(
            pods,
            nodes=len(machines),
            capacity_milli=capacity(machines),
            load=1.0,
            lifetime=Lifetime("exp", 10.0),
            lifetimes=2,
            warm_up=0.5,
            seed=seed,
        )
        refused.setdefault(policy, []).append(
            run(policy, machines, workload, Mix.of(pods), clock=clock).refused_gpu_percent
        )
    assert paired(refused["price"], refused["best-fit"]).mean < 0


def test_all_policies_see_the_same_arrivals(machines: list[Machine], pods: list[Shape]) -> None:
    one, two = (
        published_arrivals(pods, nodes=len(machines), capacity_milli=capacity(machines), load=1.3, seed=5) for _ in "ab"
    )
    assert one.shapes == two.shapes
    assert np.array_equal(one.node_order, two.node_order)
    asked = sum(shape.gpu_milli for shape in one.shapes) / capacity(machines)
    assert 1.3 <= asked < 1.31
    assert sorted(map(hash, one.shapes[: len(pods)])) == sorted(map(hash, pods))


def test_a_load_below_the_trace_takes_a_part_of_it(machines: list[Machine], pods: list[Shape]) -> None:
    part = published_arrivals(pods, nodes=len(machines), capacity_milli=capacity(machines), load=0.5, seed=5)
    assert len(part.shapes) < len(pods)


@pytest.mark.parametrize("text", ["exp:10", "pareto:10", "pareto:10:2.5"])
def test_churn_offers_the_load_it_says(text: str, machines: list[Machine], pods: list[Shape]) -> None:
    workload = churn(
        pods,
        nodes=len(machines),
        capacity_milli=capacity(machines),
        load=0.9,
        lifetime=Lifetime.parse(text),
        lifetimes=20,
        warm_up=0,
        seed=3,
    )
    running, seen = 0, list[int]()
    for event in workload.events.tolist():
        running += workload.shapes[event].gpu_milli if event >= 0 else -workload.shapes[~event].gpu_milli
        seen.append(running)
    offered = np.mean(seen[len(seen) // 20 :]) / capacity(machines)
    assert offered == pytest.approx(0.9, abs=0.06)
    assert min(seen) >= 0


@pytest.mark.parametrize("text", ["exp", "exp:0", "exp:-1", "pareto:1:1", "weibull:3", "exp:1:2", ""])
def test_bad_lifetimes(text: str) -> None:
    with pytest.raises(InvalidInput, match="none of exp:MEAN"):
        Lifetime.parse(text)


def test_a_placement_is_refused_or_kept_until_the_pod_ends() -> None:
    node = [Machine("n", 8000, 8000, 1)]
    whole = Shape(1000, 1000, 1, 1000)
    workload = Workload([whole, whole, whole], np.array([0, 1, ~1, ~0, 2]), np.arange(1))
    outcome = run("best-fit", node, workload, Mix.of([whole]), clock=clock, keep_placements=True)
    assert [outcome.placements[at] is not None for at in range(3)] == [True, False, True]
    assert outcome.refused_gpu_percent == pytest.approx(100 / 3)


def test_what_if(machines: list[Machine]) -> None:
    more = whatif.add(machines, "3:H200:8:192000:2000000:144384")
    assert len(more) == len(machines) + 3
    assert more[-1] == Machine("added-2", 192_000, 2_000_000, 8, "H200", 144_384)
    assert len(whatif.remove(more, "H200:2")) == len(machines) + 1
    assert all(machine.model != "T4" for machine in whatif.remove(machines, "T4"))
    assert {m.cpu_milli for m in whatif.change(machines, "P100:cpu_milli=64000") if m.model == "P100"} == {64_000}
    for bad in ("x", "1:A:2", "-1:A:1:1:1"):
        with pytest.raises(InvalidInput):
            whatif.add(machines, bad)
    for bad in ("nothing", "T4:99999", "T4:x"):
        with pytest.raises(InvalidInput):
            whatif.remove(machines, bad)
    for bad in ("T4:speed=1", "X:cards=1", "T4:cards=many", "T4"):
        with pytest.raises(InvalidInput):
            whatif.change(machines, bad)


def test_intervals() -> None:
    assert interval([3.0]).half == 0
    found = interval([1.0, 2.0, 3.0])
    assert (found.mean, round(found.half, 3)) == (2.0, 2.484)  # t = 4.303, s = 1, n = 3
    assert paired([1.0, 3.0], [0.0, 2.0]).half == 0


def test_bad_files_are_named_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    for text, said in {
        "cpu_milli\n1\n": "columns memory_mib",
        "cpu_milli,memory_mib,num_gpu,gpu_milli\n1,1,1,abc\n": r"pods\.csv:2: gpu_milli is 'abc'",
        "cpu_milli,memory_mib,num_gpu,gpu_milli\n1,1,2,500\n": "request several cards as whole cards",
        "cpu_milli,memory_mib,num_gpu,gpu_milli\n1,1,1,1500\n": "ask for more cards",
        "cpu_milli,memory_mib,num_gpu,gpu_milli\n": "the file lists no pod",
    }.items():
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InvalidInput, match=said):
            read_pods(path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_nodes(tmp_path / "none.csv")
