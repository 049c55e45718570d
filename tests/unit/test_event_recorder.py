"""Events of an object: told once, and counted at a limited rate when two states take turns."""

from typing import Any

import pytest

from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import ObjectMeta
from egpu_base.kubernetes.events import MAX_EVENTS, MAX_REMEMBERED, REPEAT_SECONDS, EventRecorder
from support.fake_api import FakeAPI

POD = Pod(metadata=ObjectMeta(name="p", namespace="n", uid="u"))


class Recording:
    """A recorder, its clock, and what the API server has of it."""

    def __init__(self) -> None:
        self.api = FakeAPI()
        self.now = 1000.0
        self.recorder = EventRecorder(self.api.client(), component="test", clock=lambda: self.now)

    def counts(self) -> list[tuple[str, int]]:
        return sorted((one["reason"], one.get("count", 1)) for one in self.events())

    def events(self) -> list[dict[str, Any]]:
        return self.api.all("events")


@pytest.fixture
def recording() -> Recording:
    return Recording()


async def test_an_event_is_not_written_again(recording: Recording) -> None:
    for _ in range(3):
        await recording.recorder.note(POD, "A", "one")
    assert recording.counts() == [("A", 1)]


async def test_two_reasons_in_turn_are_written_once_a_minute_with_a_count(recording: Recording) -> None:
    for _ in range(50):
        await recording.recorder.warn(POD, "A", "one")
        await recording.recorder.note(POD, "B", "two")
    assert recording.counts() == [("A", 1), ("A", 1), ("B", 1), ("B", 1)], "the first repetition at once"
    recording.now += REPEAT_SECONDS
    await recording.recorder.warn(POD, "A", "one")
    assert recording.counts()[2:] == [("A", 49), ("B", 1), ("B", 1)]
    assert {method for method, _ in recording.api.log} == {"POST"}, "components may not change events"


async def test_a_problem_that_comes_each_time_is_one_event_beside_others(recording: Recording) -> None:
    for number in range(5):
        await recording.recorder.warn_each_time(POD, "A", f"try {number}")
        await recording.recorder.note(POD, "B", "two")
    await recording.recorder.warn_each_time(POD, "A", "the last")
    assert [one["message"] for one in recording.events() if one["reason"] == "A"] == ["the last"]
    assert ("A", 6) in recording.counts()


async def test_an_event_that_expired_is_written_anew(recording: Recording) -> None:
    await recording.recorder.warn_each_time(POD, "A", "one")
    for one in recording.events():
        recording.api.remove("events", one["metadata"]["name"], "n")
    await recording.recorder.warn_each_time(POD, "A", "one")
    assert recording.counts() == [("A", 1)]


async def test_few_events_of_few_objects_are_remembered(recording: Recording) -> None:
    for number in range(MAX_EVENTS + 1):
        await recording.recorder.note(POD, f"R{number}", "one")
    await recording.recorder.note(POD, "R0", "one")
    assert len([one for one in recording.events() if one["reason"] == "R0"]) == 2, "it was forgotten"
    for number in range(MAX_REMEMBERED):
        await recording.recorder.note(Pod(metadata=ObjectMeta(name="q", namespace="n", uid=f"v{number}")), "A", "one")
    before = len(recording.events())
    await recording.recorder.note(POD, "R0", "one")
    assert len(recording.events()) == before + 1
