"""kube-scheduler's queue: who is looked at next, and what brings a rejected pod back."""

import asyncio
from typing import Any

import msgspec
import pytest

from egpu_base.api.kubernetes import Node, Pod
from egpu_sim.cluster.scheduler.events import EXTENDER, Event, node_events, waiting_pod_events
from egpu_sim.cluster.scheduler.filters import NODE_AFFINITY, NODE_PORTS, NODE_RESOURCES_FIT, TAINT_TOLERATION
from egpu_sim.cluster.scheduler.neighbours import INTER_POD_AFFINITY
from egpu_sim.cluster.scheduler.queue import (
    MAX_UNSCHEDULABLE_SECONDS,
    Place,
    QueuedPod,
    SchedulingQueue,
    backoff_seconds,
)
from egpu_sim.cluster.scheduler.spreading import POD_TOPOLOGY_SPREAD

CARDS = frozenset({EXTENDER})


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def pod(name: str, *, priority: int = 0, cpu: str = "1", **metadata: Any) -> Pod:
    spec = {"priority": priority, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}
    return msgspec.convert({"kind": "Pod", "metadata": {"name": name, "uid": name} | metadata, "spec": spec}, Pod)


def queue_of(*pods: Pod) -> tuple[SchedulingQueue, Clock]:
    clock = Clock()
    queue = SchedulingQueue(clock)
    for one in pods:
        queue.offer(None, one)
    return queue, clock


async def popped(queue: SchedulingQueue) -> QueuedPod:
    return await asyncio.wait_for(queue.pop(), 5)


async def nothing(queue: SchedulingQueue) -> bool:
    """Whether there is nothing to pop now."""
    task = asyncio.create_task(queue.pop())
    for _ in range(10):
        await asyncio.sleep(0)
    waits = not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return waits


async def test_priority_first_then_who_waits_longest():
    queue, clock = queue_of(pod("first"), pod("second"))
    clock.now += 1
    queue.offer(None, pod("urgent", priority=7))
    assert [(await popped(queue)).pod.name for _ in range(3)] == ["urgent", "first", "second"]
    assert await nothing(queue)


async def test_what_no_event_concerns_stays_aside_for_five_minutes():
    queue, clock = queue_of(pod("a"))
    queue.put_back(await popped(queue), CARDS)
    assert queue.place("a") is Place.UNSCHEDULABLE
    clock.now += MAX_UNSCHEDULABLE_SECONDS - 1
    assert await nothing(queue)
    clock.now += 1
    assert (await popped(queue)).pod.name == "a"


@pytest.mark.parametrize("event", [event for event in Event if event is not Event.NEIGHBOUR])
async def test_any_event_brings_back_whom_an_extender_rejected(event: Event):
    queue, _ = queue_of(pod("a"))
    queue.put_back(await popped(queue), CARDS)
    queue.happened([event])
    assert (await popped(queue)).pod.name == "a"


async def test_a_new_neighbour_brings_back_only_pods_that_neighbours_rejected():
    queue, _ = queue_of(pod("cards"), pod("uneven"))
    for rejected_by in (CARDS, frozenset({POD_TOPOLOGY_SPREAD})):
        queue.put_back(await popped(queue), rejected_by)
    queue.happened([Event.NEIGHBOUR])
    assert (await popped(queue)).pod.name == "uneven"
    assert await nothing(queue)


@pytest.mark.parametrize(
    ("plugin", "helps", "does_not"),
    [
        (NODE_RESOURCES_FIT, Event.POD_GONE, Event.NODE_LABELS),
        (NODE_RESOURCES_FIT, Event.NODE_ALLOCATABLE, Event.OWN_UPDATE),
        (NODE_AFFINITY, Event.NODE_LABELS, Event.POD_GONE),
        (NODE_PORTS, Event.POD_GONE, Event.NODE_LABELS),
        (POD_TOPOLOGY_SPREAD, Event.NODE_DELETED, Event.NODE_ALLOCATABLE),
        (INTER_POD_AFFINITY, Event.NEIGHBOUR, Event.NODE_TAINTS),
        (TAINT_TOLERATION, Event.NODE_TAINTS, Event.NODE_ALLOCATABLE),
        (TAINT_TOLERATION, Event.OWN_TOLERATIONS, Event.POD_GONE),
    ],
)
async def test_a_plugin_is_concerned_by_its_own_events_only(plugin: str, helps: Event, does_not: Event):
    queue, _ = queue_of(pod("a"))
    queue.put_back(await popped(queue), frozenset({plugin}))
    queue.happened([does_not])
    assert queue.place("a") is Place.UNSCHEDULABLE
    queue.happened([helps])
    assert (await popped(queue)).pod.name == "a"


