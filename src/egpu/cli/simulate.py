"""`egpu simulate`: a workload replayed under scheduling policies."""

import csv
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from egpu.adapters.traces import read_gangs, read_idle, read_nodes, read_pods
from egpu.cli.output import Format, Table, errors, show
from egpu.cli.plots import Line, write_plot
from egpu.core.policies.registry import canonical
from egpu.core.policies.shapes import Machine, Mix, Shape
from egpu.core.provisioners.parking import parse_resident
from egpu.core.replay import whatif
from egpu.core.replay.parking import sharing
from egpu.core.replay.run import Outcome, run
from egpu.core.replay.summary import interval, paired
from egpu.core.replay.workload import Lifetime, Workload, churn, published_arrivals
from egpu_base.errors import InvalidInput

STEP_PERCENT: Final = 10
MAX_JOBS: Final = 64
_PARKED: Final = ("REFUSED PODS", "CONTENDED CARDS %")


@dataclass(frozen=True)
class Task:
    """One run, as a worker process gets it."""

    policy: str
    seed: int
    machines: Sequence[Machine]
    pods: Sequence[Shape]
    load: float
    lifetime: Lifetime | None
    lifetimes: float
    warm_up: float
    fragmentation: bool
    gangs: Sequence[str] = ()
    told: str = ""
    """The name of the row that it belongs to."""
    more: tuple[Machine, ...] = ()
    """Nodes beside `machines`. As many pods arrive as without them."""

    def workload(self) -> Workload:
        """Return the workload, which is the same for all policies of a seed."""
        found = self._arrivals()
        last = range(len(self.machines), len(self.machines) + len(self.more))
        return replace(found, node_order=np.append(found.node_order, np.array(last, dtype=found.node_order.dtype)))

    def _arrivals(self) -> Workload:
        nodes, capacity = len(self.machines), 1000 * sum(machine.cards for machine in self.machines)
        if self.lifetime is None:
            return published_arrivals(
                self.pods, nodes=nodes, capacity_milli=capacity, load=self.load, seed=self.seed, gangs=self.gangs
            )
        return churn(
            self.pods,
            nodes=nodes,
            capacity_milli=capacity,
            load=self.load,
            lifetime=self.lifetime,
            lifetimes=self.lifetimes,
            warm_up=self.warm_up,
            seed=self.seed,
            gangs=self.gangs,
        )


@dataclass(frozen=True)
class Result:
    """The result of a run. `policy` is the name as the user wrote it."""

    policy: str
    seed: int
    alloc: dict[str, float]
    refused_gpu_percent: float
    decisions_per_second: float
    p99_milliseconds: float
    refused_pods: int
    contended_percent: float
    curve: list[tuple[int, float, float]]
    """Points of arrived, allocated and fragmented percent."""

    def record(self) -> dict[str, Any]:
        """Return the record for the JSON file."""
        return {
            "policy": self.policy,
            "seed": self.seed,
            "alloc": {load: round(percent, 4) for load, percent in self.alloc.items()},
            "refused_gpu_percent": round(self.refused_gpu_percent, 4),
            "refused_pods": self.refused_pods,
            "contended_cards_percent": round(self.contended_percent, 4),
            "decisions_per_second": round(self.decisions_per_second, 1),
        }


def perform(task: Task) -> Result:
    """Run one task. Raises InvalidInput."""
    outcome = run(
        task.policy,
        [*task.machines, *task.more],
        task.workload(),
        Mix.of(list(task.pods)),
        seed=task.seed,
        clock=time.perf_counter,
        fragmentation=task.fragmentation,
    )
    return Result(
        policy=task.told or task.policy,
        seed=task.seed,
        alloc=_at_loads(outcome, task.load),
        refused_gpu_percent=outcome.refused_gpu_percent,
        decisions_per_second=outcome.decisions_per_second,
        p99_milliseconds=1000 * float(np.percentile(outcome.decision_seconds, 99)),
        refused_pods=outcome.refused_pods,
        contended_percent=outcome.contended_percent,
        curve=[(p.arrived_percent, p.allocated_percent, p.fragmented_percent) for p in outcome.curve],
    )


def _at_loads(outcome: Outcome, load: float) -> dict[str, float]:
    """Return the allocated percent at 100, 110, … percent arrived load, or at the end of a smaller load."""
    last = math.floor(100 * load + 1e-9)
    steps = [*range(100, last + 1, STEP_PERCENT)] or [last]
    return {str(step): outcome.allocated_at(step) for step in steps}


Parking = Annotated[
    str | None,
    typer.Option(
        metavar="PERCENT",
        help="Replay each policy without and with parking. With parking, a card always has room for PERCENT (such "
        "as 3%) of the memory of a pod with idle times (column gpu_idle_percent).",
    ),
]
OneMore = Annotated[
    bool,
    typer.Option(
        "--one-more",
        help="Also replay each policy with one more node of each kind in turn. The results show which node helps most.",
    ),
]


