"""Events about an object, as `kubectl describe` shows them. Best effort, and never a flood."""

import time
from collections import OrderedDict
from typing import Literal

import structlog

from egpu_base.api.kubernetes import Event
from egpu_base.api.objects import Object, ObjectMeta, ObjectReference
from egpu_base.api.wire import rfc3339
from egpu_base.errors import ElasticGPUError, NotFound
from egpu_base.kubernetes.client import Client

MAX_REMEMBERED = 4096
MAX_MESSAGE_CHARACTERS = 1024

log = structlog.get_logger(__name__)


class EventRecorder:
    """Write an event for an object. If its last one was the same, write nothing, or count."""

    def __init__(self, client: Client, *, component: str) -> None:
        self._client = client
        self._component = component
        self._last: OrderedDict[str, Event] = OrderedDict()

    async def note(self, subject: Object, reason: str, message: str) -> None:
        """Record that an expected thing happened."""
        await self._write(subject, "Normal", reason, message)

    async def warn(self, subject: Object, reason: str, message: str) -> None:
        """Record a problem that may need a person's action."""
        await self._write(subject, "Warning", reason, message)

    async def warn_each_time(self, subject: Object, reason: str, message: str) -> None:
        """Record a problem that comes again: one event, which counts and has the newest message."""
        last = self._last.get(subject.uid)
        if last is None or last.reason != reason:
            await self._write(subject, "Warning", reason, message)
            return
        text = message[:MAX_MESSAGE_CHARACTERS]
        seen = {"count": last.count + 1, "lastTimestamp": rfc3339(time.time()), "message": text}
        try:
            self._last[subject.uid] = await self._client.patch(Event, last.name, seen, namespace=last.namespace)
        except NotFound:  # Events expire.
            del self._last[subject.uid]
            await self._write(subject, "Warning", reason, message)
        except ElasticGPUError as error:
            log.warning("event not counted", subject=subject.key, reason=reason, why=str(error))

    async def _write(self, subject: Object, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        last = self._last.get(subject.uid)
        if last is not None and _says(last, reason, message):
            return
        event = self._event(subject, kind, reason, message)
        self._last[subject.uid] = event
        self._last.move_to_end(subject.uid)
        while len(self._last) > MAX_REMEMBERED:
            self._last.popitem(last=False)
        try:
            await self._client.create(Event, event)
        except ElasticGPUError as error:
            log.warning("event not written", subject=subject.key, reason=reason, why=str(error))

    def _event(self, subject: Object, kind: Literal["Normal", "Warning"], reason: str, message: str) -> Event:
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
            first_timestamp=stamp,
            last_timestamp=stamp,
            source={"component": self._component},
            reporting_component=self._component,
        )


def _says(event: Event, reason: str, message: str) -> bool:
    return (event.reason, event.message) == (reason, message[:MAX_MESSAGE_CHARACTERS])
