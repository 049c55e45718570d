"""Events about pods, best effort: a repeated one increases its count, and one that cannot be written is only logged."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from typing import Literal

import structlog

from egpu_base.api.kubernetes import Event, ObjectMeta, ObjectReference
from egpu_base.api.wire import rfc3339
from egpu_base.errors import ElasticGPUError
from egpu_base.kubernetes import Client
from egpu_sim.cluster.kubelet.objects import Pod

log = structlog.get_logger(__name__)

# Events that wait to be written; more than these are dropped.
QUEUE_LIMIT = 1000
# Events whose repetitions are recognised.
REMEMBERED = 1000

_Key = tuple[str, str, str, str]


class Events:
    """`record` returns at once; `run` writes."""

    def __init__(self, client: Client, node: str) -> None:
        self._client = client
        self._node = node
        self._queue: asyncio.Queue[tuple[_Key, Event]] = asyncio.Queue(QUEUE_LIMIT)
        self._written: OrderedDict[_Key, tuple[str, int]] = OrderedDict()

    def record(
        self, pod: Pod, kind: Literal["Normal", "Warning"], reason: str, message: str, container: str = ""
    ) -> None:
        now = rfc3339(time.time())
        event = Event(
            metadata=ObjectMeta(name=f"{pod.name[:200]}.{uuid.uuid4().hex[:16]}", namespace=pod.namespace),
            involved_object=ObjectReference(
                api_version="v1", kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid
            ),
            reason=reason,
            message=message[:1024],
            type=kind,
            first_timestamp=now,
            last_timestamp=now,
            source={"component": "kubelet", "host": self._node},
            reporting_component="kubelet",
            reporting_instance=self._node,
        )
        try:
            self._queue.put_nowait(((pod.uid, container, reason, event.message), event))
        except asyncio.QueueFull:
            log.warning("event dropped", pod=pod.key, reason=reason)

    async def run(self) -> None:
        while True:
            key, event = await self._queue.get()
            try:
                await self._write(key, event)
            except ElasticGPUError as error:
                log.info("event not written", pod=event.involved_object.name, reason=str(error))

    async def _write(self, key: _Key, event: Event) -> None:
        name, count = self._written.pop(key, (event.name, 0))
        if count:
            patch = {"count": count + 1, "lastTimestamp": event.last_timestamp}
            await self._client.patch(Event, name, patch, namespace=event.namespace)
        else:
            await self._client.create(Event, event)
        self._written[key] = (name, count + 1)
        while len(self._written) > REMEMBERED:
            self._written.popitem(last=False)