def simulate(
    nodes: Annotated[Path, typer.Option(help="CSV file with the nodes.")] = Path("data/openb/nodes.csv"),
    pods: Annotated[Path, typer.Option(help="CSV file with the pods.")] = Path("data/openb/pods.csv"),
    policy: Annotated[
        str,
        typer.Option(
            help="Policies, joined by commas: default, price, price-known, fgd, best-fit, gpu-packing, dot-product, "
            "random, binpack, spread."
        ),
    ] = "default,fgd,best-fit",
    seed: Annotated[str, typer.Option(help="Seeds, joined by commas.")] = "42",
    load: Annotated[
        float,
        typer.Option(help="Requested GPUs, divided by the nodes' GPUs. With --lifetime: the average over time."),
    ] = 1.3,
    lifetime: Annotated[
        str | None,
        typer.Option(help="End pods after random times: exp:MEAN, pareto:MEAN or pareto:MEAN:SHAPE, in any time unit."),
    ] = None,
    lifetimes: Annotated[float, typer.Option(help="With --lifetime: length of a run, in mean lifetimes.")] = 6.0,
    warm_up: Annotated[
        float,
        typer.Option(
            help="With --lifetime: length of the warm-up, in mean lifetimes. Its pods do not count in REFUSED GPU %."
        ),
    ] = 1.0,
    out: Annotated[Path | None, typer.Option(help="JSON file for the results.")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="CSV file for the curves of all runs.")] = None,
    plot: Annotated[
        list[Path] | None, typer.Option(help="Chart file (.svg or .png): allocation and fragmentation by load.")
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            help="Add nodes: COUNT:MODEL:CARDS:CPU:RAM or, with a card's memory, "
            "COUNT:MODEL:CARDS:CPU:RAM:MEMORY. CPU in thousandths, RAM and MEMORY in MiB."
        ),
    ] = None,
    remove: Annotated[list[str] | None, typer.Option(help="Remove nodes: NAME or MODEL[:COUNT].")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(help="Change nodes: NAME_OR_MODEL:FIELD=VALUE. Fields: cards, model, cpu_milli, …"),
    ] = None,
    parking: Parking = None,
    one_more: OneMore = False,
    jobs: Annotated[int, typer.Option(help="Number of parallel runs. Use 1 to compare speeds.")] = 1,
    output: Annotated[
        Format, typer.Option("-o", "--output", metavar="FORMAT", help="table, json or yaml.")
    ] = Format.TABLE,
) -> None:
    """Replay recorded pods under one or more scheduling policies, and compare the results."""
    policies = [name.strip() for name in policy.split(",") if name.strip()]
    for name in policies:
        canonical(name)
    machines = _changed(read_nodes(nodes), add or (), remove or (), change or ())
    shapes, gangs = read_pods(pods), read_gangs(pods)
    _check(load, lifetimes=lifetimes, warm_up=warm_up, jobs=jobs)
    stay = Lifetime.parse(lifetime) if lifetime else None
    ways = {name: (name, shapes) for name in policies} | _parked(policies, shapes, pods, parking)
    tasks = [
        Task(name, number, machines, asked, load, stay, lifetimes, warm_up, bool(plot or csv_file), gangs, told)
        for number in _seeds(seed)
        for told, (name, asked) in ways.items()
    ]
    tasks += _with_one_more(tasks, machines) if one_more else []
    rows = list(dict.fromkeys(task.told for task in tasks))
    results = sorted(_perform_all(tasks, jobs), key=lambda one: (rows.index(one.policy), one.seed))
    show(_comparison(results, rows, contended=parking is not None), output)
    if out is not None:
        out.write_text(json.dumps([result.record() for result in results], indent=1) + "\n", encoding="utf-8")
    if csv_file is not None:
        _write_curves(csv_file, results)
    for path in plot or []:
        _plot(path, results, rows)


def _with_one_more(tasks: Sequence[Task], machines: Sequence[Machine]) -> list[Task]:
    """Return the tasks again, for each kind of node with one more of it."""
    more = whatif.one_more(machines).items()
    return [replace(task, told=f"{task.told} + 1 like {name}", more=(one,)) for task in tasks for name, one in more]


def _check(load: float, *, lifetimes: float, warm_up: float, jobs: int) -> None:
    if load <= 0 or lifetimes <= 0 or not 0 <= warm_up < lifetimes:
        raise InvalidInput("load", "--load and --lifetimes must be above 0, --warm-up from 0 to below --lifetimes")
    if not 1 <= jobs <= MAX_JOBS:
        raise InvalidInput("jobs", f"{jobs} is not between 1 and {MAX_JOBS}")


def _changed(
    machines: list[Machine], added: Sequence[str], removed: Sequence[str], changed: Sequence[str]
) -> list[Machine]:  # fmt: skip
    for text in added:
        machines = whatif.add(machines, text)
    for text in removed:
        machines = whatif.remove(machines, text)
    for text in changed:
        machines = whatif.change(machines, text)
    return machines


