"""Events: what happened to an object, where `kubectl describe` shows it. Best effort, and never a flood."""

import time
from collections import OrderedDict
from typing import Literal

import structlog

from egpu.adapters.kubernetes.client import Client
from egpu.api.kubernetes import Event
from egpu.api.objects import Object, ObjectMeta, ObjectReference
from egpu.api.wire import rfc3339
from egpu.errors import ElasticGPUError

MAX_REMEMBERED = 4096
MAX_MESSAGE_CHARACTERS = 1024

log = structlog.get_logger(__name__)


class EventRecorder:
    """Writes an event for an object unless its last one said the same."""

    def __init__(self, client: Client, *, component: str) -> None:
        self._client = client
        self._component = component
        self._last: OrderedDict[str, tuple[str, str]] = OrderedDict()

    async def note(self, subject: Object, reason: str, message: str) -> None:
        """Something that should happen did."""
        await self._write(subject, "Normal", reason, message)

    async def warn(self, subject: Object, reason: str, message: str) -> None:
        """Something that somebody may have to do something about."""
        await self._write(subject, "Warning", reason, message)

    async def _write(self, subject: Object, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        said = (reason, message)
        if self._last.get(subject.uid) == said:
            return
        self._last[subject.uid] = said
        self._last.move_to_end(subject.uid)
        while len(self._last) > MAX_REMEMBERED:
            self._last.popitem(last=False)
        now_ns = time.time_ns()
        stamp = rfc3339(now_ns / 1e9)
        namespace = subject.namespace or "default"
        event = Event(
            metadata=ObjectMeta(name=f"{subject.name}.{now_ns:x}", namespace=namespace),
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
        try:
            await self._client.create(Event, event)
        except ElasticGPUError as error:
            log.warning("event not written", subject=subject.key, reason=reason, why=str(error))
