"""Events about an object, as `kubectl describe` shows them. Best effort, and never a flood."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import structlog

from egpu_base.api.kubernetes import Event
from egpu_base.api.objects import Object, ObjectMeta, ObjectReference
from egpu_base.api.wire import rfc3339
from egpu_base.errors import ElasticGPUError, NotFound
from egpu_base.kubernetes.client import Client

MAX_REMEMBERED: Final = 4096
"""Objects whose events are remembered."""
MAX_EVENTS: Final = 8
"""Of one object: more than a component tells in turn of one that goes from state to state and back."""
REPEAT_SECONDS: Final = 60.0
"""An event that comes again and again between others is written at most so often."""
MAX_MESSAGE_CHARACTERS: Final = 1024

log = structlog.get_logger(__name__)


@dataclass
class _Written:
    """An event that was written, and how often it came since then. It is not written again before `rests_until`."""

    event: Event
    rests_until: float = 0.0
    unwritten: int = 0


class EventRecorder:
    """Write an event for an object. The object's last event is not written again. One of its last MAX_EVENTS that comes
    again is written at once, and then every REPEAT_SECONDS with a count, so that two states in turn are no flood."""

    def __init__(self, client: Client, *, component: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._component = component
        self._clock = clock
        self._of: OrderedDict[str, list[_Written]] = OrderedDict()
        """By the object's UID, the last one last."""

    async def note(self, subject: Object, reason: str, message: str) -> None:
        """Record that an expected thing happened."""
        await self._write(subject, "Normal", reason, message)

    async def warn(self, subject: Object, reason: str, message: str) -> None:
        """Record a problem that may need a person's action."""
        await self._write(subject, "Warning", reason, message)

    async def warn_each_time(self, subject: Object, reason: str, message: str) -> None:
        """Record a problem that comes again: one event, which counts and has the newest message."""
        known = next((one for one in self._known(subject) if one.event.reason == reason), None)
        if known is None:
            await self._create(subject, self._event(subject, "Warning", reason, message))
        else:
            await self._count(subject, known, message)

    async def _write(self, subject: Object, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        known = self._known(subject)
        again = next((one for one in known if _says(one.event, reason, message)), None)
        if again is None:
            await self._create(subject, self._event(subject, kind, reason, message))
            return
        if again is known[-1]:
            return
        known.remove(again)
        again.unwritten += 1
        if (now := self._clock()) < again.rests_until:
            known.append(again)
            return
        event = self._event(subject, kind, reason, message, count=again.unwritten)
        await self._create(subject, event, rests_until=now + REPEAT_SECONDS)

    async def _create(self, subject: Object, event: Event, *, rests_until: float = 0.0) -> None:
        known = self._known(subject)
        known.append(_Written(event, rests_until))
        del known[:-MAX_EVENTS]
        while len(self._of) > MAX_REMEMBERED:
            self._of.popitem(last=False)
        try:
            await self._client.create(Event, event)
        except ElasticGPUError as error:
            log.warning("event not written", subject=subject.key, reason=event.reason, why=str(error))

    async def _count(self, subject: Object, known: _Written, message: str) -> None:
        before, text = known.event, message[:MAX_MESSAGE_CHARACTERS]
        seen = {"count": before.count + 1, "lastTimestamp": rfc3339(time.time()), "message": text}
        try:
            known.event = await self._client.patch(Event, before.name, seen, namespace=before.namespace)
        except NotFound:  # Events expire.
            self._of[subject.uid] = [one for one in self._known(subject) if one is not known]
            await self._create(subject, self._event(subject, "Warning", before.reason, message))
        except ElasticGPUError as error:
            log.warning("event not counted", subject=subject.key, reason=before.reason, why=str(error))

    def _known(self, subject: Object) -> list[_Written]:
        known = self._of.setdefault(subject.uid, [])
        self._of.move_to_end(subject.uid)
        return known

    def _event(
        self, subject: Object, kind: Literal["Normal", "Warning"], reason: str, message: str, *, count: int = 1
    ) -> Event:
        now_ns = time.time_ns()
        stamp = rfc3339(now_ns / 1e9)
        return Event(
            metadata=ObjectMeta(name=f"{subject.name}.{now_ns:x}", namespace=subject.namespace or "default"),
            involved_object=ObjectReference(
                api_version=type(subject).resource.api_version,
                kind=type(subject).__name__,
                namespace=subject.namespace,
                name=subject.name,
                uid=subject.uid,
            ),
            reason=reason,
            message=message[:MAX_MESSAGE_CHARACTERS],
            type=kind,
            count=count,
            first_timestamp=stamp,
            last_timestamp=stamp,
            source={"component": self._component},
            reporting_component=self._component,
        )


def _says(event: Event, reason: str, message: str) -> bool:
    return (event.reason, event.message) == (reason, message[:MAX_MESSAGE_CHARACTERS])