def _parked(
    policies: Sequence[str], shapes: Sequence[Shape], pods: Path, resident: str | None
) -> dict[str, tuple[str, list[Shape]]]:  # fmt: skip
    """Return the rows with parking: by name, the policy and what it is asked for."""
    if resident is None:
        return {}
    try:
        percent = parse_resident(resident)
    except ValueError as error:
        raise InvalidInput("parking", str(error)) from error
    asked = sharing(shapes, read_idle(pods), percent)
    return {f"{name} + parking": (name, asked) for name in policies}


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0:
        raise InvalidInput("seed", f"{text!r} is not a list of numbers of 0 or more. Example: 1,2,3")
    return seeds


def _perform_all(tasks: Sequence[Task], jobs: int) -> list[Result]:
    with _progress(len(tasks)) as advance:
        results: list[Result] = []
        if jobs == 1:
            for task in tasks:
                results.append(perform(task))
                advance(task)
            return results
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            waiting: dict[Future[Result], Task] = {pool.submit(perform, task): task for task in tasks}
            try:
                for future in as_completed(waiting):
                    results.append(future.result())
                    advance(waiting[future])
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return results


@contextmanager
def _progress(total: int) -> Generator[Callable[[Task], None]]:
    """Show a progress bar on stderr if it is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        entry = bar.add_task("simulating", total=total)

        def advance(task: Task) -> None:
            bar.update(entry, advance=1, description=f"{task.policy} seed {task.seed}")

        yield advance


def _comparison(results: Sequence[Result], policies: Sequence[str], *, contended: bool) -> Table:
    """Return means with 95 % intervals, and the paired difference of refused GPU to the first policy. `contended`: with
    refused pods, and the cards whose pods wait for each other."""
    loads = list(results[0].alloc)
    columns = ["POLICY", "RUNS", *(f"ALLOCATED@{load}%" for load in loads), "REFUSED GPU %"]
    first = [result.refused_gpu_percent for result in results if result.policy == policies[0]]
    columns += [f"REFUSED - {policies[0]}", *(_PARKED if contended else ()), "DECISIONS/S", "P99 MS"]
    table = Table(
        columns,
        title="Simulation",
        right=frozenset(columns[1:]),
        spare=("P99 MS", "DECISIONS/S", "RUNS", *columns[2 : len(loads) + 1]),
    )
    for name in dict.fromkeys(policies):
        own = [result for result in results if result.policy == name]
        allocated = {load: interval([result.alloc[load] for result in own]) for load in loads}
        refused = interval([result.refused_gpu_percent for result in own])
        waiting = interval([result.contended_percent for result in own])
        difference = paired([result.refused_gpu_percent for result in own], first)
        speed = statistics.fmean(result.decisions_per_second for result in own)
        slow = max(result.p99_milliseconds for result in own)
        table.add(
            [
                name,
                str(len(own)),
                *(str(allocated[load]) for load in loads),
                str(refused),
                f"{difference.mean:+.2f} ± {difference.half:.2f}",
                *([str(interval([one.refused_pods for one in own])), str(waiting)] if contended else ()),
                f"{speed:,.0f}",
                f"{slow:.2f}",
            ],
            {
                "policy": name,
                "runs": len(own),
                "allocatedPercent": {load: allocated[load].mean for load in loads},
                "allocatedPercentHalfInterval": {load: allocated[load].half for load in loads},
                "refusedGpuPercent": refused.mean,
                "refusedGpuPercentHalfInterval": refused.half,
                "refusedPods": statistics.fmean(one.refused_pods for one in own),
                "contendedCardsPercent": waiting.mean,
                "decisionsPerSecond": speed,
                "p99Milliseconds": slow,
            },
        )
    return table


def _write_curves(path: Path, results: Sequence[Result]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["policy", "seed", "arrived_percent", "allocated_percent", "fragmented_percent"])
        for result in results:
            for arrived, allocated, fragmented in result.curve:
                writer.writerow([result.policy, result.seed, arrived, f"{allocated:.4f}", f"{fragmented:.4f}"])


def _plot(path: Path, results: Sequence[Result], policies: Sequence[str]) -> None:
    lines: list[list[Line]] = [[], []]
    for name in dict.fromkeys(policies):
        own = [result for result in results if result.policy == name]
        length = min(len(result.curve) for result in own)
        arrived = [float(own[0].curve[at][0]) for at in range(length)]
        for panel, column in enumerate((1, 2)):
            means = [statistics.fmean(result.curve[at][column] for result in own) for at in range(length)]
            lines[panel].append(Line(name, arrived, means))
    titles = ("Allocated GPU, % of capacity", "Fragmented, % of free GPU")
    write_plot(path, list(zip(titles, lines, strict=True)), x_title="Arrived GPU, % of capacity")
