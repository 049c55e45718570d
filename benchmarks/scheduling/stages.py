"""The stages of measuring. Their seeds are never used for choosing a setting."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from benchmarks.scheduling.bound import by_choice_percent, evenly_percent
from benchmarks.scheduling.mixes import all_mixes
from egpu.adapters.traces import read_nodes, read_pods
from egpu.core.policies.shapes import Machine, Mix, Shape
from egpu.core.replay.run import Outcome, run
from egpu.core.replay.workload import Lifetime, Workload, churn, published_arrivals

DATA = Path("data/openb")
SEEDS = range(42, 52)
LOADS = (100, 110, 120, 130)
POLICIES = ("default", "price-known", "fgd", "best-fit", "gpu-packing", "dot-product", "random")
CHURN_POLICIES = ("default", "fgd", "best-fit")
CHURN_SEEDS = range(7001, 7006)
CHURN_LOADS = (0.8, 0.9, 0.95, 1.0, 1.1)
LIFETIMES = ("exp:1", "pareto:1")
CHURN_LENGTH, WARM_UP = 6.0, 1.0
MIX_SEEDS = (42, 43)
BOUNDS = {"evenly": evenly_percent, "by choice": by_choice_percent}
"""The figures to keep beside the policies of each mix."""
SPEED_NODES = (1_523, 15_000)

Found = dict[str, Any]
Keep = Callable[[list[Found]], None]
"""Called with the results so far, after every case: an interrupted stage keeps them, and continues from there."""


def trace() -> tuple[list[Machine], list[Shape]]:
    """Return the default trace."""
    return read_nodes(DATA / "nodes.csv"), read_pods(DATA / "pods.csv")


def capacity(machines: Sequence[Machine]) -> int:
    """Return the capacity in thousandths of a card."""
    return 1000 * sum(machine.cards for machine in machines)


def _arrivals(machines: list[Machine], pods: list[Shape], seed: int) -> Workload:
    return published_arrivals(pods, nodes=len(machines), capacity_milli=capacity(machines), load=1.3, seed=seed)


def _replay(policy: str, machines: list[Machine], pods: list[Shape], seed: int, *, fragmentation: bool) -> Outcome:
    workload = _arrivals(machines, pods, seed)
    return run(
        policy, machines, workload, Mix.of(pods), seed=seed, clock=time.perf_counter, fragmentation=fragmentation
    )


def _lacking(found: list[Found], policies: Sequence[str], **case: Any) -> list[str]:
    """Return the policies without a result for this case."""
    known = {one["policy"] for one in found if all(one[key] == value for key, value in case.items())}
    return [policy for policy in policies if policy not in known]


def published(found: list[Found], keep: Keep) -> None:
    """Run the published protocol on the default trace, with ten seeds."""
    machines, pods = trace()
    for seed in track(SEEDS, "published"):
        for policy in _lacking(found, POLICIES, seed=seed):
            outcome = _replay(policy, machines, pods, seed, fragmentation=seed in SEEDS[:3])
            found.append(
                {
                    "policy": policy,
                    "seed": seed,
                    "alloc": {str(load): round(outcome.allocated_at(load), 4) for load in LOADS},
                    "curve": [
                        (point.arrived_percent, round(point.allocated_percent, 3), round(point.fragmented_percent, 3))
                        for point in outcome.curve
                    ]
                    if seed in SEEDS[:3]
                    else [],
                }
            )
        keep(found)


def churn_gate(found: list[Found], keep: Keep) -> None:
    """Run Poisson arrivals and departures, every policy on the same numbers."""
    machines, pods = trace()
    cases = [(lifetime, load, seed) for seed in CHURN_SEEDS for lifetime in LIFETIMES for load in CHURN_LOADS]
    for lifetime, load, seed in track(cases, "churn"):
        workload = _churn(machines, pods, lifetime, load, seed)
        for policy in _lacking(found, CHURN_POLICIES, lifetime=lifetime, load=load, seed=seed):
            outcome = run(policy, machines, workload, Mix.of(pods), seed=seed, clock=time.perf_counter)
            found.append(
                {
                    "lifetime": lifetime,
                    "load": load,
                    "seed": seed,
                    "policy": policy,
                    "refused_gpu_percent": round(outcome.refused_gpu_percent, 4),
                }
            )
            keep(found)


def _churn(machines: list[Machine], pods: list[Shape], lifetime: str, load: float, seed: int) -> Workload:
    return churn(
        pods,
        nodes=len(machines),
        capacity_milli=capacity(machines),
        load=load,
        lifetime=Lifetime.parse(lifetime),
        lifetimes=CHURN_LENGTH,
        warm_up=WARM_UP,
        seed=seed,
    )


def mixes(found: list[Found], keep: Keep) -> None:
    """Run other job mixes by the published protocol."""
    machines, pods = trace()
    for name, other in track(all_mixes(pods, machines, 2024).items(), "mixes"):
        for seed in MIX_SEEDS:
            for policy in _lacking(found, CHURN_POLICIES, mix=name, seed=seed):
                outcome = _replay(policy, machines, other, seed, fragmentation=False)
                found.append(
                    {
                        "mix": name,
                        "seed": seed,
                        "policy": policy,
                        "alloc": {str(load): round(outcome.allocated_at(load), 4) for load in LOADS},
                    }
                )
            for bound in _lacking(found, tuple(BOUNDS), mix=name, seed=seed):
                alloc = {str(load): round(percent, 4) for load, percent in _bounds(bound, machines, other, seed)}
                found.append({"mix": name, "seed": seed, "policy": bound, "alloc": alloc})
        keep(found)


def _bounds(bound: str, machines: list[Machine], pods: list[Shape], seed: int) -> Iterator[tuple[int, float]]:
    """Return the bound per load, for what has arrived by then."""
    shapes = _arrivals(machines, pods, seed).shapes
    arrived = np.cumsum([shape.gpu_milli for shape in shapes]) * 100 / capacity(machines)
    for load in LOADS:
        yield load, BOUNDS[bound](machines, shapes[: int((arrived <= load).sum())])


def speed(found: list[Found], keep: Keep) -> None:
    """Measure decisions a second on one core, in one process per cluster size and policy to separate their memory."""
    for nodes in track(SPEED_NODES, "speed"):
        for policy in _lacking(found, CHURN_POLICIES, nodes=nodes):
            script = f"from benchmarks.scheduling.stages import one_speed; one_speed({policy!r}, {nodes})"
            done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
            found.append({"nodes": nodes, "policy": policy, **json.loads(done.stdout)})
        keep(found)


def one_speed(policy: str, nodes: int) -> None:
    """Print as JSON, by the clock and by the thread's processor time (which other programs disturb less): decisions a
    second, the 99th percentile of one in milliseconds, and the process's peak memory in MiB."""
    machines, pods = trace()
    many = [replace(machines[at % len(machines)], name=f"n{at}") for at in range(nodes)]
    random = np.random.default_rng(1)
    drawn = [pods[int(at)] for at in random.integers(len(pods), size=len(pods) * nodes // len(machines))]
    workload = published_arrivals(drawn, nodes=nodes, capacity_milli=capacity(many), load=1.3, seed=1)
    said: dict[str, float] = {}
    for name, clock in {"clock": time.perf_counter, "cpu": time.thread_time}.items():
        outcome = run(policy, many, workload, Mix.of(pods), seed=1, clock=clock)
        said[f"per_second_{name}"] = round(outcome.decisions_per_second)
        said[f"p99_milliseconds_{name}"] = round(1000 * float(np.percentile(outcome.decision_seconds, 99)), 3)
    said["memory_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    sys.stdout.write(json.dumps(said))
