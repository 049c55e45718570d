"""The agent compares what containers count with what the driver says, and charges the larger."""

import os
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from prometheus_client import generate_latest

from egpu.adapters.cards.nvml import CardProcess, CardReading
from egpu.adapters.slices import membership
from egpu.adapters.slices.attribution import WatchedSlice
from egpu.adapters.slices.overruns import ALERT_SECONDS, IDLE_SECONDS, INTERVAL_SECONDS, MOVED_BYTES, MemoryWatch
from egpu.adapters.slices.pages import (
    USAGE_ROW,
    USAGE_ROWS_OFFSET,
    Parking,
    create_usage,
    read_policy,
    write_policy,
)
from egpu.adapters.slices.rows import rows_of
from egpu.api.allocation import CardShare
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.limits.memory import MemoryReconciler
from egpu.apps.agent.metrics import AgentMetrics
from egpu.apps.agent.slots.directories import Slots
from egpu.core.overruns import CONTEXT_BYTES, LOOKS, MOST_WEIGHT, OVERRUN_SECONDS, RECOVERY
from egpu_base.errors import Unavailable
from egpu_base.kubernetes.events import EventRecorder
from support.fake_api import FakeAPI
from support.slices import LIMIT, MIB, OUT_OF_MEMORY, Slice, slot_record, uuid
from support.ticking import Ticking

CARD = uuid("1")
PARKED_BYTES = 40  # of a row: offsetof(struct egpu_usage_slot, parked_bytes)


