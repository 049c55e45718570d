"""What is lost agrees, to the second, with a replayed history; what is proposed would recover it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import encode
from egpu.api.objects import ClaimAllocation, ElasticGPUClaim, ElasticGPUClaimStatus
from egpu.core.bill import Bill, Cause, Size, bill_of, remedies, summed
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.requests import CLAIM_CONTAINER
from egpu.core.view import ClusterView, SliceKey, SliceUsage, cluster_view
from egpu_base.api.kubernetes import Pod
from support.objects import BINPACK, claim, claim_pod, cluster, gpu_class, place, placed, slice_pod

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
HOUR = 3600.0
CARD_MIB = 16384
MIB = 1024 * 1024


@dataclass(frozen=True)
class Phase:
    """A container computes `percent` of a card and holds `memory_mib` for `seconds`; 0 and 0: it asks for nothing."""

    seconds: int
    percent: int
    memory_mib: int


def replayed(phases: Sequence[Phase]) -> SliceUsage:
    """What an agent publishes of it at the end."""
    idle = 0
    for phase in phases:
        idle = idle + phase.seconds if not phase.percent else 0
    return SliceUsage(
        memory_bytes=phases[-1].memory_mib * MIB,
        peak_bytes=max(phase.memory_mib for phase in phases) * MIB,
        gpu_seconds=sum(phase.seconds * phase.percent for phase in phases) / 100,
        idle_seconds=idle,
        age_seconds=sum(phase.seconds for phase in phases),
    )


def made(what: Pod, *, hours: float, **labels: str) -> Pod:
    stamp = (NOW - timedelta(hours=hours)).isoformat()
    return replace(what, metadata=replace(what.metadata, creation_timestamp=stamp, labels=labels))


def bound(cache: SchedulerCache, what: Pod, node: str = "n0") -> Pod:
    return placed(what, place(cache, what, node))


def waiting(cache: SchedulerCache, what: Pod) -> Pod:
    demand = encode(cache.request(what).demand)
    what = replace(what, metadata=replace(what.metadata, annotations=what.annotations | {names.DEMAND: demand}))
    cache.pod_changed(what)
    return what


def seen(
    cache: SchedulerCache,
    pods: Sequence[Pod],
    used: dict[str, SliceUsage] | None = None,
    claims: Sequence[ElasticGPUClaim] = (),
    uuid: str = "GPU-n0-0",
) -> ClusterView:
    usage = {SliceKey("default", pod, "app", uuid): one for pod, one in (used or {}).items()}
    return cluster_view(cache, nodes=(), pods=pods, claims=claims, gpus=(), usage=usage, now=NOW)


def lines(bill: Bill) -> list[tuple[str, Cause, float, float]]:
    return [
        (line.subject.name, line.cause, line.lost_gpu_seconds / HOUR, line.lost_gpu_seconds_per_day / HOUR)
        for line in bill.lines
    ]


def test_the_bill_of_a_replayed_trace_is_what_was_lost() -> None:
    cache = cluster(nodes=1)
    pods = [
        # Half a card for 10 hours; a fifth of a card was computed for 4 of them: 5 - 0.8 hours were lost.
        bound(cache, made(slice_pod("idle", core=50, blocks=4), hours=10, team="vision")),
        # 40 % for 8 hours, of which 10 % were used: 2.4 hours were lost, 7.2 a day.
        bound(cache, made(slice_pod("lazy", core=40, blocks=4), hours=8, team="speech")),
        # A tenth for 2 hours, used: nothing was lost that is worth a line.
        bound(cache, made(slice_pod("busy", core=10, blocks=4), hours=2, team="speech")),
    ]
    used = {
        "idle": replayed([Phase(4 * 3600, 20, 512), Phase(6 * 3600, 0, 512)]),
        "lazy": replayed([Phase(8 * 3600, 10, 512)]),
        "busy": replayed([Phase(2 * 3600, 9, 512)]),
    }
    # A quarter of a card is waited for, for 3 hours: 0.75 hours.
    pods.append(waiting(cache, made(slice_pod("late", core=25, blocks=4), hours=3, team="vision")))
    bill = bill_of(seen(cache, pods, used))
    assert lines(bill) == [
        ("idle", Cause.IDLE, pytest.approx(4.2), 12.0),
        ("lazy", Cause.UNDER_USED, pytest.approx(2.4), pytest.approx(7.2)),
        ("late", Cause.PENDING, pytest.approx(0.75), 6.0),
    ]
    assert bill.lost_gpu_seconds / HOUR == pytest.approx(7.35)
    by_team = summed(bill, lambda line: line.label("team"))
    assert [(team, len(part.lines)) for team, part in by_team.items()] == [("vision", 2), ("speech", 1)]
    assert by_team["vision"].lost_gpu_seconds / HOUR == pytest.approx(4.95)


def test_of_any_trace_exactly_what_was_not_used_is_lost() -> None:
    """Against the trace itself, second by second. Its programs hold as little memory as makes compute what counts."""
    chance = random.Random(1)
    billed = 0
    for _ in range(200):
        core = chance.randint(20, 100)
        phases = [
            Phase(chance.randint(1, 300), chance.randint(4, core), chance.randint(0, 256))
            for _ in range(chance.randint(1, 8))
        ]
        if chance.random() < 0.5:
            phases.append(Phase(chance.randint(600, 9000), 0, 256))
        unused = sum(1 for phase in phases for _ in range(phase.seconds) for _ in range(core - phase.percent)) / 100
        cache = cluster()
        view = seen(cache, [bound(cache, slice_pod("p", core=core, blocks=4))], {"p": replayed(phases)})
        for line in bill_of(view).lines:
            share = 1.0 if core == 100 else core / 100
            assert line.lost_gpu_seconds == pytest.approx(unused)
            assert line.lost_gpu_seconds <= share * line.history_seconds
            billed += 1
    assert billed > 50, "most of these programs are idle in the end"


def test_memory_that_a_working_program_fills_is_used() -> None:
    cache = cluster()
    pods = [bound(cache, slice_pod("p", core=50, blocks=32))]
    full = replayed([Phase(7200, 1, CARD_MIB // 2)])
    assert not bill_of(seen(cache, pods, {"p": full})).lines
    quarter = replayed([Phase(7200, 1, CARD_MIB // 8)])
    assert lines(bill_of(seen(cache, pods, {"p": quarter})))[0][2] == pytest.approx(0.75)


def test_nothing_is_said_of_what_nobody_published_nor_too_early() -> None:
    cache = cluster()
    pods = [bound(cache, slice_pod("p", core=50, blocks=4))]
    assert not bill_of(seen(cache, pods)).lines
    assert not bill_of(seen(cache, pods, {"p": replayed([Phase(3599, 1, 256)])})).lines
    assert bill_of(seen(cache, pods, {"p": replayed([Phase(3600, 1, 256)])})).lines


def advice(cache: SchedulerCache, view: ClusterView, pods: Sequence[Pod]) -> list[tuple[str, str]]:
    nodes = [node.name for node in view.nodes]
    before = cache.ledger.snapshot()
    found = remedies(bill_of(view), cache, pods, nodes)
    assert cache.ledger.snapshot() == before
    return [(one.kind, one.text) for one in found]


def test_a_smaller_request_is_advised_from_what_was_used_and_says_for_how_long() -> None:
    cache = cluster()
    pods = [bound(cache, slice_pod("p", core=80, blocks=40))]
    view = seen(cache, pods, {"p": replayed([Phase(7200, 10, 1000)])})
    (remedy,) = remedies(bill_of(view), cache, pods, ["n0"])
    assert remedy.size == Size(core_percent=15, memory_mib=1280)
    assert remedy.text == "ask for 15 % and 1280 MiB: enough for 2.0 h of history"


def test_an_idle_slice_that_would_make_room_is_given_back_before_anybody_is_moved() -> None:
    cache = cluster(nodes=2)
    pods = [
        bound(cache, slice_pod("idle", core=60, blocks=8), "n0"),
        bound(cache, slice_pod("busy", core=60, blocks=8), "n1"),
        waiting(cache, made(slice_pod("late", core=70, blocks=8), hours=1)),
    ]
    view = seen(cache, pods, {"idle": replayed([Phase(3600, 0, 8)])})
    assert ("end", "end pod default/idle, which is idle; the pod then fits on n0") in advice(cache, view, pods)
    assert ("end", "end pod idle: it does not use its card") in advice(cache, view, pods)


def test_moves_are_proposed_where_nothing_is_idle_and_said_to_be_none_where_there_are_none() -> None:
    cache = cluster(nodes=2)
    pods = [
        bound(cache, slice_pod("a", core=40, blocks=8), "n0"),
        bound(cache, slice_pod("b", core=30, blocks=8), "n1"),
        waiting(cache, made(slice_pod("late", core=80, blocks=8), hours=1)),
    ]
    assert [kind for kind, _ in advice(cache, seen(cache, pods), pods)] == ["move"]
    pods.append(bound(cache, slice_pod("c", core=60, blocks=8), "n1"))
    assert [kind for kind, _ in advice(cache, seen(cache, pods), pods)] == ["none"]


def test_a_claim_that_nobody_uses_is_lost_whole_and_to_be_released() -> None:
    cache = cluster()
    cache.class_changed(gpu_class())
    asked = claim("c")
    stamp = (NOW - timedelta(hours=4)).isoformat()
    asked = replace(asked, metadata=replace(asked.metadata, creation_timestamp=stamp))
    cache.claim_changed(asked)
    chosen = cache.ranking.choose(cache.claim_request(asked), "n0", BINPACK)
    held = ClaimAllocation(node="n0", container=chosen.containers[CLAIM_CONTAINER])
    asked = replace(asked, status=ElasticGPUClaimStatus(phase="Bound", allocation=held))
    cache.claim_changed(asked)
    view = seen(cache, [], claims=[asked])
    assert lines(bill_of(view)) == [("c", Cause.UNUSED, pytest.approx(1.2), pytest.approx(7.2))]
    assert advice(cache, view, []) == [("release", "release claim c: no pod uses it")]
    user = bound(cache, claim_pod("p", "c"))
    assert not bill_of(seen(cache, [user], claims=[asked])).lines
