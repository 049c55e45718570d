"""The agent's part of sharing: idle time handed out and taken back, and usage files that hold anything at all."""

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from egpu.adapters.slices.pages import Mode, Policy, UsageReader, read_policy
from egpu.api.allocation import CardShare
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.limits.compute import ComputeSharing
from egpu.apps.agent.limits.memory import MemoryReconciler
from egpu.apps.agent.metrics import AgentMetrics
from egpu.apps.agent.slots.directories import Slots
from support.hostile_files import damage
from support.local_node import Cards
from support.slices import LIMIT, Slice, slot_record, uuid
from support.waiting import wait_until


def a_slot(slots: Slots, driver: Path, slot_id: str, *, core: int, core_limit: int = 0) -> Slice:
    share = CardShare(uuid=uuid("1"), index=0, minor=0, core=core, memory_mib=LIMIT >> 20, model="test")
    record = slot_record(slots, slot_id, share, core_limit=core_limit)
    slots.replace(record, lambda directory: None)
    box = Slice(driver, slots.path(slot_id))
    box.limit(core=core, mode=Mode.SHARE if core_limit else Mode.CAP)
    return box


@pytest.fixture
def stepping() -> Iterator[Callable[[ComputeSharing], None]]:
    """Runs a ComputeSharing's steps in a thread, as fast as the agent would."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def start(sharing: ComputeSharing) -> None:
        def loop() -> None:
            while not stop.is_set():
                sharing.step()
                stop.wait(0.01)

        threads.append(threading.Thread(target=loop))
        threads[-1].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join()


def granted(box: Slice) -> int:
    line = read_policy(box.directory / "policy").devices[0]
    return (line.grant_ppm or line.core_ppm) // 10_000


def window_us(box: Slice) -> int:
    window = read_policy(box.directory / "policy").devices[0].window
    return window.length_us if window else 0


def test_idle_time_is_handed_out_and_taken_back(
    slots: Slots, driver: Path, stepping: Callable[[ComputeSharing], None]
) -> None:
    sharing, capped = a_slot(slots, driver, "one", core=30, core_limit=100), a_slot(slots, driver, "two", core=40)
    stepping(ComputeSharing(slots))
    worker = sharing.start("burn", 200, 60)
    wait_until(lambda: granted(sharing) == 100)
    assert read_policy(sharing.directory / "policy").devices[0].window is None
    other = capped.start("burn", 200, 60)
    wait_until(lambda: [window_us(box) for box in (sharing, capped)] == [12_000, 8_000])
    assert (granted(sharing), granted(capped)) == (60, 40)
    other.kill()
    other.wait()
    wait_until(lambda: granted(sharing) == 100)
    worker.kill()
    worker.wait()
    for box in (sharing, capped):
        box.close()


def lines_of(metrics: AgentMetrics, pod: str) -> list[str]:
    """What /metrics says of one pod."""
    text = generate_latest(metrics.registry).decode()
    return [line for line in text.splitlines() if f'pod="{pod}"' in line]


def values_of(lines: list[str]) -> set[tuple[str, float]]:
    return {
        (line.partition("{")[0].removeprefix("elasticgpu_container_"), float(line.rsplit(" ", 1)[1])) for line in lines
    }


def test_a_usage_file_that_holds_anything_raises_no_limit_and_touches_nobody(slots: Slots, driver: Path) -> None:
    hostile = a_slot(slots, driver, "hostile", core=30, core_limit=50)
    honest = a_slot(slots, driver, "honest", core=40)
    sharing = ComputeSharing(slots)
    reconciler = MemoryReconciler(slots, Cards(0))
    inventory = Inventory(Cards(0), interval_seconds=1)
    metrics = AgentMetrics(
        node="n",
        node_ip="",
        slots=slots,
        inventory=inventory,
        demand=sharing.demand,
        findings=lambda: reconciler.findings,
    )
    reconciler.step()
    before, said = UsageReader(honest.directory / "usage").read(), lines_of(metrics, "honest")
    assert len(said) > 8
    random_source = random.Random(3)
    for _ in range(400):
        damage(hostile.directory / "usage", random_source)
        sharing.step()
        reconciler.step()
        assert lines_of(metrics, "honest") == said
        assert values_of(lines_of(metrics, "hostile")) >= {"memory_limit_bytes": LIMIT, "core_limit_ratio": 0.3}.items()
        UsageReader(hostile.directory / "usage").read()
        policy: Policy = read_policy(hostile.directory / "policy")
        line = policy.devices[0]
        assert line.memory_limit_bytes == LIMIT
        assert line.core_ppm == 300_000
        assert 300_000 <= (line.grant_ppm or line.core_ppm) <= 500_000, "never above its ceiling"
        other = read_policy(honest.directory / "policy").devices[0]
        assert (other.grant_ppm or other.core_ppm) == 400_000, "never below its share"
    assert UsageReader(honest.directory / "usage").read() == before
