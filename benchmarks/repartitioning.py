"""Count how often cards in MIG mode are repartitioned in a day of jobs, beside a lower bound.

The jobs request parts of a card as the pods of the openb trace do, and arrive at random. The extender's own scheduling
places them, and this counts the instances that an agent would make and destroy. It measures no times.
"""

import heapq
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.report import Report
from egpu.adapters.traces import read_pods
from egpu.api import names
from egpu.api.mig import InstancePlace, InstanceProfile, Mig
from egpu.core.mig import in_the_way, smallest
from egpu.core.placement.cache import rebuild
from egpu.core.policies.patterns import solver
from egpu.core.policies.registry import Policies
from egpu.core.policies.shapes import WHOLE_CARD
from egpu_base.api.kubernetes import Pod
from support.mig import mig_card, mig_profiles
from support.objects import container, pod

MODEL: Final = "A100-40G"
NODES, CARDS = 4, 4
DAY_SECONDS: Final = 24 * 3600
JOB_SECONDS: Final = 3600
"""The mean running time of a job."""
LOADS: Final = (0.5, 0.7, 0.9)
"""The mean part of all slices of memory that jobs request at a time."""
SEEDS: Final = (1, 2, 3)
LOOKED_AT: Final = 8
"""The number of waiting jobs that are tried whenever one ends."""
PODS: Final = Path(__file__).parents[1] / "data/openb/pods.csv"


@dataclass(frozen=True)
class Job:
    """A job: its request, its arrival and its running time."""

    profile: InstanceProfile
    comes: float
    seconds: float


@dataclass
class Replay:
    """The result. `spans` are the running times of jobs, by the name of the profile: (from, until)."""

    made: int = 0
    destroyed: int = 0
    spans: list[tuple[str, float, float]] = field(default_factory=list[tuple[str, float, float]])


def day_of_jobs(load: float, seed: int, seconds: float = DAY_SECONDS) -> list[Job]:
    """Return jobs for that load, each like a pod of the trace that requests one card or less, at a random time."""
    rng = random.Random(seed)
    known = mig_profiles(MODEL)
    shapes = [shape for shape in read_pods(PODS) if shape.cards == 1]
    jobs: list[Job] = []
    asked, enough = 0.0, load * NODES * CARDS * max(each.size for each in known) * seconds
    while asked < enough:
        wanted = smallest(known, math.ceil(100 * rng.choice(shapes).core_milli / WHOLE_CARD), 0)
        assert wanted is not None
        jobs.append(Job(wanted, rng.uniform(0, seconds), rng.expovariate(1 / JOB_SECONDS)))
        asked += wanted.size * jobs[-1].seconds
    return sorted(jobs, key=lambda job: job.comes)


class Cluster:
    """Cards in MIG mode, as the scheduler sees them, with agents that act at once."""

    def __init__(self) -> None:
        self._nodes = [f"node-{number}" for number in range(NODES)]
        self._own: dict[tuple[str, int], list[InstancePlace]] = {
            (node, index): [] for node in self._nodes for index in range(CARDS)
        }
        self._policies = Policies.named()
        self.cache = rebuild([mig_card(*card, model=MODEL) for card in self._own], [], [])
        self.replay = Replay()

    def start(self, job: Pod) -> bool:
        """Start a job if there is room, giving it an instance; return whether there was."""
        request = self.cache.request(job)
        fitting = self.cache.filter(request, self._nodes).fits
        if not fitting:
            return False
        scores = self.cache.ranking.scores(request, fitting, self._policies)
        node = max(fitting, key=lambda name: scores[name])
        allocation = self.cache.ranking.choose(request, node, self._policies)
        self.cache.assume_pod(job, allocation)
        (share,) = allocation.containers["app"].cards
        assert share.instance is not None
        own = self._own[node, share.index]
        if share.instance not in own:
            gone = in_the_way(Mig(own=own), share.instance)
            self.replay.made += 1
            self.replay.destroyed += len(gone)
            own[:] = [one for one in own if one not in gone] + [share.instance]
            self.cache.gpu_changed(mig_card(node, share.index, model=MODEL, own=own))
        return True


def _pod(number: int, profile: str) -> Pod:
    return pod(f"job-{number}", container("app", {names.MIG_PREFIX + profile.replace("+", "."): 1}))


