"""`egpu explain pod` tells of long kernels, from recent events of the pod."""

from datetime import UTC, datetime

from egpu.api import names
from egpu.cli.delays import RECENT_SECONDS, delays_of
from egpu_base.api.kubernetes import Event
from egpu_base.api.objects import ObjectReference
from egpu_base.api.wire import rfc3339

NOW = 1_800_000_000.0


def event(message: str, *, reason: str = names.EVENT_DELAYS, pod: str = "train", ago: float = 1) -> Event:
    subject = ObjectReference(kind="Pod", name=pod)
    return Event(involved_object=subject, reason=reason, message=message, last_timestamp=rfc3339(NOW - ago))


def test_recent_events_of_the_pod_are_told_once_each() -> None:
    events = [
        event("delays"),
        event("delays"),
        event("delayed", reason=names.EVENT_DELAYED),
        event("other reason", reason="Scheduled"),
        event("other pod", pod="serve"),
        event("old", ago=RECENT_SECONDS + 1),
    ]
    assert delays_of(events, "train", now=datetime.fromtimestamp(NOW, UTC)) == ["delays", "delayed"]


def test_an_event_adds_no_line_and_moves_no_cursor() -> None:
    """Anybody who may write events of the pod's namespace chooses the text."""
    found = delays_of([event("delays\n\x1b[2Jstate: fine")], "train", now=datetime.fromtimestamp(NOW, UTC))
    assert found == [r"delays\n\x1b[2Jstate: fine"]