async def test_what_happens_while_a_pod_is_looked_at_is_not_lost():
    queue, _ = queue_of(pod("a"), pod("b"))
    looked_at = await popped(queue)
    queue.happened([Event.POD_GONE])
    queue.put_back(looked_at, CARDS)
    assert queue.place("a") is Place.BACKING_OFF
    # It is old news the next time.
    queue.put_back(await popped(queue), CARDS)
    queue.put_back(await popped(queue), CARDS)
    assert await nothing(queue)


async def test_a_pod_back_early_goes_after_all_that_are_active():
    queue, clock = queue_of(pod("rejected", priority=9), pod("active"))
    queue.put_back(await popped(queue), CARDS)
    queue.happened([Event.POD_GONE])
    assert queue.place("rejected") is Place.BACKING_OFF
    assert (await popped(queue)).pod.name == "active"
    assert (await popped(queue)).pod.name == "rejected"
    clock.now += 100
    queue.offer(None, pod("other"))
    assert (await popped(queue)).pod.name == "other"


async def test_after_an_error_the_backoff_is_kept_and_doubles():
    queue, clock = queue_of(pod("a"))
    for wait in (1, 2, 4, 8, 10, 10):
        queue.put_back(await popped(queue), frozenset())
        queue.happened(Event)
        clock.now += wait - 0.01
        assert await nothing(queue), wait
        clock.now += 0.02
    assert (await popped(queue)).pod.name == "a"


def test_backoff():
    assert [backoff_seconds(attempts) for attempts in (0, 1, 2, 5, 6, 10_000)] == [0, 1, 2, 10, 10, 10]


async def test_a_change_of_the_pod_itself():
    queue, _ = queue_of(pod("a"))
    queue.put_back(await popped(queue), CARDS)
    touched = pod("a", annotations={"x": "1"})
    queue.offer(pod("a"), touched)
    assert (await popped(queue)).pod == touched


async def test_a_dropped_pod_does_not_come_back():
    queue, _ = queue_of(pod("a"), pod("b"))
    queue.drop("a")
    assert (await popped(queue)).pod.name == "b"
    assert queue.place("a") is None
    assert await nothing(queue)


async def test_it_concerns_nobody_else():
    queue, _ = queue_of(pod("a"))
    queue.put_back(await popped(queue), CARDS)
    queue.happened([Event.POD_GONE], besides="a")
    assert queue.place("a") is Place.UNSCHEDULABLE


def node(**changes: Any) -> Node:
    body: dict[str, Any] = {
        "kind": "Node",
        "metadata": {"name": "n", "labels": {"a": "1"}},
        "spec": {},
        "status": {"allocatable": {"cpu": "1"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    return msgspec.convert({key: body[key] | changes.get(key, {}) if key != "kind" else "Node" for key in body}, Node)


@pytest.mark.parametrize(
    ("old", "new", "events"),
    [
        (None, node(), [Event.NODE_ADDED]),
        (node(), None, [Event.NODE_DELETED]),
        (node(), node(), []),
        (node(), node(metadata={"labels": {}}), [Event.NODE_LABELS]),
        (node(), node(metadata={"annotations": {"x": "y"}}), [Event.NODE_ANNOTATIONS]),
        (node(), node(status={"allocatable": {"cpu": "2"}}), [Event.NODE_ALLOCATABLE]),
        (node(spec={"unschedulable": True}), node(), [Event.NODE_TAINTS]),
        (node(), node(spec={"unschedulable": True}), []),
        (node(), node(status={"conditions": []}), [Event.NODE_TAINTS, Event.NODE_CONDITIONS]),
    ],
)
def test_what_a_change_of_a_node_is(old: Node | None, new: Node | None, events: list[Event]):
    assert node_events(old, new) == events


@pytest.mark.parametrize(
    ("new", "events"),
    [
        (pod("a", labels={"x": "y"}), [Event.OWN_LABELS]),
        (pod("a", cpu="500m"), [Event.POD_SCALED_DOWN]),
        (pod("a", cpu="2"), [Event.OWN_UPDATE]),
        (pod("a"), [Event.OWN_UPDATE]),
    ],
)
def test_what_a_change_of_a_waiting_pod_is(new: Pod, events: list[Event]):
    assert waiting_pod_events(pod("a"), new) == events