class Driver:
    """What NVML would say."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.answers = True

    def read(self) -> tuple[CardReading, ...]:
        return ()

    def close(self) -> None:
        pass

    def processes(self) -> dict[str, tuple[CardProcess, ...]]:
        if not self.answers:
            raise Unavailable("NVML does not answer")
        return {CARD: tuple(CardProcess(pid, used) for pid, used in self.held.items())}

    def used_bytes(self) -> dict[str, int]:
        return {CARD: sum(self.held.values())}


@pytest.fixture
def boxes(slots: Slots, driver: Path) -> Iterator[dict[str, Slice]]:
    """Two containers on one card."""
    made = {slot_id: a_slot(slots, driver, slot_id) for slot_id in ("one", "two")}
    yield made
    for box in made.values():
        box.close()


def a_slot(slots: Slots, driver: Path, slot_id: str) -> Slice:
    share = CardShare(uuid=CARD, index=0, minor=0, core=30, memory_mib=LIMIT // MIB)
    record = slot_record(slots, slot_id, share)
    slots.replace(record, lambda directory: None)
    box = Slice(driver, slots.path(slot_id))
    box.limit(core=30)
    return box


def holding(box: Slice, size: int) -> subprocess.Popen[str]:
    child = box.start("hold", size)
    assert child.stdout is not None
    assert child.stdout.readline() == "hold 0\n"
    return child


def overhead(box: Slice) -> int:
    return read_policy(box.directory / "policy").devices[0].overhead_bytes


def looks(reconciler: MemoryReconciler, count: int = LOOKS) -> None:
    for _ in range(count):
        reconciler.step()


def page(slots: Slots, reconciler: MemoryReconciler) -> dict[str, float]:
    """The metrics of `slots`: name{pod} or name{pod, pid} → value."""
    inventory = Inventory(Driver(), interval_seconds=1)
    metrics = AgentMetrics(node="n", node_ip="", slots=slots, inventory=inventory, findings=lambda: reconciler.findings)
    found: dict[str, float] = {}
    for family in metrics.collect():
        for sample in family.samples:
            which = [sample.labels[key] for key in ("pod", "pid") if key in sample.labels]
            found[" ".join([sample.name.removeprefix("elasticgpu_"), *which])] = sample.value
    assert generate_latest(metrics.registry)
    return found


def test_what_the_driver_sees_beyond_the_count_is_charged(slots: Slots, boxes: dict[str, Slice]) -> None:
    nvml = Driver()
    reconciler = MemoryReconciler(slots, nvml, clock=Ticking(INTERVAL_SECONDS))
    one, two = holding(boxes["one"], 100 * MIB), holding(boxes["two"], 10 * MIB)
    nvml.held = {one.pid: 130 * MIB, two.pid: 10 * MIB, os.getpid(): 77 * MIB}
    looks(reconciler, LOOKS - 1)
    assert overhead(boxes["one"]) == 0, "it may have been an allocation under way"
    looks(reconciler, 1)
    assert [overhead(box) for box in boxes.values()] == [30 * MIB, 0], "each pays for its own, nobody for a stranger's"
    free, total = LIMIT - 130 * MIB, LIMIT
    assert boxes["one"].run("info") == [["info", str(free), str(total), str(total)]], "in use, not taken away"
    assert boxes["one"].run("fill", MIB)[0][1] == str(free)
    assert boxes["two"].run("info")[0][1] == str(LIMIT - 10 * MIB)
    found = page(slots, reconciler)
    assert found["container_memory_driver_bytes one"] == 130 * MIB
    assert found["container_memory_overhead_bytes one"] == 30 * MIB
    assert found[f"process_memory_mismatch_bytes one {one.pid}"] == 30 * MIB
    assert found[f"process_memory_mismatch_bytes two {two.pid}"] == 0
    assert found["container_usage_mismatch one"] == found["container_usage_mismatch two"] == 0
    nvml.held[one.pid] = 100 * MIB
    looks(reconciler, 1)
    assert overhead(boxes["one"]) == 0, "given back at once"


def test_memory_that_is_said_to_be_parked_and_is_on_the_card_is_charged(slots: Slots, boxes: dict[str, Slice]) -> None:
    nvml, box = Driver(), boxes["one"]
    reconciler = MemoryReconciler(slots, nvml, clock=Ticking(INTERVAL_SECONDS))
    policy = box.directory / "policy"
    lines = read_policy(policy).devices
    policy.unlink()
    write_policy(policy, lines, parking=Parking())
    child = holding(box, 100 * MIB)
    with (box.directory / "usage").open("r+b") as file:
        (row,) = rows_of(file.read())
        file.seek(USAGE_ROWS_OFFSET + row.number * USAGE_ROW.size + PARKED_BYTES)
        file.write((60 * MIB).to_bytes(8, "little"))
    nvml.held = {child.pid: 40 * MIB}
    looks(reconciler)
    assert overhead(box) == 0, "it is as it says"
    nvml.held = {child.pid: 100 * MIB}
    looks(reconciler)
    assert overhead(box) == 60 * MIB


def test_memory_behind_the_interposers_back_is_charged_and_shown(slots: Slots, boxes: dict[str, Slice]) -> None:
    nvml = Driver()
    reconciler = MemoryReconciler(slots, nvml, clock=Ticking(INTERVAL_SECONDS))
    child = holding(boxes["one"], 16 * MIB)
    nvml.held = {child.pid: LIMIT + 5 * MIB}
    looks(reconciler)
    assert overhead(boxes["one"]) == LIMIT, "over its limit it gets nothing any more"
    assert boxes["one"].run("fill", MIB)[0][1] == "0"
    assert page(slots, reconciler)["container_usage_mismatch one"] == 1
    child.kill()
    child.wait()
    nvml.held = {}
    looks(reconciler, 1)
    assert boxes["one"].run("info")[0][1] == str(LIMIT), "it went with the process"


@pytest.mark.parametrize("claims", [0, 1 << 40])
async def test_whoever_stays_over_its_limit_is_refused_everything_and_then_ended(
    slots: Slots, boxes: dict[str, Slice], claims: int
) -> None:
    """Whatever it claims to use: eight bytes of the usage file hide nothing, and the neighbour stays as it is."""
    nvml, api = Driver(), FakeAPI()
    events = EventRecorder(api.client(), component="elastic-gpu-agent")
    reconciler = MemoryReconciler(slots, nvml, events=events, clock=Ticking(OVERRUN_SECONDS / 10))
    one, two = holding(boxes["one"], 16 * MIB), holding(boxes["two"], 16 * MIB)
    with (boxes["one"].directory / "usage").open("r+b") as usage:
        usage.seek(64)
        usage.write(claims.to_bytes(8, "little"))
    nvml.held = {one.pid: LIMIT + CONTEXT_BYTES + MIB, two.pid: LIMIT}
    looks(reconciler)
    assert [overhead(box) for box in boxes.values()] == [LIMIT, LIMIT - 16 * MIB]
    assert boxes["one"].run("fill", 512) == [["fill", "0", str(OUT_OF_MEMORY)]]
    overruns = [overrun for _ in range(9 - LOOKS) for overrun in reconciler.step()]
    assert overruns == []
    for _ in range(2):
        overruns += reconciler.step()
    assert {overrun.slice.policy for overrun in overruns} == {boxes["one"].directory / "policy"}
    told = str(overruns[0])
    assert f"holds {(LIMIT + CONTEXT_BYTES) // MIB + 1} MiB of card {CARD} by the driver, may hold 256 MiB" in told
    await reconciler.end(overruns[0])
    assert one.wait() == -signal.SIGKILL
    assert two.poll() is None
    (event,) = api.all("events")
    assert (event["reason"], event["involvedObject"]["kind"]) == ("GPUMemoryLimitExceeded", "Pod")
    assert told in event["message"]


@pytest.mark.parametrize(
    ("beyond", "looks_of_twenty", "is_ended"),
    [(CONTEXT_BYTES, 20, False), (CONTEXT_BYTES + MIB, 3, False), (CONTEXT_BYTES + MIB, 10, True)],
)
def test_nobody_is_ended_for_contexts_or_for_a_moment_and_who_takes_breaks_is(
    slots: Slots, boxes: dict[str, Slice], beyond: int, looks_of_twenty: int, is_ended: bool
) -> None:
    nvml = Driver()
    reconciler = MemoryReconciler(slots, nvml, clock=Ticking(INTERVAL_SECONDS))
    child = holding(boxes["one"], 16 * MIB)
    overruns = 0
    for turn in range(200):
        nvml.held = {child.pid: LIMIT + (beyond if turn % 20 < looks_of_twenty else 0)}
        overruns += len(reconciler.step())
    assert (overruns > 0) == is_ended


async def test_who_is_far_beyond_its_limit_is_refused_within_a_quarter_second_and_ended_within_one(
    slots: Slots, boxes: dict[str, Slice]
) -> None:
    """By as many looks as a watch takes in that time once something of a slice is on a card."""
    nvml = Driver()
    reconciler = MemoryReconciler(slots, nvml, clock=Ticking(ALERT_SECONDS))
    child = holding(boxes["one"], 16 * MIB)
    nvml.held = {child.pid: 16 * MIB}
    assert reconciler.step() == ()
    nvml.held = {child.pid: LIMIT + (5 << 30)}
    assert [each for _ in range(round(0.25 / ALERT_SECONDS) - 1) for each in reconciler.step()] == []
    assert boxes["one"].run("fill", 512) == [["fill", "0", str(OUT_OF_MEMORY)]]
    overruns = [each for _ in range(round(0.7 / ALERT_SECONDS)) for each in reconciler.step()]
    assert len(overruns) == 1, "said once, while it ends"
    await reconciler.end(overruns[0])
    assert child.wait() == -signal.SIGKILL


def test_who_comes_back_after_its_end_is_ended_at_once(slots: Slots, boxes: dict[str, Slice]) -> None:
    """A container of which some process goes on is not started again by kubelet, so its back-off does not hold it."""
    nvml = Driver()
    reconciler = MemoryReconciler(slots, nvml, clock=Ticking(INTERVAL_SECONDS))
    beyond, looks_needed = LIMIT + int(MOST_WEIGHT) * CONTEXT_BYTES, 0
    for _ in range(3):
        child = holding(boxes["one"], 16 * MIB)
        nvml.held = {child.pid: beyond}
        looks_needed = next(look for look in range(1, 100) if reconciler.step())
        child.kill()
        child.wait()
        nvml.held = {}
        looks(reconciler, 4)
    assert looks_needed == 1
    looks(reconciler, round(OVERRUN_SECONDS / RECOVERY / INTERVAL_SECONDS))
    child = holding(boxes["one"], 16 * MIB)
    nvml.held = {child.pid: beyond}
    assert reconciler.step() == (), "in the end it is forgotten"


def test_the_driver_is_asked_at_once_when_something_moves_and_seldom_while_nothing_runs(
    slots: Slots, boxes: dict[str, Slice]
) -> None:
    nvml, clock = Driver(), Ticking(0.0)
    watch = MemoryReconciler(slots, nvml, clock=clock).watch
    slices = list(MemoryReconciler(slots, nvml).slices())
    watch.step(slices)
    assert watch.pause_seconds == INTERVAL_SECONDS
    clock.now += INTERVAL_SECONDS
    assert not watch.is_due(), "nothing runs, nothing moved"
    clock.now += IDLE_SECONDS
    assert watch.is_due(), "but now and then"
    watch.step(slices)
    child = holding(boxes["one"], 16 * MIB)
    nvml.held = {child.pid: 100 * MIB}
    clock.now += INTERVAL_SECONDS
    assert watch.is_due()
    watch.step(slices)
    clock.now += INTERVAL_SECONDS
    assert watch.is_due(), "in turn"
    watch.step(slices)
    pauses = {watch.pause_seconds for _ in range(20)}
    assert len(pauses) > 1
    assert all(ALERT_SECONDS / 2 <= pause <= ALERT_SECONDS for pause in pauses)
    clock.now += ALERT_SECONDS
    assert not watch.is_due()
    nvml.held = {child.pid: 100 * MIB, os.getpid(): MOVED_BYTES}
    assert watch.is_due(), "whoever it was"
    watch.step(slices)
    assert not watch.is_due()
    nvml.held = {child.pid: LIMIT + MIB}
    watch.step(slices)
    assert watch.is_due(), "as long as somebody is over its limit"
    nvml.held = {}
    watch.step(slices)
    assert watch.pause_seconds == INTERVAL_SECONDS


def test_a_pod_s_control_group_tells_nothing_where_another_container_has_the_same_card_without_limit(
    slots: Slots,
) -> None:
    for slot_id, card in (("limited", "1"), ("free", "1"), ("limited-elsewhere", "2")):
        share = CardShare(uuid=uuid(card), index=0, minor=0, core=30, memory_mib=LIMIT // MIB)
        record = msgspec.structs.replace(slot_record(slots, slot_id, share), pod_uid="pod")

        def fill(directory: Path, limited: bool = slot_id != "free") -> None:
            if limited:
                (directory / "policy").write_bytes(b"")

        slots.replace(record, fill)
    found = {one.policy.parent.name: one.pods for one in MemoryReconciler(slots, Driver()).slices()}
    assert found == {"limited": (), "limited-elsewhere": ("pod",)}


def test_an_executor_s_count_keeps_what_its_limit_was_and_no_more(boxes: dict[str, Slice]) -> None:
    """Whoever can write the count: what it was given before its limit was lowered it may hold, 60 GiB it may not."""
    box = boxes["one"]
    child = holding(box, 16 * MIB)
    nvml, policy, usage = Driver(), box.directory / "policy", box.directory / "usage"
    lowered = WatchedSlice(key="one", policy=policy, usage=usage, session=child.pid, granted_bytes={CARD: 2 * LIMIT})
    watch = MemoryWatch(nvml, clock=Ticking(INTERVAL_SECONDS))

    def ended(held: int, counted: int) -> bool:
        with usage.open("r+b") as file:
            file.seek(64)
            file.write(counted.to_bytes(8, "little"))
        nvml.held = {child.pid: held}
        return sum(len(watch.step([lowered])) for _ in range(40)) > 0

    assert not ended(2 * LIMIT, 2 * LIMIT)
    assert overhead(box) == 0
    assert ended(40 << 30, 60 << 30)
    assert overhead(box) == LIMIT, "and refused"
    assert not ended(LIMIT, LIMIT), "it gave back"
    assert not ended(2 * LIMIT, 2 * LIMIT)
    assert overhead(box) == LIMIT, "what was given back is not had again"
    child.kill()


@pytest.mark.parametrize("claim", ["nothing", "everything", "garbage", "removed"])
def test_whatever_it_claims_to_use_only_its_own_charge_moves(slots: Slots, boxes: dict[str, Slice], claim: str) -> None:
    nvml = Driver()
    reconciler = MemoryReconciler(slots, nvml, clock=Ticking(INTERVAL_SECONDS))
    one, two = holding(boxes["one"], 100 * MIB), holding(boxes["two"], 10 * MIB)
    nvml.held = {one.pid: 130 * MIB, two.pid: 40 * MIB}
    usage = boxes["one"].directory / "usage"
    if claim == "removed":
        usage.unlink()
    elif claim == "nothing":
        create_usage(usage)
    else:
        content = usage.read_bytes()
        usage.write_bytes(content[:64] + (b"\xff" if claim == "everything" else os.urandom(1)) * (len(content) - 64))
    looks(reconciler)
    assert overhead(boxes["one"]) <= 130 * MIB, "at most what the driver sees"
    assert (overhead(boxes["one"]) == 130 * MIB) == (claim in ("nothing", "removed")) or claim == "garbage"
    assert overhead(boxes["two"]) == 30 * MIB
    line = read_policy(boxes["one"].directory / "policy").devices[0]
    assert (line.memory_limit_bytes, line.core_ppm) == (LIMIT, 300_000)


def test_without_an_answer_of_the_driver_the_charge_stays(slots: Slots, boxes: dict[str, Slice]) -> None:
    nvml = Driver()
    reconciler = MemoryReconciler(slots, nvml, clock=Ticking(INTERVAL_SECONDS))
    child = holding(boxes["one"], 100 * MIB)
    nvml.held = {child.pid: 130 * MIB}
    looks(reconciler)
    nvml.answers = False
    looks(reconciler)
    assert overhead(boxes["one"]) == 30 * MIB


def test_a_process_is_known_by_its_page_and_its_own_name(boxes: dict[str, Slice]) -> None:
    child = holding(boxes["one"], MIB)
    here = membership.identity(boxes["one"].directory / "policy")
    assert here is not None
    pages_of = partial(membership.pages_of, page="/opt/egpu/policy", wanted={here})
    assert pages_of(child.pid) == {here}
    name = membership.name_of(child.pid)
    assert name == membership.Name(os.stat("/proc/self/ns/pid").st_ino, child.pid)
    (process,) = boxes["one"].usage().processes
    assert membership.Name(process.pid_namespace, process.pid) == name
    assert pages_of(os.getpid()) == set()
    child.kill()
    child.wait()
    assert pages_of(child.pid) == set()
    assert membership.name_of(child.pid) is None