def replayed(jobs: Sequence[Job]) -> Replay:
    """Run the jobs in order; those without room wait, and the first of them with room then goes first."""
    cluster = Cluster()
    running: list[tuple[float, str]] = []
    waiting: list[tuple[int, Job]] = []

    def try_to_start(now: float) -> None:
        for number, job in waiting[:LOOKED_AT]:
            asking = _pod(number, job.profile.name)
            if cluster.start(asking):
                waiting.remove((number, job))
                heapq.heappush(running, (now + job.seconds, asking.uid))
                cluster.replay.spans.append((job.profile.name, now, now + job.seconds))

    def end_until(now: float) -> None:
        while running and running[0][0] <= now:
            at, uid = heapq.heappop(running)
            cluster.cache.pod_deleted(uid)
            try_to_start(at)

    for number, job in enumerate(jobs):
        end_until(job.comes)
        waiting.append((number, job))
        try_to_start(job.comes)
    end_until(math.inf)
    assert not waiting, "each fits on an empty card"
    return cluster.replay


def fewest_made(spans: Sequence[tuple[str, float, float]], known: Sequence[InstanceProfile], cards: int) -> float:
    """Return a lower bound of the instances that any placement makes for jobs at these times.

    A linear programme: of each profile as many instances exist at any time as its jobs run; all together they have no
    more slices of memory and compute than all cards; each increase counts as made instances. It ignores that an
    instance lies on one card, at one of its places, as a whole.
    """
    used = [each for each in known if any(name == each.name for name, _, _ in spans)]
    demands = list(_demands(spans))
    count, width = len(demands), len(used)
    # Columns: existing instances, by time and profile; then made ones. Rows: made instances; slices.
    rows: list[Mapping[int, float]] = []
    upper: list[float] = []
    for at in range(count):
        for number in range(width):
            here = at * width + number
            rows.append({here: 1.0, count * width + here: -1.0} | ({here - width: -1.0} if at else {}))
            upper.append(0.0)
        for slices, all_of_them in (
            ([each.size for each in used], max(each.size for each in known)),
            ([each.compute for each in used], max(each.compute for each in known)),
        ):
            rows.append({at * width + number: float(each) for number, each in enumerate(slices)})
            upper.append(float(cards * all_of_them))
    least = [float(running[each.name]) for running in demands for each in used] + [0.0] * (count * width)
    cost = [0.0] * (count * width) + [1.0] * (count * width)
    return _solved(cost, least, rows, upper)


def _demands(spans: Sequence[tuple[str, float, float]]) -> Iterator[Counter[str]]:
    """Count the running jobs of each profile, whenever one has just begun."""
    events = sorted([(end, 0, name) for name, _, end in spans] + [(begin, 1, name) for name, begin, _ in spans])
    running = Counter[str]()
    for _, begins, name in events:
        running[name] += 1 if begins else -1
        if begins:
            yield Counter(running)


def _solved(
    cost: Sequence[float], lower: Sequence[float], rows: Sequence[Mapping[int, float]], upper: Sequence[float]
) -> float:
    """Return the least cost of columns of at least `lower`, whose `rows` are at most `upper`."""
    highspy = solver()
    programme: Any = highspy.HighsLp()
    programme.num_col_, programme.num_row_ = len(cost), len(rows)
    programme.col_cost_, programme.col_lower_ = np.array(cost), np.array(lower)
    programme.col_upper_ = np.full(len(cost), highspy.kHighsInf)
    programme.row_lower_, programme.row_upper_ = np.full(len(rows), -highspy.kHighsInf), np.array(upper)
    programme.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    programme.a_matrix_.start_ = np.cumsum([0, *map(len, rows)])
    programme.a_matrix_.index_ = np.array([column for row in rows for column in row])
    programme.a_matrix_.value_ = np.array([value for row in rows for value in row.values()])
    model: Any = highspy.Highs()
    model.silent()
    model.passModel(programme)
    model.run()
    if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise AssertionError(f"the lower bound was not found: {model.getModelStatus()}")
    return float(model.getInfo().objective_function_value)


def run(report: Report) -> dict[str, Any]:
    known = mig_profiles(MODEL)
    table: list[Sequence[object]] = []
    for load in LOADS[1:2] if report.options.quick else LOADS:
        jobs, made, destroyed, fewest = 0, 0, 0, 0.0
        for seed in SEEDS[:1] if report.options.quick else SEEDS:
            report.progress(f"a day at load {load}, seed {seed}")
            replay = replayed(day_of_jobs(load, seed))
            jobs, made, destroyed = jobs + len(replay.spans), made + replay.made, destroyed + replay.destroyed
            fewest += fewest_made(replay.spans, known, NODES * CARDS)
        table.append((f"{load:.0%}", jobs, made, destroyed, fewest, made / fewest))
    columns = ("slices asked for", "jobs", "instances made", "destroyed", "at least made", "ratio")
    report.table(f"repartitioning: {NODES * CARDS} {MODEL} in MIG mode, days of jobs", columns, table)
    report.figures["repartitioning"] = [dict(zip(columns, row, strict=True)) for row in table]
    return report.figures
